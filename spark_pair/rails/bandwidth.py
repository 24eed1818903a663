"""How much each rail carries: a short test with ib_write_bw, or with iperf3 where that is missing.

The head serves, the worker sends, one rail after the other; the other direction is not measured.
A server is a transient unit that
ends by itself: after one client, or after its time. Buffers are small on purpose: GPU and host
share one memory, and a large test buffer has frozen machines. Results are Gb/s.
"""

from __future__ import annotations

import enum
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..description import Role
from ..findings import Finding, Grade
from ..hostview import ports
from ..system import Result, Runner, run_plainly
from .look import gid_index

TOOLS = ("ib_write_bw", "iperf3")
"""In the order in which they are preferred: only the first tests RDMA itself."""

TITLES = {"rails_bandwidth": "worker to head"}

SECONDS = 5
SERVER_SECONDS = 60
"""A server that no client has asked by then ends."""

FIRST_PORT = 18515
"""Of the first rail; the next rail has the next port."""

MESSAGE_BYTES = 65536
QUEUE_PAIRS = 4
STREAMS = 16
"""Of iperf3. Each costs a core's time, and 8 of them do not fill a rail."""

HOT_PLUG = (8.0, 25.0)
"""What a 200 Gb/s link carries when its cable was plugged in after boot."""

HOT_PLUG_LINK = 200_000
"""Mb/s of a link that shows that fault."""

_ROW = re.compile(r"^\s*\d+\s+\d+\s+(?P<peak>[\d.]+)\s+(?P<average>[\d.]+)\s+[\d.]+\s*$", re.M)


class BandwidthError(Exception):
    """A test cannot be run; the message says why."""


class Speed(enum.StrEnum):
    """What a measured bandwidth means."""

    HEALTHY = "healthy"
    HOT_PLUG = "hot-plug"
    LOW = "low"
    SOCKETS = "sockets"
    """Too little for the floor, by a tool that need not reach it."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Rail:
    """One rail as its own host sees it; addresses without prefix."""

    interface: str
    address: str
    peer: str
    port: int


def rails_of(entries: Sequence[Mapping[str, Any]], peers: Mapping[str, str]) -> list[Rail]:
    """Rails from cx7_network_rails and interface -> peer's address; each has a port of its own."""
    return [
        Rail(
            str(entry["interface"]),
            str(entry["address"]).partition("/")[0],
            str(peers.get(entry["interface"], "")).partition("/")[0],
            FIRST_PORT + place,
        )
        for place, entry in enumerate(entries)
    ]


