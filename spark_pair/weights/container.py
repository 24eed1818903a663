"""Running one of the recipe's programs in the engine's image, as the account that owns the weights.

The image is given no network, a limit of memory, and the cache at /hf as the recipe mounts it. A
place that is a link to another disk is mounted besides, since a link leads nowhere in a container
that does not have its end.

A container outlives whoever started it. So its name is fixed, what an earlier run has left under it
is removed before the next begins, and a stop ends the container and not only the program that
waits for it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from ..errors import Exit, SparkPairError
from ..jobs.inside import Reporter
from ..system import run

CACHE = "/hf"
"""Where the recipe's containers see the account's Hugging Face folder."""
_KILL_SECONDS = 60.0
_POLL_SECONDS = 0.2
_TAIL_LINES = 40
_MOST_OUT = 4 << 20
_DOCKERS_OWN = 125
"""Docker's exit code when it could not even start the container."""


class ContainerError(SparkPairError):
    """A container could not be run; nothing was started."""

    exit = Exit.REFUSED


@dataclass(frozen=True)
class Mount:
    """A folder of the host that a container sees."""

    source: Path
    """Absolute, links followed."""
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Container:
    """A program in an image, to be run to its end."""

    name: str
    """Fixed for its work, so that what was left is found again."""
    image: str
    command: tuple[str, ...]
    mounts: tuple[Mount, ...]
    memory_bytes: int = 0
    """0 is no limit."""
    docker: str = "docker"

    def argv(self) -> list[str]:
        """The words of the call."""
        words = [self.docker, "run", "--rm", "--name", self.name, "--pull", "never"]
        words += ["--network", "none", "--user", f"{os.getuid()}:{os.getgid()}"]
        # The account has no home in there, and programs like to write to one.
        words += ["--env", "HOME=/tmp"]
        if self.memory_bytes:
            # Without the second one the container would swap as much again.
            words += ["--memory", str(self.memory_bytes), "--memory-swap", str(self.memory_bytes)]
        for mount in self.mounts:
            rights = "rw" if mount.writable else "ro"
            words += ["--volume", f"{mount.source}:{mount.target}:{rights}"]
        return [*words, self.image, *self.command]


@dataclass(frozen=True)
class Ended:
    """How a container's program ended."""

    code: int
    out: str
    """All that it printed."""
    last_lines: tuple[str, ...]
    """The end of what it said on stderr."""

    @property
    def ok(self) -> bool:
        """Whether it says that all went well."""
        return self.code == 0

    def words(self, lines: int = 3) -> str:
        """The end of what it said, on one line, for an error message."""
        said = [line for line in self.last_lines if line] or self.out.split("\n")
        told = [line.strip() for line in said if line.strip()][-lines:]
        return " / ".join(told) or f"exit code {self.code}, no output"


def cache_mounts(
    folder: Path, places: Iterable[Path], *, writable: bool = False
) -> tuple[Mount, ...]:
    """The account's Hugging Face folder at /hf, and what of `places` really lies elsewhere.

    What lies elsewhere is mounted under its own name, and then the folder too: links from one to
    the other are absolute.
    """
    root = real(folder)
    elsewhere = {real(place) for place in places if not real(place).is_relative_to(root)}
    mounts = [Mount(root, CACHE, writable)]
    if elsewhere:
        mounts.append(Mount(root, str(root), writable))
        mounts += [Mount(place, str(place), writable) for place in sorted(_outermost(elsewhere))]
    return tuple(mounts)


def inside(mounts: Sequence[Mount], path: Path) -> str:
    """What a container sees a path of the host as. ContainerError when it does not see it."""
    where = real(path.parent) / path.name
    for mount in mounts:
        if where.is_relative_to(mount.source):
            return str(PurePosixPath(mount.target) / where.relative_to(mount.source))
    raise ContainerError(f"{path} lies outside of everything that the container is given")


def link_text(target: Path, folder: Path, root: Path) -> str:
    """The text of a link in `folder` to `target` that holds on the host and in a container.

    `root` is the folder that a container has at /hf: within it links are relative.
    """
    whole, start, end = real(root), real(folder), real(target)
    if start.is_relative_to(whole) and end.is_relative_to(whole):
        return os.path.relpath(end, start)
    return str(end)


def real(path: Path) -> Path:
    """A path with all links followed, whether or not its end is there."""
    return Path(os.path.realpath(path))


def _outermost(folders: set[Path]) -> list[Path]:
    return [one for one in folders if not any(up in folders for up in one.parents)]


def carry_out(
    container: Container,
    reporter: Reporter,
    line: Callable[[str], None] = lambda _: None,
    watch: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a container to its end; `line` is told every line that it says on stderr.

    `watch` is called all the while; what it raises ends the container. Raises JobStoppedError after
    a stop (the container is gone then), ContainerError when Docker does not start it or does not
    let go of an earlier one.
    """
    remove(container)
    try:
        process = subprocess.Popen(
            container.argv(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ContainerError(f"{container.docker} cannot be run: {error.strerror}") from None
    with process:
        try:
            ended = _follow(process, reporter, line, watch)
        except BaseException:
            _end(process, container)
            raise
    if ended.code == _DOCKERS_OWN:
        raise ContainerError(
            f"Docker does not start {container.command[0]} in {container.image}: {ended.words()}"
        )
    return ended


def remove(container: Container) -> None:
    """End and remove what an earlier run has left under that name. ContainerError."""
    done = run([container.docker, "rm", "--force", container.name], timeout=_KILL_SECONDS)
    if not done.ok and "no such container" not in done.err.casefold():
        raise ContainerError(
            f"Docker does not remove the container {container.name} of an earlier run: "
            f"{done.last_words()}"
        )


def _follow(
    process: subprocess.Popen[str],
    reporter: Reporter,
    line: Callable[[str], None],
    watch: Callable[[], None],
) -> Ended:
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    out: list[str] = []

    def said(text: str) -> None:
        tail.append(text)
        line(text)

    readers = [_reading(process.stdout, out.append), _reading(process.stderr, said)]
    while True:
        try:
            process.wait(_POLL_SECONDS)
            break
        except subprocess.TimeoutExpired:
            reporter.check()
            watch()
    for reader in readers:
        reader.join()
    return Ended(process.returncode, "\n".join(out)[-_MOST_OUT:], tuple(tail))


def _reading(stream: IO[str] | None, take: Callable[[str], None]) -> threading.Thread:
    """Hand over the lines of a stream as they come."""
    assert stream is not None  # noqa: S101 - both are pipes

    def read() -> None:
        for text in stream:
            take(text.rstrip("\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


def _end(process: subprocess.Popen[str], container: Container) -> None:
    """Docker's client first, so that it starts nothing more; that alone ends no container."""
    process.kill()
    process.wait()
    run([container.docker, "rm", "--force", container.name], timeout=_KILL_SECONDS)
