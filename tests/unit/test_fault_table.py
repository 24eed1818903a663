"""The table of the switch under fire is what its run recorded, and that run told all cases."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_docs import generator

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("tool", "machines", "servers")


@pytest.fixture(scope="module")
def table() -> ModuleType:
    return generator("make_fault_table")


@pytest.fixture(scope="module")
def stories() -> Iterator[ModuleType]:
    """The machinery of the stories; it looks at no machine before it is asked to."""
    sys.path.insert(0, str(ROOT / "molecule"))
    yield importlib.import_module("stories.fire")
    sys.path.remove(str(ROOT / "molecule"))


def cases(part: str) -> list[Any]:
    found: list[Any] = importlib.import_module(f"stories.fire_{part}").CASES
    return found


def test_the_page_shows_what_the_last_run_has_recorded(table: ModuleType) -> None:
    text = table.PAGE.read_text(encoding="utf-8")
    assert table.page(text, table.rows()) == text, "run python docs/make_fault_table.py"


@pytest.mark.parametrize("part", PARTS)
def test_every_case_has_a_record_of_what_it_asks_for(part: str, stories: ModuleType) -> None:
    records = json.loads((ROOT / f"docs/switch_faults/{part}.json").read_text())
    assert list(records) == [case.name for case in cases(part)], "make test-faults has yet to run"
    for case in cases(part):
        record = records[case.name]
        for key in ("phase", "fault", "before", "serves", "exit", "bound", "why"):
            assert record[key] == getattr(case, key), f"{case.name}: {key}"
        assert all(words in record["line"] for words in case.says), case.name


def test_there_are_enough_cases_and_each_is_bounded(stories: ModuleType) -> None:
    known = [case for part in PARTS for case in cases(part)]
    assert len(known) >= 60
    assert len({case.name for case in known}) == len(known)
    for case in known:
        assert case.bound <= stories.BOUND or case.why, case.name


def test_what_differs_between_two_runs_is_not_recorded(stories: ModuleType) -> None:
    line = (
        "b cannot be reached over ssh (10.1.2.12: timed out; 10.1.3.12: refused); 4 probes failed"
    )
    assert stories.in_short(line) == "b cannot be reached over ssh; N probes failed"
    assert (
        stories.in_short("cannot ssh to a@10.1.2.3, over 7 s")
        == "cannot ssh to a@ADDRESS, over N s"
    )


def test_cases_follow_each_other_with_the_server_that_serves(stories: ModuleType) -> None:
    def case(before: str, serves: str) -> Any:
        return stories.Case("stop", "a fault", stories.nothing, serves, 0, before=before)

    there, back, same = (
        case("hikari", "deepseek"),
        case("deepseek", "hikari"),
        case("hikari", "hikari"),
    )
    assert stories.in_order([back, there, same]) == [same, there, back]


def test_a_long_last_line_keeps_its_beginning_and_its_end(table: ModuleType) -> None:
    line = "NO MODEL SERVER ANSWERS. " + "why " * 60 + "run 'spark-pair resume' on spark-033f"
    short = table.in_short(line)
    assert len(short) <= table.LONGEST + 5
    assert short.startswith("NO MODEL SERVER ANSWERS.") and short.endswith("on spark-033f")


@pytest.fixture(scope="module")
def run() -> ModuleType:
    """The program molecule/run, which has no name that could be imported."""
    loader = importlib.machinery.SourceFileLoader("molecule_run", str(ROOT / "molecule/run"))
    spec = importlib.util.spec_from_loader("molecule_run", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules["molecule_run"] = module  # its dataclass looks its module up
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("first", "alone", "passed"),
    [((39, 2), (2, 0), 41), ((39, 2), (1, 1), 40), ((39, 2), (41, 0), 41), ((0, 1), (7, 0), 7)],
)
def test_cases_that_came_true_at_first_count_when_only_the_others_are_told_again(
    run: ModuleType, first: tuple[int, int], alone: tuple[int, int], passed: int
) -> None:
    told = run.second(run.Told("a", *first, 9.0), run.Told("a", *alone, 3.0))
    assert (told.passed, told.failed, told.again) == (passed, alone[1], True)


@pytest.mark.parametrize("alone", [(0, 0), (1, 0), (0, 1)])
def test_a_case_that_failed_and_could_not_be_told_again_has_failed(
    run: ModuleType, alone: tuple[int, int]
) -> None:
    told = run.second(run.Told("a", 39, 2, 9.0), run.Told("a", *alone, 3.0, left_out=1))
    assert told.failed == 2 - alone[0] and told.passed == 39 + alone[0]


def test_how_long_the_cases_took_is_told(run: ModuleType) -> None:
    rows = [{"case": name, "seconds": seconds, "bound": bound} for name, seconds, bound in (
        ("a", 4.0, 25.0), ("b", 30.0, 25.0), ("c", 40.0, 90.0))]  # fmt: skip
    told = run.seconds_in_short("".join(json.dumps(row) + "\n" for row in rows))
    assert "3 cases" in told and "30 s in the middle, 40 s at most; 2 within" in told
    assert "30 of 25 s (b)" in told


def test_a_run_without_names_leaves_the_matrix_out_and_make_names_all_of_it(
    run: ModuleType,
) -> None:
    matrix = {f"switch_faults_{part}" for part in PARTS}
    known = set(run.scenarios())
    assert matrix <= known
    assert set(run.told_by_themselves(sorted(known))) == known - matrix
    (recipe,) = re.findall(
        r"^\tmolecule/run (.*switch_faults.*)$", (ROOT / "Makefile").read_text(), re.M
    )
    assert set(recipe.split()[2:]) == matrix


JOURNAL_LINES = [
    {"event": "begin"},
    {"event": "phase", "phase": "stop"},
    {"event": "note"},
    {"event": "outcome", "phase": "stop"},
    {"event": "phase", "phase": "release"},
]


@pytest.mark.parametrize(
    ("lines", "phase", "state"),
    [
        (1, "stop", "before"),
        (2, "stop", "in"),
        (3, "stop", "in"),
        (4, "stop", "over"),
        (5, "stop", "over"),
        (5, "release", "in"),
        (5, "start", "before"),
    ],
)
def test_the_holder_knows_whether_a_phase_is_there(
    lines: int, phase: str, state: str, stories: ModuleType
) -> None:
    holder = importlib.import_module("stories.hold_switch")
    assert holder.where(JOURNAL_LINES[:lines], phase) == state


def test_the_holder_gives_a_phase_up_that_never_comes(stories: ModuleType) -> None:
    holder = importlib.import_module("stories.hold_switch")
    assert holder.where([*JOURNAL_LINES, {"event": "end"}], "verify") == "over"
