"""The answers that make an inventory, their check, and the files that hold them. Pure.

A value that was found on a machine carries a comment that says how. The same answers always give
the same bytes.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import pair_variables
from .description import ROLES, Role, other
from .errors import SparkPairError

INTERFACES = ("enp1s0f0np0", "enP2p1s0f0np0")
"""The two interfaces of one physical CX7 port, as the machines name them."""

FILES = (
    "hosts.yml",
    "group_vars/spark_pair/engine.yml",
    "group_vars/spark_pair/model_servers.yml",
)
"""Everything that is written, below the inventory's folder."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]*")
_HOME = re.compile(r"/[^\s#:'\"{}\[\],&*!|>%@`\\]+")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
API_CHOICES = ("open", "key")
_PLACEHOLDER_COMMIT = "0" * 40


class InventoryError(SparkPairError):
    """An answer is not usable, or a file is in the way."""


@dataclass(frozen=True)
class Rail:
    """One interface of the direct link, with its address and prefix length; `how` it was found."""

    interface: str
    address: str
    how: str = ""


@dataclass(frozen=True)
class Machine:
    """What is asked about one machine. `how` holds, by field, how a value was found."""

    name: str
    address: str
    login: str
    user: str
    home: str
    rails: tuple[Rail, ...]
    port: int | None = None
    how: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """Everything that is written down.

    `extra` are corrections to the catalogue of servers; `how` holds, by field, how a value was
    found; `remarks`, by file, what the reader should know.
    """

    machines: Mapping[Role, Machine]
    wanted: str
    fallback: str
    commit: str
    url: str = ""
    api: str = ""
    """Who may use the engine's API: `open`, `key`, or empty while that is not chosen."""
    model: tuple[str, str] | None = None
    """Server and the id that its /v1/models printed, where the catalogue has another one."""
    ssh_common_args: str = ""
    private_key: str = ""
    how: Mapping[str, str] = field(default_factory=dict)
    recipe_remarks: tuple[str, ...] = ()
    server_remarks: tuple[str, ...] = ()
    server_warnings: tuple[str, ...] = ()

    @property
    def extra(self) -> dict[str, Any]:
        """Value of `model_server_extra`."""
        return {self.model[0]: {"api": {"model": self.model[1]}}} if self.model else {}


def parse_rails(text: str) -> tuple[Rail, ...]:
    """`enp1s0f0np0=192.168.177.11/24,enP2p1s0f0np0=…`; without names the usual ones are used."""
    rails = []
    for index, part in enumerate(word.strip() for word in text.split(",") if word.strip()):
        name, separator, address = part.rpartition("=")
        if not separator:
            if index >= len(INTERFACES):
                raise InventoryError(
                    f"{part!r} is a third rail: name its interface, as in x={part}"
                )
            name = INTERFACES[index]
        try:
            ipaddress.ip_interface(address)
        except ValueError:
            raise InventoryError(
                f"{address!r} is not an address, such as 192.168.177.11/24"
            ) from None
        if "/" not in address:
            raise InventoryError(f"{address} lacks its prefix length, such as {address}/24")
        rails.append(Rail(name, address))
    return tuple(rails)


