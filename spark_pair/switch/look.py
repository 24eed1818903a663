"""Looking at the servers: a verdict for each, with the evidence gathered patiently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .. import verdict as verdicts
from ..description import Role, Server
from ..hostview import View
from ..metrics import Load, load_from_dict
from ..probe import ProbeResult
from ..verdict import State, Verdict
from .bench import Bench


class Look:
    """Gives verdicts. Touches nothing but the memory of suspects."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def verdict(self, server: Server, views: Mapping[Role, View | None]) -> Verdict:
        """Verdict of one server, asked if it is up; patience is remembered between runs."""
        found = verdicts.presence(server, views, self.bench.description)
        suspects = self.bench.state.suspects
        loading = f"{server.name} starting"
        if found.state is State.STARTING:
            now = self.bench.world.now()
            since = float(suspects.setdefault(loading, {"since": now})["since"])
            self.bench.world.save(self.bench.state)
            if now - since > server.ready_timeout:
                # A unit that crashes and is restarted for ever is never anything but starting.
                return Verdict(State.PARTIAL, f"starting for {now - since:.0f} s: {found.why}")
            return found
        suspects.pop(loading, None)
        if found.state is not State.UP:
            suspects.pop(server.name, None)
            return found
        return self.assess(server, views)

    def assess(
        self, server: Server, views: Mapping[Role, View | None], *, abortable: bool = True
    ) -> Verdict:
        """Ask a server that is up until it is proven serving, busy or dead; bounded by patience."""
        node = self.bench.world.nodes[server.api.host]
        before = node.load(server)
        first = self._probe(server)
        if first.ok:
            self.bench.state.suspects.pop(server.name, None)
            return Verdict(State.SERVING, "")
        incarnation = verdicts.identity(server, views)
        since, failures = self._suspected(server, before, incarnation)
        evidence = verdicts.start_evidence(since, before, self.bench.world.now(), first, failures)
        while (found := verdicts.weigh(evidence, self.bench.policy)) is None:
            self.bench.say(f"{server.name}: a probe failed ({first.why}); gathering evidence")
            self.bench.pause(
                max(self.bench.policy.sample_interval, self.bench.policy.dead_after / 4),
                abortable=abortable,
            )
            result = self._probe(server)
            if result.ok:
                self.bench.state.suspects.pop(server.name, None)
                return Verdict(State.SERVING, "")
            evidence = verdicts.add_evidence(evidence, self.bench.world.now(), result)
        if found.state is State.BUSY and not evidence.progressed:
            self.bench.state.suspects[server.name] = {
                "since": evidence.first_at,
                "load": before.as_dict(),
                "failures": evidence.failures,
                "incarnation": incarnation,
            }
        self.bench.world.save(self.bench.state)
        return found

    def _probe(self, server: Server) -> ProbeResult:
        """Ask once; an answer that came too fast for a sample gets its load right afterwards."""
        node = self.bench.world.nodes[server.api.host]
        result = node.probe(server)
        return result if result.ok or result.load.known else replace(result, load=node.load(server))

    def _suspected(self, server: Server, load: Load, incarnation: list[str]) -> tuple[float, int]:
        """Since when nothing was finished and how many probes failed, over earlier runs too.

        Only for the very same processes: a server that was restarted meanwhile starts anew.
        """
        now = self.bench.world.now()
        known = self.bench.state.suspects.get(server.name) or {}
        since = float(known.get("since", now))
        same = (
            known.get("incarnation") == incarnation
            and load.progress is not None
            and load_from_dict(known.get("load")).progress == load.progress
        )
        return (since, int(known.get("failures", 0))) if same and since <= now else (now, 0)
