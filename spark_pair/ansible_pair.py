"""What action plugins read about both hosts of a pair from Ansible's variables. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
