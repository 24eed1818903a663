"""What every step of the switch shares: views of both machines, patience, the abort."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..description import ROLES, Generation, Role, Server
from ..errors import NodeError, SparkPairError, UnreachableError
from ..hostview import View
from ..metrics import Load
from ..state import PairState
from .world import AbortedError, Job, Side, StepError, World

A_COMPLETION = "a completion"
"""The usual proof that a server serves: it has answered a question of ours."""


class Bench:
    """The world, the job and the few questions that all steps ask."""

    def __init__(
        self, world: World, job: Job, state: PairState, say: Callable[[str], None]
    ) -> None:
        self.world = world
        self.job = job
        self.state = state
        self.say = say
        self.description = world.description
        self.policy = world.description.policy
        self.silence: dict[Role, str] = {}
        """Why a machine gave no view, in its own or ssh's words."""

    def views(self) -> dict[Role, View | None]:
        """Both hosts' views, taken at the same time; None for a host that cannot be asked."""
        with ThreadPoolExecutor(max_workers=len(ROLES)) as pool:
            return dict(zip(ROLES, pool.map(self._view, ROLES), strict=True))

    def _view(self, role: Role) -> View | None:
        try:
            return self.world.nodes[role].observe()
        except (UnreachableError, NodeError) as error:
            self.silence[role] = str(error)
            return None

    def both_views(self) -> dict[Role, View]:
        """Both hosts' views, waiting a moment for a lost connection; StepError if it stays lost."""
        deadline = self.world.now() + 3 * self.policy.peer_timeout
        while True:
            views = self.views()
            here = {role: view for role, view in views.items() if view is not None}
            if len(here) == len(views):
                return here
            if self.world.now() >= deadline:
                away = next(role for role in ROLES if views[role] is None)
                raise StepError(self.silence[away])
            self.world.sleep(self.policy.sample_interval)

    def insist(self, act: Callable[[], None]) -> None:
        """Do on a machine what may be done twice, waiting a moment for a lost connection."""
        deadline = self.world.now() + 3 * self.policy.peer_timeout
        while True:
            try:
                return act()
            except UnreachableError:
                if self.world.now() >= deadline:
                    raise
            self.world.sleep(self.policy.sample_interval)

    def load(self, server: Server) -> Load:
        try:
            return self.world.nodes[server.api.host].load(server)
        except SparkPairError:
            return Load()

    def side(self, server: Server) -> Side:
        """The server as it runs now: its generation is the one its link points to."""
        made = server.generation
        current = self.world.current(server)
        if made is None or current is None:
            return Side(server.name)
        folder = made.path.rpartition("/")[0]
        return Side(server.name, Generation(current, f"{folder}/{current}", made.current))

    def running(self, server: Server) -> Server:
        """The server with the port, name and context of the generation that runs."""
        return self.world.form(server, self.side(server).generation)

    def form(self, side: Side) -> Server:
        """The server as it is on one side of the switch."""
        return self.world.form(self.description.server(side.server), side.generation)

    def note(self, text: str) -> None:
        """Say something that belongs into the last line as well."""
        self.say(text)
        self.job.notes.append(text)

    def remember_serving(self, server: Server, by: str = A_COMPLETION) -> None:
        """Keep who serves, since when, and what has proven it."""
        known = self.state.serving or {}
        current = self.world.current(server)
        stamp = time.time()
        if known.get("server") != server.name or known.get("generation") != current:
            known = {"server": server.name, "generation": current, "since": stamp}
        self.state.serving = {**known, "verified_at": stamp, "verified_by": by}

    def pause(self, seconds: float, *, abortable: bool = True) -> None:
        if abortable:
            self.check_abort()
        self.world.sleep(seconds)

    def check_abort(self) -> None:
        if self.world.aborted():
            raise AbortedError

    def name(self, role: Role) -> str:
        return self.description.host_name(role)
