"""What the orchestration itself costs, beside the servers' own time to stop and to load.

Measured on the simulated pair in one run, so that the figures belong together; the ratios mean
something, the seconds belong to this machine. Nothing is asserted.

usage: simulated_pair/start && .venv/bin/python benchmarks/switch_overhead.py [--rounds N]

overhead      (stop issued -> new server verified) - the stopped units' own time - the new server's
              own time (start.sh from its start to its end; for Hikari from its unit's start to the
              line with which it begins to serve)
in phases     the same in each phase, also those in which the old server still serves; without the
              drain, which waits for its requests
visible gap   what a client outside the pair sees that does nothing but ask GET /v1/models
no change     a plain site.yml on a pair that is as it should be, against one "ansible -m ping"
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "molecule")]
# The commands of this very environment, also when nobody has activated it.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

from stories import machines, preparation, servers, tool  # noqa: E402 - needs the path above

POLL_SECONDS = 0.05
# systemd's message ids for "Stopping …" and "Stopped …".
_STOPPING, _STOPPED = "de5b426a63be47a7b6ac3eaac82e2f6f", "9d1aaa27d60140bd96365438aad20286"
ENGINE_UNIT = (machines.HEAD, "dsv41-tensorfold.service")
_TIMES = (
    "ActiveEnterTimestampMonotonic",
    "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic",
)


@dataclass(frozen=True)
class Switched:
    """One switch, in seconds."""

    target: str
    whole: float
    """From the order to stop to the verified new server."""
    stopping: float
    loading: float
    gap: float
    phases: dict[str, float]

    @property
    def overhead(self) -> float:
        """What is left when the servers' own time is taken away."""
        return self.whole - self.stopping - self.loading

    @property
    def overheads(self) -> dict[str, float]:
        """The same by phase, with those before the stop and after the proof; without the drain."""
        own = {"stop": self.stopping, "start": self.loading}
        return {
            phase: seconds - own.get(phase, 0.0)
            for phase, seconds in self.phases.items()
            if phase != "drain"
        }


class Client(threading.Thread):
    """Asks both servers for their models, as fast as a client that must not miss the change."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.answers: list[tuple[float, str]] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            for server, (host, port, _) in servers.API.items():
                if self._answers(machines.machine(host).management, port):
                    self.answers.append((time.monotonic(), server))
            time.sleep(POLL_SECONDS)

    def _answers(self, address: str, port: int) -> bool:
        connection = http.client.HTTPConnection(address, port, timeout=1)
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def finish(self, old: str, new: str) -> float:
        """Stop asking; seconds between the old server's last answer and the new one's first."""
        self._over.set()
        self.join(5)
        last = max(at for at, server in self.answers if server == old)
        first = min(at for at, server in self.answers if server == new)
        return first - last


def command(*words: str) -> float:
    """Run a command in the repository; how many seconds it took. CalledProcessError if it fails."""
    began = time.monotonic()
    subprocess.run(
        [str(Path(sys.executable).with_name(words[0])), *words[1:]],
        cwd=ROOT,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - began


def site(*words: str) -> float:
    """Run site.yml on the simulated pair; seconds."""
    return command("ansible-playbook", "-i", "inventory/simulated", "site.yml", *words)


def _times(host: str, unit: str) -> dict[str, float]:
    """Seconds of CLOCK_MONOTONIC at which a unit last changed."""
    shown = machines.unit(host, unit, *_TIMES)
    return {name: int(shown[name] or 0) / 1e6 for name in _TIMES}


def _log(host: str, unit: str) -> list[dict[str, Any]]:
    """What the unit and systemd said about it, oldest first."""
    text = machines.on(host, f"journalctl --unit {unit} --output json")
    return [json.loads(line) for line in text.splitlines()]


def _stopping(units: Sequence[tuple[str, str]]) -> float:
    """How long the units took to stop, one after the other.

    From systemd's own messages: it forgets the times of a stopped unit that nothing refers to.
    """
    total = 0.0
    for host, unit in units:
        times = {
            row.get("MESSAGE_ID"): int(row["__MONOTONIC_TIMESTAMP"]) for row in _log(host, unit)
        }
        total += (times[_STOPPED] - times[_STOPPING]) / 1e6
    return total


def _loading(target: str) -> float:
    """How long the new server's own start took."""
    if target == "deepseek":
        times = _times(*ENGINE_UNIT)
        return times["ExecMainExitTimestampMonotonic"] - times["ExecMainStartTimestampMonotonic"]
    host, unit = servers.HIKARI_UNITS[-1]
    ready = max(
        int(row["__MONOTONIC_TIMESTAMP"])
        for row in _log(host, unit)
        if "serving" in str(row.get("MESSAGE"))
    )
    began = min(_times(*one)["ActiveEnterTimestampMonotonic"] for one in servers.HIKARI_UNITS)
    return ready / 1e6 - began


def switch(target: str) -> Switched:
    """Cut over or roll back once, by the play, and take it apart."""
    old, tag, old_units = {
        "deepseek": ("hikari", "cutover", servers.HIKARI_UNITS),
        "hikari": ("deepseek", "rollback", (ENGINE_UNIT,)),
    }[target]
    client = Client()
    client.start()
    site("--tags", tag)
    gap = client.finish(old, target)
    events = tool.last_switch()
    stop = next(e["time"] for e in events if e["event"] == "phase" and e["phase"] == "stop")
    outcomes = {e["phase"]: e for e in events if e["event"] == "outcome"}
    return Switched(
        target=target,
        whole=outcomes["verify"]["time"] - stop,
        stopping=_stopping(old_units),
        loading=_loading(target),
        gap=gap,
        phases={phase: float(event["seconds"]) for phase, event in outcomes.items()},
    )


def row(name: str, values: Sequence[float], unit: str = "s") -> str:
    """One line of the table: the distribution of a figure."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"  {name:<22}{low:8.2f}{middle:9.2f}{high:9.2f} {unit}   n={len(values)}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="cut-overs and rollbacks each")
    rounds = parser.parse_args().rounds

    servers.back_to_hikari()
    preparation.prepare()
    switched = [switch(target) for _ in range(rounds) for target in ("deepseek", "hikari")]
    site("--tags", "cutover")
    plain = [site() for _ in range(min(rounds, 3))]
    ping = [
        command("ansible", "-i", "inventory/simulated", "spark_pair", "-m", "ping")
        for _ in range(min(rounds, 3))
    ]

    for target, title in (("deepseek", "cut-over to DeepSeek"), ("hikari", "rollback to Hikari")):
        mine = [one for one in switched if one.target == target]
        print(f"\n{title:<24}{'least':>8}{'median':>9}{'most':>9}")
        print(row("overhead", [one.overhead for one in mine]))
        print(row("stop to verified", [one.whole for one in mine]))
        print(row("units' own stop", [one.stopping for one in mine]))
        print(row("server's own start", [one.loading for one in mine]))
        print(row("visible gap", [one.gap for one in mine]))
        print(row("overhead, all phases", [sum(one.overheads.values()) for one in mine]))
        for phase in mine[0].overheads:
            print(row(f"  in {phase}", [one.overheads[phase] for one in mine]))
    print(f"\n{'nothing to change':<24}{'least':>8}{'median':>9}{'most':>9}")
    print(row("site.yml", plain))
    print(row("one ping", ping))
    ratio = statistics.median(plain) / statistics.median(ping)
    print(f"  {'site.yml / ping':<22}{'':8}{ratio:9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
