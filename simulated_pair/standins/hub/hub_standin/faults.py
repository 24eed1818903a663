"""The faults a stand-in Hub was asked for, and what each request finds of them.

A fault is one JSON object: ``{"what": …, "on": …, "files": pattern, "times": N, …}``. It strikes
requests of kind ``on`` (any when left out) whose repository and file match, ``times`` times (always
when left out).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# What a fault does to a body of content.
BODY = frozenset(
    {"drop", "reset", "hang", "corrupt", "truncate", "slow", "ignore_range", "login_page"}
)
# Those of them that happen at one byte, on the way.
POINTS = frozenset({"drop", "reset", "hang", "corrupt"})
# What it does to the answer as a whole.
ANSWER = frozenset({"status", "missing", "size"})
# Requests by kind: the API's listings and answers, a file's head, its bytes, Xet's bytes.
# "store" is any request to the store's port, whatever its kind.
KINDS = frozenset(
    {"revision", "refs", "commits", "tree", "token", "head", "content", "cas", "xorb", "store"}
)


class FaultError(ValueError):
    """A fault that nobody knows how to commit."""


@dataclass
class Fault:
    """One fault. Offsets ``at`` are bytes of the whole file, ``seconds`` and rates as named."""

    what: str
    on: str = ""
    repository: str = "*"
    files: str = "*"
    times: int | None = None
    at: int = 0
    status: int = 503
    code: str = ""
    message: str = ""
    retry_after: int | None = None
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    size: int = 0

    def __post_init__(self) -> None:
        if self.what not in BODY | ANSWER:
            raise FaultError(f"no fault {self.what!r}: one of {', '.join(sorted(BODY | ANSWER))}")
        if self.on and self.on not in KINDS:
            raise FaultError(f"no kind {self.on!r}: one of {', '.join(sorted(KINDS))}")
        if self.what == "slow" and self.bytes_per_second <= 0:
            raise FaultError("slow needs bytes_per_second")

    def meets(self, kinds: frozenset[str], repository: str, path: str) -> bool:
        """Whether a request is one of those it strikes."""
        return (
            (not self.on or self.on in kinds)
            and fnmatchcase(repository, self.repository)
            and fnmatchcase(path, self.files)
        )


@dataclass
class Pace:
    """At most so many bytes a second over all who share it."""

    bytes_per_second: float
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: float = 0.0

    def wait(self, size: int) -> None:
        """Return when ``size`` bytes may go out."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            end = self._next = begin + size / self.bytes_per_second
        time.sleep(end - now)


class Faults:
    """The faults in force; given by a test, or read from a file whenever that was replaced."""

    def __init__(self, file: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._paces: dict[int, Pace] = {}
        self._file = file
        self._stamp: tuple[int, int, int] | None = None

    def set(self, faults: Sequence[dict[str, Any]]) -> None:
        """Replace all faults. Raises :class:`FaultError` and changes nothing for a bad one."""
        try:
            made = [Fault(**fault) for fault in faults]
        except TypeError as error:
            raise FaultError(f"not a fault: {error}") from error
        with self._lock:
            self._faults = made
            self._paces = {
                id(fault): Pace(fault.bytes_per_second) for fault in made if fault.what == "slow"
            }

    def strike(
        self, kinds: frozenset[str], repository: str, path: str, whats: frozenset[str]
    ) -> list[Fault]:
        """The faults of these sorts that meet a request; :meth:`use` counts those committed."""
        self._read()
        with self._lock:
            return [
                fault
                for fault in self._faults
                if fault.what in whats and fault.times != 0 and fault.meets(kinds, repository, path)
            ]

    def use(self, fault: Fault) -> bool:
        """Count one use; ``False`` when others have used it up meanwhile."""
        with self._lock:
            if fault.times is None:
                return True
            if fault.times <= 0:
                return False
            fault.times -= 1
            return True

    def pace(self, fault: Fault) -> Pace:
        """The pace that all requests of a slow fault share."""
        with self._lock:
            return self._paces.get(id(fault)) or Pace(fault.bytes_per_second)

    def _read(self) -> None:
        if self._file is None:
            return
        try:
            status = self._file.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            text = "" if stamp == self._stamp else self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            if self._stamp is not None:
                self._stamp = None
                self.set([])
            return
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.set(json.loads(text)["faults"])
        except (ValueError, KeyError, TypeError) as error:
            print(f"[hub] {self._file} is not a list of faults: {error}", flush=True)
