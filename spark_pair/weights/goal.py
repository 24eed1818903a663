"""What both machines shall hold in the end, and what the operator may decide about the way. Pure.

Sizes of what is fetched come from the manifests. The few sizes that no manifest can give are
constants here, each with where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .budget import GB, GIB
from .holdings import Holdings, RankFile, Wanted
from .manifest import File, Selector
from .provenance import SHARD

Order = Literal["download_first", "minimal"]
ORDERS: tuple[Order, ...] = ("download_first", "minimal")
Choice = Literal["auto", "download_first", "minimal"]
Method = Literal["in_place", "recipe"]

RANK_FILE_BYTES = 106 * GB
"""Measured on the account's pair: about 106 GB (98.7 GiB) for each of the two rank files."""

IMAGE_BYTES = 25 * GB
"""As the recipe specifies it; on each machine."""

REWRITTEN_BYTES = 141 * GB
"""Measured on the account's pair: the 24 of 39 shards that hold the overlay's 104 tensors. A graft
in place needs this only when the work folder lies on another file system than the cache."""

FLOOR_BYTES = 20 * GIB
"""Assumed: what stays free for logs, journals and the servers' own files. The account's disk once
went down to 59 GiB and nothing suffered."""

KEPT = (Selector("*-00039-of-*.safetensors", 1),)
"""Shards that stay when the others are pruned: the account's pair runs with shard 39 alone left.
That the number stands in the name like this is assumed; a pattern that matches no file is refused
before anything is pruned."""


@dataclass(frozen=True)
class Options:
    """What the operator may decide. Sizes in bytes."""

    order: Choice = "auto"
    prune: bool = False
    """Whether the checkpoint's shards may be deleted once both rank files are proven."""
    overlay: bool = False
    graft: Method = "in_place"
    """`recipe` writes the affected shards anew beside the old ones."""
    rank_bytes: int = RANK_FILE_BYTES
    image_bytes: int = IMAGE_BYTES
    """0 leaves the image out of the plan."""
    rewritten_bytes: int = REWRITTEN_BYTES
    floor_bytes: int = FLOOR_BYTES
    keep: tuple[Selector, ...] = KEPT


@dataclass(frozen=True)
class Goal:
    """What both machines shall hold in the end."""

    checkpoint: Wanted | None
    overlay: Wanted | None
    """None when stock weights are wanted."""
    others: tuple[Wanted, ...]
    """Everything that is only fetched, the Engram tables for example, in the order given."""
    kept: tuple[File, ...]
    """Files of the checkpoint that stay after pruning."""

    @property
    def graft(self) -> str | None:
        """Commit of the overlay that the rank files shall carry."""
        return self.overlay.commit if self.overlay else None

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """Every source that something is wanted of."""
        return tuple(one for one in (self.checkpoint, self.overlay, *self.others) if one)

    def rank_file(self, held: Holdings, rank: int) -> RankFile | None:
        """This rank file on a machine, cut from what is wanted."""
        if self.checkpoint is None:
            return None
        return held.rank(rank, self.checkpoint.commit, self.graft)

    def cut(self, held: Holdings, rank: int) -> bool:
        """Whether a machine holds this rank file, cut from what is wanted."""
        return self.rank_file(held, rank) is not None

    @property
    def prunable(self) -> tuple[File, ...]:
        """Files of the checkpoint that pruning deletes."""
        if self.checkpoint is None:
            return ()
        return tuple(file for file in self.checkpoint.files if file not in self.kept)


def kept_files(checkpoint: Wanted, keep: Iterable[Selector]) -> tuple[File, ...]:
    """Small files and the shards that `keep` names."""
    patterns = tuple(keep)
    return tuple(
        file
        for file in checkpoint.files
        if not file.path.endswith(SHARD) or any(one.matches(file.path) for one in patterns)
    )
