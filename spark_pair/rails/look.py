"""What the two rails of one host look like right now, as plain data.

One QSFP cable is one physical port of the ConnectX-7 and two network devices, each with a subnet
of its own: the two rails. Reads sysfs, asks `ip` about one device at a time and, where peers are
given, sends two pings a rail. Changes nothing. What cannot be read is None, with the reason in
`unread`; it is never taken for "no".
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..system import TIMED_OUT, Result, Runner, run_plainly
from . import nextboot

View = dict[str, Any]

MELLANOX = "0x15b3"
"""PCI vendor of the ConnectX-7."""

PING_OVERHEAD = 28
"""Bytes of IPv4 and ICMP headers: a ping of MTU - 28 bytes fills one frame."""

_NOT_RUN = (TIMED_OUT, 126, 127)
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PINGED = re.compile(r"(?P<sent>\d+) packets transmitted, (?P<received>\d+) received")
_COUNTERS = {
    "counters": ("port_rcv_data", "port_xmit_data", "port_rcv_errors", "port_xmit_discards",
                 "link_downed"),
    "hw_counters": ("roce_adp_retrans", "packet_seq_err", "out_of_sequence",
                    "req_transport_retries_exceeded"),
}  # fmt: skip
"""RDMA traffic does not show in the network device's own counters; loss shows in the second."""


def look(
    rails: Sequence[str],
    management: str = "",
    peers: Mapping[str, str] | None = None,
    *,
    runner: Runner = run_plainly,
    root: Path = Path("/"),
    renderer: bool = True,
) -> View:
    """Describe the rails of this host.

    `rails` are the interfaces asked about, `management` the name or address by which the controller
    reaches this host, `peers` maps an interface to the peer's IPv4 address on that rail (without
    it nothing is sent). Who renders the network is asked of slow programs: without `renderer` it
    is left out.
    """
    unread: dict[str, str] = {}
    ours = connectx(root)
    names = list(dict.fromkeys([*rails, *ours]))
    interfaces = {name: _interface(name, name in ours, root, runner, unread) for name in names}
    default = default_route(runner, unread)
    booted = {name: nextboot.entries(name, interfaces[name]["mac"], root, unread) for name in rails}
    kept = {name: nextboot.kept(booted[name], interfaces[name]["addresses"]) for name in rails}
    who, why = (
        _renderer([name for name in rails if interfaces[name]["present"]], runner)
        if renderer
        else (None, "not asked")
    )
    return {
        "interfaces": interfaces,
        "cx7": ours,
        "pci_functions": pci_functions(root, unread),
        "management": _management(management, default, interfaces, root, runner),
        "default_route": default,
        "renderer": who,
        "renderer_why": why,
        "persistent": {name: nextboot.summary(addresses) for name, addresses in kept.items()},
        "kept": kept,
        "kept_mtu": {
            name: nextboot.mtu(booted[name], interfaces[name]["addresses"]) for name in rails
        },
        "paths": _paths(peers or {}, interfaces, runner),
        "unread": unread,
    }


def connectx(root: Path = Path("/")) -> list[str]:
    """Network devices of a ConnectX-7, by name."""
    found = []
    for path in _entries(root / "sys/class/net"):
        vendor, _ = _read(path / "device/vendor")
        if vendor == MELLANOX:
            found.append(path.name)
    return found


def pci_functions(root: Path = Path("/"), unread: dict[str, str] | None = None) -> list[str] | None:
    """PCI functions of the ConnectX-7; [] when it is gone from the bus, None when unreadable."""
    bus = root / "sys/bus/pci/devices"
    found = {path.name for path in _entries(bus) if _read(path / "vendor")[0] == MELLANOX}
    for kind in ("net", "infiniband"):
        for path in _entries(root / "sys/class" / kind):
            if _read(path / "device/vendor")[0] == MELLANOX:
                found.add(pci_address(path / "device") or path.name)
    if not found and not bus.is_dir():
        if unread is not None:
            unread["pci"] = f"/{bus.relative_to(root)} is not there"
        return None
    return sorted(found)


