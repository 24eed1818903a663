"""From two machines that were looked at to the answers that an inventory needs. Pure.

Every answer carries a few words on how it was found. What cannot be told is refused with the flag
that tells it, or left out; nothing is guessed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..description import NONE, ROLES, Role, other
from ..errors import SparkPairError

View = Mapping[str, Any]
"""What `look.look` returned for one machine."""

_GIB = 1 << 30
_FIRST_HOST = 11
"""Proposed addresses end in 11 on the head and in 12 on the worker."""


_WORD = re.compile(r"[\w.:/@+~-]+")
"""What may be written as a value. Ansible would run a template that somebody's server prints."""


class DiscoveryError(SparkPairError):
    """It cannot be told from what was found; the message names the flag that tells it."""


@dataclass(frozen=True)
class Found:
    """An answer, and how it was found."""

    value: str
    how: str


@dataclass(frozen=True)
class FoundRail:
    """One interface of the direct link with its address and prefix length."""

    interface: str
    address: str
    how: str


@dataclass(frozen=True)
class Recipe:
    """The recipe's checkout: its commit, where it came from, and what to know about it."""

    commit: Found | None
    url: Found | None
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Incumbent:
    """The server to go back to. `model` is set when the catalogue names another one.

    For the person who reviews the inventory: `remarks` say what was seen, `warnings` what does not
    fit or would revive a server behind a switch's back. `unknown` says why there may be a server
    to go back to although none was found; empty when it is known.
    """

    fallback: Found
    model: Found | None
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    unknown: str = ""


def size(count: int) -> str:
    """Bytes in both ways of counting."""
    return f"{count / _GIB:.0f} GiB ({count / 1e9:.0f} GB)"


def account(view: View, role: Role, name: str) -> Found | None:
    """The account that runs the servers: owner of the recipe or of the weights, else the login.

    None when only root is left: the servers never run as root. DiscoveryError when several accounts
    have the same claim.
    """
    accounts = [one for one in view["accounts"] if one["uid"] != 0]
    for claims in (_recipes(accounts), _weights(accounts), _servers(accounts, view["units"])):
        if len(claims) > 1:
            said = ", ".join(f"{owner} {claim}" for owner, claim in claims.items())
            raise DiscoveryError(
                f"it cannot be told which account of {name} runs the servers ({said}): name it "
                f"with --{role}-user"
            )
        for owner, claim in claims.items():
            return Found(owner, claim)
    if view["login"] in {one["name"] for one in accounts}:
        return Found(view["login"], "the login account; no other one owns model data")
    return None


