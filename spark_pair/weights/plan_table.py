"""A plan as a person reads it: steps with their bytes, then the file systems. Pure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from . import budget
from .budget import GB, GIB, Peak
from .manifest import HostRole
from .plan import Plan
from .steps import Kind, Step

WIDTH = 112
WHAT = 56
"""Characters of a line, and of the column that says what a step does."""

_TITLES = {
    "download_first": "everything is downloaded first, then grafted and cut",
    "minimal": "the checkpoint is grafted and cut first, the rest is downloaded afterwards",
}
_VERBS: dict[Kind, str] = {
    "download": "downloaded",
    "transfer": "sent between the machines",
    "graft": "written by the graft",
    "shard": "cut",
    "prune": "deleted",
    "image": "for images",
}


Units = tuple[tuple[int, str], tuple[int, str]]
"""Decimal and binary: how many bytes, and the name."""

_LARGE: Units = ((GB, "GB"), (GIB, "GiB"))
_SMALL: Units = ((10**6, "MB"), (2**20, "MiB"))


def table(plan: Plan, names: Mapping[HostRole, str]) -> str:
    """The whole plan in lines of text.

    Sizes stand in GB, as disks are sold, and in GiB; in MB and MiB where all of it is that small.
    """
    if plan.problems and not plan.peaks:
        return _problems(plan)
    parts = [f"Order {plan.order}: {_TITLES[plan.order]}"]
    units = _units(plan)
    if plan.steps:
        parts += [_steps(plan.steps, names, units), _sums(plan.steps)]
    else:
        parts = ["Nothing is left to do: the weights are in place and recorded."]
    parts.append(_disks(plan.peaks, names, units))
    parts += [
        f"{names[host]}: interrupted downloads of other programs take {budget.words(count)}; they "
        "are left alone."
        for host, count in sorted(plan.leftovers.items())
    ]
    if plan.barred and not plan.problems:
        steps: dict[str, list[str]] = {}
        for step, why in plan.barred.items():
            steps.setdefault(why, []).append(step)
        told = [f"{', '.join(some)}: {why}." for why, some in steps.items()]
        parts.append(_list("Not possible yet:", told))
    if plan.problems:
        parts.append(_problems(plan))
    return "\n\n".join(parts)


def _units(plan: Plan) -> Units:
    """By the plan's own bytes; the size of a disk says nothing about them."""
    sizes = [step.bytes for step in plan.steps]
    sizes += [max(peak.footprint, peak.credited) for peak in plan.peaks]
    return _SMALL if 0 < max(sizes, default=0) < GB else _LARGE


def _problems(plan: Plan) -> str:
    return _list("Nothing is started:", plan.problems)


def _list(title: str, sentences: Iterable[str]) -> str:
    told = [
        textwrap.fill(one, WIDTH, initial_indent="  - ", subsequent_indent="    ")
        for one in sentences
    ]
    return "\n".join([title, *told])


def _steps(steps: Sequence[Step], names: Mapping[HostRole, str], units: Units) -> str:
    rows: list[Sequence[str]] = [("", "step", "file system", *(name for _, name in units), "what")]
    for number, step in enumerate(steps, 1):
        amounts = (f"{step.bytes / unit:.1f}" for unit, _ in units)
        what = textwrap.wrap(step.words, WHAT, break_long_words=False, break_on_hyphens=False)
        first = (str(number), step.id, _where(step, names), *amounts)
        rows += itertools.zip_longest(*((cell,) for cell in first), what, fillvalue="")
    return _columns(rows, left={1, 2, 5})


def _where(step: Step, names: Mapping[HostRole, str]) -> str:
    mounts = [one.spot.mount for one in step.effects if one.spot.host == step.host]
    return " ".join([names[step.host], *mounts])


def _sums(steps: Iterable[Step]) -> str:
    sums: dict[Kind, int] = {}
    for step in steps:
        sums[step.kind] = sums.get(step.kind, 0) + step.bytes
    said = [f"{budget.words(sums[kind])} {verb}" for kind, verb in _VERBS.items() if sums.get(kind)]
    text = f"In all {', '.join(said)}." if said else "No byte is fetched, written or deleted."
    return textwrap.fill(text, WIDTH)


def _disks(peaks: Iterable[Peak], names: Mapping[HostRole, str], units: Units) -> str:
    """Two lines a file system: GB, and below it the same in GiB."""
    rows: list[Sequence[str]] = [
        ("file system", "", "size", "free", "there now", "peak", "lowest free", "in the end")
    ]
    at = []
    for peak in peaks:
        where = f"{names[peak.spot.host]} {peak.spot.mount}"
        amounts = (
            peak.total,
            peak.free,
            peak.credited,
            peak.footprint,
            peak.lowest_free,
            peak.credited + peak.after,
        )
        for unit, name in units:
            rows.append((where, name, *(f"{amount / unit:.1f}" for amount in amounts)))
            where = ""
        if peak.at:
            at.append(f"{names[peak.spot.host]} {peak.spot.mount} is fullest in {peak.at}.")
    legend = "There now, peak and in the end: bytes of this plan's files, images included."
    return "\n".join([_columns(rows, left={0, 1}), legend, *at])


def _columns(rows: Sequence[Sequence[str]], *, left: set[int]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
