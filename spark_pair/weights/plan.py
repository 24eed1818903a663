"""The one plan for the weights of a pair: what is left to do, in which order, and whether it fits.

Pure. An order is accepted only when every step of it keeps the floor on every file system; what
does not fit is refused before the first byte, with what is missing. `auto` takes the order that
downloads first, since downloads disturb nobody, and the one that works on the checkpoint first only
where the other does not fit. Nothing is ever deleted that the operator has not released.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import budget
from .budget import Disks, Peak
from .goal import ORDERS, Goal, Options, Order, kept_files
from .holdings import Pair, Wanted
from .manifest import HostRole, Manifest, ManifestError, Source
from .steps import Done, Step, begun, credited, lay_out

Names = Mapping[HostRole, str]

_PRUNE = (
    "rank_files_prune_sources: true, which deletes the checkpoint's shards once both rank files "
    "are proven"
)


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are to be done. Nothing may start while there are problems.

    With problems, `steps` and `peaks` are those of the order that comes nearest.
    """

    order: Order
    steps: tuple[Step, ...] = ()
    peaks: tuple[Peak, ...] = ()
    """Of every file system that holds a place of the plan."""
    problems: tuple[str, ...] = ()
    leftovers: Mapping[HostRole, int] = dataclasses.field(default_factory=dict)
    """Bytes of interrupted downloads of other programs on each machine; never touched."""
    barred: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Steps that cannot be done yet, by their ids, each with why and what to do."""
    imageless: frozenset[str] = frozenset()
    """Which of those lack nothing but the engine's image, which a stage before this one brings."""

    @property
    def credited(self) -> int:
        """Bytes of the plan's files that are there already, on both machines."""
        return sum(peak.credited for peak in self.peaks)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "order": self.order,
            "steps": [step.as_dict() for step in self.steps],
            "peaks": [_peak(peak) for peak in self.peaks],
            "credited": self.credited,
            "problems": list(self.problems),
            "leftovers": dict(self.leftovers),
            "barred": dict(self.barred),
        }


def _peak(peak: Peak) -> dict[str, Any]:
    data = dataclasses.asdict(peak)
    spot = data.pop("spot")
    return {**spot, **data, "footprint": peak.footprint, "lowest_free": peak.lowest_free}


def make(
    sources: Iterable[Source],
    manifests: Mapping[str, Manifest],
    pair: Pair,
    disks: Disks,
    options: Options,
    *,
    names: Names,
) -> Plan:
    """Plan for both machines. `manifests` are by the name of their source, `names` for sentences.

    What is wrong with the sources themselves is a problem of the plan too, so that a read-only look
    can show all of it.
    """
    first: Order = "download_first" if options.order == "auto" else options.order
    goal, problems = read_goal(sources, manifests, options)
    if problems:
        return Plan(first, problems=tuple(problems), leftovers=_leftovers(pair))
    chosen = _first_that_fits(goal, pair, disks, options)
    if chosen is None:
        tried = (_try(order, goal, pair, disks, options) for order in _orders(goal, pair, options))
        chosen = min(tried, key=lambda one: sum(peak.missing for peak in one.peaks))
    problems = [*_strangers(chosen, pair, names), *_refusals(chosen, pair, options, names)]
    if _lacking(chosen):
        problems += _ways_out(goal, pair, disks, options, names)
    return dataclasses.replace(chosen, problems=tuple(problems))


def read_goal(
    sources: Iterable[Source], manifests: Mapping[str, Manifest], options: Options
) -> tuple[Goal, list[str]]:
    """What shall be there in the end, and what is wrong with how it is described."""
    wanted: dict[str, Wanted] = {}
    problems: list[str] = []
    for source in sources:
        asked = options.overlay if source.name == "overlay" else source.enabled
        if not asked:
            continue
        problems += _source_problems(source)
        if source.name not in manifests:
            problems.append(f"What {source.repo} holds is not known: ask the Hub first.")
            continue
        try:
            wanted[source.name] = Wanted.of(source, manifests[source.name])
        except ManifestError as error:
            problems.append(str(error))
    if options.overlay and "overlay" not in wanted and not problems:
        problems.append("The overlay is wanted, but no source of that name says where it is.")
    checkpoint, overlay = wanted.pop("checkpoint", None), wanted.pop("overlay", None)
    if checkpoint is None and overlay is not None and not problems:
        problems.append("The overlay is wanted without a checkpoint that it could go into.")
    kept = kept_files(checkpoint, options.keep) if checkpoint else ()
    if checkpoint and options.prune:
        problems += _keep_problems(checkpoint, options)
    return Goal(checkpoint, overlay, tuple(wanted.values()), kept), problems


