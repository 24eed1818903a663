"""Watching a server load: ready, still loading, or failed with the words of whoever knows why."""

from __future__ import annotations

from collections.abc import Mapping

from .. import verdict as verdicts
from ..description import Role, Server
from ..hostview import View
from ..verdict import State
from .bench import Bench
from .world import StepError

_SETTLE_SECONDS = 5.0


class Loading:
    """One start of one server, judged look by look."""

    def __init__(self, bench: Bench, server: Server) -> None:
        self.bench = bench
        self.server = server
        # By host as well: both ranks may carry the same name, and one of them starts first.
        self.seen: set[tuple[Role, str]] = set()
        self.finished_at: float | None = None

    def ready(self, views: Mapping[Role, View]) -> bool:
        """Whether the server is ready to be verified; StepError as soon as it cannot become so."""
        self._look_at_units(views)
        self._look_for_lost_ranks(views)
        found = verdicts.presence(self.server, views, self.bench.description)
        if found.state is State.UP and self._models_answer(views):
            return not self.server.ranks or self.finished_at is not None
        now = self.bench.world.now()
        if found.state is State.UP:
            return False  # the API is slow to answer: that has the whole ready_timeout
        if self.finished_at is not None and now - self.finished_at > _SETTLE_SECONDS:
            # start.sh says 0 when "already running" too, and then applies nothing.
            raise StepError(
                f"the start script of {self.server.name} on {self._head()} ended with success, "
                f"but {found.why or 'no rank of it runs on either machine'}"
            )
        return False

    def _look_at_units(self, views: Mapping[Role, View]) -> None:
        for unit in self.server.units:
            active = self._active(views, unit.host, unit.unit)
            if active == "failed":
                said = self.bench.world.why_failed(unit.unit, unit.host)
                raise StepError(
                    f"{unit.unit} on {self.bench.name(unit.host)} failed"
                    + (f": {said}" if said else "")
                )
            if self.server.ranks and active == "active" and self.finished_at is None:
                self.finished_at = self.bench.world.now()

    def _look_for_lost_ranks(self, views: Mapping[Role, View]) -> None:
        """A rank that was there and is gone ends the start at once, without the full timeout."""
        if not self.server.ranks:
            return
        parts = verdicts.parts_of(self.server, views)
        lost = [
            part for part in parts if (part.host, part.name) in self.seen and part.present is False
        ]
        self.seen |= {(part.host, part.name) for part in parts if part.present}
        # Already failing: its stop script takes the ranks away, and its own words come in a moment.
        failing = any(
            self._active(views, unit.host, unit.unit) == "deactivating"
            for unit in self.server.units
        )
        if lost and not failing:
            raise StepError(
                f"{lost[0].name} on {self.bench.name(lost[0].host)} ended while "
                f"{self.server.name} was loading"
            )

    def _models_answer(self, views: Mapping[Role, View]) -> bool:
        api = views[self.server.api.host].get("apis", {}).get(self.server.name) or {}
        # 401 is an answer too: a server that wants a key is up, and the probe brings the key.
        return api.get("models_status") in (200, 401)

    def _head(self) -> str:
        return self.bench.name(self.server.units[0].host)

    @staticmethod
    def _active(views: Mapping[Role, View], host: Role, unit: str) -> str:
        return str((views[host].get("units") or {}).get(unit, {}).get("active", ""))
