"""Half a pair, or one that nobody could mean: refused in a sentence, before anything happens."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from stories.machines import HEAD, WORKER, Fingerprint, assert_untouched
from stories.plays import INVENTORY, ansible_playbook, play

from simulated_pair.naming import CHECKOUT

RECIPE_HEAD = CHECKOUT / "simulated_pair" / "standins" / "recipe" / "HEAD.txt"

MUTATING = (None, "network", "runtime", "tools", "service", "cutover", "stop_incumbent", "rollback")
"""Tags that need both machines; None is a plain run."""


@pytest.mark.parametrize("tags", MUTATING)
def test_one_machine_alone_is_refused(tags: str | None, as_it_was: Fingerprint) -> None:
    words = play(tags, limit=HEAD).refused().one_sentence()
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in words
    assert_untouched(as_it_was)


def test_preflight_of_one_machine_shows_its_table(as_it_was: Fingerprint) -> None:
    played = play("preflight", limit=HEAD)
    assert "reachable over ssh" in played.output
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in played.words
    assert_untouched(as_it_was)


def test_status_of_one_machine_succeeds(as_it_was: Fingerprint) -> None:
    played = play("status", limit=HEAD).unchanged()
    assert f"{WORKER} (the worker of this pair) is left out by -l {HEAD}" in str(
        played.result_of("Show the table", HEAD)["notes"]
    )
    assert_untouched(as_it_was)


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
}


IN_A_PLAIN_RUN = (
    "unknown server",
    "no peer",
    "misspelt variable",
    "a branch where a commit belongs",
)
"""One of each kind. The others are refused by the same gate, at the head of a single stage."""


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_variables_are_refused_by_name(wrong: str, as_it_was: Fingerprint) -> None:
    variables, names = WRONG[wrong]
    played = play(None if wrong in IN_A_PLAIN_RUN else "service", extra_vars=variables).refused()
    for name in names:
        assert name in played.words, f"{name!r} is not named in {played.words!r}"
    assert all("\n" not in one.message for one in played.failures)
    assert_untouched(as_it_was)


@pytest.mark.parametrize("tags", ["service", "cutover"])
def test_stages_refuse_wrong_variables_on_their_own(tags: str, as_it_was: Fingerprint) -> None:
    played = play(tags, extra_vars={"model_server_wanted": "nonsense"}).refused()
    assert "nonsense" in played.one_sentence()
    assert_untouched(as_it_was)


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


def test_a_peer_that_is_missing_from_the_inventory_is_named(
    inventory_of_one: Path, as_it_was: Fingerprint
) -> None:
    for tags in (None, "rollback"):
        played = play(tags, inventory=inventory_of_one).refused()
        assert f"pair_peer of {HEAD} is '{WORKER}', which is not in the inventory" in played.words
    assert_untouched(as_it_was)


def test_without_an_inventory_nothing_runs(tmp_path: Path, as_it_was: Fingerprint) -> None:
    missing = tmp_path / "inventory" / "local"
    code, said = ansible_playbook("-i", str(missing), "site.yml")
    assert code != 0 and "TASK" not in said
    assert "No inventory was parsed" in said and str(missing) in said
    assert_untouched(as_it_was)


def test_a_misspelt_limit_does_not_succeed_with_nothing(as_it_was: Fingerprint) -> None:
    code, said = ansible_playbook("-i", str(INVENTORY), "site.yml", "-l", "spark-033g")
    assert code != 0 and "TASK" not in said
    assert "spark-033g" in said
    assert_untouched(as_it_was)
