"""How far a graft is, as it lies on the disk beside what was grafted.

In the folder of everything made from a checkpoint with an overlay:

  graft.json       what is done to which shards, and whether it is under way, done or being undone;
                   written before the first shard is moved, gone after the last one is back
  .grafting/       shards that are being worked on, and no server ever looks at
  undo/<shard>     the bytes that the overlay replaced, with their places
  checkpoint.new/  what the recipe's tools write, when they do it
  checkpoint/      what is proven, under its final name

The account that owns the weights writes all of it. It decides what is tried next, never what is
believed: every shard is proven by its content before it counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .. import jsonfile
from .manifest import File, ManifestError, is_commit

SCHEMA = 1
NAME = "graft.json"
STAGING = ".grafting"
UNDO = "undo"
NEW = "checkpoint.new"
"""What the recipe's tools write to, named as the recipe names it."""
_MOST_BYTES = 4 << 20


class Phase(StrEnum):
    """What is being done, or was."""

    GRAFTING = "grafting"
    GRAFTED = "grafted"
    UNDOING = "undoing"


@dataclass(frozen=True)
class Shard:
    """A shard that the overlay touches, as the Hub describes it."""

    size: int
    sha256: str


@dataclass(frozen=True)
class GraftState:
    """What is known of one graft."""

    repo: str
    checkpoint: str
    """Commit."""
    overlay: str
    """Commit."""
    method: str
    phase: Phase
    shards: Mapping[str, Shard]
    """Those that the overlay touches, by their paths in the checkpoint."""

    @property
    def unfinished(self) -> bool:
        """Whether shards may be somewhere between both states."""
        return self.phase is not Phase.GRAFTED

    def there(self, derived: Path) -> dict[str, int]:
        """Bytes of the touched shards that lie in the work folder now, by path: as they shall be,
        or on the way there. Those that still lie in the cache are not among them."""
        found = {}
        for path in self.shards:
            for folder in (derived / "checkpoint", derived / STAGING):
                if size := _own_bytes(folder / path):
                    found[path] = size
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": SCHEMA,
            "repo": self.repo,
            "checkpoint": self.checkpoint,
            "overlay": self.overlay,
            "method": self.method,
            "state": str(self.phase),
            "shards": {
                path: {"size": one.size, "sha256": one.sha256}
                for path, one in sorted(self.shards.items())
            },
        }

    @classmethod
    def from_dict(cls, data: Any) -> GraftState | None:
        """The reverse of `as_dict`; None for what we would not have written."""
        try:
            if data["schema"] != SCHEMA or not is_commit(data["checkpoint"]):
                return None
            if not is_commit(data["overlay"]):
                return None
            shards = {}
            for path, one in data["shards"].items():
                file = File(path, one["size"], "0" * 40, one["sha256"])
                shards[file.path] = Shard(file.size, str(file.sha256))
            return cls(
                repo=str(data["repo"]),
                checkpoint=data["checkpoint"],
                overlay=data["overlay"],
                method=str(data["method"]),
                phase=Phase(data["state"]),
                shards=shards,
            )
        except (KeyError, TypeError, ValueError, AttributeError, ManifestError):
            return None


def read(derived: Path) -> GraftState | None:
    """The state of the graft in that folder; None when there is none, or none of ours.

    Anybody's file may lie there: no link is followed and no more read than is sensible. OSError.
    """
    return GraftState.from_dict(jsonfile.read_guarded(derived / NAME, _MOST_BYTES))


def read_all(work: Path) -> dict[str, GraftState]:
    """The states of all grafts below a work folder, by the name of their folder. OSError."""
    found = {}
    for journal in sorted(work.glob(f"*-ablit-*/{NAME}")):
        if state := read(journal.parent):
            found[journal.parent.name] = state
    return found


def write(derived: Path, state: GraftState) -> None:
    """Note a state; on the disk when this returns. OSError."""
    jsonfile.write(derived / NAME, state.as_dict())
    flush(derived)


def forget(derived: Path) -> None:
    """Take the note away, when no shard differs from the Hub's any more. OSError."""
    (derived / NAME).unlink(missing_ok=True)
    if derived.is_dir():
        flush(derived)


def undo_bytes(derived: Path) -> int:
    """Bytes of what undoes a graft, whole or begun."""
    return sum(_own_bytes(path) for path in (derived / UNDO).rglob("*"))


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk. OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _own_bytes(path: Path) -> int:
    """Size of a regular file, not of what a link points to; 0 for anything else."""
    try:
        return path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    except OSError:
        return 0
