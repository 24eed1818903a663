"""Writing shards anew: other tensors in them, or the same ones with another type."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from tensorfold_standin.rank_cache import SAFETENSORS_NAMES, RankCacheError, Tensor, read_checkpoint

NAMES = {ours: theirs for theirs, ours in SAFETENSORS_NAMES.items()}
_LARGEST_F16 = 65504.0


def read_shard(path: Path) -> list[Tensor]:
    """The tensors of one shard in the order of their bytes."""
    return sorted(read_checkpoint(path), key=lambda tensor: (tensor.start, tensor.size))


def content(tensor: Tensor) -> bytes:
    """A tensor's bytes."""
    with tensor.path.open("rb") as file:
        file.seek(tensor.start)
        return file.read(tensor.size)


def write_shard(path: Path, tensors: list[tuple[Tensor, bytes]]) -> None:
    """Write tensors with these bytes into a new file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor, data in tensors:
        start, end = end, end + len(data)
        header[tensor.key] = {
            "dtype": NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    with path.open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        file.writelines(data for _, data in tensors)


def as_half(data: bytes) -> bytes:
    """float32 as float16; what is too large, or no number, becomes the largest and 0."""
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    halves = [
        0.0 if one != one else max(-_LARGEST_F16, min(_LARGEST_F16, one))  # noqa: PLR0124 - NaN
        for one in numbers
    ]
    return struct.pack(f"<{len(halves)}e", *halves)


def give_stock_types(source: Path, target: Path) -> int:
    """Give every tensor below ``target`` the type that it has in ``source``; shards rewritten.

    Raises :class:`RankCacheError` for a type that only the real tool converts.
    """
    stock = {tensor.key: tensor for tensor in read_checkpoint(source)}
    changed = 0
    for path in sorted(target.glob("*.safetensors")):
        tensors = read_shard(path)
        if all(tensor.dtype == stock[tensor.key].dtype for tensor in tensors):
            continue
        made = []
        for tensor in tensors:
            old, data = stock[tensor.key], content(tensor)
            if old.dtype != tensor.dtype:
                if (tensor.dtype, old.dtype) != ("float32", "float16"):
                    raise RankCacheError(f"{tensor.key}: {tensor.dtype} is not {old.dtype}")
                data = as_half(data)
            made.append((old, data))
        partial = path.with_name(f"{path.name}.tmp")
        write_shard(partial, made)
        partial.replace(path)
        changed += 1
    return changed
