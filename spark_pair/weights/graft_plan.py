"""Which bytes of which shards an overlay replaces, from the headers alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import Exit, SparkPairError
from .safetensors_header import Header, Tensor

_TOLD = 3


class GraftError(SparkPairError):
    """There will be no graft, and nothing was touched for it; the message says why."""

    exit = Exit.REFUSED


@dataclass(frozen=True)
class Change:
    """One tensor of the overlay and where it goes. Bytes from the beginning of each file."""

    key: str
    start: int
    size: int
    source: int
    """Where it begins in the overlay's file."""

    @property
    def end(self) -> int:
        """The first byte of the shard behind it."""
        return self.start + self.size


@dataclass(frozen=True)
class GraftPlan:
    """What an overlay does to a checkpoint."""

    shards: Mapping[str, tuple[Change, ...]]
    """By the path of the shard, in the order of their bytes."""

    @property
    def tensors(self) -> int:
        """How many are replaced."""
        return sum(map(len, self.shards.values()))

    @property
    def size(self) -> int:
        """Bytes that are replaced."""
        return sum(change.size for changes in self.shards.values() for change in changes)


def check_count(overlay: Header, tensors: int) -> None:
    """Raise GraftError when the overlay has another number of tensors; 0 takes any."""
    if tensors and len(overlay.tensors) != tensors:
        raise GraftError(
            f"the overlay has {len(overlay.tensors)} tensors, not {tensors}: see that its commit "
            "is the one you mean, or set ablit_graft_tensors to the number that it has"
        )


def homes(stock: Mapping[str, Header], overlay: Header) -> dict[str, str]:
    """The shard of each tensor of the overlay. GraftError for one that is in none, or in two."""
    found: dict[str, str] = {}
    for path, header in stock.items():
        for key in overlay.tensors.keys() & header.tensors.keys():
            if key in found:
                raise GraftError(f"{key} is in {found[key]} and in {path}: which is meant?")
            found[key] = path
    if missing := sorted(overlay.tensors.keys() - found.keys()):
        raise GraftError(
            f"the checkpoint has no {_some(missing)}: this overlay was made for another checkpoint"
        )
    return found


def plan(stock: Mapping[str, Header], overlay: Header, tensors: int) -> GraftPlan:
    """How the overlay is put in place; `stock` are the headers of all shards, by path.

    Raises GraftError when that cannot be: another number of tensors than `tensors`, one that the
    checkpoint does not have, or one of another type or shape.
    """
    check_count(overlay, tensors)
    found = homes(stock, overlay)
    others = unlike(stock, overlay, found)
    if others:
        raise GraftError(
            f"{len(others)} of the overlay's {len(found)} tensors are of another type or shape "
            f"than the checkpoint's and cannot lie in their places: {_some(others, '; ')}. Set "
            "ablit_graft_method: recipe, which writes these shards anew with the recipe's own tools"
        )
    shards: dict[str, list[Change]] = {}
    for key, path in found.items():
        old, new = stock[path].tensors[key], overlay.tensors[key]
        shards.setdefault(path, []).append(Change(key, old.start, old.size, new.start))
    return GraftPlan(
        {
            path: tuple(sorted(changes, key=lambda one: one.start))
            for path, changes in sorted(shards.items())
        }
    )


def unlike(stock: Mapping[str, Header], overlay: Header, found: Mapping[str, str]) -> list[str]:
    """Tensors of the overlay of another type or shape than the checkpoint's, in words."""

    def words(key: str, old: Tensor, new: Tensor) -> str:
        return f"{key} is {new.words} instead of {old.words}"

    pairs = ((key, stock[found[key]].tensors[key], overlay.tensors[key]) for key in sorted(found))
    return [words(key, old, new) for key, old, new in pairs if not new.fits(old)]


def _some(words: Sequence[str], between: str = ", ") -> str:
    more = len(words) - _TOLD
    return between.join(words[:_TOLD]) + (f"{between}and {more} more" if more > 0 else "")
