#!/usr/bin/env python3
"""Write the table of engine variables in docs/engine.md: each with its default and its reason.

The reasons are the comments of group_vars/all/engine.yml, which stand where the values are changed;
what has no default there is told by the roles' argument specs. A unit test compares the page with
what is in the tree. Usage: python docs/make_engine_table.py
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/engine.md"
VARIABLES = ROOT / "group_vars/all/engine.yml"
ROLES = ("tensorfold_service", "engine_image")
sys.path[:0] = [str(ROOT)]

from spark_pair import engine_settings  # noqa: E402 - needs the path above

_MARKED = re.compile(
    r"(<!-- engine variables -->\n).*?(<!-- end of engine variables -->)", re.DOTALL
)
_NOT_A_VARIABLE = (
    "`WAIT_TIMEOUT` is always written to `local.sh` too, and has no variable of its own: it is the",
    "`ready_timeout` (seconds) of the server's entry in `model_server_catalog`, so that the recipe",
    "waits for its engine no longer than the switch does.",
)
_PASSED = re.compile(r"loop_var: ([a-z][a-z0-9_]*)")
_NAMED = re.compile(r"([a-z][a-z0-9_]*):")


def _reasons() -> Iterator[tuple[str, str]]:
    """Each variable with the comment above it; of several below one, only the first has it."""
    comment: list[str] = []
    for line in VARIABLES.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        elif found := _NAMED.match(line):
            yield found[1], " ".join(comment)
            comment = []
        elif not line:
            comment = []


def _passed() -> set[str]:
    """Variables that tasks give to the tasks which they include; nobody else sets them."""
    found: set[str] = set()
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml")]:
        found |= set(_PASSED.findall(path.read_text(encoding="utf-8")))
        for task in yaml.safe_load(path.read_text(encoding="utf-8")) or ():
            found |= set(task.get("vars", ()))
    return found


def _specified() -> Iterator[tuple[str, str]]:
    """Variables that the roles document for an operator, with what they say."""
    passed = _passed()
    for role in ROLES:
        path = ROOT / "roles" / role / "meta/argument_specs.yml"
        entries = yaml.safe_load(path.read_text())["argument_specs"] if path.is_file() else {}
        for entry in entries.values():
            for name, option in entry.get("options", {}).items():
                if name.startswith(f"{role}_") and name not in passed:
                    said = option["description"]
                    yield name, " ".join([said] if isinstance(said, str) else said)


def rows() -> dict[str, str]:
    """Variable -> reason, in the order of the file, the others after them."""
    found = dict(_reasons())
    for name, words in _specified():
        found.setdefault(name, words)
    return found


def _in_local_sh(name: str) -> str:
    suffix = name.removeprefix(engine_settings.PREFIX)
    settings = {**engine_settings.SETTINGS, "api_key": "API_KEY", "api_open": "API_KEY"}
    return f"`{settings[suffix]}`" if suffix in settings else ""


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for role in ROLES:
        path = ROOT / "roles" / role / "defaults/main.yml"
        found |= (yaml.safe_load(path.read_text()) or {}) if path.is_file() else {}
    found |= yaml.safe_load(VARIABLES.read_text(encoding="utf-8"))
    return found


def _default(name: str, defaults: dict[str, Any]) -> str:
    if name not in defaults:
        return "none: yours to set"
    value = defaults[name]
    return "empty" if value in ("", None) else f"`{json.dumps(value)}`"


def table() -> str:
    """The table; a cell without a reason belongs to the row above it."""
    defaults = _defaults()
    lines = ["| variable | in `local.sh` | default | reason |", "|---|---|---|---|"]
    for name, reason in rows().items():
        cells = [f"`{name}`", _in_local_sh(name), _default(name, defaults), reason or "as above"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", *_NOT_A_VARIABLE])


def page(text: str) -> str:
    """The page with the table as the tree says now."""
    return _MARKED.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote the table of {PAGE.relative_to(ROOT)}")
