"""Verdicts: every one but "serving" needs its own evidence, and unknown is never "down"."""

from __future__ import annotations

from typing import Any

import pytest
from fake_pair import FakePair, describe

from spark_pair.description import ROLES, Policy, Role
from spark_pair.hostview import View
from spark_pair.metrics import Load
from spark_pair.probe import ProbeResult
from spark_pair.state import PairState
from spark_pair.switch.look import Look
from spark_pair.switch.work import Work
from spark_pair.switch.world import Job
from spark_pair.verdict import (
    Evidence,
    State,
    Verdict,
    add_evidence,
    parts_of,
    patience,
    presence,
    queued,
    start_evidence,
    weigh,
)


@pytest.fixture
def pair() -> FakePair:
    return FakePair()


def views_of(pair: FakePair) -> dict[Role, View | None]:
    return {role: None if role in pair.away else pair.nodes[role].observe() for role in ROLES}


def found(
    pair: FakePair, name: str = "deepseek", views: dict[Role, View | None] | None = None
) -> Verdict:
    known = views_of(pair) if views is None else views
    return presence(pair.description.server(name), known, pair.description)


def view(views: dict[Role, View | None], role: Role) -> View:
    seen = views[role]
    assert seen is not None
    return seen


class TestPresenceOfRanks:
    def test_down(self, pair: FakePair) -> None:
        assert found(pair) == Verdict(State.DOWN, "")

    def test_up(self, pair: FakePair) -> None:
        pair.start("deepseek")
        assert found(pair) == Verdict(State.UP, "")

    @pytest.mark.parametrize("role", ROLES)
    def test_a_host_that_is_away_says_nothing(self, pair: FakePair, role: Role) -> None:
        pair.away = {role}
        verdict = found(pair)
        assert verdict.state is State.UNKNOWN
        assert verdict.why == f"{pair.description.host_name(role)} did not say how it is there"

    def test_both_away(self, pair: FakePair) -> None:
        pair.away = {"head", "worker"}
        assert found(pair).why == "a and b did not say how it is there"

    def test_no_views_at_all(self, pair: FakePair) -> None:
        assert found(pair, views={}).state is State.UNKNOWN

    def test_docker_that_does_not_answer_says_nothing(self, pair: FakePair) -> None:
        views = views_of(pair)
        view(views, "worker")["containers"] = None
        assert found(pair, views=views).why == "b did not say how it is there"

    def test_a_unit_that_stays_active_without_ranks_is_down(self, pair: FakePair) -> None:
        pair.start("deepseek")
        pair.containers = {"head": set(), "worker": set()}
        assert pair.units["head", "deepseek.service"] == "active"
        assert found(pair).state is State.DOWN

    @pytest.mark.parametrize("state", ["exited", "created", "dead", "restarting", "paused"])
    def test_a_container_that_does_not_run_is_no_rank(self, pair: FakePair, state: str) -> None:
        pair.start("deepseek")
        views = views_of(pair)
        view(views, "worker")["containers"]["ds"]["state"] = state
        verdict = found(pair, views=views)
        assert verdict == Verdict(State.PARTIAL, "ds on a is there, ds on b is not")

    def test_ranks_that_appear_one_after_the_other_are_starting(self, pair: FakePair) -> None:
        pair.units["head", "deepseek.service"] = "activating"
        verdict = found(pair)
        assert verdict == Verdict(State.STARTING, "deepseek.service on a")
        pair.containers["head"].add("ds")
        assert found(pair).state is State.STARTING

    def test_the_unit_still_activating_with_both_ranks_there(self, pair: FakePair) -> None:
        pair.start("deepseek")
        pair.units["head", "deepseek.service"] = "activating"
        assert found(pair).state is State.STARTING

    def test_a_port_that_is_closed_yet(self, pair: FakePair) -> None:
        pair.start("deepseek")
        views = views_of(pair)
        view(views, "head")["apis"]["deepseek"]["listens"] = False
        assert found(pair, views=views) == Verdict(
            State.STARTING, "its parts run, but nothing answers on port 8888 of a yet"
        )

    def test_units_that_cannot_be_asked_do_not_matter_for_ranks(self, pair: FakePair) -> None:
        pair.start("deepseek")
        views = views_of(pair)
        view(views, "head")["units"] = None
        assert found(pair, views=views).state is State.UP


