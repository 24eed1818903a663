"""One host of a pair as it tells about itself: its description, who serves, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import description as descriptions
from . import follow, hostview, jsonfile, paths
from .errors import SparkPairError


def observed(given: Mapping[str, Any], role: descriptions.Role) -> dict[str, Any]:
    """What this host looks like by the description that is on it, or by the one that is given.

    Asks servers whose API is here for one short completion. `problem` says why there is no view.
    """
    seen: dict[str, Any] = dict.fromkeys(("description", "problem", "view", "state", "last_switch"))
    kept = jsonfile.read(paths.DESCRIPTION)
    data = kept or given
    if not data:
        return seen
    try:
        parsed = descriptions.parse(data)
    except SparkPairError as error:
        seen["problem"] = str(error)
        return seen
    here = parsed.me if kept else role
    seen["description"] = data
    seen["view"] = hostview.observe(parsed, here, ask=True)
    if here == "head":
        history = follow.history(paths.JOURNAL, 1)
        seen["state"] = jsonfile.read(paths.STATE)
        seen["last_switch"] = history[-1] if history else None
    return seen
