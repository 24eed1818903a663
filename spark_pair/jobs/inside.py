"""What the program of a job uses: telling how far it is, being stopped, getting its secrets."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import SparkPairError
from .shapes import (
    JobError,
    JobFailedError,
    JobResult,
    JobStoppedError,
    Progress,
    read_result,
    write_progress,
    write_result,
)
from .words import without_keys

FOLDER = "SPARK_PAIR_JOB_FOLDER"
RUN = "SPARK_PAIR_JOB_ID"
"""How the unit tells the program where it reports, and for which run."""

_SECONDS_BETWEEN = 1.0
_RATE_SECONDS = 30.0


class Reporter:
    """Tells how far a job is; any thread may call it, and a full disk does not disturb it."""

    def __init__(
        self,
        folder: Path | None = None,
        run: str = "",
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a folder (the program was called by hand) nothing is written."""
        self.folder = folder
        self.run = run
        self.stop_asked = threading.Event()
        self._clock = clock
        self._ticks = ticks
        self._lock = threading.Lock()
        self._written: float | None = None
        self._step = ""
        self._done = 0
        self._total: int | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._rate: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Reporter:
        """The reporter of the unit that this process runs in."""
        folder = environment.get(FOLDER)
        return cls(Path(folder) if folder else None, environment.get(RUN, ""))

    def step(self, words: str, total: int | None = None, done: int = 0) -> None:
        """From now on `words` is what happens, with `done` of `total` bytes there already."""
        with self._lock:
            self._step, self._total, self._done = words, total, done
            # What was there before says nothing about the speed.
            self._samples.clear()
            self._samples.append((self._ticks(), done))
            self._rate = None
            self._tell()

    def show(self, words: str, total: int, done: int, rate: float) -> None:
        """The same from a program that knows its own speed (bytes a second): of a download, what
        was found there already is done and was never fast."""
        with self._lock:
            self._step, self._total, self._done, self._rate = words, total, done, rate
            self._tell()

    def advance(self, count: int) -> None:
        """`count` more bytes are done; negative when some have to be done again."""
        with self._lock:
            self._done += count
            self._tell()

    def stopping(self) -> bool:
        """Whether the job has been asked to stop."""
        return self.stop_asked.is_set()

    def check(self) -> None:
        """Raise JobStoppedError when the job has been asked to stop."""
        if self.stopping():
            raise JobStoppedError("was stopped; what it has is kept, and the next run goes on")

    def finish(self, result: JobResult) -> None:
        """Say how the job ended; OSError when the disk refuses."""
        with self._lock:
            self._tell(now=True)
        if self.folder is not None:
            write_result(self.folder, self.run, result)

    def progress(self) -> Progress:
        """How far the job is at this moment."""
        now = self._ticks()
        self._samples.append((now, self._done))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        rate = max(0.0, (self._done - before) / (now - since)) if now > since else None
        if self._rate is not None:
            rate = self._rate
        left = None
        if self._total is not None and rate:
            left = max(0.0, (self._total - self._done) / rate)
        return Progress(self._done, self._total, rate, left, self._step, self._clock())

    def _tell(self, *, now: bool = False) -> None:
        tick = self._ticks()
        due = self._written is None or tick - self._written >= _SECONDS_BETWEEN
        if self.folder is None or not self._step or not (due or now):
            return
        self._written = tick
        with contextlib.suppress(OSError):  # the work matters more than the line about it
            write_progress(self.folder, self.run, self.progress())


Body = Callable[[Reporter], tuple[str, Mapping[str, Any]]]
"""The work itself: what came of it in words, and what it hands to whoever started it."""


def carry_out(body: Body, reporter: Reporter | None = None) -> int:
    """Run the program of a job to its end, record how it ended, and return its exit code.

    SIGTERM sets the reporter's `stop_asked`; the body ends at its next convenient point. Call it
    from the main thread.
    """
    reporter = reporter or Reporter.from_environment()
    with _stoppable(reporter.stop_asked):
        result = _result_of(body, reporter)
    print(result.message, file=sys.stdout if result.ok else sys.stderr, flush=True)
    try:
        reporter.finish(result)
    except OSError as error:
        print(f"the result could not be written: {error}", file=sys.stderr)
    return result.exit


def _result_of(body: Body, reporter: Reporter) -> JobResult:
    try:
        message, data = body(reporter)
    except JobStoppedError as error:
        return JobResult(False, str(error), int(error.exit), time.time(), stopped=True)
    except JobFailedError as error:
        return JobResult(False, str(error), 1, time.time(), data=error.data)
    except SparkPairError as error:
        return JobResult(False, str(error), int(error.exit) or 1, time.time())
    except Exception as error:  # a fault of ours: the journal gets the place, the person a sentence
        print(without_keys(traceback.format_exc()), file=sys.stderr, end="")
        words = without_keys(f"failed unexpectedly: {type(error).__name__}: {error}")
        return JobResult(False, words, 1, time.time())
    return JobResult(True, message, 0, time.time(), data=data)


@contextlib.contextmanager
def _stoppable(asked: threading.Event) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def secret(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """A secret that the job was given; None when it was given none of that name.

    Raises JobError when systemd promised secrets and did not hand them over: going on without
    would end with somebody else's words about a token that is missing.
    """
    folder = environment.get("CREDENTIALS_DIRECTORY")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise JobError(
            f"systemd has not handed over the job's secrets, {folder} is not there; if "
            "'findmnt -no PROPAGATION /' says private, 'mount --make-rshared /' helps until a boot"
        )
    try:
        return (Path(folder) / name).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


# ---- systemd's last step ------------------------------------------------------------------------


def record_end(environment: Mapping[str, str] = os.environ) -> JobResult | None:
    """What ExecStopPost= does: give a result to a run that has not written one itself.

    It also corrects a program that said "done" and then failed. Returns what it wrote, if anything.
    """
    folder, run = environment.get(FOLDER), environment.get(RUN)
    if not folder or not run:
        return None
    said = read_result(Path(folder), run)
    ended = ending(
        environment.get("SERVICE_RESULT", ""),
        environment.get("EXIT_CODE", ""),
        environment.get("EXIT_STATUS", ""),
        time.time(),
    )
    if said is not None and (ended.ok or not said.ok):
        return None
    write_result(Path(folder), run, ended)
    return ended


def ending(service_result: str, how: str, status: str, at: float) -> JobResult:
    """A result from systemd's words (`$SERVICE_RESULT`, `$EXIT_CODE`, `$EXIT_STATUS`).

    `status` is an exit code, or the name or number of a signal.
    """
    if how == "exited" and status == "0" and service_result in ("success", ""):
        return JobResult(True, "done", 0, at)
    number = _signal_number(status)
    code = int(status) if how == "exited" and status.isdigit() else 128 + number
    if service_result == "oom-kill":
        return JobResult(False, "was ended by the kernel, since its memory was used up", code, at)
    if service_result == "timeout":
        return JobResult(False, "did not end when it was stopped, and was killed", code, at, True)
    if how == "exited" and status:
        return JobResult(False, f"ended with exit code {status}", code, at)
    if how in ("killed", "dumped") and service_result == "success":
        return JobResult(False, "was stopped", code, at, True)
    if how in ("killed", "dumped"):
        return JobResult(False, f"was killed ({_signal_name(number)})", code, at)
    return JobResult(False, f"could not be run ({service_result or 'no reason given'})", 1, at)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_number(status: str) -> int:
    if status.isdigit():
        return int(status)
    name = status if status.startswith("SIG") else f"SIG{status}"
    return int(getattr(signal, name, 0))