class TestPresenceOfUnits:
    def test_up_and_down(self, pair: FakePair) -> None:
        assert found(pair, "hikari").state is State.DOWN
        pair.start("hikari")
        assert found(pair, "hikari").state is State.UP

    def test_one_of_two(self, pair: FakePair) -> None:
        pair.start("hikari")
        pair.units["head", "hikari-worker.service"] = "failed"
        assert found(pair, "hikari") == Verdict(
            State.PARTIAL, "hikari-head.service on b is there, hikari-worker.service on a is not"
        )

    @pytest.mark.parametrize(
        ("state", "verdict"),
        [
            ("activating", State.STARTING),
            ("deactivating", State.UP),
            ("reloading", State.UP),
            ("inactive", State.PARTIAL),
            ("failed", State.PARTIAL),
        ],
    )
    def test_states_of_systemd(self, pair: FakePair, state: str, verdict: State) -> None:
        pair.start("hikari")
        views = views_of(pair)
        view(views, "worker")["units"]["hikari-head.service"]["active"] = state
        assert found(pair, "hikari", views).state is verdict

    def test_both_activating(self, pair: FakePair) -> None:
        pair.units["head", "hikari-worker.service"] = "activating"
        pair.units["worker", "hikari-head.service"] = "activating"
        assert found(pair, "hikari") == Verdict(
            State.STARTING, "hikari-worker.service on a, hikari-head.service on b"
        )

    def test_systemd_that_does_not_answer_says_nothing(self, pair: FakePair) -> None:
        views = views_of(pair)
        view(views, "head")["units"] = None
        assert found(pair, "hikari", views).state is State.UNKNOWN

    def test_docker_does_not_matter_for_units(self, pair: FakePair) -> None:
        pair.start("hikari")
        views = views_of(pair)
        view(views, "head")["containers"] = None
        assert found(pair, "hikari", views).state is State.UP

    def test_a_failed_part_is_marked(self, pair: FakePair) -> None:
        pair.units["head", "hikari-worker.service"] = "failed"
        parts = parts_of(pair.description.server("hikari"), views_of(pair))
        assert [(part.name, part.failed) for part in parts] == [
            ("hikari-worker.service", True),
            ("hikari-head.service", False),
        ]


def test_verdict_in_words() -> None:
    assert str(Verdict(State.DOWN, "")) == "down"
    assert str(Verdict(State.PARTIAL, "half")) == "partial: half"


POLICY = Policy(dead_after=180, prefill_allowance=300, long_request_allowance=900)


def late(load: Load | None = None) -> ProbeResult:
    return ProbeResult("timeout", "no answer within 60 s", load=load or Load())


def evidence(
    age: float, *, before: Load | None = None, last: ProbeResult | None = None, failures: int = 3
) -> Evidence:
    """Failed probes over `age` seconds."""
    made = start_evidence(1000, before or Load(), 1000, last or late(), failures - 2)
    return add_evidence(made, 1000 + age, last or late())