def pci_address(device: Path) -> str | None:
    """Address of a PCI function ("0000:01:00.0") from its directory in sysfs."""
    name = device.resolve().name
    if _PCI.fullmatch(name):
        return name
    text, _ = _read(device / "uevent")
    for line in (text or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PCI_SLOT_NAME":
            return value
    return None


def parse_addresses(text: str) -> tuple[list[str], list[str]]:
    """IPv4 and IPv6 addresses with prefix, from `ip -json address show dev NAME`.

    Raises ValueError for text that is not such a list.
    """
    found: dict[str, list[str]] = {"inet": [], "inet6": []}
    for device in _objects(text):
        # Some versions of iproute2 print empty objects beside the one asked for, and leave names
        # out: the device is the one that was asked about, whatever the answer calls it.
        for entry in device.get("addr_info") or []:
            if entry.get("family") in found and "local" in entry:
                found[entry["family"]].append(f"{entry['local']}/{entry['prefixlen']}")
    return found["inet"], found["inet6"]


def parse_default(text: str) -> str | None:
    """Device of the default route with the lowest metric, from `ip -json route show default`."""
    routes = [route for route in _objects(text) if route.get("dev")]
    routes.sort(key=lambda route: int(route.get("metric") or 0))
    return str(routes[0]["dev"]) if routes else None


def parse_ping(text: str) -> tuple[int, int] | None:
    """Packets sent and received, or None when ping printed no summary."""
    match = _PINGED.search(text)
    return (int(match["sent"]), int(match["received"])) if match else None


def gid_address(text: str) -> str | None:
    """The IPv4 address in a GID, or None for a GID of another kind."""
    try:
        mapped = ipaddress.IPv6Address(text.strip()).ipv4_mapped
    except ValueError:
        return None
    return str(mapped) if mapped is not None else None


def roce_v2_index(table: Iterable[tuple[int, str, str]], address: str) -> int | None:
    """Lowest index whose GID is the address and whose type is RoCE v2.

    `table` yields (index, GID, type). The place of an address differs between devices and machines
    and moves with every reboot, so it is looked for and never remembered.
    """
    found = [
        index
        for index, gid, kind in table
        if gid_address(gid) == address and "v2" in kind.casefold()
    ]
    return min(found, default=None)


def default_route(runner: Runner = run_plainly, unread: dict[str, str] | None = None) -> str | None:
    """Device of the default route; None when there is none or it could not be read."""
    done = runner(["ip", "-json", "route", "show", "default"], 10)
    try:
        if done.ok:
            return parse_default(done.out)
        words = done.last_words()
    except ValueError as error:
        words = str(error)
    if unread is not None:
        unread["default route"] = words
    return None


def gid_index(interface: str, address: str, root: Path = Path("/")) -> tuple[str, int] | None:
    """RDMA device of an interface and the RoCE v2 GID index of an address on it, read now."""
    device = _rdma_device(interface, root)
    if device is None:
        return None
    index = roce_v2_index(_gid_table(device, root), address)
    return (device, index) if index is not None else None


def ping_argv(interface: str, peer: str, mtu: int) -> list[str]:
    """A ping that fills one frame, may not be cut into pieces, and leaves by this interface."""
    size = str(mtu - PING_OVERHEAD)
    return ["ping", "-4", "-n", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", size,
            "-I", interface, peer]  # fmt: skip


def _interface(
    name: str, is_connectx: bool, root: Path, runner: Runner, unread: dict[str, str]
) -> View:
    base = root / "sys/class/net" / name
    view: View = {"present": base.is_dir(), "cx7": is_connectx, "addresses": [], "addresses6": []}
    reader = _Reader(name, unread if view["present"] else {})
    view.update(_link(base, reader))
    if view["present"]:
        view["addresses"], view["addresses6"] = _addresses(name, runner, reader)
    view.update(_pcie(base, is_connectx, reader))
    view.update(_rdma(name, view["addresses"], root, reader))
    return view


def _link(base: Path, reader: _Reader) -> View:
    flags = reader.text("flags", base / "flags")
    up = bool(int(flags, 16) & 1) if flags else None
    # A device that is switched off refuses to tell its carrier and speed.
    carrier = "0" if up is False else reader.text("carrier", base / "carrier")
    speed = reader.number("speed", base / "speed") if carrier == "1" else None
    return {
        "up": up,
        "carrier": None if carrier is None else carrier == "1",
        "operstate": reader.text("operstate", base / "operstate"),
        "speed_mbps": speed if speed is not None and speed > 0 else None,
        "mtu": reader.number("mtu", base / "mtu"),
        "mac": reader.text("mac", base / "address"),
        "port": _read(base / "phys_port_name")[0],
        "switch": _read(base / "phys_switch_id")[0],
        "wireless": (base / "wireless").exists() or (base / "phy80211").exists(),
    }


def _addresses(name: str, runner: Runner, reader: _Reader) -> tuple[list[str], list[str]]:
    done = runner(["ip", "-json", "address", "show", "dev", name], 10)
    try:
        if done.ok:
            return parse_addresses(done.out)
        words = done.last_words()
    except (ValueError, KeyError) as error:
        words = f"the answer of ip cannot be understood: {error}"
    reader.unread[f"{name}/addresses"] = words
    return [], []


def _pcie(base: Path, is_connectx: bool, reader: _Reader) -> View:
    device = base / "device"
    keys = ("pci", "pcie_speed", "pcie_width")
    if not is_connectx:
        return dict.fromkeys(keys)
    return {
        "pci": pci_address(device),
        "pcie_speed": reader.text("pcie_speed", device / "current_link_speed"),
        "pcie_width": reader.number("pcie_width", device / "current_link_width"),
    }


def _rdma(name: str, addresses: Sequence[str], root: Path, reader: _Reader) -> View:
    device = _rdma_device(name, root)
    view: View = {
        "rdma": device, "rdma_state": None, "firmware": None, "gids": {}, "counters": {}
    }  # fmt: skip
    if device is None:
        return view
    base = root / "sys/class/infiniband" / device
    state = reader.text("rdma_state", base / "ports/1/state")
    view["rdma_state"] = state.rpartition(":")[2].strip() if state else None
    view["firmware"] = _read(base / "fw_ver")[0]
    table = list(_gid_table(device, root, reader))
    for address in addresses:
        plain = address.partition("/")[0]
        index = roce_v2_index(table, plain)
        if index is not None:
            view["gids"][plain] = index
    view["counters"] = _counters(base / "ports/1")
    return view


def _rdma_device(name: str, root: Path) -> str | None:
    """The RDMA device of an interface, found in whichever direction this kernel links them."""
    base = root / "sys/class/infiniband"
    devices = [path.name for path in _entries(base)]
    for device in devices:
        if (base / device / "device/net" / name).exists():
            return device
    for path in _entries(root / "sys/class/net" / name / "device/infiniband"):
        return path.name
    for device in devices:
        for path in _entries(base / device / "ports/1/gid_attrs/ndevs"):
            if _read(path)[0] == name:
                return device
    return None


def _gid_table(
    device: str, root: Path, reader: _Reader | None = None
) -> Iterator[tuple[int, str, str]]:
    port = root / "sys/class/infiniband" / device / "ports/1"
    try:
        places = sorted((int(path.name) for path in (port / "gids").iterdir()), key=int)
    except (OSError, ValueError) as error:
        if reader:
            reader.unread[f"{reader.name}/gids"] = f"the GID table of {device}: {_why(error)}"
        return
    for index in places:
        gid, why = _read(port / "gids" / str(index))
        if gid is None:
            if reader:
                reader.unread[f"{reader.name}/gids"] = f"GID {index} of {device}: {why}"
            continue
        if gid_address(gid) is None:
            continue  # an empty place has no type either, and reading it is an error
        kind, why = _read(port / "gid_attrs/types" / str(index))
        if kind is not None:
            yield index, gid, kind
        elif reader:
            reader.unread[f"{reader.name}/gids"] = f"type of GID {index} of {device}: {why}"


def _counters(port: Path) -> dict[str, int]:
    found = {}
    for folder, names in _COUNTERS.items():
        for name in names:
            text, _ = _read(port / folder / name)
            if text and text.isdecimal():
                found[name] = int(text)
    return found


def _management(
    address: str, default: str | None, interfaces: Mapping[str, View], root: Path, runner: Runner
) -> View:
    """Which interface carries the management address, and how that was found out."""
    order = [default] if default else []
    order += [path.name for path in _entries(root / "sys/class/net")]
    held = _Held([name for name in dict.fromkeys(order) if name != "lo"], interfaces, runner)
    candidates = [(f"has {numeric}", numeric) for numeric in _numeric(address)]
    server = _ssh_server(root)
    if server:
        candidates.append((f"this ssh connection arrived at its address {server}", server))
    for how, numeric in candidates:
        name = held.by(numeric)
        if name:
            return _managed(name, address, how, root)
    if default:
        return _managed(default, address, "has the default route", root)
    why = f"no interface has {address or 'a management address'}, and there is no default route"
    return {"interface": None, "wireless": None, "address": address, "how": why}


def _managed(name: str, address: str, how: str, root: Path) -> View:
    base = root / "sys/class/net" / name
    wireless = (base / "wireless").exists() or (base / "phy80211").exists()
    return {"interface": name, "wireless": wireless, "address": address, "how": how}


class _Held:
    """Which interface has an address; each interface is asked once, and by its name."""

    def __init__(self, names: Sequence[str], known: Mapping[str, View], runner: Runner) -> None:
        self._names = names
        self._runner = runner
        self._found: dict[str, set[str]] = {
            name: _plain([*view["addresses"], *view["addresses6"]])
            for name, view in known.items()
            if view["present"]
        }

    def by(self, address: str) -> str | None:
        for name in self._names:
            if name not in self._found:
                both = _addresses(name, self._runner, _Reader(name, {}))
                self._found[name] = _plain([*both[0], *both[1]])
            if address in self._found[name]:
                return name
        return None


def _plain(addresses: Iterable[str]) -> set[str]:
    return {address.partition("/")[0] for address in addresses}


def _numeric(name: str) -> list[str]:
    """IP addresses of a name, as this host knows it; [] when it does not."""
    if not name:
        return []
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))


