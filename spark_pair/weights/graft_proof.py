"""Showing in one reading that a grafted shard is right, and that it can be put back.

Every byte of it is read once and goes into two hashes. Into the first as it is: that is what the
record will say. Into the second with the kept bytes in place of the overlay's: that must give the
Hub's own hash. If it does, every byte around the overlay's is unchanged and the undo file is right.
Meanwhile the overlay's bytes are compared with its file. Up to the first of them both hashes are
the same, and are one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import graft_disk as disk
from .graft_plan import Change
from .graft_undo import Undo


@dataclass(frozen=True)
class Proven:
    """What the reading has shown."""

    sha256: str
    """As the shard is now."""
    stock_sha256: str
    """As it would be with the kept bytes put back."""
    differing: tuple[str, ...]
    """Tensors that are not the overlay's."""


@dataclass(frozen=True)
class _Piece:
    start: int
    size: int
    change: Change | None
    kept_at: int = 0


def fits(undo: Undo, changes: Sequence[Change]) -> bool:
    """Whether an undo file keeps just what these changes replace."""
    mine = [(one.start, one.size) for one in undo.ranges]
    return mine == [(one.start, one.size) for one in changes]


def prove(
    shard: Path,
    changes: Sequence[Change],
    undo: Undo,
    sidecar: int,
    *,
    check: disk.Check,
    advance: disk.Advance,
) -> Proven:
    """Read a shard that carries the overlay; `sidecar` is the handle of the overlay's file.

    The undo file must fit the changes. OSError.
    """
    now = hashlib.sha256()
    before: hashlib._Hash | None = None
    differing: dict[str, None] = {}
    buffer = memoryview(bytearray(disk.BLOCK_BYTES))
    with shard.open("rb", buffering=0) as stream, undo.path.open("rb") as kept:
        handle = stream.fileno()
        disk.forget_cached(handle)
        disk.forget_cached(kept.fileno())
        size = stream.seek(0, 2)
        stream.seek(0)
        for piece in _pieces(changes, undo, size):
            check()
            block = buffer[: piece.size]
            _fill(stream.readinto, block)
            if piece.change is None:
                now.update(block)
                if before is not None:
                    before.update(block)
            else:
                # The hash of what came before is shared up to here.
                before = now.copy() if before is None else before
                now.update(block)
                before.update(disk.read_at(kept.fileno(), piece.size, piece.kept_at))
                at = piece.change.source + piece.start - piece.change.start
                if disk.read_at(sidecar, piece.size, at) != block:
                    differing[piece.change.key] = None
            disk.drop(handle, piece.start, piece.size)
            advance(piece.size)
    stock = (before or now).hexdigest()
    return Proven(now.hexdigest(), stock, tuple(differing))


def _pieces(changes: Sequence[Change], undo: Undo, size: int) -> Iterator[_Piece]:
    """The whole shard in pieces of at most a block, none of which is half the overlay's."""
    at = 0
    for change, kept in zip(changes, undo.ranges, strict=True):
        yield from _split(at, change.start, None)
        yield from _split(change.start, change.end, change, kept.at)
        at = change.end
    yield from _split(at, size, None)


def _split(start: int, end: int, change: Change | None, kept_at: int = 0) -> Iterator[_Piece]:
    for at in range(start, end, disk.BLOCK_BYTES):
        count = min(disk.BLOCK_BYTES, end - at)
        yield _Piece(at, count, change, kept_at + at - start)


def _fill(readinto: disk.ReadInto, block: memoryview) -> None:
    """All of a block; OSError when the file ends before."""
    while block:
        count = readinto(block)
        if not count:
            raise OSError("the shard ends before its time")
        block = block[count:]
