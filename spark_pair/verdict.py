"""What the evidence says about a model server: eight verdicts and the reason in words.

Pure. A server that is loaded is not a server that is dead, and a host that does not answer says
nothing about its server (faults 1, 28, 42): so every verdict but `serving` needs its own evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .description import PairDescription, Policy, Role, Server
from .hostview import View
from .metrics import Load
from .probe import ProbeResult


class State(StrEnum):
    """The verdicts."""

    DOWN = "down"
    PARTIAL = "partial"
    STARTING = "starting"
    SERVING = "serving"
    BUSY = "busy"
    DEAD = "dead"
    UNKNOWN = "unknown"
    MISMATCH = "mismatch"
    """It answers, but not to what is configured here: nobody may call that dead and stop it."""
    UP = "up"
    """All parts are there and the API listens; whether it generates has not been asked yet."""


@dataclass(frozen=True)
class Verdict:
    """A state and the evidence for it, in words."""

    state: State
    why: str

    def __str__(self) -> str:
        return f"{self.state}: {self.why}" if self.why else str(self.state)


@dataclass(frozen=True)
class Part:
    """One unit or container that a server consists of, as seen on its host."""

    host: Role
    name: str
    present: bool | None
    starting: bool = False
    failed: bool = False


def parts_of(server: Server, views: Mapping[Role, View | None]) -> list[Part]:
    """The parts whose presence decides: ranks where a server has them, else its units.

    The unit of a ranked server says nothing: a oneshot stays "active" when its ranks have died.
    It counts only while it is activating.
    """
    parts: list[Part] = []
    for rank in server.ranks:
        view = views.get(rank.host)
        containers = view.get("containers") if view else None
        row = containers.get(rank.container) if containers is not None else None
        known = None if containers is None else bool(row and row["state"] == "running")
        parts.append(Part(rank.host, rank.container, known))
    for unit in server.units:
        view = views.get(unit.host)
        units = view.get("units") if view else None
        active = (units.get(unit.unit) or {}).get("active", "") if units is not None else None
        if server.ranks:
            if active in ("activating", "reloading"):
                parts.append(Part(unit.host, unit.unit, False, starting=True))
            continue
        parts.append(
            Part(
                unit.host,
                unit.unit,
                None if active is None else active in ("active", "reloading", "deactivating"),
                starting=active == "activating",
                failed=active == "failed",
            )
        )
    return parts


def identity(server: Server, views: Mapping[Role, View | None]) -> list[str]:
    """Which incarnation of a server runs: its containers' ids, its units' invocations."""
    found = []
    for rank in server.ranks:
        row = ((views.get(rank.host) or {}).get("containers") or {}).get(rank.container) or {}
        found.append(str(row.get("id", "")))
    for unit in server.units:
        row = ((views.get(unit.host) or {}).get("units") or {}).get(unit.unit) or {}
        found.append(str(row.get("invocation", "")))
    return found


def presence(
    server: Server, views: Mapping[Role, View | None], description: PairDescription
) -> Verdict:
    """Classify a server without asking it anything: unknown, down, partial, starting or up."""
    parts = parts_of(server, views)
    unknown = [part for part in parts if part.present is None]
    if unknown:
        hosts = sorted({description.host_name(part.host) for part in unknown})
        return Verdict(State.UNKNOWN, f"{' and '.join(hosts)} did not say how it is there")
    present = [part for part in parts if part.present]
    starting = [part for part in parts if part.starting]
    missing = [part for part in parts if not part.present and not part.starting]
    if not present:
        if starting:
            return Verdict(State.STARTING, _on(starting, description))
        return Verdict(State.DOWN, "")
    if missing or starting:
        state = State.STARTING if starting else State.PARTIAL
        return Verdict(
            state,
            f"{_on(present, description)} is there, {_on(missing or starting, description)} is not",
        )
    view = views.get(server.api.host)
    api = (view or {}).get("apis", {}).get(server.name) or {}
    if not api.get("listens"):
        return Verdict(
            State.STARTING,
            f"its parts run, but nothing answers on port {server.api.port} of "
            f"{description.host_name(server.api.host)} yet",
        )
    return Verdict(State.UP, "")


def _on(parts: Sequence[Part], description: PairDescription) -> str:
    return ", ".join(f"{part.name} on {description.host_name(part.host)}" for part in parts)


@dataclass(frozen=True)
class Evidence:
    """Failed probes of a server that is up, gathered over time (seconds on one clock)."""

    first_at: float
    first_load: Load
    last_at: float
    failures: int
    last: ProbeResult
    progressed: bool = False
    """Whether tokens or finished requests moved since the first probe."""


def start_evidence(
    since: float, load: Load, at: float, result: ProbeResult, failures: int = 0
) -> Evidence:
    """Begin with a failed probe at `at`; `load` was sampled before it.

    `since` and `failures` come from earlier runs of the tool that saw the very same standstill.
    """
    return Evidence(since, load, at, failures + 1, result, moved(load, result.load))


def add_evidence(evidence: Evidence, at: float, result: ProbeResult) -> Evidence:
    """Add one more failed probe."""
    return Evidence(
        evidence.first_at,
        evidence.first_load,
        at,
        evidence.failures + 1,
        result,
        evidence.progressed or moved(evidence.first_load, result.load),
    )


def moved(before: Load, after: Load) -> bool:
    """Whether work was finished between two samples; False when that is not known."""
    if before.progress is None or after.progress is None:
        return False
    return any(new > old for old, new in zip(before.progress, after.progress, strict=False))


def queued(evidence: Evidence) -> bool:
    """Whether the probe hung in the queue: then all lanes were taken, by work or by corpses."""
    if evidence.last.kind == "overloaded":
        return True
    waiting = evidence.last.load.waiting
    return evidence.last.kind == "timeout" and waiting is not None and waiting > 0


def patience(evidence: Evidence, policy: Policy) -> float:
    """Seconds without progress after which a server that fails its probes is dead.

    Counters move only when a request *finishes*, so a long prompt or a long answer looks like
    standstill: a queued probe waits for the longest answer, a probe beside other requests for the
    longest prefill, and a lonely one for nothing but the plain limit.
    """
    if queued(evidence):
        return max(policy.long_request_allowance, policy.dead_after)
    running = evidence.first_load.running
    if evidence.last.kind == "timeout" and running is not None and running > 0:
        return max(policy.prefill_allowance, policy.dead_after)
    return policy.dead_after


def weigh(evidence: Evidence, policy: Policy) -> Verdict | None:
    """Return busy, dead or mismatch once the evidence suffices, else None: probe again."""
    load = evidence.last.load
    if evidence.last.kind == "mismatch":
        return Verdict(State.MISMATCH, evidence.last.why)
    if evidence.progressed:
        return Verdict(State.BUSY, f"a probe failed, but work is being finished ({load.words()})")
    age = evidence.last_at - evidence.first_at
    if evidence.failures >= 3 and age >= patience(evidence, policy):
        return Verdict(
            State.DEAD,
            f"{evidence.failures} probes failed over {age:.0f} s, nothing was finished meanwhile "
            f"({load.words()}); last: {evidence.last.why}",
        )
    if queued(evidence):
        return Verdict(State.BUSY, f"a probe had to queue and got no answer ({load.words()})")
    return None
