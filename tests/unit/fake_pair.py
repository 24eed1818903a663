"""Two machines in memory: enough physics to run every phase of the switch without hosts.

Time passes only when something sleeps. Faults are plain attributes that a test sets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_pair.description import (
    Command,
    Generation,
    PairDescription,
    Role,
    Server,
    parse,
)
from spark_pair.engine_planned import Declared
from spark_pair.errors import Exit, NodeError, UnreachableError
from spark_pair.journal import Event
from spark_pair.metrics import Load
from spark_pair.probe import ProbeResult
from spark_pair.state import PairState
from spark_pair.switch.machine import Phase
from spark_pair.switch.run import drive
from spark_pair.switch.work import Work
from spark_pair.switch.world import Job
from spark_pair.system import Result

OLD = "0" * 12
NEW = "1" * 12


def description_data() -> dict[str, Any]:
    """A description like the one the playbook writes, with short patience."""
    generations = "/var/lib/spark-pair/generations"
    return {
        "schema": 1,
        "pair": "a+b",
        "me": "head",
        "hosts": {
            "head": {"name": "a", "user": "one", "home": "/home/one", "addresses": ["192.0.2.1"]},
            "worker": {"name": "b", "user": "two", "home": "/srv/two", "addresses": ["192.0.2.2"]},
        },
        "wanted": "deepseek",
        "fallback": "hikari",
        "policy": {
            "quiet_period": 60,
            "sample_interval": 1,
            "drain_deadline": 300,
            "drain_deadline_operator": 120,
            "dead_after": 180,
            "stop_timeout": 30,
            "release_timeout": 30,
            "resume_wait": 60,
            "peer_timeout": 2,
        },
        "servers": {
            "hikari": {
                "api": {"host": "worker", "port": 8000, "model": "Qwen"},
                "metrics": {
                    "running": "vllm:num_requests_running",
                    "waiting": "vllm:num_requests_waiting",
                    "progress": ["vllm:generation_tokens_total"],
                },
                "units": [
                    {"host": "head", "unit": "hikari-worker.service"},
                    {"host": "worker", "unit": "hikari-head.service"},
                ],
                "keepers": [
                    {"host": "worker", "unit": "watchdog.timer"},
                    {"host": "worker", "unit": "metrics.timer"},
                    {"host": "worker", "unit": "watchdog.service", "restore": "never"},
                ],
                "ports": [{"host": "worker", "port": 8000}],
                "ready_timeout": 60,
                "probe": {"body": {"messages": [{"role": "user", "content": "hi"}]}},
            },
            "deepseek": {
                "api": {"host": "head", "port": 8888, "model": "DeepSeek"},
                "metrics": {
                    "running": "tensorfold:num_requests_running",
                    "waiting": "tensorfold:num_requests_waiting",
                    "progress": ["tensorfold:generation_tokens_total"],
                },
                "units": [{"host": "head", "unit": "deepseek.service"}],
                "ranks": [
                    {"host": "head", "container": "ds"},
                    {"host": "worker", "container": "ds"},
                ],
                "images": ["image:1"],
                "ports": [{"host": "head", "port": 8888}],
                "commands": {
                    "dry_run": {"host": "head", "argv": ["{generation}/launch", "start.sh"]},
                    "stop": {"host": "head", "argv": ["{generation}/launch", "stop.sh"]},
                },
                "context": {"expect": 262144},
                "memory_gate_gib": 112,
                "ready_timeout": 60,
                "probe": {"body": {"messages": [{"role": "user", "content": "hi"}]}},
                "generation": {
                    "hash": NEW,
                    "path": f"{generations}/{NEW}",
                    "current": "/var/lib/spark-pair/current/deepseek",
                },
                "weights": {
                    "checkpoint": "45ee5d0f",
                    "overlay": None,
                    "engram": "1bae0e10",
                    "engram_files": [{"pattern": "*-00047-of-*", "count": 1}],
                },
            },
        },
    }


def describe(change: Callable[[dict[str, Any]], None] | None = None) -> PairDescription:
    """Parse the description, changed by the caller first."""
    data = copy.deepcopy(description_data())
    if change:
        change(data)
    return parse(data)


@dataclass
class FakeServer:
    """How a server behaves; parts that run are in `FakePair.running`."""

    probe: Callable[[int], ProbeResult] = lambda _: ProbeResult("ok", "", 0.1, "hello")
    load: Load = field(default_factory=lambda: Load(0, 0, (0.0,)))
    context: int | None = 262144
    starts: bool = True
    """Whether a start makes it run; False is a start that fails."""
    slow_rank_until: float = 0
    """Rank 1 is there at once, rank 0 this many seconds after the start."""
    claims_only: bool = False
    """The start says that all went well and starts nothing."""
    stops: bool = True
    without_key: str = ""
    """How it answers whoever sends no key; "" is a refusal."""
    probes: int = 0


class Killed(BaseException):
    """The tool's process died at this moment."""


