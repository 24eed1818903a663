"""Is what was found on a host a known server's? Pure.

A server that serves holds memory, a GPU and a port: that is information. The same held by anybody
else is a reason to stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..description import Server
from .checks import Sight

Owner = Mapping[str, str]

_DOCKER = "docker.service"


def runs_here(server: Server, sight: Sight) -> bool:
    """Whether a part of the server runs on this host. Needs `units` and `containers`.

    A unit of type oneshot stays active when its ranks have died, so ranks decide where there are
    any.
    """
    ranks = server.ranks_on(sight.role)
    if ranks:
        return any(one["running"] and one["name"] in ranks for one in sight["containers"])
    return any(
        sight["units"].get(unit) in ("active", "activating") for unit in server.units_on(sight.role)
    )


def running(sight: Sight) -> list[str]:
    """Names of the known servers of which a part runs on this host."""
    return [server.name for server in sight.servers() if runs_here(server, sight)]


def container_name(owner: Owner, sight: Sight) -> str:
    """Name of the container that owns a process, its id when Docker does not know it, or ""."""
    identity = owner.get("container", "")
    names = [one["name"] for one in sight["containers"] if one["id"] == identity]
    return str(names[0]) if names else identity


def belongs(owner: Owner, server: Server, sight: Sight) -> bool:
    """Whether a process is a part of the server. Needs `units` and `containers`.

    A unit may start its server in a container whose name the catalogue does not know: then a
    container counts as the server's while that unit is active.
    """
    ranks = server.ranks_on(sight.role)
    if owner.get("unit") == _DOCKER:
        # Docker's proxy listens for a container that publishes its port.
        return not ranks and runs_here(server, sight)
    if owner.get("unit"):
        keepers = [keeper.unit for keeper in server.keepers if keeper.host == sight.role]
        return owner["unit"] in (*server.units_on(sight.role), *keepers)
    if owner.get("container"):
        if ranks:
            return container_name(owner, sight) in ranks
        return runs_here(server, sight)
    return False


def known(owner: Owner, sight: Sight) -> bool:
    """Whether a process is a part of any known server."""
    return any(belongs(owner, server, sight) for server in sight.servers())


def who(process: Mapping[str, Any], sight: Sight) -> str:
    """A process in words: its name, id, and the unit or container it belongs to."""
    owner = process["owner"]
    place = owner.get("unit") or container_name(owner, sight)
    name = process["name"] or "a process"
    number = f" (pid {process['pid']})" if process["pid"] else ""
    return f"{name}{number}" + (f" of {place}" if place else "")
