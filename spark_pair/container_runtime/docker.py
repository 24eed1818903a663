"""The Docker of this host: what it says of itself, and who would suffer from its restart.

Parsing and judging are pure; `Host` asks the programs of the machine.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import paths
from ..system import Result, Runner, run_plainly
from .daemon_json import RUNTIME, RefusedError, program_of

UNIT = "docker.service"
DEFAULT_FILE = "/etc/docker/daemon.json"
SEARCH_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where a service of the system finds programs, whatever the PATH of the login is."""

ASK_SECONDS = 60.0
RELOAD_LOOKS = 10
"""A reload is a signal and taken within milliseconds; this many looks, half a second apart."""
START_LOOKS = 120
"""A minute: a daemon with many containers to restore takes its time."""
LOOK_PAUSE = 0.5
RESTART_SECONDS = 240.0


@dataclass(frozen=True)
class Info:
    """What `docker info` says, as far as it matters here."""

    version: str
    runtimes: Mapping[str, str | None]
    """Name of each runtime that the daemon knows -> its program."""
    live_restore: bool

    @property
    def has_nvidia(self) -> bool:
        """Whether the running daemon knows the NVIDIA runtime."""
        return RUNTIME in self.runtimes


def parse_info(text: str) -> Info | None:
    """Read `docker info` as JSON; None when no daemon answered or the answer makes no sense."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("ServerErrors") or not said.get("ServerVersion"):
        return None
    runtimes = said.get("Runtimes") or {}
    return Info(
        version=str(said["ServerVersion"]),
        runtimes={str(name): program_of(entry) for name, entry in runtimes.items()},
        live_restore=bool(said.get("LiveRestoreEnabled")),
    )


@dataclass(frozen=True)
class Unit:
    """docker.service as systemd knows it."""

    load: str
    active: str
    file_state: str
    pid: int
    dependants: tuple[str, ...] = ()
    """Services that systemd stops or restarts together with Docker."""

    @property
    def running(self) -> bool:
        """Whether the daemon runs; while it starts or reloads it does."""
        return self.active in ("active", "reloading", "activating")


def parse_unit(text: str) -> Unit:
    """Read the properties that `Host.unit` asks for."""
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    names = {
        name
        for key in ("RequiredBy", "BoundBy", "ConsistsOf")
        for name in said.get(key, "").split()
        if name.endswith(".service")
    }
    return Unit(
        load=said.get("LoadState", ""),
        active=said.get("ActiveState", ""),
        file_state=said.get("UnitFileState", ""),
        pid=int(said.get("MainPID") or 0),
        dependants=tuple(sorted(names)),
    )


@dataclass(frozen=True)
class Pair:
    """What both hosts of the pair have told, in words, just before a restart."""

    serving: tuple[str, ...] = ()
    """Servers that are not plainly down."""
    switching: tuple[str, ...] = ()
    """Switches at work."""


def pair_told(data: Mapping[str, Any] | None) -> Pair | None:
    """Read the pair as it comes through a module's arguments."""
    if data is None:
        return None
    return Pair(tuple(data["serving"]), tuple(data["switching"]))


def casualties(
    info: Info, containers: Sequence[str], services: Sequence[str], clients: Sequence[str]
) -> list[str]:
    """What a restart of the daemon would end, in words.

    With live-restore containers go on without their daemon. Services that depend on it do not, nor
    do clients that wait for a container: they lose their connection, and whatever has started them
    takes that for the end of its container.
    """
    found = [] if info.live_restore else [f"container {name}" for name in containers]
    return [*found, *(f"service {name}" for name in services), *clients]


def restart_refusal(host: str, reason: str, ended: Sequence[str], left: str) -> str:
    """The sentence for a restart that nobody has allowed. `left` says what is done already."""
    return (
        f"Docker on {host} must be restarted: {reason}. That would end or disturb "
        f"{', '.join(ended)}. {left}Run again with --tags runtime when nothing is served there, or "
        "set container_runtime_allow_restart: true."
    )