class FakePair:
    """The world of `spark_pair.switch.work`, in memory."""

    def __init__(self, description: PairDescription | None = None) -> None:
        self.description = description or describe()
        self.clock = 1000.0
        self.events: list[Event] = []
        self.saved = PairState()
        self.units: dict[tuple[Role, str], str] = {}
        self.containers: dict[Role, set[str]] = {"head": set(), "worker": set()}
        self.servers = {name: FakeServer() for name in self.description.servers}
        self.links: dict[str, str] = {"deepseek": OLD}
        self.away: set[Role] = set()
        self.boots: dict[Role, str] = {"head": "boot-a", "worker": "boot-b"}
        self.total_gib = 121.0
        self.held_gib = 0.0
        self.missing: dict[Role, list[str]] = {"head": [], "worker": []}
        self.contents: dict[Role, str] = {"head": "1" * 64, "worker": "1" * 64}
        """What every image consists of."""
        self.without_kit = ""
        self.changed_generation = ""
        self.strays = ""
        """What the head's image lacks, in a sentence."""
        self.doubts: dict[Role, list[str]] = {"head": [], "worker": []}
        """What is wrong with the weights of each host."""
        self.unit_load: dict[str, str] = {}
        self.squatted: set[int] = set()
        self.abort_at: float | None = None
        self.kill_at_event: int | None = None
        self.kill_at_action: int | None = None
        self.actions: list[str] = []
        self.disk_full_from: int | None = None
        self.dry_run_code = 0
        self.dry_run_out = "docker run -d --name ds image"
        self.dry_run_err = ""
        self.declares: Declared | None = None
        """What every generation declares; None is a server that declares nothing."""
        self.ranks: dict[Role, dict[str, Any]] = {"head": {}, "worker": {}}
        """How each machine's rank was made, once it runs."""
        self.kinds: dict[str, str] = {}
        """Kinds of file systems by folder; all others are ext4."""
        self.keyless: list[str] = []
        """Servers that were asked without their key."""
        self.restart_count = 0
        self.on_sleep: Callable[[FakePair], None] | None = None
        self.nodes: Mapping[Role, Any] = {role: FakeNode(self, role) for role in self.boots}
        for keeper in ("watchdog.timer", "metrics.timer"):
            self.units["worker", keeper] = "inactive"
        self.overlaps: list[str] = []
        self.switches = 0
        self.starts_are_noops = False
        self.forms: dict[str, Callable[[Server], Server]] = {}
        self.systemd_silent: set[Role] = set()
        self.keepers_fail: set[str] = set()
        self.loading: tuple[Server, float] | None = None

    @property
    def switch_id(self) -> str:
        """Id of the switch that runs; the first one of a test is s1."""
        return f"s{max(1, self.switches)}"

    # -- physics --

    def start(self, name: str) -> None:
        """Make a server run, with its keepers, as found at the beginning of a test."""
        self._up(self.description.servers[name])
        for keeper in self.description.servers[name].keepers:
            if keeper.restore == "as_found":
                self.units[keeper.host, keeper.unit] = "active"

    def _up(self, server: Server) -> None:
        for unit in server.units:
            self.units[unit.host, unit.unit] = "active"
        for rank in server.ranks:
            self.containers[rank.host].add(rank.container)
        self._look_for_overlap()

    def _down(self, server: Server, unit: str) -> None:
        for known in server.units:
            if known.unit == unit:
                self.units[known.host, unit] = "inactive"
        if server.ranks and self.servers[server.name].stops:
            for rank in server.ranks:
                if rank.host not in self.away:
                    self.containers[rank.host].discard(rank.container)

    def parts(self, server: Server) -> list[bool]:
        """Presence of each part of a server."""
        if server.ranks:
            return [rank.container in self.containers[rank.host] for rank in server.ranks]
        return [self.units.get((unit.host, unit.unit)) == "active" for unit in server.units]

    def answers(self) -> list[str]:
        """Servers of which every part runs."""
        return [
            name for name, server in self.description.servers.items() if all(self.parts(server))
        ]

    def generates(self) -> list[str]:
        """Servers that would answer a completion."""
        return [name for name in self.answers() if self.servers[name].probe(99).ok]

    def _look_for_overlap(self) -> None:
        for role in ("head", "worker"):
            present = [
                name
                for name, server in self.description.servers.items()
                if any(rank.host == role and rank.container in self.containers[role]
                       for rank in server.ranks)
                or (not server.ranks and any(unit.host == role
                    and self.units.get((unit.host, unit.unit)) == "active"
                    for unit in server.units))
            ]  # fmt: skip
            if len(present) > 1:
                self.overlaps.append(f"{role}: {present}")

    def act(self, what: str) -> None:
        """Note an action, and die if a test said so."""
        self.actions.append(what)
        if self.kill_at_action == len(self.actions):
            self.kill_at_action = None
            raise Killed

    def available(self) -> float:
        """Memory that is available on each machine."""
        used = 100.0 if self.answers() else 0.0
        return self.total_gib - used - self.held_gib

    # -- the World protocol --

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds
        if self.loading and self.clock >= self.loading[1]:
            self._up(self.loading[0])
            self.loading = None
        if self.on_sleep:
            self.on_sleep(self)

    def run_command(self, command: Command, generation: Generation | None) -> Result:
        self.act("run " + " ".join(command.argv))
        if "stop.sh" in command.argv[-1]:
            server = self.description.servers["deepseek"]
            self._down(server, "deepseek.service")
            return Result(0, "", "")
        return Result(self.dry_run_code, self.dry_run_out, self.dry_run_err)

    def current(self, server: Server) -> str | None:
        return self.links.get(server.name)

    def form(self, server: Server, generation: Generation | None) -> Server:
        made = self.forms.get(generation.hash) if generation else None
        return made(server) if made else server

    def key_problem(self, server: Server) -> str | None:
        return None

    def flip(self, generation: Generation) -> None:
        self.act(f"flip {generation.hash}")
        self.links[generation.current.rpartition("/")[2]] = generation.hash

    def generation_problem(self, generation: Generation) -> str | None:
        return self.changed_generation or self.strays or None

    def only_strays(self, generation: Generation) -> bool:
        return bool(self.strays) and not self.changed_generation

    def kit_problem(self, generation: Generation) -> str | None:
        return self.without_kit or None

    def declared(self, generation: Generation) -> Declared | None:
        return self.declares

    def aborted(self) -> bool:
        return self.abort_at is not None and self.clock >= self.abort_at

    def record(self, event: Event) -> None:
        if self.kill_at_event == len(self.events):
            self.kill_at_event = None
            raise Killed
        self.events.append({"time": self.clock, "id": self.switch_id, **event})

    def reserve(self) -> None:
        if self.disk_full_from is not None:
            raise OSError(28, "No space left on device")

    def past_the_point(self) -> None:
        pass

    def save(self, state: PairState) -> None:
        self.saved = copy.deepcopy(state)

    def restarts(self, server: str, window: float) -> int:
        return self.restart_count

    def why_failed(self, unit: str, role: Role) -> str:
        return "[start.sh] ERROR: it broke"


