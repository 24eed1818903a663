"""Leaving the machines empty when nobody could be brought back, also with one of them away.

What cannot be proven not to serve is never stopped here: a machine may be out of reach for its
management link only, and its server may be the one that still answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..description import ROLES, Role, Server
from ..errors import SparkPairError
from ..hostview import View
from ..verdict import State
from .bench import Bench
from .hands import Hands
from .look import Look
from .world import StepError


class Cleaning:
    """Stops what is left, and says what had to stay."""

    def __init__(self, bench: Bench, look: Look, hands: Hands) -> None:
        self.bench = bench
        self.look = look
        self.hands = hands
        self.answering: list[str] = []
        """Servers that were found to answer, and were therefore left."""

    def clean(self) -> list[str]:
        """Stop all that is there. Returns what is left, in words; empty when nothing is."""
        try:
            self.bench.both_views()
        except StepError:
            return self._on_one_machine()
        try:
            self.hands.stop_everything()
        except (SparkPairError, OSError) as error:
            return [str(error)]
        return []

    def _on_one_machine(self) -> list[str]:
        views = self.bench.views()
        here = {role: view for role, view in views.items() if view is not None}
        left = [
            f"{self.bench.name(role)} cannot be asked ({self.bench.silence[role]})"
            for role in ROLES
            if role not in here
        ]
        for server in self.bench.description.servers.values():
            if not self.hands.parts_left(server, here):
                continue
            why = self._spared(server, views)
            if why:
                left.append(why)
                continue
            try:
                self._stop_here(server, here)
            except SparkPairError as error:
                left.append(str(error))
        return left

    def _spared(self, server: Server, views: Mapping[Role, View | None]) -> str:
        """Why a server of which a part is there must not be stopped; "" when it may be."""
        api = views[server.api.host]
        if api is None:
            asked = self.bench.name(server.api.host)
            return f"{server.name} was left alone, since it may be serving on {asked}"
        if not api.get("apis", {}).get(server.name, {}).get("listens"):
            return ""
        found = self.look.assess(self.bench.running(server), views, abortable=False)
        if found.state is State.DEAD:
            return ""
        self.answering.append(server.name)
        return f"{server.name} still answers ({found.state}) and was left alone"

    def _stop_here(self, server: Server, here: Mapping[Role, View]) -> None:
        for unit in reversed(server.units):
            if unit.host in here:
                self.bench.say(f"stop {unit.unit} on {self.bench.name(unit.host)}")
                try:
                    node = self.bench.world.nodes[unit.host]
                    node.stop_unit(unit.unit, server.unit_stop_timeout)
                except SparkPairError as error:
                    # Not the end: what counts is what is seen to be left, below.
                    self.bench.say(str(error))
        for rank in server.ranks:
            view = self.bench.views()[rank.host]
            if view and rank.container in (view.get("containers") or {}):
                self.bench.say(
                    f"remove {rank.container} on {self.bench.name(rank.host)}, keeping its log"
                )
                self.bench.world.nodes[rank.host].remove_rank(rank.container)
        seen = {role: view for role, view in self.bench.views().items() if view is not None}
        if still := self.hands.parts_left(server, seen):
            raise StepError(still)
