"""Around a switch: the lock, the request, the unit's life, and going on after a cut."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_pair import NEW, OLD, FakePair, describe, switch

from spark_pair import jsonfile, paths
from spark_pair import state as states
from spark_pair.description import Command, Generation
from spark_pair.engine_planned import masked
from spark_pair.errors import BusyError, Exit, NodeError
from spark_pair.journal import Event, Journal, Record, read
from spark_pair.probe import ProbeResult
from spark_pair.state import PairState
from spark_pair.switch import run as switching
from spark_pair.switch.machine import Outcome, Phase
from spark_pair.switch.run import (
    RealWorld,
    after_boot,
    dry_run,
    is_running,
    job_from,
    locked,
    make_request,
    new_id,
    resume,
    resume_point,
    run_unit,
    submit,
)
from spark_pair.switch.world import Side
from spark_pair.system import Result
from spark_pair.verdict import State

HOLDER = {"id": "s1", "target": "deepseek", "asked_by": "ann", "pid": 42, "since": 0}


@pytest.fixture(autouse=True)
def _own_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(paths, "RUN", run)
    monkeypatch.setattr(paths, "LOCK", run / "switch.lock")
    monkeypatch.setattr(paths, "REQUEST", run / "request.json")
    monkeypatch.setattr(paths, "ABORT", run / "abort")
    monkeypatch.setattr(paths, "JOURNAL", tmp_path / "var/journal.jsonl")
    monkeypatch.setattr(states, "load", PairState)


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What systemd was told; it says yes to everything, and a started unit takes its request."""
    calls: list[str] = []

    def run(argv: Sequence[str], *, timeout: float) -> Result:
        calls.append(" ".join(argv))
        if "start" in argv and paths.REQUEST.exists():
            paths.REQUEST.rename(taken())
        return Result(0, "", "")

    monkeypatch.setattr(switching, "run", run)
    return calls


def taken() -> Path:
    """Where the unit puts the request that it took."""
    return paths.REQUEST.with_name("taken.json")


def request(target: str = "deepseek") -> dict[str, Any]:
    return make_request(target, asked_by="ann", reason="a test", drain="keep", hold=False)


class TestLock:
    def test_only_one_holds_it(self) -> None:
        with locked(HOLDER):
            assert is_running()
            with pytest.raises(BusyError) as raised, locked():
                pass
        assert "a switch to deepseek (id s1, asked for by ann) has been running" in str(
            raised.value
        )
        assert "process 42" in str(raised.value)
        assert "spark-pair abort" in str(raised.value)
        assert raised.value.exit is Exit.BUSY

    def test_a_holder_without_words(self) -> None:
        with locked(), pytest.raises(BusyError, match="being started right now"), locked():
            pass

    def test_it_is_free_afterwards_also_after_an_error(self) -> None:
        with pytest.raises(ZeroDivisionError), locked(HOLDER):
            raise ZeroDivisionError
        assert not is_running()
        assert paths.LOCK.read_text() == ""

    def test_the_words_of_a_holder_that_died_are_replaced(self) -> None:
        paths.RUN.mkdir()
        paths.LOCK.write_text(json.dumps({**HOLDER, "target": "x" * 500}))
        with locked(HOLDER):
            assert json.loads(paths.LOCK.read_text()) == HOLDER

    def test_waiting_for_it_ends(self) -> None:
        started = time.monotonic()
        with locked(HOLDER), pytest.raises(BusyError), locked(wait=0.1):
            pass
        assert 0.1 <= time.monotonic() - started < 2


