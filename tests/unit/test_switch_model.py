"""The switch explored: every beginning under every fault at every phase, cut off at every line.

Whatever happens, it ends; the two servers are never on one machine; at the end one server answers,
or none was asked for, or the last line says what to run, and that does it once the fault is gone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_pair import Killed
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model_pair import BEGINNINGS, Beginning, ModelPair, Strike

from spark_pair import paths
from spark_pair import state as states
from spark_pair.description import Role
from spark_pair.errors import Exit
from spark_pair.journal import Event, Journal, Record, open_record
from spark_pair.metrics import Load
from spark_pair.probe import ProbeResult
from spark_pair.switch import run as switching
from spark_pair.switch.machine import FINISHING, TRANSITIONS, UNTOUCHED, Outcome, Phase, after


def fault_of(name: str, value: Any, well: Any) -> tuple[Strike, Strike]:
    """A fault that is one attribute of the pair, and what undoes it."""
    return (
        lambda pair: setattr(pair, name, value),
        lambda pair: setattr(pair, name, well),
    )


def starts(**which: bool) -> Strike:
    def strike(pair: ModelPair) -> None:
        for name, value in which.items():
            pair.servers[name].starts = value

    return strike


def generates(kind: str, *names: str) -> Strike:
    def strike(pair: ModelPair) -> None:
        for name in names:
            pair.servers[name].probe = lambda _: ProbeResult(kind, kind, 0.1, "x")  # type: ignore[arg-type]

    return strike


def reboot_worker(pair: ModelPair) -> None:
    """Its containers are gone, and what is enabled there comes up."""
    pair.boots["worker"] = "another"
    pair.rebooted = True
    pair.containers["worker"].clear()
    pair.units["worker", "hikari-head.service"] = "active"
    pair.units["worker", "watchdog.timer"] = "active"
    pair.units["worker", "metrics.timer"] = "active"


def reboot_worker_slowly(pair: ModelPair) -> None:
    """It is away for some seconds first, as a real one is for a minute."""
    pair.away = {"worker"}
    pair.lifts.append((pair.clock + 5, come_back))


def come_back(pair: ModelPair) -> None:
    pair.away = set()
    reboot_worker(pair)


def lose_a_rank(pair: ModelPair) -> None:
    pair.containers["worker"].discard("ds")


def nothing(_: ModelPair) -> None:
    pass


def busy(pair: ModelPair) -> None:
    for server in pair.servers.values():
        server.load = Load(1, 0, (1.0,))


def idle(pair: ModelPair) -> None:
    for server in pair.servers.values():
        server.load = Load(0, 0, (1.0,))


FAULTS: dict[str, tuple[Strike, Strike]] = {
    "nothing": (nothing, nothing),
    "abort": (lambda pair: setattr(pair, "abort_at", pair.clock), nothing),
    "worker away": fault_of("away", {"worker"}, set()),
    "worker rebooted": (reboot_worker, nothing),
    "worker rebooted slowly": (reboot_worker_slowly, nothing),
    "a rank is gone": (lose_a_rank, nothing),
    "deepseek does not start": (starts(deepseek=False), starts(deepseek=True)),
    "hikari does not start": (starts(hikari=False), starts(hikari=True)),
    "nothing starts": (
        starts(deepseek=False, hikari=False),
        starts(deepseek=True, hikari=True),
    ),
    "deepseek is silent": (generates("timeout", "deepseek"), generates("ok", "deepseek")),
    "nothing generates": (
        generates("bad", "deepseek", "hikari"),
        generates("ok", "deepseek", "hikari"),
    ),
    "memory is held": fault_of("held_gib", 50.0, 0.0),
    "systemd on the worker is silent": fault_of("systemd_silent", {"worker"}, set()),
    "docker on the worker is silent": fault_of("docker_silent", {"worker"}, set()),
    "docker on the head is silent": fault_of("docker_silent", {"head"}, set()),
    "stop.sh leaves the ranks": (
        lambda pair: setattr(pair.servers["deepseek"], "stops", False),
        lambda pair: setattr(pair.servers["deepseek"], "stops", True),
    ),
    "hikari ignores its stop": fault_of("unstoppable", {"hikari-head.service"}, set()),
    "keepers do not come back": fault_of("keepers_fail", {"watchdog.timer"}, set()),
    "requests": (busy, idle),
    "no metrics": (
        lambda pair: setattr(pair.servers["deepseek"], "load", Load()),
        lambda pair: setattr(pair.servers["deepseek"], "load", Load(0, 0, (1.0,))),
    ),
}

MOVING = ("worker rebooted", "worker rebooted slowly", "a rank is gone")
"""Faults that change what runs by themselves."""

WITH_DEATHS = ("nothing", "worker away", "worker rebooted", "nothing starts",
               "hikari ignores its stop", "deepseek is silent")  # fmt: skip
"""Faults that strike while the process is dead."""


def lift_of(fault: str) -> Strike:
    return FAULTS[fault][1]


def lasting_for(fault: str, seconds: float | None) -> Strike:
    """The fault, for so many seconds, or for good."""
    strike, lift = FAULTS[fault]

    def struck(pair: ModelPair) -> None:
        strike(pair)
        pair.moved_by_itself |= fault in MOVING
        if seconds is not None:
            pair.lifts.append((pair.clock + seconds, lift))

    return struck


def keepers_are_back(pair: ModelPair) -> bool:
    return pair.units["worker", "watchdog.timer"] == "active"


def assert_a_good_end(pair: ModelPair, code: Exit) -> None:
    """All that has to hold when a switch has ended with `code`, faults or not."""
    asked, message = pair.beginning, str(pair.events[-1]["message"])
    whole, there = pair.answers(), pair.there()
    # What is enabled at boot comes up by itself; whoever is started meanwhile must not stay.
    assert pair.overlaps == [] or pair.rebooted
    if code is Exit.DONE:
        assert there == whole == ([] if asked.target == "none" else [asked.target])
    assert asked.dead or not asked.serving or "no server had been serving" not in message
    if code in (Exit.REFUSED, Exit.GAVE_UP) and not pair.moved_by_itself:
        assert pair.shape() == pair.found or "not brought back" in message
    if code is Exit.RECOVERED:
        assert there == whole
        assert len(whole) == 1
        assert pair.saved.hold is not None
    if code is Exit.NOBODY:
        assert "spark-pair resume" in message
        nobody = ("NO MODEL SERVER ANSWERS", "NO MODEL SERVER IS KNOWN TO ANSWER", "still answers")
        assert any(words in message for words in nobody)
        assert there == [] or "Not all is stopped" in message
    else:
        assert "NO MODEL SERVER" not in message
    if code is not Exit.NOBODY and whole == ["hikari"] and "hikari" in asked.serving:
        assert keepers_are_back(pair) or "not brought back" in message


def assert_it_ends_well(pair: ModelPair, fault: str) -> None:
    """Also when nobody serves: what the last line says is run, once the fault is gone."""
    code = pair.to_the_end()
    assert_a_good_end(pair, code)
    if code is Exit.NOBODY:
        lift_of(fault)(pair)
        code = pair.to_the_end()
        assert code in (Exit.DONE, Exit.RECOVERED)
        assert_a_good_end(pair, code)


def assert_a_boot_meant_the_fallback(pair: ModelPair) -> None:
    """Who had to be brought back after a boot is the one that comes up there by itself."""
    armed = next((row for row in pair.events if row["event"] == "armed"), None)
    recovered = pair.events[-1].get("exit") == Exit.RECOVERED
    if recovered and armed and armed["boots"]["worker"] != pair.boots["worker"]:
        assert pair.beginning.fallback in ("none", *pair.answers())


def told(problems: list[str], pair: ModelPair, where: str, error: AssertionError) -> None:
    said = str(pair.events[-1].get("message"))
    problems.append(f"{where}: {str(error).splitlines()[:1]}; {said}; there: {pair.there()}")


@pytest.fixture(autouse=True)
def _one_machine_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking both at the same time costs more here than all the rest."""
    monkeypatch.setattr("spark_pair.switch.bench.ThreadPoolExecutor", InTurn)


