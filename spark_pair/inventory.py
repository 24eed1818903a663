"""`make inventory`: describe two machines and write `inventory/local` for review.

Given two ssh targets it looks at the machines first. Flags win over what was found, what was found
over questions; what is then still missing is asked at a terminal and refused without one. Checks
the answers the way a run would, and overwrites nothing unless told to. Runs on the controller; the
check needs PyYAML, which comes with Ansible.
"""

from __future__ import annotations

import argparse
import getpass
import ipaddress
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from . import pair_variables
from .description import NONE, ROLES, Role, other
from .discover import pair, run
from .discover.pair import Found, View
from .errors import SparkPairError
from .inventory_answers import (
    API_CHOICES,
    FILES,
    Answers,
    InventoryError,
    Machine,
    Rail,
    check,
    files,
    parse_rails,
)

ROOT = Path(__file__).resolve().parents[1]
FALLBACK = "hikari"
"""What is written when nobody looked and nobody said."""

_TARGET = re.compile(
    r"(?:(?P<login>[^@\s]+)@)?(?:\[(?P<six>[^\]\s]+)\]|(?P<address>[^@:\s\[\]]+))(?::(?P<port>\d+))?"
)

Ask = Callable[[str, str, str], str]
"""Asks (question, default, flag that answers it)."""


