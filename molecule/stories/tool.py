"""The tool's own memory on the head: its journal and its state."""

import json
from collections.abc import Mapping
from typing import Any

from .machines import HEAD, on
from .waiting import wait_for

JOURNAL = "/var/lib/spark-pair/journal.jsonl"
_STATE = "/var/lib/spark-pair/state.json"
ENDS = ("end", "stuck")
SWITCH_UNIT = "spark-pair-switch.service"

Event = Mapping[str, Any]


def journal() -> list[Event]:
    """Every event of every switch since the last reset, in order."""
    text = on(HEAD, f"cat {JOURNAL} 2>/dev/null || true")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def last_switch() -> list[Event]:
    """The events of the newest switch."""
    events = journal()
    assert events, "no switch has been made yet"
    newest = events[-1]["id"]
    return [event for event in events if event["id"] == newest]


def event(kind: str, **wanted: str) -> Event:
    """The last event of a kind in the newest switch, for example `event("phase", phase="stop")`."""
    found = [
        one
        for one in last_switch()
        if one["event"] == kind and all(one.get(key) == value for key, value in wanted.items())
    ]
    assert found, f"no {kind} {wanted} in {last_switch()}"
    return found[-1]


def hold() -> Mapping[str, Any] | None:
    """The hold that keeps a plain run away from cut-over, if there is one."""
    text = on(HEAD, f"cat {_STATE} 2>/dev/null || echo {{}}")
    held: Mapping[str, Any] | None = json.loads(text).get("hold")
    return held


def wait_for_phase(phase: str, seconds: float = 60) -> None:
    """Wait until a switch that has not ended enters a phase."""

    def entered() -> bool:
        events = journal()
        going = [one for one in events if one["id"] == events[-1]["id"]]
        if not going or going[-1]["event"] in ENDS:
            return False
        return any(one["event"] == "phase" and one["phase"] == phase for one in going)

    wait_for(f"the switch enters {phase}", entered, seconds, every=0.05)


def wait_until_over(seconds: float = 120) -> Event:
    """Wait until the newest switch has ended and its process is gone; its last event."""

    def ended() -> Event | None:
        events = journal()
        state = on(HEAD, f"systemctl is-active {SWITCH_UNIT} || true").strip()
        over = bool(events) and events[-1]["event"] in ENDS
        return events[-1] if over and state in ("inactive", "failed") else None

    return wait_for("the switch ends", ended, seconds)
