"""A healthy pair as its files and programs would show it, for the tests of preflight."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_pair import describe, description_data

from spark_pair.description import Role
from spark_pair.findings import Finding
from spark_pair.preflight import collect, judge
from spark_pair.preflight.judge import Seen, Wanted
from spark_pair.preflight.parse import GPU_FIELDS
from spark_pair.system import Result

PAIR: dict[Role, str] = {"head": "spark-a", "worker": "spark-b"}
FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
NUMBERS: dict[Role, int] = {"head": 11, "worker": 12}
RAILS: dict[Role, list[dict[str, str]]] = {
    role: [
        {"interface": FIRST, "address": f"192.168.177.{number}/24"},
        {"interface": SECOND, "address": f"192.168.178.{number}/24"},
    ]
    for role, number in NUMBERS.items()
}
MIB = 1024
GIB = 1024 * MIB
CONTAINER = "c0ffee" * 10 + "beef"

MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.126.09  Release Build  "
    "(dvs-builder@U22-I3-AM02-24-3)  Fri Nov  7 2025\nGCC version:  gcc version 13.3.0\n"
)
MOUNTS = (
    "21 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    "22 21 0:20 / /proc rw,nosuid - proc proc rw\n"
)


@dataclass
class Host:
    """One machine: files below `root`, answers of its programs, and what else it would tell."""

    root: Path
    role: Role
    answers: dict[str, Result] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    managed_oom: dict[str, str] = field(default_factory=dict)
    """What systemd-oomd does about the swap of a slice; "auto" unless said."""
    containers: list[dict[str, Any]] = field(default_factory=list)
    description: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Measurements that come from this very process and not from below `root`."""

    def write(self, path: str, text: str, *, executable: bool = False) -> None:
        """Write a file below the root."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        if executable:
            target.chmod(0o755)

    def process(self, pid: int, name: str, kib: int, cgroup: str) -> None:
        """A process that holds anonymous memory."""
        self.write(f"proc/{pid}/status", f"Name:\t{name}\nRssAnon:\t{kib} kB\nRssShmem:\t0 kB\n")
        self.write(f"proc/{pid}/comm", f"{name}\n")
        self.write(f"proc/{pid}/cgroup", f"0::{cgroup}\n")

    def container(self, name: str, **changes: Any) -> None:
        """A container with the GPU."""
        self.containers.append(
            {
                "Name": f"/{name}",
                "Id": changes.get("id", CONTAINER),
                "State": {"Running": changes.get("running", True)},
                "HostConfig": {
                    "RestartPolicy": {"Name": changes.get("policy", "no")},
                    "Runtime": "runc",
                    "DeviceRequests": [{"Driver": "", "Capabilities": [["gpu"]]}]
                    if changes.get("gpu", True)
                    else None,
                },
            }
        )

    def run(self, argv: Sequence[str], timeout: float) -> Result:
        """Answer as the programs of such a machine do."""
        assert timeout > 0
        words = " ".join(argv)
        for begin, answer in self.answers.items():
            if begin in words:
                return answer
        said = self._healthy(list(argv), words)
        return Result(127, "", f"{argv[0]}: not found") if said is None else Result(0, said, "")

    def _healthy(self, argv: list[str], words: str) -> str | None:
        if words == "nvidia-smi -L":
            return "GPU 0: NVIDIA GB10 (UUID: GPU-1)\n"
        if "--query-gpu" in words:
            return ", ".join(self.gpu[name] for name in GPU_FIELDS) + "\n"
        if "--query-compute-apps" in words:
            return ""
        if words.startswith("systemctl show") and "ManagedOOM" in words:
            return "\n\n".join(
                f"Id={name}\nManagedOOMSwap={self.managed_oom.get(name, 'auto')}\n"
                "ManagedOOMMemoryPressure=auto"
                for name in argv[argv.index("--") + 1 :]
            )
        if words.startswith("systemctl show"):
            return "\n\n".join(
                f"Id={name}\nLoadState={'loaded' if name in self.units else 'not-found'}\n"
                f"ActiveState={self.units.get(name, 'inactive')}"
                for name in argv[argv.index("--") + 1 :]
            )
        if "docker info" in words:
            info = {"ServerVersion": "29.1.3", "Runtimes": {"runc": {}, "nvidia": {}}}
            return json.dumps(info)
        if words.startswith("docker ps"):
            return "".join(f"{one['Id'][:12]}\n" for one in self.containers)
        if words.startswith("docker container inspect"):
            return json.dumps(self.containers)
        if words.startswith("ss "):
            return 'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=700,fd=3))\n'
        if words.startswith("timedatectl"):
            return "yes\n"
        if words.startswith("journalctl"):
            return (
                "2026-11-28T21:03:11+0000 spark systemd[1]: Reached target shutdown.target.\n"
                "2026-11-28T21:03:12+0000 spark systemd-journald[311]: Journal stopped\n"
            )
        if words.startswith("sudo"):
            return "    (root) NOPASSWD: /usr/local/bin/spark-pair node *\n"
        return "" if " ssh " in words else None

    def measure(self) -> dict[str, Any]:
        """Measurements and reasons, as the module on the host returns them."""
        values = {"MemTotal": 121 * GIB + 700 * MIB, "MemAvailable": 118 * GIB, "SwapTotal": 0}
        values |= {"SwapFree": 0, "CmaTotal": 128 * MIB, "CmaFree": 100 * MIB, **self.memory}
        self.write("proc/meminfo", "".join(f"{key}: {kib} kB\n" for key, kib in values.items()))
        asked = collect.Asked(
            user="one",
            home="/home/one",
            is_head=self.role == "head",
            peer={"user": "two", "addresses": ["192.0.2.2", "192.168.177.12"], "port": "22"},
            description=self.description or description_data(),
            rails=[FIRST, SECOND],
            hub_url="",
            controller_time=1.0,
        )
        found = collect.measure(asked, runner=self.run, root=self.root)
        found["measured"].update(self.facts)
        for name, value in self.facts.items():
            if value is not None:
                found["unread"].pop(name, None)
        json.dumps(found)  # it travels from the host
        return found

    def look(self) -> Seen:
        """What the judgement gets of this machine."""
        found = self.measure()
        return Seen("one", "/home/one", measured=found["measured"], unread=found["unread"])


def healthy(root: Path, role: Role) -> Host:
    """A machine with nothing to complain of."""
    host = Host(root, role)
    host.gpu = {
        "driver_version": "580.126.09",
        "clocks.max.sm": "3003",
        "clocks.applications.graphics": "2418",
        "clocks.sm": "2418",
        "utilization.gpu": "96",
        "power.draw": "88.20",
        "pstate": "P0",
    }
    host.write("proc/driver/nvidia/version", MODULE)
    host.write("usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.126.09", "")
    host.write("proc/sys/kernel/osrelease", "6.17.0-1032-nvidia\n")
    host.write("proc/self/mountinfo", MOUNTS)
    host.write("etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nVERSION_ID="24.04"\n')
    host.write("etc/dgx-release", 'DGX_SWBUILD_VERSION="7.2.3"\nDGX_OTA_VERSION="7.5.0"\n')
    host.write("etc/machine-id", f"{role}\n")
    host.write("sys/class/dmi/id/bios_version", "5.36_0ACUM023\n")
    for program in ("docker", "nvidia-ctk", "nvidia-container-runtime", "git", "python3"):
        host.write(f"usr/bin/{program}", "", executable=True)
    host.write("opt/spark-pair/current/venv/bin/hf", "", executable=True)
    host.facts = {
        "architecture": "aarch64",
        "python": [3, 12],
        "euid": 0,
        "account": {"uid": 1000, "home": "/home/one", "is_home": True, "home_exists": True},
        "clock_offset": 0.4,
        "rails": rails_view(role),
        "hub": {"url": "https://huggingface.co", "answers": True, "said": "HTTP 200"},
        "models": {},
    }
    return host


def rails_view(role: Role) -> dict[str, Any]:
    """Two working rails, as `rails.look` tells them."""
    names = {FIRST: ("0000:01:00.0", "rocep1s0f0"), SECOND: ("0002:01:00.0", "roceP2p1s0f0")}
    peers = {
        one["interface"]: one["address"] for one in RAILS["worker" if role == "head" else "head"]
    }
    interfaces = {}
    for rail in RAILS[role]:
        name, address = rail["interface"], rail["address"]
        interfaces[name] = {
            "present": True, "up": True, "carrier": True, "operstate": "up",
            "speed_mbps": 200_000, "mtu": 1500, "mac": "4c:bb:47:00:00:01", "wireless": False,
            "addresses": [address], "addresses6": [], "cx7": True,
            "port": "p0", "switch": "4cbb47fffe000001", "pci": names[name][0],
            "pcie_speed": "32.0 GT/s PCIe", "pcie_width": 4,
            "firmware": "28.45.4028", "rdma": names[name][1], "rdma_state": "ACTIVE",
            "gids": {address.partition("/")[0]: 3}, "counters": {},
        }  # fmt: skip
    return {
        "interfaces": interfaces,
        "cx7": list(names),
        "pci_functions": [pci for pci, _ in names.values()],
        "management": {"interface": "enP7s7", "wireless": False, "address": "192.0.2.1"},
        "default_route": "enP7s7",
        "renderer": "networkd",
        "renderer_why": "",
        "persistent": dict.fromkeys(names, "/etc/netplan/40-cx7.yaml"),
        "paths": {
            name: {
                "peer": address.partition("/")[0], "size": 1472, "sent": 2, "received": 2,
                "error": "",
            }
            for name, address in peers.items()
        },
        "unread": {},
    }  # fmt: skip


@dataclass
class Pair:
    """Both machines, to be changed by a test before it judges them."""

    head: Host
    worker: Host
    change: Callable[[dict[str, Any]], None] | None = None
    """Changes the description that both have."""

    def judge(self, *problems: str, only: Role | None = None) -> dict[str, Finding]:
        """Findings by id; with `only`, the other machine is down."""
        data = description_data()
        if self.change:
            self.change(data)
        for host in self.hosts().values():
            host.description = data
        seen = {
            role: host.look()
            if only in (None, role)
            else Seen(absence=f"{PAIR[role]} (the {role} of this pair) cannot be reached")
            for role, host in self.hosts().items()
        }
        return self.findings(seen, *problems, change=self.change)

    def hosts(self) -> dict[Role, Host]:
        """Role -> machine."""
        return {"head": self.head, "worker": self.worker}

    @staticmethod
    def findings(
        seen: dict[Role, Seen],
        *problems: str,
        change: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Finding]:
        """Findings by id of what was seen."""
        wanted = Wanted(describe(change), problems, RAILS)
        found = judge.findings(PAIR, seen, wanted)
        assert [one.id for one in found] == [check.id for check in judge.CATALOGUE]
        return {one.id: one for one in found}


def healthy_pair(root: Path) -> Pair:
    """A pair with nothing to complain of."""
    return Pair(healthy(root / "head", "head"), healthy(root / "worker", "worker"))
