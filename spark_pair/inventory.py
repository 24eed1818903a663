"""`make inventory`: describe two machines and write `inventory/local` for review.

Asks for what no flag gives, checks it the way a run would, and overwrites nothing unless told to.
Runs on the controller; the check needs PyYAML, which comes with Ansible.
"""

from __future__ import annotations

import argparse
import getpass
import ipaddress
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import pair_variables
from .description import NONE, ROLES, Role
from .errors import SparkPairError

ROOT = Path(__file__).resolve().parents[1]
INTERFACES = ("enp1s0f0np0", "enP2p1s0f0np0")
"""The two interfaces of one physical CX7 port, as the machines name them."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]*")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_PLACEHOLDER_COMMIT = "0" * 40

Ask = Callable[[str, str], str]


class InventoryError(SparkPairError):
    """An answer is not usable, or a file is in the way."""


@dataclass(frozen=True)
class Rail:
    """One interface of the direct link, with its address and prefix length."""

    interface: str
    address: str


@dataclass(frozen=True)
class Machine:
    """What is asked about one machine."""

    name: str
    address: str
    login: str
    user: str
    home: str
    rails: tuple[Rail, ...]


@dataclass(frozen=True)
class Answers:
    """Everything that is written down."""

    machines: Mapping[Role, Machine]
    wanted: str
    fallback: str
    commit: str


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
        if not _INTERFACE.fullmatch(name):
            raise InventoryError(f"{name!r} cannot be the name of a network interface")
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
        ):
            if not pattern.fullmatch(value):
                raise InventoryError(f"{value!r} cannot be the {what} of the {role}")
        _check_own_rails(machine)
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
    # The commit may be filled in later, and its absence is refused by every run with a sentence.
    variables = host_variables(answers, defaults, commit=answers.commit or _PLACEHOLDER_COMMIT)
    pair_variables.description_of(head.name, variables)


def _check_own_rails(machine: Machine) -> None:
    if not machine.rails:
        raise InventoryError(f"{machine.name} has no rail: give the address of its CX7 interface")
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
            "model_server_wanted": answers.wanted,
            "model_server_fallback": answers.fallback,
            "pair_role": role,
            "pair_peer": names["worker" if role == "head" else "head"],
            "ansible_host": machine.address,
            "spark_user": machine.user,
            "spark_home": machine.home,
            "cx7_network_rails": [
                {"interface": rail.interface, "address": rail.address} for rail in machine.rails
            ],
        }
        for role, machine in answers.machines.items()
    }


def default_variables(root: Path = ROOT) -> dict[str, Any]:
    """The repository's own defaults (group_vars/all)."""
    found: dict[str, Any] = {}
    for file in sorted((root / "group_vars/all").glob("*.yml")):
        found.update(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    return found


def files(answers: Answers) -> dict[str, str]:
    """Relative path -> content of everything that is written."""
    return {
        "hosts.yml": _hosts_text(answers),
        "group_vars/spark_pair/engine.yml": _engine_text(answers),
        "group_vars/spark_pair/model_servers.yml": _servers_text(answers),
    }


def _hosts_text(answers: Answers) -> str:
    lines = [
        "---",
        "# Your pair, written by 'make inventory'. Everything here can be edited by hand.",
        "spark_pair:",
        "  children:",
    ]
    for role in ROLES:
        machine = answers.machines[role]
        peer = answers.machines["worker" if role == "head" else "head"]
        lines += [
            f"    spark_{role}:",
            "      hosts:",
            f"        {machine.name}:",
            f"          ansible_host: {machine.address}",
            f"          ansible_user: {machine.login}",
            f"          pair_peer: {peer.name}",
            "          # Account that runs the servers, and its home.",
            f"          spark_user: {machine.user}",
            f"          spark_home: {machine.home}",
            "          cx7_network_rails:",
            *(
                f"            - {{interface: {rail.interface}, address: {rail.address}}}"
                for rail in machine.rails
            ),
            "      vars:",
            f"        pair_role: {role}",
        ]
    return "\n".join(lines) + "\n"


def _engine_text(answers: Answers) -> str:
    commit = f'"{answers.commit}"' if answers.commit else "..."
    return "\n".join(
        [
            "---",
            "# Commit of the recipe that this pair runs, whole. On a head that was set up by hand:",
            "# git -C ~/dsv41 rev-parse HEAD",
            f"{'' if answers.commit else '# '}tensorfold_service_recipe_commit: {commit}",
            "",
            "# More settings, with their reasons: group_vars/all/engine.yml of the repository, and",
            "# inventory/example/group_vars/spark_pair/production.yml.example.",
            "tensorfold_service_extra_settings: {}",
            "",
        ]
    )


def _servers_text(answers: Answers) -> str:
    return "\n".join(
        [
            "---",
            "# The server that the pair should run, and the one it goes back to when that fails.",
            f"model_server_wanted: {answers.wanted}",
            f"model_server_fallback: {answers.fallback}",
            "",
            "# Corrections to the catalogue (group_vars/all/model_servers.yml), merged key by key.",
            "model_server_extra: {}",
            "",
        ]
    )


def write(target: Path, contents: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write the files; InventoryError when one exists and `force` is not given."""
    present = [target / name for name in contents if (target / name).exists()]
    if present and not force:
        raise InventoryError(
            f"{present[0]} exists: edit it by hand, or run again with --force to replace it"
        )
    written = []
    for name, text in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def gather(options: argparse.Namespace, ask: Ask) -> Answers:
    """Take answers from flags; ask for the rest, each with a default where there is one."""
    machines: dict[Role, Machine] = {}
    account = getpass.getuser()
    for role in ROLES:
        given = {
            key: getattr(options, f"{role}_{key}")
            for key in ("address", "login", "user", "home", "rails")
        }

        def answer(key: str, question: str, default: str, given: dict[str, Any] = given) -> str:
            return str(given[key] or ask(question, default))

        name = str(getattr(options, role) or ask(f"Host name of the {role}", ""))
        login = answer("login", f"Account to log in to {name} with", account)
        user = answer("user", f"Account that runs the servers on {name}", login)
        machines[role] = Machine(
            name=name,
            address=answer("address", f"Management address of {name}", name),
            login=login,
            user=user,
            home=answer("home", f"Home directory of {user} on {name}", f"/home/{user}"),
            rails=parse_rails(
                answer("rails", f"Addresses of the CX7 interfaces of {name} (with /prefix)", "")
            ),
        )
        account = login
    return Answers(
        machines=machines,
        wanted=options.wanted,
        fallback=options.fallback,
        commit=options.recipe_commit
        or ask("Commit of the recipe (git -C ~/dsv41 rev-parse HEAD; empty: later)", ""),
    )


def _ask_at_terminal(question: str, default: str) -> str:
    hint = f" [{default}]" if default else ""
    return input(f"{question}{hint}: ").strip() or default


def _ask_nobody(question: str, default: str) -> str:
    if default or "empty: later" in question:
        return default
    raise InventoryError(f"not given, and there is no terminal to ask at: {question}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make inventory",
        description="Write inventory/local for your two machines. What no flag gives is asked for.",
    )
    for role in ROLES:
        group = parser.add_argument_group(role)
        group.add_argument(f"--{role}", metavar="NAME", help=f"host name of the {role}")
        group.add_argument(f"--{role}-address", help="management address (default: the name)")
        group.add_argument(f"--{role}-login", help="account that Ansible logs in with")
        group.add_argument(f"--{role}-user", help="account that runs the servers")
        group.add_argument(f"--{role}-home", help="its home directory")
        group.add_argument(
            f"--{role}-rails",
            metavar="ADDRESS/PREFIX,…",
            help="addresses of the CX7 interfaces, as INTERFACE=ADDRESS/PREFIX or without a name",
        )
    parser.add_argument("--recipe-commit", help="commit of the recipe (may be filled in later)")
    parser.add_argument("--wanted", default="deepseek", help="server that the pair should run")
    parser.add_argument("--fallback", default="hikari", help=f"server to go back to, or {NONE}")
    parser.add_argument("--output", type=Path, default=ROOT / "inventory/local")
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m spark_pair.inventory`."""
    options = _parser().parse_args(argv)
    ask = _ask_at_terminal if sys.stdin.isatty() else _ask_nobody
    try:
        answers = gather(options, ask)
        check(answers, default_variables())
        written = write(options.output, files(answers), force=options.force)
    except SparkPairError as error:
        print(f"inventory: {error}", file=sys.stderr)
        return int(error.exit)
    except (EOFError, KeyboardInterrupt):
        print("\ninventory: nothing was written", file=sys.stderr)
        return 130
    print("Written, please review:")
    for path in written:
        print(f"  {path}")
    if not answers.commit:
        print(
            "Still to fill in: tensorfold_service_recipe_commit in group_vars/spark_pair/engine.yml"
        )
    print("Then: ansible-playbook site.yml -l spark_pair --tags preflight")
    return 0


if __name__ == "__main__":
    sys.exit(main())