class FakeNode:
    """One machine of the fake pair."""

    def __init__(self, pair: FakePair, role: Role) -> None:
        self.pair = pair
        self.role: Role = role

    def _here(self) -> None:
        if self.role in self.pair.away:
            raise UnreachableError(f"{self.role} cannot be reached")

    def hello(self) -> dict[str, Any]:
        self._here()
        return {"release": "r1"}

    def observe(self) -> dict[str, Any]:
        self._here()
        pair = self.pair
        up = pair.answers()
        units = {
            name: {
                "load": pair.unit_load.get(name, "loaded"),
                "active": pair.units.get((self.role, name), "inactive"),
                "sub": "",
                "enabled": "enabled",
                "result": "",
            }
            for name in pair.description.all_units()
        }
        ports = {
            str(port.port): server.name in up or port.port in pair.squatted
            for server in pair.description.servers.values()
            for port in server.ports
        }
        return {
            "host": pair.description.host_name(self.role),
            "role": self.role,
            "boot": pair.boots[self.role],
            "memory": {"total_gib": pair.total_gib, "available_gib": pair.available()},
            "units": None if self.role in pair.systemd_silent else units,
            "containers": {
                name: {"state": "running", "image": "", "id": f"{name}-{self.role}"}
                for name in pair.containers[self.role]
            },
            "ports": ports,
            "generations": dict(pair.links),
            "apis": {
                name: {
                    "listens": name in up or server.api.port in pair.squatted,
                    "models_status": 200 if name in up else None,
                    "load": pair.servers[name].load.as_dict(),
                    "context": pair.servers[name].context,
                    "probe": None,
                }
                for name, server in pair.description.servers.items()
                if server.api.host == self.role
            },
        }

    def load(self, server: Server) -> Load:
        self._here()
        return self.pair.servers[server.name].load

    def probe(self, server: Server) -> ProbeResult:
        self._here()
        known = self.pair.servers[server.name]
        known.probes += 1
        if server.name not in self.pair.answers():
            return ProbeResult("refused", "connection refused")
        result = known.probe(known.probes)
        if result.kind == "timeout":
            self.pair.sleep(server.probe.timeout)
        return result

    def without_key(self, server: Server) -> str:
        self._here()
        self.pair.keyless.append(server.name)
        return self.pair.servers[server.name].without_key

    def stop_unit(self, unit: str, timeout: float) -> None:
        self._here()
        pair = self.pair
        pair.act(f"stop {unit}")
        for server in pair.description.servers.values():
            if unit in [known.unit for known in server.units]:
                pair._down(server, unit)
                return
        pair.units[self.role, unit] = "inactive"

    def start_unit(self, unit: str, *, restart: bool) -> None:
        self._here()
        pair = self.pair
        pair.act(f"start {unit}")
        if pair.starts_are_noops:
            return
        if unit in pair.keepers_fail:
            raise NodeError(f"{unit} could not be started on {self.role}: masked")
        for server in pair.description.servers.values():
            names = [known.unit for known in server.units]
            if unit not in names:
                continue
            if not pair.servers[server.name].starts:
                pair.units[self.role, unit] = "failed"
                return
            pair.units[self.role, unit] = "active"
            known = pair.servers[server.name]
            if server.ranks and known.slow_rank_until:
                pair.units[self.role, unit] = "activating"
                pair.containers["worker"].add("ds")
                pair.loading = (server, pair.clock + known.slow_rank_until)
            elif server.ranks and not known.claims_only:
                pair._up(server)
            pair._look_for_overlap()
            return
        pair.units[self.role, unit] = "active"

    def remove_rank(self, container: str) -> None:
        self._here()
        self.pair.act(f"remove {container} on {self.role}")
        self.pair.containers[self.role].discard(container)

    def missing_images(self, server: Server) -> list[str]:
        self._here()
        return self.pair.missing[self.role]

    def image_contents(self, server: Server) -> dict[str, str]:
        self._here()
        return dict.fromkeys(server.images, self.pair.contents[self.role])

    def weight_problems(self, server: Server) -> list[str]:
        self._here()
        return self.pair.doubts[self.role] if server.ranks_on(self.role) else []

    def context(self, server: Server) -> int | None:
        self._here()
        return self.pair.servers[server.name].context

    def rank(self, server: Server) -> dict[str, Any]:
        self._here()
        return self.pair.ranks[self.role]

    def filesystems(self, paths: Sequence[str]) -> dict[str, str | None]:
        self._here()
        return {path: self.pair.kinds.get(path, "ext4") for path in paths}


def switch(
    pair: FakePair,
    target: str = "deepseek",
    *,
    drain: str = "keep",
    hold: bool = False,
    state: PairState | None = None,
) -> tuple[Exit, Job]:
    """Run a whole switch on the fake pair, from observe to its end."""
    pair.switches += 1
    job = Job(pair.switch_id, target, "a test", "a test", drain=drain, hold=hold)
    pair.record({"event": "begin", "target": target, "drain": drain, "hold": hold})
    work = Work(pair, job, state or pair.saved, lambda text: pair.record(
        {"event": "note", "text": text}))  # fmt: skip
    return drive(pair, work, job, Phase.OBSERVE), job


def phases(pair: FakePair) -> list[str]:
    """The phases that were entered."""
    return [event["phase"] for event in pair.events if event["event"] == "phase"]
