"""Watching a job from afar until it ends: a lost connection is waited for, the job needs none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SparkPairError
from .shapes import JobState

POLL_SECONDS = 2.0
LOST_CONNECTION_SECONDS = 600.0
SECONDS_BETWEEN_LINES = 15.0
"""Where nobody watches live; a log needs no line for every two seconds of five hours."""

View = Mapping[str, Any]
"""A job as `spark-pair jobs look --json` tells it."""

Look = Callable[[], tuple[View | None, str]]
"""The job now; or None and, in words, why its host did not tell."""

_ENDINGS = {
    JobState.FAILED: "failed",
    JobState.LOST: "was cut off",
    JobState.ABSENT: "is not known there",
}


class FollowError(SparkPairError):
    """The job cannot be watched any longer, or did not end well; the message names its host."""


class Follower:
    """Watches one job of one host and says what it sees."""

    def __init__(
        self,
        host: str,
        name: str,
        words: str,
        look: Look,
        say: Callable[[str], object],
        *,
        live: bool,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`words` say what the job is for; `live` whether a person watches the lines come."""
        self._host, self._name, self._words = host, name, words
        self._look, self._say = look, say
        self._pause = POLL_SECONDS if live else SECONDS_BETWEEN_LINES
        self._sleep, self._clock = sleep, clock
        self._said = ""
        self._said_at: float | None = None

    def attached(self, *, same: bool) -> None:
        """Say that the job ran already. Raises FollowError when it does something else."""
        if not same:
            raise FollowError(
                f"On {self._host} the job {self._name} runs already, and with another order: wait "
                f"for it ('spark-pair jobs follow {self._name}' there) or stop it ('sudo "
                f"spark-pair jobs stop {self._name}'), then run again"
            )
        self._say(f"{self._words} runs already, attached to it")

    def follow(self) -> View:
        """Watch until the job is done, and return it as it was seen last. Raises FollowError."""
        lost_since: float | None = None
        while True:
            view, why = self._look()
            now = self._clock()
            if view is None:
                lost_since = self._lost(lost_since, now, why)
            else:
                if lost_since is not None:
                    self._say("answers again")
                lost_since = None
                if view["state"] != JobState.RUNNING:
                    return self._ended(view)
                self._show(str(view["line"]), now)
            self._sleep(POLL_SECONDS)

    def _lost(self, since: float | None, now: float, why: str) -> float:
        if since is None:
            self._say(f"does not answer ({why}); the job goes on there, waiting")
            return now
        if now - since > LOST_CONNECTION_SECONDS:
            raise FollowError(
                f"{self._host} has not answered for {LOST_CONNECTION_SECONDS / 60:g} minutes "
                f"({why}). The job {self._name} goes on by itself there: run again to attach to "
                "it, or see 'spark-pair jobs' on the machine"
            )
        return since

    def _show(self, line: str, now: float) -> None:
        if line == self._said or (self._said_at is not None and now - self._said_at < self._pause):
            return
        self._said, self._said_at = line, now
        self._say(line)

    def _ended(self, view: View) -> View:
        message = str(view.get("message") or "")
        if view["state"] != JobState.DONE:
            how = _ENDINGS.get(view["state"], str(view["state"]))
            why = message or "nobody knows how it ended"
            raise FollowError(f"{self._words} on {self._host} {how}: {why}")
        self._say(f"{self._words}: {message or 'done'}")
        return view


def view_in(output: str) -> View | None:
    """The job in what `spark-pair jobs look --json` put out, whatever sudo or ssh said, too."""
    for line in reversed(output.strip().splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                return None
            return found if isinstance(found, dict) and "state" in found else None
    return None