def default_variables(root: Path = ROOT) -> dict[str, Any]:
    """The repository's own defaults (group_vars/all)."""
    found: dict[str, Any] = {}
    for file in sorted((root / "group_vars/all").glob("*.yml")):
        found.update(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    # The templates among what a description or a plan is made of; elsewhere Ansible works them out.
    found["tensorfold_service_ablit"] = int(found["ablit_graft_enabled"])
    return found


def refuse_to_replace(target: Path, names: Iterable[str]) -> None:
    """InventoryError when one of the files exists."""
    for path in (target / name for name in names):
        if path.exists():
            raise InventoryError(
                f"{path} exists: edit it by hand, or run again with --force to replace it. "
                "'ansible-playbook site.yml --tags discover' shows what differs from it"
            )


def write(target: Path, contents: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write the files; InventoryError when one exists and `force` is not given."""
    if not force:
        refuse_to_replace(target, contents)
    written = []
    for name, text in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def targets_of(options: argparse.Namespace) -> dict[Role, run.Target]:
    """Where the machines are to be looked at; without an address of a machine it is left out."""
    found: dict[Role, run.Target] = {}
    for role in ROLES:
        text = str(getattr(options, role) or "")
        target = _target(role, text) if _is_target(text) else None
        address = getattr(options, f"{role}_address") or (target.address if target else "")
        if address:
            login = getattr(options, f"{role}_login") or (target.login if target else "")
            found[role] = run.Target(str(address), str(login), target.port if target else None)
    return found


def _is_target(text: str) -> bool:
    """A login or an address makes it a target; a bare name is only a name."""
    if "@" in text or text.startswith("["):
        return True
    try:
        ipaddress.ip_address(text.rpartition(":")[0] if text.count(":") == 1 else text)
    except ValueError:
        return False
    return True


def _target(role: Role, text: str) -> run.Target:
    found = _TARGET.fullmatch(text)
    if found:
        port = int(found["port"]) if found["port"] else None
        return run.Target(found["six"] or found["address"], found["login"] or "", port)
    if text.count(":") > 1 and "@" not in text:
        return run.Target(text)
    raise InventoryError(f"--{role} {text!r} is no ssh target, such as operator@192.0.2.11")


def discovered(
    options: argparse.Namespace, targets: Mapping[Role, run.Target]
) -> dict[Role, View] | None:
    """Both machines as they were found; None when nobody is to be asked."""
    if options.no_discover:
        return None
    named = {role: str(getattr(options, role) or "") for role in ROLES}
    if not targets:
        _say_that_names_are_not_looked_at(named)
        return None
    for role in ROLES:
        if role not in targets:
            state = (
                f"--{role} {named[role]} is a name only" if named[role] else f"the {role} has none"
            )
            raise InventoryError(
                f"the {other(role)} has an address to look at, and {state}: give --{role} "
                f"LOGIN@{named[role] or 'ADDRESS'}, or --no-discover to describe both by flags"
            )
    ssh = run.Ssh(options.ssh_common_args, options.private_key, options.ask_become_pass)
    return run.look(targets, ssh)


def _say_that_names_are_not_looked_at(named: Mapping[Role, str]) -> None:
    """Somebody who gives names may expect a look at the machines."""
    given = {role: name for role, name in named.items() if name}
    if given:
        flags = " ".join(f"--{role} LOGIN@{name}" for role, name in given.items())
        verb = "are" if len(given) > 1 else "is"
        print(
            f"inventory: {' and '.join(given.values())} {verb} not looked at, since a name without "
            f"a login only names a machine: give {flags} for that",
            file=sys.stderr,
        )


class Gathering:
    """Collects the answers: a flag, else what was found, else a question."""

    def __init__(
        self,
        options: argparse.Namespace,
        ask: Ask,
        targets: Mapping[Role, run.Target],
        views: Mapping[Role, View] | None,
        defaults: Mapping[str, Any],
    ) -> None:
        self._options = options
        self._ask = ask
        self._targets = targets
        self._views = views
        self._defaults = defaults

    def answers(self) -> Answers:
        """Everything that is written down."""
        options, account = self._options, getpass.getuser()
        machines: dict[Role, Machine] = {}
        names = {}
        for role in ROLES:
            machine = self._machine(role, account)
            machines[role], account, names[role] = machine, machine.login, machine.name
        if names["head"] == names["worker"]:
            raise InventoryError(
                f"both machines are called {names['head']}: rename one (hostnamectl), or tell "
                "them apart with --head-name and --worker-name"
            )
        rails = self._rails(names)
        machines = {
            role: Machine(**{**vars(machines[role]), "rails": rails[role]}) for role in ROLES
        }
        users = {role: machines[role].user for role in ROLES}
        recipe = (
            pair.recipe(self._views, names, users) if self._views else pair.Recipe(None, None, ())
        )
        incumbent = self._incumbent(names)
        commit = self._first(options.recipe_commit, recipe.commit)
        if incumbent.unknown and not options.fallback:
            raise InventoryError(
                f"{incumbent.unknown}, so that it cannot be told which server to go back to: mend "
                f"that and run again, or name the server with --fallback ({NONE} means that there "
                "is no way back)"
            )
        fallback = self._first(options.fallback, incumbent.fallback)
        model = incumbent.model if fallback.value == incumbent.fallback.value else None
        api = self._first(options.api, self._exposure(names))
        url = recipe.url if recipe.url and self._is_elsewhere(recipe.url.value) else None
        return Answers(
            machines=machines,
            wanted=options.wanted,
            fallback=fallback.value,
            commit=commit.value
            or self._ask(
                "Commit of the recipe (git -C ~/dsv41 rev-parse HEAD; empty: later)",
                "",
                "",
            ),
            url=url.value if url else "",
            api=api.value
            or self._ask("Who may use the engine's API: open or key (empty: later)", "", ""),
            model=(fallback.value, model.value) if model else None,
            ssh_common_args=options.ssh_common_args,
            private_key=options.private_key,
            how={
                "commit": commit.how,
                "url": url.how if url else "",
                "api": api.how,
                "fallback": fallback.how,
                "model": model.how if model else "",
            },
            recipe_remarks=recipe.remarks,
            server_remarks=incumbent.remarks,
            server_warnings=incumbent.warnings,
        )

    def _first(self, flag: str | None, found: Found | None) -> Found:
        return Found(flag, "") if flag else found or Found("", "")

    def _machine(self, role: Role, account: str) -> Machine:
        """One machine without its rails; `account` is the default of its login."""
        target, view = self._targets.get(role), self._views[role] if self._views else None
        plain = str(getattr(self._options, role) or "")
        name = self._first(
            self._flag(role, "name") or ("" if _is_target(plain) else plain),
            Found(view["hostname"], "its own host name") if view else None,
        )
        known = target.address if target and not _is_address(target.address) else ""
        shown = name.value or self._ask(f"Host name of the {role}", known, f"--{role}-name")
        login = self._first(
            target.login if target else self._flag(role, "login"),
            Found(view["login"], "who ssh logged in as") if view else None,
        )
        entered = login.value or self._ask(
            f"Account to log in to {shown} with", account, f"--{role}-login"
        )
        told = self._flag(role, "user")
        user = self._first(told, pair.account(view, role, shown) if view and not told else None)
        runs = user.value or self._ask(
            f"Account that runs the servers on {shown}", "" if view else entered, f"--{role}-user"
        )
        home = self._first(self._flag(role, "home"), pair.home(view, runs) if view else None)
        management = view["management"] if view else None
        return Machine(
            name=shown,
            address=target.address
            if target
            else self._ask(f"Management address of {shown}", shown, f"--{role}-address"),
            login=entered,
            user=runs,
            home=home.value
            or self._ask(
                f"Home directory of {runs} on {shown}",
                "" if view else f"/home/{runs}",
                f"--{role}-home",
            ),
            rails=(),
            port=target.port if target else None,
            how={
                "name": name.how,
                "login": login.how,
                "user": user.how,
                "home": home.how,
                "address": _management_words(management) if management else "",
            },
        )

    def _flag(self, role: Role, key: str) -> str:
        return str(getattr(self._options, f"{role}_{key}") or "")

    def _rails(self, names: Mapping[Role, str]) -> dict[Role, tuple[Rail, ...]]:
        given = {
            role: parse_rails(self._flag(role, "rails"))
            for role in ROLES
            if self._flag(role, "rails")
        }
        if self._views and not given:
            cables = {role: self._flag(role, "cable") or None for role in ROLES}
            found = pair.rails(self._views, names, cables)
            return {
                role: tuple(Rail(rail.interface, rail.address, rail.how) for rail in found[role])
                for role in ROLES
            }
        for role in ROLES:
            if role in given:
                continue
            if self._views and other(role) in given:
                given[role] = self._opposite(role, given[other(role)], names[role])
            else:
                given[role] = parse_rails(
                    self._ask(
                        f"Addresses of the CX7 interfaces of {names[role]} (with /prefix)",
                        "",
                        f"--{role}-rails",
                    )
                )
        return given

    def _opposite(self, role: Role, rails: Sequence[Rail], name: str) -> tuple[Rail, ...]:
        """The other ends of rails that a flag gives."""
        assert self._views is not None  # noqa: S101 - for the type checker
        found = pair.matching(self._views[role], [rail.address for rail in rails])
        if found is None:
            raise InventoryError(
                f"{name} has no address in every subnet of --{other(role)}-rails: give "
                f"--{role}-rails too"
            )
        return tuple(Rail(rail.interface, rail.address, rail.how) for rail in found)

    def _incumbent(self, names: Mapping[Role, str]) -> pair.Incumbent:
        if not self._views:
            return pair.Incumbent(Found(FALLBACK, ""), None, (), ())
        hostvars = {names["head"]: self._defaults}
        return pair.incumbent(
            self._views,
            names,
            pair_variables.catalog_of(names["head"], hostvars),
            self._options.wanted,
            pair.units_of_engines(self._defaults["tensorfold_service_engines"]),
        )

    def _exposure(self, names: Mapping[Role, str]) -> Found | None:
        """Who may use the API of an engine that serves already."""
        if not self._views:
            return None
        port = int(self._defaults["tensorfold_service_port"])
        model = str(self._defaults["tensorfold_service_served_name"])
        return pair.exposure(self._views, names, port, model)

    def _is_elsewhere(self, url: str) -> bool:
        """Whether the recipe was cloned from another repository than the default one."""
        return not pair.same_repository(url, str(self._defaults["tensorfold_service_recipe_url"]))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _management_words(management: Mapping[str, Any]) -> str:
    if not management["interface"]:
        return "which interface carries it could not be told"
    wireless = ", which is wireless: a cable is safer" if management["wireless"] else ""
    if management["how"].startswith("carries"):
        return f"on {management['interface']}{wireless}"
    own = management["address"] or "no address"
    return f"the default route's interface is {management['interface']} with {own}{wireless}"


def _ask_at_terminal(question: str, default: str, flag: str) -> str:
    hint = f" [{default}]" if default else ""
    return input(f"{question}{hint}: ").strip() or default


def _ask_nobody(question: str, default: str, flag: str) -> str:
    if default or not flag:
        return default
    raise InventoryError(f"not given, and there is no terminal to ask at: {question} ({flag})")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make inventory",
        description="Write inventory/local for your two machines. They are looked at over ssh when "
        "both are given as LOGIN@ADDRESS; flags win over what was found. What is then still "
        "missing is asked for.",
    )
    for role in ROLES:
        group = parser.add_argument_group(role)
        group.add_argument(
            f"--{role}",
            metavar="LOGIN@ADDRESS[:PORT]",
            help="ssh target; a bare name is only the host's name and is not looked at",
        )
        group.add_argument(f"--{role}-name", help="host name (default: what it calls itself)")
        group.add_argument(f"--{role}-address", help="management address (default: the name)")
        group.add_argument(f"--{role}-login", help="account that Ansible logs in with")
        group.add_argument(f"--{role}-user", help="account that runs the servers")
        group.add_argument(f"--{role}-home", help="its home directory")
        group.add_argument(
            f"--{role}-rails",
            metavar="ADDRESS/PREFIX,…",
            help="addresses of the CX7 interfaces, as INTERFACE=ADDRESS/PREFIX or without a name",
        )
        group.add_argument(
            f"--{role}-cable",
            metavar="INTERFACE",
            help="an interface of the port with the cable, when it cannot be told",
        )
    ssh = parser.add_argument_group("how the machines are reached (kept in the inventory)")
    ssh.add_argument("--private-key", default="", help="ssh key, as for ansible-playbook")
    ssh.add_argument("--ssh-common-args", default="", help="as for ansible-playbook")
    ssh.add_argument(
        "--ask-become-pass", action="store_true", help="ask for the password of sudo (not kept)"
    )
    parser.add_argument("--no-discover", action="store_true", help="look at nothing, only write")
    parser.add_argument("--recipe-commit", help="commit of the recipe (may be filled in later)")
    parser.add_argument(
        "--api",
        choices=API_CHOICES,
        help="who may use the engine's API: everybody who reaches the port, or whoever has the key "
        "(may be filled in later)",
    )
    parser.add_argument("--wanted", default="deepseek", help="server that the pair should run")
    parser.add_argument("--fallback", help=f"server to go back to, or {NONE}")
    parser.add_argument("--output", type=Path, default=ROOT / "inventory/local")
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m spark_pair.inventory`."""
    options = _parser().parse_args(argv)
    ask = _ask_at_terminal if sys.stdin.isatty() else _ask_nobody
    try:
        defaults = default_variables()
        if not options.force:  # before anybody is asked anything
            refuse_to_replace(options.output, FILES)
        targets = targets_of(options)
        views = discovered(options, targets)
        answers = Gathering(options, ask, targets, views, defaults).answers()
        check(answers, defaults)
        written = write(options.output, files(answers), force=options.force)
    except SparkPairError as error:
        print(f"inventory: {error}", file=sys.stderr)
        return int(error.exit)
    except (EOFError, KeyboardInterrupt):
        print("\ninventory: nothing was written", file=sys.stderr)
        return 130
    _tell(answers, written)
    return 0


def _tell(answers: Answers, written: Sequence[Path]) -> None:
    print("Written, please review:")
    for path in written:
        print(f"  {path}")
    for words in (*answers.recipe_remarks, *answers.server_warnings):
        print(f"  ! {words}")
    if not answers.commit:
        print(
            "Still to fill in: tensorfold_service_recipe_commit in group_vars/spark_pair/engine.yml"
        )
    if answers.api != "open":
        which = (
            "tensorfold_service_api_key (in a vault)"
            if answers.api
            else "tensorfold_service_api_key (in a vault) or tensorfold_service_api_open"
        )
        print(f"Still to fill in: {which} in group_vars/spark_pair")
    print("Then: ansible-playbook site.yml -l spark_pair --tags preflight")


if __name__ == "__main__":
    sys.exit(main())
