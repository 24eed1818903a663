"""Running programs of the host, with a deadline each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
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
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
            text=True,
            errors="replace",
            env=env,
        )
    except FileNotFoundError:
        return Result(127, "", f"{argv[0]}: not found")
    except OSError as error:
        return Result(126, "", f"{argv[0]}: {error}")
    except subprocess.TimeoutExpired as late:
        return Result(TIMED_OUT, _text(late.stdout), f"no end after {timeout:g} s")
    return Result(done.returncode, done.stdout, done.stderr)


def _text(data: str | bytes | None) -> str:
    if data is None:
        return ""
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
