"""A stand-in Hub on loopback for tests, with the real client's view of it.

with Hub(tmp_path / "hub", [noise_repository("own/name", {"a.bin": 100})]) as hub:
    snapshot_download("own/name", endpoint=hub.url, cache_dir=tmp_path / "cache")
    assert hub.bytes_served("own/name", "a.bin") == 100
"""

from __future__ import annotations

import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from simulated_pair.standins.hub.hub_standin import hub, weights
from simulated_pair.standins.hub.hub_standin.repositories import (
    File,
    Repository,
    noise_repository,
)
from simulated_pair.standins.hub.hub_standin.state import Account, Request

__all__ = ["Account", "File", "Hub", "Repository", "Request", "noise_repository", "weights"]

# Tokens of the shape the Hub gives out, so that a leak can be searched for.
TOKEN = "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"
STRANGER_TOKEN = "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"
NARROW_TOKEN = "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"


def _sent(requests: list[Request], repository: str, path: str) -> int:
    return sum(
        request.sent
        for request in requests
        if request.repository == repository
        and request.kind in {"content", "xorb"}
        and (not path or request.path == path)
        and request.status in {200, 206}
    )


class Hub(hub.Hub):
    """Serves while the block runs.

    ``xet=True`` also puts large files into a Xet store served over HTTP (requests are counted and
    faults apply); ``xet="local"`` gives the client the store's directory instead.
    """

    def __init__(
        self,
        directory: Path,
        repositories: list[Repository],
        *,
        xet: bool | Literal["local"] = False,
        **more: Any,
    ) -> None:
        gated = tuple(wanted.name for wanted in repositories if wanted.gated)
        accounts = {
            TOKEN: Account("accepted", gated),
            STRANGER_TOKEN: Account("stranger"),
            NARROW_TOKEN: Account("narrow", gated, gated_right=False),
        }
        super().__init__(directory, repositories, **{"accounts": accounts, **more})
        if xet:
            self.use_xet(local=xet == "local")

    def __enter__(self) -> Hub:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def fault(self, *faults: dict[str, Any]) -> None:
        """Ask for these faults and no others."""
        self.state.faults.set(faults)

    @property
    def requests(self) -> list[Request]:
        """Every finished request so far, in the order they came.

        Waits up to a second for those that are being answered, since a client has its answer a
        moment before the answer is finished here.
        """
        return self.state.settled(1.0)

    def forget_requests(self) -> None:
        """Begin to count anew."""
        with self.state.changed:
            self.state.requests.clear()

    def bytes_served(self, repository: str, path: str = "") -> int:
        """Bytes of content sent by finished requests, by HTTP and by Xet."""
        return _sent(self.requests, repository, path)

    def bytes_so_far(self, repository: str, path: str = "") -> int:
        """The same with requests that are being answered, at once: to stop a download half-way."""
        with self.state.changed:
            return _sent([*self.state.requests, *self.state.answering], repository, path)

    def file(self, repository: str, path: str) -> File:
        """What the Hub says of a file."""
        return self.state.held[repository].files[path]

    def content(self, repository: str, path: str) -> bytes:
        """A file's true bytes."""
        return (self.state.held[repository].folder / path).read_bytes()


def get(url: str, token: str = "", **headers: str) -> bytes:
    """A plain request, for what the client never asks."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as reply:
        data: bytes = reply.read()
        return data
