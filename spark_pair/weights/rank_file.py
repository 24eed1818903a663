"""Rank files: the weights of one rank as the engine's tool cuts them, told by their end.

The tensors' bytes back to back, then a JSON list of `[key, dtype, [shape], offset, bytes]`, then
where that list begins (64 bits, little-endian), then the mark `TFDSRK01`. So a file of 106 GB is
known to be whole by reading a few megabytes: half of one has no mark. The list says nothing about
the bytes themselves, and neither does the file's name, which is made from the list; stock and
grafted weights of equal shapes carry the same name. Only a hash of all of it tells them apart.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ..errors import SparkPairError

MAGIC = b"TFDSRK01"
_TAIL_BYTES = 8 + len(MAGIC)
_MAX_INDEX_BYTES = 256 * 2**20
"""Far more than any index needs: a damaged offset must not make us read the tensors."""

WIDTHS = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "float8_e4m3fn": 1,
}
"""Bytes of one number of each type that the engine knows."""

_WHOLE = re.compile(r"rank([01])of2-([0-9a-f]{20})\.bin")
_PARTIAL = re.compile(r"\.rank([01])of2\.partial")
_FOLDER = re.compile(r"([0-9a-f]{8})(?:-ablit-([0-9a-f]{8}))?")


class RankFileError(SparkPairError):
    """This is no whole rank file; the message says why."""


@dataclass(frozen=True)
class Footer:
    """What the end of a rank file says."""

    entries: int
    """Tensors."""
    index_sha256: str
    """Hash of the list; the file's name carries its first 20 digits."""
    data_bytes: int
    """Bytes of all tensors."""
    size: int
    """Bytes of the whole file."""

    def name_problem(self, name: str) -> str:
        """In words, that the file's name was made from another list; empty when it agrees.

        The engine's tool names its files so, which is known from reading it and not from files of
        a real pair: whoever judges may find this less grave than a file that is not whole.
        """
        found = _WHOLE.fullmatch(name)
        if found is None:
            return f"{name} is not named rank<0 or 1>of2-<20 hex digits>.bin"
        if found[2] != self.index_sha256[:20]:
            return (
                f"{name} should carry {self.index_sha256[:20]} in its name, as its list of tensors "
                "says; it was renamed or put together from two files"
            )
        return ""


def read_footer(path: Path) -> Footer:
    """Check a rank file by its end, without reading a tensor. RankFileError, OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _TAIL_BYTES:
            raise RankFileError(f"{path.name} has {size} bytes, too few for a rank file")
        file.seek(size - _TAIL_BYTES)
        start = int.from_bytes(file.read(8), "little")
        if file.read(8) != MAGIC:
            raise RankFileError(
                f"{path.name} does not end with {MAGIC.decode()}: it is no rank file, or the cut "
                "or the copy ended before its time"
            )
        length = size - _TAIL_BYTES - start
        if not 0 < length <= _MAX_INDEX_BYTES:
            raise RankFileError(
                f"{path.name} says that its list of tensors begins at byte {start} of {size}, "
                "which cannot be: it is damaged"
            )
        file.seek(start)
        index = file.read(length)
    entries = _entries(path.name, index)
    _check_order(path.name, entries, start)
    return Footer(len(entries), hashlib.sha256(index).hexdigest(), start, size)


def rank_of(name: str) -> int | None:
    """Which rank a file of that name is of; None when it is not named like a rank file."""
    found = _WHOLE.fullmatch(name)
    return int(found[1]) if found else None


def partial_rank_of(name: str) -> int | None:
    """Which rank's unfinished cut a file of that name is; None for any other name."""
    found = _PARTIAL.fullmatch(name)
    return int(found[1]) if found else None


def named_revisions(path: PurePath) -> tuple[str, str | None] | None:
    """What the folders above a rank file say that it was cut from, eight digits each.

    Checkpoint and overlay (None for stock weights); None when no folder is named so.
    """
    for folder in path.parents:
        if found := _FOLDER.fullmatch(folder.name):
            return found[1], found[2]
    return None


def _entries(name: str, index: bytes) -> list[Any]:
    try:
        entries = json.loads(index)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not entries:
        raise RankFileError(f"{name} has a list of tensors that cannot be read: it is damaged")
    return entries


def _check_order(name: str, entries: list[Any], end: int) -> None:
    """Each tensor begins where the one before it ended, and has the bytes of its shape."""
    at = 0
    for entry in entries:
        match entry:
            case [str(key), str(dtype), [*shape], int(offset), int(count)] if _is_shape(shape):
                pass
            case _:
                raise RankFileError(f"{name} lists {_short(entry)}, which describes no tensor")
        if dtype not in WIDTHS:
            raise RankFileError(f"{name} holds {key} as {dtype[:40]}, a type the engine has not")
        if offset != at:
            raise RankFileError(f"{name} has {key} at byte {offset} instead of {at}")
        if count != math.prod(shape) * WIDTHS[dtype]:
            raise RankFileError(
                f"{name} has {count} bytes of {key}, which its shape {shape} of {dtype} does not "
                "give"
            )
        at += count
    if at != end:
        raise RankFileError(f"{name} lists {at} bytes of tensors and holds {end}")


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= 16 and all(type(size) is int and 0 <= size < 2**40 for size in shape)


def _short(entry: Any) -> str:
    text = repr(entry)
    return text if len(text) <= 60 else f"{text[:60]}…"
