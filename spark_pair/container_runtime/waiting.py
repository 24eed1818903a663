"""Containers with a GPU that a stopped Docker would start again by itself.

Read from Docker's own files, since a stopped daemon cannot be asked. Started while another server
has the GPU, such a container takes its memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from .daemon_json import RUNTIME, RefusedError
from .docker import DEFAULT_FILE, Host

DATA_ROOT = "/var/lib/docker"
_CONTAINERS = 500
_BYTES = 1 << 20


def returns(settings: Mapping[str, Any]) -> bool:
    """Whether Docker starts a container with this hostconfig.json when it starts itself."""
    policy = settings.get("RestartPolicy")
    name = policy.get("Name") if isinstance(policy, dict) else None
    return name not in (None, "", "no")


def has_gpu(settings: Mapping[str, Any]) -> bool:
    """Whether a container with this hostconfig.json gets a GPU."""
    if settings.get("Runtime") == RUNTIME:
        return True
    asked = [one for one in settings.get("DeviceRequests") or [] if isinstance(one, dict)]
    devices = [one for one in settings.get("Devices") or [] if isinstance(one, dict)]
    return any(
        one.get("Driver") == RUNTIME
        or "gpu" in str(one.get("Capabilities"))
        or "nvidia" in str(one.get("DeviceIDs"))
        for one in asked
    ) or any("/dev/nvidia" in str(one.get("PathOnHost")) for one in devices)


def require_none(host: Host) -> None:
    """RefusedError naming the containers that would come back onto the GPU."""
    found = _found(host)
    if found:
        raise RefusedError(
            f"Docker on {host.name} is stopped, and started it would bring back onto the GPU: "
            f"{', '.join(found)}. Run 'sudo systemctl start docker' there yourself when no other "
            "server needs the GPU, and then 'docker update --restart no' on what shall not return."
        )


def _found(host: Host) -> list[str]:
    folder = host.root / _data_root(host).lstrip("/") / "containers"
    try:
        places = list(islice(folder.iterdir(), _CONTAINERS + 1))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"containers that cannot be listed ({error})"]
    found = []
    for place in sorted(places)[:_CONTAINERS]:
        try:
            settings = _read(place / "hostconfig.json")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            found.append(f"{_name(place)} (its settings cannot be read: {error})")
            continue
        if returns(settings) and has_gpu(settings):
            found.append(_name(place))
    if len(places) > _CONTAINERS:
        found.append(f"perhaps others (more than {_CONTAINERS} containers)")
    return found


def _name(place: Path) -> str:
    try:
        name = _read(place / "config.v2.json").get("Name")
    except (OSError, ValueError):
        name = None
    return name.lstrip("/") if isinstance(name, str) and name else place.name[:12]


def _data_root(host: Host) -> str:
    try:
        named = _read(host.root / DEFAULT_FILE.lstrip("/")).get("data-root")
    except (OSError, ValueError):
        named = None
    return named if isinstance(named, str) and named.startswith("/") else DATA_ROOT


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        data = stream.read(_BYTES + 1)
    if len(data) > _BYTES:
        raise ValueError("it is too large")
    found = json.loads(data.decode("utf-8-sig"))
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