def check(answers: Answers, defaults: Mapping[str, Any]) -> None:
    """Refuse what a run would refuse, and rails that cannot work."""
    for role, machine in answers.machines.items():
        for what, value, pattern in (
            ("name", machine.name, _NAME),
            ("address", machine.address, re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*")),
            ("login account", machine.login, _ACCOUNT),
            ("account of the servers", machine.user, _ACCOUNT),
            ("home directory (an absolute path in plain letters)", machine.home, _HOME),
        ):
            if not pattern.fullmatch(value):
                raise InventoryError(f"{value!r} cannot be the {what} of the {role}")
        _check_own_rails(machine)
    if answers.api not in ("", *API_CHOICES):
        raise InventoryError(
            f"{answers.api!r} is no answer to who may use the API: say open (everybody who reaches "
            "the port) or key (whoever has it)"
        )
    head, worker = answers.machines["head"], answers.machines["worker"]
    if len(head.rails) != len(worker.rails):
        raise InventoryError(
            f"{head.name} has {len(head.rails)} rails, {worker.name} has {len(worker.rails)}: a "
            "cable has two ends"
        )
    for number, (one, two) in enumerate(zip(head.rails, worker.rails, strict=True), 1):
        if _network(one) != _network(two):
            raise InventoryError(
                f"rail {number} is {one.address} on {head.name} and {two.address} on "
                f"{worker.name}: both ends of a rail must be in one subnet"
            )
    # The commit and who may use the API may be filled in later; without them every run is refused
    # with a sentence.
    variables = host_variables(answers, defaults, commit=answers.commit or _PLACEHOLDER_COMMIT)
    pair_variables.description_of(head.name, variables)


def _check_own_rails(machine: Machine) -> None:
    if not machine.rails:
        raise InventoryError(f"{machine.name} has no rail: give the address of its CX7 interface")
    for rail in machine.rails:
        if not _INTERFACE.fullmatch(rail.interface):
            raise InventoryError(f"{rail.interface!r} cannot be the name of a network interface")
    networks = [_network(rail) for rail in machine.rails]
    if len(set(networks)) != len(networks):
        raise InventoryError(
            f"two rails of {machine.name} are in one subnet: each interface needs a subnet of its "
            "own, otherwise traffic leaves by the wrong one"
        )


def _network(rail: Rail) -> Any:
    return ipaddress.ip_interface(rail.address).network


def host_variables(
    answers: Answers, defaults: Mapping[str, Any], *, commit: str
) -> dict[str, dict[str, Any]]:
    """Variables of both hosts as a run would see them."""
    names = {role: machine.name for role, machine in answers.machines.items()}
    return {
        machine.name: {
            **defaults,
            "tensorfold_service_recipe_commit": commit,
            "tensorfold_service_api_open": True,
            "model_server_wanted": answers.wanted,
            "model_server_fallback": answers.fallback,
            "model_server_extra": answers.extra,
            "pair_role": role,
            "pair_peer": names[other(role)],
            "ansible_host": machine.address,
            "spark_user": machine.user,
            "spark_home": machine.home,
            "cx7_network_rails": [
                {"interface": rail.interface, "address": rail.address} for rail in machine.rails
            ],
        }
        for role, machine in answers.machines.items()
    }


def files(answers: Answers) -> dict[str, str]:
    """Relative path -> content of everything that is written."""
    texts = (_hosts_text(answers), _engine_text(answers), _servers_text(answers))
    return dict(zip(FILES, texts, strict=True))


def _because(how: str) -> str:
    """A comment behind a value: how it was found."""
    return f"  # {_plain(how)}" if how else ""


def _plain(text: str) -> str:
    """One line without control characters: it may come from a machine."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _hosts_text(answers: Answers) -> str:
    lines = [
        "---",
        "# Your pair, written by 'make inventory'. Everything here can be edited by hand.",
        "spark_pair:",
    ]
    options = {
        "ansible_ssh_common_args": answers.ssh_common_args,
        "ansible_ssh_private_key_file": answers.private_key,
    }
    if given := [f"    {name}: {json.dumps(value)}" for name, value in options.items() if value]:
        lines += ["  vars:", *given]
    lines.append("  children:")
    for role in ROLES:
        machine = answers.machines[role]
        how = machine.how
        lines += [
            f"    spark_{role}:",
            "      hosts:",
            f"        {machine.name}:{_because(how.get('name', ''))}",
            f"          ansible_host: {machine.address}{_because(how.get('address', ''))}",
            *([f"          ansible_port: {machine.port}"] if machine.port is not None else []),
            f"          ansible_user: {machine.login}{_because(how.get('login', ''))}",
            f"          pair_peer: {answers.machines[other(role)].name}",
            "          # Account that runs the servers, and its home.",
            f"          spark_user: {machine.user}{_because(how.get('user', ''))}",
            f"          spark_home: {machine.home}{_because(how.get('home', ''))}",
            "          cx7_network_rails:",
            *(
                f"            - {{interface: {rail.interface}, address: {rail.address}}}"
                f"{_because(rail.how)}"
                for rail in machine.rails
            ),
            "      vars:",
            f"        pair_role: {role}",
        ]
    return "\n".join(lines) + "\n"


def _engine_text(answers: Answers) -> str:
    commit = f'"{answers.commit}"' if answers.commit else "..."
    lines = [
        "---",
        "# Commit of the recipe that this pair runs, whole. On a head that was set up by hand:",
        "# git -C ~/dsv41 rev-parse HEAD",
        f"{'' if answers.commit else '# '}tensorfold_service_recipe_commit: {commit}"
        f"{_because(answers.how.get('commit', ''))}",
    ]
    if answers.url:
        lines.append(
            f"tensorfold_service_recipe_url: {json.dumps(answers.url)}"
            f"{_because(answers.how.get('url', ''))}"
        )
    lines += [f"# - {_plain(remark)}" for remark in answers.recipe_remarks]
    lines += [
        "",
        *_api_lines(answers),
        "",
        "# More settings, with their reasons: group_vars/all/engine.yml of the repository, and",
        "# inventory/example/group_vars/spark_pair/production.yml.example.",
        "tensorfold_service_extra_settings: {}",
        "",
    ]
    return "\n".join(lines)


def _api_lines(answers: Answers) -> list[str]:
    """Who may use the engine's API. A key is never written here: it belongs into a vault."""
    how = answers.how.get("api", "")
    if answers.api == "open":
        return [
            "# Everybody who reaches the port may use the API.",
            f"tensorfold_service_api_open: true{_because(how)}",
        ]
    if answers.api == "key":
        because = f" ({_plain(how)})" if how else ""
        return [
            f"# The API asks for a key{because}. It is not written here: put it into a vault, as",
            "# ansible-vault create inventory/local/group_vars/spark_pair/vault.yml",
            "# tensorfold_service_api_key: ...",
        ]
    return [
        "# Who may use the API is yours to choose, and nothing is prepared before: either a key",
        "# (in a vault, 16 characters or more), or everybody who reaches the port.",
        "# tensorfold_service_api_key: ...",
        "# tensorfold_service_api_open: true",
    ]


def _servers_text(answers: Answers) -> str:
    lines = [
        "---",
        "# The server that the pair should run, and the one it goes back to when that fails.",
        f"model_server_wanted: {answers.wanted}",
        f"model_server_fallback: {answers.fallback}{_because(answers.how.get('fallback', ''))}",
    ]
    for title, remarks in (
        ("# Seen on the machines:", answers.server_remarks),
        ("# To heed, before the first switch:", answers.server_warnings),
    ):
        if remarks:
            lines += ["", title, *(f"# - {_plain(remark)}" for remark in remarks)]
    lines += [
        "",
        "# Corrections to the catalogue (group_vars/all/model_servers.yml), merged key by key.",
    ]
    if answers.model:
        server, model = answers.model
        lines += [
            "model_server_extra:",
            f"  {server}:",
            "    api:",
            f"      model: {json.dumps(model)}{_because(answers.how.get('model', ''))}",
        ]
    else:
        lines.append("model_server_extra: {}")
    return "\n".join([*lines, ""])
