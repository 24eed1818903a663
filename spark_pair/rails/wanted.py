"""What the inventory asks of the rails of a pair, checked before any host is touched. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..description import ROLES, Role
from ..errors import SparkPairError

RENDERERS = ("NetworkManager", "networkd")
MTU_LOWEST, MTU_HIGHEST = 1500, 9216
_RAILS = "cx7_network_rails"
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_FILE = re.compile(r"/etc/netplan/[A-Za-z0-9][A-Za-z0-9_.-]*\.yaml")


class WantedError(SparkPairError):
    """The variables make no pair of rails; the message has a sentence for each fault."""


@dataclass(frozen=True)
class Rail:
    """One interface of the cabled port, with the address it shall have and its peer's."""

    interface: str
    address: str
    """With its prefix length."""
    peer: str
    """The other machine's address on this rail, without prefix."""


@dataclass(frozen=True)
class Wanted:
    """What one host of the pair shall have."""

    rails: tuple[Rail, ...]
    mtu: int | None
    """None leaves it as it is."""
    renderer: str
    """NetworkManager, networkd, or "" for whichever the host uses."""
    file: str
    confirm_seconds: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a module's arguments."""
        return {
            "rails": [
                {"interface": rail.interface, "address": rail.address, "peer": rail.peer}
                for rail in self.rails
            ],
            "mtu": self.mtu,
            "renderer": self.renderer,
            "file": self.file,
            "confirm_seconds": self.confirm_seconds,
        }


def wanted_from_dict(data: Mapping[str, Any]) -> Wanted:
    """The reverse of `as_dict`."""
    return Wanted(
        tuple(Rail(rail["interface"], rail["address"], rail["peer"]) for rail in data["rails"]),
        data["mtu"],
        data["renderer"],
        data["file"],
        data["confirm_seconds"],
    )


def wanted_of(
    pair: Mapping[Role, str], variables: Mapping[str, Mapping[str, Any]]
) -> dict[Role, Wanted]:
    """Read the variables of both hosts; raises WantedError with everything that is wrong."""
    problems: list[str] = []
    rails = {role: _rails(pair[role], variables[pair[role]], problems) for role in ROLES}
    settings = {role: _settings(pair[role], variables[pair[role]], problems) for role in ROLES}
    if settings["head"]["mtu"] != settings["worker"]["mtu"]:
        shown = {role: settings[role]["mtu"] or "not set" for role in ROLES}
        problems.append(
            f"cx7_network_mtu is {shown['head']} for {pair['head']} and {shown['worker']} for "
            f"{pair['worker']}: both ends and both rails need the same MTU, so set it once for both"
        )
    if all(len(found) == 2 for found in rails.values()):
        problems += _pair_problems(pair, rails)
    if problems:
        raise WantedError(" ".join(f"{words}." for words in problems))
    peer: dict[Role, Role] = {"head": "worker", "worker": "head"}
    return {
        role: Wanted(
            tuple(
                Rail(name, str(address), str(other.ip))
                for (name, address), (_, other) in zip(rails[role], rails[peer[role]], strict=True)
            ),
            **settings[role],
        )
        for role in ROLES
    }


_Found = list[tuple[str, ipaddress.IPv4Interface]]


def _rails(host: str, variables: Mapping[str, Any], problems: list[str]) -> _Found:
    raw = variables.get(_RAILS)
    entries = list(raw) if isinstance(raw, list | tuple) else []
    if len(entries) != 2:
        problems.append(
            f"{_RAILS} of {host} lists {len(entries)} rails, but one cable is always two: name "
            "both interfaces of the cabled port, each with an address in a subnet of its own"
        )
        return []
    found: _Found = []
    for index, entry in enumerate(entries):
        where = f"{_RAILS}[{index}] of {host}"
        rail = entry if isinstance(entry, Mapping) else {}
        name, text = rail.get("interface"), rail.get("address")
        if not isinstance(name, str) or not _INTERFACE.fullmatch(name):
            problems.append(f"{where}: interface is {name!r}, which is no name of an interface")
            continue
        address = _address(text)
        if address is None:
            problems.append(
                f"{where}: address is {text!r}, but must be an IPv4 address of a host with its "
                "prefix length, such as 192.168.177.11/24"
            )
            continue
        found.append((name, address))
    return found


def _address(text: object) -> ipaddress.IPv4Interface | None:
    """An address that a host can have, or None."""
    if not isinstance(text, str) or "/" not in text:
        return None
    try:
        found = ipaddress.IPv4Interface(text)
    except ValueError:
        return None
    network = found.network
    wrong = found.ip.is_multicast or found.ip.is_loopback or found.ip.is_link_local
    if network.prefixlen < 31:
        wrong = wrong or found.ip in (network.network_address, network.broadcast_address)
    return None if wrong or network.prefixlen in (0, 32) else found


def _settings(host: str, variables: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    mtu = variables.get("cx7_network_mtu", "")
    number = _whole(mtu)
    if mtu in ("", None):
        number = None
    elif number is None or not MTU_LOWEST <= number <= MTU_HIGHEST:
        problems.append(
            f"cx7_network_mtu of {host} is {mtu!r}, but must be {MTU_LOWEST} to {MTU_HIGHEST}, or "
            "empty to leave it as it is"
        )
        number = None
    renderer = variables.get("cx7_network_renderer", "auto")
    if renderer not in ("auto", *RENDERERS):
        problems.append(
            f"cx7_network_renderer of {host} is {renderer!r}, but must be auto, "
            f"{' or '.join(RENDERERS)}"
        )
    file = variables.get("cx7_network_file")
    if not isinstance(file, str) or not _FILE.fullmatch(file):
        problems.append(
            f"cx7_network_file of {host} is {file!r}, but must be a file in /etc/netplan that ends "
            "in .yaml"
        )
    seconds = _whole(variables.get("cx7_network_confirm_seconds"))
    if seconds is None or not 5 <= seconds <= 3600:
        problems.append(
            f"cx7_network_confirm_seconds of {host} is "
            f"{variables.get('cx7_network_confirm_seconds')!r}, but must be 5 to 3600 seconds"
        )
    return {
        "mtu": number,
        "renderer": "" if renderer == "auto" else str(renderer),
        "file": str(file),
        "confirm_seconds": seconds or 0,
    }


def _whole(value: object) -> int | None:
    """A whole number; as text too, since that is how -e hands it over."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def _pair_problems(pair: Mapping[Role, str], rails: Mapping[Role, _Found]) -> list[str]:
    problems = []
    for role in ROLES:
        (first, one), (second, two) = rails[role]
        if first == second:
            problems.append(f"both rails of {pair[role]} name {first}: a rail is one interface")
        if one.network.overlaps(two.network):
            problems.append(
                f"{first} and {second} of {pair[role]} are both in {one.network}: with twins in "
                "one subnet nobody knows which rail a packet takes, so give each its own"
            )
    for index in range(2):
        ends = {role: rails[role][index] for role in ROLES}
        head, worker = ends["head"], ends["worker"]
        if head[1].network != worker[1].network:
            problems.append(
                f"rail {index + 1} has its ends in different subnets ({pair['head']} {head[0]} "
                f"{head[1]}, {pair['worker']} {worker[0]} {worker[1]}): list the rails of both "
                "machines in the same order, with the same subnet at both ends"
            )
    places: dict[str, list[str]] = {}
    for role in ROLES:
        for name, address in rails[role]:
            places.setdefault(str(address.ip), []).append(f"{pair[role]} {name}")
    problems += [
        f"{address} is given twice: to {' and to '.join(where)}"
        for address, where in places.items()
        if len(where) > 1
    ]
    return problems
