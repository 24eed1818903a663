"""A running Hub: its two ports and what they serve."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import xet
from .faults import Faults, Pace
from .repositories import Repository, hold
from .server import SETTLE_SECONDS, Handler
from .state import Account, State


class Hub:
    """A running Hub: two listening ports, one for the API and one for the store of large files."""

    def __init__(
        self,
        directory: Path,
        repositories: Sequence[Repository],
        *,
        accounts: dict[str, Account] | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
        store_port: int = 0,
        page: int = 1000,
        bytes_per_second: float = 0.0,
        faults_file: Path | None = None,
        log_file: Path | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        held = {wanted.name: hold(wanted, directory) for wanted in repositories}
        self.directory = directory
        self.state = State(
            held,
            Faults(faults_file),
            dict(accounts or {}),
            page=page,
            pace=Pace(bytes_per_second) if bytes_per_second else None,
            log_file=log_file,
        )
        handler = type("BoundHandler", (Handler,), {"state": self.state})
        self._servers = [_Server((address, number), handler) for number in (port, store_port)]
        self.state.hub_port, self.state.store_port = (
            server.server_address[1] for server in self._servers
        )
        self.url = f"http://{address}:{self.state.hub_port}"

    def use_xet(self, *, local: bool = False) -> None:
        """Put large files into a Xet store as well, served by the store's port.

        ``local``: the client is given the store's directory instead, and opens it by itself. Then
        there are no requests to count and no faults.
        """
        directory = xet.fill(self.directory.resolve(), self.state.held.values())
        if local:
            self.state.cas_url = f"local://{directory}"
        else:
            self.state.store = xet.Store(directory)

    def start(self) -> None:
        """Serve in threads of this process."""
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Stop serving; close both ports and every connection."""
        for server in self._servers:
            server.shutdown()
        self.close()
        for server in self._servers:
            server.hang_up()
        self.state.settled(SETTLE_SECONDS)

    def close(self) -> None:
        """Close both ports of a Hub that does not serve."""
        for server in self._servers:
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that the other end gave up."""

    def hang_up(self) -> None:
        """Close connections that a client keeps open."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