def _ssh_server(root: Path) -> str:
    """Address at which the ssh connection arrived that this process belongs to.

    sudo keeps SSH_CONNECTION from its children, so the processes above are looked at as well.
    """
    pid = str(os.getpid())
    for _ in range(12):
        try:
            environment = (root / "proc" / pid / "environ").read_bytes()
            status = (root / "proc" / pid / "status").read_text()
        except OSError:
            return ""
        for entry in environment.split(b"\0"):
            if entry.startswith(b"SSH_CONNECTION="):
                words = entry.decode(errors="replace").partition("=")[2].split()
                return words[2].partition("%")[0] if len(words) == 4 else ""
        parent = re.search(r"^PPid:\s*(\d+)$", status, re.M)
        if not parent or parent[1] == "0":
            return ""
        pid = parent[1]
    return ""


def parse_nm_devices(text: str) -> dict[str, str]:
    r"""Device -> state, from `nmcli -t -f DEVICE,STATE,CONNECTION device` (colons escaped)."""
    found = {}
    for line in text.splitlines():
        fields = [field.replace("\\:", ":") for field in re.split(r"(?<!\\):", line)]
        if len(fields) >= 2:
            found[fields[0]] = fields[1]
    return found


def _renderer(rails: Sequence[str], runner: Runner) -> tuple[str | None, str]:
    """Who brings the rails up on this host, and how that was found out."""
    services = {"NetworkManager": "NetworkManager.service", "networkd": "systemd-networkd.service"}
    done = runner(["systemctl", "is-active", *services.values()], 15)
    states = dict(zip(services, done.out.split(), strict=False))
    if len(states) != len(services):
        return None, f"systemctl does not say who is active: {done.last_words()}"
    networkd = states["networkd"] == "active"
    unmanaged = ""
    if states["NetworkManager"] == "active":
        asked = runner(["nmcli", "-t", "-f", "DEVICE,STATE,CONNECTION", "device"], 15)
        if not asked.ok:
            return None, f"NetworkManager is active, but nmcli fails: {asked.last_words()}"
        known = parse_nm_devices(asked.out)
        managed = [name for name in rails if _managed_by_nm(known.get(name, ""), networkd)]
        left = [name for name in rails if name not in managed]
        if managed and left:
            return None, (
                f"NetworkManager manages {', '.join(managed)} but leaves {', '.join(left)} alone"
            )
        if managed or not rails:
            return "NetworkManager", (
                f"it manages {', '.join(managed)}" if managed else "it is active; no rail is there"
            )
        unmanaged = "NetworkManager leaves the rails alone, and "
    if networkd:
        return "networkd", f"{unmanaged}systemd-networkd is active"
    return (
        None,
        f"{unmanaged or 'NetworkManager is not active, and '}systemd-networkd is not active",
    )


