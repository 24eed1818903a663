"""The switch's phases on a fake pair: what is stopped, started, refused, brought back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_pair import NEW, OLD, FakePair, Killed, describe, phases, switch
from planned_ranks import DECLARED, ENGRAM, SECRET, dry_run, environment, told

from spark_pair.description import Context
from spark_pair.engine_dry_run import digest
from spark_pair.errors import Exit
from spark_pair.journal import Record
from spark_pair.metrics import Load
from spark_pair.probe import ProbeResult
from spark_pair.switch.machine import (
    FINISHING,
    STILL_SERVING,
    TRANSITIONS,
    UNTOUCHED,
    Phase,
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


def before_phase(pair: FakePair, phase: Phase, strike: Callable[[FakePair], None]) -> None:
    """Have something happen when the switch enters a phase."""
    real = pair.record

    def record(event: Any) -> None:
        real(event)
        if event["event"] == "phase" and event["phase"] == phase:
            strike(pair)

    pair.record = record  # type: ignore[method-assign]


def on_action(pair: FakePair, action: str, strike: Callable[[FakePair], None]) -> None:
    """Have something happen when the switch does something for the first time."""
    real = pair.act

    def act(what: str) -> None:
        real(what)
        if what == action and pair.act is act:
            pair.act = real  # type: ignore[method-assign]
            strike(pair)

    pair.act = act  # type: ignore[method-assign]


def with_keys(data: dict[str, Any]) -> None:
    for name, server in data["servers"].items():
        server["api"]["key_file"] = f"/etc/spark-pair/secrets/{name}.key"


class TestCutOver:
    def test_moves_from_hikari_to_deepseek(self, pair: FakePair) -> None:
        code, job = switch(pair)
        assert code is Exit.DONE
        assert pair.generates() == ["deepseek"]
        assert job.changed
        assert pair.links["deepseek"] == NEW
        assert pair.overlaps == []

    def test_a_server_with_a_key_refuses_whoever_has_none(self) -> None:
        pair = FakePair(describe(with_keys))
        pair.start("hikari")
        assert switch(pair)[0] is Exit.DONE
        assert pair.keyless == ["deepseek"]

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

    def test_none_with_a_machine_that_goes_away_when_both_are_empty(self, pair: FakePair) -> None:
        real = pair.record

        def cut(event: Any) -> None:
            real(event)
            if event.get("phase") == "start":
                pair.away = {"worker"}

        pair.record = cut  # type: ignore[method-assign]
        code, _ = switch(pair, "none")
        assert code is Exit.DONE
        assert pair.answers() == []


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

    def test_an_image_that_is_not_the_same_on_both_machines(self, pair: FakePair) -> None:
        pair.contents["worker"] = "2" * 64
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "image image:1 is not the same on both machines" in job.message
        assert "--tags image" in job.message
        assert pair.generates() == ["hikari"]

    def test_an_image_without_the_kit(self, pair: FakePair) -> None:
        pair.without_kit = "image image:1 lacks a.cubin"
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "image image:1 lacks a.cubin" in job.message
        assert pair.generates() == ["hikari"]

    def test_doubts_about_images_hinder_no_way_back(self, pair: FakePair) -> None:
        switch(pair)
        switch(pair, "hikari")
        pair.contents["worker"], pair.without_kit = "2" * 64, "image image:1 lacks a.cubin"
        code, _ = switch(pair, "deepseek", hold=True)
        assert code is Exit.DONE

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

    def test_files_that_were_left_in_a_generation_are_refused(self, pair: FakePair) -> None:
        pair.strays = "a: new files: move them out"
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "move them out" in job.message

    def test_but_a_note_when_what_ran_is_restarted(self, pair: FakePair) -> None:
        switch(pair)
        pair.strays = "a: new files: move them out"
        pair.containers["worker"].discard("ds")
        code, job = switch(pair)
        assert code is Exit.DONE
        assert pair.strays in job.notes

    def test_a_generation_that_was_changed_is_never_restarted(self, pair: FakePair) -> None:
        switch(pair)
        pair.changed_generation = pair.strays = "start.sh (changed)"
        pair.containers["worker"].discard("ds")
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "start.sh (changed)" in job.message

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
        assert "systemctl unmask hikari-head.service" in job.message

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

    def test_a_dry_run_that_fails(self, pair: FakePair) -> None:
        pair.dry_run_code = 1
        pair.dry_run_err = f"[start.sh] ERROR: ROUND_ROWS is 16, not 32, HF_TOKEN={SECRET}\n"
        pair.declares = DECLARED
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "the dry run of deepseek failed on a ([start.sh] ERROR: ROUND_ROWS" in job.message
        assert "correct the variable that it names" in job.message
        assert "engine_image_patches" in job.message and "Nothing was touched" in job.message
        assert SECRET not in job.message
        assert pair.generates() == ["hikari"]
        assert pair.actions == ["run {generation}/launch start.sh"]

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

    def test_so_are_those_of_one_that_served_and_is_gone(self, pair: FakePair) -> None:
        switch(pair)
        for ranks in pair.containers.values():
            ranks.clear()
        pair.restart_count = 2
        code, job = switch(pair)
        assert code is Exit.REFUSED
        assert "deepseek is down, and was already restarted 2 times" in job.message

    def test_but_not_a_start_after_a_stop_on_purpose(self, pair: FakePair) -> None:
        switch(pair)
        switch(pair, "none")
        pair.restart_count = 2
        assert switch(pair)[0] is Exit.DONE

    def test_that_it_was_a_restart_is_written_down(self, pair: FakePair) -> None:
        switch(pair)
        pair.containers["worker"].discard("ds")
        switch(pair)
        armed = [row["restart"] for row in pair.events if row["event"] == "armed"]
        assert armed == [False, True]


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

    def test_an_open_api_although_a_key_is_declared(self) -> None:
        pair = FakePair(describe(with_keys))
        pair.start("hikari")
        pair.servers["deepseek"].without_key = "HTTP 200"
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert "deepseek does not refuse a request for /v1/models without" in job.message
        assert "HTTP 200" in job.message and "tensorfold_service_api_key_path" in job.message

    def test_one_that_is_brought_back_is_only_noted_as_open(self) -> None:
        pair = FakePair(describe(with_keys))
        pair.start("hikari")
        pair.servers["hikari"].without_key = "HTTP 200"
        pair.servers["deepseek"].probe = bad("bad")
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "hikari does not refuse a request" in job.message

    def test_whoever_declares_no_key_is_not_asked(self, pair: FakePair) -> None:
        pair.servers["deepseek"].without_key = "HTTP 200"
        assert switch(pair)[0] is Exit.DONE
        assert pair.keyless == []

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

    def test_a_boot_during_a_rollback_means_the_fallback(self, pair: FakePair) -> None:
        switch(pair)
        pair.actions.clear()

        def reboot(world: FakePair) -> None:
            world.boots["worker"] = "another"

        before_phase(pair, Phase.START, reboot)
        code, job = switch(pair, "hikari")
        assert code is Exit.RECOVERED
        assert "b was restarted during the switch" in job.message
        assert pair.generates() == ["hikari"]
        assert "start deepseek.service" not in pair.actions

    def test_a_boot_while_the_former_one_is_brought_back_means_the_fallback(
        self, pair: FakePair
    ) -> None:
        switch(pair)
        pair.actions.clear()
        pair.servers["hikari"].starts = False

        def reboot(world: FakePair) -> None:
            world.boots["worker"] = "another"
            world.servers["hikari"].starts = True
            world.servers["deepseek"].starts = False

        on_action(pair, "start deepseek.service", reboot)
        code, _ = switch(pair, "hikari")
        assert code is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert pair.actions.count("start deepseek.service") == 1

    def test_a_machine_that_stays_away_is_waited_for_once(self, pair: FakePair) -> None:
        began = 0.0

        def leave(world: FakePair) -> None:
            nonlocal began
            began = world.clock
            world.away.add("worker")

        before_phase(pair, Phase.START, leave)
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert "hikari did not come back: b did not come back within" in job.message
        assert pair.clock - began < 2 * pair.description.policy.resume_wait

    @pytest.mark.parametrize("status", [None, 404])
    def test_a_foreign_listener_does_not_keep_the_former_one_down(
        self, pair: FakePair, status: int | None
    ) -> None:
        """One that never says a word listens as well: a question to it ends with its time."""
        switch(pair)
        pair.servers["hikari"].starts = False
        observe = pair.nodes["worker"].observe

        def seen() -> dict[str, Any]:
            view: dict[str, Any] = observe()
            if 8000 in pair.squatted:
                view["apis"]["hikari"] |= {"listens": True, "models_status": status}
            return view

        pair.nodes["worker"].observe = seen

        def squat(world: FakePair) -> None:
            world.units["worker", "hikari-head.service"] = "active"
            world.squatted.add(8000)

        before_phase(pair, Phase.RECOVER, squat)
        code, job = switch(pair, "hikari")
        assert code is Exit.RECOVERED
        assert pair.generates() == ["deepseek"]
        assert "port 8000 on b is open, by something that is not hikari" in job.message

    def test_a_listener_that_answers_as_the_server_is_not_foreign(self, pair: FakePair) -> None:
        """A process that has left its unit: two servers at once would be the end of both."""
        observe = pair.nodes["worker"].observe

        def seen() -> dict[str, Any]:
            view: dict[str, Any] = observe()
            view["ports"]["8000"] = view["apis"]["hikari"]["listens"] = True
            view["apis"]["hikari"]["models_status"] = 200
            return view

        pair.nodes["worker"].observe = seen
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "hikari is not gone after 30 s: port 8000 on b is open" in job.message
        assert "start deepseek.service" not in pair.actions

    @pytest.mark.parametrize("kind", ["timeout", "overloaded"])
    def test_full_lanes_of_which_none_is_ever_finished_are_no_proof(
        self, pair: FakePair, kind: str
    ) -> None:
        full = Load(8, 3, (5.0,))
        pair.servers["deepseek"].starts = False
        before_phase(
            pair,
            Phase.RECOVER,
            lambda world: vars(world.servers["hikari"]).update(
                load=full,
                probe=lambda _: ProbeResult(kind, "no answer", load=full),  # type: ignore[arg-type]
            ),
        )
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert "hikari does not generate: its requests (8 running, 3 waiting)" in job.message

    def test_full_lanes_of_a_server_that_dies_are_not_waited_for(self, pair: FakePair) -> None:
        full = Load(8, 3, (5.0,))
        pair.servers["deepseek"].starts = False
        hikari = pair.servers["hikari"]

        def fill(world: FakePair) -> None:
            def die(_: FakePair) -> None:
                hikari.load = Load()

            hikari.load = full
            hikari.probe = lambda _: ProbeResult("timeout", "no answer", load=hikari.load)
            world.on_sleep = die

        before_phase(pair, Phase.RECOVER, fill)
        began = pair.clock
        assert switch(pair)[0] is Exit.NOBODY
        assert pair.clock - began < pair.description.policy.long_request_allowance

    def test_a_machine_that_is_booted_while_the_last_one_is_brought_back(
        self, pair: FakePair
    ) -> None:
        """It is away for a moment, and then what comes up there is not stopped but joined."""
        pair.servers["deepseek"].starts = False

        def reboot(world: FakePair) -> None:
            back = world.clock + 10
            world.away = {"worker"}

            def wait(later: FakePair) -> None:
                if later.clock >= back:
                    later.away = set()
                    later.boots["worker"] = "another"

            world.on_sleep = wait

        on_action(pair, "start hikari-worker.service", reboot)
        code, _ = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.generates() == ["hikari"]

    def test_full_lanes_of_which_one_is_finished_in_time_are_proof(self, pair: FakePair) -> None:
        full = Load(8, 3, (5.0,))
        pair.servers["deepseek"].starts = False
        hikari = pair.servers["hikari"]

        def fill(world: FakePair) -> None:
            until = world.clock + world.description.policy.long_request_allowance / 2

            def work(later: FakePair) -> None:
                if later.clock > until:
                    hikari.load = Load(8, 3, (6.0,))

            hikari.load = full
            hikari.probe = lambda _: ProbeResult("timeout", "no answer", load=full)
            world.on_sleep = work

        before_phase(pair, Phase.RECOVER, fill)
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.answers() == ["hikari"]
        assert pair.actions.count("stop hikari-head.service") == 1
        assert "hikari serves, verified by the work that it finishes" in job.message

    def test_full_lanes_without_counters_are_given_the_benefit_of_the_doubt(
        self, pair: FakePair
    ) -> None:
        full = Load(8, 3)
        pair.servers["deepseek"].starts = False
        before_phase(
            pair,
            Phase.RECOVER,
            lambda world: vars(world.servers["hikari"]).update(
                load=full, probe=lambda _: ProbeResult("timeout", "no answer", load=full)
            ),
        )
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert "hikari is busy: a probe had to queue" in job.message

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

    def test_with_a_machine_away_the_other_one_is_emptied(self, pair: FakePair) -> None:
        def power_cut(world: FakePair) -> None:
            if "deepseek.service" in str(world.actions[-1:]):
                world.away = {"worker"}
                world.containers["worker"].clear()
                world.units["worker", "hikari-head.service"] = "inactive"

        pair.servers["deepseek"].slow_rank_until = 10
        pair.on_sleep = power_cut
        pair.servers["deepseek"].probe = bad("timeout")
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert pair.containers["head"] == set()
        assert "Not all is stopped: b cannot be asked (worker cannot be reached)" in job.message
        assert job.message.endswith("run 'spark-pair resume' on a")

    def test_a_server_that_may_serve_on_the_machine_away_is_left(self, pair: FakePair) -> None:
        real = pair.record

        def cut(event: Any) -> None:
            real(event)
            if event.get("phase") == "stop":
                pair.away = {"worker"}

        pair.record = cut  # type: ignore[method-assign]
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert "hikari was left alone, since it may be serving on b" in job.message
        assert pair.generates() == ["hikari"]

    def test_one_that_answers_is_left_when_the_other_machine_is_away(self, pair: FakePair) -> None:
        real = pair.record

        def cut(event: Any) -> None:
            real(event)
            if event.get("phase") == "verify":
                pair.away = {"worker"}

        pair.record = cut  # type: ignore[method-assign]
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert "deepseek still answers (serving) and was left alone" in job.message
        assert "NO MODEL SERVER" not in job.message
        assert pair.generates() == ["deepseek"]

    def test_after_a_resume_the_last_line_says_what_went_wrong_at_first(
        self, pair: FakePair
    ) -> None:
        pair.servers["deepseek"].starts = False
        pair.servers["hikari"].starts = False
        switch(pair)
        pair.servers["hikari"].starts = True
        assert resumed(pair) is Exit.RECOVERED
        assert pair.events[-1]["message"] == (
            "deepseek.service on a failed: [start.sh] ERROR: it broke. hikari serves, verified by "
            "a completion"
        )

    def test_what_cannot_be_seen_is_not_called_gone(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop = pair.nodes["worker"].stop_unit

        def lost(unit: str, timeout: float) -> None:
            if unit == "hikari-head.service":
                pair.away = {"worker"}
            stop(unit, timeout)

        monkeypatch.setattr(pair.nodes["worker"], "stop_unit", lost)
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert pair.generates() == ["hikari"]
        assert job.message.startswith("NO MODEL SERVER IS KNOWN TO ANSWER.")
        assert "worker cannot be reached" in job.message and "spark-pair resume" in job.message

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

    def test_while_the_new_server_is_proven(self, pair: FakePair) -> None:
        proof = pair.servers["deepseek"].probe

        def aborted_meanwhile(count: int) -> ProbeResult:
            pair.abort_at = pair.clock
            return proof(count)

        pair.servers["deepseek"].probe = aborted_meanwhile
        code, job = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert "aborted" in job.message


def resumed(pair: FakePair) -> Exit:
    """Go on as `spark-pair resume` does, from the journal alone."""
    record = Record("s1", tuple(pair.events))
    job = job_from(record)
    return go_on(pair, Work(pair, job, pair.saved, lambda _: None), job, record)


class TestMachine:
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


class TestThePlannedStart:
    """The dry run against the declaration, and what runs against the dry run."""

    @pytest.fixture
    def planned(self) -> FakePair:
        def change(data: dict[str, Any]) -> None:
            for role, rail in (("head", "198.51.100.1"), ("worker", "198.51.100.2")):
                data["hosts"][role]["addresses"] += [rail, f"{rail}0"]
                data["hosts"][role]["rails"] = ["enp1s0f0np0", "enP2p1s0f0np0"]
            data["servers"]["deepseek"]["expect_drafts"] = True

        made = FakePair(describe(change))
        made.start("hikari")
        made.declares = DECLARED
        made.dry_run_out = dry_run()
        made.ranks = {"head": told(0), "worker": told(1)}
        return made

    def accept(self, pair: FakePair, output: str) -> None:
        server = pair.description.servers["deepseek"]
        servers = {**pair.description.servers}
        servers["deepseek"] = replace(server, accept_dry_run=digest(output))
        pair.description = replace(pair.description, servers=servers)

    def said(self, pair: FakePair) -> str:
        return "\n".join(str(event["text"]) for event in pair.events if event["event"] == "note")

    def test_as_declared(self, planned: FakePair) -> None:
        code, _ = switch(planned)
        assert code is Exit.DONE
        assert "both ranks run as planned" in self.said(planned)

    @pytest.mark.fault(39)
    def test_every_difference_is_named_and_nothing_touched(self, planned: FakePair) -> None:
        planned.dry_run_out = dry_run(
            env=(environment(TF_DS_SPILL="1"), environment(TF_DS_GRAPHS="0", TF_DS_ENGRAM="/e"))
        )
        code, job = switch(planned)
        assert code is Exit.REFUSED
        assert "rank 0: TF_DS_SPILL is 1, and nobody declared it" in job.message
        assert "rank 1: TF_DS_GRAPHS is 0, declared 1" in job.message
        assert planned.actions == ["run {generation}/launch start.sh"]
        assert planned.generates() == ["hikari"]

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_rank_on_the_management_network(self, planned: FakePair, rank: int) -> None:
        envs = [environment(), environment(TF_DS_ENGRAM="/e")]
        envs[rank]["NCCL_SOCKET_IFNAME"] = "enP7s7"
        planned.dry_run_out = dry_run(env=(envs[0], envs[1]))
        code, job = switch(planned)
        assert code is Exit.REFUSED
        assert f"rank {rank}: NCCL_SOCKET_IFNAME is enP7s7, and the rails" in job.message

    def test_a_difference_cannot_be_accepted(self, planned: FakePair) -> None:
        planned.dry_run_out = dry_run(image=("other", "image:1"))
        self.accept(planned, planned.dry_run_out)
        code, job = switch(planned)
        assert code is Exit.REFUSED
        assert "rank 0: the image is other, declared image:1" in job.message

    def test_a_variable_that_nobody_knows_can_be_accepted(self, planned: FakePair) -> None:
        own = environment(TF_DS_SPILL="1"), environment(TF_DS_SPILL="1", TF_DS_ENGRAM="/e")
        planned.dry_run_out = dry_run(env=own)
        code, job = switch(planned)
        assert code is Exit.REFUSED
        assert "rank 0: TF_DS_SPILL is 1, and nobody declared it" in job.message
        assert digest(planned.dry_run_out) in job.message
        self.accept(planned, planned.dry_run_out)
        planned.ranks = {"head": told(0, dry_run(env=own)), "worker": told(1, dry_run(env=own))}
        code, job = switch(planned)
        assert code is Exit.DONE
        assert "TF_DS_SPILL is 1" in job.message, "what was accepted is told"

    def test_what_is_not_understood_is_shown_without_secrets(self, planned: FakePair) -> None:
        planned.dry_run_out = f"docker compose up -d HF_TOKEN={SECRET}\n"
        code, job = switch(planned)
        assert code is Exit.REFUSED
        assert digest(planned.dry_run_out) in job.message
        assert "docker compose up" in self.said(planned)
        assert SECRET not in self.said(planned) + job.message

    def test_what_is_left_out_of_a_long_output_is_counted(self, planned: FakePair) -> None:
        planned.dry_run_out = "docker compose up -d\n" * 70 + "last line\n"
        planned.dry_run_err = "WARN: " + "x" * 5000
        assert switch(planned)[0] is Exit.REFUSED
        said = self.said(planned)
        assert said.count("docker compose up") == 60 and "last line" not in said
        assert "… 11 more lines ('launch DRY_RUN=1 start.sh' of its generation" in said
        assert "dry run of deepseek complained: WARN: xxx" in said
        assert "… 1006 more characters" in said

    def test_and_accepted_by_its_sha256_alone(self, planned: FakePair) -> None:
        planned.dry_run_out = "docker compose up -d\n"
        self.accept(planned, "another output\n")
        assert switch(planned)[0] is Exit.REFUSED
        self.accept(planned, planned.dry_run_out)
        code, job = switch(planned)
        assert code is Exit.DONE
        assert "accepted without being understood" in job.message

    def test_an_accepted_start_must_still_run_what_is_declared(self, planned: FakePair) -> None:
        planned.dry_run_out = "docker compose up -d\n"
        self.accept(planned, planned.dry_run_out)
        planned.ranks["worker"] = told(1, dry_run(image=("image:1", "other")))
        code, job = switch(planned)
        assert code is Exit.RECOVERED
        assert "rank 1: the image is other, declared image:1" in job.message

    def test_and_what_nobody_declared_of_it_is_told(self, planned: FakePair) -> None:
        planned.dry_run_out = "docker compose up -d\n"
        self.accept(planned, planned.dry_run_out)
        own = environment(TF_DS_STREAMS="4"), environment(TF_DS_ENGRAM="/e")
        planned.ranks["head"] = told(0, dry_run(env=own))
        assert switch(planned)[0] is Exit.DONE
        assert "deepseek runs, and rank 0: TF_DS_STREAMS is 4, declared 8" in self.said(planned)

    @pytest.mark.fault(47)
    @pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs"])
    def test_weights_of_another_machine(self, planned: FakePair, kind: str) -> None:
        planned.kinds[ENGRAM] = kind
        code, job = switch(planned)
        assert code is Exit.REFUSED
        assert f"rank 1: {ENGRAM} on b (TF_DS_ENGRAM) lies on {kind}" in job.message

    @pytest.mark.fault(38)
    def test_a_rank_that_runs_otherwise_than_planned(self, planned: FakePair) -> None:
        other = dry_run(env=(environment(), environment(TF_DS_GRAPHS="0", TF_DS_ENGRAM="/e")))
        planned.ranks["worker"] = told(1, other)
        code, job = switch(planned)
        assert code is Exit.RECOVERED
        assert "rank 1: TF_DS_GRAPHS is 0, planned 1" in job.message
        assert planned.generates() == ["hikari"]

    @pytest.mark.parametrize(
        ("role", "changes", "words"),
        [
            ("head", {"image_id": "sha256:2"}, "rank 0: its image is another one than the name"),
            ("head", {"inspected": {}}, "rank 0: Docker does not say"),
            ("head", {"ready": {"context": 262144, "drafts": False}}, "rank 0: drafts are off"),
            ("head", {"ready": {"context": 262144}}, "rank 0: drafts are not mentioned"),
            ("worker", {"ready": {"drafts": False}}, "rank 1: drafts are off"),
            ("worker", {"ready": {"context": 2048}}, "rank 1 has a pool of 2048 tokens"),
        ],
    )
    def test_other_signs_of_a_wrong_start(
        self, planned: FakePair, role: Any, changes: dict[str, Any], words: str
    ) -> None:
        planned.ranks[role] = {**planned.ranks[role], **changes}
        code, job = switch(planned)
        assert code is Exit.RECOVERED
        assert words in job.message

    def test_a_worker_that_says_nothing_is_not_at_fault(self, planned: FakePair) -> None:
        planned.ranks["worker"] = {**planned.ranks["worker"], "ready": {}}
        assert switch(planned)[0] is Exit.DONE

    def test_the_former_generation_comes_back_and_then_the_fallback(
        self, planned: FakePair
    ) -> None:
        switch(planned)
        planned.links["deepseek"] = OLD
        planned.ranks["head"] = told(0, dry_run(image=("other", "image:1")))
        code, _ = switch(planned)
        assert code is Exit.RECOVERED
        assert planned.links["deepseek"] == OLD, "what was planned is no matter of the former one"
        assert planned.generates() == ["deepseek"]

    def test_the_plan_outlives_the_tool(self, planned: FakePair) -> None:
        planned.declares = replace(DECLARED, secrets={"HF_TOKEN": SECRET})
        both = environment(HF_TOKEN=SECRET), environment(HF_TOKEN=SECRET, TF_DS_ENGRAM="/e")
        planned.dry_run_out = dry_run(env=both)
        planned.ranks = {"head": told(0, dry_run(env=both)), "worker": told(1, dry_run(env=both))}
        code, _ = switch(planned)
        assert code is Exit.DONE
        events = tuple(planned.events)
        plan = job_from(Record("s1", events)).plan
        assert plan is not None and plan["1"]["env"]["TF_DS_GRAPHS"] == "1"
        assert SECRET not in str(events)
