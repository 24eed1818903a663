"""What the switch works on: the world it touches, and the job it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..description import Command, Generation, PairDescription, Role, Server
from ..engine_planned import Declared
from ..errors import SparkPairError
from ..journal import Event
from ..node import Node
from ..state import PairState
from ..system import Result
from ..verdict import Verdict

BOOTED = "booted"
"""The event of a journal that says that a machine was booted during the switch."""


class World(Protocol):
    """Everything the switch touches; a fake one runs the same code without hosts."""

    description: PairDescription
    nodes: Mapping[Role, Node]

    def now(self) -> float:
        """Seconds on a clock that no one can set."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def run_command(self, command: Command, generation: Generation | None) -> Result:
        """Run one of a server's own scripts on the head, as its user."""

    def current(self, server: Server) -> str | None:
        """Hash of the generation that the server's link points to."""

    def form(self, server: Server, generation: Generation | None) -> Server:
        """The server with the port, name and context that `generation` serves it with."""

    def flip(self, generation: Generation) -> None:
        """Point the server's link at `generation`, atomically."""

    def generation_problem(self, generation: Generation) -> str | None:
        """Why a prepared generation cannot be used, or None."""

    def only_strays(self, generation: Generation) -> bool:
        """Whether a generation has a problem only with new files that somebody left in it."""

    def kit_problem(self, generation: Generation) -> str | None:
        """What the generation's image on the head lacks of the declared kit, or None."""

    def declared(self, generation: Generation) -> Declared | None:
        """What a prepared generation declares; None when it is not of the kind that says so."""

    def aborted(self) -> bool:
        """Whether the operator asked to abort."""

    def record(self, event: Event) -> None:
        """Append to the journal."""

    def reserve(self) -> None:
        """Set disk room for the journal aside; OSError when there is none."""

    def past_the_point(self) -> None:
        """From now on a failing journal write must not stop the switch."""

    def save(self, state: PairState) -> None:
        """Keep the state; before the point of no return an OSError is raised."""

    def key_problem(self, server: Server) -> str | None:
        """Why the server's API key cannot be used, or None."""

    def restarts(self, server: str, window: float) -> int:
        """How often the server was restarted because it had broken, within `window` seconds."""

    def why_failed(self, unit: str, role: Role) -> str:
        """The end of a failed unit's log, for the reason; "" where it cannot be read."""


class AbortedError(Exception):
    """The operator asked to abort."""


class StepError(SparkPairError):
    """A step did not reach its goal; the message is the reason in the end."""


class AwayError(StepError):
    """A machine stayed away; no other candidate could be brought back either."""


@dataclass(frozen=True)
class Side:
    """A server in one of its generations."""

    server: str
    generation: Generation | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the journal."""
        made = self.generation
        return {
            "server": self.server,
            "generation": vars(made) if made else None,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any] | None) -> Side | None:
        """Invert `as_dict`."""
        if not data:
            return None
        made = data.get("generation")
        return Side(data["server"], Generation(**made) if made else None)

    def __str__(self) -> str:
        return f"{self.server} ({self.generation.hash})" if self.generation else self.server


@dataclass
class Job:
    """One switch: what was asked, and what was found out on the way."""

    id: str
    target: str
    asked_by: str
    reason: str
    drain: str = "keep"
    hold: bool = False
    former: Side | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    boots: dict[Role, str] = field(default_factory=dict)
    attempts: int = 0
    booted: bool = False
    """Whether a machine was booted during the switch: then the fallback is brought back first."""
    message: str = ""
    cause: str = ""
    """Why the target failed; kept while the recovery writes its own messages."""
    changed: bool = False
    restart: bool = False
    """Whether the target is started again because it broke, which is throttled."""
    dry: bool = False
    """Only look: what would be done is not done."""
    plan: dict[str, Any] | None = None
    """Each rank's start as the dry run planned it, by its number; None when nothing is known."""
    notes: list[str] = field(default_factory=list)
    """What did not go as it should without putting the server in doubt; told at the end."""