class InTurn:
    """An executor that does it at once."""

    def __init__(self, max_workers: int) -> None:
        pass

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)


@pytest.mark.parametrize("beginning", BEGINNINGS, ids=str)
@pytest.mark.parametrize("lasting", [None, 3.0], ids=["for good", "for a moment"])
def test_every_fault_in_every_phase(beginning: Beginning, lasting: float | None) -> None:
    problems: list[str] = []
    for fault, phase in itertools.product(FAULTS, Phase):
        if phase in FINISHING and fault in MOVING:
            continue  # a server may die at any time after it was proven
        pair = ModelPair(beginning)
        pair.strikes[str(phase)] = lasting_for(fault, lasting)
        try:
            assert_it_ends_well(pair, fault)
            assert_a_boot_meant_the_fallback(pair)
        except AssertionError as error:
            told(problems, pair, f"{fault} in {phase}", error)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("beginning", BEGINNINGS, ids=str)
def test_every_fault_before_and_after_every_action(beginning: Beginning) -> None:
    undisturbed = ModelPair(beginning)
    undisturbed.to_the_end()
    problems: list[str] = []
    for fault, action, late in itertools.product(
        FAULTS, range(1, len(undisturbed.actions) + 1), (False, True)
    ):
        pair = ModelPair(beginning)
        pair.strike_at_action = (action, late, lasting_for(fault, None))
        try:
            assert_it_ends_well(pair, fault)
        except AssertionError as error:
            told(problems, pair, f"{fault} at {undisturbed.actions[action - 1]} {late}", error)
    assert not problems, "\n".join(problems)


