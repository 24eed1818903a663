"""The receiver's end of the connection over which the peer lends its files.

Nothing is left on the peer when this ends, however it ends: the offer there lives as long as the
connection. Its secret goes through the connection and the environment of rsync, so that no list of
processes and no journal shows it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..errors import SparkPairError
from .offer import ENDS_WITH_ITS_PARENT, Request
from .transfer_order import Peer

TOOL = "/usr/local/bin/spark-pair"
ANSWER_SECONDS = 90.0
"""To look at some dozens of files, on a disk that may be asleep."""
CONNECT_SECONDS = 10
_NO_CONNECTION = 255
_MOST_BYTES = 64 << 20

Command = Callable[[Peer, str], list[str]]
"""What runs the tool's `weights offer` on the peer, reached at an address."""


class PeerOfferError(SparkPairError):
    """The peer does not lend the files; the message says why."""


class PeerAwayError(PeerOfferError):
    """None of the peer's addresses answers over ssh, which may pass."""


@dataclass(frozen=True)
class Lent:
    """Where a file can be had."""

    module: str
    folder: str
    """There."""
    name: str


def ssh_options(peer: Peer) -> list[str]:
    """ssh's words for every connection to the peer: it asks nobody, and gives up in time.

    Each connection is one of its own: ending it must end what runs at its other end.
    """
    return [
        "-o", "BatchMode=yes",
        "-o", f"ConnectTimeout={CONNECT_SECONDS}",
        "-o", "ServerAliveInterval=10",
        "-o", "ServerAliveCountMax=3",
        "-o", "ControlMaster=no",
        "-o", "ControlPath=none",
        "-o", "LogLevel=ERROR",
        "-p", str(peer.port),
    ]  # fmt: skip


def over_ssh(peer: Peer, address: str) -> list[str]:
    """The usual `Command`."""
    return ["ssh", *ssh_options(peer), f"{peer.user}@{address}", f"{TOOL} weights offer"]


class PeerOffer:
    """An open offer. `alive` may be asked by any thread; all else is for the one that opened it,
    with whose end the connection ends."""

    def __init__(self, peer: Peer, request: Request, command: Command = over_ssh) -> None:
        """Try the peer's addresses in turn. Raises PeerOfferError."""
        self._peer = peer
        self._words: list[str] = []
        for address in peer.addresses:
            if self._open(command(peer, address), request, address):
                return
        raise PeerAwayError(
            f"{peer.name} cannot be reached over ssh as {peer.user} ({'; '.join(self._words)})"
        )

    @property
    def alive(self) -> bool:
        """Whether the connection stands."""
        return self._process.poll() is None

    def beat(self, got: Mapping[int, int]) -> None:
        """Say that somebody is here, and how far the files (by number) are."""
        line = json.dumps([[number, offset] for number, offset in got.items()]) + "\n"
        with contextlib.suppress(OSError, ValueError):  # `alive` tells
            handle = _pipes(self._process)[0].fileno()
            # Somebody who does not read must not keep us waiting.
            if select.select([], [handle], [], 0)[1]:
                os.write(handle, line.encode())

    def close(self) -> None:
        """End it, here and there."""
        _end(self._process)

    def _open(self, argv: list[str], request: Request, address: str) -> bool:
        """Whether that address answered. Raises PeerOfferError when it answered with a refusal."""
        with tempfile.TemporaryFile() as said:
            try:
                self._process = subprocess.Popen(
                    [*ENDS_WITH_ITS_PARENT, *argv],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    bufsize=0,
                )
            except OSError as error:
                raise PeerOfferError(f"{argv[0]} cannot be started: {error}") from error
            try:
                answer = self._answer(request)
            except BaseException:
                _end(self._process)
                raise
            if answer is not None:
                self._take(answer, request.secret)
                return True
            code = _end(self._process)
            said.seek(0)
            words = _last_words(said.read(1 << 16), code)
        if code != _NO_CONNECTION:
            raise PeerOfferError(
                f"{self._peer.name} does not lend the files ({words}): both machines need the same "
                "release of the tool; run --tags tools"
            )
        self._words.append(f"{address}: {words}")
        return False

    def _answer(self, request: Request) -> Any:
        """The answer as it came; None when the connection ended before."""
        asked, answered = _pipes(self._process)
        with contextlib.suppress(BrokenPipeError):  # it may have said why before it went
            asked.write(json.dumps(request.as_dict()).encode() + b"\n")
        data, deadline = b"", time.monotonic() + ANSWER_SECONDS
        while b"\n" not in data:
            left = deadline - time.monotonic()
            if left <= 0 or len(data) > _MOST_BYTES:
                raise PeerOfferError(
                    f"{self._peer.name} did not answer within {ANSWER_SECONDS:.0f} s; its disk may "
                    "be busy, look there with 'iostat -x 1' and run it again"
                )
            if not select.select([answered], [], [], left)[0]:
                continue
            more = os.read(answered.fileno(), 1 << 20)
            if not more:
                return None
            data += more
        line = data.partition(b"\n")[0]
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return line.decode("utf-8", "replace")

    def _take(self, answer: Any, secret: str) -> None:
        """Understand the answer. Raises PeerOfferError."""
        name = self._peer.name
        if isinstance(answer, Mapping) and "error" in answer:
            _end(self._process)
            raise PeerOfferError(f"{name} does not have the files as ordered: {answer['error']}")
        try:
            self.files = [
                Lent(str(one["module"]), str(Path(one["folder"])), str(one["name"]))
                for one in answer["files"]
            ]
            self.ports = [None if one is None else int(one) for one in answer["ports"]]
            self.troubles = [str(one) for one in answer["troubles"]]
        except (KeyError, TypeError, ValueError) as error:
            _end(self._process)
            # Whoever repeats what it is told would have us print the secret.
            said = str(answer).replace(secret, "…")[:120]
            raise PeerOfferError(
                f"{name} answered with something else than an offer: {said!r}; is the same release "
                "of the tool installed there?"
            ) from error


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Its input and its output."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("a process without pipes")
    return process.stdin, process.stdout


def _end(process: subprocess.Popen[bytes]) -> int:
    """Close a connection; its exit code."""
    for stream in _pipes(process):
        with contextlib.suppress(OSError):
            stream.close()
    try:
        return process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _last_words(said: bytes, code: int) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), f"exit code {code}")
