"""Half a pair, or one that nobody could mean: refused in a sentence, before anything happens."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stories.machines import HEAD, WORKER, assert_untouched, fingerprint
from stories.plays import INVENTORY, Played, ansible_playbook, play
from stories.servers import assert_hikari_alone, back_to_hikari

from simulated_pair.naming import CHECKOUT

RECIPE_HEAD = CHECKOUT / "simulated_pair" / "standins" / "recipe" / "HEAD.txt"

MUTATING = (
    *(None, "network", "runtime", "tools", "adopt", "weights", "download", "service", "cutover"),
    *("stop_incumbent", "rollback"),
)
"""Tags that need both machines; None is a plain run."""


@pytest.fixture(scope="module", autouse=True)
def as_it_was() -> Iterator[None]:
    """The pair before all of these refusals; after the last one it must still look like this."""
    back_to_hikari()
    before = fingerprint()
    yield
    assert_untouched(before)
    assert_hikari_alone()


def _with(tags: str | None, **words: Any) -> Any:
    return pytest.param(id=str(tags), marks=pytest.mark.play(tags=tags, **words))


@pytest.mark.parametrize((), [_with(tags, limit=HEAD) for tags in MUTATING])
def test_one_machine_alone_is_refused(played: Played) -> None:
    words = played.refused().one_sentence()
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in words


@pytest.mark.play(tags="preflight", limit=HEAD)
def test_preflight_of_one_machine_shows_its_table(played: Played) -> None:
    assert "reachable over ssh" in played.output
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in played.words


@pytest.mark.play(tags="status", limit=HEAD)
def test_status_of_one_machine_succeeds(played: Played) -> None:
    notes = played.unchanged().result_of("Show the table", HEAD)["notes"]
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in str(notes)


@pytest.mark.play(tags="plan", limit=HEAD)
def test_a_plan_of_one_machine_shows_what_it_holds_and_is_none(played: Played) -> None:
    words = played.refused().one_sentence()
    assert "No plan can be made without both machines" in words
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in words
    assert f"{HEAD} holds:" in played.output and f"{WORKER} holds:" not in played.output


# Only a check, since a verification takes a note of what it has read.
@pytest.mark.play(tags="verify", limit=HEAD, check=True)
def test_a_verification_of_one_machine_is_not_one_of_the_pair(played: Played) -> None:
    words = played.refused().one_sentence()
    assert "Not the whole pair was verified" in words
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in words
    assert f"{HEAD}: would verify the weights" in played.output


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown server": (
        {"model_server_wanted": "nonsense"},
        ("model_server_wanted", "nonsense"),
    ),
    "unknown fallback": (
        {"model_server_fallback": "hikary"},
        ("model_server_fallback", "hikary"),
    ),
    "negative time": (
        {"model_server_quiet_period": -1},
        ("model_server_quiet_period", "-1"),
    ),
    "no number": (
        {"model_server_drain_deadline": "an hour"},
        ("model_server_drain_deadline", "an hour"),
    ),
    "bad scheme": (
        {"model_server_extra": {"hikari": {"api": {"scheme": "gopher"}}}},
        ("scheme", "gopher"),
    ),
    "bad port": (
        {"model_server_extra": {"hikari": {"api": {"port": 80000}}}},
        ("port", "80000"),
    ),
    "bad address of the recipe": (
        {"tensorfold_service_recipe_url": "-u evil"},
        ("tensorfold_service_recipe_url", "-u evil"),
    ),
    "a branch where a commit belongs": (
        {"tensorfold_service_recipe_commit": "main"},
        ("tensorfold_service_recipe_commit", "main"),
    ),
    "no peer": (
        {"pair_peer": ""},
        ("pair_peer", HEAD),
    ),
    "a peer that does not exist": (
        {"pair_peer": "spark-5bfO"},
        ("pair_peer", "spark-5bfO", WORKER),
    ),
    "misspelt variable": (
        {"model_server_quiet_perod": 60},
        ("model_server_quiet_perod", "model_server_quiet_period"),
    ),
    "unknown key in the catalogue": (
        {"model_server_extra": {"hikari": {"redy_timeout": 60}}},
        ("redy_timeout", "ready_timeout"),
    ),
    "unknown key of an engine": (
        {"tensorfold_service_engines": {"deepseek": {"unit": "a.service", "paralel": 8}}},
        ("paralel", "parallel"),
    ),
    "more lanes than the engine has": (
        {"tensorfold_service_parallel": 9},
        ("tensorfold_service_parallel", "9"),
    ),
    "a start that would download": (
        {"tensorfold_service_prepare": 1},
        ("tensorfold_service_prepare", "1"),
    ),
    "an order of the weights that there is not": (
        {"weights_disk_order": "fast"},
        ("weights_disk_order", "fast", "download_first"),
    ),
}


IN_A_PLAIN_RUN = (
    "unknown server",
    "no peer",
    "misspelt variable",
    "a branch where a commit belongs",
)
"""One of each kind. The others are refused by the same gate, at the head of a single stage."""

OF_THE_PLAN = ("an order of the weights that there is not",)
"""No other stage has use for these variables, and none is stopped by them."""


def _wrong(name: str) -> Any:
    variables, names = WRONG[name]
    tags = None if name in IN_A_PLAIN_RUN else "plan" if name in OF_THE_PLAN else "service"
    mark = pytest.mark.play(tags=tags, extra_vars=variables)
    return pytest.param(names, id=name, marks=mark)


@pytest.mark.parametrize("names", [_wrong(name) for name in WRONG])
def test_wrong_variables_are_refused_by_name(names: tuple[str, ...], played: Played) -> None:
    played.refused()
    for name in names:
        assert name in played.words, f"{name!r} is not named in {played.words!r}"
    assert all("\n" not in one.message for one in played.failures)


NONSENSE = {"model_server_wanted": "nonsense"}


@pytest.mark.parametrize((), [_with(tags, extra_vars=NONSENSE) for tags in ("service", "cutover")])
def test_stages_refuse_wrong_variables_on_their_own(played: Played) -> None:
    assert "nonsense" in played.refused().one_sentence()


@pytest.fixture
def inventory_of_one(tmp_path: Path) -> Path:
    """The simulated inventory, from which somebody has taken the worker out."""
    told = json.loads(
        subprocess.check_output([sys.executable, str(INVENTORY / "addresses.py"), "--list"])
    )
    mine = told["_meta"]["hostvars"][HEAD]
    mine["tensorfold_service_recipe_commit"] = RECIPE_HEAD.read_text().strip()
    hosts = yaml.safe_load((INVENTORY / "hosts.yml").read_text())
    del hosts["spark_pair"]["children"]["spark_worker"]
    hosts["spark_pair"]["children"]["spark_head"]["hosts"][HEAD] = mine
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts))
    (tmp_path / "group_vars").symlink_to(INVENTORY / "group_vars")
    return tmp_path


def test_a_peer_that_is_missing_from_the_inventory_is_named(inventory_of_one: Path) -> None:
    for tags in (None, "rollback"):
        played = play(tags, inventory=inventory_of_one).refused()
        assert f"pair_peer of {HEAD} is '{WORKER}', which is not in the inventory" in played.words


def test_without_an_inventory_nothing_runs(tmp_path: Path) -> None:
    missing = tmp_path / "inventory" / "local"
    code, said = ansible_playbook("-i", str(missing), "site.yml")
    assert code != 0 and "TASK" not in said
    assert "No inventory was parsed" in said and str(missing) in said


def test_a_misspelt_limit_does_not_succeed_with_nothing() -> None:
    code, said = ansible_playbook("-i", str(INVENTORY), "site.yml", "-l", "spark-033g")
    assert code != 0 and "TASK" not in said
    assert "spark-033g" in said