def _recipes(accounts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Owners of a checkout; any other folder of that name tells nothing."""
    return {
        one["name"]: f"owns {one['checkout']['path']}"
        for one in accounts
        if one["checkout"] and one["checkout"]["commit"]
    }


def _weights(accounts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Owners of model data; a small part of what another one has is somebody's tokenizer."""
    bytes_of = {one["name"]: sum(model["bytes"] for model in one["models"]) for one in accounts}
    most = max(bytes_of.values(), default=0)
    return {
        owner: f"owns {size(count)} of model data"
        for owner, count in bytes_of.items()
        if count > most / 10
    }


def _servers(
    accounts: Iterable[Mapping[str, Any]], units: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Accounts that a server's unit runs as."""
    known = {one["name"] for one in accounts}
    found: dict[str, str] = {}
    for unit in units:
        owner = unit["scope"].partition(":")[2] or unit["user"]
        if unit["part"] == "server" and owner in known:
            found.setdefault(owner, f"runs {unit['unit']}")
    return found


def home(view: View, name: str) -> Found | None:
    """Home directory of an account, from the machine's own list."""
    for one in view["accounts"]:
        if one["name"] == name:
            return Found(one["home"], "from the machine's list of accounts")
    return None


def recipe(
    views: Mapping[Role, View], names: Mapping[Role, str], users: Mapping[Role, str]
) -> Recipe:
    """The recipe as it was checked out by hand, the head's before the worker's.

    Of several checkouts on one machine, that of the account in `users` comes first.
    """
    commit: Found | None = None
    url: Found | None = None
    remarks = []
    for role in ROLES:
        for one in sorted(views[role]["accounts"], key=lambda one: one["name"] != users[role]):
            checkout = one["checkout"]
            if not checkout:
                continue
            place = f"{checkout['path']} of {names[role]}"
            if checkout["commit"] is None:
                remarks.append(f"{place}: {checkout['problem']}")
                continue
            if commit is None:
                commit = Found(checkout["commit"], f"HEAD of {place}")
                if _WORD.fullmatch(checkout["url"] or ""):
                    url = Found(checkout["url"], f"origin of {place}")
            elif commit.value != checkout["commit"]:
                remarks.append(f"{place} is at {checkout['commit']}, which is another commit")
            if checkout["changed"]:
                remarks.append(
                    f"{place} has {checkout['changed']} changed files: they are not part of the "
                    "commit, and a fresh checkout of it will not have them"
                )
            elif checkout["changed"] is None:
                remarks.append(f"whether files of {place} were changed could not be read")
    return Recipe(commit, url, tuple(remarks))


def exposure(
    views: Mapping[Role, View], names: Mapping[Role, str], port: int, model: str
) -> Found | None:
    """`open` or `key`: who may use the engine's API now; None when it does not answer.

    It is asked without a key. Another model's answer on its port says nothing about it.
    """
    place = f"port {port} of {names['head']}"
    for answer in views["head"]["answering"]:
        if answer["port"] != port:
            continue
        if model in answer["models"]:
            return Found("open", f"{place} answers without a key")
        if not answer["models"] and answer["words"].startswith("asks for a key"):
            return Found("key", f"{place} {answer['words']}")
    return None


def same_repository(one: str, two: str) -> bool:
    """Whether two addresses lead to one repository, over whatever protocol."""
    return _repository(one) == _repository(two)


def _repository(url: str) -> tuple[str, ...]:
    parts = re.split(r"[/:]", url.lower().removesuffix("/").removesuffix(".git"))
    return tuple(parts[-2:])


# --- the direct link


def rails(
    views: Mapping[Role, View],
    names: Mapping[Role, str],
    ports: Mapping[Role, str | None],
) -> dict[Role, tuple[FoundRail, ...]]:
    """Both rails of both machines: adopted where the addresses pair up, else proposed.

    `ports` names a socket, or one of its interfaces, where the operator has said which is cabled.
    DiscoveryError when that cannot be told.
    """
    for role in ROLES:
        _refuse_unread(views[role], names[role])
    chosen = _cabled(views, names, ports)
    for role in ROLES:
        if len(chosen[role]) != 2:
            seen = " and ".join(one["name"] for one in chosen[role])
            raise DiscoveryError(
                f"the cabled port of {names[role]} shows {seen} only, where two interfaces belong "
                "together: a device that left the PCI bus comes back with a reboot with the cable "
                f"in (never with a rescan). To go on as it is, give --{role}-rails"
            )
    adopted = _adopted(chosen)
    free = _free_networks(views)
    found: dict[Role, list[FoundRail]] = {"head": [], "worker": []}
    taken: dict[Role, set[str]] = {role: {pair[role][0] for pair in adopted} for role in ROLES}
    left = {role: [one["name"] for one in chosen[role]] for role in ROLES}
    for interface in left["head"]:
        pair = next((pair for pair in adopted if pair["head"][0] == interface), None)
        if pair is None:
            twin = next(name for name in left["worker"] if name not in taken["worker"])
            taken["worker"].add(twin)
            network = next(free, None)
            if network is None:
                raise DiscoveryError(
                    "no private /24 is free on both machines: give --head-rails and --worker-rails"
                )
            how = "proposed: no pair of addresses was found, and the subnet is free on both"
            pair = {
                "head": (interface, f"{network[_FIRST_HOST]}/24"),
                "worker": (twin, f"{network[_FIRST_HOST + 1]}/24"),
            }
        else:
            how = "as found: both ends are in one subnet"
        for role in ROLES:
            found[role].append(FoundRail(*pair[role], how))
    return {role: tuple(found[role]) for role in ROLES}


def matching(view: View, addresses: Sequence[str]) -> list[FoundRail] | None:
    """Interfaces of this machine in the subnets of the peer's rails; None unless all are there."""
    found = []
    for given in addresses:
        network = ipaddress.ip_interface(given).network
        rail = next(
            (
                FoundRail(name, address, "as found: in the subnet of the rail that was given")
                for name, address in _addresses(view["interfaces"])
                if ipaddress.ip_interface(address).network == network and address != given
            ),
            None,
        )
        if rail is None:
            return None
        found.append(rail)
    return found


def _refuse_unread(view: View, name: str) -> None:
    """An address that could not be read is no free interface."""
    for what in (
        "interfaces",
        "routes",
        *(f"addresses of {one['name']}" for one in view["interfaces"]),
    ):
        if what in view["unread"]:
            raise DiscoveryError(
                f"{what} of {name} could not be read ({view['unread'][what]}), so that its rails "
                "cannot be told: mend that, or give --head-rails and --worker-rails"
            )


def _cabled(
    views: Mapping[Role, View], names: Mapping[Role, str], ports: Mapping[Role, str | None]
) -> dict[Role, list[Mapping[str, Any]]]:
    """The interfaces of the cabled socket of each machine, the first function first."""
    candidates: dict[Role, dict[str, list[Mapping[str, Any]]]] = {}
    for role in ROLES:
        sockets = _sockets(views[role])
        if not sockets:
            raise DiscoveryError(
                f"{names[role]} shows no ConnectX-7 interface. Without a cable at boot the device "
                "goes to sleep: plug it in and reboot (never rescan the PCI bus), or give "
                f"--{role}-rails"
            )
        if wanted := ports[role]:
            candidates[role] = _named_socket(sockets, wanted, role, names[role])
        else:
            up = {
                port: twins
                for port, twins in sockets.items()
                if any(one["carrier"] for one in twins)
            }
            candidates[role] = up or sockets
    if any(len(candidates[role]) > 1 for role in ROLES):
        candidates = _that_pair_up(candidates, views)
    for role in ROLES:
        if len(candidates[role]) != 1:
            raise _cannot_tell(role, names[role], candidates[role])
    return {role: next(iter(candidates[role].values())) for role in ROLES}


def _sockets(view: View) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in view["interfaces"]:
        found.setdefault(one["port"], []).append(one)
    return {port: sorted(found[port], key=lambda one: list(one["order"])) for port in sorted(found)}


def _named_socket(
    sockets: Mapping[str, list[Mapping[str, Any]]], wanted: str, role: Role, name: str
) -> dict[str, list[Mapping[str, Any]]]:
    for port, twins in sockets.items():
        if wanted in {
            port,
            *(str(one["name"]) for one in twins),
            *(one["phys_port"] for one in twins),
        }:
            return {port: twins}
    known = ", ".join(one["name"] for twins in sockets.values() for one in twins)
    raise DiscoveryError(
        f"--{role}-cable is {wanted!r}, but the interfaces of {name} are {known}: name one of them"
    )


def _that_pair_up(
    candidates: Mapping[Role, Mapping[str, list[Mapping[str, Any]]]], views: Mapping[Role, View]
) -> dict[Role, dict[str, list[Mapping[str, Any]]]]:
    """Of several sockets, those whose addresses share a subnet with the peer's; all if none do.

    That both ends are in the management network says nothing about the cable between them.
    """
    managed = {role: views[role]["management"]["interface"] for role in ROLES}
    matches = [
        (one, two)
        for one, twins in candidates["head"].items()
        for two, peers in candidates["worker"].items()
        if _adopted(
            {
                "head": [end for end in twins if end["name"] != managed["head"]],
                "worker": [end for end in peers if end["name"] != managed["worker"]],
            }
        )
    ]
    if not matches:
        return {role: dict(candidates[role]) for role in ROLES}
    kept: dict[Role, set[str]] = {
        "head": {one for one, _ in matches},
        "worker": {two for _, two in matches},
    }
    return {role: {port: candidates[role][port] for port in sorted(kept[role])} for role in ROLES}


def _cannot_tell(
    role: Role, name: str, sockets: Mapping[str, Sequence[Mapping[str, Any]]]
) -> DiscoveryError:
    every = [one for twins in sockets.values() for one in twins]
    shown = ", ".join(one["name"] for one in every)
    up = sum(one["carrier"] is True for one in every)
    state = f"{up} interfaces of {name} have a carrier" if up else f"no interface of {name} has one"
    return DiscoveryError(
        f"{state} ({shown}), so it cannot be told which port leads to the other machine: name one "
        f"interface of that port with --{role}-cable, such as --{role}-cable {every[0]['name']}"
    )


def _adopted(
    chosen: Mapping[Role, Sequence[Mapping[str, Any]]],
) -> list[dict[Role, tuple[str, str]]]:
    """Pairs of interfaces, by role, with addresses in one subnet; each of them once."""
    pairs: list[dict[Role, tuple[str, str]]] = []
    used: set[str] = set()
    for mine, my_address in _addresses(chosen["head"]):
        for theirs, their_address in _addresses(chosen["worker"]):
            network = ipaddress.ip_interface(my_address).network
            if ipaddress.ip_interface(their_address).network != network:
                continue
            if my_address == their_address:
                continue
            keys = {f"head {mine}", f"worker {theirs}", f"network {network}"}
            if not used & keys:
                used |= keys
                pairs.append({"head": (mine, my_address), "worker": (theirs, their_address)})
    return pairs


def _addresses(interfaces: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for one in interfaces:
        for address in one["addresses"]:
            if not ipaddress.ip_interface(address).is_link_local:
                yield one["name"], address


def _free_networks(views: Mapping[Role, View]) -> Iterator[ipaddress.IPv4Network]:
    """Private /24 that overlap nothing which either machine has a route or an address for."""
    taken = [
        ipaddress.ip_network(network, strict=False)
        for view in views.values()
        for network in (
            *view["networks"],
            *(address for one in view["interfaces"] for address in one["addresses"]),
        )
    ]
    for third in (*range(177, 255), *range(1, 177)):
        network = ipaddress.IPv4Network(f"192.168.{third}.0/24")
        if not any(network.overlaps(one) for one in taken if one.version == 4):
            yield network


# --- the server that runs now


def incumbent(
    views: Mapping[Role, View],
    names: Mapping[Role, str],
    catalog: Mapping[str, Mapping[str, Any]],
    wanted: str,
    ours: Collection[str],
) -> Incumbent:
    """The server of the catalogue whose units are all where it says; `none` without one.

    `ours` are units that this repository writes: they are no incumbent.
    """
    unknown = _units_unread(views, names)
    warnings = [*_containers(views, names), *_not_read(views, names)]
    for server, entry in catalog.items():
        units = entry.get("units") or []
        if server == wanted or not units:
            continue
        if all(_has(views[unit["host"]], unit["unit"]) for unit in units):
            warnings += _more_keepers(views, names, entry)
            model, remarks = _model(server, entry, views, names)
            how = f"its units are on {' and '.join(names[unit['host']] for unit in units)}"
            return Incumbent(Found(server, how), model, tuple(remarks), tuple(warnings))
        if not unknown:
            warnings += _crossed(server, units, views, names)
    remarks = []
    for role in ROLES:
        for row in views[role]["units"]:
            if row["unit"] not in ours:
                remarks.append(f"candidate on {names[role]} ({role}): {_unit_words(row)}")
        for answer in views[role]["answering"]:
            remarks.append(
                f"port {answer['port']} of {names[role]} answers /v1/models: {answer['words']}"
            )
    none = Found(NONE, "no server of the catalogue has all its units here")
    return Incumbent(none, None, tuple(remarks), tuple(warnings), unknown)


def units_of_engines(engines: Mapping[str, Any]) -> frozenset[str]:
    """Units that this repository writes, from `tensorfold_service_engines`."""
    return frozenset(str(entry.get("unit")) for entry in engines.values())


def _has(view: View, unit: str) -> bool:
    """Whether a unit of the system is there; a switch does not move those of an account."""
    return any(row["unit"] == unit and row["scope"] == "system" for row in view["units"])


def _unit_words(row: Mapping[str, Any]) -> str:
    """One unit; its state is left out, because that of a timer's service changes by the second."""
    scope = "" if row["scope"] == "system" else f" of the account {row['scope'].partition(':')[2]}"
    return f"{row['unit']}{scope}, {row['part']}, {row['enabled']} ({row['why']})"


def _crossed(
    server: str,
    units: Sequence[Mapping[str, Any]],
    views: Mapping[Role, View],
    names: Mapping[Role, str],
) -> list[str]:
    """What to know when units of a server are on the other machine, or on none."""
    crossed = [unit for unit in units if _has(views[other(unit["host"])], unit["unit"])]
    here = [unit for unit in units if _has(views[unit["host"]], unit["unit"])]
    if crossed and not here:
        unit = crossed[-1]
        return [
            f"{server} is crossed the other way: {unit['unit']} is on {names[other(unit['host'])]} "
            f"(the {other(unit['host'])}), the catalogue has it on the {unit['host']}. Swap --head "
            f"and --worker, or turn its hosts round in model_server_extra"
        ]
    if here or crossed:
        missing = [unit for unit in units if unit not in here]
        return [
            f"{server} is there in part: {unit['unit']} was not found on {names[unit['host']]}"
            for unit in missing
        ]
    return []


def _model(
    server: str,
    entry: Mapping[str, Any],
    views: Mapping[Role, View],
    names: Mapping[Role, str],
) -> tuple[Found | None, list[str]]:
    """The model's id if the server prints another one than the catalogue's, and remarks."""
    api = entry.get("api") or {}
    role, port, expected = api.get("host"), api.get("port"), api.get("model")
    if role not in ROLES:
        return None, []
    place = f"port {port} of {names[role]}"
    answer = next((one for one in views[role]["answering"] if one["port"] == port), None)
    if answer is None:
        return None, [
            f"{place} did not answer, so that the model id of {server} is the catalogue's "
            f"({expected}): look again while it serves"
        ]
    if not answer["models"]:
        return None, [f"{place} {answer['words'] or 'lists no model'}: the model id was not seen"]
    if expected in answer["models"]:
        return None, [f"{server} answers on {place} as {expected}"]
    if not _WORD.fullmatch(answer["models"][0]):
        return None, [f"{place} prints a model id that is no plain word: {answer['words']}"]
    remarks = (
        [f"{place} lists {answer['words']}: the first was taken"]
        if len(answer["models"]) > 1
        else []
    )
    return Found(answer["models"][0], f"printed by {place}"), remarks


def _more_keepers(
    views: Mapping[Role, View], names: Mapping[Role, str], entry: Mapping[str, Any]
) -> list[str]:
    """Units that look as if they revive the server, but that no switch would stop."""
    known = {
        (unit["host"], unit["unit"])
        for key in ("units", "keepers")
        for unit in entry.get(key) or []
    }
    found = []
    for role in ROLES:
        for row in views[role]["units"]:
            timers = {(role, timer) for timer in row["timers"]}
            # What only a known timer starts rests while that timer is stopped.
            rests = bool(timers) and timers <= known
            if (role, row["unit"]) not in known and not rests and _is_related(row, entry):
                found.append(f"not in the catalogue, on {names[role]} ({role}): {_unit_words(row)}")
    return found


def _is_related(row: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """A keeper of one of the server's units, by what gave it away."""
    return row["part"] == "keeper" and (
        any(unit["unit"] in row["why"] for unit in (entry.get("units") or []))
        or any(unit["unit"] in row["why"] for unit in (entry.get("keepers") or []))
        or "asks the server" in row["why"]
    )


_UNITS = ("system units", "state of units (system)")
_SERVING = ("system units", "state of units (", "units of ", "containers", "listening ports")
"""Beginnings of what, unread, may hide a server or what brings it back."""


def _units_unread(views: Mapping[Role, View], names: Mapping[Role, str]) -> str:
    """Why a server may be there although its units were not found; empty if they were read."""
    return "; ".join(
        f"{what} of {names[role]} could not be read ({views[role]['unread'][what]})"
        for role in ROLES
        for what in _UNITS
        if what in views[role]["unread"]
    )


def _not_read(views: Mapping[Role, View], names: Mapping[Role, str]) -> list[str]:
    return [
        f"not read on {names[role]} ({role}): {what}: {why}. "
        "What serves or revives a server there is not known"
        for role in ROLES
        for what, why in sorted(views[role]["unread"].items())
        if what.startswith(_SERVING)
    ]


def _containers(views: Mapping[Role, View], names: Mapping[Role, str]) -> list[str]:
    return [
        f"container {row['name']} on {names[role]} ({row['image']}) comes back by itself: "
        f"restart policy {row['restart']}"
        for role in ROLES
        for row in views[role]["containers"]
        if row["restart"] != "no"
    ]
