"""The switch's journal: one JSON object a line, appended, flushed, readable after a power cut.

Before anything is stopped, room for the rest of the switch is set aside on disk (`reserve`), and
after the stop a write that fails is reported and ignored: bringing a server back never depends on
the disk.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_KEEP_SIZE = 1
RESERVE_BYTES = 1 << 20
TRIM_ABOVE = 1 << 20
TRIM_TO = 1 << 18


@dataclass
class Journal:
    """Appends events of one switch to the journal file."""

    path: Path
    clock: Callable[[], float] = time.time
    essential: bool = True
    """While True a failed write raises OSError; afterwards it is only reported."""
    failed_writes: int = field(default=0)

    def append(self, event: Event) -> None:
        """Write one event and flush it to disk."""
        line = json.dumps({"time": round(self.clock(), 3), **event}, sort_keys=True) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                _write_all(handle, _after_torn_line(handle) + line.encode())
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            self.failed_writes += 1
            if self.essential:
                raise
            print(f"journal: {error}; going on without it: {line.strip()}", file=sys.stderr)

    def reserve(self, size: int = RESERVE_BYTES) -> None:
        """Set disk blocks aside behind the end of the file; OSError when the disk is full."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
            end = os.fstat(handle).st_size
            if libc.fallocate(handle, _KEEP_SIZE, end, size) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(self.path))
        finally:
            os.close(handle)


def former(path: Path) -> Path:
    """Where the whole journal lies as it was before it was last cut down."""
    return path.with_name(f"{path.name}.1")


def trim(path: Path, *, above: int = TRIM_ABOVE, keep: int = TRIM_TO) -> None:
    """Cut a journal of more than `above` bytes down to the newest switches that fit into `keep`.

    The newest one is kept whatever its length. Only for who holds the lock, with no switch open.
    A disk that refuses leaves everything as it is: a long journal is no reason to fail.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        if path.stat().st_size <= above:
            return
        data = path.read_bytes()
        new.write_bytes(data[_cut(data, keep) :])
        new.chmod(0o644)
        Journal(new).reserve()
        with new.open("rb") as stream:
            os.fsync(stream.fileno())
        former(path).unlink(missing_ok=True)
        os.link(path, former(path))
        new.replace(path)
    except FileNotFoundError:
        return
    except OSError as error:
        print(f"journal: it could not be cut down: {error}", file=sys.stderr)
        new.unlink(missing_ok=True)


def _cut(data: bytes, keep: int) -> int:
    """Where the oldest switch begins that still fits; 0 when no switch begins anywhere."""
    offset = found = 0
    for line in data.splitlines(keepends=True):
        begins = (event := _parsed(line)) is not None and event["event"] == "begin"
        if begins and (not found or len(data) - found > keep):
            found = offset
        offset += len(line)
    return found


def _write_all(handle: int, data: bytes) -> None:
    """Write all of it: on a disk that fills up, a write may end early without an error."""
    while data:
        data = data[os.write(handle, data) :]


def _after_torn_line(handle: int) -> bytes:
    """A newline when a power cut left the last line unfinished, so that ours stays whole."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return b""
    return b"\n"


def read(path: Path, switch_id: str | None = None) -> list[Event]:
    """All readable events in order, or those of one switch; a torn or foreign line is passed over.

    Whoever follows a switch reads again and again, and only its own lines are worth parsing.
    """
    return list(_events(path, switch_id))


def _events(path: Path, switch_id: str | None) -> Iterator[Event]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    word = json.dumps(switch_id).encode() if switch_id is not None else b""
    for line in data.split(b"\n"):
        event = _parsed(line) if word in line else None
        if event is not None and switch_id in (None, event.get("id")):
            yield event


def _parsed(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


@dataclass(frozen=True)
class Record:
    """One switch as the journal tells it."""

    id: str
    events: tuple[Event, ...]

    @property
    def begin(self) -> Event:
        """The event that opened it."""
        return self.events[0]

    def last(self, kind: str) -> Event | None:
        """The newest event of a kind, or None."""
        return next((event for event in reversed(self.events) if event["event"] == kind), None)

    @property
    def ended(self) -> Event | None:
        """The event that closed it, or None while it is open."""
        return self.last("end")

    def phases(self) -> list[tuple[str, str, float]]:
        """(phase, outcome, seconds) of every finished phase, in order."""
        return [
            (event["phase"], event["outcome"], float(event["seconds"]))
            for event in self.events
            if event["event"] == "outcome"
        ]

    def cut_off(self) -> list[str]:
        """Phases that were entered and never ended, each once: the process died in them."""
        found: dict[str, None] = {}
        entered: str | None = None
        for event in self.events:
            if event["event"] == "phase":
                if entered is not None:
                    found[entered] = None
                entered = str(event["phase"])
            elif event["event"] == "outcome":
                entered = None
        if entered is not None:
            found[entered] = None
        return list(found)

    @property
    def last_outcome(self) -> tuple[str, str] | None:
        """(phase, outcome) when the phase that was entered last has also ended."""
        for event in reversed(self.events):
            if event["event"] == "outcome":
                return str(event["phase"]), str(event["outcome"])
            if event["event"] == "phase":
                return None
        return None

    @property
    def last_phase(self) -> str | None:
        """The phase that was entered last."""
        entered = self.last("phase")
        return str(entered["phase"]) if entered else None


def records(events: list[Event]) -> list[Record]:
    """Group events by switch, oldest first; events without a beginning are left out."""
    grouped: dict[str, list[Event]] = {}
    for event in events:
        key = event.get("id")
        if not isinstance(key, str):
            continue
        if event["event"] == "begin" or key in grouped:
            grouped.setdefault(key, []).append(event)
    return [Record(key, tuple(rows)) for key, rows in grouped.items()]


def open_record(path: Path) -> Record | None:
    """The newest switch when it has not ended, else None."""
    known = records(read(path))
    return known[-1] if known and known[-1].ended is None else None
