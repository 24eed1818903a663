#!/usr/bin/env python3
"""Write the table "The switch under fire" of docs/faults.md from the records of its run.

The scenarios molecule/switch_faults_* write a record of each case that came true into
docs/switch_faults/, and "make test-faults" calls this afterwards. A unit test compares the page
with the records. Usage: python docs/make_fault_table.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/faults.md"
RECORDS = ROOT / "docs/switch_faults"
sys.path[:0] = [str(ROOT)]

from spark_pair.switch.machine import Phase  # noqa: E402 - needs the path above

BEGIN, END = "<!-- the switch under fire -->", "<!-- end of the switch under fire -->"
LONGEST = 150
NAMES = {"hikari": "Hikari", "deepseek": "DeepSeek"}
_PHASES = ["", *Phase]

Row = Mapping[str, Any]


def rows(folder: Path = RECORDS) -> list[Row]:
    """Every case that was told, by phase."""
    found = [
        row
        for path in sorted(folder.glob("*.json"))
        for row in json.loads(path.read_text()).values()
    ]
    return sorted(found, key=lambda row: (_PHASES.index(row["phase"]), row["fault"], row["before"]))


def in_short(line: str) -> str:
    """A last line that fits into a table: its beginning and its end say the most."""
    line = line.replace("|", "\\|").replace("<", "&lt;")
    if len(line) <= LONGEST:
        return line
    tail = line[-LONGEST // 2 :].partition(" ")[2]
    return f"{line[: LONGEST // 2].rpartition(' ')[0]} … {tail}"


def _cells(row: Row) -> list[str]:
    serves = NAMES.get(row["serves"], "nobody")
    if row["finished_by"]:
        serves += f"; after that command {NAMES[row['finished_by']]}"
    bound = f"{row['bound']:g} s" + (f": {row['why']}" if row["why"] else "")
    code = "-" if row["exit"] is None else str(row["exit"])
    line = in_short(row["line"]) or "-"
    return [
        row["phase"] or "no switch",
        row["fault"],
        NAMES[row["before"]],
        serves,
        code,
        line,
        bound,
    ]


def table(found: Sequence[Row]) -> str:
    """The section's text between its markers."""
    phases = {row["phase"] for row in found if row["phase"]}
    lines = [
        "",
        f"{len(found)} cases in {len(phases)} phases.",
        "",
        "| phase | fault | at first | in the end | exit | last line | bound |",
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(_cells(row))} |" for row in found),
        "",
    ]
    return "\n".join(lines)


def page(text: str, found: Sequence[Row]) -> str:
    """The page with its table made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} lacks its markers"  # noqa: S101 - only a developer runs this
    return f"{before}{BEGIN}\n{table(found)}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows()), encoding="utf-8")