class TestRequest:
    def test_says_all_that_was_asked(self) -> None:
        made = make_request("hikari", asked_by="ann", reason="slow", drain="stop", hold=True)
        assert made.pop("id")
        assert made == {
            "kind": "switch",
            "target": "hikari",
            "asked_by": "ann",
            "reason": "slow",
            "drain": "stop",
            "hold": True,
        }

    def test_ids_differ_and_sort_by_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert new_id() != new_id()
        earlier = new_id()
        monkeypatch.setattr(
            time, "gmtime", lambda: time.struct_time((2999, 1, 1, 0, 0, 0, 0, 1, 0))
        )
        assert earlier < new_id()

    def test_is_left_for_the_unit_which_is_started(self, systemctl: list[str]) -> None:
        made = request()
        submit(made)
        assert jsonfile.read(taken()) == made
        assert taken().stat().st_mode & 0o777 == 0o600
        assert systemctl == [
            "systemctl reset-failed spark-pair-switch.service",
            "systemctl start --no-block spark-pair-switch.service",
        ]

    def test_an_earlier_abort_is_forgotten(self, systemctl: list[str]) -> None:
        paths.RUN.mkdir()
        paths.ABORT.touch()
        submit(request())
        assert not paths.ABORT.exists()

    def test_a_full_disk_refuses_a_switch_but_not_what_a_boot_needs(
        self, systemctl: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: Journal) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Journal, "reserve", full)
        with pytest.raises(NodeError, match="no disk room for the journal"):
            submit(request())
        submit({**request(), "kind": "boot"})
        assert (jsonfile.read(taken()) or {})["kind"] == "boot"

    def test_while_a_switch_runs(self, systemctl: list[str]) -> None:
        with locked(HOLDER), pytest.raises(BusyError, match="a switch to deepseek"):
            submit(request())
        assert not paths.REQUEST.exists()
        assert systemctl == []

    def test_while_another_one_is_waiting(self, systemctl: list[str]) -> None:
        first = request("hikari")
        jsonfile.write(paths.REQUEST, first)
        with pytest.raises(BusyError, match=r"another switch \(to hikari\) was asked for just now"):
            submit(request())
        assert jsonfile.read(paths.REQUEST) == first

    def test_one_that_nobody_took_is_replaced(self, systemctl: list[str]) -> None:
        jsonfile.write(paths.REQUEST, request("hikari"))
        os.utime(paths.REQUEST, (1, 1))
        submit(request())
        left = jsonfile.read(taken())
        assert left is not None
        assert left["target"] == "deepseek"

    def test_a_unit_that_is_just_ending_is_started_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        starts: list[float] = []

        def run(argv: Sequence[str], *, timeout: float) -> Result:
            if "start" in argv:
                starts.append(time.monotonic())
                if len(starts) == 2:
                    paths.REQUEST.unlink()
            return Result(0, "", "")

        monkeypatch.setattr(switching, "run", run)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        submit(request())
        assert len(starts) == 2

    @pytest.mark.parametrize(
        ("answer", "words"),
        [(Result(1, "", "Unit not found"), "Unit not found"),
         (Result(0, "", ""), "did not take the request")],
    )  # fmt: skip
    def test_a_unit_that_cannot_be_started_leaves_no_request(
        self, monkeypatch: pytest.MonkeyPatch, answer: Result, words: str
    ) -> None:
        monkeypatch.setattr(switching, "run", lambda *_, **__: answer)
        monkeypatch.setattr(switching, "_TAKEN_WITHIN", 0.05)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        with pytest.raises(NodeError, match=f"could not be started: .*{words}"):
            submit(request())
        assert not paths.REQUEST.exists()


def event(kind: str, **more: Any) -> Event:
    return {"event": kind, "id": "s1", "time": 1.0, **more}


BEGIN = event("begin", target="deepseek", asked_by="ann", reason="a test", drain="stop", hold=True)
ARMED = event(
    "armed",
    former={
        "server": "hikari",
        "generation": {"hash": OLD, "path": f"/g/{OLD}", "current": "/c/hikari"},
    },
    boots={"head": "boot-a", "worker": "boot-b"},
    verdicts={"hikari": "serving", "deepseek": "down"},
)


def entered(phase: Phase) -> Event:
    return event("phase", phase=str(phase))


def ended(phase: Phase, outcome: Outcome, message: str = "") -> Event:
    return event("outcome", phase=str(phase), outcome=str(outcome), seconds=1, message=message)


