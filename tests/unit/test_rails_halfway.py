"""A change that only one machine has kept: what is said of it, and that the next run mends it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_pair.rails import plan

# Ansible's classes have no types.
DECIDE: Any = importlib.import_module("action_plugins.spark_pair_rails_decide")
ROLE = Path(__file__).resolve().parents[2] / "roles/cx7_network/tasks"


def made(state: str) -> dict[str, Any]:
    return {"state": state, "changes": [], "refusals": []}


@pytest.mark.parametrize("new", ["head", "worker"])
def test_the_next_run_changes_only_the_machine_that_went_back(new: str) -> None:
    """A controller that dies between both confirmations leaves one machine old, one new."""
    old = {"head": "worker", "worker": "head"}[new]
    plans: Any = {new: made(plan.WORKING), old: made(plan.DIFFERENT)}
    assert plan.actions(plans, []) == {new: plan.ADOPT, old: plan.CONFIGURE}


def test_nobody_claims_to_know_what_an_unanswered_confirmation_has_done() -> None:
    lost = {"unreachable": True, "msg": "ssh"}
    words = DECIDE.ActionModule._trouble(lost, "confirmed")
    assert "may have kept it" in words and "--tags network" in words
    assert "puts its rails back by itself" in DECIDE.ActionModule._trouble(lost, "applied")


def test_a_lost_confirmation_is_repeated_before_anything_is_put_back() -> None:
    tasks = yaml.safe_load((ROLE / "change.yml").read_text())[-1]["block"]
    names = [task["name"] for task in tasks]
    again = names.index("Ask a machine again that did not answer")
    assert names.index("Keep it") < again < names.index("Put everything back at once")
    repeated = yaml.safe_load((ROLE / "confirm_again.yml").read_text())[-1]
    assert repeated["spark_pair_rails_job"]["verb"] == "confirm"
    assert repeated["register"] == tasks[names.index("Keep it")]["register"]
