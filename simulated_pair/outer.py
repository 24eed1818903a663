"""What the pair needs from the outer machine: podman, its limits, a screen line per step."""

import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")

_started = time.monotonic()
_screen = threading.Lock()


class PairError(Exception):
    """Something the user has to know; the message is one or two whole sentences."""


def say(subject: str, text: str) -> None:
    """Print one progress line: seconds since the command began, what it is about, what happens."""
    with _screen:
        print(f"{time.monotonic() - _started:6.1f} s  {subject:<10}  {text}", flush=True)


def on_each(items: Sequence[Item], work: Callable[[Item], None]) -> None:
    """Run `work` for all items at once; the first error is raised after all have ended."""
    with ThreadPoolExecutor(max_workers=len(items)) as pool:
        futures = [pool.submit(work, item) for item in items]
    for future in futures:
        future.result()


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write `text` beside `path` and rename it into place, so that no reader sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    beside.write_text(text)
    beside.chmod(mode)
    beside.replace(path)


class Podman:
    """podman with the settings this pair needs, whatever the outer machine's own settings are."""

    def __init__(self, state: Path) -> None:
        self._conf = state / "containers.conf"
        # --log-level: "Failed to add conmon to cgroupfs sandbox cgroup" is a warning without
        # consequence.
        self.program = ("podman", "--log-level=error", "--runtime", "runc")
        self.environment = {**os.environ, "CONTAINERS_CONF": str(self._conf)}

    def configure(self) -> None:
        """Write the pair's containers.conf.

        podman's default limits are above what an outer machine without CAP_SYS_RESOURCE may hand
        out, and its default runtime crun refuses a hybrid cgroup layout.
        """
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        unlimited = resource.RLIM_INFINITY
        nofile = 65536 if files == unlimited else min(files, 65536)
        nproc = 32768 if processes == unlimited else min(processes, 32768)
        self._conf.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            self._conf,
            "[containers]\n"
            f'default_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]\n'
            "[engine]\n"
            'runtime = "runc"\n',
        )

    def run(
        self,
        *arguments: str,
        text: str | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one podman command and return what it printed; PairError on failure if `check`.

        `text` goes to standard input, `timeout` is in seconds.
        """
        try:
            done = subprocess.run(
                [*self.program, *arguments],
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                env=self.environment,
                timeout=timeout,
                check=False,
            )
        except FileNotFoundError as error:
            raise PairError("podman is not installed on this machine; run: make setup") from error
        except subprocess.TimeoutExpired as error:
            raise PairError(
                f"podman {' '.join(arguments[:3])} did not end within {timeout:.0f} s"
            ) from error
        if check and done.returncode != 0:
            raise PairError(f"podman {' '.join(arguments[:4])} failed: {last_words(done.stderr)}")
        return done

    def script(self, container: str, script: Path, *arguments: str, subject: str) -> None:
        """Run a shell script inside a container; each line it prints becomes a screen line.

        PairError with the script's last words if it fails.
        """
        # As an argument, not on standard input, where a command of the script could swallow it.
        inside = ("bash", "-c", script.read_text(), script.name, *arguments)
        with subprocess.Popen(
            [*self.program, "exec", container, *inside],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        ) as process:
            assert process.stdout is not None and process.stderr is not None  # noqa: S101
            errors: list[str] = []
            reader = threading.Thread(target=errors.extend, args=(process.stderr,))
            reader.start()
            for line in process.stdout:
                say(subject, line.rstrip())
            reader.join()
        if process.returncode != 0:
            words = last_words("".join(errors))
            raise PairError(f"{subject}: {script.name} failed inside the machine: {words}")


def last_words(text: str) -> str:
    """Return the end of an error output on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it said nothing"
