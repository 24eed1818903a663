"""What is done to servers: stopped, seen to be gone, started, proven, kept alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from .. import verdict as verdicts
from ..description import ROLES, Generation, Keeper, Role, Server
from ..errors import NodeError, SparkPairError
from ..hostview import View
from ..probe import ProbeResult
from ..verdict import Evidence, State
from .bench import A_COMPLETION, Bench
from .loading import Loading
from .world import AwayError, Side, StepError

_ALIVE = ("active", "activating", "reloading", "deactivating")
_FOUND_UP = (State.SERVING, State.BUSY, State.MISMATCH, State.DEAD)
_PROOF_TRIES = 2
_FOREIGN_LOOKS = 2


@dataclass(frozen=True)
class Proof:
    """What was seen of a server that shows that it serves."""

    by: str
    """Completes "verified by …"."""
    said: str

    @staticmethod
    def of_completion(server: Server, result: ProbeResult) -> Proof:
        """It has answered a question of ours."""
        words = f"{server.name} generates: {result.text[:60]!r} in {result.seconds:.1f} s"
        return Proof(A_COMPLETION, words)

    @staticmethod
    def of_work(server: Server) -> Proof:
        """It has finished requests of others while ours had to wait."""
        words = f"{server.name} is busy and finishes work; it had no time for a probe"
        return Proof("the work that it finishes", words)


class Hands:
    """The operations that change a pair. Each ends with a proof, or raises StepError."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def stop_keepers(self) -> None:
        """Record which keepers are active, then stop them; all units must be known for that."""
        views = self.bench.both_views()
        for role, view in views.items():
            if view.get("units") is None:
                raise StepError(
                    f"systemd on {self.bench.name(role)} did not say which units are active"
                )
        for server in self.bench.description.servers.values():
            if server.keepers:
                self._record_keepers(server, views)
        self.bench.world.save(self.bench.state)
        for server in self.bench.description.servers.values():
            for keeper in server.keepers:
                if _is_active(views, keeper):
                    self.bench.say(f"stop {keeper.unit} on {self.bench.name(keeper.host)}")
                    stop = self.bench.world.nodes[keeper.host].stop_unit
                    self.bench.insist(partial(stop, keeper.unit, server.unit_stop_timeout))

    def _record_keepers(self, server: Server, views: Mapping[Role, View]) -> None:
        """Remember the active ones. What this switch, the stop of a server that is down, or a
        restore that failed has recorded is added to, never replaced: those are stopped already."""
        active = [
            {"host": keeper.host, "unit": keeper.unit}
            for keeper in server.keepers
            if keeper.restore == "as_found" and _is_active(views, keeper)
        ]
        known = self.bench.state.keepers.get(server.name)
        found = self.bench.job.verdicts.get(server.name)
        # Only one that was found up, all its parts, tells by itself which of its keepers belong.
        up = found is not None and found.state in _FOUND_UP
        if known and (known["switch"] == self.bench.job.id or known.get("owed") or not up):
            active = known["units"] + [row for row in active if row not in known["units"]]
        elif known is None and not active and not up:
            return  # never seen running: its enabled keepers will be started with it
        self.bench.state.keepers[server.name] = {"switch": self.bench.job.id, "units": active}

    def start_keepers(self, server: Server) -> bool:
        """Bring keepers back; one that does not come is noted and tried again by a later run.

        Never an error: the server that they keep was proven to serve. Returns whether any started.
        """
        started = False
        try:
            chosen = self._keepers_to_restore(server, self.bench.both_views())
        except SparkPairError as error:
            self.bench.note(f"the keepers of {server.name} were not brought back: {error}")
            self._owe_keepers(server)
            return False
        failed = False
        for keeper in chosen:
            self.bench.say(f"start {keeper.unit} on {self.bench.name(keeper.host)}")
            try:
                start = self.bench.world.nodes[keeper.host].start_unit
                self.bench.insist(partial(start, keeper.unit, restart=False))
                started = True
            except SparkPairError as error:
                failed = True
                self.bench.note(f"{keeper.unit} was not brought back: {error}")
        if not failed:
            self.bench.state.keepers.pop(server.name, None)
        else:
            self._owe_keepers(server)
        return started

    def _owe_keepers(self, server: Server) -> None:
        if server.name in self.bench.state.keepers:
            self.bench.state.keepers[server.name]["owed"] = True

    def _keepers_to_restore(self, server: Server, views: Mapping[Role, View]) -> list[Keeper]:
        """Those that were found active when it was last stopped; without a record, the enabled."""
        record = self.bench.state.keepers.get(server.name)
        chosen = []
        for keeper in server.keepers:
            row = (views[keeper.host].get("units") or {}).get(keeper.unit, {})
            if keeper.restore != "as_found" or row.get("active") == "active":
                continue
            if record is None:
                if row.get("enabled") == "enabled":
                    chosen.append(keeper)
            elif {"host": keeper.host, "unit": keeper.unit} in record["units"]:
                chosen.append(keeper)
        return chosen

    def stop_everything(self, keep: str | None = None) -> None:
        """Stop every server of which a part is there; a failure of one does not spare the next."""
        views = self.bench.both_views()
        failures = []
        for server in self.bench.description.servers.values():
            # By its parts, not by its port: somebody else's listener is no reason to stop a server.
            if server.name == keep or not self.parts_left(server, views):
                continue
            try:
                self._stop_server(self.bench.running(server))
            except SparkPairError as error:
                failures.append(str(error))
        if failures:
            raise StepError("; ".join(failures))

    def others_left(self, name: str) -> bool:
        """Whether anything of another server is there, an ended container included, or may be."""
        try:
            views = self.bench.both_views()
        except StepError:
            return True
        return any(
            self.parts_left(server, views)
            for server in self.bench.description.servers.values()
            if server.name != name
        )

    def _stop_server(self, server: Server) -> None:
        for unit in reversed(server.units):
            self.bench.say(f"stop {unit.unit} on {self.bench.name(unit.host)}")
            try:
                stop = self.bench.world.nodes[unit.host].stop_unit
                self.bench.insist(partial(stop, unit.unit, server.unit_stop_timeout))
            except NodeError as error:
                # Not the end: what counts is what is seen to be left, below.
                self.bench.say(str(error))
        views = self.bench.both_views()
        if self._leftover_ranks(server, views) and server.commands.stop:
            # stop.sh says 0 with the worker unreachable (fault 41): it is run for the log it
            # archives, and believed nothing.
            self.bench.say(f"{server.name}: a rank is left, running its stop script")
            self.bench.world.run_command(server.commands.stop, self._stop_generation(server))
        self._wait_until_gone(server)

    def _wait_until_gone(self, server: Server) -> None:
        """Wait for it, removing ranks that are left; StepError when it is not gone in time."""
        deadline = self.bench.world.now() + self.bench.policy.stop_timeout
        removed, foreign = False, 0
        while left := self._remains(server, views := self.bench.both_views()):
            if self._leftover_ranks(server, views) and not removed:
                for role, container in self._leftover_ranks(server, views):
                    self.bench.say(
                        f"remove {container} on {self.bench.name(role)}, keeping its log"
                    )
                    remove = self.bench.world.nodes[role].remove_rank
                    self.bench.insist(partial(remove, container))
                removed = True
                continue
            foreign = foreign + 1 if self._is_foreign(server, views) else 0
            if foreign >= _FOREIGN_LOOKS:
                # It must not keep another server from coming back. What it may hold besides the
                # port is found out by the memory's gate, and by a start on that very port.
                self.bench.note(
                    f"{left}, by something that is not {server.name}: find it with 'ss -ltnp'"
                )
                return
            if self.bench.world.now() >= deadline:
                raise StepError(
                    f"{server.name} is not gone after {self.bench.policy.stop_timeout:g} s: {left}"
                )
            self.bench.world.sleep(self.bench.policy.sample_interval)

    def _stop_generation(self, server: Server) -> Generation | None:
        return self.bench.side(server).generation or server.generation

    def _is_foreign(self, server: Server, views: Mapping[Role, View]) -> bool:
        """Whether all that is left is a listener that no part of the server can be.

        A port closes with its process, and units and ranks are looked at before the ports. Whoever
        answers as a server does may be one that has left its unit; silence, or not knowing what a
        model is, is nobody's.
        """
        known = all(views[role].get("ports") is not None for role in ROLES)
        api = views[server.api.host].get("apis", {}).get(server.name) or {}
        answers = api.get("models_status") not in (None, 404)
        return known and not self.parts_left(server, views) and not answers

    def _leftover_ranks(
        self, server: Server, views: Mapping[Role, View | None]
    ) -> list[tuple[Role, str]]:
        return [
            (rank.host, rank.container)
            for rank in server.ranks
            if rank.container in ((views.get(rank.host) or {}).get("containers") or {})
        ]

    def _remains(self, server: Server, views: Mapping[Role, View]) -> str:
        """What is left of a server that was there, its port included; "" when it is gone."""
        left = [self.parts_left(server, views)] if self.parts_left(server, views) else []
        for role in ROLES:
            ports = views[role].get("ports")
            if ports is None:
                left.append(f"{self.bench.name(role)} does not say which ports are open")
                continue
            left += [
                f"port {port} on {self.bench.name(role)} is open"
                for port in server.ports_on(role)
                if ports.get(str(port))
            ]
        return ", ".join(left)

    def parts_left(self, server: Server, views: Mapping[Role, View]) -> str:
        """Units and containers of a server that are there on the machines seen, in words."""
        left: list[str] = []
        for role in views:
            name, units = self.bench.name(role), views[role].get("units")
            unknown = units is None and server.units_on(role)
            if unknown or (views[role].get("containers") is None and server.ranks_on(role)):
                left.append(f"{name} does not say what runs there")
                continue
            left += [
                f"{unit} on {name} is {row['active']}"
                for unit in server.units_on(role)
                if (row := (units or {}).get(unit)) and row.get("active") in _ALIVE
            ]
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
        """Flip to the side's generation, start its units in order, wait until its API is there."""
        server = self.bench.form(side)
        if side.generation:
            self.bench.world.flip(side.generation)
        for unit in server.units:
            self.bench.say(f"start {unit.unit} on {self.bench.name(unit.host)}")
            start = self.bench.world.nodes[unit.host].start_unit
            self.bench.insist(partial(start, unit.unit, restart=bool(server.ranks)))
        self._wait_until_ready(server, abortable=abortable)

    def _wait_until_ready(self, server: Server, *, abortable: bool) -> None:
        deadline = self.bench.world.now() + server.ready_timeout
        loading = Loading(self.bench, server)
        while not loading.ready(views := self.bench.both_views()):
            if self.bench.world.now() >= deadline:
                found = verdicts.presence(server, views, self.bench.description)
                state = str(found) if found.state is not State.UP else "no answer to /v1/models"
                raise StepError(
                    f"{server.name} was not ready after {server.ready_timeout:g} s ({state})"
                )
            self.bench.pause(self.bench.policy.sample_interval, abortable=abortable)

    def verify_server(self, server: Server, *, strict: bool) -> None:
        """Prove that a server serves; StepError says what is missing.

        Strict is for a new server. One that is brought back is spared what does not put its
        service in doubt: that its description is wrong, that its metrics are gone, that it is busy.
        """
        proof = self._prove(server, strict=strict)
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
            self.bench.note(
                f"{server.name}: its metrics cannot be read; a drain will have to time out"
            )
        self._prove_the_key(server, strict=strict)
        self.bench.say(proof.said)
        self.bench.remember_serving(server, proof.by)

    def _prove_the_key(self, server: Server, *, strict: bool) -> None:
        """Whoever has no key is refused: an engine that found no keys would serve everybody."""
        if server.api.key_file is None:
            return
        try:
            answer = self.bench.world.nodes[server.api.host].without_key(server)
        except SparkPairError as error:
            if strict:
                raise
            answer = str(error)
        if not answer:
            return
        words = (
            f"{server.name} does not refuse a request for /v1/models without its API key "
            f"({answer}), so its port may be open to everybody although a key is declared"
        )
        if strict:
            raise StepError(
                f"{words}: find out where the recipe takes its keys from, and set "
                "tensorfold_service_api_key_path to it"
            )
        self.bench.note(words)

    def _prove(self, server: Server, *, strict: bool) -> Proof:
        """One real completion, or, under load, work that is being finished meanwhile."""
        node = self.bench.world.nodes[server.api.host]
        began, before = self.bench.world.now(), self.bench.load(server)
        for _ in range(_PROOF_TRIES):
            # The first request may compile kernels and time out (fault 27), and callers may have
            # filled all lanes as soon as the port was open.
            result = node.probe(server)
            if result.kind not in ("timeout", "overloaded"):
                break
            if verdicts.moved(before, self.bench.load(server)):
                return Proof.of_work(server)
        if result.ok:
            return Proof.of_completion(server, result)
        if result.kind == "mismatch" and not strict:
            self.bench.note(f"{server.name} works, but not as it is described: {result.why}")
            return Proof("an answer that is not as described", f"{server.name} answers")
        if result.kind in ("timeout", "overloaded") and not strict:
            evidence = verdicts.start_evidence(
                began, before, self.bench.world.now(), result, _PROOF_TRIES - 1
            )
            if verdicts.queued(evidence):
                return self._prove_by_work(server, evidence)
        raise StepError(f"{server.name} does not generate: {result.why}")

    def _prove_by_work(self, server: Server, evidence: Evidence) -> Proof:
        """All its lanes are taken: by work, if some of it is finished in time, else by corpses.

        It is not asked meanwhile: a question that is never answered takes one more lane.
        """
        if evidence.first_load.progress is None:
            self.bench.note(f"{server.name} is busy: a probe had to queue")
            return Proof("the requests that it has taken", f"{server.name} has taken requests")
        enough = verdicts.patience(evidence, self.bench.policy)
        self.bench.say(
            f"{server.name}: a probe had to queue ({evidence.last.load.words()}); waiting up to "
            f"{enough:.0f} s for a request to be finished"
        )
        while self.bench.world.now() - evidence.first_at < enough:
            load = self.bench.load(server)
            if verdicts.moved(evidence.first_load, load):
                return Proof.of_work(server)
            if load.idle or not load.known:
                break
            self.bench.pause(
                self.bench.policy.sample_interval, abortable=self.bench.job.attempts == 0
            )
        result = self.bench.world.nodes[server.api.host].probe(server)
        if result.ok:
            return Proof.of_completion(server, result)
        raise StepError(
            f"{server.name} does not generate: its requests ({result.load.words()}) are never "
            f"finished, and a probe says: {result.why}"
        )

    def check_boots(self, views: Mapping[Role, View | None]) -> None:
        for role, view in views.items():
            if view and self.bench.job.boots.get(role, view["boot"]) != view["boot"]:
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
                raise AwayError(
                    f"{self.bench.name(away[0])} did not come back within "
                    f"{self.bench.policy.resume_wait / 60:g} minutes "
                    f"({self.bench.silence[away[0]]})"
                )
            if not said:
                self.bench.say(f"waiting for {self.bench.name(away[0])}")
                said = True
            self.bench.world.sleep(max(1.0, self.bench.policy.sample_interval))


def _is_active(views: Mapping[Role, View], keeper: Keeper) -> bool:
    row = (views[keeper.host].get("units") or {}).get(keeper.unit, {})
    return row.get("active") in _ALIVE
