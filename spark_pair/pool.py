"""How many requests an engine can hold at once: its context is one pool that all lanes share.

A request takes its place when it is admitted and keeps it to its end: the prompt, the whole budget
of its reply and the rows of a decode round, rounded up. Pure functions, standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import DescriptionError

BLOCK = 2048
"""Places of the pool are given in blocks of this many tokens."""
_BESIDE = 2
"""Positions that a request takes beside its prompt, its budget and the rows of a round."""
_CLIENT_KEYS = ("name", "at_once", "prompt", "max_tokens")


@dataclass(frozen=True)
class Pool:
    """What requests share: `context` tokens in all, `parallel` lanes, `rows` of a decode round."""

    context: int
    parallel: int
    rows: int = 16

    def takes(self, prompt: int, max_tokens: int) -> int:
        """Tokens of the pool that one request keeps, in whole blocks."""
        return -(-(prompt + max_tokens + self.rows + _BESIDE) // BLOCK) * BLOCK

    def at_once(self, prompt: int, max_tokens: int) -> int:
        """How many such requests fit at once; 0 for one that is refused however idle the engine."""
        return min(self.context // self.takes(prompt, max_tokens), self.parallel)


@dataclass(frozen=True)
class Client:
    """A client as it is declared: the most requests it has open, and the largest of them."""

    name: str
    at_once: int
    prompt: int
    """Tokens."""
    max_tokens: int


def words(pool: Pool, prompt: int, max_tokens: int) -> str:
    """What somebody who plans such requests should know, in a few sentences."""
    taken, fit = pool.takes(prompt, max_tokens), pool.at_once(prompt, max_tokens)
    said = (
        f"A request of {prompt} prompt tokens with max_tokens {max_tokens} takes {taken} of the "
        f"{pool.context} tokens of the pool"
    )
    if not fit:
        return f"{said}: it does not fit at all, and the engine refuses it."
    by_room = pool.context // taken
    why = (
        f"the {pool.parallel} lanes decide, the pool has room for {by_room}"
        if by_room > pool.parallel
        else f"the pool decides, {pool.parallel} lanes are there"
        if by_room < pool.parallel
        else "the pool and the lanes end together"
    )
    return f"{said}: {fit} fit at once ({why}). More wait, or are refused."


def clients(label: str, raw: object) -> tuple[Client, ...]:
    """The clients as declared under the variable `label`; DescriptionError names a bad entry."""
    if raw in (None, ""):
        return ()
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise DescriptionError(f"{label} must be a list of {', '.join(_CLIENT_KEYS)}")
    found: list[Client] = []
    for index, one in enumerate(raw):
        where = f"{label}[{index}]"
        if not isinstance(one, Mapping) or set(one) != set(_CLIENT_KEYS):
            raise DescriptionError(f"{where} must have {', '.join(_CLIENT_KEYS)} and nothing else")
        name = one["name"]
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise DescriptionError(f"{where}.name must be the client's name, on one line")
        at_once, prompt, max_tokens = (
            _count(f"{where}.{key}", one[key]) for key in ("at_once", "prompt", "max_tokens")
        )
        found.append(Client(str(name), at_once, prompt, max_tokens))
    return tuple(found)


def _count(label: str, raw: Any) -> int:
    if isinstance(raw, str) and re.fullmatch(r"[1-9][0-9]*", raw):
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 1:
        raise DescriptionError(f"{label} is {str(raw)[:40]!r}, but must be a whole number above 0")
    return int(raw)


def overload(pool: Pool, declared: Sequence[Client]) -> str:
    """Why the clients cannot all have their requests open at once; empty when they can."""
    for one in declared:
        if not pool.at_once(one.prompt, one.max_tokens):
            return (
                f"a request of {one.name} ({one.prompt} prompt tokens, max_tokens "
                f"{one.max_tokens}) takes {pool.takes(one.prompt, one.max_tokens)} tokens of the "
                f"pool, which has {pool.context}: it is refused however idle the engine is"
            )
    problems = []
    lanes = sum(one.at_once for one in declared)
    if lanes > pool.parallel:
        problems.append(f"{lanes} requests at once for {pool.parallel} lanes")
    taken = sum(one.at_once * pool.takes(one.prompt, one.max_tokens) for one in declared)
    if taken > pool.context:
        problems.append(f"{taken} tokens for a pool of {pool.context}")
    if not problems:
        return ""
    each = ", ".join(
        f"{one.name} {one.at_once} times {pool.takes(one.prompt, one.max_tokens)}"
        for one in declared
    )
    return (
        f"the declared clients need {' and '.join(problems)} ({each}), so that some of their "
        "requests wait or are refused: give them less max_tokens or fewer requests at once"
    )
