"""What a check is: measurements it needs, and what they mean. Pure.

A check sees only the measurements that it names. One that is missing makes it *unknown* before its
own code runs, so that no check can take silence for a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..description import ROLES, PairDescription, Role, Server
from ..findings import Grade

GIB_IN_KIB = 1024 * 1024


@dataclass(frozen=True)
class Sight:
    """What a check may see of one host: its name, place and the measurements it asked for."""

    host: str
    role: Role
    user: str
    home: str
    measured: Mapping[str, Any]
    description: PairDescription | None = None

    def __getitem__(self, name: str) -> Any:
        return self.measured[name]

    def servers(self) -> list[Server]:
        """The known servers; none without a description."""
        return list(self.description.servers.values()) if self.description else []

    def wanted(self) -> Server | None:
        """The server that the pair should run."""
        return self.description.servers.get(self.description.wanted) if self.description else None


@dataclass(frozen=True)
class Outcome:
    """What a check says of one host: a cell's words and, unless all is well, what is wrong.

    `remedy` is said once, however many hosts have it.
    """

    grade: Grade
    words: str
    hint: str = ""
    remedy: str = ""


def ok(words: str) -> Outcome:
    """All is well."""
    return Outcome(Grade.OK, words)


def warn(words: str, hint: str, remedy: str = "") -> Outcome:
    """Something to know, which does not stop a run."""
    return Outcome(Grade.WARN, words, hint, remedy)


def fail(words: str, hint: str, remedy: str = "") -> Outcome:
    """Something that stops a run."""
    return Outcome(Grade.FAIL, words, hint, remedy)


def unknown(words: str, hint: str) -> Outcome:
    """Nothing can be said, for this reason."""
    return Outcome(Grade.UNKNOWN, words, hint)


Comparison = Callable[[Sight, Sight], tuple[Grade, str]]
"""Head and worker to a grade and, unless all is well, its hint."""


@dataclass(frozen=True)
class Check:
    """One check of the catalogue. `means` is what docs/preflight.md says about it."""

    id: str
    title: str
    means: str
    guards: tuple[int, ...] = ()
    roles: tuple[Role, ...] = ROLES


@dataclass(frozen=True)
class HostCheck(Check):
    """A check of each host by itself. What it may use but can do without is in `uses`."""

    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    judge: Callable[[Sight], Outcome] = field(default=lambda sight: ok(""))


@dataclass(frozen=True)
class PairCheck(Check):
    """A check of what both hosts must have in common, or must not.

    `words` makes the cell of one host; `compare` gets both hosts (head first) and answers with a
    grade and its hint.
    """

    needs: tuple[str, ...] = ()
    words: Callable[[Sight], str] = field(default=lambda sight: "")
    compare: Comparison = field(default=lambda head, worker: (Grade.OK, ""))


def equal(grade: Grade, hint: str, words: Callable[[Sight], str]) -> Comparison:
    """A `compare` that wants the same words of both hosts."""

    def compare(head: Sight, worker: Sight) -> tuple[Grade, str]:
        if words(head) == words(worker):
            return Grade.OK, ""
        return grade, f"{head.host} has {words(head)}, {worker.host} has {words(worker)}: {hint}"

    return compare


def gib(kib: float) -> str:
    """KiB as GiB with one digit."""
    return f"{kib / GIB_IN_KIB:.1f}"