def switch_refusal(host: str, reason: str, switching: Sequence[str], left: str) -> str:
    """The sentence for a restart in the middle of a switch, which nothing allows."""
    return (
        f"Docker on {host} must be restarted: {reason}. But {', '.join(switching)}, and its new "
        f"server may start at any moment. {left}Run again with --tags runtime when it has ended "
        "('spark-pair history' on the head)."
    )


_VALUED = ("-H", "--host", "-c", "--context", "--config", "-l", "--log-level")
"""Options of docker itself whose value is a word of its own."""
_ATTACHED = ("run", "attach", "wait", "exec")


def is_attached(command_line: Sequence[str]) -> bool:
    """Whether a command line is a docker client that stays with a container.

    A `run --detach` in the middle of its work counts as well.
    """
    if not command_line or Path(command_line[0]).name != "docker":
        return False
    words = list(command_line[1:])
    while words and words[0].startswith("-"):
        del words[: 2 if words[0] in _VALUED else 1]
    if words[:1] == ["container"]:
        del words[0]
    if not words:
        return False
    verb, options = words[0], words[1:]
    if verb == "logs":
        return any(_has(word, "f", "--follow") for word in options)
    if verb == "start":
        return any(_has(word, "a", "--attach") for word in options)
    if verb == "compose":
        return "up" in options and not any(_has(word, "d", "--detach") for word in options)
    return verb in _ATTACHED


def _has(word: str, letter: str, name: str) -> bool:
    if word.startswith("--"):
        return word == name or word.startswith(f"{name}=")
    return word.startswith("-") and letter in word


def flag_value(command_line: Sequence[str], flag: str) -> str | None:
    """Value of a flag in a command line, written as `--flag value` or `--flag=value`."""
    for place, word in enumerate(command_line):
        name, equals, value = word.partition("=")
        if name.lstrip("-") == flag and name.startswith("-"):
            if equals:
                return value
            return command_line[place + 1] if place + 1 < len(command_line) else ""
    return None


def without_passwords(words: str) -> str:
    """Hide the account part of addresses: a proxy's password stands there."""
    return re.sub(r"//[^/@\s\"']+@", "//…@", words)


