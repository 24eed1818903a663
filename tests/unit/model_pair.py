"""A fake pair with a watchdog that revives its server, and faults that strike when a phase begins.

What the exploration of the switch runs on: every way to begin, every fault, every moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fake_pair import NEW, OLD, FakeNode, FakePair, Killed, describe

from spark_pair.description import Role
from spark_pair.errors import Exit, NodeError
from spark_pair.journal import Event, Record
from spark_pair.probe import ProbeResult
from spark_pair.switch.machine import Phase
from spark_pair.switch.run import drive, go_on, job_from
from spark_pair.switch.work import Work
from spark_pair.switch.world import Job

PATIENCE = {
    "quiet_period": 2,
    "sample_interval": 1,
    "drain_deadline": 12,
    "drain_deadline_operator": 6,
    "dead_after": 4,
    "prefill_allowance": 5,
    "long_request_allowance": 6,
    "stop_timeout": 4,
    "release_timeout": 4,
    "resume_wait": 8,
    "peer_timeout": 1,
}

_LIVES = 12


@dataclass(frozen=True)
class Beginning:
    """Who serves, who is asked for, and how."""

    target: str
    serving: tuple[str, ...]
    generation: str = OLD
    dead: bool = False
    fallback: str = "hikari"
    drain: str = "keep"

    def __str__(self) -> str:
        who = "+".join(self.serving) or "nobody"
        words = [f"{who}{' (dead)' if self.dead else ''} to {self.target}", self.drain]
        return ", ".join([*words, f"fallback {self.fallback}"])


BEGINNINGS = (
    Beginning("deepseek", ("hikari",)),
    Beginning("deepseek", ("hikari",), fallback="none"),
    Beginning("deepseek", ("hikari",), dead=True),
    Beginning("deepseek", ()),
    Beginning("deepseek", (), fallback="none"),
    Beginning("deepseek", ("deepseek",)),
    Beginning("deepseek", ("deepseek",), generation=NEW, dead=True),
    Beginning("hikari", ("deepseek",), generation=NEW, drain="stop"),
    Beginning("hikari", ("deepseek",), generation=NEW, dead=True, drain="stop"),
    Beginning("none", ("hikari",)),
    Beginning("none", ("deepseek",), generation=NEW),
)


Strike = Callable[["ModelPair"], None]
"""Something that goes wrong, or is well again."""


class ModelNode(FakeNode):
    """A machine whose units may refuse to stop, and whose Docker may say nothing."""

    pair: ModelPair

    def observe(self) -> dict[str, Any]:
        view = super().observe()
        if self.role in self.pair.docker_silent:
            view["containers"] = None
        return view

    def stop_unit(self, unit: str, timeout: float) -> None:
        if unit in self.pair.unstoppable:
            self._here()
            self.pair.act(f"stop {unit}")
            self.pair.sleep(timeout)
            raise NodeError(f"{unit} did not stop on {self.role}: timeout")
        super().stop_unit(unit, timeout)


class ModelPair(FakePair):
    """One pair, set up for one beginning."""

    def __init__(self, beginning: Beginning) -> None:
        def change(data: dict[str, Any]) -> None:
            data["policy"] = dict(PATIENCE)
            data["fallback"] = beginning.fallback
            for server in data["servers"].values():
                server |= {"ready_timeout": 6, "unit_stop_timeout": 2}
                server["probe"]["timeout"] = 1

        super().__init__(describe(change))
        self.beginning = beginning
        self.nodes = {role: ModelNode(self, role) for role in self.boots}
        self.docker_silent: set[str] = set()
        self.unstoppable: set[str] = set()
        self.strikes: dict[str, Strike] = {}
        """What strikes as soon as a phase has begun."""
        self.lifts: list[tuple[float, Strike]] = []
        self.links["deepseek"] = beginning.generation
        self.rebooted = False
        self.moved_by_itself = False
        """Whether a fault of its own has changed what runs."""
        self.strike_at_action: tuple[int, bool, Strike] | None = None
        """Number of the action, whether after it, and what strikes."""
        self.strike_when_killed: Strike | None = None
        self.deaths: list[int] = []
        for name in beginning.serving:
            self.start(name)
            if beginning.dead:
                self.servers[name].probe = self.dead_until_restarted(name)
        self.found = self.shape()

    def dead_until_restarted(self, name: str) -> Callable[[int], ProbeResult]:
        unit = self.description.servers[name].units[-1].unit

        def probe(_: int) -> ProbeResult:
            if f"start {unit}" in self.actions:
                return ProbeResult("ok", "", 0.1, "hello")
            return ProbeResult("bad", "no text")

        return probe

    def shape(self) -> tuple[object, ...]:
        """All that a switch that touched nothing leaves as it was."""
        up = {key for key, active in self.units.items() if active == "active"}
        return frozenset(up), frozenset(map(tuple, map(sorted, self.containers.values())))

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for at, lift in self.lifts:
            if self.clock >= at:
                lift(self)
        self.lifts = [(at, lift) for at, lift in self.lifts if self.clock < at]
        self._watch()

    def _watch(self) -> None:
        """What a watchdog's timer does: the server's unit is not to be down."""
        head: tuple[Role, str] = ("worker", "hikari-head.service")
        watched = "worker" not in self.away and self.units["worker", "watchdog.timer"] == "active"
        if watched and self.units.get(head) == "inactive":
            self.units[head] = "active"
            self._look_for_overlap()

    def act(self, what: str) -> None:
        number, late, strike = self.strike_at_action or (0, False, None)
        now = strike is not None and number == len(self.actions) + 1
        if now and strike and not late:
            strike(self)
        super().act(what)
        if now and strike and late:
            strike(self)

    def record(self, event: Event) -> None:
        super().record(event)
        if event["event"] == "phase" and (strike := self.strikes.pop(event["phase"], None)):
            strike(self)

    def work(self, job: Job) -> Work:
        return Work(
            self, job, self.saved, lambda text: self.record({"event": "note", "text": text})
        )

    def switch(self) -> Exit:
        """The whole switch, from its first line to its last."""
        asked = self.beginning
        job = Job("s1", asked.target, "a test", "a test", drain=asked.drain)
        self.record({"event": "begin", "target": asked.target, "drain": asked.drain, "hold": False})
        return drive(self, self.work(job), job, Phase.OBSERVE)

    def resume(self) -> Exit:
        """Go on as a new process does, from the journal alone."""
        record = Record("s1", tuple(self.events))
        job = job_from(record)
        return go_on(self, self.work(job), job, record)

    def to_the_end(self) -> Exit:
        """Switch, or go on; and go on after every death of the process, as systemd makes it."""
        for _ in range(_LIVES):
            try:
                return self.resume() if self.events else self.switch()
            except Killed:
                self.next_death()
                if self.strike_when_killed:
                    self.strike_when_killed(self)
                    self.strike_when_killed = None
        raise AssertionError("it never ended")

    def next_death(self) -> None:
        """Die as late as `deaths` says, counted in lines of the journal."""
        if self.deaths:
            self.kill_at_event = len(self.events) + self.deaths.pop(0)

    def there(self) -> list[str]:
        """Servers of which anything is there."""
        return [
            name
            for name, server in self.description.servers.items()
            if any(self.parts(server))
            or any(self.units.get((unit.host, unit.unit)) == "active" for unit in server.units)
        ]