def _managed_by_nm(state: str, networkd: bool) -> bool:
    """Whether NetworkManager brings a device up, from the state that it tells.

    "connected (externally)" is a device that it found with addresses of somebody else: networkd,
    or, where that does not run, a person.
    """
    if state.endswith("(externally)"):
        return not networkd
    return state not in ("", "unmanaged")


def _paths(
    peers: Mapping[str, str], interfaces: Mapping[str, View], runner: Runner
) -> dict[str, View]:
    """Ping every peer over its own rail, all at once."""
    asked = [name for name in peers if name in interfaces]
    if not asked:
        return {}
    with ThreadPoolExecutor(max_workers=len(asked)) as threads:
        views = threads.map(lambda name: _path(name, peers[name], interfaces[name], runner), asked)
        return dict(zip(asked, views, strict=True))


def _path(name: str, peer: str, interface: View, runner: Runner) -> View:
    view: View = {"peer": peer, "size": None, "sent": None, "received": None, "error": ""}
    if not interface["present"]:
        return {**view, "error": "there is no such interface"}
    if interface["mtu"] is None:
        return {**view, "error": "its MTU is not known"}
    view["size"] = interface["mtu"] - PING_OVERHEAD
    done = runner(ping_argv(name, peer, interface["mtu"]), 10)
    if done.code in _NOT_RUN:
        return {**view, "error": done.last_words()}
    # Without a summary ping could not even send: the path fails, it is not unknown.
    view["sent"], view["received"] = parse_ping(done.out) or (0, 0)
    if not done.ok:
        view["error"] = _ping_words(done)
    return view