def test_a_worker_that_is_away_for_a_moment_is_waited_for_at_every_action() -> None:
    beginning = Beginning("deepseek", ("hikari",))
    undisturbed = ModelPair(beginning)
    undisturbed.to_the_end()
    for action in range(1, len(undisturbed.actions) + 1):
        pair = ModelPair(beginning)
        pair.strike_at_action = (action, True, lasting_for("worker away", 2.0))
        assert pair.to_the_end() is Exit.DONE, undisturbed.actions[action - 1]
        assert_a_good_end(pair, Exit.DONE)


@pytest.mark.parametrize("beginning", BEGINNINGS, ids=str)
def test_killed_before_every_line_of_the_journal(beginning: Beginning) -> None:
    undisturbed = ModelPair(beginning)
    undisturbed.to_the_end()
    problems: list[str] = []
    for fault, line in itertools.product(WITH_DEATHS, range(1, len(undisturbed.events))):
        written = undisturbed.events[line]
        if written["event"] == "end" and fault in MOVING:
            continue  # it was proven, and ended
        pair = ModelPair(beginning)
        pair.kill_at_event = line
        pair.strike_when_killed = lasting_for(fault, None)
        try:
            assert_it_ends_well(pair, fault)
        except AssertionError as error:
            told(problems, pair, f"{fault}, killed before {written}", error)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("beginning", BEGINNINGS, ids=str)
def test_lines_that_were_lost_after_it_was_armed(beginning: Beginning) -> None:
    """A full disk: the machines are further than the journal, by any number of lines."""
    undisturbed = ModelPair(beginning)
    undisturbed.to_the_end()
    kinds = [row["event"] for row in undisturbed.events]
    armed = kinds.index("armed")
    problems: list[str] = []
    for action in range(1, len(undisturbed.actions) + 1):
        for lost_from in range(armed + 1, len(kinds)):
            pair = ModelPair(beginning)
            pair.kill_at_action = action
            with pytest.raises(Killed):
                pair.switch()
            if lost_from >= len(pair.events):
                continue
            row = pair.events[lost_from]
            del pair.events[lost_from:]
            try:
                assert_a_good_end(pair, pair.to_the_end())
            except AssertionError as error:
                told(problems, pair, f"{row} lost, killed at {pair.actions[action - 1]}", error)
    assert not problems, "\n".join(problems)


