"""The controller's own questions to the Hub: few, and each failure is said once.

What answers them needs packages that only the controller and the tool have, so it is imported when
something is asked, and a run in which the machines keep all manifests needs none of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import SparkPairError
from .manifest import Manifest, Source

if TYPE_CHECKING:
    from .hub import Hub

T = TypeVar("T")

WAIT_SECONDS = 8.0
"""So long in all a Hub in trouble is waited for, since a person waits for the plan."""

_EVERYWHERE = frozenset({"network", "tls"})
"""Failures that meet every further question too."""


_WORTH_A_WORD = 3
"""Seconds of waiting that somebody in front of a screen is told of."""


def out_of_reach(error: SparkPairError) -> bool:
    """Whether the Hub was not there to answer (HubError); that it refuses is an answer."""
    return bool(getattr(error, "temporary", False))


class HubQuestions:
    """One Hub. The token, if there is one, goes along only where a source is gated."""

    def __init__(
        self,
        endpoint: str,
        token: str,
        *,
        say: Callable[[str], object] = lambda _: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`say` is told why nothing seems to happen."""
        self._endpoint = endpoint
        self._token = token
        self._say = say
        self._sleep = sleep
        self._hubs: dict[bool, Hub] = {}
        self._failure: SparkPairError | None = None

    def manifest(self, source: Source) -> Manifest:
        """Everything that a source's repository holds at its revision. Raises SparkPairError."""
        repo = source.repo
        commit = self._asked(source.gated, lambda hub: hub.resolve(repo, source.revision))
        return self._asked(source.gated, lambda hub: hub.manifest(repo, commit))

    def probe(self, manifest: Manifest, path: str) -> None:
        """Raises SparkPairError unless a file of a gated repository would be given."""
        self._asked(True, lambda hub: hub.probe(manifest.repo, manifest.commit, path))

    def _wait(self, seconds: float) -> None:
        if seconds >= _WORTH_A_WORD:
            self._say(f"the Hub cannot answer now, it is asked again in {seconds:.0f} seconds")
        self._sleep(seconds)

    def _asked(self, gated: bool, question: Callable[[Hub], T]) -> T:
        try:
            from .hub import Hub, HubError  # noqa: PLC0415 - as said above
        except ImportError as error:
            raise SparkPairError(
                f"the Hub cannot be asked, because the controller lacks {error.name}: run 'make "
                "setup' and use the Ansible that it installs (.venv/bin)"
            ) from error
        if self._failure is not None:
            raise self._failure
        if gated not in self._hubs:
            token = self._token if gated else ""
            self._hubs[gated] = Hub(
                self._endpoint, token or None, sleep=self._wait, wait_at_most=WAIT_SECONDS
            )
        try:
            return question(self._hubs[gated])
        except HubError as error:
            if error.kind in _EVERYWHERE:
                self._failure = error
            raise
