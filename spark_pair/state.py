"""What the tool remembers between switches: the hold, the keepers it stopped, who serves.

One small file, replaced atomically. Losing it loses convenience, not safety: what is running is
always observed, never read from here.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import jsonfile
from .paths import STATE

SCHEMA = 1


@dataclass
class PairState:
    """The remembered state of the pair."""

    hold: dict[str, Any] | None = None
    """{"since": epoch s, "by": "rollback"|"recovery", "reason": text}: a plain run leaves it be."""
    keepers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per server, while its keepers are stopped: {"switch": id of the switch that stopped them,
    "units": [{"host", "unit"}] found active, "owed": True when bringing one back failed}. Gone once
    they are back."""
    serving: dict[str, Any] | None = None
    """{"server", "generation", "since", "verified_at", "verified_by"} of the last commit."""
    suspects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per server: since when (boot clock) it fails its probes without any progress."""

    def owe_keepers_of(self, switch: str) -> None:
        """Another switch takes over from this one: what it stopped must come back all the same."""
        for record in self.keepers.values():
            if record["switch"] == switch:
                record["owed"] = True

    def set_hold(self, by: str, reason: str) -> None:
        """From now on a plain `site.yml` ends before cut-over, saying `reason`."""
        self.hold = {"since": time.time(), "by": by, "reason": reason}


def load(path: Path = STATE) -> PairState:
    """Read the state; anything unreadable is an empty state."""
    try:
        data = jsonfile.read(path)
    except OSError:
        data = None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return PairState()
    return PairState(
        hold=_mapping(data.get("hold")) or None,
        keepers={
            str(name): {
                "switch": record.get("switch"),
                "units": [row for row in record["units"] if isinstance(row, dict)],
                **({"owed": True} if record.get("owed") else {}),
            }
            for name, record in _mapping(data.get("keepers")).items()
            if isinstance(record, dict) and isinstance(record.get("units"), list)
        },
        serving=_mapping(data.get("serving")) or None,
        suspects={
            name: row
            for name, row in _mapping(data.get("suspects")).items()
            if isinstance(row, dict)
        },
    )


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def save(state: PairState, path: Path = STATE) -> None:
    """Replace the state file; OSError when the disk refuses."""
    jsonfile.write(path, {"schema": SCHEMA, **asdict(state)})
