"""Runs as root on the head of the pair: stops the switch's process in phases, one after the other.

usage: hold_switch.py FOLDER PHASE…

For phase number N the file FOLDER/told-N says "held" once the process stands still in it, or "over"
when the phase had ended before that or will never come; the process goes on as soon as FOLDER/go-N
is there. So whatever strikes from outside strikes in that very phase, however busy the machine is.
Ends by itself after a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

JOURNAL = Path("/var/lib/spark-pair/journal.jsonl")
LOCK = Path("/run/spark-pair/switch.lock")
SECONDS = 900.0
LOOK_EVERY = 0.001
"""Seconds between two looks: the shortest phases take some milliseconds."""


class Journal:
    """The journal's events since the switch was asked for; there is none before that."""

    def __init__(self) -> None:
        self._size = -1
        self._events: list[dict[str, Any]] = []

    def events(self) -> list[dict[str, Any]]:
        """All whole lines; read again only when there are more."""
        try:
            size = JOURNAL.stat().st_size
        except FileNotFoundError:
            return []
        if size != self._size:
            self._size = size
            self._events = []
            for line in JOURNAL.read_bytes().split(b"\n"):
                with contextlib.suppress(ValueError):
                    self._events.append(json.loads(line))
        return self._events


def where(events: list[dict[str, Any]], phase: str) -> str:
    """Whether the switch is "before" a phase, "in" it, or it is "over"."""
    state = "before"
    for event in events:
        if event.get("phase") == phase:
            state = "in" if event["event"] == "phase" else "over"
        elif event["event"] in ("end", "stuck") and state == "before":
            state = "over"
    return state


def stop_process() -> int:
    """Stop the process that holds the switch's lock; returns when it stands still."""
    pid = int(json.loads(LOCK.read_text())["pid"])
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "Tt":
        time.sleep(LOOK_EVERY)
    return pid


def say(folder: Path, name: str, word: str) -> None:
    """Write a file that whoever waits for it never sees half of."""
    beside = folder / f".{name}"
    beside.write_text(word)
    beside.rename(folder / name)


def hold(journal: Journal, phase: str, number: int, folder: Path, until: float) -> None:
    """Stop the switch in a phase until it may go on."""
    while (found := where(journal.events(), phase)) == "before":
        if time.monotonic() > until:
            return
        time.sleep(LOOK_EVERY)
    if found == "over":
        say(folder, f"told-{number}", "over")
        return
    pid = stop_process()
    still = where(journal.events(), phase)
    say(folder, f"told-{number}", "held" if still == "in" else "over")
    while not (folder / f"go-{number}").exists() and time.monotonic() < until:
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):  # it may have been killed meanwhile
        os.kill(pid, signal.SIGCONT)


def main(arguments: list[str]) -> int:
    """Hold the switch in each phase that is named."""
    folder, phases = Path(arguments[0]), arguments[1:]
    try:
        # Whoever waits for milliseconds must not wait for the processor.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except OSError:
        os.nice(-20)
    until = time.monotonic() + SECONDS
    journal = Journal()
    say(folder, "watching", "")
    for number, phase in enumerate(phases):
        hold(journal, phase, number, folder, until)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
