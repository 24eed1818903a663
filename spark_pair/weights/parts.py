"""A file that is not whole yet: its bytes so far, and how far they can be believed.

Beside `<hash>.part` lies `<hash>.json` with the boot it was written in and marks: offsets up to
which the bytes are on the disk, each with the hash of everything before it. A killed process loses
nothing, since the kernel still has what it wrote. After a crash of the machine only what a mark
covers is believed, and a bad byte found at a mark costs the bytes since the one before, not all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import jsonfile
from ..errors import SparkPairError
from .manifest import File, Hasher
from .provenance import Stat, stat_from

FLUSH_BYTES = 32 << 20
"""After so many bytes they are brought to the disk and leave the page cache."""
MARK_BYTES = 256 << 20
READ_BYTES = 4 << 20
FOLLOW_BYTES = 1 << 20

_SCHEMA = 1
_OPENINGS = 5
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Mark = tuple[int, str]


class PartBusyError(SparkPairError):
    """Another process writes this file at this moment."""


class Part:
    """An unfinished file, locked against other processes while it is open."""

    def __init__(self, folder: Path, file: File, boot: str | None = None) -> None:
        self.file = file
        self.path = folder / f"{file.etag}.part"
        self.offset = 0
        """Bytes that are there and hashed."""
        self._state = folder / f"{file.etag}.json"
        self._boot = boot_id() if boot is None else boot
        self._handle = self._open()
        self._sweep()
        self._hasher: Hasher = file.hasher()
        self._marks: list[Mark] = []
        self._flushed = 0
        self._flusher = ThreadPoolExecutor(1, "flush")
        self._flushing: Future[None] | None = None
        # Reading into the same room again and again stays in the processor's cache.
        self._room = memoryview(bytearray(FOLLOW_BYTES))

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def recheck(self, go_on: Callable[[int], None] = lambda offset: None) -> None:
        """Hash what an earlier run left and drop what cannot be believed.

        `go_on` gets the offset from time to time and may raise to stop.
        """
        marks, believed = self._believed()
        sure, hasher, covered = 0, self._hasher.copy(), 0
        for count, (end, digest) in enumerate([*marks, (believed, "")], start=1):
            if not self._read_up_to(end, go_on):
                break
            if digest and self._hasher.hexdigest() != digest:
                self.offset, self._hasher = sure, hasher
                break
            sure, hasher, covered = end, self._hasher.copy(), count
        self._marks = marks[:covered]
        self._cut()
        self._flushed = self.offset
        self._write_state()

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes; those beyond the file's size are dropped. Raises OSError, and nothing added.

        What was added before stays, also when the disk is full.
        """
        view = memoryview(data)[: self.file.size - self.offset]
        written = 0
        try:
            while written < len(view):
                written += os.pwrite(self._handle, view[written:], self.offset + written)
        except OSError:
            self._cut()
            raise
        self._hasher.update(view)
        self.offset += len(view)
        if self.offset - self._flushed >= FLUSH_BYTES:
            self._start_flush()

    def follow(self) -> int:
        """Hash what another process has added to the end of the file; how many bytes it was.

        At most FLUSH_BYTES at a time, and none beyond the file's size; 0 when nothing is new.
        """
        before = self.offset
        end = min(self.length(), self.file.size, before + FLUSH_BYTES)
        while self.offset < end:
            count = os.preadv(self._handle, [self._room[: end - self.offset]], self.offset)
            if not count:
                break
            self._hasher.update(self._room[:count])
            self.offset += count
        if self.offset - self._flushed >= FLUSH_BYTES:
            self._start_flush()
        return self.offset - before

    def length(self) -> int:
        """Bytes that the file has, whoever wrote them."""
        return os.fstat(self._handle).st_size

    @property
    def complete(self) -> bool:
        """Whether all bytes are there, right or not."""
        return self.offset == self.file.size

    def right(self) -> bool:
        """Whether all bytes are there and their hash is the Hub's."""
        return self.complete and self._hasher.hexdigest() == self.file.etag

    def settle(self) -> Stat:
        """Bring all of it to the disk and out of the page cache; the file as it is then.

        Putting it in its place changes none of that, so whatever differs later was written later.
        """
        self._wait_for_flush()
        os.fdatasync(self._handle)
        _drop(self._handle, 0, self.offset)
        return stat_from(os.fstat(self._handle))

    def restart(self) -> None:
        """Forget all bytes."""
        self._wait_for_flush()
        self.offset = self._flushed = 0
        self._hasher = self.file.hasher()
        self._marks = []
        self._cut()
        self._write_state()

    def discard(self) -> None:
        """Remove the file and what is known about it."""
        self._wait_for_flush()
        self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Remove what is known about the file, which has been put in its place."""
        self._wait_for_flush()
        self._state.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the file free for other processes; what is there stays."""
        try:
            self._wait_for_flush()
        finally:
            self._flusher.shutdown()
            os.close(self._handle)

    def _open(self) -> int:
        """Open and lock the file. Raises PartBusyError."""
        for _ in range(_OPENINGS):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another process may have put it in its place between the two lines above.
                if os.path.samestat(os.fstat(handle), self.path.stat()):
                    return handle
            except BlockingIOError:
                os.close(handle)
                break
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        raise PartBusyError(
            f"{self.file.path} is being fetched by another process, which holds {self.path}; "
            "wait for it or stop it."
        )

    def _sweep(self) -> None:
        """Remove what a killed process left beside, now that nobody else writes this file."""
        folder, etag = self.path.parent, self.file.etag
        for left in (*folder.glob(f".{etag}.json.*"), *folder.glob(f"{etag}.*.link")):
            left.unlink(missing_ok=True)

    def _believed(self) -> tuple[list[Mark], int]:
        """Marks that apply, and up to where bytes may be read again."""
        length = os.fstat(self._handle).st_size
        state = jsonfile.read(self._state)
        if not isinstance(state, dict) or state.get("schema") != _SCHEMA:
            return [], 0
        if length > self.file.size or state.get("size") != self.file.size:
            return [], 0
        marks = [(end, digest) for end, digest in _marks(state) if end <= length]
        if self._boot and state.get("boot") == self._boot:
            return marks, length
        return marks, marks[-1][0] if marks else 0

    def _read_up_to(self, end: int, go_on: Callable[[int], None]) -> bool:
        while self.offset < end:
            data = os.pread(self._handle, min(READ_BYTES, end - self.offset), self.offset)
            if not data:
                return False
            self._hasher.update(data)
            _drop(self._handle, self.offset, len(data))
            self.offset += len(data)
            go_on(self.offset)
        return True

    def _start_flush(self) -> None:
        """Flush in the background; one at a time, so that a slow disk slows the download."""
        self._wait_for_flush()
        mark: Mark | None = None
        if self.offset - (self._marks[-1][0] if self._marks else 0) >= MARK_BYTES:
            mark = (self.offset, self._hasher.hexdigest())
        start, self._flushed = self._flushed, self.offset
        self._flushing = self._flusher.submit(self._flush, start, self.offset, mark)

    def _flush(self, start: int, end: int, mark: Mark | None) -> None:
        os.fdatasync(self._handle)
        _drop(self._handle, start, end - start)
        if mark:
            self._marks.append(mark)
            self._write_state()

    def _wait_for_flush(self) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing:
            flushing.result()

    def _write_state(self) -> None:
        state: dict[str, Any] = {
            "schema": _SCHEMA,
            "path": self.file.path,
            "size": self.file.size,
            "boot": self._boot,
            "marks": self._marks,
        }
        jsonfile.write(self._state, state)

    def _cut(self) -> None:
        """Let the file end where its hashed bytes end."""
        self._flushed = min(self._flushed, self.offset)
        os.ftruncate(self._handle, self.offset)


def sweep(folder: Path, file: File) -> None:
    """Remove what is left of a part whose file is in place; not while another process writes it."""
    if any(folder.glob(f"{file.etag}.*")) or any(folder.glob(f".{file.etag}.*")):
        with contextlib.suppress(PartBusyError), Part(folder, file) as part:
            part.discard()


def boot_id() -> str:
    """The kernel's word for this boot; "" where there is none, so that nothing is believed."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _marks(state: dict[str, Any]) -> list[Mark]:
    """The marks of a state file, up to the first that makes no sense."""
    found: list[Mark] = []
    for mark in state.get("marks", []):
        if not (isinstance(mark, list) and len(mark) == 2 and type(mark[0]) is int):
            break
        if mark[0] <= (found[-1][0] if found else 0):
            break
        found.append((mark[0], str(mark[1])))
    return found


def _drop(handle: int, start: int, length: int) -> None:
    """Let the page cache forget a range, which a server on this machine has better use for."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(handle, start, length, os.POSIX_FADV_DONTNEED)
