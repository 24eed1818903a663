"""Running a program to its end inside a job: its lines as they come, a stop that ends all of it."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import select
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..jobs.inside import Reporter
from .identity import ImageError

_POLL_SECONDS = 0.2
_KILL_SECONDS = 10.0
_TAIL_LINES = 40
_READ_BYTES = 1 << 16
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    last_lines: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it says that all went well."""
        return self.code == 0

    def words(self, lines: int = 3) -> str:
        """The end of what it said, on one line."""
        return " / ".join(self.last_lines[-lines:]) or f"exit code {self.code}, no output"


def run(
    argv: Sequence[str],
    reporter: Reporter,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    line: Callable[[str], None] = lambda _: None,
    watch: Callable[[], None] = lambda: None,
    log: IO[str] | None = None,
) -> Ended:
    """Run a program; `line` is told every line of it (colours and progress bars taken out).

    `watch` is called all the while; what it raises ends the program, and so does a stop
    (JobStoppedError). Raises ImageError when it cannot be started.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=folder,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ImageError(f"{argv[0]} cannot be run: {error.strerror}") from error
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    over = threading.Event()

    def read() -> None:
        for raw in _lines(process, over):
            if log is not None:
                log.write(raw)
                log.flush()
            if said := _CONTROL.sub("", raw).strip():
                tail.append(said)
                line(said)

    reader = threading.Thread(target=read, daemon=True)
    with process:
        reader.start()
        try:
            while process.poll() is None:
                reporter.check()
                watch()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
            # Something of its own that it left behind may hold the pipe.
            reader.join(_KILL_SECONDS)
        except BaseException:
            _end(process)
            raise
        finally:
            _signal(process, signal.SIGKILL)
            # What went into a session of its own holds it still, and is not waited for.
            over.set()
            reader.join()
    return Ended(process.returncode, tuple(tail))


def _lines(process: subprocess.Popen[bytes], over: threading.Event) -> Iterator[str]:
    """What a program says, line by line, until nobody is left to say more or it is `over`."""
    if process.stdout is None:
        return
    # "\r" ends a line too: it is what a progress bar ends with.
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("replace"), translate=True
    )
    pipe, rest, data = process.stdout.fileno(), "", b"-"
    while data and not over.is_set():
        if not select.select([pipe], [], [], _POLL_SECONDS)[0]:
            continue
        data = os.read(pipe, _READ_BYTES)
        *whole, rest = (rest + decoder.decode(data, final=not data)).split("\n")
        for one in whole:
            yield f"{one}\n"
    if rest:
        yield rest


def _end(process: subprocess.Popen[bytes]) -> None:
    """All that it has started ends too, or it would go on for nobody."""
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
