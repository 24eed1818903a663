"""Who is missing from a run."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from pair_hostvars import hostvars

from spark_pair import gate
from spark_pair.description import Role

GATE: Any = importlib.import_module("action_plugins.spark_pair_gate")

PAIR: dict[Role, str] = {"head": "spark-a", "worker": "spark-b"}
PONG = {"ping": "pong"}


def absences(**changes: Any) -> dict[str, str]:
    options: dict[str, Any] = {
        "in_limit": ["spark-a", "spark-b"],
        "still_in": ["spark-a", "spark-b"],
        "pings": {"spark-a": PONG, "spark-b": PONG},
        "limit": "",
        **changes,
    }
    return gate.absences(PAIR, **options)


def test_a_complete_pair_has_no_absence() -> None:
    assert absences() == {}


def test_a_host_outside_the_limit_is_named_with_the_command() -> None:
    found = absences(in_limit=["spark-a"], still_in=["spark-a"], limit="spark-a")
    assert list(found) == ["spark-b"]
    assert "the worker of this pair) is left out by -l spark-a" in found["spark-b"]
    assert "-l 'spark-a,spark-b'" in found["spark-b"]


def test_a_host_that_failed_before_is_named() -> None:
    found = absences(still_in=["spark-b"], pings={"spark-b": PONG})
    assert "spark-a (the head of this pair) failed earlier" in found["spark-a"]


def test_an_unreachable_host_is_named_with_the_cause() -> None:
    ping = {
        "unreachable": True,
        "msg": "Failed to connect to the host via ssh: connect to port 22: No route to host",
    }
    found = absences(pings={"spark-a": PONG, "spark-b": ping})
    assert "cannot be reached: connect to port 22: No route to host" in found["spark-b"]


def test_a_host_without_python_is_not_called_unreachable() -> None:
    ping = {
        "failed": True,
        "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found\n",
        "msg": "x",
    }
    found = absences(pings={"spark-a": PONG, "spark-b": ping})
    assert "Python does not run there: /bin/sh: 1: /usr/bin/python3: not found" in found["spark-b"]


def test_a_barrier_looks_only_for_those_who_failed() -> None:
    assert absences(pings=None) == {}
    assert list(absences(pings=None, still_in=["spark-a"])) == ["spark-b"]


def test_a_refusal_says_that_nothing_was_changed_only_when_that_is_known() -> None:
    assert gate.refusal(["A?", "B"], untouched=True) == "A? B. This stage has changed nothing."
    assert gate.refusal(["A."], untouched=False) == "A."


@pytest.mark.parametrize(
    ("inputs", "refused"), [("weights", True), ("all", False), ("names", False), ("none", False)]
)
def test_a_mistake_about_weights_stops_only_what_is_about_weights(
    inputs: str, refused: bool
) -> None:
    both = hostvars(weights_hub_token="", weights_disk_order="fast")
    plugin = object.__new__(GATE.ActionModule)
    problems, description = plugin._inputs("spark-a", both, both["spark-a"], inputs)
    assert [one.split()[0] for one in problems] == ["weights_disk_order"] * refused
    assert bool(description) == (inputs == "all")


@pytest.mark.parametrize("inputs", ["weights", "all", "names"])
def test_a_misspelt_name_is_found_by_every_stage_that_looks_at_variables(inputs: str) -> None:
    both = hostvars(weights_hub_token="", weights_disk_ordr="auto")
    plugin = object.__new__(GATE.ActionModule)
    (problem,) = plugin._inputs("spark-a", both, both["spark-a"], inputs)[0]
    assert "weights_disk_ordr" in problem and "weights_disk_order?" in problem
