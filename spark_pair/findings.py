"""One check's outcome: what was measured where, what it means, what to do next. Pure.

Checks of a pair and of its rails all end in this shape, so that one table, one evidence file and
one rule for stopping a run serve them all.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class Grade(enum.StrEnum):
    """What a measurement means. `UNKNOWN` is said with its reason and is never taken for a pass."""

    OK = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


_ORDER = (Grade.OK, Grade.UNKNOWN, Grade.WARN, Grade.FAIL)


@dataclass(frozen=True)
class Finding:
    """Outcome of one check.

    `measured` maps each host that the check is about to what was seen there, in a few words for a
    table's cell. `hint` says what it means and what to do next; it is there unless the grade is
    OK. `guards` are the numbers of the faults in docs/faults.md that the check guards against.
    """

    id: str
    grade: Grade
    measured: Mapping[str, str]
    hint: str = ""
    guards: tuple[int, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """More evidence for the file, as plain data; not shown in a table."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as it is written to the evidence file."""
        return {
            "id": self.id,
            "verdict": str(self.grade),
            "hosts": sorted(self.measured),
            "measured": dict(self.measured),
            "hint": self.hint,
            "guards": list(self.guards),
            "details": dict(self.details),
        }


def from_dict(data: Mapping[str, Any]) -> Finding:
    """The reverse of `as_dict`."""
    return Finding(
        id=str(data["id"]),
        grade=Grade(data["verdict"]),
        measured={str(host): str(words) for host, words in data["measured"].items()},
        hint=str(data["hint"]),
        guards=tuple(int(number) for number in data["guards"]),
        details=dict(data["details"]),
    )


def worst(findings: Iterable[Finding]) -> Grade:
    """The worst grade among findings; OK when there are none."""
    return max((found.grade for found in findings), key=_ORDER.index, default=Grade.OK)


def failures(findings: Iterable[Finding], accepted: Collection[str] = ()) -> list[Finding]:
    """Findings that stop a run: failed, and not accepted by the operator."""
    return [found for found in findings if found.grade is Grade.FAIL and found.id not in accepted]
