"""A host with a ConnectX-7 as its programs and its /sys would show it."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_pair.rails import look
from spark_pair.system import Result

FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
MANAGEMENT = "enP7s7"
PORTS = {
    FIRST: ("0000:01:00.0", "rocep1s0f0", "p0"),
    SECOND: ("0002:01:00.0", "roceP2p1s0f0", "p0"),
    "enp1s0f1np1": ("0000:01:00.1", "rocep1s0f1", "p1"),
    "enP2p1s0f1np1": ("0002:01:00.1", "roceP2p1s0f1", "p1"),
}
"""Interface -> PCI function, RDMA device, physical port."""

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
NM_OF_NOBODY = f"{FIRST}:unmanaged:\n{SECOND}:unmanaged:\n{MANAGEMENT}:connected:Wired\\: one\n"


@dataclass
class Machine:
    """Builds a tree under `root` and answers for its programs; `asked` are the commands it got."""

    root: Path
    asked: list[list[str]] = field(default_factory=list)
    addresses: dict[str, list[str]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    """Interface -> how many of its two pings are lost."""
    answers: dict[str, Result] = field(default_factory=dict)
    """Program (argv[0], or "ip address", "ip route") -> what it answers instead."""
    default: str = MANAGEMENT
    services: tuple[str, str] = ("inactive", "active")
    """NetworkManager, systemd-networkd."""
    nm_devices: str = NM_OF_NOBODY

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")

    def plain(self, name: str, *addresses: str, wireless: bool = False) -> None:
        """An interface that is no ConnectX-7."""
        base = f"sys/class/net/{name}"
        self.write(f"{base}/operstate", "up")
        self.write(f"{base}/flags", "0x1003")
        if wireless:
            (self.root / base / "wireless").mkdir()
        self.addresses[name] = list(addresses)

    def port(self, name: str, *addresses: str, **changes: Any) -> None:
        """One interface of the ConnectX-7 and its RDMA device.

        `gids` maps index to (GID, type); the default has the addresses behind two link-local ones.
        """
        pci, rdma, physical = PORTS[name]
        function = f"sys/devices/pci{pci[:7]}/{pci}"
        self.write(f"{function}/vendor", "0x15b3")
        self.write(f"{function}/current_link_speed", changes.get("pcie_speed", "32.0 GT/s PCIe"))
        self.write(f"{function}/current_link_width", str(changes.get("width", 4)))
        self._link(f"sys/bus/pci/devices/{pci}", function)

        net = f"{function}/net/{name}"
        up = changes.get("up", True)
        for key, value in {
            "flags": "0x1003" if up else "0x1002",
            "operstate": "up" if changes.get("carrier", True) else "down",
            "carrier": "1" if changes.get("carrier", True) else "0",
            "speed": str(changes.get("speed", 200000)),
            "mtu": str(changes.get("mtu", 1500)),
            "address": changes.get("mac", f"4c:bb:47:00:00:{len(self.addresses):02x}"),
            "phys_port_name": physical,
            "phys_switch_id": "4cbb47fffe000001",
        }.items():
            self.write(f"{net}/{key}", value)
        self._link(f"{net}/device", function)
        self._link(f"sys/class/net/{name}", net)
        self.addresses[name] = list(addresses)

        device = f"{function}/infiniband/{rdma}"
        self.write(f"{device}/fw_ver", "28.45.4028")
        self.write(f"{device}/ports/1/state", changes.get("state", "4: ACTIVE"))
        self.write(f"{device}/ports/1/counters/port_rcv_data", "4711")
        self.write(f"{device}/ports/1/hw_counters/out_of_sequence", "0")
        self._link(f"{device}/device", function)
        self._link(f"sys/class/infiniband/{rdma}", device)
        self.gids(name, changes.get("gids", table(*addresses)))

    def gids(self, name: str, entries: Mapping[int, tuple[str, str]], places: int = 8) -> None:
        """Write a GID table; places without an entry are empty and have no type."""
        _, rdma, _ = PORTS[name]
        port = f"sys/class/infiniband/{rdma}/ports/1"
        for index in range(places):
            gid, kind = entries.get(index, (ZERO, ""))
            self.write(f"{port}/gids/{index}", gid)
            types = self.root / port / f"gid_attrs/types/{index}"
            types.unlink(missing_ok=True)
            if kind:
                self.write(f"{port}/gid_attrs/types/{index}", kind)

    def _link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target)

    def run(self, argv: Sequence[str], timeout: float) -> Result:
        """Answer as the programs of such a host do."""
        assert timeout > 0
        self.asked.append(list(argv))
        known = f"{argv[0]} {argv[2]}" if argv[0] == "ip" else argv[0]
        if known in self.answers:
            return self.answers[known]
        if known == "ip address":
            return self._ip_address(argv)
        if known == "ip route":
            routes = [{"dst": "default", "dev": self.default}] if self.default else []
            return Result(0, json.dumps(routes), "")
        if known == "systemctl":
            code = 0 if "inactive" not in self.services else 3
            return Result(code, "\n".join(self.services) + "\n", "")
        if known == "nmcli":
            return Result(0, self.nm_devices, "")
        assert known == "ping", argv
        received = 2 - self.lost.get(argv[argv.index("-I") + 1], 0)
        summary = f"2 packets transmitted, {received} received, time 200ms\n"
        return Result(0 if received else 1, f"PING\n{summary}", "")

    def _ip_address(self, argv: Sequence[str]) -> Result:
        name = argv[argv.index("dev") + 1]
        if name not in self.addresses:
            return Result(1, "", f'Device "{name}" does not exist.')
        info = [
            {
                "family": "inet6" if ":" in address else "inet",
                "local": address.partition("/")[0],
                "prefixlen": int(address.partition("/")[2]),
            }
            for address in self.addresses[name]
        ]
        # iproute2 prints an empty object for every other device, and some versions no names.
        return Result(0, json.dumps([{}, {"addr_info": info}]), "")

    def look(self, management: str = "", peers: Mapping[str, str] | None = None) -> look.View:
        """What the code under test sees here."""
        view = look.look([FIRST, SECOND], management, peers, runner=self.run, root=self.root)
        json.dumps(view)  # it travels from the host
        return view


def gid_text(address: str) -> str:
    """The GID of an IPv4 address as sysfs writes it."""
    digits = f"{'0' * 20}ffff{ipaddress.IPv4Address(address).packed.hex()}"
    return ":".join(digits[place : place + 4] for place in range(0, 32, 4))


def table(*addresses: str, first: int = 3) -> dict[int, tuple[str, str]]:
    """A GID table: link-local in both types, then each IPv4 address in both types."""
    link_local = "fe80:0000:0000:0000:4ebb:47ff:fe00:0001"
    entries = {0: (link_local, "IB/RoCE v1"), 1: (link_local, "RoCE v2")}
    for place, address in enumerate(addresses):
        if ":" in address:
            continue
        gid = gid_text(address.partition("/")[0])
        entries[first - 1 + 2 * place] = (gid, "IB/RoCE v1")
        entries[first + 2 * place] = (gid, "RoCE v2")
    return entries


def spark(root: Path, number: int = 11, **changes: Any) -> Machine:
    """A machine with working rails; `changes` are those of both ports."""
    machine = Machine(root)
    machine.port(FIRST, f"192.168.177.{number}/24", **changes)
    machine.port(SECOND, f"192.168.178.{number}/24", **changes)
    machine.plain(MANAGEMENT, f"10.20.0.{number}/24")
    machine.write("etc/netplan/40-cx7.yaml", netplan(number))
    return machine


def netplan(number: int) -> str:
    return f"""network:
  version: 2
  ethernets:
    {FIRST}:
      addresses: [192.168.177.{number}/24]  # first rail
      link-local: []
    {SECOND}:
      addresses:
        - "192.168.178.{number}/24"
"""
