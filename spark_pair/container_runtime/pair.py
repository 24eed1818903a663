"""A restart of Docker is the matter of both hosts of a pair: who needs one, who would suffer.

Told on the controller from what both hosts have said in a run (registered results).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import description as descriptions
from .. import pair_variables
from ..description import ROLES
from ..rails import plan

HostVariables = Mapping[str, Mapping[str, Any]]


def restarts(hostvars: HostVariables, host: str) -> list[str]:
    """Hosts of this host's pair whose Docker has to be restarted."""
    registers = ("__container_runtime_found", "__container_runtime_proof")
    return [
        name
        for name in pair_variables.pair_of(host, hostvars).values()
        if any(_result(hostvars, name, register).get("restart") for register in registers)
    ]


def told(hostvars: HostVariables, host: str) -> dict[str, list[str]]:
    """What both hosts have told: servers that are not plainly down, and switches at work."""
    names = pair_variables.pair_of(host, hostvars)
    seen = {role: _result(hostvars, names[role], "__container_runtime_observed") for role in ROLES}
    switches = [_result(hostvars, names[role], "__container_runtime_switch") for role in ROLES]
    data = next((one["description"] for one in seen.values() if one.get("description")), None)
    serving = plan.running(
        descriptions.parse(data) if data else None,
        {role: one.get("view") for role, one in seen.items()},
        {role: [] for role in ROLES},
        names,
    )
    switching = [
        str(words)
        for role, one in zip(ROLES, switches, strict=True)
        for words in one.get("switching", [f"{names[role]} does not tell about a switch"])
    ]
    return {"serving": serving, "switching": switching}


def _result(hostvars: HostVariables, host: str, register: str) -> dict[str, Any]:
    try:
        return dict(hostvars[host][register])
    except (KeyError, TypeError):
        return {}