def boot(pair: ModelPair, role: Role) -> None:
    """A machine comes up again: no container, what is enabled runs, and its keepers with it."""
    pair.boots[role] = "another"
    pair.containers[role].clear()
    pair.units = {key: active for key, active in pair.units.items() if key[0] != role}
    hikari = pair.description.servers["hikari"]
    pair.units |= {(role, unit): "active" for unit in hikari.units_on(role)}
    for keeper in hikari.keepers:
        if keeper.host == role and keeper.restore == "as_found":
            pair.units[role, keeper.unit] = "active"


@pytest.fixture
def resume_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[ModelPair], Exit]:
    """What spark-pair-resume.service has done after a boot, with the journal that is there."""
    monkeypatch.setattr(paths, "JOURNAL", tmp_path / "journal.jsonl")

    def run(pair: ModelPair) -> Exit:
        paths.JOURNAL.write_text("".join(json.dumps(row) + "\n" for row in pair.events))

        class Journalled:
            def __init__(self, _: Any, job_id: str) -> None:
                self.job_id = job_id

            def record(self, row: Event) -> None:
                Journal(paths.JOURNAL).append({"id": self.job_id, **row})

            def __getattr__(self, name: str) -> Any:
                return getattr(pair, name)

        monkeypatch.setattr(switching, "RealWorld", Journalled)
        monkeypatch.setattr(states, "load", lambda: pair.saved)
        asked = {"id": "boot", "asked_by": "boot", "reason": "a machine of the pair was booted"}
        return switching.after_boot(pair.description, asked, lambda _: None)

    return run


@pytest.mark.parametrize("role", ["head", "worker"])
@pytest.mark.parametrize(
    "beginning", [one for one in BEGINNINGS if one.fallback == "hikari"], ids=str
)
def test_a_boot_at_any_line_ends_with_the_fallback(
    beginning: Beginning, role: Role, resume_unit: Callable[[ModelPair], Exit]
) -> None:
    """The boot of the head ends the switch; that of the worker finds its process dead here."""
    undisturbed = ModelPair(beginning)
    undisturbed.to_the_end()
    problems: list[str] = []
    for line in range(1, len(undisturbed.events) + 1):
        pair = ModelPair(beginning)
        pair.kill_at_event = line
        with suppress(Killed):
            pair.switch()
        boot(pair, role)
        try:
            code = resume_unit(pair)
            assert code in (Exit.DONE, Exit.RECOVERED), code
            assert pair.there() == pair.answers() == pair.generates() == ["hikari"]
            assert open_record(paths.JOURNAL) is None
            assert keepers_are_back(pair) or "hikari" not in beginning.serving
        except AssertionError as error:
            told(problems, pair, f"booted at line {line}", error)
    assert not problems, "\n".join(problems)


