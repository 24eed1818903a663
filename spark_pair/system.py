"""Running programs of the host, with a deadline each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """What a program left behind. `code` 124 stands for "ended by our deadline"."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether the program said that all went well."""
        return self.code == 0

    def last_words(self, lines: int = 3) -> str:
        """The end of what it said, on one line, for an error message."""
        said = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return " / ".join(said[-lines:]) or f"exit code {self.code}, no output"


TIMED_OUT = 124

Runner = Callable[[Sequence[str], float], Result]
"""Runs a program (its words, seconds until it is ended): `run_plainly`, or a test's own."""


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Run a program to its end or to `timeout` seconds; never raises for its failure.

    The locale is C so that output can be parsed whatever the operator's shell says. Output that is
    not UTF-8 is kept as far as it goes.
    """
    env = {**os.environ, "LC_ALL": "C", **(environment or {})}
    try:
        # A session of its own: a deadline must end what the program has started, too. Otherwise a
        # stop script that hangs on a sick peer wakes up later and stops the next server.
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Result(127, "", f"{argv[0]}: not found")
    except OSError as error:
        return Result(126, "", f"{argv[0]}: {error}")
    with process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired as late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return Result(TIMED_OUT, _text(late.stdout), f"no end after {timeout:g} s")
        return Result(process.returncode, out, err)


def run_plainly(argv: Sequence[str], timeout: float) -> Result:
    """Run a program without input and with the environment as it is: the usual `Runner`."""
    return run(argv, timeout=timeout)


def _text(data: str | bytes | None) -> str:
    if data is None:
        return ""
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
