"""Filter that tells preflight what to look at on a host."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair.preflight import asked  # noqa: E402 - needs the path above


def preflight_asked(
    hostvars: Mapping[str, Mapping[str, Any]], host: str, gate: Mapping[str, Any]
) -> dict[str, Any]:
    """What is to be measured on `host`; `gate` is the result of spark_pair_gate."""
    made = asked.of_host(host, hostvars, gate["pair"], gate["description"], gate["absences"])
    # Plain JSON types only: what is sent must not depend on the types of the template engine.
    plain: dict[str, Any] = json.loads(json.dumps(made))
    return plain


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"spark_pair_preflight_asked": preflight_asked}
