"""What a recipe's dry run says it would start: each rank's `docker run`, taken apart. Pure.

The form is `[dry-run] rank N on user@host:` (or `here:`) and, indented below it, the command. What
is not understood raises DryRunError: a guess could hide the one mount or value that matters.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import shell_words
from .errors import SparkPairError

RANKS = (0, 1)

_TITLE = re.compile(r"\[dry-run\] rank (?P<rank>\d+) (?:on \S+|here):\s*")
_MOMENT = re.compile(r"\bDRY_RUN(=1)?: ")
_OPEN = re.compile(r"<WORKER:[^>]*>")
_RAILS = re.compile(r"\bLink: .*?(?P<count>\d+) rail\(s\)")

_SWITCHES = {
    "--detach": "d", "--interactive": "i", "--tty": "t", "--publish-all": "P",
    "--rm": "", "--init": "", "--privileged": "", "--read-only": "", "--quiet": "q",
    "--no-healthcheck": "", "--oom-kill-disable": "",
}  # fmt: skip
_WITH_VALUE = {
    "--name": "", "--gpus": "", "--ipc": "", "--shm-size": "", "--device": "", "--cap-add": "",
    "--cap-drop": "", "--ulimit": "", "--label": "l", "--restart": "", "--oom-score-adj": "",
    "--log-opt": "", "--log-driver": "", "--memory": "m", "--memory-swap": "",
    "--memory-reservation": "", "--memory-swappiness": "", "--cpus": "", "--cpuset-cpus": "",
    "--cpu-shares": "c", "--hostname": "h", "--user": "u", "--workdir": "w", "--entrypoint": "",
    "--pid": "", "--uts": "", "--security-opt": "", "--tmpfs": "", "--stop-timeout": "",
    "--stop-signal": "", "--pull": "", "--platform": "", "--runtime": "", "--add-host": "",
    "--group-add": "", "--cgroupns": "", "--cgroup-parent": "", "--cidfile": "", "--dns": "",
    "--sysctl": "", "--userns": "", "--pids-limit": "", "--publish": "p", "--expose": "",
    "--env": "e", "--volume": "v", "--mount": "", "--network": "", "--net": "",
}  # fmt: skip
"""Options of `docker run` that are understood, with their letter. Any other one, such as
`--env-file` or `--volumes-from`, could bring values or mounts that nobody sees here."""
_LONG = {letter: name for name, letter in (_SWITCHES | _WITH_VALUE).items() if letter}


class DryRunError(SparkPairError):
    """The output is not understood; the message says where."""


@dataclass(frozen=True, order=True)
class Mount:
    """A folder of the machine, or a volume of Docker's, in a container."""

    target: str
    source: str
    read_only: bool = False
    volume: bool = False
    """Whether the source is the name of a volume, which may lie anywhere."""


@dataclass(frozen=True)
class Rank:
    """How one rank's container is started."""

    container: str
    image: str
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    network: str
    devices: tuple[str, ...]
    argv: tuple[str, ...]
    """The words behind the image."""

    def as_dict(self) -> dict[str, Any]:
        """For the journal."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Rank:
        """Invert `as_dict`."""
        return Rank(
            container=data["container"],
            image=data["image"],
            env=dict(data["env"]),
            mounts=tuple(Mount(**one) for one in data["mounts"]),
            network=data["network"],
            devices=tuple(data["devices"]),
            argv=tuple(data["argv"]),
        )

    def option(self, name: str) -> str | None:
        """Value of an option of the engine's, `--name value` or `--name=value`; the last counts."""
        found = None
        for index, word in enumerate(self.argv):
            if word == name and index + 1 < len(self.argv):
                found = self.argv[index + 1]
            elif word.startswith(f"{name}="):
                found = word.partition("=")[2]
        return found

    def folder_of(self, inside: str) -> Mount | None:
        """The mount that a tidy path in the container lies on; None when the image brings it."""
        below = [one for one in self.mounts if f"{inside}/".startswith(f"{one.target}/")]
        return max(below, key=lambda one: len(one.target), default=None)


@dataclass(frozen=True)
class DryRun:
    """Both ranks, and the number of rails where the output names it."""

    ranks: Mapping[int, Rank]
    rails: int | None


def digest(output: str) -> str:
    """Names what an output plans, so that an operator can accept exactly that.

    Lines about the moment (what runs, whether the port is in use) do not count: the same plan has
    the same name whoever serves while it is made.
    """
    plan = "".join(line for line in output.splitlines(keepends=True) if not _moment(line))
    return hashlib.sha256(plan.encode("utf-8", "surrogateescape")).hexdigest()


def _moment(line: str) -> bool:
    command = line.startswith(("  ", "[dry-run]"))
    return not command and _MOMENT.search(line) is not None


