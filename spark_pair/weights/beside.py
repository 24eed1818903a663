"""What else goes on at a host when work on its weights is about to begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..container_runtime.docker import Host
from ..errors import SparkPairError
from ..jobs.commands import told
from ..jobs.units import Jobs
from ..observing import observed


def beside(asked: Mapping[str, Any], *, jobs: Jobs | None = None) -> dict[str, Any]:
    """Who serves, whether a switch is at work and how a job is, read once.

    Asked with `description` and `role` of the host, its name as `host`, and the name of a `job`,
    which may be empty. Never raises for what it finds.
    """
    found = observed(asked["description"], asked["role"])
    return {
        "description": found["description"],
        "view": found["view"],
        "switching": Host(asked["host"]).switching(),
        "job": _job(asked["job"], jobs or Jobs()) if asked["job"] else {},
    }


def _job(name: str, jobs: Jobs) -> dict[str, Any]:
    try:
        return told(jobs.look(name))
    except (SparkPairError, OSError):
        return {}  # then whoever starts it says why
