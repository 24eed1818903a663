"""What action plugins read about both hosts of a pair from Ansible's variables. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from .ansible_words import why_not
from .description import Role


def speaker(pair: Mapping[Role, str], in_play: Collection[str]) -> str | None:
    """The host that speaks for its pair: every host knows the same, so the first one in the run."""
    return next((name for name in pair.values() if name in in_play), None)


def registered(hostvars: Mapping[str, Any], host: str, register: str) -> dict[str, Any]:
    """What a task registered on a host; {} when it did not run there."""
    try:
        return dict(hostvars[host][register])
    except (KeyError, TypeError):
        return {}


def seen(
    pair: Mapping[Role, str],
    hostvars: Mapping[str, Any],
    register: str,
    absences: Mapping[str, str],
) -> tuple[dict[Role, dict[str, Any]], list[str]]:
    """What spark_pair_weights_look saw, by role, and a sentence about each host not looked at."""
    found: dict[Role, dict[str, Any]] = {}
    missing: list[str] = []
    for role, host in pair.items():
        looked = registered(hostvars, host, register)
        if host in absences:
            missing.append(absences[host])
        elif "seen" in looked:
            found[role] = dict(looked["seen"])
        else:
            missing.append(f"{host} cannot be looked at: {why_not(looked)}")
    return found, missing


@dataclass(frozen=True)
class Pair:
    """A pair as one of its hosts knows it, with what both were seen to hold."""

    host: str
    """The one that knows it."""
    names: Mapping[Role, str]
    hostvars: Mapping[str, Any]
    seens: Mapping[Role, Mapping[str, Any]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """What is wrong with the variables, or why there is no pair."""
    missing: tuple[str, ...] = ()
    """A sentence about each host that was not looked at."""


def known(task_vars: Mapping[str, Any], gate: str, looked: str) -> Pair:
    """What every host of a pair knows of both; `gate` and `looked` name the registered results of
    the gate and of the look."""
    host, hostvars = str(task_vars["inventory_hostname"]), task_vars["hostvars"]
    told = task_vars[gate]
    names: dict[Role, str] = dict(told["pair"])
    absences = dict(told["absences"])
    found = [*told["input_problems"], *(absences.values() if not names else ())]
    seens, missing = seen(names, hostvars, looked, absences)
    return Pair(host, names, hostvars, seens, tuple(map(str, found)), tuple(missing))


def spoken_for(task_vars: Mapping[str, Any], gate: str, looked: str) -> Pair | None:
    """The same for the host that speaks for its pair; None on the other one, which has nothing to
    do. Without a pair every host speaks for itself."""
    names: dict[Role, str] = dict(task_vars[gate]["pair"])
    if names and task_vars["inventory_hostname"] != speaker(names, task_vars["ansible_play_hosts"]):
        return None
    return known(task_vars, gate, looked)
