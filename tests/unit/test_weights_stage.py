"""What a run does of a plan, and whether it may start beside a server."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from fake_pair import FakePair

from spark_pair.description import ROLES, Role
from spark_pair.hostview import View
from spark_pair.weights import plan_table, serving, stage
from spark_pair.weights.manifest import HostRole
from spark_pair.weights.plan import Plan
from spark_pair.weights.serving import Decision
from spark_pair.weights.stage import Work
from spark_pair.weights.steps import Kind, Step

NAMES: dict[HostRole, str] = {"head": "spark-a", "worker": "spark-b"}


def step(kind: Kind, name: str, *needs: str, host: HostRole = "head") -> Step:
    return Step(f"{kind}-{name}-{host}", kind, host, 10, f"{kind} {name}", needs)


IMAGE = step("image", "engine")
CHECKPOINT = step("download", "checkpoint")
ENGRAM = step("download", "engram")
SEND = step("transfer", "engram", ENGRAM.id, host="worker")
CUT = step("shard", "rank0", CHECKPOINT.id)
PLAN = Plan("download_first", (IMAGE, CHECKPOINT, ENGRAM, SEND, CUT))
WHY = "the image engine:test is not on spark-a: load it"
BARRED = replace(PLAN, barred={CUT.id: WHY})


def divided(tags: Collection[str], plan: Plan = PLAN) -> dict[str, list[str]]:
    work = stage.work(plan, tags)
    return {
        name: [one.id for one in getattr(work, name)]
        for name in ("do", "left", "waiting", "others")
    }


@pytest.mark.parametrize("tags", [["all"], ["weights"], ["tools", "weights"], ["weights", "shard"]])
def test_a_whole_run_does_everything_that_is_possible(tags: list[str]) -> None:
    assert divided(tags) == {
        "do": [CHECKPOINT.id, ENGRAM.id, SEND.id, CUT.id],
        "left": [],
        "waiting": [],
        "others": [],
    }
    assert divided(tags, BARRED) == {
        "do": [CHECKPOINT.id, ENGRAM.id, SEND.id],
        "left": [CUT.id],
        "waiting": [],
        "others": [],
    }


@pytest.mark.parametrize("tags", [["download"], ["tools", "download"], ["download", "status"]])
def test_a_run_of_downloads_leaves_everything_else_alone(tags: list[str]) -> None:
    assert divided(tags) == {
        "do": [CHECKPOINT.id, ENGRAM.id],
        "left": [],
        "waiting": [],
        "others": [SEND.id, CUT.id],
    }


def test_a_run_of_one_kind_waits_for_the_others() -> None:
    assert divided(["transfer"])["do"] == []
    assert divided(["transfer"])["waiting"] == [SEND.id]
    assert divided(["transfer"], Plan("minimal", (SEND, CUT)))["do"] == [SEND.id]
    assert divided(["graft", "shard"], BARRED)["left"] == [CUT.id]


def test_what_follows_a_step_that_is_not_possible_waits() -> None:
    prune = step("prune", "checkpoint", CUT.id)
    late = step("download", "more", prune.id)
    plan = replace(BARRED, steps=(*PLAN.steps, prune, late))
    found = divided(["all"], plan)
    assert (found["left"], found["waiting"]) == ([CUT.id], [prune.id, late.id])


def test_nothing_is_done_before_what_it_needs() -> None:
    prune = step("prune", "checkpoint")
    late = step("download", "engram", prune.id)
    plan = Plan("minimal", (CHECKPOINT, prune, late))
    assert divided(["all"], plan)["do"] == [CHECKPOINT.id, prune.id, late.id]
    assert divided(["download"], plan)["do"] == [CHECKPOINT.id]
    assert divided(["download"], plan)["waiting"] == [late.id]


def test_the_image_is_no_matter_of_this_stage_and_yet_what_needs_it_waits() -> None:
    late = step("download", "more", IMAGE.id)
    plan = Plan("minimal", (IMAGE, late))
    nothing: dict[str, list[str]] = {"left": [], "others": []}
    assert divided(["weights"], plan) == {"do": [], "waiting": [late.id], **nothing}
    # An earlier stage of the same run has brought it, or has ended the run.
    for tags in (["all"], ["image", "weights"]):
        assert divided(tags, plan) == {"do": [late.id], "waiting": [], **nothing}


def test_what_lacks_only_the_engines_image_is_done_after_the_stage_that_brings_it() -> None:
    own = replace(BARRED, imageless=frozenset({CUT.id}))
    assert divided(["weights"], own)["left"] == [CUT.id]
    assert divided(["all"], own)["left"] == []
    assert divided(["all"], BARRED)["left"] == [CUT.id]


def test_a_download_does_not_wait_for_a_download_that_is_done_before_it() -> None:
    second = step("download", "more", CHECKPOINT.id)
    assert divided(["all"], Plan("minimal", (CHECKPOINT, second)))["waiting"] == []


def test_what_is_left_is_told_with_the_way_on() -> None:
    second = step("shard", "rank1")
    work = Work(left=(second, CUT), why={second.id: WHY, CUT.id: WHY})
    said = stage.refusal(work, NAMES)
    assert said == (
        "The weights are not complete yet: shard-rank1-head (shard rank1, on spark-a), "
        f"shard-rank0-head (shard rank0, on spark-a): {WHY}"
    )
    assert stage.refusal(Work(do=(ENGRAM,)), NAMES) == ""
    assert "not asked for in this run: shard-rank0-head" in stage.note((CUT,), NAMES)
    assert stage.note((), NAMES) == ""


def test_what_waits_is_told_with_what_it_waits_for() -> None:
    late = step("download", "more", CHECKPOINT.id, "prune-checkpoint-head")
    said = stage.refusal(Work(do=(CHECKPOINT,), waiting=(late,)), NAMES)
    assert "download-more-head waits for prune-checkpoint-head: run again" in said
    both = stage.refusal(Work(left=(CUT,), waiting=(late,), why={CUT.id: WHY}), NAMES)
    assert both.index("load it") < both.index("waits for")


def test_a_check_goes_on_where_a_run_ends() -> None:
    left = Work(left=(CUT,), why={CUT.id: WHY})
    assert stage.end(left, NAMES, check=False) == stage.End(refusal=stage.refusal(left, NAMES))
    checked = stage.end(left, NAMES, check=True)
    assert checked.refusal == "" and stage.refusal(left, NAMES) in checked.words
    assert stage.end(Work(do=(ENGRAM,)), NAMES, check=True) == stage.End()


def test_what_is_not_possible_is_shown_with_the_plan() -> None:
    said = plan_table.table(replace(BARRED, barred={SEND.id: WHY, CUT.id: WHY}), NAMES)
    assert f"Not possible yet:\n  - {SEND.id}, {CUT.id}: {WHY}." in said


def test_after_the_work_only_its_own_steps_are_judged_by_the_record() -> None:
    unrecorded: Any = importlib.import_module("action_plugins.spark_pair_weights_plan")._unrecorded
    done = [CHECKPOINT.id]
    assert unrecorded([SEND, CUT], done, []) == {"recorded": done}
    still = unrecorded([CHECKPOINT, CUT], done, ["the disk is too small."])
    assert "do not vouch for it: download-checkpoint-head" in still["msg"]
    other = unrecorded([CUT], done, ["the disk is too small."])
    assert other == {"failed": True, "msg": "the disk is too small."}


class TestBesideAServer:
    @staticmethod
    def decide(
        pair: FakePair, *, allowed: bool = False, switching: tuple[str, ...] = ()
    ) -> Decision:
        views: dict[Role, View | None] = {
            role: None if role in pair.away else pair.nodes[role].observe() for role in ROLES
        }
        return serving.decide(pair.description, views, switching, allowed=allowed)

    def test_nobody_serves(self) -> None:
        assert self.decide(FakePair()) == Decision()

    def test_a_server_without_ranks_asks_for_gentleness(self) -> None:
        pair = FakePair()
        pair.start("hikari")
        assert self.decide(pair) == Decision(capped=True, words="hikari runs")

    def test_a_server_with_ranks_is_not_disturbed(self) -> None:
        pair = FakePair()
        pair.start("deepseek")
        found = self.decide(pair)
        assert "deepseek runs" in found.refused
        assert "weights_allow_while_serving=true" in found.refused

    def test_the_operator_may_accept_the_risk_within_the_limits(self) -> None:
        pair = FakePair()
        pair.start("deepseek")
        assert self.decide(pair, allowed=True) == Decision(capped=True, words="deepseek runs")

    @pytest.mark.parametrize("role", ROLES)
    def test_a_machine_that_does_not_tell_is_not_taken_for_idle(self, role: Role) -> None:
        pair = FakePair()
        pair.away.add(role)
        assert "deepseek is unknown" in self.decide(pair).refused

    def test_a_pair_that_nobody_describes_is_not_taken_for_idle(self) -> None:
        found = serving.decide(None, {"head": None, "worker": None}, (), allowed=False)
        assert "not known" in found.refused

    def test_a_switch_at_work_is_not_disturbed_whatever_is_allowed(self) -> None:
        found = self.decide(FakePair(), allowed=True, switching=("a switch holds the lock",))
        assert "a switch holds the lock" in found.refused
