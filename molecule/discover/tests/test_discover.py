"""`make inventory` on the pair as a person has it who set everything up by hand."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from stories.machines import (
    HEAD,
    PAIR,
    WORKER,
    Fingerprint,
    assert_untouched,
    fingerprint,
    machine,
    on,
)
from stories.plays import play
from stories.servers import assert_hikari_alone, back_to_hikari

from simulated_pair.naming import CHECKOUT

RECIPE = "/opt/standins/recipe.git"
RECIPE_HEAD = (CHECKOUT / "simulated_pair/standins/recipe/HEAD.txt").read_text().strip()
CACHE = ".cache/huggingface/hub/models--some--weights/blobs"


@pytest.fixture(scope="module")
def by_hand() -> Iterator[Fingerprint]:
    """Hikari serves; the head has a checkout of the recipe with a change in it, both have data.

    What the machines look like before anybody looks at them.
    """
    back_to_hikari()
    head, worker = machine(HEAD), machine(WORKER)
    on(
        HEAD,
        f"""cd {head.home}; [ ! -L dsv41 ] || mv dsv41 dsv41.of-the-tool
        runuser -u {head.user} -- git clone --quiet {RECIPE} dsv41
        echo '# changed by hand' >>dsv41/start.sh""",
    )
    for one in (head, worker):
        make = f"mkdir -p {CACHE}; echo weights >{CACHE}/a"
        on(one.name, f"cd {one.home}; runuser -u {one.user} -- bash -c {shlex.quote(make)}")
    yield fingerprint()
    on(
        HEAD,
        f"cd {head.home}; rm -rf dsv41; [ ! -L dsv41.of-the-tool ] || mv dsv41.of-the-tool dsv41",
    )
    for one in (head, worker):
        on(one.name, f"cd {one.home}; rm {CACHE}/a; rmdir -p --ignore-fail-on-non-empty {CACHE}")


@pytest.fixture(scope="module")
def simulated() -> Mapping[str, Mapping[str, Any]]:
    """What the pair's own inventory says of its hosts."""
    said = subprocess.check_output([CHECKOUT / "inventory/simulated/addresses.py"], text=True)
    hosts: Mapping[str, Mapping[str, Any]] = json.loads(said)["_meta"]["hostvars"]
    return hosts


@pytest.fixture(scope="module")
def written(
    by_hand: Fingerprint,
    simulated: Mapping[str, Mapping[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The inventory that is written from two ssh targets and nothing else."""
    folder = tmp_path_factory.mktemp("inventory")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "spark_pair.inventory", "--output", str(folder)),
            *("--head", f"{PAIR.head.user}@{PAIR.head.management}"),
            *("--worker", f"{PAIR.worker.user}@{PAIR.worker.management}"),
            *("--private-key", str(PAIR.private_key)),
            f"--ssh-common-args={simulated[HEAD]['ansible_ssh_common_args']}",
        ],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_hosts_are_those_of_the_simulated_inventory(
    written: Path, simulated: Mapping[str, Mapping[str, Any]]
) -> None:
    pair = yaml.safe_load((written / "hosts.yml").read_text())["spark_pair"]
    for role, host in (("head", HEAD), ("worker", WORKER)):
        group = pair["children"][f"spark_{role}"]
        found = {**pair["vars"], **group["hosts"][host]}
        expected = dict(simulated[host])
        for elsewhere in (
            "ansible_python_interpreter",
            "tensorfold_service_recipe_commit",
            "weights_hub_endpoint",
        ):
            expected.pop(elsewhere)
        assert found == expected
        assert group["vars"] == {"pair_role": role}


def test_recipe_and_fallback_are_those_that_are_there(written: Path) -> None:
    engine = (written / "group_vars/spark_pair/engine.yml").read_text()
    values = yaml.safe_load(engine)
    assert values["tensorfold_service_recipe_commit"] == RECIPE_HEAD
    assert values["tensorfold_service_recipe_url"] == RECIPE
    assert "1 changed files" in engine
    servers = (written / "group_vars/spark_pair/model_servers.yml").read_text()
    assert yaml.safe_load(servers) == {
        "model_server_wanted": "deepseek",
        "model_server_fallback": "hikari",
        "model_server_extra": {},
    }
    assert f"hikari answers on port 8000 of {WORKER}" in servers
    assert "To heed" not in servers, "every unit that revives Hikari is in the catalogue"


def test_a_run_accepts_what_was_written(written: Path) -> None:
    played = play("status", inventory=written).unchanged()
    assert "hikari" in played.table
    assert_hikari_alone()


def test_what_differs_from_an_inventory_is_shown(by_hand: Fingerprint) -> None:
    played = play("discover", extra_vars={"model_server_fallback": "none"}).unchanged()
    (wrong,) = played.result_of("Show what was found", HEAD)["differences"]
    assert wrong.startswith("model_server_fallback is none, found: hikari")
    assert wrong in played.output


def test_nothing_of_all_this_has_touched_the_machines(written: Path, by_hand: Fingerprint) -> None:
    assert_untouched(by_hand)
