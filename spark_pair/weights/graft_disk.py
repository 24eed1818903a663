"""The few things that a graft does to a disk, each of them whole or not at all after a kill.

What is not: bytes that are being overwritten. For those there is the undo file, which is on the
disk before the first of them is touched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ..jobs.shapes import JobFailedError
from ..jobs.words import size as in_words
from .graft_state import flush
from .manifest import Hasher

BLOCK_BYTES = 1 << 20
"""As much as stays in the processor's own cache between reading and hashing."""
WRITE_BYTES = 8 << 20
UNFINISHED = ".unfinished"
"""How the name of what is being written beside its place ends; it begins with a point."""

Check = Callable[[], None]
"""Raises when the job is to end; called between blocks."""
Advance = Callable[[int], None]
ReadInto = Callable[[memoryview], int | None]


def is_own(path: Path) -> bool:
    """Whether a regular file lies there, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def make(folder: Path) -> None:
    """Make a folder with those above it."""
    folder.mkdir(parents=True, exist_ok=True)


def beside(path: Path) -> Path:
    """Where something is written before it gets its name."""
    return path.with_name(f".{path.name}{UNFINISHED}")


def move(path: Path, target: Path) -> None:
    """Rename a file; both folders are on the disk afterwards."""
    make(target.parent)
    path.rename(target)
    flush(target.parent)
    flush(path.parent)


def remove(path: Path) -> None:
    """Take a name away, if it is there."""
    path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Remove a folder with the empty ones in it; what is not empty stays."""
    for place, _, _ in os.walk(folder, topdown=False):
        try:
            Path(place).rmdir()
        except OSError:
            continue


def link(path: Path, text: str, first: Path) -> None:
    """Make a link, or put it in place of one; `first` is a name in a folder nobody looks at."""
    if path.is_symlink() and str(path.readlink()) == text:
        return
    make(path.parent)
    make(first.parent)
    remove(first)
    first.symlink_to(text)
    first.rename(path)


def write_at(handle: int, data: bytes | memoryview, offset: int) -> None:
    """Overwrite bytes of an open file."""
    view = memoryview(data)
    while view:
        count = os.pwrite(handle, view, offset)
        view, offset = view[count:], offset + count


def read_at(handle: int, count: int, offset: int) -> bytes:
    """Bytes of an open file; OSError when it is shorter."""
    parts = []
    while count:
        part = os.pread(handle, min(count, WRITE_BYTES), offset)
        if not part:
            raise OSError(errno.EIO, "ends before its time")
        parts.append(part)
        count, offset = count - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def copy(
    source: Path, target: Path, hasher: Hasher, *, check: Check, advance: Advance = lambda _: None
) -> None:
    """Write a file's bytes anew, hashed as they pass; on the disk afterwards, mode 0644."""
    make(target.parent)
    remove(target)
    with source.open("rb", buffering=0) as taken, target.open("xb", buffering=0) as given:
        at = 0
        while block := taken.read(WRITE_BYTES):
            check()
            hasher.update(block)
            write_at(given.fileno(), block, at)
            drop(taken.fileno(), at, len(block))
            at += len(block)
            advance(len(block))
        os.fchmod(given.fileno(), 0o644)
        os.fsync(given.fileno())
        drop(given.fileno(), 0, 0)


def hash_file(
    path: Path, hasher: Hasher, *, check: Check, advance: Advance = lambda _: None
) -> str:
    """The hash of a file's bytes as the disk has them."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as stream:
        handle = stream.fileno()
        forget_cached(handle)
        at = 0
        while count := stream.readinto(buffer):
            check()
            hasher.update(buffer[:count])
            drop(handle, at, count)
            at += count
            advance(count)
    return hasher.hexdigest()


def forget_cached(handle: int) -> None:
    """What the cache still holds proves nothing about the disk, and shall push nothing out."""
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def open_to_write(path: Path) -> int:
    """A handle to change a file in place; one that came out of the cache may be read-only still,
    since a kill can strike between its move and anything else."""
    mode = path.stat().st_mode
    if not mode & stat.S_IWUSR:
        path.chmod(0o644)
    return os.open(path, os.O_RDWR)


def drop(handle: int, at: int, count: int) -> None:
    """Let the cache forget what was just read."""
    os.posix_fadvise(handle, at, count, os.POSIX_FADV_DONTNEED)


def device(path: Path) -> int:
    """The file system of a path, or of the nearest folder above it that is there."""
    return _there(path).stat().st_dev


def check_room(folder: Path, count: int, floor: int) -> None:
    """Raise JobFailedError when `count` bytes more would leave less than `floor` free."""
    found = os.statvfs(_there(folder))
    free = found.f_bavail * found.f_frsize
    if free - count < floor:
        raise JobFailedError(
            f"{_there(folder)} has {in_words(free)} free, and {in_words(count)} are needed so that "
            f"{in_words(floor)} stay free: make room and run it again, it goes on from here",
            {"free": free, "needed": count},
        )


def _there(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.exists())
