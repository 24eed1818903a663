"""Room on the file systems of a pair: what a row of steps takes, step by step. Pure.

A step may write and free on several file systems. While it runs, everything that it writes is
there and nothing that it frees is gone yet, since old bytes go only after the new ones are
verified. So the level within a step is at most what was there before plus what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from ..errors import SparkPairError
from .manifest import HOST_ROLES, HostRole

GB = 10**9
GIB = 1 << 30

Purpose = Literal["cache", "work", "ranks", "images", "scratch"]
PURPOSES: tuple[Purpose, ...] = ("cache", "work", "ranks", "images", "scratch")
"""What a place is for: the cache of the Hub's files; the folder where shards are rewritten and
what undoes it is kept; rank files; images of the container runtime; archives of images on their way
to the other machine."""

Places = Mapping[HostRole, Mapping[Purpose, str]]
"""Absolute path of every purpose on both machines; it need not exist yet."""


class BudgetError(SparkPairError):
    """It cannot be said which file system a place lies on, so nothing can be counted."""


@dataclass(frozen=True)
class FileSystem:
    """One mounted file system. `free` is what an ordinary account may still write, in bytes."""

    mount: str
    total: int
    free: int
    device: str = ""
    """Two mounts of one device share their room; empty when the device is not known."""

    @property
    def key(self) -> str:
        """What tells two rooms apart."""
        return self.device or self.mount


@dataclass(frozen=True, order=True)
class Spot:
    """A file system of a machine, by the mount that stands for it."""

    host: HostRole
    mount: str


@dataclass(frozen=True)
class Effect:
    """What a step does to one file system, in bytes: `grows` while it runs, `frees` at its end."""

    spot: Spot
    grows: int = 0
    frees: int = 0


Effects = tuple[Effect, ...]


@dataclass(frozen=True)
class Peak:
    """What a whole row of steps does to one file system. Bytes throughout."""

    spot: Spot
    total: int
    free: int
    """Before the first step."""
    credited: int
    """What is there already of the files, images and rank files that the plan is about."""
    most: int
    """More than now, at worst."""
    at: str
    """The step in which that is so; empty when nothing is written here."""
    after: int
    """More than now, in the end; negative when more is freed than written."""
    missing: int
    """How much would have to be free besides, so that the floor is kept; 0 when it fits."""
    missing_at: str
    """The first step that does not fit."""

    @property
    def footprint(self) -> int:
        """All bytes of the plan's files on this file system at worst."""
        return self.credited + self.most

    @property
    def lowest_free(self) -> int:
        """What is free at worst; negative when it does not fit at all."""
        return self.free - self.most


class Disks:
    """The file systems of both machines and where the plan's places lie on them."""

    def __init__(
        self, file_systems: Mapping[HostRole, Iterable[FileSystem]], places: Places
    ) -> None:
        self._rooms: dict[Spot, FileSystem] = {}
        self._spots: dict[tuple[HostRole, Purpose], Spot] = {}
        for host in HOST_ROLES:
            known = sorted(file_systems.get(host, ()), key=lambda one: one.mount)
            for purpose in PURPOSES:
                room = _room(host, places[host][purpose], known)
                spot = Spot(host, room.mount)
                self._rooms[spot] = room
                self._spots[host, purpose] = spot

    @property
    def spots(self) -> tuple[Spot, ...]:
        """Every file system that holds a place of the plan."""
        return tuple(sorted(self._rooms))

    def spot(self, host: HostRole, purpose: Purpose) -> Spot:
        """Where a place lies."""
        return self._spots[host, purpose]

    def room(self, spot: Spot) -> FileSystem:
        """The file system as it is now."""
        return self._rooms[spot]

    def effects(
        self,
        *,
        grows: Iterable[tuple[HostRole, Purpose, int]] = (),
        frees: Iterable[tuple[HostRole, Purpose, int]] = (),
    ) -> Effects:
        """Effects by file system of bytes given by place."""
        more: dict[Spot, int] = {}
        less: dict[Spot, int] = {}
        for sums, given in ((more, grows), (less, frees)):
            for host, purpose, count in given:
                spot = self.spot(host, purpose)
                sums[spot] = sums.get(spot, 0) + count
        touched = sorted({spot for sums in (more, less) for spot, count in sums.items() if count})
        return tuple(Effect(spot, more.get(spot, 0), less.get(spot, 0)) for spot in touched)


def _room(host: HostRole, path: str, known: Sequence[FileSystem]) -> FileSystem:
    """The file system that a path lies on; of several mounts of one device always the same."""
    where = PurePosixPath(path)
    if not where.is_absolute():
        raise BudgetError(f"{path!r} on the {host} is not an absolute path.")
    holders = [one for one in known if where.is_relative_to(one.mount)]
    if not holders:
        raise BudgetError(
            f"The file system of {path} on the {host} is not known, so it cannot be said whether "
            "the weights fit: look at 'df' there."
        )
    nearest = max(holders, key=lambda one: len(PurePosixPath(one.mount).parts))
    return next(one for one in known if one.key == nearest.key)


def simulate(
    disks: Disks,
    steps: Iterable[tuple[str, Effects]],
    *,
    credited: Mapping[Spot, int],
    floor: int,
) -> tuple[Peak, ...]:
    """Let the steps (name, effects) happen in order and say what every file system goes through.

    Only a step that writes can lack room: one that frees is welcome on a disk that is too full.
    """
    rows = list(steps)
    return tuple(_follow(disks.room(spot), spot, rows, credited, floor) for spot in disks.spots)


def _follow(
    room: FileSystem,
    spot: Spot,
    steps: Iterable[tuple[str, Effects]],
    credited: Mapping[Spot, int],
    floor: int,
) -> Peak:
    level = most = missing = 0
    at = missing_at = ""
    for name, effects in steps:
        for effect in effects:
            if effect.spot != spot:
                continue
            top = level + effect.grows
            if top > most:
                most, at = top, name
            lacks = top + floor - room.free
            if effect.grows and lacks > 0:
                missing, missing_at = max(missing, lacks), missing_at or name
            level = top - effect.frees
    return Peak(
        spot, room.total, room.free, credited.get(spot, 0), most, at, level, missing, missing_at
    )


def words(count: int) -> str:
    """Bytes in both ways of counting: disks and the Hub say GB, many tools say GiB."""
    if abs(count) < GB:
        return f"{count / 10**6:.1f} MB ({count / 2**20:.1f} MiB)"
    return f"{count / GB:.1f} GB ({count / GIB:.1f} GiB)"