class TestJobFrom:
    def test_a_beginning(self) -> None:
        job = job_from(Record("s1", (BEGIN,)))
        assert (job.id, job.target, job.asked_by, job.drain, job.hold) == (
            "s1",
            "deepseek",
            "ann",
            "stop",
            True,
        )
        assert job.former is None
        assert not job.changed

    def test_what_was_written_when_it_was_armed(self) -> None:
        job = job_from(Record("s1", (BEGIN, ARMED)))
        assert job.former == Side("hikari", Generation(OLD, f"/g/{OLD}", "/c/hikari"))
        assert job.boots == {"head": "boot-a", "worker": "boot-b"}
        assert job.verdicts["hikari"].state is State.SERVING

    def test_armed_without_a_former_server(self) -> None:
        job = job_from(Record("s1", (BEGIN, {**ARMED, "former": None})))
        assert job.former is None

    def test_the_last_message_and_the_attempts(self) -> None:
        rows = (
            BEGIN,
            ended(Phase.START, Outcome.FAILED, "it broke"),
            ended(Phase.RECOVER, Outcome.AGAIN, "hikari did not come back"),
        )
        job = job_from(Record("s1", rows))
        assert job.message == "hikari did not come back"
        assert job.attempts == 1

    @pytest.mark.parametrize(
        ("rows", "changed"),
        [
            ([entered(Phase.KEEPERS)], False),
            ([entered(Phase.STOP)], True),
            ([entered(Phase.RECOVER)], True),
            ([entered(Phase.STOP), ended(Phase.COMMIT, Outcome.OK)], True),
        ],
    )
    def test_whether_the_pair_was_touched(self, rows: list[Event], changed: bool) -> None:
        assert job_from(Record("s1", (BEGIN, *rows))).changed is changed


class TestResumePoint:
    @pytest.mark.parametrize(
        ("rows", "point"),
        [
            ([], Exit.REFUSED),
            ([entered(Phase.OBSERVE)], Exit.REFUSED),
            ([ended(Phase.OBSERVE, Outcome.OK)], Exit.REFUSED),
            ([entered(Phase.DRAIN)], Exit.REFUSED),
            ([ended(Phase.DRAIN, Outcome.OK)], Exit.REFUSED),
            ([ended(Phase.DRAIN, Outcome.GAVE_UP)], Exit.GAVE_UP),
            ([entered(Phase.ARM)], Exit.REFUSED),
            ([entered(Phase.ARM), ARMED], Phase.BACK_OUT),
            ([ended(Phase.ARM, Outcome.OK)], Phase.BACK_OUT),
            ([entered(Phase.KEEPERS)], Phase.BACK_OUT),
            ([ended(Phase.KEEPERS, Outcome.OK)], Phase.RECOVER),
            ([entered(Phase.STOP)], Phase.RECOVER),
            ([ended(Phase.STOP, Outcome.OK), entered(Phase.RELEASE)], Phase.RECOVER),
            ([ended(Phase.VERIFY, Outcome.OK)], Phase.RESTORE),
            ([entered(Phase.COMMIT)], Phase.RESTORE),
            ([ended(Phase.COMMIT, Outcome.OK)], Exit.DONE),
            ([ended(Phase.RECOVER, Outcome.OK)], Exit.RECOVERED),
            ([ended(Phase.RECOVER, Outcome.FAILED)], Phase.RECOVER),
        ],
    )
    def test_of(self, rows: list[Event], point: Phase | Exit) -> None:
        assert resume_point(Record("s1", (BEGIN, *rows))) is point


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> FakePair:
    """A fake pair that takes the real one's place, journal included."""
    made = FakePair()
    made.start("hikari")

    class Journalled:
        """The same pair, under the id of one switch."""

        def __init__(self, _: Any, job_id: str, *, dry: bool = False) -> None:
            self.job_id = job_id
            self.dry = dry

        def record(self, row: Event) -> None:
            if not self.dry:
                Journal(paths.JOURNAL).append({"id": self.job_id, **row})

        def save(self, state: PairState) -> None:
            if not self.dry:
                made.save(state)

        def __getattr__(self, name: str) -> Any:
            return getattr(made, name)

    monkeypatch.setattr(switching, "RealWorld", Journalled)
    return made


