"""The connection between the ranks: rank 0 listens for ever, rank 1 connects and follows.

Tokens are only made while the follower echoes: a rank 1 that is stopped, frozen or gone stalls
rank 0, whose HTTP side goes on answering. That is the habit that makes "200" worthless as proof.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable

RETRY_SECONDS = 0.25
CONNECT_SECONDS = 30.0
PULSE_SECONDS = 0.2
STALL_SECONDS = 1.0


class LinkError(Exception):
    """The link cannot be made or is lost; the text is the engine's error name."""


def _line(message: dict[str, object]) -> bytes:
    return (json.dumps(message) + "\n").encode()


class LeaderLink:
    """Rank 0's side."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._lock = threading.Lock()
        self._last_echo = time.monotonic()
        self._down = False
        self._closed = threading.Event()
        threading.Thread(target=self._pulse, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()

    def advances(self) -> bool:
        """Whether the follower is there and keeps up."""
        return not self._down and time.monotonic() - self._last_echo < STALL_SECONDS

    def tell(self, **message: object) -> None:
        """Send a message to rank 1; a lost peer is noticed, not raised."""
        try:
            with self._lock:
                self._peer.sendall(_line(message))
        except OSError:
            self._down = True

    def end(self) -> None:
        """Part cleanly: rank 1 ends with exit 0."""
        self._closed.set()
        self.tell(end=True)

    def _pulse(self) -> None:
        number = 0
        while not self._down and not self._closed.wait(PULSE_SECONDS):
            number += 1
            self.tell(round=number)

    def _listen(self) -> None:
        try:
            with self._peer.makefile("rb") as lines:
                for _ in lines:
                    self._last_echo = time.monotonic()
        except OSError:
            pass
        if not self._closed.is_set():
            print("[tensorfold] rank 1: PeerDown", flush=True)
        self._down = True


def wait_for_follower(address: str, port: int) -> LeaderLink:
    """Bind and wait for rank 1 without any timeout. Raises :class:`LinkError` (BindFailed)."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(1)
    except OSError as error:
        raise LinkError(f"BindFailed: {address}:{port}: {error.strerror}") from error
    with listener:
        peer, _ = listener.accept()
    return LeaderLink(peer)


def connect(address: str, port: int, within: float = CONNECT_SECONDS) -> socket.socket:
    """Connect to rank 0, again every 250 ms for ``within`` seconds.

    Raises :class:`LinkError` (ConnectFailed).
    """
    end = time.monotonic() + within
    while True:
        try:
            peer = socket.create_connection((address, port), timeout=2.0)
            peer.settimeout(None)
            return peer
        except OSError as error:
            if time.monotonic() >= end:
                raise LinkError("ConnectFailed") from error
        time.sleep(RETRY_SECONDS)


def follow(peer: socket.socket, on_serving: Callable[[], None]) -> None:
    """Echo rank 0's rounds until it parts. Raises :class:`LinkError` (PeerDown)."""
    try:
        with peer, peer.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "end" in message:
                    return
                if "serving" in message:
                    on_serving()
                else:
                    peer.sendall(line)
    except OSError:
        pass
    raise LinkError("PeerDown")
