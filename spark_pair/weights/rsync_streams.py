"""One rsync that fetches some of the peer's files: its words, and what its end means.

A big file goes straight into its staged name with --inplace, and with --append if some of it is
there. A partial folder would be filled only by an rsync that ends in good order: one that is
killed, with its machine or by the kernel, leaves a hidden file of a random name, and 100 GB would
come once more. What --append does not look at, whether the bytes that are there already are right,
is what the hash of the whole file is for; and nothing has its final name before that was compared.

Only regular files are asked for, under the names that the peer has found behind all links, one
after the other on the standard input: no name is ever read as an option or as a pattern.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

from .offer import ACCOUNT, ENDS_WITH_ITS_PARENT
from .peer_offer import CONNECT_SECONDS, Lent, ssh_options
from .transfer_order import Peer, Rail

CIPHER = "aes128-gcm@openssh.com"
"""Of those that every OpenSSH has, the one that costs least where the processor knows AES."""
STALL_SECONDS = 30
"""Without a byte for so long, a line is taken for dead."""
STALLED = 30
"""rsync's own exit code for a timeout."""
PASSWORD = "RSYNC_PASSWORD"  # noqa: S105 (the name of a variable)

_WAIT_SECONDS = 0.02
_END_SECONDS = 3.0
_PROCESS = re.compile(r"^rsync: \[(\w+)\]", re.MULTILINE)
_STATS = re.compile(r"^Total bytes (?:sent|received): (\d+)$", re.MULTILINE)


class Verdict(Enum):
    """What the end of an rsync means."""

    DONE = "done"
    LINE = "line"
    """The connection, not the file: another way may work."""
    SOURCE = "source"
    """The peer cannot give this file."""
    HERE = "here"
    """This machine cannot write it."""
    ENDED = "ended"
    """Somebody ended it."""


@dataclass(frozen=True)
class Ended:
    """An rsync that has ended."""

    code: int
    out: str
    err: str

    @property
    def verdict(self) -> Verdict:
        """What that means; what is not known is taken for the line's fault, which is retried."""
        if self.code == 0:
            return Verdict.DONE
        if self.code in (20, -15, -2):
            return Verdict.ENDED
        if self.code == 24 or (self.code == 23 and not self._was_here):
            return Verdict.SOURCE
        if self.code in (11, 23, 126, 127):
            return Verdict.HERE
        return Verdict.LINE

    @property
    def _was_here(self) -> bool:
        """Whether what did not work is this end's: both end with the same code, and only their
        words name the process. The first counts; what follows may follow from it."""
        named = _PROCESS.search(self.err)
        return named is not None and named[1] != "sender"

    @property
    def words(self) -> str:
        """What it said about its failure, on one line."""
        said = [line.strip() for line in self.err.splitlines() if line.strip()]
        # Its last line only says in other words that something was said before.
        told = [line for line in said if not line.startswith("rsync error:")] or said
        return " / ".join(told[:2]) or f"rsync ended with exit code {self.code}"

    @property
    def wire_bytes(self) -> int | None:
        """Bytes in both directions, as far as it lived to tell."""
        found = _STATS.findall(self.out)
        return sum(map(int, found)) if len(found) == 2 else None


def daemon_words(rail: Rail, port: int, lent: Lent) -> list[str]:
    """From a port of the peer's rail: options, then the source."""
    host = f"[{rail.peer}]" if ":" in rail.peer else rail.peer
    return [
        f"--address={rail.here}",
        f"--contimeout={CONNECT_SECONDS}",
        "--no-motd",
        f"rsync://{ACCOUNT}@{host}:{port}/{lent.module}/",
    ]


def ssh_words(rail: Rail, peer: Peer, lent: Lent) -> list[str]:
    """Over ssh to the peer's rail: options, then the source."""
    shell = ["ssh", "-c", CIPHER, "-b", rail.here, *ssh_options(peer)]
    host = f"[{rail.peer}]" if ":" in rail.peer else rail.peer
    # Nothing in these words holds a blank, and rsync splits them at blanks.
    return ["--protect-args", f"--rsh={' '.join(shell)}", f"{peer.user}@{host}:{lent.folder}/"]


def rsync_words(
    source: Sequence[str], target: Path | str, limit: float | None, *, resumed: bool
) -> list[str]:
    """The whole command; `target` is a file's name, or a folder with a slash at its end.

    `resumed`: something of it is there, and only what is missing comes.
    """
    # rsync's own sums of what it sends prove less than the sha256 that follows, and cost a tenth of
    # all its time; with --append it insists on them.
    how = ["--append"] if resumed else ["--whole-file", "--checksum-choice=none"]
    rate = [] if limit is None else [f"--bwlimit={max(1, int(limit / 1024))}"]
    return [
        *ENDS_WITH_ITS_PARENT,
        "rsync",
        "--inplace",
        *how,
        "--no-relative",
        "--from0",
        "--files-from=-",
        "--stats",
        "--no-human-readable",
        f"--timeout={STALL_SECONDS}",
        *rate,
        *source,
        str(target),
    ]


class StalledError(Exception):
    """Nothing came for too long."""


def run(
    argv: Sequence[str],
    names: Iterable[str],
    secret: str,
    watch: Callable[[float], None],
    holds: Sequence[int] = (),
) -> Ended:
    """Run an rsync to its end. `watch` is called all the time with how long it may wait, and may
    raise to end it; StalledError is the line's fault. It keeps the handles `holds` open for as long
    as it lives.

    Its own --timeout watches the sender only: on this side a line that is cut goes unnoticed for
    as long as TCP takes what it says to keep the line alive, a quarter of an hour.
    """
    with (
        tempfile.TemporaryFile() as listed,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        listed.write(b"".join(os.fsencode(name) + b"\0" for name in names))
        listed.seek(0)
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=listed,
                stdout=out,
                stderr=err,
                env=_environment(os.environ, secret),
                pass_fds=tuple(holds),
            )
        except OSError as error:
            return Ended(127, "", f"{argv[0]}: {error}")
        try:
            while process.poll() is None:
                watch(_WAIT_SECONDS)
        except StalledError as error:
            _end(process)
            return Ended(STALLED, _text(out), str(error))
        finally:
            _end(process)
        return Ended(process.returncode, _text(out), _text(err))


def _environment(before: Mapping[str, str], secret: str) -> dict[str, str]:
    return {**before, "LC_ALL": "C", PASSWORD: secret}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still lives: first in good order."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read(1 << 20).decode("utf-8", "replace")
