"""Telling a switch's story from its journal: live lines, the history, the last result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .journal import Event, Record, former, read, records

STUCK = "stuck"

_UNTOUCHED = ("observe", "refuse", "drain", "arm")
_NEVER_MIND = "its process ended before anything was touched; ask for it again"

_OUTCOMES = {0: "done", 10: "refused", 11: "gave up", 20: "went back", 30: "nobody"}


def line_of(event: Event) -> str | None:
    """One line for people, or None for events that only machines need."""
    clock = time.strftime("%H:%M:%S", time.localtime(float(event["time"])))
    kind = event["event"]
    if kind == "begin":
        return f"{clock} switch to {event['target']} asked for by {event['asked_by']}"
    if kind == "note":
        return f"{clock}   {event['text']}"
    if kind == "outcome":
        phase = str(event["phase"]).replace("_", " ")
        return f"{clock} {phase}: {event['outcome']} ({float(event['seconds']):.1f} s)"
    if kind in ("end", STUCK):
        return f"{clock} {event['message']}"
    return None


def progress(path: Path, switch_id: str, after: int, *, running: bool) -> dict[str, Any]:
    """What happened since event number `after`: lines, whether it is over, and how it ended.

    `running` tells whether a process holds the switch's lock: without one, and without an end in
    the journal, the switch is "lost" (its process died and was not started again), or refused when
    nothing had been touched.
    """
    events = read(path, switch_id)
    # An end before `after` is an old one: a switch that got stuck goes on when it is resumed.
    last = next((e for e in reversed(events[after:]) if e["event"] in ("end", STUCK)), None)
    if last is not None and events[-1] is not last and last["event"] == STUCK and running:
        last = None
    if last is None and events and not running and not _touched(events):
        last = {"exit": 10, "changed": False, "message": _NEVER_MIND}
    state = "done" if last else ("running" if running else "lost")
    return {
        "id": switch_id,
        "state": state,
        "exit": last["exit"] if last else None,
        "changed": last["changed"] if last else None,
        "message": last["message"] if last else "",
        "next": len(events),
        "lines": [line for event in events[after:] if (line := line_of(event)) is not None],
    }


def _touched(events: Sequence[Event]) -> bool:
    """Whether the pair may have been changed: that is written down before it is done."""
    return any(
        event["event"] == "armed"
        or (event["event"] == "phase" and event["phase"] not in _UNTOUCHED)
        for event in events
    )


def summary(record: Record) -> dict[str, Any]:
    """One switch for the history: who asked, what came of it, how long each phase took."""
    begin = record.begin
    end = record.ended or record.last(STUCK)
    phases: dict[str, float] = {}
    for phase, _, seconds in record.phases():
        phases[phase] = round(phases.get(phase, 0.0) + seconds, 3)
    return {
        "id": record.id,
        "time": begin.get("time", 0),
        "target": begin.get("target", ""),
        "asked_by": begin.get("asked_by", ""),
        "reason": begin.get("reason", ""),
        "exit": end["exit"] if end else None,
        "message": end["message"] if end else _not_ended(record),
        "ended_at": end["time"] if end else None,
        "phases": phases,
        "cut_off": record.cut_off(),
    }


def _not_ended(record: Record) -> str:
    return f"not ended, in {record.last_phase}" if record.last_phase else "not ended"


def history(path: Path, count: int) -> list[dict[str, Any]]:
    """The last `count` switches, oldest first; also those that were cut off the journal once."""
    known = records(read(path))
    if count <= 0 or len(known) < count:
        here = {record.id for record in known}
        known = [old for old in records(read(former(path))) if old.id not in here] + known
    return [summary(record) for record in (known[-count:] if count > 0 else known)]


def history_text(rows: Sequence[dict[str, Any]]) -> str:
    """The history as a table for people."""
    if not rows:
        return "no switch yet"
    lines = []
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(row["time"])))
        code = row["exit"]
        ended = "open" if code is None else f"exit {code} {_OUTCOMES.get(code, '')}".rstrip()
        lines.append(f"{when}  -> {row['target']:<12} {ended:<19} {row['message']}")
        spent = [f"{name} {seconds:.1f}" for name, seconds in row["phases"].items()]
        spent += [f"{name} cut off" for name in row["cut_off"]]
        if row["ended_at"] is not None:
            spent.append(f"in all {max(0.0, row['ended_at'] - row['time']):.1f}")
        seconds = ", ".join(spent) or "-"
        lines.append(f"    by {row['asked_by']}; {row['reason']}; seconds: {seconds}")
    return "\n".join(lines)
