"""What the handlers of a running Hub share: repositories, accounts, faults, and what was asked."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .faults import Faults, Pace
from .repositories import Held
from .xet import Store


@dataclass(frozen=True)
class Account:
    """Whom a token belongs to, and the gated repositories whose terms that account accepted."""

    name: str
    accepted: tuple[str, ...] = ()
    gated_right: bool = True


@dataclass
class Request:
    """One request as it was answered. ``sent`` is bytes of body that went out."""

    method: str
    target: str
    kind: str = ""
    repository: str = ""
    path: str = ""
    token: bool = False
    range: str = ""
    status: int = 0
    sent: int = 0
    store: bool = False
    at: float = field(default_factory=time.time)


@dataclass
class State:
    """All that the handlers share."""

    held: dict[str, Held]
    faults: Faults
    accounts: dict[str, Account]
    page: int = 1000
    pace: Pace | None = None
    store: Store | None = None
    cas_url: str = ""
    log_file: Path | None = None
    hub_port: int = 0
    store_port: int = 0
    requests: list[Request] = field(default_factory=list)
    answering: list[Request] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, request: Request) -> None:
        """A request has come."""
        with self.changed:
            self.answering.append(request)

    def end(self, request: Request) -> None:
        """It was answered, or given up: keep it, also as a line of the log file."""
        with self.changed:
            self.answering = [other for other in self.answering if other is not request]
            self.requests.append(request)
            if self.log_file is not None:
                with self.log_file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(request)) + "\n")
            self.changed.notify_all()

    def settled(self, seconds: float) -> list[Request]:
        """The finished requests as they came, once none is being answered or after ``seconds``.

        A client has its answer a moment before the answer is finished here.
        """
        with self.changed:
            self.changed.wait_for(lambda: not self.answering, seconds)
            return sorted(self.requests, key=lambda request: request.at)
