"""From what the operator wants and what both machines told to the plan and its orders.

Nothing is asked here: whoever calls gives the questions that may be needed, and they are asked only
for what neither machine keeps from the Hub. The caches' own lists, which an account writes, stand
in for the Hub only when it is out of reach, or when nothing is left to do by them anyway.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..errors import SparkPairError
from . import plan as plans
from . import seen as looks
from .budget import Disks
from .holdings import Wanted
from .manifest import HOST_ROLES, Manifest, ManifestError, Source
from .order_making import GRAFT, SEND_RANK, Orders, Seens, StepError
from .plan import Plan
from .questions import out_of_reach
from .steps import Step
from .variables import Settings


class Questions(Protocol):
    """What the Hub may be asked; each raises SparkPairError."""

    def manifest(self, source: Source) -> Manifest:
        """Everything that a source's repository holds at its revision."""

    def probe(self, manifest: Manifest, path: str) -> None:
        """Whether a file would be given."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan with what it was made of."""

    plan: Plan
    manifests: Mapping[str, Manifest]
    """By the name of their source."""
    notes: tuple[str, ...] = ()
    """What the operator should know of where the lists came from."""


@dataclasses.dataclass(frozen=True)
class Lists:
    """What is known of the sources' files."""

    manifests: Mapping[str, Manifest]
    """By the name of their source."""
    problems: tuple[str, ...]
    """Why some cannot be had."""
    notes: tuple[str, ...]
    """Of which the cache's own list is taken, since the Hub is out of reach."""


def make(settings: Settings, seens: Seens, questions: Questions) -> Planned:
    """The plan of a pair of which both machines were looked at. Raises BudgetError."""
    settled = _settled(settings, seens)
    lists = gather(settings.wanted, seens, questions, lambda *_: settled)
    manifests, notes = lists.manifests, lists.notes
    problems = [*lists.problems, *_untold(settings, seens)]
    if problems:
        # No byte can be counted, so there is nothing else to say.
        return Planned(Plan("download_first", problems=tuple(problems)), manifests, notes)
    plan = _plan(settings, seens, manifests)
    if not plan.problems:
        refused = [*_unrailed(plan, settings), *_refused(plan, settings, manifests, questions)]
        barred = _barred(plan, settings, seens)
        own = {one.id for one in plan.steps if _runs_in(one, settings)[0] == settings.image != ""}
        plan = dataclasses.replace(
            plan, problems=tuple(refused), barred=barred, imageless=frozenset(own & barred.keys())
        )
    return Planned(plan, manifests, notes)


def gather(
    sources: tuple[Source, ...],
    seens: Seens,
    questions: Questions,
    enough: Callable[[Source, Manifest], bool],
) -> Lists:
    """The sources' lists of files: from a host that keeps it, or the Hub, or a cache without one.

    `enough` tells whether a cache's own list needs no confirmation by the Hub.
    """
    kept, own = _known(seens)
    found: dict[str, Manifest] = {}
    problems: list[str] = []
    notes: list[str] = []
    for source in sources:
        if manifest := _at_revision(source, kept):
            found[source.name] = manifest
            continue
        tree = _at_revision(source, own)
        if tree and enough(source, tree):
            found[source.name] = tree
            continue
        try:
            found[source.name] = questions.manifest(source)
        except SparkPairError as error:
            if tree and out_of_reach(error):
                found[source.name] = tree
                notes.append(
                    f"the Hub cannot be reached: the list of {source.name} is the cache's own"
                )
            else:
                problems.append(f"What {source.name} consists of is not known: {error}")
    return Lists(found, tuple(problems), tuple(notes))


def _known(seens: Seens) -> tuple[dict[str, Manifest], dict[str, Manifest]]:
    """By repository: what hosts keep from the Hub, and what caches say."""
    looked = [seens[role] for role in sorted(seens)]
    return looks.manifests(looked), looks.trees(looked)


def _at_revision(source: Source, lists: Mapping[str, Manifest]) -> Manifest | None:
    manifest = lists.get(source.repo)
    return manifest if manifest and manifest.commit.startswith(source.revision) else None


def _settled(settings: Settings, seens: Seens) -> bool:
    """Whether by the lists that the machines have, caches' included, no file is left to prove.

    Whatever they say then, the records vouch for it, and the Hub need not be asked.
    """
    kept, own = _known(seens)
    found = {
        one.name: manifest
        for one in settings.wanted
        if (manifest := _at_revision(one, kept) or _at_revision(one, own))
    }
    unknown = len(found) < len(settings.wanted)
    if unknown or _untold(settings, seens):
        return False
    plan = _plan(settings, seens, found)
    # An image is made of no list.
    return not plan.problems and all(step.kind == "image" for step in plan.steps)


def _untold(settings: Settings, seens: Seens) -> list[str]:
    """What keeps anything from being planned, on any machine."""
    return [
        problem
        for role in HOST_ROLES
        for problem in looks.problems(seens[role], settings.names[role])
    ]