def _ping_words(done: Result) -> str:
    """Why a ping failed, without its statistics; "" when packets were just lost."""
    for line in [*done.err.splitlines(), *done.out.splitlines()]:
        if re.search(r"error|unreachable|invalid|unknown|not found|denied|too long|no end", line,
                     re.I):  # fmt: skip
            return re.sub(r"^ping: ", "", line.strip())[:160]
    return "" if parse_ping(done.out) else done.last_words()


class _Reader:
    """Reads files of one interface and keeps the reason of each that could not be read."""

    def __init__(self, name: str, unread: dict[str, str]) -> None:
        self.name = name
        self.unread = unread

    def text(self, what: str, path: Path) -> str | None:
        text, why = _read(path)
        if text is None:
            self.unread[f"{self.name}/{what}"] = why
        return text

    def number(self, what: str, path: Path) -> int | None:
        text = self.text(what, path)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            self.unread[f"{self.name}/{what}"] = f"it says {text[:40]!r}"
            return None


def _read(path: Path) -> tuple[str | None, str]:
    """Text of a small file, and why there is none."""
    try:
        return path.read_text(errors="replace").strip(), ""
    except OSError as error:
        return None, _why(error)


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno) if error.errno != errno.ENOENT else "it is not there"
    return str(error)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _objects(text: str) -> list[dict[str, Any]]:
    data = json.loads(text or "[]")
    if not isinstance(data, list):
        raise ValueError(f"expected a list, not {text[:40]!r}")
    return [entry for entry in data if isinstance(entry, dict)]
