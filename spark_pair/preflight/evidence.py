"""The record of one preflight: what was measured where, what it was taken for, by which rule."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..description import Role
from ..findings import Finding, failures
from ..findings_table import verdict
from .judge import Seen

SCHEMA = 1


def document(
    pair: Mapping[Role, str],
    seen: Mapping[Role, Seen],
    findings: Sequence[Finding],
    accepted: Collection[str],
    at: datetime,
) -> dict[str, Any]:
    """Plain data of the whole run. Measurements hold no secret: see collect."""
    return {
        "schema": SCHEMA,
        "kind": "preflight",
        "pair": name_of(pair),
        "at": at.astimezone(UTC).isoformat(timespec="seconds"),
        "accepted": sorted(accepted),
        "verdict": "fail" if failures(findings, accepted) else "pass",
        "findings": [
            {**found.as_dict(), "verdict": verdict(found, accepted)} for found in findings
        ],
        "hosts": {
            host: {
                "role": role,
                "absence": seen[role].absence or seen[role].failure,
                "measured": dict(seen[role].measured or {}),
                "unread": dict(seen[role].unread),
            }
            for role, host in pair.items()
        },
    }


def name_of(pair: Mapping[Role, str]) -> str:
    """Name of the pair, as in its description."""
    return "+".join(pair[role] for role in ("head", "worker") if role in pair)


def write(folder: Path, content: Mapping[str, Any], at: datetime) -> Path:
    """Write one file for this run below `folder`/<pair>; an earlier one is never replaced.

    Raises OSError when the folder cannot be written to.
    """
    place = folder / str(content["pair"])
    place.mkdir(parents=True, exist_ok=True)
    stamp = at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    for number in range(1, 100):
        path = place / (f"{stamp}.json" if number == 1 else f"{stamp}-{number}.json")
        try:
            with path.open("x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{place / stamp}.json and its successors exist")
