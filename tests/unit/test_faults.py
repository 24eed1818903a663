"""docs/faults.md and the tests' markers say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from spark_pair.preflight import judge

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/faults.md"


def marked(path: Path) -> Iterator[int]:
    """Numbers in `pytest.mark.fault(…)` of a file, on tests and in parameters."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func) == "pytest.mark.fault"
        ):
            for argument in node.args:
                assert isinstance(argument, ast.Constant) and isinstance(argument.value, int), path
                yield argument.value


def handled() -> set[int]:
    part = PAGE.read_text(encoding="utf-8").partition("## Not handled yet")[0]
    return {int(number) for number in re.findall(r"^\| (\d+) \|", part, flags=re.MULTILINE)}


def test_every_check_that_the_page_names_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    lists = re.findall(r"preflight ((?:`\w+`(?:, | and )?)+)", page)
    named = [name for one in lists for name in re.findall(r"`(\w+)`", one)]
    assert len(named) >= 6
    assert set(named) <= set(judge.BY_ID)


def test_no_check_guards_against_what_the_page_calls_not_handled() -> None:
    for check in judge.CATALOGUE:
        assert set(check.guards) <= handled(), check.id


def test_every_handled_fault_has_a_test_and_every_marker_a_line() -> None:
    files = [*(ROOT / "tests/unit").glob("test_*.py"), *(ROOT / "molecule").rglob("test_*.py")]
    assert {number for path in files for number in marked(path)} == handled()
