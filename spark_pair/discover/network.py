"""Interfaces of this host: the direct link's, the one that the controller comes by, what is taken.

Reads /sys and asks `ip`. The device is always named to `ip`, and nothing is looked up by the name
in its answer: iproute2 6.1 leaves that out of some answers (fault 45). Neighbours are never asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..system import Runner
from .reading import Unread, names, text

MELLANOX = "0x15b3"
_SECONDS = 5.0
# enp1s0f0np0 is function 0 of 0000:01:00, enP2p1s0f0np0 the same function of 0002:01:00.
_NAMED = re.compile(r"en(?:P(?P<domain>\d+))?p(?P<bus>\d+)s\d+f(?P<function>\d)(?:np\d+)?")
_CX7_BUS = "1"
_PCI = re.compile(r"(?P<domain>[0-9a-f]{4}):[0-9a-f]{2}:[0-9a-f]{2}\.(?P<function>\d)")


def look(root: Path, runner: Runner, address: str, unread: Unread) -> dict[str, Any]:
    """Interfaces, management path and networks in use; `address` is how the controller came."""
    sysfs = root / "sys/class/net"
    found = [name for name in names(sysfs) if name != "lo"]
    if not found:
        unread["interfaces"] = "/sys/class/net lists none"
    cx7 = [
        _interface(sysfs / name, name, runner, unread)
        for name in found
        if _is_cx7(sysfs / name, name)
    ]
    _pair_up(cx7)
    routes = _routes(runner, unread)
    return {
        "interfaces": cx7,
        "management": _management(routes, cx7, address, sysfs),
        "networks": sorted({str(route["dst"]) for route in routes} - {"default"}),
    }


def _is_cx7(folder: Path, name: str) -> bool:
    """By the vendor of its device; by its name where the device does not say."""
    vendor = text(folder / "device/vendor")
    if vendor is not None:
        return vendor.lower() == MELLANOX
    named = _NAMED.fullmatch(name)
    return bool(named and named["bus"] == _CX7_BUS)


def _interface(folder: Path, name: str, runner: Runner, unread: Unread) -> dict[str, Any]:
    pci = _pci(folder)
    rdma = names(folder / "device/infiniband")
    return {
        "name": name,
        "carrier": {"1": True, "0": False}.get(text(folder / "carrier") or ""),
        "phys_port": text(folder / "phys_port_name") or None,
        "switch": text(folder / "phys_switch_id") or None,
        "pci": pci,
        "rdma": rdma[0] if rdma else None,
        "addresses": _addresses(name, runner, unread),
    }


def _pci(folder: Path) -> str | None:
    try:
        last = (folder / "device").resolve(strict=True).name
    except OSError:
        return None
    return last if _PCI.fullmatch(last) else None


def _addresses(name: str, runner: Runner, unread: Unread) -> list[str]:
    """IPv4 addresses with prefix of one interface."""
    answer = runner(["ip", "-json", "address", "show", "dev", name], _SECONDS)
    try:
        if not answer.ok:
            raise ValueError(answer.last_words())
        entries = json.loads(answer.out or "[]")
        found = [
            f"{info['local']}/{info['prefixlen']}"
            for entry in entries
            for info in entry.get("addr_info", [])
            if info.get("family") == "inet"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        unread[f"addresses of {name}"] = f"ip: {error}"
        return []
    return sorted(found)


def _pair_up(interfaces: list[dict[str, Any]]) -> None:
    """Give every interface its "port": twins, the two functions behind one socket, share it.

    What the driver says about the socket decides if it says it of every interface; otherwise the
    number of the PCI function, which both domains share, then the same number in the name.
    """
    told = all(one["phys_port"] and one["switch"] for one in interfaces)
    for one in interfaces:
        pci = _PCI.fullmatch(one["pci"] or "")
        named = _NAMED.fullmatch(one["name"])
        function = pci["function"] if pci else named["function"] if named else None
        if told:
            one["port"] = f"{one['phys_port']} of {one['switch']}"
        else:
            one["port"] = f"function {function}" if function else one["name"]
        domain = int(pci["domain"], 16) if pci else int((named and named["domain"]) or 0)
        one["order"] = [domain, one["name"]]
    interfaces.sort(key=lambda one: (one["port"], one["order"]))


def _routes(runner: Runner, unread: Unread) -> list[Mapping[str, Any]]:
    answer = runner(["ip", "-json", "-4", "route", "show", "table", "main"], _SECONDS)
    try:
        if not answer.ok:
            raise ValueError(answer.last_words())
        return [route for route in json.loads(answer.out or "[]") if "dst" in route]
    except (ValueError, TypeError) as error:
        unread["routes"] = f"ip: {error}"
        return []


def _management(
    routes: list[Mapping[str, Any]], cx7: list[dict[str, Any]], address: str, sysfs: Path
) -> dict[str, Any]:
    """Interface and address by which this host is managed; None where it cannot be told."""
    name, how = None, ""
    for route in routes:
        if route.get("prefsrc") == address and route["dst"] != "default":
            name, how = route.get("dev"), "carries the address that was given"
            break
    for one in cx7:
        if name is None and address in {item.partition("/")[0] for item in one["addresses"]}:
            name, how = one["name"], "carries the address that was given"
    if name is None:
        defaults = [route for route in routes if route["dst"] == "default"]
        defaults.sort(key=lambda route: int(route.get("metric", 0)))
        if defaults:
            name, how = defaults[0].get("dev"), "has the default route"
    own = [
        str(route["prefsrc"])
        for route in routes
        if name and route.get("dev") == name and "prefsrc" in route
    ]
    return {
        "interface": name,
        "address": address if "given" in how else (own[0] if own else None),
        "wireless": (sysfs / name / "wireless").is_dir() if name else None,
        "how": how,
    }
