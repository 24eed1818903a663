"""The two files a stand-in shares with the machine it runs on: the ledger and its faults.

``ledger.jsonl`` is where every server process notes when it began and when it ended, so that "two
servers held this machine at once" can be computed from intervals instead of being sampled.
``faults/<server>.json`` asks a server to misbehave. Both are optional: without the directory a
stand-in behaves well and notes nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_ROOT = "/srv/simulation"


def simulation_root() -> Path:
    """The directory shared with the controller (tests name another one in the environment)."""
    return Path(os.environ.get("STANDIN_SIMULATION_ROOT", DEFAULT_ROOT))


@dataclass(frozen=True)
class Fault:
    """One requested misbehaviour.

    ``seconds`` is a delay in seconds whose meaning the mode gives; ``rank`` says which rank of a
    two-rank server misbehaves; ``after_smoke`` keeps a server well-behaved until its first
    successful completion; ``busy`` is a number of requests to report as running.
    """

    mode: str = ""
    rank: int = 0
    seconds: float = 0.0
    after_smoke: bool = False
    busy: int = 0


NO_FAULT = Fault()


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return 0.0


def parse_fault(text: str) -> Fault:
    """Read a fault file. Raises ``ValueError`` when it is not a JSON object."""
    data: Any = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("a fault file must hold one JSON object")
    mode = data.get("mode")
    return Fault(
        mode=mode if isinstance(mode, str) else "",
        rank=int(_number(data.get("rank"))),
        seconds=_number(data.get("seconds")),
        after_smoke=data.get("after_smoke") is True,
        busy=int(_number(data.get("busy"))),
    )


class Faults:
    """The fault file of one server, read again only when it was replaced."""

    def __init__(self, server: str) -> None:
        self._path = simulation_root() / "faults" / f"{server}.json"
        self._stamp: tuple[int, int, int] | None = None
        self._fault = NO_FAULT

    def current(self) -> Fault:
        """The fault asked for now; :data:`NO_FAULT` when there is no readable file."""
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._fault = parse_fault(self._path.read_text(encoding="utf-8"))
                self._stamp = stamp
        except FileNotFoundError:
            self._fault, self._stamp = NO_FAULT, None
        except (OSError, ValueError) as error:
            # A fault that was asked for and cannot be read would let a test pass for nothing.
            print(f"[stand-in] {self._path} is ignored: {error}", file=sys.stderr, flush=True)
            self._fault, self._stamp = NO_FAULT, None
        return self._fault


class Ledger:
    """Notes the beginning and the end of one server process, each at most once."""

    def __init__(self, server: str, part: str) -> None:
        self._server = server
        self._part = part
        self._noted: set[str] = set()

    def note(self, event: str) -> None:
        """Append ``start`` or ``stop`` with ``CLOCK_MONOTONIC`` seconds; never fails the server."""
        if event in self._noted:
            return
        self._noted.add(event)
        append_to_ledger(
            {
                "server": self._server,
                "part": self._part,
                "event": event,
                "monotonic": time.clock_gettime(time.CLOCK_MONOTONIC),
                "pid": os.getpid(),
            }
        )


def append_to_ledger(entry: dict[str, object]) -> None:
    """Append one line in a single write, so that writers in several containers never mix lines."""
    path = simulation_root() / "ledger.jsonl"
    if not path.parent.is_dir():
        return
    line = (json.dumps(entry) + "\n").encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        print(f"[stand-in] cannot write {path}: {error}", file=sys.stderr, flush=True)
