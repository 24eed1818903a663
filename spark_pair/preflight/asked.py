"""What is to be measured on a host and what is wanted of its pair, from inventory variables. Pure.

Preflight also runs on variables that are wrong, and says so in its table: what cannot be understood
here is left out and not an error.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from .. import pair_variables, pool
from ..description import ROLES, Role, other
from ..description import parse as parse_description
from ..errors import DescriptionError, SparkPairError
from .judge import Wanted

HostVariables = Mapping[str, Mapping[str, Any]]


def of_host(
    host: str,
    variables: HostVariables,
    pair: Mapping[Role, str],
    description: Mapping[str, Any],
    absent: Iterable[str],
) -> dict[str, Any]:
    """Arguments of `collect.Asked` that come from the pair; {} for a host without one."""
    role = next((role for role, name in pair.items() if name == host), None)
    if role is None:
        return {}
    asked: dict[str, Any] = {
        "is_head": role == "head",
        "management": str(variables[host].get("ansible_host") or host),
        "description": dict(description),
        "rails": [rail["interface"] for rail in rails(host, variables)],
    }
    peer = pair.get(other(role))
    if peer is not None and peer not in absent:
        asked["peer"] = _peer(peer, variables)
        asked["rail_peers"] = {
            ours["interface"]: str(ipaddress.ip_interface(theirs["address"]).ip)
            for ours, theirs in zip(rails(host, variables), rails(peer, variables), strict=False)
        }
    return asked


def _peer(peer: str, variables: HostVariables) -> dict[str, Any]:
    theirs = variables[peer]
    try:
        addresses = pair_variables.addresses(peer, variables)
    except DescriptionError:
        return {}
    if not theirs.get("spark_user"):
        return {}
    return {
        "user": str(theirs["spark_user"]),
        "addresses": addresses,
        "port": str(theirs.get("ansible_port") or 22),
    }


def accepted(value: Any) -> list[str]:
    """Names in preflight_accept, which `-e preflight_accept=…` makes a text instead of a list."""
    if isinstance(value, list | tuple):
        names = [str(name) for name in value]
    elif isinstance(value, str):
        names = value.strip().removeprefix("[").removesuffix("]").split(",")
    else:
        names = [] if value is None else [str(value)]
    return [name for name in (one.strip(" \"'\n") for one in names) if name]


def rails(host: str, variables: HostVariables) -> list[dict[str, str]]:
    """Entries of cx7_network_rails that have an interface and an address with a prefix length."""
    value = variables[host].get("cx7_network_rails")
    found = []
    for entry in value if isinstance(value, list | tuple) else ():
        if not isinstance(entry, Mapping):
            continue
        interface, address = entry.get("interface"), entry.get("address")
        if isinstance(interface, str) and isinstance(address, str) and _is_address(address):
            found.append({"interface": interface, "address": address})
    return found


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return "/" in text


def wanted(
    pair: Mapping[Role, str],
    variables: HostVariables,
    description: Mapping[str, Any],
    problems: Iterable[str],
) -> Wanted:
    """What the pair should be, as far as its variables say it."""
    try:
        parsed = parse_description(dict(description)) if description else None
    except SparkPairError:
        parsed = None
    first = variables[next(iter(pair.values()))]
    speed = _whole(first.get("cx7_network_link_speed"))
    return Wanted(
        description=parsed,
        problems=tuple(problems),
        doubts=_doubts(next(iter(pair.values())), variables, parsed.wanted if parsed else ""),
        rails={role: rails(pair[role], variables) for role in ROLES if role in pair},
        mtu=_whole(first.get("cx7_network_mtu")),
        allow_management_rail=str(first.get("cx7_network_allow_management_rail", False)).lower()
        in ("true", "yes", "1"),
        **({} if speed is None else {"link_speed": speed}),
    )


def _doubts(host: str, variables: HostVariables, server: str) -> tuple[str, ...]:
    """What is allowed and will hardly work: clients that cannot all be served at once."""
    try:
        engines = pair_variables.engines_of(host, variables)
    except SparkPairError:
        return ()  # said among the problems
    found = []
    for engine in engines:
        shared = pool.Pool(
            engine.context, int(engine.settings["PARALLEL"]), int(engine.settings["ROUND_ROWS"])
        )
        if engine.name == server and (words := pool.overload(shared, engine.clients)):
            found.append(f"tensorfold_service_clients: {words}")
    return tuple(found)


def _whole(value: Any) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None