@dataclass(frozen=True)
class Host:
    """This machine. `name` is its inventory name, for sentences."""

    name: str
    run: Runner = run_plainly
    root: Path = Path("/")
    pause: Callable[[float], None] = time.sleep

    def program(self, name: str) -> str | None:
        """Path of a program that services of the system would find, or None."""
        if name.startswith("/"):
            places, name = [self.root / Path(name).parent.relative_to("/")], Path(name).name
        else:
            places = [self.root / folder.lstrip("/") for folder in SEARCH_PATH]
        return shutil.which(name, path=":".join(map(str, places)))

    def unit(self) -> Unit:
        """Ask systemd about Docker; RefusedError when it does not answer."""
        properties = "LoadState,ActiveState,UnitFileState,MainPID,RequiredBy,BoundBy,ConsistsOf"
        asked = self.run(["systemctl", "show", "--property", properties, UNIT], ASK_SECONDS)
        if not asked.ok:
            raise RefusedError(
                f"systemd on {self.name} does not tell about {UNIT} ({asked.last_words()}): look "
                "at 'systemctl status' there"
            )
        return parse_unit(asked.out)

    def info(self, user: str | None = None) -> tuple[Info | None, str]:
        """What the daemon says to root, or to an account in a new session; else why it does not."""
        session = ["runuser", "-u", user, "--"] if user else []
        asked = self.run([*session, "docker", "info", "--format", "{{json .}}"], ASK_SECONDS)
        info = parse_info(asked.out)
        return info, "" if info else _why_no_answer(asked)

    def daemon_flags(self, unit: Unit) -> list[str]:
        """The running daemon's command line; empty when it cannot be read."""
        return _words_of(self.root / "proc" / str(unit.pid) / "cmdline")

    def wait_for(self, looks: int) -> tuple[Info | None, bool]:
        """Look until the daemon knows the NVIDIA runtime; its last answer, and whether it does."""
        info: Info | None = None
        for look in range(looks):
            if look:
                self.pause(LOOK_PAUSE)
            info, _ = self.info()
            if info and info.has_nvidia:
                return info, True
        return info, False

    def reload(self) -> tuple[Info | None, bool]:
        """Let the daemon read its file again, which ends nothing; as `wait_for`."""
        self.run(["systemctl", "reload", UNIT], ASK_SECONDS)
        return self.wait_for(RELOAD_LOOKS)

    def restart(
        self, info: Info, reason: str, pair: Pair, *, allowed: bool, left: str = ""
    ) -> bool:
        """Restart the daemon and wait for its answer; whether it came back with the runtime.

        RefusedError names what would be ended, unless `allowed`, and always a switch at work.
        `left` is a sentence about what is done already.
        """
        switching = list(dict.fromkeys((*pair.switching, *self.switching())))
        if switching:
            raise RefusedError(switch_refusal(self.name, reason, switching, left))
        if not allowed:
            ended = casualties(
                info, self._containers(), self._active_dependants(), self.attached_clients()
            )
            ended += pair.serving
            if ended:
                raise RefusedError(restart_refusal(self.name, reason, ended, left))
        self.run(["systemctl", "restart", UNIT], RESTART_SECONDS)
        return self.wait_for(START_LOOKS if self.unit().running else 1)[1]

    def switching(self) -> list[str]:
        """Whether a switch is at work on this host, in words; what cannot be told counts as one."""
        found = []
        asked = self.run(
            ["systemctl", "show", "--property", "ActiveState", paths.SWITCH_UNIT], ASK_SECONDS
        )
        state = asked.out.strip().removeprefix("ActiveState=") if asked.ok else "unknown"
        if state not in ("inactive", "failed"):
            found.append(f"{paths.SWITCH_UNIT} on {self.name} is {state or 'unknown'}")
        try:
            with (self.root / paths.LOCK.relative_to("/")).open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            found.append(f"a switch holds {paths.LOCK} on {self.name}")
        except OSError as error:
            found.append(f"{paths.LOCK} on {self.name} does not tell about a switch ({error})")
        return found

    def attached_clients(self) -> list[str]:
        """Docker clients on this host that wait for a container, in words without their options."""
        found = []
        for place in sorted((self.root / "proc").glob("[0-9]*")):
            words = _words_of(place / "cmdline")
            if is_attached(words):
                unit = _service_of(place / "cgroup")
                found.append(f"docker client {place.name}{f' of {unit}' if unit else ''}")
        return found

    def _containers(self) -> list[str]:
        asked = self.run(["docker", "ps", "--format", "{{.Names}}"], ASK_SECONDS)
        if not asked.ok:
            raise RefusedError(
                f"Docker on {self.name} must be restarted, but does not tell which containers run "
                f"({asked.last_words()}), so it is left alone. Look at 'systemctl status docker' "
                "there."
            )
        return asked.out.split()

    def _active_dependants(self) -> list[str]:
        names = self.unit().dependants
        if not names:
            return []
        asked = self.run(["systemctl", "is-active", *names], ASK_SECONDS)
        states = asked.out.split()
        # A state that was not told counts as active: unknown is not down.
        states += ["unknown"] * (len(names) - len(states))
        return [
            name
            for name, state in zip(names, states, strict=False)
            if state not in ("inactive", "failed")
        ]


def _words_of(cmdline: Path) -> list[str]:
    """A process's command line; empty when it cannot be read, for example since it has ended."""
    try:
        raw = cmdline.read_bytes()
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]


def _service_of(cgroup: Path) -> str:
    try:
        name = cgroup.read_text(encoding="utf-8").strip().rpartition("/")[2]
    except OSError:
        return ""
    return name if name.endswith(".service") else ""


def _why_no_answer(asked: Result) -> str:
    try:
        said: Any = json.loads(asked.out)
    except ValueError:
        said = {}
    errors = said.get("ServerErrors") if isinstance(said, dict) else None
    return without_passwords("; ".join(map(str, errors)) if errors else asked.last_words())
