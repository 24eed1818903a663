"""Makes the files of the stand-in's repositories: the same bytes for the same words, every time.

Shards are proper safetensors files with the names, types and ratios that the later steps rely on;
only their sizes are scaled. What cannot be shown here: what the numbers in them mean.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 1 << 20
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "I16": 2, "I32": 4, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: its bytes follow from ``seed`` and its name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    seed: str = ""

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * WIDTHS[self.dtype]


def noise(words: str, size: int) -> Iterator[bytes]:
    """``size`` bytes that follow from ``words`` alone and cannot be compressed."""
    source = random.Random(hashlib.sha256(words.encode()).digest())
    while size > 0:
        block = source.randbytes(min(size, BLOCK_BYTES))
        size -= len(block)
        yield block


def write_noise(path: Path, words: str, size: int) -> None:
    """Write a file that is nothing but noise."""
    with path.open("wb") as file:
        file.writelines(noise(words, size))


def write_safetensors(path: Path, tensors: Iterable[Tensor]) -> None:
    """Write a safetensors file: header padded with blanks to eight bytes, data without holes."""
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.size
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    with path.open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for tensor in ordered:
            file.writelines(noise(f"{tensor.seed} {tensor.name}", tensor.size))


def index(shards: Mapping[str, Iterable[Tensor]]) -> str:
    """The text of ``model.safetensors.index.json`` for shards by file name."""
    weights = {tensor.name: shard for shard, held in shards.items() for tensor in held}
    total = sum(tensor.size for held in shards.values() for tensor in held)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=1) + "\n"
