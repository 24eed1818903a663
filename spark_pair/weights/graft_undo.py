"""The bytes that an overlay replaces in one shard, kept so that it can be taken out again.

A line of JSON that says of which shard and from where, then the bytes themselves in that order. The
file gets its name when all of it is on the disk, so one that has its name is whole.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import graft_disk as disk
from .graft_plan import Change, GraftError
from .manifest import File

SCHEMA = 1
_MOST_LINE = 4 << 20


@dataclass(frozen=True)
class Kept:
    """The bytes of one range, in the undo file."""

    start: int
    """In the shard."""
    size: int
    at: int
    """In the undo file."""


@dataclass(frozen=True)
class Undo:
    """A whole undo file."""

    path: Path
    ranges: tuple[Kept, ...]
    """In the order of the shard's bytes."""

    @property
    def size(self) -> int:
        """Bytes that it puts back."""
        return sum(one.size for one in self.ranges)


def save(path: Path, shard: Path, file: File, changes: Sequence[Change], check: disk.Check) -> Undo:
    """Keep what the changes are going to replace; on the disk when this returns."""
    beside = disk.beside(path)
    disk.make(path.parent)
    disk.remove(beside)
    line = json.dumps(
        {
            "schema": SCHEMA,
            "shard": file.path,
            "size": file.size,
            "sha256": file.sha256,
            "ranges": [[one.start, one.size] for one in changes],
        }
    ).encode()
    with shard.open("rb") as source, beside.open("xb", buffering=0) as stream:
        at = 0
        for block in itertools.chain((line + b"\n",), _blocks(source.fileno(), changes)):
            check()
            disk.write_at(stream.fileno(), block, at)
            at += len(block)
        os.fsync(stream.fileno())
        disk.drop(stream.fileno(), 0, 0)
    disk.move(beside, path)
    undo = load(path, file)
    if undo is None:
        raise GraftError(f"{path} is not as it was written just now: the disk is failing")
    return undo


def _blocks(handle: int, changes: Sequence[Change]) -> Iterator[bytes]:
    for change in changes:
        for start in range(change.start, change.end, disk.WRITE_BYTES):
            yield disk.read_at(handle, min(disk.WRITE_BYTES, change.end - start), start)


def load(path: Path, file: File) -> Undo | None:
    """The undo file of a shard; None when there is none. GraftError for a damaged one."""
    if not disk.is_own(path):
        return None
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        line = stream.readline(_MOST_LINE)
    try:
        undo = _undo(path, json.loads(line), len(line), file)
    except (ValueError, TypeError, KeyError):
        undo = None
    if undo is None or len(line) + undo.size != size:
        raise GraftError(
            f"{path} is damaged or of another shard, so {file.path} cannot be put back from it: "
            "move it away, and bring the shard again with --tags download"
        )
    return undo


def _undo(path: Path, data: Any, at: int, file: File) -> Undo | None:
    if (data["schema"], data["shard"], data["size"], data["sha256"]) != (
        SCHEMA, file.path, file.size, file.sha256,
    ):  # fmt: skip
        return None
    ranges = []
    end = 0
    for start, size in data["ranges"]:
        if not (type(start) is int and type(size) is int and start >= end and size >= 0):
            return None
        ranges.append(Kept(start, size, at))
        at += size
        end = start + size
    return Undo(path, tuple(ranges)) if end <= file.size else None


def restore(undo: Undo, shard: Path, check: disk.Check) -> None:
    """Put the kept bytes back into a shard; on the disk when this returns."""
    target = disk.open_to_write(shard)
    with undo.path.open("rb") as source, os.fdopen(target, "r+b", buffering=0) as stream:
        for one in undo.ranges:
            for done in range(0, one.size, disk.WRITE_BYTES):
                check()
                count = min(disk.WRITE_BYTES, one.size - done)
                block = disk.read_at(source.fileno(), count, one.at + done)
                disk.write_at(stream.fileno(), block, one.start + done)
        os.fsync(stream.fileno())
