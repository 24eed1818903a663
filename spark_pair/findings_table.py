"""Findings of a pair as a table that a person can read: a row a check, a column a host. Pure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Collection, Mapping, Sequence

from .description import ROLES, Role
from .findings import Finding, Grade, failures

ACCEPTED = "accepted"
CELL = 30
CELL_LINES = 3
"""Characters of a cell's line, and its lines; more stands in the evidence, not in the table."""

WIDTH = 112
_SHOWN = {"fail": "FAIL", "pass": "ok"}
_URGENCY = (Grade.FAIL, Grade.WARN, Grade.UNKNOWN)


def verdict(found: Finding, accepted: Collection[str]) -> str:
    """The grade in a word; a failure that the operator accepts is "accepted"."""
    if found.grade is Grade.FAIL and found.id in accepted:
        return ACCEPTED
    return str(found.grade)


def summary(
    findings: Sequence[Finding],
    accepted: Collection[str] = (),
    must_be_known: Collection[str] = (),
) -> str:
    """What stops the run, as one sentence; empty when nothing does.

    Failures stop it, and for the ids in `must_be_known` so does what could not be found out.
    """
    wrong = failures(findings, accepted)
    wrong += [
        found
        for found in findings
        if found.grade is Grade.UNKNOWN and found.id in must_be_known and found.id not in accepted
    ]
    if not wrong:
        return ""
    more = f" (and {len(wrong) - 1} more in the table above)" if len(wrong) > 1 else ""
    return f"{wrong[0].hint}{more}"


def table(
    title: str,
    pair: Mapping[Role, str],
    findings: Sequence[Finding],
    *,
    titles: Mapping[str, str],
    accepted: Collection[str] = (),
) -> str:
    """One table for a pair; below it what did not pass means, worst first.

    `titles` maps a finding's id to what is shown for it. Ids in `accepted` do not stop a run. A
    check for which no machine could be looked at has no row: there is nothing to read in it.
    """
    roles = [role for role in ROLES if role in pair]
    rows = [[title, *(f"{pair[role]} ({role})" for role in roles), "verdict"]]
    for found in findings:
        if found.measured:
            cells = [_lines(found.measured.get(pair[role], "-")) for role in roles]
            word = verdict(found, accepted)
            name = titles.get(found.id, found.id)
            columns = ([name], *cells, [_SHOWN.get(word, word)])
            rows += map(list, itertools.zip_longest(*columns, fillvalue=""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *_hints(findings, accepted)])


def _hints(findings: Sequence[Finding], accepted: Collection[str]) -> list[str]:
    """What is wrong; checks that say the same share a line."""
    lines: list[str] = []
    for grade in _URGENCY:
        said: dict[tuple[str, str], list[str]] = {}
        for found in findings:
            if found.grade is grade and found.measured:
                said.setdefault((verdict(found, accepted), found.hint), []).append(found.id)
        for (told, hint), names in said.items():
            word = f" ({told})" if told in (ACCEPTED, "unknown") else ""
            lines += textwrap.wrap(
                f"{', '.join(names)}{word}: {hint}",
                WIDTH,
                initial_indent="  ! ",
                subsequent_indent="      ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def _lines(words: str) -> list[str]:
    """A cell's words on as many lines as they need; items of a list are kept whole."""
    lines: list[str] = []
    for item in words.split(", "):
        if lines and len(lines[-1]) + len(item) + 2 <= CELL:
            lines[-1] += f", {item}"
            continue
        if lines:
            lines[-1] += ","
        lines += textwrap.wrap(item, CELL, break_on_hyphens=False) or [""]
    if len(lines) > CELL_LINES:
        lines[CELL_LINES - 1 :] = [lines[CELL_LINES - 1][: CELL - 1] + "…"]
    return lines
