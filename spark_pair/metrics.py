"""Reading the Prometheus text of a model server, with "missing" kept apart from "zero".

Standard library only, because a bare host is observed through an Ansible module before anything
is installed on it; the format needed here is one line a sample.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .description import Metrics

_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?:[^\"}]|\"(?:\\.|[^\"\\])*\")*\})?"
    r"[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?[ \t]*$"
)


def totals(text: str) -> dict[str, float]:
    """Sum every metric over its label sets; lines that are no sample are passed over.

    A metric with a sample that is NaN or no number has no known total and is left out.
    """
    sums: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if not match:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            value = math.nan
        sums[match["name"]] = sums.get(match["name"], 0.0) + value
    return {name: value for name, value in sums.items() if not math.isnan(value)}


@dataclass(frozen=True)
class Load:
    """What a server says of its load. None is *unknown*, which is never zero.

    A drain that read a missing gauge as zero would stop a server in mid-sentence.
    """

    running: float | None = None
    waiting: float | None = None
    progress: tuple[float, ...] | None = None
    """Counters that move when work is finished; None when any of them is missing."""

    @property
    def known(self) -> bool:
        """Whether both gauges were read."""
        return self.running is not None and self.waiting is not None

    @property
    def idle(self) -> bool:
        """True only when both gauges were read and both are zero."""
        return self.running == 0 and self.waiting == 0

    def words(self) -> str:
        """For people: "2 running, 0 waiting" or "running unknown, waiting unknown"."""
        return f"{_words(self.running, 'running')}, {_words(self.waiting, 'waiting')}"

    def as_dict(self) -> dict[str, object]:
        """For the journal and for views that travel as JSON."""
        return {
            "running": self.running,
            "waiting": self.waiting,
            "progress": list(self.progress) if self.progress is not None else None,
        }


def load_from_dict(data: Mapping[str, object] | None) -> Load:
    """Invert `Load.as_dict`; None (nothing could be read) is an unknown load."""
    if not data:
        return Load()
    progress = data.get("progress")
    return Load(
        running=_number(data.get("running")),
        waiting=_number(data.get("waiting")),
        progress=tuple(float(item) for item in progress) if isinstance(progress, list) else None,
    )


def read_load(text: str, names: Metrics) -> Load:
    """Pick the load out of a server's metrics text."""
    sums = totals(text)
    counters = [sums.get(name) for name in names.progress]
    known = [value for value in counters if value is not None]
    return Load(
        running=sums.get(names.running),
        waiting=sums.get(names.waiting),
        progress=tuple(known) if known and len(known) == len(counters) else None,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _words(value: float | None, what: str) -> str:
    return f"{what} unknown" if value is None else f"{value:g} {what}"
