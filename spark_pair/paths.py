"""Where things live on a host. One place, because roles, units and the tool must agree."""

from __future__ import annotations

from pathlib import Path

ETC = Path("/etc/spark-pair")
DESCRIPTION = ETC / "pair.json"

VAR = Path("/var/lib/spark-pair")
JOURNAL = VAR / "journal.jsonl"
STATE = VAR / "state.json"
GENERATIONS = VAR / "generations"
CURRENT = VAR / "current"

RUN = Path("/run/spark-pair")
LOCK = RUN / "switch.lock"
REQUEST = RUN / "request.json"
ABORT = RUN / "abort"

TOOL = "/usr/local/bin/spark-pair"
SWITCH_UNIT = "spark-pair-switch.service"


def key_file(server: str) -> Path:
    """Where the key of a server's API is kept for those who ask it: probes and metrics."""
    return ETC / "secrets" / f"{server}.key"
