"""The switch's phases on a fake pair: what is stopped, started, refused, brought back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_pair import NEW, OLD, FakePair, Killed, describe, phases, switch
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_pair.description import Context
from spark_pair.errors import Exit
from spark_pair.journal import Record
from spark_pair.metrics import Load
from spark_pair.probe import ProbeResult
from spark_pair.switch.machine import (
    FINISHING,
    STILL_SERVING,
    TRANSITIONS,
    UNTOUCHED,
    Outcome,
    Phase,
    after,
    resume_at,
)
from spark_pair.switch.run import go_on, job_from
from spark_pair.switch.work import Work


@pytest.fixture
def pair() -> FakePair:
    made = FakePair()
    made.start("hikari")
    return made


def bad(kind: str, why: str = "broken") -> Any:
    return lambda _: ProbeResult(kind, why)  # type: ignore[arg-type]


class TestCutOver:
    def test_moves_from_hikari_to_deepseek(self, pair: FakePair) -> None:
        code, job = switch(pair)
        assert code is Exit.DONE
        assert pair.generates() == ["deepseek"]
        assert job.changed
        assert pair.links["deepseek"] == NEW
        assert pair.overlaps == []

    @pytest.mark.fault(13)
    def test_stops_keepers_first_and_servers_in_reverse(self, pair: FakePair) -> None:
        switch(pair)
        stops = [action for action in pair.actions if action.startswith("stop")]
        assert stops == [
            "stop watchdog.timer",
            "stop metrics.timer",
            "stop hikari-head.service",
            "stop hikari-worker.service",
        ]

    def test_waits_the_whole_quiet_period(self, pair: FakePair) -> None:
        before = pair.clock
        switch(pair)
        assert pair.clock - before >= 60

    def test_a_second_run_touches_nothing(self, pair: FakePair) -> None:
        switch(pair)
        pair.actions.clear()
        code, job = switch(pair)
        assert code is Exit.DONE
        assert not job.changed
        assert pair.actions == []

    def test_remembers_keepers_for_the_way_back(self, pair: FakePair) -> None:
        switch(pair)
        assert [row["unit"] for row in pair.saved.keepers["hikari"]["units"]] == [
            "watchdog.timer",
            "metrics.timer",
        ]
        code, _ = switch(pair, "hikari", drain="stop", hold=True)
        assert code is Exit.DONE
        assert pair.units["worker", "watchdog.timer"] == "active"
        assert pair.actions[-2:] == ["start watchdog.timer", "start metrics.timer"]
        assert "start watchdog.service" not in pair.actions
        assert pair.saved.hold is not None

    def test_a_keeper_that_was_not_active_is_not_started(self, pair: FakePair) -> None:
        pair.units["worker", "metrics.timer"] = "inactive"
        switch(pair)
        switch(pair, "hikari")
        assert "start metrics.timer" not in pair.actions

    def test_reaching_the_wanted_server_clears_the_hold(self, pair: FakePair) -> None:
        pair.saved.set_hold("rollback", "earlier")
        switch(pair)
        assert pair.saved.hold is None

    def test_another_generation_is_a_drained_restart(self, pair: FakePair) -> None:
        switch(pair)
        pair.links["deepseek"] = OLD
        before = pair.clock
        code, job = switch(pair)
        assert code is Exit.DONE
        assert job.changed
        assert pair.clock - before >= 60
        assert pair.links["deepseek"] == NEW

    def test_none_empties_both_machines(self, pair: FakePair) -> None:
        code, job = switch(pair, "none")
        assert code is Exit.DONE
        assert pair.answers() == []
        assert "as asked" in job.message
        code, job = switch(pair, "none")
        assert not job.changed


class TestRefuse:
    @pytest.mark.parametrize("role", ["head", "worker"])
    def test_an_unreachable_machine(self, pair: FakePair, role: Any) -> None:
        pair.away = {role}
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert pair.actions == []
        assert "cannot be reached" in job.message

    def test_a_missing_image(self, pair: FakePair) -> None:
        pair.missing["worker"] = ["image:1"]
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "image:1 is missing on b" in job.message

    def test_other_weights_than_it_is_described_with(self, pair: FakePair) -> None:
        pair.doubts = {"head": ["rank 0 is another"], "worker": ["rank 1 is another"]}
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "a: rank 0 is another; b: rank 1 is another" in job.message
        assert pair.generates() == ["hikari"]
        assert pair.actions == ["run {generation}/launch start.sh"]

    def test_doubts_about_weights_hinder_no_way_back(self, pair: FakePair) -> None:
        switch(pair)
        switch(pair, "hikari")
        pair.doubts["worker"] = ["rank 1 is another"]
        code, _ = switch(pair, "deepseek", hold=True)
        assert code is Exit.DONE
        code, _ = switch(pair, "hikari")
        assert code is Exit.DONE, "it has no weights that are asked about"

    def test_nor_that_a_dead_server_is_restarted_as_it_was(self, pair: FakePair) -> None:
        switch(pair)
        pair.doubts["worker"] = ["rank 1 is another"]
        pair.containers["worker"].discard("ds")
        code, _ = switch(pair)
        assert code is Exit.DONE

    def test_but_that_it_is_restarted_otherwise(self, pair: FakePair) -> None:
        switch(pair)
        pair.doubts["worker"] = ["rank 1 is another"]
        pair.containers["worker"].discard("ds")
        pair.links["deepseek"] = OLD
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "rank 1 is another" in job.message

    def test_a_recovery_asks_nothing_about_weights(self, pair: FakePair) -> None:
        switch(pair)
        pair.doubts["worker"] = ["rank 1 is another"]
        pair.servers["hikari"].starts = False
        code, _ = switch(pair, "hikari")
        assert code is Exit.RECOVERED
        assert pair.generates() == ["deepseek"]

    def test_a_masked_unit_of_the_way_back(self, pair: FakePair) -> None:
        pair.unit_load["hikari-head.service"] = "masked"
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "hikari-head.service on b is masked" in job.message

    @pytest.mark.fault(36)
    def test_a_squatted_port(self, pair: FakePair) -> None:
        pair.squatted = {8888}
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "port 8888 on a is in use" in job.message

    @pytest.mark.fault(39)
    def test_another_container_name_in_the_dry_run(self, pair: FakePair) -> None:
        pair.dry_run_out = "docker run --name other image"
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "does not start a container named ds" in job.message

    def test_no_disk_room_for_the_journal(self, pair: FakePair) -> None:
        pair.disk_full_from = 0
        code, _ = switch(pair)
        assert code is Exit.REFUSED
        assert pair.generates() == ["hikari"]

    def test_a_busy_target_is_left_alone(self, pair: FakePair) -> None:
        switch(pair)
        pair.actions.clear()
        load = Load(8, 1, (5.0,))
        pair.servers["deepseek"].load = load
        pair.servers["deepseek"].probe = lambda _: ProbeResult("timeout", "late", load=load)
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "deepseek is busy" in job.message
        assert "8 running, 1 waiting" in job.message
        assert pair.actions == []

    @pytest.mark.parametrize("why", ["the reply came from model 'Qwen2'", "HTTP 401: no key"])
    def test_an_old_server_that_is_described_wrongly_is_not_called_dead(
        self, pair: FakePair, why: str
    ) -> None:
        pair.servers["hikari"].probe = bad("mismatch", why)
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "hikari works, but does not answer as it is described" in job.message
        assert why in job.message
        assert pair.actions == []

    @pytest.mark.fault(28)
    def test_an_overloaded_server_is_busy_and_not_dead(self, pair: FakePair) -> None:
        switch(pair)
        pair.servers["deepseek"].probe = bad("overloaded", "HTTP 503: the engine is busy")
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "deepseek is busy" in job.message

    def test_two_servers_at_once_are_not_made_worse(self, pair: FakePair) -> None:
        switch(pair)
        pair.start("hikari")
        pair.actions.clear()
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "two servers at once" in job.message
        assert pair.actions == []

    def test_restarts_of_a_dead_target_are_throttled(self, pair: FakePair) -> None:
        switch(pair)
        pair.servers["deepseek"].probe = bad("http", "HTTP 500")
        pair.restart_count = 2
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "already restarted 2 times" in job.message


class TestDrain:
    def test_waits_while_a_request_runs(self, pair: FakePair) -> None:
        pair.servers["hikari"].load = Load(1, 0, (0.0,))
        busy_until = pair.clock + 100

        def finish(world: FakePair) -> None:
            if world.clock >= busy_until:
                world.servers["hikari"].load = Load(0, 0, (1.0,))

        pair.on_sleep = finish
        code, _ = switch(pair)
        assert code is Exit.DONE
        assert pair.clock >= busy_until + 60

    def test_a_request_in_the_quiet_period_starts_it_anew(self, pair: FakePair) -> None:
        begun = pair.clock

        def blip(world: FakePair) -> None:
            on = 30 <= world.clock - begun < 32
            world.servers["hikari"].load = Load(1 if on else 0, 0, (0.0,))

        pair.on_sleep = blip
        switch(pair)
        assert pair.clock - begun >= 92

    @pytest.mark.parametrize(
        "load", [Load(None, 0, None), Load(0, None, None), Load(), Load(3, 0, None)]
    )
    @pytest.mark.fault(8)
    def test_unknown_is_never_zero_and_the_deadline_keeps_the_old_one(
        self, pair: FakePair, load: Load
    ) -> None:
        pair.servers["hikari"].load = load
        code, job = switch(pair)
        assert code is Exit.GAVE_UP
        assert "still serves" in job.message
        assert pair.generates() == ["hikari"]
        assert pair.units["worker", "watchdog.timer"] == "active"
        assert pair.actions == ["run {generation}/launch start.sh"]

    def test_an_operators_rollback_stops_at_its_deadline(self, pair: FakePair) -> None:
        switch(pair)
        pair.servers["deepseek"].load = Load()
        code, _ = switch(pair, "hikari", drain="stop")
        assert code is Exit.DONE
        assert pair.generates() == ["hikari"]

    @pytest.mark.fault(1)
    def test_a_dead_server_is_not_drained(self, pair: FakePair) -> None:
        switch(pair)
        frozen = Load(0, 0, (7.0,))
        pair.servers["deepseek"].load = frozen
        pair.servers["deepseek"].probe = lambda _: ProbeResult(
            "timeout", "no answer", load=Load(1, 0, (7.0,))
        )
        begun = pair.clock
        code, _ = switch(pair, "hikari", drain="stop")
        assert code is Exit.DONE
        assert pair.clock - begun >= 180
        assert "deepseek is dead: no drain" in [event.get("text") for event in pair.events]


class TestRecover:
    @pytest.mark.parametrize(
        ("probe", "words"),
        [
            (bad("timeout", "no answer within 60 s"), "no answer within 60 s"),
            (bad("bad", "the reply has no text"), "no text"),
            (bad("bad", "one repeated character"), "repeated"),
            (bad("bad", "the reply came from model 'x'"), "came from model"),
            (bad("instant_stop", "stopped at once"), "stopped at once"),
            (bad("http", "HTTP 500"), "HTTP 500"),
        ],
    )
    @pytest.mark.fault(1)
    def test_a_server_that_does_not_generate(self, pair: FakePair, probe: Any, words: str) -> None:
        pair.servers["deepseek"].probe = probe
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert words in job.message
        assert pair.generates() == ["hikari"]
        assert pair.units["worker", "watchdog.timer"] == "active"
        assert pair.saved.hold is not None
        assert pair.overlaps == []

    def test_a_start_that_fails(self, pair: FakePair) -> None:
        pair.servers["deepseek"].starts = False
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "it broke" in job.message
        assert pair.generates() == ["hikari"]

    @pytest.mark.fault(17)
    def test_a_slow_second_rank_is_not_taken_for_a_lost_one(self, pair: FakePair) -> None:
        pair.servers["deepseek"].slow_rank_until = 8
        code, _ = switch(pair)
        assert code is Exit.DONE

    def test_a_rank_that_ends_while_loading(self, pair: FakePair) -> None:
        def lose(world: FakePair) -> None:
            if world.units.get(("head", "deepseek.service")) == "activating":
                world.containers["worker"].discard("ds")

        pair.servers["deepseek"].slow_rank_until = 20
        pair.on_sleep = lose
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "ds on b ended while deepseek was loading" in job.message

    def test_success_of_the_start_script_without_a_server(self, pair: FakePair) -> None:
        pair.servers["deepseek"].claims_only = True
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "the start script of deepseek on a ended with success, but no rank" in job.message

    @pytest.mark.fault(40)
    def test_a_smaller_context(self, pair: FakePair) -> None:
        pair.servers["deepseek"].context = 131072
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "131072" in job.message

    def test_missing_metrics_of_the_new_server(self, pair: FakePair) -> None:
        pair.servers["deepseek"].load = Load()
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "could never be drained" in job.message

    @pytest.mark.fault(18)
    def test_memory_that_does_not_come_back(self, pair: FakePair) -> None:
        pair.held_gib = 20
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "needs 112" in job.message

    def test_a_machine_that_was_restarted_meanwhile(self, pair: FakePair) -> None:
        def reboot(world: FakePair) -> None:
            if "stop" in phases(world):
                world.boots["worker"] = "another"

        pair.held_gib = 9.5
        waited = pair.clock

        def release(world: FakePair) -> None:
            reboot(world)
            if world.clock > waited + 75:
                world.held_gib = 0

        pair.on_sleep = release
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "was restarted during the switch" in job.message

    def test_a_failing_new_generation_gives_the_former_one_back(self, pair: FakePair) -> None:
        switch(pair)
        pair.links["deepseek"] = OLD
        pair.servers["deepseek"].probe = lambda _: (
            ProbeResult("ok", "", 0.1, "hello")
            if pair.links["deepseek"] == OLD
            else ProbeResult("bad", "no text")
        )
        code, _ = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.links["deepseek"] == OLD
        assert pair.generates() == ["deepseek"]

    def test_when_the_former_fails_too_the_fallback_serves(self, pair: FakePair) -> None:
        switch(pair)
        pair.links["deepseek"] = OLD
        probes = iter([ProbeResult("ok", "", 0.1, "hello")])
        pair.servers["deepseek"].probe = lambda _: next(probes, ProbeResult("bad", "no text"))
        code, _ = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.generates() == ["hikari"]

    def test_nobody_comes_back(self, pair: FakePair) -> None:
        pair.servers["deepseek"].starts = False
        pair.servers["hikari"].starts = False
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert job.message.startswith("NO MODEL SERVER ANSWERS")
        assert "spark-pair resume" in job.message
        assert pair.answers() == []
        assert pair.events[-1]["event"] == "stuck"

    @pytest.mark.fault(41)
    def test_a_rank_that_stop_sh_left_behind_is_removed(self, pair: FakePair) -> None:
        switch(pair)
        pair.servers["deepseek"].stops = False
        code, _ = switch(pair, "hikari", drain="stop")
        assert code is Exit.DONE
        assert "remove ds on worker" in pair.actions
        assert pair.overlaps == []


class TestCare:
    """What a switch must not break: servers it did not need to touch, and records it needs."""

    def test_a_keeper_that_does_not_come_back_spares_the_recovered_server(
        self, pair: FakePair
    ) -> None:
        pair.servers["deepseek"].starts = False
        pair.keepers_fail = {"metrics.timer"}
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert "metrics.timer was not brought back" in job.message
        assert pair.units["worker", "watchdog.timer"] == "active"

    def test_and_the_next_run_tries_again(self, pair: FakePair) -> None:
        switch(pair)
        pair.keepers_fail = {"watchdog.timer"}
        code, job = switch(pair, "hikari", drain="stop", hold=True)
        assert code is Exit.DONE
        assert "watchdog.timer was not brought back" in job.message
        pair.keepers_fail = set()
        code, job = switch(pair, "hikari", drain="stop", hold=True)
        assert job.changed
        assert pair.units["worker", "watchdog.timer"] == "active"
        code, job = switch(pair, "hikari", drain="stop", hold=True)
        assert not job.changed

    def test_one_that_is_still_owed_survives_the_next_round(self, pair: FakePair) -> None:
        switch(pair)
        pair.keepers_fail = {"watchdog.timer"}
        switch(pair, "hikari", drain="stop")
        pair.keepers_fail = set()
        switch(pair)
        switch(pair, "hikari", drain="stop")
        assert pair.units["worker", "watchdog.timer"] == "active"

    def test_a_foreign_listener_on_another_servers_port_stops_nothing(self, pair: FakePair) -> None:
        pair.squatted = {8888}
        code, _ = switch(pair, "none")
        assert code is Exit.DONE
        assert pair.answers() == []

    def test_the_former_generation_is_brought_back_by_its_own_values(self, pair: FakePair) -> None:
        switch(pair)
        pair.links["deepseek"] = OLD
        pair.forms[OLD] = lambda server: replace(server, context=Context(131072))

        def shrink(world: FakePair) -> None:
            old = world.links["deepseek"] == OLD
            world.servers["deepseek"].context = 131072 if old else None

        pair.on_sleep = shrink
        code, _ = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.links["deepseek"] == OLD
        assert pair.generates() == ["deepseek"]

    def test_silent_systemd_is_not_an_inactive_keeper(self, pair: FakePair) -> None:
        def silence(world: FakePair) -> None:
            world.systemd_silent = {"worker"} if "keepers" in phases(world) else set()

        pair.on_sleep = silence
        real = pair.record

        def record(event: Any) -> None:
            real(event)
            silence(pair)

        pair.record = record  # type: ignore[method-assign]
        code, _ = switch(pair)
        assert code is not Exit.DONE
        assert "systemd on b did not say" in str(pair.events)
        assert "stop hikari-head.service" not in pair.actions

    def test_keepers_stopped_by_hand_are_not_started_from_an_older_record(
        self, pair: FakePair
    ) -> None:
        switch(pair)
        switch(pair, "hikari", drain="stop")
        pair.units["worker", "watchdog.timer"] = "inactive"
        pair.units["worker", "metrics.timer"] = "inactive"
        switch(pair)
        switch(pair, "hikari", drain="stop")
        assert pair.units["worker", "watchdog.timer"] == "inactive"

    def test_a_rollback_to_what_serves_sets_the_hold(self, pair: FakePair) -> None:
        code, job = switch(pair, "hikari", drain="stop", hold=True)
        assert code is Exit.DONE
        assert not job.changed
        assert pair.saved.hold is not None

    def test_a_cut_over_to_what_serves_clears_the_hold(self, pair: FakePair) -> None:
        switch(pair)
        pair.saved.set_hold("recovery", "earlier")
        switch(pair)
        assert pair.saved.hold is None

    def test_a_bug_in_a_phase_does_not_leave_the_pair_empty(self, pair: FakePair) -> None:
        def explode(_: Any) -> None:
            raise KeyError("surprise")

        pair.flip = explode  # type: ignore[method-assign,assignment]
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "internal error in start: KeyError" in job.message
        assert pair.generates() == ["hikari"]

    def test_a_new_server_under_load_is_kept(self, pair: FakePair) -> None:
        counter = iter(range(100))

        def busy(_: int) -> ProbeResult:
            pair.servers["deepseek"].load = Load(8, 3, (float(next(counter)) + 1,))
            return ProbeResult("timeout", "no answer", load=pair.servers["deepseek"].load)

        pair.servers["deepseek"].probe = busy
        code, _ = switch(pair)
        assert code is Exit.DONE
        assert pair.answers() == ["deepseek"]

    def test_one_that_is_only_described_wrongly_is_still_brought_back(self, pair: FakePair) -> None:
        pair.servers["deepseek"].starts = False
        answers = iter([ProbeResult("ok", "", 0.1, "hello")])
        pair.servers["hikari"].probe = lambda _: next(
            answers, ProbeResult("mismatch", "the reply came from model 'Qwen2'")
        )
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.answers() == ["hikari"]
        assert "not as it is described" in job.message

    def test_since_when_it_serves_begins_anew_when_it_was_brought_back(
        self, pair: FakePair
    ) -> None:
        pair.saved.serving = {"server": "hikari", "generation": None, "since": 1.0}
        pair.servers["deepseek"].starts = False
        switch(pair)
        assert pair.saved.serving is not None
        assert pair.saved.serving["since"] > 1.0

    def test_a_server_that_starts_for_ever_can_be_left(self, pair: FakePair) -> None:
        pair.units["worker", "hikari-head.service"] = "activating"
        assert switch(pair)[0] is Exit.REFUSED
        pair.sleep(120)
        code, _ = switch(pair)
        assert code is Exit.DONE
        assert pair.generates() == ["deepseek"]

    def test_a_request_at_the_last_moment_backs_out(self, pair: FakePair) -> None:
        real = pair.nodes["worker"].stop_unit

        def ask_again(unit: str, timeout: float) -> None:
            real(unit, timeout)
            pair.servers["hikari"].load = Load(1, 0, (0.0,))

        pair.nodes["worker"].stop_unit = ask_again
        code, job = switch(pair)
        assert code is Exit.GAVE_UP
        assert "asked again at the last moment (1 running" in job.message
        assert pair.units["worker", "watchdog.timer"] == "active"

    def test_an_interrupted_stop_of_everything_goes_on(self, pair: FakePair) -> None:
        pair.kill_at_action = 3
        with pytest.raises(Killed):
            switch(pair, "none")
        assert resumed(pair) is Exit.DONE
        assert pair.answers() == []


class TestAbort:
    def test_while_draining(self, pair: FakePair) -> None:
        pair.abort_at = pair.clock + 10
        code, job = switch(pair)
        assert code is Exit.GAVE_UP
        assert pair.generates() == ["hikari"]
        assert "aborted" in job.message

    def test_after_the_stop(self, pair: FakePair) -> None:
        pair.held_gib = 20
        pair.abort_at = pair.clock + 65
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert "aborted" in job.message


def resumed(pair: FakePair) -> Exit:
    """Go on as `spark-pair resume` does, from the journal alone."""
    record = Record("s1", tuple(pair.events))
    job = job_from(record)
    return go_on(pair, Work(pair, job, pair.saved, lambda _: None), job, record)


@pytest.mark.parametrize("action", range(1, 8))
def test_killed_at_any_action_the_pair_ends_with_one_server(action: int) -> None:
    pair = FakePair()
    pair.start("hikari")
    pair.kill_at_action = action
    with pytest.raises(Killed):
        switch(pair)
    resumed(pair)
    assert len(pair.generates()) == 1
    assert pair.answers() == pair.generates()
    assert pair.overlaps == []
    if pair.generates() == ["hikari"]:
        assert pair.units["worker", "watchdog.timer"] == "active"


@settings(max_examples=60, deadline=None)
@given(
    event=st.integers(min_value=1, max_value=45),
    starts=st.booleans(),
    generates=st.booleans(),
)
def test_no_journal_prefix_is_unresumable(event: int, starts: bool, generates: bool) -> None:
    pair = FakePair()
    pair.start("hikari")
    pair.servers["deepseek"].starts = starts
    if not generates:
        pair.servers["deepseek"].probe = bad("bad", "no text")
    pair.kill_at_event = event
    try:
        switch(pair)
    except Killed:
        resumed(pair)
    assert len(pair.generates()) == 1
    assert pair.overlaps == []


class TestMachine:
    def test_every_phase_reaches_an_end_under_every_outcome(self) -> None:
        for start in Phase:
            for outcome in Outcome:
                reached: set[Phase | Exit] = set()
                todo = [after(start, outcome)]
                while todo:
                    at = todo.pop()
                    if at in reached:
                        continue
                    reached.add(at)
                    if isinstance(at, Phase):
                        todo += [after(at, each) for each in Outcome]
                assert any(isinstance(item, Exit) for item in reached)

    def test_after_the_stop_no_end_claims_that_nothing_was_touched(self) -> None:
        reached: set[Phase | Exit] = set()
        todo: list[Phase | Exit] = [Phase.STOP]
        while todo:
            at = todo.pop()
            if at in reached:
                continue
            reached.add(at)
            if isinstance(at, Phase):
                todo += [after(at, each) for each in Outcome]
        assert Exit.REFUSED not in reached
        assert Exit.GAVE_UP not in reached

    def test_the_table_names_only_known_things(self) -> None:
        assert {phase for phase, _ in TRANSITIONS} == set(Phase)

    def test_resume_covers_every_phase(self) -> None:
        for phase in Phase:
            at = resume_at(phase)
            if phase in UNTOUCHED:
                assert at is Exit.REFUSED
            elif phase in STILL_SERVING:
                assert at is Phase.BACK_OUT
            elif phase in FINISHING:
                assert at is Phase.RESTORE
            else:
                assert at is Phase.RECOVER


def test_an_owner_without_a_fallback_gets_the_new_server() -> None:
    def alone(data: dict[str, Any]) -> None:
        data["fallback"] = "none"
        del data["servers"]["hikari"]

    pair = FakePair(describe(alone))
    code, _ = switch(pair)
    assert code is Exit.DONE
    assert pair.generates() == ["deepseek"]