def _plan(settings: Settings, seens: Seens, manifests: Mapping[str, Manifest]) -> Plan:
    wanted = _wanted(settings.wanted, manifests)
    pair = {role: looks.holdings(seens[role], wanted) for role in HOST_ROLES}
    disks = Disks(
        {role: looks.filesystems(seens[role]) for role in HOST_ROLES},
        {role: looks.places(seens[role]) for role in HOST_ROLES},
    )
    return plans.make(
        settings.sources, manifests, pair, disks, settings.options, names=settings.names
    )


def _wanted(sources: tuple[Source, ...], manifests: Mapping[str, Manifest]) -> list[Wanted]:
    """Without those whose list of files is wrong, about which the plan says more."""
    found = []
    for source in sources:
        try:
            found.append(Wanted.of(source, manifests[source.name]))
        except ManifestError:
            continue
    return found


def _refused(
    plan: Plan, settings: Settings, manifests: Mapping[str, Manifest], questions: Questions
) -> list[str]:
    """Ask for one small file of whatever is gated before the first byte of anything is fetched."""
    gated = {one.name for one in settings.sources if one.gated}
    problems = []
    for step in plan.steps:
        if step.kind != "download" or step.source not in gated:
            continue
        manifest = manifests[step.source]
        smallest = min((manifest.file(path) for path in step.files), key=lambda file: file.size)
        try:
            questions.probe(manifest, smallest.path)
        except SparkPairError as error:
            problems.append(f"{step.source} cannot be downloaded: {error}")
    return problems


def _unrailed(plan: Plan, settings: Settings) -> list[str]:
    """That something is to be sent and there is no rail, before hours of downloads."""
    head, worker = (settings.machines[role] for role in HOST_ROLES)
    if not any(step.kind == "transfer" for step in plan.steps) or (head.rails and worker.rails):
        return []
    names = settings.names
    return [
        f"{names['head']} and {names['worker']} have no rail in common, and weights are sent over "
        "the rails: name them in cx7_network_rails of both."
    ]


def _barred(plan: Plan, settings: Settings, seens: Seens) -> dict[str, str]:
    """Why steps of a plan cannot be done yet, by their ids: what they run in is not there."""
    found = {}
    for step in plan.steps:
        image, variable = _runs_in(step, settings)
        if not variable:
            continue
        host = settings.names[step.host]
        if not image:
            found[step.id] = (
                f"{variable} names no image to run it in, and there is no engine whose image it "
                "could be"
            )
        elif seens[step.host]["images"].get(image) is False:
            found[step.id] = (
                f"the image {image} is not on {host}: --tags image brings the engine's; any other "
                f"you load with 'docker load', or name one that is there in {variable}"
            )
    return found


def _runs_in(step: Step, settings: Settings) -> tuple[str, str]:
    """The image that a step runs in, and the variable that names it; empty without one."""
    if step.kind == "shard":
        return settings.cut.image, "rank_files_image"
    if step.id == GRAFT and settings.options.graft == "recipe":
        return settings.graft.image, "ablit_graft_image"
    return "", ""


# ---- orders -------------------------------------------------------------------------------------


def step_of(made: Planned, step_id: str) -> Step | None:
    """A step of a plan by its id; None when it is not due any more."""
    return next((one for one in made.plan.steps if one.id == step_id), None)


def order(
    step_or_id: Step | str, settings: Settings, made: Planned, seens: Seens
) -> dict[str, Any]:
    """What the job of a step is given, by a look that is as fresh as the plan.

    Never with a limit of speed; whoever starts a transfer beside a server sets that. Raises
    StepError when the plan has no such step, or when what it needs is not there.
    """
    step = step_of(made, step_or_id) if isinstance(step_or_id, str) else step_or_id
    if step is None:
        raise StepError(f"{step_or_id} is not due any more; run again, the plan is made anew")
    orders = _orders(settings, made, seens)
    if step.id == SEND_RANK:
        return orders.rank(step)
    match step.kind:
        case "download":
            return orders.download(step)
        case "transfer":
            return orders.transfer(step)
        case "graft":
            return orders.graft(step)
        case "shard":
            return orders.shard(step)
        case "prune":
            return orders.prune(step)
        case "image":
            raise StepError(f"{step.id} is no work of this stage")


def drop_order(settings: Settings, made: Planned, seens: Seens) -> dict[str, Any] | None:
    """What deletes the head's copy of rank 1; None when there is none.

    Raises StepError unless the worker has recorded the very same file.
    """
    return _orders(settings, made, seens).drop()


def _orders(settings: Settings, made: Planned, seens: Seens) -> Orders:
    goal, _ = plans.read_goal(settings.sources, made.manifests, settings.options)
    wanted = _wanted(settings.wanted, made.manifests)
    pair = {role: looks.holdings(seens[role], wanted) for role in HOST_ROLES}
    return Orders(settings, made.manifests, goal, seens, pair)
