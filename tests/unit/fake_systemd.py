"""A systemd that knows only what jobs need: units that run, end, fail and are forgotten."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_pair.jobs.inside import record_end
from spark_pair.system import Result


@dataclass
class FakeUnit:
    argv: list[str]
    properties: dict[str, list[str]]
    environment: dict[str, str]
    service_type: str
    state: str = "active"
    result: str = "success"
    code: str = "0"
    status: str = "0"
    secrets: dict[str, str] = field(default_factory=dict)
    """What it was given, as read at its start."""


class FakeSystemd:
    """Call it as a `Runner`."""

    def __init__(self) -> None:
        self.units: dict[str, FakeUnit] = {}
        self.asked: list[list[str]] = []
        self.silent = False
        self.refuses_start = ""
        self.refuses_stop = ""
        self.before_start: Callable[[], None] = lambda: None
        self.after_show: Callable[[], None] = lambda: None

    def __call__(self, argv: Sequence[str], timeout: float) -> Result:
        words = list(argv)
        self.asked.append(words)
        if words[0] == "systemd-run":
            return self._start(words)
        if words[0].startswith("/opt/"):
            return Result(1, "", "the tool itself is not here")
        verb = next(word for word in words[1:] if not word.startswith("-"))
        name = words[-1]
        assert words[-2] == "--"
        if self.silent:
            return Result(1, "", "Failed to connect to bus: No such file or directory")
        if verb == "show":
            answer = self._show(name)
            self.after_show()
            return Result(0, answer, "")
        if verb == "stop":
            if self.refuses_stop:
                return Result(1, "", self.refuses_stop)
            self.end(name, how="killed", status="TERM")
            return Result(0, "", "")
        assert verb == "reset-failed"
        unit = self.units.get(name)
        if unit is None:
            return Result(1, "", f"Failed to reset failed state of unit {name}: not loaded.")
        if unit.state == "failed":
            del self.units[name]
        return Result(0, "", "")

    def _start(self, words: list[str]) -> Result:
        self.before_start()
        split = words.index("--")
        options = dict(word.lstrip("-").split("=", 1) for word in words[1:split] if "=" in word)
        name = options["unit"]
        if name in self.units:
            return Result(1, "", f"Failed to start: Unit {name} was already loaded.")
        if self.refuses_start:
            return Result(1, "", self.refuses_start)
        properties: dict[str, list[str]] = {}
        for word in words[1:split]:
            if word.startswith("--property="):
                key, value = word.removeprefix("--property=").split("=", 1)
                properties.setdefault(key, []).append(value)
        told = [w.removeprefix("--setenv=") for w in words[1:split] if w.startswith("--setenv=")]
        unit = FakeUnit(
            argv=[words[split + 1], *(_expanded(word) for word in words[split + 2 :])],
            properties=properties,
            environment=dict(item.split("=", 1) for item in told),
            service_type=options["service-type"],
        )
        for line in properties.get("LoadCredential", []):
            key, path = line.split(":", 1)
            file = Path(path)
            assert file.stat().st_mode & 0o7777 == 0o600
            assert file.parent.stat().st_mode & 0o7777 == 0o700
            unit.secrets[key] = file.read_text()
        self.units[name] = unit
        return Result(0, "", "")

    def end(
        self,
        name: str,
        *,
        how: str = "exited",
        status: str = "0",
        result: str = "success",
        recorded: bool = True,
    ) -> None:
        """The unit's process ends; `recorded`: its last step could be run."""
        unit = self.units[name]
        if recorded:
            told = {"SERVICE_RESULT": result, "EXIT_CODE": how, "EXIT_STATUS": status}
            record_end({**unit.environment, **told})
        if result == "success":
            del self.units[name]  # nobody remembers a transient unit that ended well
            return
        unit.state, unit.result = "failed", result
        unit.code = {"exited": "1", "killed": "2", "dumped": "3"}[how]
        unit.status = str(_number(status))

    def _show(self, name: str) -> str:
        unit = self.units.get(name)
        if unit is None:
            return "ActiveState=inactive\nResult=success\nExecMainCode=0\nExecMainStatus=0\n"
        return (
            f"ActiveState={unit.state}\nResult={unit.result}\n"
            f"ExecMainCode={unit.code}\nExecMainStatus={unit.status}\n"
        )


def _expanded(word: str) -> str:
    """As systemd does it: `$$` is a dollar, and there are no variables here."""
    return re.sub(r"\$\$|\$\{\w+\}|\$\w+", lambda m: "$" if m[0] == "$$" else "", word)


def _number(status: str) -> int:
    return int(status) if status.isdigit() else int(signal.Signals[f"SIG{status}"])