def tools(which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Tools that this host has, the preferred one first."""
    return [name for name in TOOLS if which(name)]


def parse_ib_write_bw(text: str) -> float:
    """Average of the last row, in Gb/s.

    Raises BandwidthError when there is none: a wrong GID index makes it print its header, no row,
    and exit code 0.
    """
    rows = list(_ROW.finditer(text))
    if not rows:
        raise BandwidthError("ib_write_bw printed no result row")
    if "BW average[Gb/sec]" not in text:
        raise BandwidthError("ib_write_bw does not report Gb/s")
    return float(rows[-1]["average"])


def parse_iperf3(text: str) -> float:
    """What arrived, in Gb/s, from `iperf3 -J`. Raises BandwidthError when it reports an error."""
    try:
        data = json.loads(text)
        if data.get("error"):
            raise BandwidthError(str(data["error"]))
        return float(data["end"]["sum_received"]["bits_per_second"]) / 1e9
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BandwidthError(f"iperf3 printed no result ({type(error).__name__})") from error


def classify(gbps: float | None, *, floor: float, link_speed: int, tool: str = TOOLS[0]) -> Speed:
    """Judge one rail; `gbps` None: not measured, `floor` in Gb/s, `link_speed` in Mb/s.

    iperf3 goes through the kernel's sockets, whose limit is not the rail's.
    """
    if gbps is None or math.isnan(gbps):
        return Speed.UNKNOWN
    if gbps >= floor:
        return Speed.HEALTHY
    if link_speed >= HOT_PLUG_LINK and HOT_PLUG[0] <= gbps <= HOT_PLUG[1]:
        return Speed.HOT_PLUG
    return Speed.SOCKETS if tool == "iperf3" and gbps > HOT_PLUG[1] else Speed.LOW


def server_argv(tool: str, rail: Rail, root: Path = Path("/")) -> list[str]:
    """Command that serves one client on one rail."""
    if tool == "iperf3":
        return ["iperf3", "-s", "-1", "-B", rail.address, "-p", str(rail.port)]
    return _ib_write_bw(rail, root)


def client_argv(tool: str, rail: Rail, root: Path = Path("/")) -> list[str]:
    """Command that measures one rail against its server."""
    if tool == "iperf3":
        return ["iperf3", "-c", rail.peer, "-B", rail.address, "-p", str(rail.port),
                "-P", str(STREAMS), "-t", str(SECONDS), "-J"]  # fmt: skip
    return [*_ib_write_bw(rail, root), rail.peer]


def _ib_write_bw(rail: Rail, root: Path) -> list[str]:
    found = gid_index(rail.interface, rail.address, root)
    if found is None:
        raise BandwidthError(
            f"{rail.interface} has no RDMA device with a RoCE v2 GID for {rail.address} now"
        )
    device, index = found
    return ["ib_write_bw", "-d", device, "-x", str(index), "-p", str(rail.port), "-F",
            "-s", str(MESSAGE_BYTES), "-q", str(QUEUE_PAIRS), "-D", str(SECONDS),
            "--report_gbits"]  # fmt: skip


def unit_of(rail: Rail) -> str:
    """Name of the transient unit that serves a rail."""
    return f"spark-pair-rail-bandwidth-{rail.interface}.service"


def unit_argv(rail: Rail, command: Sequence[str]) -> list[str]:
    """Command that starts a server which ends by itself and leaves nothing behind."""
    return ["systemd-run", "--quiet", "--collect", f"--unit={unit_of(rail)}",
            f"--property=RuntimeMaxSec={SERVER_SECONDS}", "--property=MemoryMax=1G",
            "--property=LimitMEMLOCK=infinity", "--", *command]  # fmt: skip


def serve(
    tool: str,
    rails: Sequence[Rail],
    *,
    runner: Runner = run_plainly,
    root: Path = Path("/"),
    wait: float = 10.0,
) -> None:
    """Start a server for each rail and wait at most `wait` seconds until they listen.

    Raises BandwidthError, and then leaves none running.
    """
    taken = ports([rail.port for rail in rails], root) or {}
    for rail in rails:
        if taken.get(str(rail.port)):
            raise BandwidthError(
                f"port {rail.port} is taken: see 'ss -ltnp sport = :{rail.port}', then try again"
            )
    try:
        for rail in rails:
            done = runner(unit_argv(rail, server_argv(tool, rail, root)), 15)
            if not done.ok:
                raise BandwidthError(f"{unit_of(rail)} does not start: {done.last_words()}")
        _wait_until_they_listen(rails, root, wait)
    except BandwidthError:
        stop(rails, runner=runner)
        raise


def _wait_until_they_listen(rails: Sequence[Rail], root: Path, wait: float) -> None:
    wanted = [rail.port for rail in rails]
    deadline = time.monotonic() + wait
    while True:
        listening = ports(wanted, root) or {}
        silent = [rail for rail in rails if not listening.get(str(rail.port))]
        if not silent:
            return
        if time.monotonic() >= deadline:
            raise BandwidthError(
                f"the server for {silent[0].interface} does not listen: see "
                f"'journalctl -u {unit_of(silent[0])}'"
            )
        time.sleep(0.1)


def measure(
    tool: str, rails: Sequence[Rail], *, runner: Runner = run_plainly, root: Path = Path("/")
) -> dict[str, dict[str, Any]]:
    """Measure one rail after the other; interface -> {tool, gbps or None, error}."""
    found: dict[str, dict[str, Any]] = {}
    for rail in rails:
        gbps, error = None, ""
        try:
            done = runner(client_argv(tool, rail, root), SECONDS + 30)
            gbps = _result(tool, done)
        except BandwidthError as why:
            error = str(why)
        found[rail.interface] = {"tool": tool, "gbps": gbps, "error": error}
    return found


def _result(tool: str, done: Result) -> float:
    if tool == "iperf3":
        # It reports an error in its JSON and by its exit code; the first has the words.
        return parse_iperf3(done.out or json.dumps({"error": done.last_words()}))
    if not done.ok:
        raise BandwidthError(done.last_words())
    return parse_ib_write_bw(done.out)


def stop(rails: Sequence[Rail], *, runner: Runner = run_plainly) -> None:
    """End servers that no client has asked. One that is gone already is not an error."""
    for rail in rails:
        runner(["systemctl", "stop", unit_of(rail)], 30)


def findings(
    pair: Mapping[Role, str],
    interfaces: Sequence[str],
    measured: Mapping[str, Mapping[str, Any]] | None,
    *,
    floor: float,
    link_speed: int,
) -> list[Finding]:
    """One finding from what the worker measured; None: the test did not run there."""
    worker = pair["worker"]
    results = {name: (measured or {}).get(name) or {} for name in interfaces}
    speeds = {
        name: classify(
            one.get("gbps"),
            floor=floor,
            link_speed=link_speed,
            tool=str(one.get("tool") or TOOLS[0]),
        )
        for name, one in results.items()
    }
    cells = [_cell(one) for one in results.values()] or ["not measured"]
    return [
        Finding(
            id="rails_bandwidth",
            grade=_grade(list(speeds.values())),
            measured={worker: ", ".join(dict.fromkeys(cells))},
            hint=_hint(pair, results, speeds, floor),
            guards=(5, 34),
            details={name: dict(one) for name, one in results.items()},
        )
    ]


def _grade(speeds: Sequence[Speed]) -> Grade:
    if any(speed in (Speed.HOT_PLUG, Speed.LOW) for speed in speeds):
        return Grade.FAIL
    if Speed.UNKNOWN in speeds or not speeds:
        return Grade.UNKNOWN
    return Grade.WARN if Speed.SOCKETS in speeds else Grade.OK


def _cell(result: Mapping[str, Any]) -> str:
    gbps = result.get("gbps")
    return "unknown" if gbps is None else f"{gbps:.1f} Gb/s ({result.get('tool')})"


def _hint(
    pair: Mapping[Role, str],
    results: Mapping[str, Mapping[str, Any]],
    speeds: Mapping[str, Speed],
    floor: float,
) -> str:
    slow = [name for name, speed in speeds.items() if speed is Speed.HOT_PLUG]
    low = [name for name, speed in speeds.items() if speed is Speed.LOW]
    sockets = [name for name, speed in speeds.items() if speed is Speed.SOCKETS]
    unknown = [name for name, speed in speeds.items() if speed is Speed.UNKNOWN]
    both = " and ".join(pair.values())
    sentences = []
    if slow:
        sentences.append(
            f"{_listed(slow, results)} between {both} although the link shows its full speed: this "
            "is what a cable plugged into a running machine looks like. Reboot both machines with "
            "the cable in."
        )
    if low:
        sentences.append(
            f"{_listed(low, results)} between {both}, less than cx7_network_bandwidth_floor "
            f"({floor:g} Gb/s a rail): see the rows link, PCIe link and MTU, and measure again "
            "while nothing else uses the rails."
        )
    if sockets:
        sentences.append(
            f"{_listed(sockets, results)} between {both} by iperf3, less than "
            f"cx7_network_bandwidth_floor ({floor:g} Gb/s a rail), which sockets need not reach: "
            "install perftest on both machines and measure with ib_write_bw."
        )
    for name in unknown:
        why = results[name].get("error") or "no result came back"
        sentences.append(f"The bandwidth of {name} between {both} is not known: {why}.")
    if not speeds:
        sentences.append(f"The bandwidth between {both} is not known: no rails are listed.")
    return " ".join(sentences)


def _listed(names: Sequence[str], results: Mapping[str, Mapping[str, Any]]) -> str:
    return " and ".join(f"{name} carries {results[name]['gbps']:.1f} Gb/s" for name in names)
