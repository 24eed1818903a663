"""Which steps of a plan a run does, and what it says about the others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .manifest import HostRole
from .plan import Plan
from .steps import Kind, Step

OF_OTHERS: frozenset[Kind] = frozenset({"image"})
"""Kinds that are no matter of this stage, whoever asks for them; the plan shows and counts them."""

IMAGE_TAGS = frozenset({"all", "image"})
"""A run with one of these has the images in place before this stage, or ends before it."""

STAGE_TAGS = frozenset({"all", "weights"})
KIND_TAGS: frozenset[Kind] = frozenset({"download", "transfer", "graft", "shard", "prune"})
"""A run with some of these and none of STAGE_TAGS is restricted to these kinds."""


@dataclass(frozen=True)
class Work:
    """What is done in a run and what is not."""

    do: tuple[Step, ...] = ()
    left: tuple[Step, ...] = ()
    """Asked for, and not possible as the machines are."""
    waiting: tuple[Step, ...] = ()
    """Asked for, and possible only after steps that are not done."""
    others: tuple[Step, ...] = ()
    """Not asked for in this run."""
    why: Mapping[str, str] = field(default_factory=dict)
    """What keeps each of `left` from being done, and what to do, by its id."""


@dataclass(frozen=True)
class End:
    """What is said after the steps of a run: a refusal ends it, words are only shown."""

    refusal: str = ""
    words: str = ""


def work(plan: Plan, tags: Collection[str]) -> Work:
    """Divide the steps of a plan among what a run with these tags does and does not.

    A step waits for what it needs: after a step that is not done, nothing that needs it is done.
    """
    asked = _asked(tags)
    images = bool(IMAGE_TAGS & set(tags))
    barred = {
        name: why for name, why in plan.barred.items() if not (images and name in plan.imageless)
    }
    do: list[Step] = []
    left: list[Step] = []
    waiting: list[Step] = []
    others: list[Step] = []
    undone: set[str] = set()
    for step in plan.steps:
        if step.kind in OF_OTHERS:
            if not images:
                undone.add(step.id)
            continue
        if step.kind not in asked:
            among = others
        elif step.id in barred:
            among = left
        else:
            among = waiting if undone & set(step.needs) else do
        among.append(step)
        if among is not do:
            undone.add(step.id)
    why = {step.id: barred[step.id] for step in left}
    return Work(tuple(do), tuple(left), tuple(waiting), tuple(others), why)


def _asked(tags: Collection[str]) -> frozenset[Kind]:
    kinds = frozenset(kind for kind in KIND_TAGS if kind in tags)
    return kinds if kinds and not STAGE_TAGS & set(tags) else KIND_TAGS


def end(work: Work, names: Mapping[HostRole, str], *, check: bool) -> End:
    """How a run goes on once everything that it can do is done.

    A check does not end here, so that it shows what the stages after this one would do.
    """
    said = refusal(work, names)
    if not said or not check:
        return End(refusal=said)
    return End(words=f"a run without --check would end here: {said}")


def refusal(work: Work, names: Mapping[HostRole, str]) -> str:
    """Why a run ends although everything that it could do is done; "" when nothing is left."""
    reasons: dict[str, list[Step]] = {}
    for step in work.left:
        reasons.setdefault(work.why[step.id], []).append(step)
    said = [f"{told(steps, names)}: {why}" for why, steps in reasons.items()]
    if work.waiting:
        possible = {step.id for step in work.do}
        waits = ", ".join(
            f"{step.id} waits for {' and '.join(sorted(set(step.needs) - possible))}"
            for step in work.waiting
        )
        said.append(f"{waits}: run again when that is done")
    return f"The weights are not complete yet: {'. '.join(said)}" if said else ""


def note(others: Sequence[Step], names: Mapping[HostRole, str]) -> str:
    """What a restricted run leaves alone; "" when that is nothing."""
    return f"not asked for in this run: {told(others, names)}" if others else ""


def told(steps: Iterable[Step], names: Mapping[HostRole, str]) -> str:
    """Steps in a sentence."""
    return ", ".join(f"{step.id} ({step.words}, on {names[step.host]})" for step in steps)