class TestWeigh:
    def test_tokens_that_move_mean_busy(self) -> None:
        made = evidence(9999, before=Load(1, 0, (5.0,)), last=late(Load(1, 0, (6.0,))))
        verdict = weigh(made, POLICY)
        assert verdict is not None
        assert verdict.state is State.BUSY
        assert "work is being finished (1 running, 0 waiting)" in verdict.why

    def test_any_one_counter_is_enough(self) -> None:
        made = evidence(0, before=Load(1, 0, (5.0, 7.0)), last=late(Load(1, 0, (5.0, 8.0))))
        assert made.progressed

    def test_a_move_is_not_forgotten(self) -> None:
        moving, still = late(Load(1, 0, (6.0,))), late(Load(1, 0, (5.0,)))
        made = start_evidence(0, Load(1, 0, (5.0,)), 0, moving)
        assert add_evidence(made, 10, still).progressed

    def test_counters_that_fell_back_did_not_move(self) -> None:
        assert not evidence(0, before=Load(1, 0, (5.0,)), last=late(Load(0, 0, (0.0,)))).progressed

    @pytest.mark.parametrize(
        ("before", "after"),
        [(Load(), Load(1, 0, (6.0,))), (Load(1, 0, (5.0,)), Load()), (Load(), Load())],
    )
    def test_unknown_counters_did_not_move(self, before: Load, after: Load) -> None:
        assert not evidence(0, before=before, last=late(after)).progressed

    def test_a_lonely_probe_needs_the_plain_limit(self) -> None:
        before = Load(0, 0, (5.0,))
        last = late(Load(1, 0, (5.0,)))
        assert weigh(evidence(179, before=before, last=last), POLICY) is None
        verdict = weigh(evidence(180, before=before, last=last), POLICY)
        assert verdict is not None
        assert verdict.state is State.DEAD
        assert "3 probes failed over 180 s" in verdict.why
        assert "no answer within 60 s" in verdict.why

    def test_two_failures_are_never_enough(self) -> None:
        assert weigh(evidence(9999, failures=2), POLICY) is None

    @pytest.mark.fault(42)
    def test_beside_others_a_long_prefill_is_allowed(self) -> None:
        before = Load(2, 0, (5.0,))
        last = late(Load(3, 0, (5.0,)))
        assert weigh(evidence(299, before=before, last=last), POLICY) is None
        verdict = weigh(evidence(300, before=before, last=last), POLICY)
        assert verdict is not None
        assert verdict.state is State.DEAD

    @pytest.mark.parametrize("kind", ["http", "bad", "refused", "instant_stop"])
    def test_a_wrong_answer_is_no_long_prefill(self, kind: Any) -> None:
        made = evidence(180, before=Load(2, 0, (5.0,)), last=ProbeResult(kind, "CUDA error"))
        verdict = weigh(made, POLICY)
        assert verdict is not None
        assert verdict.state is State.DEAD

    def test_a_queued_probe_means_busy_at_once(self) -> None:
        made = start_evidence(0, Load(8, 0, (5.0,)), 0, late(Load(8, 1, (5.0,))))
        assert queued(made)
        verdict = weigh(made, POLICY)
        assert verdict is not None
        assert verdict.state is State.BUSY
        assert "had to queue" in verdict.why

    def test_a_queue_that_never_moves_is_dead_after_the_longest_answer(self) -> None:
        before, last = Load(8, 0, (5.0,)), late(Load(8, 1, (5.0,)))
        busy = weigh(evidence(899, before=before, last=last), POLICY)
        dead = weigh(evidence(900, before=before, last=last), POLICY)
        assert busy is not None
        assert dead is not None
        assert (busy.state, dead.state) == (State.BUSY, State.DEAD)

    def test_patience_is_never_shorter_than_the_plain_limit(self) -> None:
        policy = Policy(dead_after=1000, prefill_allowance=1, long_request_allowance=1)
        made = evidence(0, before=Load(8, 0), last=late(Load(8, 1)))
        assert patience(made, policy) == 1000
        assert patience(evidence(0, before=Load(8, 0), last=late(Load(8, 0))), policy) == 1000

    def test_without_metrics_only_the_plain_limit_counts(self) -> None:
        assert not queued(evidence(0))
        assert patience(evidence(0), POLICY) == 180


QUEUED = late(Load(8, 1, (5.0,)))


