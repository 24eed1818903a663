"""What is done to servers: stopped, seen to be gone, started, proven, kept alive."""

from __future__ import annotations

from collections.abc import Mapping

from .. import verdict as verdicts
from ..description import ROLES, Generation, Keeper, Role, Server
from ..hostview import View
from ..probe import ProbeResult
from ..verdict import State
from .bench import Bench
from .loading import Loading
from .world import Side, StepError

_ALIVE = ("active", "activating", "reloading", "deactivating")


class Hands:
    """The operations that change a pair. Each ends with a proof, or raises StepError."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def stop_keepers(self) -> None:
        views = self.bench.both_views()
        for server in self.bench.description.servers.values():
            active = [keeper for keeper in server.keepers if _is_active(views, keeper)]
            kept = [
                {"host": keeper.host, "unit": keeper.unit}
                for keeper in active
                if keeper.restore == "as_found"
            ]
            known = self.bench.state.keepers.get(server.name, [])
            found = self.bench.job.verdicts.get(server.name)
            if found is None or found.state is State.DOWN:
                kept = known + [row for row in kept if row not in known]
            elif not active and known:
                kept = known  # a resumed switch had stopped them already
            if server.keepers:
                self.bench.state.keepers[server.name] = kept
        self.bench.world.save(self.bench.state)
        for server in self.bench.description.servers.values():
            for keeper in server.keepers:
                if _is_active(views, keeper):
                    self.bench.say(f"stop {keeper.unit} on {self.bench.name(keeper.host)}")
                    node = self.bench.world.nodes[keeper.host]
                    node.stop_unit(keeper.unit, server.unit_stop_timeout)

    def start_keepers(self, server: Server) -> None:
        views = self.bench.both_views()
        for keeper in self._keepers_to_restore(server, views):
            self.bench.say(f"start {keeper.unit} on {self.bench.name(keeper.host)}")
            self.bench.world.nodes[keeper.host].start_unit(keeper.unit, restart=False)

    def _keepers_to_restore(self, server: Server, views: Mapping[Role, View]) -> list[Keeper]:
        """Those that were found active when it was last stopped; without a record, the enabled."""
        known = self.bench.state.keepers.get(server.name)
        chosen = []
        for keeper in server.keepers:
            row = (views[keeper.host].get("units") or {}).get(keeper.unit, {})
            if keeper.restore != "as_found" or row.get("active") == "active":
                continue
            if known is None:
                if row.get("enabled") == "enabled":
                    chosen.append(keeper)
            elif {"host": keeper.host, "unit": keeper.unit} in known:
                chosen.append(keeper)
        return chosen

    def stop_everything(self, keep: str | None = None) -> None:
        views = self.bench.both_views()
        for server in self.bench.description.servers.values():
            if server.name != keep and not self._is_gone(server, views):
                self._stop_server(server)

    def _stop_server(self, server: Server) -> None:
        for unit in reversed(server.units):
            self.bench.say(f"stop {unit.unit} on {self.bench.name(unit.host)}")
            self.bench.world.nodes[unit.host].stop_unit(unit.unit, server.unit_stop_timeout)
        views = self.bench.both_views()
        if self._leftover_ranks(server, views) and server.commands.stop:
            # stop.sh says 0 with the worker unreachable (fault 41): it is run for the log it
            # archives, and believed nothing.
            self.bench.say(f"{server.name}: a rank is left, running its stop script")
            self.bench.world.run_command(server.commands.stop, self._stop_generation(server))
        deadline = self.bench.world.now() + self.bench.policy.stop_timeout
        removed = False
        while not self._is_gone(server, views := self.bench.both_views()):
            if self._leftover_ranks(server, views) and not removed:
                for role, container in self._leftover_ranks(server, views):
                    self.bench.say(
                        f"remove {container} on {self.bench.name(role)}, keeping its log"
                    )
                    self.bench.world.nodes[role].remove_rank(container)
                removed = True
                continue
            if self.bench.world.now() >= deadline:
                raise StepError(
                    f"{server.name} is not gone after {self.bench.policy.stop_timeout:g} s: "
                    f"{self._remains(server, views)}"
                )
            self.bench.world.sleep(self.bench.policy.sample_interval)

    def _stop_generation(self, server: Server) -> Generation | None:
        return self.bench.side(server).generation or server.generation

    def _leftover_ranks(
        self, server: Server, views: Mapping[Role, View | None]
    ) -> list[tuple[Role, str]]:
        return [
            (rank.host, rank.container)
            for rank in server.ranks
            if rank.container in ((views.get(rank.host) or {}).get("containers") or {})
        ]

    def _is_gone(self, server: Server, views: Mapping[Role, View | None]) -> bool:
        return not self._remains(server, views)

    def _remains(self, server: Server, views: Mapping[Role, View | None]) -> str:
        """What is left of a server, in words; "" when both machines are proven empty of it."""
        left: list[str] = []
        for role in ROLES:
            view = views.get(role) or {}
            name = self.bench.name(role)
            units, ports = view.get("units"), view.get("ports")
            if units is None or ports is None or view.get("containers") is None:
                left.append(f"{name} does not say what runs there")
                continue
            left += [
                f"{unit} on {name} is {units[unit]['active']}"
                for unit in server.units_on(role)
                if units.get(unit, {}).get("active") in _ALIVE and unit in units
            ]
            left += [f"port {port} on {name} is open" for port in server.ports_on(role)
                     if ports.get(str(port))]  # fmt: skip
        left += [
            f"container {container} on {self.bench.name(role)}"
            for role, container in self._leftover_ranks(server, views)
        ]
        return ", ".join(left)

    def wait_for_memory(self, server: Server, *, abortable: bool) -> None:
        gate = server.memory_gate_gib
        if gate is None:
            return
        deadline = self.bench.world.now() + self.bench.policy.release_timeout
        while True:
            short = [
                f"{self.bench.name(role)} has {available:g} GiB"
                for role, view in self.bench.both_views().items()
                if (available := float((view.get("memory") or {}).get("available_gib", 0))) < gate
            ]
            if not short:
                return
            if self.bench.world.now() >= deadline:
                raise StepError(
                    f"{' and '.join(short)} available after "
                    f"{self.bench.policy.release_timeout:g} s, {server.name} needs {gate:g}: "
                    "find what holds it with 'free -h' and 'docker ps'"
                )
            self.bench.pause(self.bench.policy.sample_interval, abortable=abortable)

    def start_server(self, side: Side, *, abortable: bool) -> None:
        server = self.bench.description.server(side.server)
        if side.generation:
            self.bench.world.flip(side.generation)
        for unit in server.units:
            self.bench.say(f"start {unit.unit} on {self.bench.name(unit.host)}")
            self.bench.world.nodes[unit.host].start_unit(unit.unit, restart=bool(server.ranks))
        self._wait_until_ready(server, abortable=abortable)

    def _wait_until_ready(self, server: Server, *, abortable: bool) -> None:
        deadline = self.bench.world.now() + server.ready_timeout
        loading = Loading(self.bench, server)
        while not loading.ready(views := self.bench.both_views()):
            if self.bench.world.now() >= deadline:
                found = verdicts.presence(server, views, self.bench.description)
                raise StepError(
                    f"{server.name} was not ready after {server.ready_timeout:g} s ({found})"
                )
            self.bench.pause(self.bench.policy.sample_interval, abortable=abortable)

    def verify_server(self, server: Server, *, strict: bool) -> None:
        result = self._probe_twice(server)
        if not result.ok:
            raise StepError(f"{server.name} does not generate: {result.why}")
        found = verdicts.presence(server, self.bench.both_views(), self.bench.description)
        if found.state is not State.UP:
            raise StepError(f"{server.name} answered, but it is {found}")
        if server.context:
            got = self.bench.world.nodes[server.api.host].context(server)
            if got != server.context.expect:
                raise StepError(
                    f"{server.name} reports a context of {got if got else 'unknown length'}, "
                    f"{server.context.expect} was configured: it shrank without saying so"
                )
        if server.metrics and not self.bench.load(server).known:
            if strict:
                raise StepError(
                    f"{server.name} does not report {server.metrics.running} and "
                    f"{server.metrics.waiting}: it could never be drained"
                )
            self.bench.say(
                f"{server.name}: its metrics cannot be read; a drain will have to time out"
            )
        self.bench.say(f"{server.name} generates: {result.text[:60]!r} in {result.seconds:.1f} s")
        self.bench.remember_serving(server)

    def _probe_twice(self, server: Server) -> ProbeResult:
        """The first real request may compile kernels and time out (fault 27); one more try."""
        node = self.bench.world.nodes[server.api.host]
        result = node.probe(server)
        return node.probe(server) if result.kind == "timeout" else result

    def check_boots(self) -> None:
        for role, view in self.bench.both_views().items():
            if self.bench.job.boots.get(role, view["boot"]) != view["boot"]:
                raise StepError(f"{self.bench.name(role)} was restarted during the switch")

    def wait_for_both(self) -> None:
        """A TP=2 server needs both machines: wait for one that is away, but not for ever."""
        deadline = self.bench.world.now() + self.bench.policy.resume_wait
        said = False
        while True:
            away = [role for role, view in self.bench.views().items() if view is None]
            if not away:
                return
            if self.bench.world.now() >= deadline:
                raise StepError(
                    f"{self.bench.name(away[0])} did not come back within "
                    f"{self.bench.policy.resume_wait / 60:g} minutes"
                )
            if not said:
                self.bench.say(f"waiting for {self.bench.name(away[0])}")
                said = True
            self.bench.world.sleep(max(1.0, self.bench.policy.sample_interval))


def _is_active(views: Mapping[Role, View], keeper: Keeper) -> bool:
    row = (views[keeper.host].get("units") or {}).get(keeper.unit, {})
    return row.get("active") in _ALIVE