def parse(output: str, homes: Mapping[int, str]) -> DryRun:
    """Take the output of a dry run apart; `homes` are the home directories of the ranks' accounts.

    Raises DryRunError.
    """
    if found := _OPEN.search(output):
        raise DryRunError(f"{found[0]} is left open: the worker could not be asked")
    texts = _commands(output)
    for rank in RANKS:
        if rank not in texts:
            raise DryRunError(f"it has no command of rank {rank}")
    if extra := sorted(set(texts) - set(RANKS)):
        raise DryRunError(f"it has a command of rank {extra[0]}, and a pair has ranks 0 and 1")
    rails = _RAILS.search(output)
    return DryRun(
        {rank: _rank(rank, text, homes[rank]) for rank, text in sorted(texts.items())},
        int(rails["count"]) if rails else None,
    )


def _commands(output: str) -> dict[int, str]:
    """The text below each rank's title."""
    found: dict[int, list[str]] = {}
    lines: list[str] | None = None
    for line in output.splitlines():
        if line.startswith("[dry-run]"):
            title = _TITLE.fullmatch(line)
            if title is None:
                raise DryRunError(f"the line {line[:80]!r} is no rank's title")
            if int(title["rank"]) in found:
                raise DryRunError(f"it has two commands of rank {int(title['rank'])}")
            lines = found.setdefault(int(title["rank"]), [])
        elif line.startswith("  ") and lines is not None:
            lines.append(line)
        else:
            lines = None
    return {rank: "\n".join(text) for rank, text in found.items()}


def _rank(rank: int, text: str, home: str) -> Rank:
    try:
        *before, run = shell_words.commands(text, {"HOME": home})
    except shell_words.ShellWordsError as error:
        raise DryRunError(f"rank {rank}: {error}") from error
    for words in before:
        if words[:1] != ["mkdir"]:
            raise DryRunError(f"rank {rank}: it runs {words[0]!r} before the container is started")
    if run[:2] != ["docker", "run"]:
        raise DryRunError(f"rank {rank}: its command is {' '.join(run[:2])!r}, not 'docker run'")
    try:
        return _DockerRun(run[2:]).rank()
    except DryRunError as error:
        raise DryRunError(f"rank {rank}: {error}") from error


class _DockerRun:
    """The words behind `docker run`."""

    def __init__(self, words: Sequence[str]) -> None:
        self.left = list(words)
        self.given: list[tuple[str, str]] = []

    def rank(self) -> Rank:
        while self.left and self.left[0].startswith("-") and self.left[0] != "-":
            self._option(self.left.pop(0))
        if not self.left:
            raise DryRunError("its docker command names no image")
        values = dict(self.given)
        if not values.get("--name"):
            raise DryRunError("its container has no name")
        return Rank(
            container=values["--name"],
            image=self.left[0],
            env=self._environment(),
            mounts=tuple(sorted(self._mounts())),
            network=values.get("--network", values.get("--net", "default")),
            devices=tuple(sorted(self._all("--device"))),
            argv=tuple(self.left[1:]),
        )

    def _option(self, word: str) -> None:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if name in _WITH_VALUE:
                self.given.append((name, value if equals else self._value(name)))
            elif name not in _SWITCHES:
                raise DryRunError(f"docker's option {name} is not known here")
            return
        letters = word[1:]
        while letters:
            name, letters = _LONG.get(letters[0], ""), letters[1:]
            if not name:
                raise DryRunError(f"docker's option {word} is not known here")
            if name in _WITH_VALUE:
                self.given.append((name, letters.removeprefix("=") or self._value(name)))
                return

    def _value(self, name: str) -> str:
        if not self.left:
            raise DryRunError(f"docker's option {name} has no value")
        return self.left.pop(0)

    def _all(self, name: str) -> list[str]:
        return [value for known, value in self.given if known == name]

    def _environment(self) -> dict[str, str]:
        found = {}
        for one in self._all("--env"):
            name, equals, value = one.partition("=")
            if not equals:
                raise DryRunError(f"{name} is taken from the environment of whoever runs it")
            found[name] = value
        return found

    def _mounts(self) -> list[Mount]:
        found = [_volume(one) for one in self._all("--volume")]
        found += [_mount(one) for one in self._all("--mount")]
        targets = [one.target for one in found]
        if twice := [target for target in targets if targets.count(target) > 1]:
            raise DryRunError(f"two folders are mounted on {twice[0]}")
        return found


def _volume(text: str) -> Mount:
    source, *rest = text.split(":")
    if not 1 <= len(rest) <= 2 or not rest[0].startswith("/"):
        raise DryRunError(f"the mount {text!r} is not understood")
    options = rest[1].split(",") if len(rest) == 2 else []
    return Mount(tidy(rest[0]), tidy(source), "ro" in options, not source.startswith("/"))


def _mount(text: str) -> Mount:
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    kind = parts.get("type", "volume")
    target = parts.get("target") or parts.get("destination") or parts.get("dst") or ""
    source = parts.get("source") or parts.get("src") or ""
    if kind not in ("bind", "volume") or not target.startswith("/") or not source:
        raise DryRunError(f"the mount {text!r} is not understood")
    read_only = any(parts.get(key, "0") in ("", "true", "1") for key in ("readonly", "ro"))
    return Mount(tidy(target), tidy(source), read_only, kind == "volume")


def tidy(path: str) -> str:
    """A path as Docker notes it: no slash at its end, none twice, no '.' in between."""
    return re.sub("^/+", "/", posixpath.normpath(path))
