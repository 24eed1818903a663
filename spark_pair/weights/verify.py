"""Reading files again to prove them: sha256 of everything, at the speed of the disk.

Two threads read as fast as a good disk can deliver (hashing releases Python's lock); more than
four only make it seek. What is read is dropped from the page cache behind the reader: a whole
checkpoint would push out what the model server beside it works with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from .provenance import Artefact, Difference, Held, Stat, Trouble, stat_of

BLOCK_BYTES = 2**20
"""As much as stays in the processor's own cache between reading and hashing: measured, 8 MiB cost
5 % more of the processor and are no faster from a disk."""
_MIN_THREADS, _MAX_THREADS = 1, 4


class Reader(Protocol):
    """Where the files of an artefact are read: a disk, or a test's own."""

    def stat(self, path: str) -> Stat | None:
        """What the file system says about a file; None when it is not there."""

    def blocks(self, path: str) -> Iterator[bytes | memoryview]:
        """Its content, piece by piece; a piece is only good until the next. May raise OSError."""


class Disk:
    """The real thing: the files of one folder of this host, links followed."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def stat(self, path: str) -> Stat | None:
        return stat_of(self.folder / path)

    def blocks(self, path: str) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        with (self.folder / path).open("rb", buffering=0) as stream:
            handle = stream.fileno()
            # What the cache still holds proves nothing about the disk.
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            at = 0
            while count := stream.readinto(buffer):
                yield buffer[:count]
                os.posix_fadvise(handle, at, count, os.POSIX_FADV_DONTNEED)
                at += count


Advance = Callable[[int], None]
"""Told how many more bytes have been read; from several threads."""
Stop = Callable[[], bool]


Settled = Callable[[str, Held], None]
"""Told a file and what is to be recorded about it once it was read; from several threads."""


def _nothing(_: int) -> None:
    pass


def _nobody(_: str, __: Held) -> None:
    pass


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Verification:
    """What reading an artefact again has shown."""

    before: Artefact
    after: Artefact
    """The record with what is known now; `Provenance.update` merges it."""
    differences: tuple[Difference, ...]
    unread: tuple[str, ...]
    """Files that were not reached, since it was stopped."""
    read_bytes: int

    @property
    def ok(self) -> bool:
        """Everything was read and everything is as recorded."""
        return not self.differences and not self.unread


@dataclass(frozen=True)
class Measured:
    """Files that were read for the first time, as `adopt` does."""

    files: Mapping[str, Held]
    troubles: tuple[tuple[str, Trouble, str], ...]
    """Path, what was wrong, and the words for it."""


def verify(
    record: Artefact,
    reader: Reader,
    *,
    threads: int = 2,
    progress: Advance = _nothing,
    stop: Stop = _never,
    settled: Settled = _nobody,
    clock: Callable[[], float] = time.time,
) -> Verification:
    """Hash every file of the record again.

    A file of another size is not read: it is wrong already. One that is right gets its times and
    inode recorded anew, one that is wrong is marked, so that the everyday check knows it too.
    """
    check = _Check(reader, progress, stop, clock)
    sizes = {path: held.size for path, held in record.files.items()}

    def one(path: str) -> _Outcome | None:
        outcome = check(path, record.files[path])
        if outcome is not None:
            settled(path, outcome.held)
        return outcome

    outcomes = _each(sizes, one, threads)
    files = dict(record.files)
    differences = []
    unread = []
    for path, outcome in outcomes.items():
        if outcome is None:
            unread.append(path)
            continue
        files[path] = outcome.held
        if outcome.trouble is not None:
            differences.append(Difference(record.name, path, outcome.trouble, outcome.words))
    return Verification(
        before=record,
        after=replace(record, files=files),
        differences=tuple(sorted(differences)),
        unread=tuple(sorted(unread)),
        read_bytes=sum(outcome.read_bytes for outcome in outcomes.values() if outcome),
    )


def measure(
    paths: Collection[str],
    reader: Reader,
    *,
    how: str,
    threads: int = 2,
    progress: Advance = _nothing,
    stop: Stop = _never,
    settled: Settled = _nobody,
    clock: Callable[[], float] = time.time,
) -> Measured:
    """Hash files about which nothing is recorded; `how` says why their content is trusted.

    After a stop the files that were reached are returned.
    """
    check = _Check(reader, progress, stop, clock)
    sizes = {path: stat.size if (stat := reader.stat(path)) else 0 for path in paths}

    def one(path: str) -> _Outcome | None:
        blank = Held(size=sizes[path], mtime_ns=0, inode=0, verified_at=0.0, how=how)
        outcome = check(path, blank)
        if outcome is not None and outcome.trouble is None:
            settled(path, outcome.held)
        return outcome

    outcomes = _each(sizes, one, threads)
    found = {path: outcome for path, outcome in outcomes.items() if outcome is not None}
    return Measured(
        files={path: one.held for path, one in sorted(found.items()) if one.trouble is None},
        troubles=tuple(
            (path, one.trouble, one.words)
            for path, one in sorted(found.items())
            if one.trouble is not None
        ),
    )


@dataclass(frozen=True)
class _Outcome:
    held: Held
    trouble: Trouble | None = None
    words: str = ""
    read_bytes: int = 0


def _each(
    sizes: Mapping[str, int], work: Callable[[str], _Outcome | None], threads: int
) -> dict[str, _Outcome | None]:
    """The work for each path, the largest first so that no thread is left with one at the end."""
    if not _MIN_THREADS <= threads <= _MAX_THREADS:
        raise ValueError(f"{threads} threads: 1 to 4 read at the speed of a disk")
    ordered = sorted(sizes, key=lambda path: (-sizes[path], path))
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        return dict(zip(ordered, pool.map(work, ordered), strict=True))


@dataclass(frozen=True)
class _Check:
    """Reads one file and says what is to be recorded about it."""

    reader: Reader
    progress: Advance
    stop: Stop
    clock: Callable[[], float]

    def __call__(self, path: str, held: Held) -> _Outcome | None:
        """None when it was stopped before the end of the file."""
        if self.stop():
            return None
        try:
            before = self.reader.stat(path)
            if before is None:
                return _Outcome(held, Trouble.MISSING, "is not there")
            if before.size != held.size:
                words = f"has {before.size} bytes instead of {held.size}"
                return _Outcome(held, Trouble.SIZE, words)
            read = self._hash(path, held)
            after = self.reader.stat(path)
        except OSError as error:
            words = f"cannot be read: {error.strerror or error}"
            return _Outcome(held, Trouble.UNREADABLE, words)
        if read is None:
            return None
        count, digest = read
        if after != before or count != before.size:
            return _Outcome(held, Trouble.UNSTEADY, "was changed while it was read", count)
        return self._judge(held, before, digest)

    def _hash(self, path: str, held: Held) -> tuple[int, str] | None:
        digest = held.new_hash()
        count = 0
        for block in self.reader.blocks(path):
            digest.update(block)
            count += len(block)
            self.progress(len(block))
            if self.stop():
                return None
        return count, digest.hexdigest()

    def _judge(self, held: Held, stat: Stat, digest: str) -> _Outcome:
        if held.digest and digest != held.digest:
            words = (
                f"has the right size and the wrong content ({held.algorithm} {digest[:12]}… "
                f"instead of {held.digest[:12]}…)"
            )
            # The one trouble that the everyday check could not see by itself.
            marked = replace(held, mtime_ns=stat.mtime_ns, inode=stat.inode, failed_at=self.clock())
            return _Outcome(marked, Trouble.CONTENT, words, stat.size)
        proven = replace(
            held,
            sha256=held.sha256 if held.digest else digest,
            mtime_ns=stat.mtime_ns,
            inode=stat.inode,
            verified_at=self.clock(),
            failed_at=None,
        )
        return _Outcome(proven, read_bytes=stat.size)
