"""Filters about a restart of Docker, which is the matter of both hosts of a pair."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair.container_runtime import pair  # noqa: E402 - needs the path above


class FilterModule:
    """Registers the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {
            "spark_pair_docker_restarts": pair.restarts,
            "spark_pair_docker_pair": pair.told,
        }