class TestLook:
    """Evidence that is gathered while time passes, and over several runs of the tool."""

    def look(self, pair: FakePair, state: PairState) -> Verdict:
        job = Job("s1", "deepseek", "a test", "a test")
        work = Work(pair, job, state, lambda _: None)
        return Look(work).assess(pair.description.server("deepseek"), work.views())

    @pytest.fixture
    def pair(self) -> FakePair:
        made = FakePair(describe())
        made.start("deepseek")
        made.servers["deepseek"].load = Load(8, 0, (5.0,))
        return made

    def test_a_good_probe_clears_the_suspicion(self, pair: FakePair) -> None:
        state = PairState(suspects={"deepseek": {"since": 1.0, "failures": 2}})
        assert self.look(pair, state).state is State.SERVING
        assert state.suspects == {}

    def test_a_good_probe_among_bad_ones_is_serving(self, pair: FakePair) -> None:
        answers = [late(Load(1, 0, (5.0,))), ProbeResult("ok", "", 1.0, "hello")]
        pair.servers["deepseek"].probe = lambda count: answers[count - 1]
        assert self.look(pair, PairState()).state is State.SERVING

    def test_a_lonely_one_is_dead_after_three_minutes(self, pair: FakePair) -> None:
        pair.servers["deepseek"].load = Load(0, 0, (5.0,))
        pair.servers["deepseek"].probe = lambda _: late(Load(1, 0, (5.0,)))
        begun = pair.clock
        assert self.look(pair, PairState()).state is State.DEAD
        assert 180 <= pair.clock - begun <= 400

    def test_looking_is_bounded_even_without_metrics(self, pair: FakePair) -> None:
        pair.servers["deepseek"].load = Load()
        pair.servers["deepseek"].probe = lambda _: ProbeResult("http", "HTTP 500")
        assert self.look(pair, PairState()).state is State.DEAD

    def test_fast_failures_beside_work_that_is_finished_are_busy(self, pair: FakePair) -> None:
        answers = iter(range(10))

        def fail(_: int) -> ProbeResult:
            pair.servers["deepseek"].load = Load(3, 0, (float(next(answers)) + 10,))
            return ProbeResult("http", "HTTP 500")

        pair.servers["deepseek"].load = Load(3, 0, (5.0,))
        pair.servers["deepseek"].probe = fail
        assert self.look(pair, PairState()).state is State.BUSY

    def test_a_queue_is_remembered_and_dead_in_the_end(self, pair: FakePair) -> None:
        pair.servers["deepseek"].probe = lambda _: QUEUED
        state = PairState()
        seen = []
        for _ in range(3):
            seen.append(self.look(pair, state).state)
            pair.sleep(400)  # and each probe waited for its 60 s
        assert seen == [State.BUSY, State.BUSY, State.DEAD]
        assert pair.saved.suspects["deepseek"]["failures"] == 2

    def test_work_that_was_finished_meanwhile_starts_it_anew(self, pair: FakePair) -> None:
        pair.servers["deepseek"].probe = lambda _: QUEUED
        state = PairState()
        for _ in range(2):
            self.look(pair, state)
            pair.sleep(400)
        pair.servers["deepseek"].load = Load(8, 0, (6.0,))
        pair.servers["deepseek"].probe = lambda _: late(Load(8, 1, (6.0,)))
        assert self.look(pair, state).state is State.BUSY
        assert state.suspects["deepseek"]["failures"] == 1

    def test_a_server_that_was_restarted_meanwhile_starts_it_anew(self, pair: FakePair) -> None:
        pair.servers["deepseek"].probe = lambda _: QUEUED
        state = PairState()
        for _ in range(2):
            self.look(pair, state)
            pair.sleep(400)
        state.suspects["deepseek"]["incarnation"] = ["other", "containers", ""]
        assert self.look(pair, state).state is State.BUSY
        assert state.suspects["deepseek"]["failures"] == 1

    def test_a_memory_from_before_a_reboot_is_dropped(self, pair: FakePair) -> None:
        state = PairState(
            suspects={
                "deepseek": {
                    "since": pair.clock + 5000,
                    "load": Load(8, 1, (5.0,)).as_dict(),
                    "failures": 9,
                }
            }
        )
        pair.servers["deepseek"].probe = lambda _: QUEUED
        assert self.look(pair, state).state is State.BUSY
        assert state.suspects["deepseek"]["failures"] == 1

    def test_unknown_counters_carry_nothing_over(self, pair: FakePair) -> None:
        pair.servers["deepseek"].load = Load(8, 0, None)
        pair.servers["deepseek"].probe = lambda _: late(Load(8, 1, None))
        state = PairState()
        for _ in range(4):
            assert self.look(pair, state).state is State.BUSY
            pair.sleep(400)

    def test_a_server_that_is_gone_is_no_suspect_any_more(self, pair: FakePair) -> None:
        state = PairState(suspects={"deepseek": {"since": 1.0, "failures": 2}})
        pair.containers = {"head": set(), "worker": set()}
        work = Work(pair, Job("s1", "hikari", "", ""), state, lambda _: None)
        server = pair.description.server("deepseek")
        assert Look(work).verdict(server, views_of(pair)).state is State.DOWN
        assert state.suspects == {}
