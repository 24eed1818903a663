"""Look at two machines through Ansible, before there is an inventory. Controller side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import jsonfile
from ..description import ROLES, Role, other
from .pair import DiscoveryError, View

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 300.0


@dataclass(frozen=True)
class Target:
    """Where a machine is reached by ssh; empty login and port leave it to ssh's own settings."""

    address: str
    login: str = ""
    port: int | None = None


@dataclass(frozen=True)
class Ssh:
    """How both machines are reached, as options of ansible-playbook."""

    common_args: str = ""
    private_key: str = ""
    ask_become_pass: bool = False

    def options(self) -> list[str]:
        """Words for ansible-playbook."""
        return [
            *([f"--ssh-common-args={self.common_args}"] if self.common_args else []),
            *([f"--private-key={self.private_key}"] if self.private_key else []),
            *(["--ask-become-pass"] if self.ask_become_pass else []),
        ]


def host_names(targets: Mapping[Role, Target]) -> dict[Role, str]:
    """What the machines are called until they have said their own names."""
    addresses = {target.address for target in targets.values()}
    plain = len(addresses) == len(targets) and not any(":" in address for address in addresses)
    return {role: target.address if plain else role for role, target in targets.items()}


def inventory(targets: Mapping[Role, Target]) -> dict[str, Any]:
    """An inventory of the two machines that says no more than how to reach them."""
    names = host_names(targets)
    groups = {}
    for role in ROLES:
        target = targets[role]
        variables: dict[str, Any] = {
            "ansible_host": target.address,
            "pair_peer": names[other(role)],
        }
        if target.login:
            variables["ansible_user"] = target.login
        if target.port is not None:
            variables["ansible_port"] = target.port
        groups[f"spark_{role}"] = {
            "hosts": {names[role]: variables},
            "vars": {"pair_role": role},
        }
    return {"spark_pair": {"children": groups}}


def look(targets: Mapping[Role, Target], ssh: Ssh) -> dict[Role, View]:
    """Run playbooks/discover.yml on both machines; DiscoveryError with the reason if one fails.

    What ansible-playbook prints and asks (host keys, passwords) goes to the terminal.
    """
    names = host_names(targets)
    with tempfile.TemporaryDirectory(prefix="spark-pair-") as folder:
        hosts, output = Path(folder, "hosts.yml"), Path(folder, "found.json")
        hosts.write_text(json.dumps(inventory(targets)), encoding="utf-8")
        command = [
            *(str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(hosts)),
            *("playbooks/discover.yml", "-e", json.dumps({"discover_output": str(output)})),
            *ssh.options(),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DiscoveryError(f"the machines could not be looked at: {error}") from error
        found = jsonfile.read(output)
    if found is None:
        raise DiscoveryError(
            f"the machines could not be looked at: ansible-playbook ended with {done.returncode}, "
            "its words are above"
        )
    if problems := found["problems"]:
        said = [
            _by_ssh(problems[names[role]], targets[role])
            for role in ROLES
            if names[role] in problems
        ]
        raise DiscoveryError(
            f"{' '.join(said)} Nothing was written; with --no-discover nobody is asked, and flags "
            "have to tell it all"
        )
    return {role: found["views"][names[role]] for role in ROLES}


def _by_ssh(words: str, target: Target) -> str:
    """The gate's sentence, with what to try while no inventory knows the machine."""
    said, separator, _ = words.partition(" Try 'ansible ")
    login = f"{target.login}@" if target.login else ""
    port = f" -p {target.port}" if target.port is not None else ""
    try_this = f" Try 'ssh{port} {login}{target.address}' by hand." if separator else ""
    return f"{said.rstrip('.')}.{try_this}"
