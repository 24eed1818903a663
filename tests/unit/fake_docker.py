"""A machine with a Docker that does what real ones do with their file, a signal and a restart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_pair.container_runtime.docker import Host
from spark_pair.system import Result

TOOLKIT = ("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-ctk")


def install(root: Path, *names: str) -> None:
    """Put programs where services find them."""
    folder = root / "usr/bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


@dataclass
class FakeDocker:
    """`takes_reload` and `takes_restart` say when the daemon reads runtimes from its file."""

    root: Path
    runtimes: dict[str, Any] = field(default_factory=lambda: {"runc": {"path": "runc"}})
    live_restore: bool = False
    containers: list[str] = field(default_factory=list)
    dependants: dict[str, str] = field(default_factory=dict)
    """Service that systemd restarts with Docker -> its state."""
    takes_reload: bool = True
    takes_restart: bool = True
    survives: bool = True
    """Whether it comes up with a changed file."""
    objection: str = ""
    """What `dockerd --validate` finds."""
    flags: tuple[str, ...] = ("-H", "fd://")
    unit: dict[str, str] = field(default_factory=dict)
    account_may: bool = True
    running: bool = True
    switch: str = "inactive"
    """What systemd says of the switch's unit."""
    packages: str = ""
    """What dpkg-query shows: status and name of each package."""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        install(self.root, "dockerd", *TOOLKIT)
        (self.root / "proc/7").mkdir(parents=True)
        line = "\0".join(["/usr/bin/dockerd", *self.flags]) + "\0"
        (self.root / "proc/7/cmdline").write_text(line)
        self.file.parent.mkdir(parents=True)
        self._first = self._content()

    @property
    def file(self) -> Path:
        """Its daemon.json."""
        return self.root / "etc/docker/daemon.json"

    @property
    def host(self) -> Host:
        """The machine, as the code under test meets it; waiting takes no time."""
        return Host("spark-a", self.run, self.root, pause=lambda _: None)

    def operator_wrote(self, text: str) -> None:
        """Begin with this file."""
        self.operator_wrote_bytes(text.encode())

    def operator_wrote_bytes(self, data: bytes) -> None:
        """Begin with this file."""
        self.file.write_bytes(data)
        self._first = self._content()

    def process(self, number: int, line: str, unit: str) -> None:
        """Let a process run on the machine."""
        place = self.root / f"proc/{number}"
        place.mkdir()
        (place / "cmdline").write_text("\0".join(line.split()) + "\0")
        (place / "cgroup").write_text(f"0::/system.slice/{unit}\n")

    def run(self, argv: Sequence[str], timeout: float) -> Result:
        """Answer one command."""
        assert timeout > 0
        words = " ".join(argv)
        self.calls.append(words)
        for start, answer in {
            "systemctl show --property ActiveState spark-pair-switch.service": lambda: Result(
                0, f"ActiveState={self.switch}\n", ""
            ),
            "systemctl show": self._show,
            "systemctl reload": self._reload,
            "systemctl restart": self._restart,
            "systemctl reset-failed": _well,
            "systemctl is-active": lambda: Result(3, "\n".join(self.dependants.values()), ""),
            "runuser -u spark -- docker info": lambda: self._info(account=True),
            "docker info": self._info,
            "dpkg-query --show": lambda: Result(1, self.packages, "no packages found"),
            "runuser -u spark -- test -w": lambda: Result(1, "", ""),
            "docker ps": lambda: Result(0, "\n".join(self.containers), ""),
            f"{self.root}/usr/bin/dockerd --validate": self._validate,
        }.items():
            if words.startswith(start):
                return answer()
        raise AssertionError(f"nobody expected {words!r}")

    def called(self, start: str) -> bool:
        """Whether a command that begins so was run."""
        return any(call.startswith(start) for call in self.calls)

    def _show(self) -> Result:
        said = {
            "LoadState": "loaded",
            "ActiveState": "active" if self.running else "failed",
            "UnitFileState": "enabled",
            "MainPID": "7",
            "RequiredBy": " ".join(self.dependants),
            "ConsistsOf": "docker.socket",
            **self.unit,
        }
        return Result(0, "".join(f"{key}={value}\n" for key, value in said.items()), "")

    def _info(self, *, account: bool = False) -> Result:
        if not self.running or (account and not self.account_may):
            said: dict[str, Any] = {"ServerErrors": ["permission denied or no daemon"]}
            return Result(1, json.dumps(said), "")
        said = {
            "ServerVersion": "28.3.3",
            "Runtimes": self.runtimes,
            "LiveRestoreEnabled": self.live_restore,
        }
        return Result(0, json.dumps(said), "")

    def _reload(self) -> Result:
        if self.takes_reload:
            self._read()
        return _well()

    def _restart(self) -> Result:
        self.running = self.survives or self._content() == self._first
        if self.running and self.takes_restart:
            self._read()
        return Result(0 if self.running else 1, "", "")

    def _validate(self) -> Result:
        return Result(1, "", self.objection) if self.objection else _well()

    def _read(self) -> None:
        self.runtimes.update(json.loads(self._content() or "{}").get("runtimes", {}))

    def _content(self) -> str | None:
        return self.file.read_text("utf-8-sig") if self.file.exists() else None


def _well() -> Result:
    return Result(0, "", "")
