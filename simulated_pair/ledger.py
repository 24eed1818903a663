"""When did which model server run on a machine? Computed from the ledger the stand-ins write.

Every stand-in server appends one JSON line when it starts and one when it stops; the memory daemon
appends `gone` for a process that was killed. From these lines the intervals are computed, so that
"two servers at once" is found even if it lasted for a moment that no sampling would have seen. All
times are CLOCK_MONOTONIC seconds of the outer machine's kernel, which both machines share and which
goes on over a machine's power cut.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

ENDS = ("stop", "gone")


class LedgerError(ValueError):
    """A ledger line that is not an event; the message names the line."""


@dataclass(frozen=True)
class Event:
    """One ledger line."""

    server: str
    part: str
    event: str
    monotonic: float
    pid: int

    def line(self) -> str:
        """The event as one ledger line, newline included."""
        return json.dumps(self.__dict__) + "\n"


@dataclass(frozen=True)
class Interval:
    """One life of one part of a server; `end` is None while it runs."""

    server: str
    part: str
    pid: int
    start: float
    end: float | None


@dataclass(frozen=True)
class Overlap:
    """Two different servers on one machine at the same time, for `seconds` (None: still so)."""

    first: Interval
    second: Interval
    start: float
    seconds: float | None


def parse(text: str) -> list[Event]:
    """Return a ledger's events in file order; LedgerError names the first line that is not one.

    A last line without its newline is still being written and is left out.
    """
    events = []
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            event = Event(
                server=str(data["server"]),
                part=str(data["part"]),
                event=str(data["event"]),
                monotonic=float(data["monotonic"]),
                pid=int(data["pid"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"line {number} of the ledger is not an event: {line!r} ({error})"
            ) from error
        if event.event != "start" and event.event not in ENDS:
            raise LedgerError(f"line {number} of the ledger has the unknown event {event.event!r}")
        events.append(event)
    return events


def intervals(events: Iterable[Event]) -> list[Interval]:
    """Pair every start with its end, in the order of the starts.

    A process inside a rank's container knows itself under another process id than the machine
    does, which reports its violent end: such an end closes the oldest open life of the same part.
    An end with nothing to close is ignored (the ledger was shortened in between). A part that
    starts again under the same process id must have ended before; it is taken to have lasted until
    then, so that a missing end can make an overlap visible but never hide one.
    """
    found: list[Interval] = []
    running: dict[tuple[str, str], dict[int, int]] = {}
    for event in sorted(events, key=lambda event: event.monotonic):
        alive = running.setdefault((event.server, event.part), {})
        ended = alive.pop(event.pid, None)
        if ended is None and event.event != "start" and alive:
            ended = alive.pop(next(iter(alive)))
        if ended is not None:
            found[ended] = replace(found[ended], end=event.monotonic)
        if event.event == "start":
            alive[event.pid] = len(found)
            found.append(Interval(event.server, event.part, event.pid, event.monotonic, None))
    return found


def overlaps(events: Iterable[Event]) -> list[Overlap]:
    """Return every two intervals of different servers that share a moment, earliest first."""
    lives = sorted(intervals(events), key=lambda life: life.start)
    found = []
    for index, first in enumerate(lives):
        for second in lives[index + 1 :]:
            if first.server == second.server:
                continue
            if first.end is not None and second.start >= first.end:
                continue
            ends = [end for end in (first.end, second.end) if end is not None]
            found.append(
                Overlap(first, second, second.start, min(ends) - second.start if ends else None)
            )
    return found


def still_running(events: Iterable[Event]) -> list[Event]:
    """Return the starts of everything that has not ended: what a shortened ledger keeps."""
    return [
        Event(life.server, life.part, "start", life.start, life.pid)
        for life in intervals(events)
        if life.end is None
    ]


def ends_for(events: Iterable[Event], monotonic: float) -> list[Event]:
    """Return a `gone` at `monotonic` for all that runs: a power cut ends it unrecorded."""
    return [
        Event(event.server, event.part, "gone", monotonic, event.pid)
        for event in still_running(events)
    ]
