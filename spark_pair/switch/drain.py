"""Waiting until a server that works is idle, and saying meanwhile how it stands.

Nothing is ever guessed to be idle: neither what cannot be read, nor requests that look stuck. Those
are told; what happens to them is decided by the deadline that somebody has set.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..description import Server
from ..metrics import Load
from ..verdict import State, presence
from .bench import Bench
from .machine import Outcome

_TELL_CHANGES_AFTER = 10.0
_TELL_ANYWAY_AFTER = 60.0
"""Seconds between two lines: a restless load must fill neither a terminal nor the journal."""
_LOOK_AFTER = 10.0
"""Seconds after which a server that is busy is looked at again, whether it is still there."""


@dataclass
class Standstill:
    """How long the same number of requests has been running without any token."""

    since: float
    load: Load

    def seconds(self, now: float, load: Load) -> float:
        """Take a sample in; seconds of standstill, 0 when something moved or is not known."""
        held = load.running is not None and load.running > 0 and load.progress is not None
        same = (load.running, load.progress) == (self.load.running, self.load.progress)
        if not (held and same):
            self.since, self.load = now, load
            return 0.0
        return now - self.since


class Drain:
    """Waits for the servers that are to be stopped, one after the other."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.stops = bench.job.drain == "stop"
        policy = bench.policy
        self.limit = policy.drain_deadline_operator if self.stops else policy.drain_deadline

    def all(self) -> Outcome:
        """OK once each of them was idle for the whole quiet period, or may be stopped anyway."""
        for name, found in self.bench.job.verdicts.items():
            if found.state in (State.DOWN, State.DEAD, State.PARTIAL, State.STARTING):
                if found.state is not State.DOWN:
                    self.bench.say(f"{name} is {found.state}: no drain")
                continue
            server = self.bench.running(self.bench.description.server(name))
            outcome = self._one(server)
            if outcome is not Outcome.OK:
                return outcome
        return Outcome.OK

    def _one(self, server: Server) -> Outcome:
        if server.metrics is None:
            if not self.stops:
                return self._give_up(
                    f"{server.name} has no metrics in its description, so nobody can see whether "
                    "it is idle"
                )
            self.bench.say(f"{server.name} has no metrics: its requests cannot be seen")
        world, policy = self.bench.world, self.bench.policy
        started = world.now()
        standstill, looked = Standstill(started, Load()), started
        telling = _Telling(self.bench, server)
        quiet_since: float | None = None
        while True:
            load = self.bench.load(server)
            now = world.now()
            if not load.idle:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            if quiet_since is not None and now - quiet_since >= policy.quiet_period:
                return Outcome.OK
            if not load.known or (not load.idle and now - looked >= _LOOK_AFTER):
                looked = now
                if self._is_gone(server):
                    return Outcome.OK
            words = self._words(load, standstill.seconds(now, load))
            if now - started >= self.limit and quiet_since is None:
                return self._over(server, load, words)
            telling.tell(now, load, words, self._outlook(load, started + self.limit - now))
            self.bench.pause(policy.sample_interval)

    def _is_gone(self, server: Server) -> bool:
        """Whether it has died meanwhile: nobody finishes its requests, and it does not serve."""
        found = presence(server, self.bench.views(), self.bench.description)
        if found.state not in (State.DOWN, State.PARTIAL):
            return False
        self.bench.say(f"{server.name} is {found} now: no drain")
        self.bench.job.verdicts[server.name] = found
        return True

    def _words(self, load: Load, still: float) -> str:
        """The load, and whether it looks stuck: replies take long, so this takes longer."""
        if still < self.bench.policy.long_request_allowance:
            return load.words()
        return f"{load.words()}, unchanged for {still:.0f} s without a token: stuck"

    def _outlook(self, load: Load, left: float) -> str:
        if load.idle:
            return f"has to stay so for {self.bench.policy.quiet_period:g} s"
        time = f"{left / 60:.0f} min" if left > 120 else f"{max(0.0, left):.0f} s"
        return f"{'stopped anyway' if self.stops else 'gives up'} in {time}"

    def _over(self, server: Server, load: Load, words: str) -> Outcome:
        if self.stops:
            self.bench.say(
                f"drain {server.name}: {words} after {self.limit:g} s; stopping as asked"
            )
            return Outcome.OK
        return self._give_up(
            f"{server.name} did not become idle within {self.limit:g} s ({words})",
            self._still_serves(server, load),
        )

    def _still_serves(self, server: Server, load: Load) -> str:
        found = presence(server, self.bench.views(), self.bench.description)
        if not load.known and found.state is State.UNKNOWN:
            return f"whether it still serves is not known ({found.why})"
        return "it still serves"

    def _give_up(self, why: str, serves: str = "it still serves") -> Outcome:
        self.bench.job.message = (
            f"{why}; {serves} and nothing was stopped. 'spark-pair switch "
            f"{self.bench.job.target} --drain stop' stops it after "
            f"{self.bench.policy.drain_deadline_operator:g} s"
        )
        return Outcome.GAVE_UP


class _Telling:
    """Lines about one server: what changed, and now and then that nothing did."""

    def __init__(self, bench: Bench, server: Server) -> None:
        self.bench = bench
        self.server = server
        self.said: str | None = None
        self.at = 0.0

    def tell(self, now: float, load: Load, words: str, outlook: str) -> None:
        ago = now - self.at
        changed = load.words() != self.said and ago >= _TELL_CHANGES_AFTER
        if self.said is None or changed or ago >= _TELL_ANYWAY_AFTER:
            self.bench.say(f"drain {self.server.name}: {words}; {outlook}")
            self.said, self.at = load.words(), now