def told() -> list[str]:
    return [str(row["event"]) for row in read(paths.JOURNAL)]


def last(kind: str) -> Event:
    return next(row for row in reversed(read(paths.JOURNAL)) if row["event"] == kind)


class TestRunUnit:
    def test_does_what_was_asked(self, pair: FakePair) -> None:
        made = request()
        jsonfile.write(paths.REQUEST, made)
        said: list[str] = []
        assert run_unit(pair.description, said.append) is Exit.DONE
        assert pair.generates() == ["deepseek"]
        assert not paths.REQUEST.exists()
        assert not is_running()
        assert {row["id"] for row in read(paths.JOURNAL)} == {made["id"]}
        assert told()[0] == "begin"
        assert last("end")["changed"] is True
        assert "start deepseek.service on a" in said

    def test_a_journal_that_grew_long_is_cut_down_first(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for row in (BEGIN, event("end", exit=0, message="", changed=True)):
            Journal(paths.JOURNAL).append(row)
        Journal(paths.JOURNAL).append({**BEGIN, "id": "s2"})
        jsonfile.write(paths.REQUEST, request())
        calls: list[Path] = []
        monkeypatch.setattr(switching, "trim", calls.append)
        run_unit(pair.description, lambda _: None)
        assert calls == [], "a switch is open"
        jsonfile.write(paths.REQUEST, request("hikari"))
        run_unit(pair.description, lambda _: None)
        assert calls == [paths.JOURNAL]

    @pytest.mark.parametrize("lines", [1, 2, 4, 9])
    def test_a_journal_that_cannot_be_written_any_more_refuses(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch, lines: int
    ) -> None:
        real = Journal.append
        left = iter(range(lines))

        def fill_up(journal: Journal, row: Event) -> None:
            if next(left, None) is None and not full_is_fine:
                raise OSError(28, "No space left on device")
            real(journal, row)

        full_is_fine: list[bool] = []
        pair.past_the_point = lambda: full_is_fine.append(True)  # type: ignore[method-assign]
        monkeypatch.setattr(Journal, "append", fill_up)
        jsonfile.write(paths.REQUEST, request())
        assert run_unit(pair.description, lambda _: None) is Exit.REFUSED
        assert pair.generates() == ["hikari"]
        assert "the journal cannot be written" in last("end")["message"]
        assert not [action for action in pair.actions if action.startswith("stop")]

    def test_holds_the_lock_meanwhile(self, pair: FakePair) -> None:
        holders: list[Any] = []
        pair.on_sleep = lambda _: holders.append(jsonfile.read(paths.LOCK))
        jsonfile.write(paths.REQUEST, made := request())
        run_unit(pair.description, lambda _: None)
        assert holders[0]["id"] == made["id"]
        assert holders[0]["pid"] == os.getpid()

    def test_without_a_request_and_without_an_open_switch(self, pair: FakePair) -> None:
        assert run_unit(pair.description, lambda _: None) is Exit.DONE
        assert pair.actions == []
        assert told() == []

    def test_without_a_request_goes_on_with_the_open_switch(self, pair: FakePair) -> None:
        for row in (BEGIN, ARMED, entered(Phase.KEEPERS)):
            Journal(paths.JOURNAL).append(row)
        assert run_unit(pair.description, lambda _: None) is Exit.GAVE_UP
        assert pair.generates() == ["hikari"]
        assert last("end")["id"] == "s1"

    def test_keepers_that_a_stuck_switch_stopped_come_back_with_the_next_order(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stuck = event("stuck", exit=30, message="NO MODEL SERVER ANSWERS", changed=True)
        for row in (BEGIN, ARMED, entered(Phase.STOP), ended(Phase.RECOVER, Outcome.FAILED), stuck):
            Journal(paths.JOURNAL).append(row)
        units = [{"host": "worker", "unit": "watchdog.timer"}]
        known = PairState(keepers={"hikari": {"switch": "s1", "units": units}})
        monkeypatch.setattr(states, "load", lambda: known)
        pair.units["worker", "watchdog.timer"] = "inactive"

        def wedged_until_restarted(_: int) -> ProbeResult:
            if "start hikari-head.service" in pair.actions:
                return ProbeResult("ok", "", 0.1, "hello")
            return ProbeResult("bad", "no text")

        pair.servers["hikari"].probe = wedged_until_restarted
        jsonfile.write(paths.REQUEST, request("hikari"))
        assert run_unit(pair.description, lambda _: None) is Exit.DONE
        assert pair.units["worker", "watchdog.timer"] == "active"

    def test_twice_at_once_is_refused(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "sleep", lambda _: None)
        clock = iter(range(0, 10_000, 5))
        monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
        with locked(HOLDER), pytest.raises(BusyError):
            run_unit(pair.description, lambda _: None)


class TestResume:
    def test_nothing_is_open(self, pair: FakePair) -> None:
        said: list[str] = []
        assert resume(pair.description, said.append) is Exit.DONE
        assert said == ["no switch is open; nothing to resume"]

    def test_cut_off_before_anything_was_touched(self, pair: FakePair) -> None:
        for row in (BEGIN, entered(Phase.DRAIN)):
            Journal(paths.JOURNAL).append(row)
        assert resume(pair.description, lambda _: None) is Exit.REFUSED
        assert last("end")["message"] == "interrupted before anything was touched; nothing to do"
        assert last("end")["changed"] is False
        assert pair.actions == []

    def test_cut_off_after_the_stop(self, pair: FakePair) -> None:
        for row in (BEGIN, ARMED, entered(Phase.STOP)):
            Journal(paths.JOURNAL).append(row)
        pair.units["worker", "hikari-head.service"] = "inactive"
        assert resume(pair.description, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert last("end")["changed"] is True

    def test_cut_off_while_the_new_server_came_up(self, pair: FakePair) -> None:
        switch(pair)
        for row in (BEGIN, ARMED, entered(Phase.STOP), entered(Phase.START)):
            Journal(paths.JOURNAL).append(row)
        assert resume(pair.description, lambda _: None) is Exit.DONE
        assert pair.generates() == ["deepseek"]
        assert last("end")["changed"] is True

    def test_cut_off_between_the_commit_and_its_last_line(self, pair: FakePair) -> None:
        switch(pair)
        pair.actions.clear()
        for row in (BEGIN, ARMED, entered(Phase.STOP), ended(Phase.COMMIT, Outcome.OK, "serves")):
            Journal(paths.JOURNAL).append(row)
        assert resume(pair.description, lambda _: None) is Exit.DONE
        assert pair.actions == []
        assert last("end")["changed"] is True
        assert last("end")["message"] == "serves"

    def test_a_full_disk_is_in_nobodys_way(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for row in (BEGIN, ARMED, entered(Phase.STOP)):
            Journal(paths.JOURNAL).append(row)
        pair.units["worker", "hikari-head.service"] = "inactive"
        fine: list[bool] = []
        pair.past_the_point = lambda: fine.append(True)  # type: ignore[method-assign]

        def full(_: Journal, row: Event) -> None:
            if not fine:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(Journal, "append", full)
        assert resume(pair.description, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]

    def test_a_stuck_switch_gets_all_its_attempts_again(self, pair: FakePair) -> None:
        rows = [
            BEGIN,
            ARMED,
            entered(Phase.STOP),
            ended(Phase.RECOVER, Outcome.AGAIN),
            ended(Phase.RECOVER, Outcome.FAILED),
            event("stuck", exit=30, message="NO MODEL SERVER RUNS", changed=True),
        ]
        for row in rows:
            Journal(paths.JOURNAL).append(row)
        pair.units.update(dict.fromkeys(pair.units, "inactive"))
        assert resume(pair.description, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]


class TestAfterBoot:
    REQUEST: ClassVar[dict[str, Any]] = {
        "id": "s2",
        "kind": "boot",
        "asked_by": "boot",
        "reason": "a machine was booted",
    }

    def test_a_server_serves_anyway(self, pair: FakePair) -> None:
        said: list[str] = []
        assert after_boot(pair.description, self.REQUEST, said.append) is Exit.DONE
        assert said[-1] == "hikari is serving; nothing to do after the boot"
        assert told() == []
        assert pair.actions == []

    def test_the_fallback_is_brought_up(self, pair: FakePair) -> None:
        pair.units.update(dict.fromkeys(pair.units, "inactive"))
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.DONE
        assert pair.generates() == ["hikari"]

    def test_one_that_is_loading_is_waited_for_and_not_touched(self, pair: FakePair) -> None:
        pair.units["worker", "hikari-head.service"] = "activating"
        ready = pair.clock + 30

        def load(world: FakePair) -> None:
            if world.clock >= ready:
                world.units["worker", "hikari-head.service"] = "active"

        pair.on_sleep = load
        pair.starts_are_noops = True
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.DONE
        assert not [action for action in pair.actions if action.startswith("stop")]

    @pytest.mark.parametrize("kind", ["mismatch", "overloaded"])
    def test_one_that_works_otherwise_than_described_is_left_alone(
        self, pair: FakePair, kind: Any
    ) -> None:
        pair.servers["hikari"].probe = lambda _: ProbeResult(kind, "HTTP 401: no key")
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.DONE
        assert pair.actions == []

    def test_a_fallback_that_does_not_generate_is_started_anew(self, pair: FakePair) -> None:
        def broken_until_stopped(_: int) -> ProbeResult:
            if "stop hikari-head.service" in pair.actions:
                return ProbeResult("ok", "", 0.1, "hello")
            return ProbeResult("bad", "no text")

        pair.servers["hikari"].probe = broken_until_stopped
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]

    def test_one_that_is_dead_is_not_asked_until_it_seems_busy(self, pair: FakePair) -> None:
        """Its other half was booted: each question that it never answers keeps one of its lanes."""

        def taking_and_never_answering(asked: int) -> ProbeResult:
            if "stop hikari-head.service" in pair.actions:
                return ProbeResult("ok", "", 0.1, "hello")
            return ProbeResult("timeout" if asked <= 6 else "overloaded", "no answer")

        pair.servers["hikari"].probe = taking_and_never_answering
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert pair.actions.index("stop hikari-head.service") < pair.actions.index(
            "start hikari-head.service"
        ), "once it is proven dead there is nothing to hope for"

    def test_what_is_left_of_the_other_server_goes(self, pair: FakePair) -> None:
        switch(pair)
        pair.actions.clear()
        pair.containers["worker"].clear()  # the worker was booted
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert pair.containers["head"] == set()
        assert pair.overlaps == []

    def test_a_boot_that_ended_another_server_is_a_recovery_with_a_hold(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Its ranks have ended by themselves already: nothing is left, but somebody had chosen it.
        pair.units.update(dict.fromkeys(pair.units, "inactive"))
        monkeypatch.setattr(states, "load", lambda: PairState(serving={"server": "deepseek"}))
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]
        assert pair.saved.hold is not None

    def test_a_fallback_that_came_up_by_itself_instead_of_another_is_told_and_held(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(states, "load", lambda: PairState(serving={"server": "deepseek"}))
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        assert pair.actions == []
        assert pair.saved.hold is not None
        assert (pair.saved.serving or {})["server"] == "hikari"
        begin, end = read(paths.JOURNAL)
        assert (begin["id"], begin["event"], end["event"]) == ("s2", "begin", "end")
        assert "while deepseek served. hikari has come up by itself" in end["message"]

    def test_half_a_fallback_gets_the_keepers_of_its_last_stop_back(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        switch(pair)
        monkeypatch.setattr(states, "load", lambda: pair.saved)
        pair.containers["head"].clear()  # the head was booted, and its enabled unit with it
        pair.containers["worker"].clear()
        pair.units["head", "deepseek.service"] = "inactive"
        pair.units["head", "hikari-worker.service"] = "active"
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        assert pair.units["worker", "watchdog.timer"] == "active"
        assert pair.units["worker", "metrics.timer"] == "active"

    def test_a_full_disk_keeps_nobody_down(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for row in (BEGIN, ARMED, entered(Phase.STOP)):
            Journal(paths.JOURNAL).append(row)
        pair.units.update(dict.fromkeys(pair.units, "inactive"))
        fine: list[bool] = []

        def full(*_: Any) -> None:
            if not fine:
                raise OSError(28, "No space left on device")

        pair.past_the_point = lambda: fine.append(True)  # type: ignore[method-assign]
        monkeypatch.setattr(pair, "save", full)
        monkeypatch.setattr(Journal, "append", full)
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        assert pair.generates() == ["hikari"]

    def test_an_open_switch_is_closed_with_the_reason(self, pair: FakePair) -> None:
        for row in (BEGIN, ARMED, entered(Phase.STOP)):
            Journal(paths.JOURNAL).append(row)
        assert after_boot(pair.description, self.REQUEST, lambda _: None) is Exit.RECOVERED
        ends = [row for row in read(paths.JOURNAL) if row["event"] == "end"]
        assert [row["id"] for row in ends] == ["s1", "s2"]
        assert "a machine was booted meanwhile; hikari takes the pair (s2)" in ends[0]["message"]

    def test_nobody_is_wanted_at_all(self) -> None:
        def change(data: dict[str, Any]) -> None:
            data |= {"wanted": "none", "fallback": "none"}

        assert after_boot(describe(change), self.REQUEST, lambda _: None) is Exit.DONE


class TestDryRun:
    def test_keepers_that_are_still_away_stay_away(
        self, pair: FakePair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = {"switch": "s0", "units": [{"host": "worker", "unit": "watchdog.timer"}]}
        pair.units["worker", "watchdog.timer"] = "inactive"
        monkeypatch.setattr(states, "load", lambda: PairState(keepers={"hikari": record}))
        outcome, _ = dry_run(pair.description, "hikari", "keep", lambda _: None)
        assert outcome is Outcome.NOTHING
        assert pair.actions == []

    def test_nothing_is_written_or_changed(self, pair: FakePair) -> None:
        outcome, job = dry_run(pair.description, "deepseek", "keep", lambda _: None)
        assert outcome is Outcome.OK
        assert job.verdicts["hikari"].state is State.SERVING
        assert pair.actions == ["run {generation}/launch start.sh"]  # itself a dry run
        assert told() == []

    def test_a_refusal(self, pair: FakePair) -> None:
        pair.missing["worker"] = ["image:1"]
        outcome, job = dry_run(pair.description, "deepseek", "keep", lambda _: None)
        assert outcome is Outcome.REFUSED
        assert "image:1 is missing" in job.message


class TestRealWorld:
    @pytest.fixture
    def made(self, tmp_path: Path) -> Generation:
        folder = tmp_path / "generations" / NEW
        folder.mkdir(parents=True)
        return Generation(NEW, str(folder), str(tmp_path / "current/deepseek"))

    @pytest.fixture
    def world(self, made: Generation) -> RealWorld:
        def change(data: dict[str, Any]) -> None:
            data["servers"]["deepseek"]["generation"] = vars(made)

        return RealWorld(describe(change), "s1")

    def test_a_link_is_flipped(self, world: RealWorld, made: Generation, tmp_path: Path) -> None:
        server = world.description.server("deepseek")
        assert world.current(server) is None
        world.flip(made)
        assert world.current(server) == NEW
        world.flip(Generation(OLD, str(tmp_path / "generations" / OLD), made.current))
        assert world.current(server) == OLD
        assert [path.name for path in (tmp_path / "current").iterdir()] == ["deepseek"]

    def test_a_flip_that_was_cut_off_is_finished(self, world: RealWorld, made: Generation) -> None:
        link = Path(made.current)
        link.parent.mkdir()
        link.with_name(".deepseek.new").symlink_to("/nowhere")
        world.flip(made)
        assert link.readlink() == Path(made.path)

    def test_a_generation_needs_its_launch_script_and_is_whole(
        self, world: RealWorld, made: Generation
    ) -> None:
        launch = Path(made.path) / "launch"
        assert world.generation_problem(made) == (
            f"{launch} is missing on a: prepare it first with --tags service"
        )
        launch.write_text("#!/bin/sh\n")
        launch.chmod(0o755)
        assert "generation.json cannot be read" in str(world.generation_problem(made))

    def test_what_a_generation_declares(self, world: RealWorld, made: Generation) -> None:
        assert world.declared(made) is None
        jsonfile.write(
            Path(made.path) / "generation.json",
            {"settings": {"PORT": "8888"}, "secret_settings": []},
        )
        declared = world.declared(made)
        assert declared is not None and declared.settings == {"PORT": "8888"}

    def test_its_key_is_as_secret_as_its_secret_settings(
        self,
        world: RealWorld,
        made: Generation,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setattr(paths, "ETC", tmp_path / "etc")
        settings = {"settings": {"API_KEY": "1"}, "secret_settings": [], "server": "deepseek"}
        jsonfile.write(Path(made.path) / "generation.json", settings)
        declared = world.declared(made)
        assert declared is not None and not declared.secrets, "there is no key"
        path = paths.key_file("deepseek")
        path.parent.mkdir(parents=True)
        path.write_text("clients: 0123456789abcdef\n")
        declared = world.declared(made)
        assert declared is not None and list(declared.secrets.values()) == ["0123456789abcdef"]
        assert masked("curl --header 0123456789abcdef", declared) == "curl --header …"

    def test_a_command_runs_in_its_generation_as_the_user(
        self, world: RealWorld, made: Generation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[Any] = []
        monkeypatch.setattr(switching, "run_as_user", lambda *args: ran.append(args))
        command = Command("head", ("{generation}/launch", "DRY_RUN=1", "start.sh"), 120)
        world.run_command(command, made)
        assert ran == [
            (
                world.description.hosts["head"],
                [f"{made.path}/launch", "DRY_RUN=1", "start.sh"],
                120,
            )
        ]

    def test_a_dry_one_writes_nothing(self) -> None:
        world = RealWorld(describe(), "s1", dry=True)
        world.record({"event": "begin"})
        world.save(PairState())
        assert not paths.JOURNAL.exists()

    def test_a_state_that_cannot_be_saved(
        self, world: RealWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: PairState) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(states, "save", full)
        with pytest.raises(OSError, match="No space"):
            world.save(PairState())
        world.past_the_point()
        world.save(PairState())

    def test_aborted(self, world: RealWorld) -> None:
        assert not world.aborted()
        paths.RUN.mkdir()
        paths.ABORT.touch()
        assert world.aborted()

    def test_restarts_are_counted_from_the_journal(self, world: RealWorld) -> None:
        now = time.time()
        cases = [
            ("s6", "deepseek", "dead", now - 4000),
            ("s5", "hikari", "dead", now - 20),
            ("s4", "deepseek", "down", now - 20),
            ("s3", "deepseek", "partial", now - 20),
            ("s2", "deepseek", "dead", now - 10),
            ("s1", "deepseek", "dead", now),
        ]
        for switch_id, target, verdict, stamp in cases:
            journal = Journal(paths.JOURNAL, clock=lambda stamp=stamp: stamp)  # type: ignore[misc]
            journal.append({"event": "begin", "id": switch_id, "target": target})
            journal.append({"event": "armed", "id": switch_id, "verdicts": {target: verdict}})
        assert world.restarts("deepseek", 3600) == 2

    @pytest.mark.parametrize(
        ("role", "words"), [("head", "[start.sh] ERROR: no memory"), ("worker", "")]
    )
    def test_why_a_unit_failed(
        self, world: RealWorld, monkeypatch: pytest.MonkeyPatch, role: Any, words: str
    ) -> None:
        log = "[start.sh] ok\n[start.sh] ERROR: old\n  [start.sh] ERROR: no memory\nstopping\n"
        monkeypatch.setattr(switching, "run", lambda *_, **__: Result(0, log, ""))
        assert world.why_failed("deepseek.service", role) == words

    def test_the_clock_cannot_be_set(self, world: RealWorld) -> None:
        first = world.now()
        world.sleep(0.01)
        assert world.now() > first
