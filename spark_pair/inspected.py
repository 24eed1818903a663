"""What `docker container inspect` says of a container. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEVICES = "NVIDIA_VISIBLE_DEVICES"


def uses_gpu(inspected: Mapping[str, Any]) -> bool:
    """Whether a container was made with a GPU: by runtime, `--gpus` or a CDI device."""
    host = inspected["HostConfig"]
    asked = any(
        request.get("Driver") in ("nvidia", "cdi")
        or any("gpu" in group for group in request.get("Capabilities") or [])
        for request in host.get("DeviceRequests") or []
    )
    # With nvidia as Docker's default runtime every container has that runtime.
    return asked or (host.get("Runtime") == "nvidia" and _sees_devices(inspected))


def _sees_devices(inspected: Mapping[str, Any]) -> bool:
    """Whether a container's environment asks the NVIDIA runtime for a GPU."""
    settings = (inspected.get("Config") or {}).get("Env") or []
    values = [one.partition("=")[2] for one in settings if one.startswith(f"{_DEVICES}=")]
    return bool(values) and values[-1] not in ("", "void", "none")


def restart_policy(inspected: Mapping[str, Any]) -> str:
    """Name of its restart policy, `no` without one."""
    return (inspected["HostConfig"].get("RestartPolicy") or {}).get("Name") or "no"
