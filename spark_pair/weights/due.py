"""Whether a step of a plan may be done now, by a plan that was made a moment ago. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Exit, SparkPairError
from .manifest import Manifest, Source
from .plan import Plan
from .stage import OF_OTHERS
from .steps import Step

CUT_FROM_SHARDS = frozenset({"graft", "shard"})
"""Kinds that need the checkpoint's shards: while one is left, these are not deleted."""
RANK_SENT = "transfer-rank1-worker"


class NotDueError(SparkPairError):
    """A step would come before what it needs; nothing was started."""

    exit = Exit.REFUSED


@dataclass(frozen=True)
class Known:
    """Answers about sources from the lists that a plan was made of; nobody else is asked."""

    manifests: Mapping[str, Manifest]
    """By the name of their source."""

    @classmethod
    def of(cls, lists: Mapping[str, Any]) -> Known:
        """From plain data. Raises ManifestError."""
        return cls({name: Manifest.from_dict(data) for name, data in lists.items()})

    def manifest(self, source: Source) -> Manifest:
        """What a source holds. Raises SparkPairError when the plan did not know it either."""
        try:
            return self.manifests[source.name]
        except KeyError:
            raise SparkPairError("the plan was made without it, run again") from None

    def probe(self, manifest: Manifest, path: str) -> None:
        """Asked when the plan was made, and once more by whatever fetches."""


def step(plan: Plan, name: str) -> Step | None:
    """The step of that name, if it is still to be done. Raises NotDueError when it is too early."""
    if plan.problems:
        raise NotDueError(f"{name} cannot be begun: {' '.join(plan.problems)}")
    found = next((one for one in plan.steps if one.id == name), None)
    if found is None:
        return None
    ours = [one for one in plan.steps if one.kind not in OF_OTHERS]
    early = [one.id for one in ours if one.id in found.needs]
    if found.kind == "prune":
        early = [one.id for one in ours if one.kind in CUT_FROM_SHARDS or one.id == RANK_SENT]
    if early:
        raise NotDueError(
            f"{name} must wait for {' and '.join(early)}, which the machines say is still to be "
            "done. Nothing was started: run again, the plan is then made by what is there now"
        )
    return found
