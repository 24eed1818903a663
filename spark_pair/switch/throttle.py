"""How often a server was restarted lately: driver memory leaks with every restart (fault 48).

Counted from the journal, which outlives boots. A line that was torn must not hide a restart, and a
clock that was wrong for a while must not forbid one for years.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..journal import Event, Record, records
from ..verdict import State
from .machine import Phase

_RESTARTED = (Phase.STOP, Phase.RELEASE, Phase.START, Phase.VERIFY)


def restarts(events: Sequence[Event], server: str, window: float, *, now: float, but: str) -> int:
    """Restarts of `server` that began less than `window` seconds before `now`, without `but`."""
    begun = _begun_at(events, now)
    return sum(
        1
        for record in records(list(events))
        if record.begin.get("target") == server
        and record.id != but
        and begun[record.id] >= now - window
        and _restarts(record, server)
    )


def _begun_at(events: Sequence[Event], now: float) -> dict[str, float]:
    """When each switch began: at the latest at the time of any line that was written after it."""
    begun: dict[str, float] = {}
    earliest = now
    for event in reversed(events):
        time = event.get("time")
        if isinstance(time, int | float):
            earliest = min(earliest, float(time))
        begun[str(event.get("id"))] = earliest
    return begun


def _restarts(record: Record, server: str) -> bool:
    """Whether the switch found its target dead or gone, and went on to start it again."""
    armed = record.last("armed")
    if armed is None:
        entered = [row.get("phase") for row in record.events if row["event"] == "phase"]
        return any(phase in entered for phase in _RESTARTED)
    if "restart" in armed:
        return bool(armed["restart"])
    found = armed.get("verdicts", {})
    return found.get(server) in (State.DEAD, State.PARTIAL)
