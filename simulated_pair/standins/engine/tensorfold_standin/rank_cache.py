"""Rank files: the weights of one rank, cut from a checkpoint.

Layout of a file: the tensors' bytes back to back, then a JSON list of
``[key, dtype, [shape], offset, bytes]``, then the offset of that JSON as a little-endian 64-bit
number, then ``TFDSRK01``. The file name carries the first 20 hex digits of the JSON's SHA-256.

The cut itself is a stand-in: tensors are halved along their first dimension where it is even and
repeated otherwise. The real split knows the model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"TFDSRK01"
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
SAFETENSORS_NAMES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn",
}
COPY_BYTES = 1 << 20


class RankCacheError(Exception):
    """A rank file cannot be read or made; the text begins with the engine's error name if any."""


@dataclass(frozen=True)
class Tensor:
    """A tensor inside a safetensors file. ``start`` and ``size`` are bytes."""

    key: str
    dtype: str
    shape: list[int]
    path: Path
    start: int
    size: int


def _read_index(path: Path) -> tuple[bytes, int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size < 16:
            raise RankCacheError(f"BadRankCache: {path.name} is too short")
        file.seek(size - 16)
        offset = int.from_bytes(file.read(8), "little")
        if file.read(8) != MAGIC or offset > size - 16:
            raise RankCacheError(f"BadRankCache: {path.name} has no {MAGIC.decode()} footer")
        file.seek(offset)
        return file.read(size - 16 - offset), offset


def check(path: Path) -> int:
    """Check a rank file without reading its tensors; the number of tensors.

    Raises :class:`RankCacheError` (BadRankCache).
    """
    index, offset = _read_index(path)
    try:
        entries: list[tuple[str, str, list[int], int, int]] = json.loads(index)
        end = 0
        for key, dtype, shape, start, size in entries:
            if start != end or size != math.prod(shape) * WIDTHS[dtype]:
                raise RankCacheError(f"BadRankCache: {path.name}: {key} is out of place")
            end = start + size
    except (ValueError, TypeError, KeyError) as error:
        raise RankCacheError(f"BadRankCache: {path.name}: its index cannot be read") from error
    if end != offset:
        raise RankCacheError(f"BadRankCache: {path.name} is not whole")
    if not path.stem.endswith("-" + hashlib.sha256(index).hexdigest()[:20]):
        raise RankCacheError(f"BadRankCache: {path.name} does not carry its index's digest")
    return len(entries)


def load(directory: Path, rank: int) -> int:
    """Load this rank's file; the number of tensors.

    Raises :class:`RankCacheError` (NoRankCache, SeveralRankCaches, BadRankCache).
    """
    found = sorted(directory.glob(f"rank{rank}of2-*.bin"))
    if not found:
        raise RankCacheError(f"NoRankCache: {directory} holds no file of rank {rank}")
    if len(found) > 1:
        raise RankCacheError(f"SeveralRankCaches: {directory} holds {len(found)} of rank {rank}")
    return check(found[0])


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    return header, 8 + length


def read_checkpoint(place: Path) -> list[Tensor]:
    """The tensors of a directory's shards, or of one file, by key.

    Raises :class:`RankCacheError`.
    """
    tensors: dict[str, Tensor] = {}
    shards = [place] if place.is_file() else sorted(place.glob("*.safetensors"))
    for path in shards:
        try:
            header, data = _header(path)
            for key, entry in header.items():
                if key == "__metadata__":
                    continue
                start, end = entry["data_offsets"]
                tensors[key] = Tensor(
                    key=key,
                    dtype=SAFETENSORS_NAMES[entry["dtype"]],
                    shape=list(entry["shape"]),
                    path=path,
                    start=data + start,
                    size=end - start,
                )
        except (ValueError, KeyError, TypeError) as error:
            raise RankCacheError(f"{path.name} is not a safetensors file: {error}") from error
    if not tensors:
        raise RankCacheError(f"{place} holds no safetensors shards")
    return [tensors[key] for key in sorted(tensors)]


def _part(tensor: Tensor, rank: int, world: int) -> Tensor:
    if not tensor.shape or tensor.shape[0] % world:
        return tensor
    size = tensor.size // world
    shape = [tensor.shape[0] // world, *tensor.shape[1:]]
    start = tensor.start + rank * size
    return Tensor(tensor.key, tensor.dtype, shape, tensor.path, start, size)


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size:
        block = source.read(min(size, COPY_BYTES))
        if not block:
            raise RankCacheError(f"{source.name} ends too early")
        target.write(block)
        size -= len(block)


def write(model_dir: Path, out_dir: Path, rank: int, world: int) -> dict[str, object]:
    """Cut one rank's file; the facts printed about it. Raises :class:`RankCacheError`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for old in sorted(out_dir.glob(f"rank{rank}of{world}-*.bin")):
        raise RankCacheError(
            f"{out_dir} already holds {old.name}: remove it or name an empty OUT_DIR"
        )
    parts = [_part(tensor, rank, world) for tensor in read_checkpoint(model_dir)]
    partial = out_dir / f".rank{rank}of{world}.partial"
    entries: list[list[object]] = []
    offset = 0
    total = sum(part.size for part in parts)
    with partial.open("wb") as target:
        for part in parts:
            with part.path.open("rb") as source:
                source.seek(part.start)
                _copy(source, target, part.size)
            entries.append([part.key, part.dtype, part.shape, offset, part.size])
            offset += part.size
            print(
                f"rank {rank} of {world}: {offset >> 20} of {total >> 20} MiB",
                file=sys.stderr,
                flush=True,
            )
        index = json.dumps(entries).encode()
        target.write(index + offset.to_bytes(8, "little") + MAGIC)
        target.flush()
        os.fsync(target.fileno())
    whole = out_dir / f"rank{rank}of{world}-{hashlib.sha256(index).hexdigest()[:20]}.bin"
    partial.rename(whole)
    return {
        "file": str(whole),
        "entries": len(entries),
        "data_bytes": offset,
        "index_bytes": len(index),
        "rank": rank,
        "world": world,
        "parity": False,
        "dspark": True,
    }


def main(arguments: list[str]) -> int:
    """``tf-dsv41-rank-cache MODEL_DIR OUT_DIR RANK WORLD``; 0 or 1."""
    parser = argparse.ArgumentParser(prog="tf-dsv41-rank-cache", allow_abbrev=False)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("rank", type=int, choices=[0, 1])
    parser.add_argument("world", type=int, choices=[2])
    parsed = parser.parse_args(arguments)
    try:
        facts = write(parsed.model_dir, parsed.out_dir, parsed.rank, parsed.world)
    except (RankCacheError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(facts), flush=True)
    return 0
