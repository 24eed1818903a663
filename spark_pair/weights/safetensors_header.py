"""Where the tensors of a safetensors file lie, told by its header alone.

A count of eight bytes (little-endian), that many bytes of JSON, padded with blanks, then the
tensors' bytes without holes. Reading it also tells whether the file is whole: it ends with its last
tensor. Nothing is said about the bytes themselves.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SparkPairError

_COUNT_BYTES = 8
_MOST_BYTES = 100_000_000
"""As much as the format allows."""
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16,
    "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Of one number. Of a type that is not among them the bytes cannot be counted, and are believed."""


class HeaderError(SparkPairError):
    """This is no whole safetensors file; the message says why."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte, from the beginning of the file."""
    size: int
    """Bytes."""

    @property
    def words(self) -> str:
        """Type and shape, for a message."""
        return f"{self.dtype} {list(self.shape)}"

    def fits(self, other: Tensor) -> bool:
        """Whether the one can lie in the other's place."""
        return (self.dtype, self.shape, self.size) == (other.dtype, other.shape, other.size)


@dataclass(frozen=True)
class Header:
    """What a file says about its tensors."""

    size: int
    """Bytes of the whole file."""
    tensors: Mapping[str, Tensor]


def read_header(path: Path) -> Header:
    """Check a file by its header, without reading a tensor. HeaderError, OSError."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(_COUNT_BYTES), "little")
        if not 2 <= length <= min(_MOST_BYTES, size - _COUNT_BYTES):
            raise HeaderError(f"{path.name} does not begin as a safetensors file does")
        text = stream.read(length)
    try:
        return _header(json.loads(text), _COUNT_BYTES + length, size)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        words = error if isinstance(error, _UnfitError) else "its header cannot be read"
        raise HeaderError(f"{path.name} is no whole safetensors file: {words}") from None


class _UnfitError(ValueError):
    """A part of a header that cannot be."""


def _header(data: dict[str, Any], begin: int, size: int) -> Header:
    data.pop("__metadata__", None)
    tensors = {str(key): _tensor(key, entry, begin) for key, entry in data.items()}
    at = begin
    for key, tensor in sorted(tensors.items(), key=lambda one: (one[1].start, one[1].size)):
        if tensor.start != at:
            raise _UnfitError(f"{key} begins at byte {tensor.start} instead of {at}")
        at += tensor.size
    if at != size:
        raise _UnfitError(f"it has {size} bytes instead of {at}")
    return Header(size, tensors)


def _tensor(key: str, entry: Mapping[str, Any], begin: int) -> Tensor:
    dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
    first, end = entry["data_offsets"]
    if not all(type(one) is int and one >= 0 for one in (*shape, first, end)) or end < first:
        raise _UnfitError(f"{key} has places or a shape that are none")
    bits = _BITS.get(dtype)
    if bits is not None and (end - first) * 8 != math.prod(shape) * bits:
        raise _UnfitError(f"{key} has {end - first} bytes, which {dtype} {list(shape)} does not")
    return Tensor(dtype, shape, begin + first, end - first)