def test_cut_within_any_line_the_journal_tells_what_it_told_before_that_line(
    tmp_path: Path,
) -> None:
    """So that what holds for a death before each line holds for one within it."""
    pair = ModelPair(BEGINNINGS[0])
    pair.to_the_end()
    lines = [json.dumps(row).encode() + b"\n" for row in pair.events]
    path = tmp_path / "journal.jsonl"
    for number in range(1, len(lines)):
        for piece in (1, len(lines[number]) // 2, len(lines[number]) - 2):
            path.write_bytes(b"".join(lines[:number]) + lines[number][:piece])
            assert open_record(path) == Record("s1", tuple(pair.events[:number]))
            Journal(path).append({"id": "s1", "event": "note", "text": "resuming"})
            opened = open_record(path)
            assert opened is not None
            assert opened.events[:-1] == tuple(pair.events[:number])
            assert opened.events[-1]["text"] == "resuming"


@settings(max_examples=150, deadline=None)
@given(
    beginning=st.sampled_from(BEGINNINGS),
    faults=st.dictionaries(
        st.sampled_from([str(phase) for phase in Phase]),
        st.tuples(st.sampled_from([*FAULTS]), st.sampled_from([None, 1.0, 5.0])),
        max_size=3,
    ),
    deaths=st.lists(st.integers(min_value=1, max_value=60), max_size=3),
)
def test_several_faults_and_deaths_at_once(
    beginning: Beginning, faults: dict[str, tuple[str, float | None]], deaths: list[int]
) -> None:
    moving = [phase for phase, (name, _) in faults.items() if name in MOVING]
    assume(not any(phase in FINISHING for phase in moving))
    pair = ModelPair(beginning)
    pair.deaths = sorted(set(deaths))
    pair.next_death()
    for phase, (name, lasting) in faults.items():
        pair.strikes[phase] = lasting_for(name, lasting)
    code = pair.to_the_end()
    if not pair.moved_by_itself:  # it may have moved after the proof: nothing more is promised
        assert_a_good_end(pair, code)
    if code is Exit.NOBODY:
        for name, _ in faults.values():
            lift_of(name)(pair)
        assert pair.to_the_end() in (Exit.DONE, Exit.RECOVERED)


class TestTheTable:
    """What the table of transitions allows, whatever the phases do."""

    @staticmethod
    def reachable(
        start: Phase, without: Collection[tuple[Phase, Outcome]] = ()
    ) -> set[Phase | Exit]:
        found: set[Phase | Exit] = set()
        todo: list[Phase | Exit] = [start]
        while todo:
            at = todo.pop()
            if at in found:
                continue
            found.add(at)
            if isinstance(at, Phase):
                todo += [after(at, each) for each in Outcome if (at, each) not in without]
        return found

    @pytest.mark.parametrize("start", Phase)
    def test_an_end_is_reachable_from_everywhere(self, start: Phase) -> None:
        for at in self.reachable(start):
            if isinstance(at, Phase):
                assert any(isinstance(end, Exit) for end in self.reachable(at))

    def test_the_only_way_back_to_a_phase_is_another_candidate(self) -> None:
        """So that a switch ends after as many phases as there are, and one for each candidate."""
        order: list[Phase] = []

        def visit(phase: Phase, path: tuple[Phase, ...]) -> None:
            assert phase not in path, f"{path} comes back to {phase}"
            for outcome in Outcome:
                following = after(phase, outcome)
                if isinstance(following, Phase) and (phase, outcome) != (
                    Phase.RECOVER,
                    Outcome.AGAIN,
                ):
                    visit(following, (*path, phase))
            if phase not in order:
                order.append(phase)

        visit(Phase.OBSERVE, ())
        assert set(order) == set(Phase)

    def test_after_the_stop_only_a_proof_or_an_empty_pair_ends_well(self) -> None:
        proofs = ((Phase.VERIFY, Outcome.OK), (Phase.START, Outcome.NOTHING))
        assert Exit.DONE not in self.reachable(Phase.STOP, without=proofs)
        assert Exit.DONE not in self.reachable(Phase.OBSERVE, without=(
            *proofs, (Phase.OBSERVE, Outcome.NOTHING)))  # fmt: skip

    def test_only_a_recovery_says_that_the_former_serves_again(self) -> None:
        without = ((Phase.RECOVER, Outcome.OK),)
        assert Exit.RECOVERED not in self.reachable(Phase.OBSERVE, without)

    def test_nobody_is_only_said_once_both_machines_were_cleaned(self) -> None:
        without = [(Phase.CLEAN, outcome) for outcome in Outcome]
        assert Exit.NOBODY not in self.reachable(Phase.OBSERVE, without)

    @pytest.mark.parametrize("phase", Phase)
    def test_what_no_phase_says_leads_nowhere_unsafe(self, phase: Phase) -> None:
        for outcome in Outcome:
            if (phase, outcome) in TRANSITIONS:
                continue
            following = after(phase, outcome)
            if phase in UNTOUCHED:
                assert following is Exit.REFUSED
            elif phase not in FINISHING:
                assert following in (Phase.BACK_OUT, Phase.RECOVER, Phase.CLEAN, Exit.NOBODY)