def _source_problems(source: Source) -> Iterable[str]:
    if source.name in ("checkpoint", "overlay") and source.hosts != ("head",):
        yield (
            f"The {source.name} is needed on the head alone, where rank files are cut, and not on "
            f"{', '.join(source.hosts)}: correct its hosts."
        )
    if source.name == "overlay" and not source.enabled:
        yield "The overlay is wanted, but its source is not enabled: decide for one of the two."


def _keep_problems(checkpoint: Wanted, options: Options) -> Iterable[str]:
    """A pattern that misses the shard to keep would let it be deleted."""
    shards = Manifest(checkpoint.source.repo, checkpoint.commit, checkpoint.files)
    try:
        shards.select(options.keep)
    except ManifestError as error:
        yield f"Pruning would delete what must stay: {error}"


def _orders(goal: Goal, pair: Pair, options: Options) -> tuple[Order, ...]:
    """Orders to try, the preferred one first. One that is under way is not changed."""
    if options.order != "auto":
        return (options.order,)
    return ("minimal",) if begun(goal, pair) else ORDERS


def _try(order: Order, goal: Goal, pair: Pair, disks: Disks, options: Options) -> Plan:
    done: list[Done] = lay_out(order, goal, pair, options, disks)
    steps = tuple(step for step, _ in done)
    peaks = budget.simulate(
        disks,
        [(step.id, step.effects) for step in steps],
        credited=credited(goal, pair, options, disks),
        floor=options.floor_bytes,
    )
    return Plan(order, steps, peaks, leftovers=_leftovers(pair))


def _lacking(plan: Plan) -> bool:
    return any(peak.missing for peak in plan.peaks)


def _leftovers(pair: Pair) -> dict[HostRole, int]:
    return {host: held.leftovers for host, held in pair.items() if held.leftovers}


def _refusals(plan: Plan, pair: Pair, options: Options, names: Names) -> Iterable[str]:
    floor = budget.words(options.floor_bytes)
    for peak in plan.peaks:
        if peak.missing:
            host = peak.spot.host
            sentence = (
                f"{names[host]} lacks {budget.words(peak.missing)} on {peak.spot.mount}: "
                f"{budget.words(peak.free)} are free, the plan writes up to "
                f"{budget.words(peak.most)} more, {floor} must stay free; "
                f"it does not fit from step {peak.missing_at} on."
            )
            if left := pair[host].leftovers:
                sentence += (
                    f" Interrupted downloads of other programs take {budget.words(left)} there."
                )
            yield sentence


def _strangers(plan: Plan, pair: Pair, names: Names) -> Iterable[str]:
    """A rank file without a record is the operator's; cutting it again may be hours for nothing."""
    for rank in (0, 1):
        if not any(step.id == f"shard-rank{rank}-head" for step in plan.steps):
            continue
        for host in sorted(pair):
            if rank in pair[host].strangers:
                yield (
                    f"A file of rank {rank} lies on {names[host]} and nothing says what it was cut "
                    "from: take it over with '--tags adopt', or move it away to have it cut anew."
                )


def _ways_out(
    goal: Goal, pair: Pair, disks: Disks, options: Options, names: Names
) -> Iterable[str]:
    """The change of fewest settings with which everything fits."""
    ways: list[tuple[str, dict[str, Any]]] = []
    if options.overlay and options.graft != "in_place":
        ways.append(("ablit_graft_method: in_place", {"graft": "in_place"}))
    if options.order != "auto":
        ways.append(("weights_disk_order: auto", {"order": "auto"}))
    if not options.prune and goal.checkpoint and not list(_keep_problems(goal.checkpoint, options)):
        ways.append((_PRUNE, {"prune": True}))
    for number in range(1, len(ways) + 1):
        for some in itertools.combinations(ways, number):
            changes = {key: value for _, change in some for key, value in change.items()}
            changed = _first_that_fits(goal, pair, disks, dataclasses.replace(options, **changes))
            if changed:
                said = " and ".join(words for words, _ in some)
                yield f"It fits with {said}; {_takes(changed, names)}."
                return
    yield "No setting makes it fit: make room there, or put one of the places on a larger disk."


def _first_that_fits(goal: Goal, pair: Pair, disks: Disks, options: Options) -> Plan | None:
    for order in _orders(goal, pair, options):
        plan = _try(order, goal, pair, disks, options)
        if not _lacking(plan):
            return plan
    return None


def _takes(plan: Plan, names: Names) -> str:
    peaks = [
        f"{budget.words(peak.footprint)} on {names[peak.spot.host]} {peak.spot.mount}"
        for peak in plan.peaks
        if peak.most
    ]
    return f"all in all the files then take at most {', '.join(peaks)}"
