"""What was found, for a person: one block a machine, and what differs from an inventory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import ansible_words
from . import pair
from .pair import View


def summary(name: str, view: View) -> str:
    """Everything that was found on one machine, and what could not be read."""
    rows = [
        ("calls itself", view["hostname"]),
        ("management", _management(view["management"])),
        *(("account", _account(one)) for one in view["accounts"]),
        *(("link", _interface(one)) for one in view["interfaces"]),
        *((row["part"], _unit(row)) for row in view["units"]),
        *(("container", _container(row)) for row in view["containers"]),
        *(
            ("answers", f"port {row['port']}: {row['words'] or 'no model'}")
            for row in view["answering"]
        ),
        *([("not asked", _not_asked(view["not_asked"]))] if view["not_asked"] else []),
        *(("not read", f"{what}: {why}") for what, why in sorted(view["unread"].items())),
    ]
    if not view["interfaces"] and "interfaces" not in view["unread"]:
        rows.append(("link", "no ConnectX-7 interface"))
    width = max(len(key) for key, _ in rows)
    shown = [f"    {key.ljust(width)}  {_plain(words)}" for key, words in rows]
    return "\n".join([f"  {name}", *shown])


def _plain(words: object) -> str:
    """One line without control characters: descriptions and images are somebody else's text."""
    return "".join(letter if letter.isprintable() else " " for letter in str(words))


def _management(row: Mapping[str, Any]) -> str:
    if not row["interface"]:
        return "cannot be told"
    wireless = ", wireless" if row["wireless"] else ""
    return f"{row['address']} on {row['interface']}{wireless} ({row['how']})"


def _account(row: Mapping[str, Any]) -> str:
    parts = [f"{row['name']}, {row['home']}"]
    for model in row["models"]:
        broken = f", {model['broken_links']} broken links" if model["broken_links"] else ""
        parts.append(f"{model['name']} {pair.size(model['bytes'])}{broken}")
    if checkout := row["checkout"]:
        changed = f", {checkout['changed']} files changed" if checkout["changed"] else ""
        parts.append(f"{checkout['path']} at {checkout['commit'] or checkout['problem']}{changed}")
    return "; ".join(parts)


def _interface(row: Mapping[str, Any]) -> str:
    carrier = {True: "carrier", False: "no carrier", None: "carrier unknown (is it down?)"}
    words = [f"{row['name']} ({row['port']})", carrier[row["carrier"]]]
    words.append(", ".join(row["addresses"]) or "no address")
    words.append(f"RDMA {row['rdma']}" if row["rdma"] else "no RDMA device")
    return "; ".join(words)


def _unit(row: Mapping[str, Any]) -> str:
    scope = "" if row["scope"] == "system" else f" of {row['scope'].partition(':')[2]}"
    return f"{row['unit']}{scope}: {row['active']}, {row['enabled']} ({row['why']})"


def _not_asked(ports: Sequence[int]) -> str:
    shown = ", ".join(str(port) for port in ports)
    return f"{shown}: listening, and no server is known to use them"


def _container(row: Mapping[str, Any]) -> str:
    gpu = "" if row["gpu"] else ", no GPU"
    return f"{row['name']} ({row['image']}): {row['state']}, restart {row['restart']}{gpu}"


def not_looked_at(name: str, said: str) -> str:
    """Why a machine that answers was not looked at, from what Ansible said."""
    shown = _plain(ansible_words.first_line(said))
    if ansible_words.lacks_root(said):
        return (
            f"{name} can be reached, but not looked at as root ({shown}): give the login account "
            "passwordless sudo, or run with --ask-become-pass"
        )
    return f"{name} answers, but could not be looked at: {shown}"


def differences(
    names: Mapping[str, str],
    views: Mapping[str, View],
    variables: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """What an inventory says otherwise than the machines do, one sentence each.

    `names` maps role to host; a machine that was not looked at has no view, and nothing is said of
    it here.
    """
    found = []
    for role, name in names.items():
        if name in views:
            found += _of_one(name, role, views[name], variables[name])
    return found


def _of_one(name: str, role: str, view: View, mine: Mapping[str, Any]) -> list[str]:
    found = []
    user, home = str(mine.get("spark_user") or ""), str(mine.get("spark_home") or "")
    if view["hostname"] and view["hostname"] != name.partition(".")[0]:
        found.append(f"{name} calls itself {view['hostname']}")
    there = pair.home(view, user)
    if user and there is None:
        found.append(f"spark_user of {name} is {user}: there is no such account")
    elif there is not None and there.value != home.rstrip("/"):
        found.append(f"spark_home of {name} is {home}, its account's is {there.value}")
    found += _rails(name, view, mine.get("cx7_network_rails") or [])
    commit = str(mine.get("tensorfold_service_recipe_commit") or "")
    for one in view["accounts"]:
        checkout = one["checkout"]
        if role == "head" and checkout and checkout["commit"] and checkout["commit"] != commit:
            wanted = commit or "not set"
            found.append(
                f"tensorfold_service_recipe_commit is {wanted}, {checkout['path']} of {name} is at "
                f"{checkout['commit']}"
            )
    return found


def _rails(name: str, view: View, rails: Sequence[Any]) -> list[str]:
    seen = {one["name"]: one["addresses"] for one in view["interfaces"]}
    found = []
    for rail in rails:
        interface, address = rail["interface"], rail["address"]
        if f"addresses of {interface}" in view["unread"]:
            continue
        if interface not in seen:
            found.append(f"rail {interface} of {name} is no ConnectX-7 interface there")
        elif address not in seen[interface]:
            there = ", ".join(seen[interface]) or "no address"
            found.append(f"rail {interface} of {name} is {address}, the interface has {there}")
    return found


def of_servers(incumbent: pair.Incumbent, fallback: object) -> list[str]:
    """What does not fit the inventory's fallback, and what would disturb a switch."""
    found = list(incumbent.warnings)
    if incumbent.unknown:
        found.insert(
            0,
            f"model_server_fallback is {fallback}, which cannot be compared: {incumbent.unknown}",
        )
    elif incumbent.fallback.value != fallback:
        found.insert(
            0,
            f"model_server_fallback is {fallback}, found: {incumbent.fallback.value} "
            f"({incumbent.fallback.how})",
        )
    if incumbent.model:
        found.append(
            f"the model of {incumbent.fallback.value} is {incumbent.model.value} "
            f"({incumbent.model.how}), the inventory has another id"
        )
    return found
