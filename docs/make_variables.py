#!/usr/bin/env python3
"""Write docs/variables.md from the roles' argument specs and the defaults in group_vars/all.

A page that is written by hand goes stale; a unit test compares this one with what is in the tree.
Usage: python docs/make_variables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/variables.md"

TEMPLATE = """\
# Variables

Written by `docs/make_variables.py`; do not edit. Defaults that several roles share, with the
reasons for them, stand in `group_vars/all/`; override them in
`inventory/<yours>/group_vars/spark_pair/`. A misspelt variable is refused with the nearest name.

Of each host, in the inventory: `ansible_host` (management address), `pair_peer`, `spark_user`,
`spark_home`, `cx7_network_rails` (interface and address with prefix of each rail). `pair_role`
comes from the groups `spark_head` and `spark_worker`.
{% for role in roles %}
## {{ role.name }}

{{ role.summary }}

| variable | type | default | meaning |
|---|---|---|---|
{% for row in role.rows -%}
| `{{ row.name }}` | {{ row.type }} | {{ row.default }} | {{ row.meaning }} |
{% endfor -%}
{% endfor %}"""

_OF_THE_HOST = ("spark_user", "spark_home", "pair_role", "pair_peer", "cx7_network_rails")


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "roles").glob("*/defaults/main.yml")):
        found |= _yaml(path) or {}
    for path in sorted((ROOT / "group_vars/all").glob("*.yml")):
        found |= _yaml(path) or {}
    return found


def _default(name: str, option: dict[str, Any], defaults: dict[str, Any]) -> str:
    if name not in defaults and "default" not in option:
        return "none: yours to set" if option.get("required") else ""
    value = defaults.get(name, option.get("default"))
    plain = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(value, dict | list) and value and not plain:
        return "see `group_vars/all`"
    shown = json.dumps(value).replace("|", "\\|")  # else the end of a cell
    return f"`{shown}`" if value not in ("", None) else "empty"


def _text(description: Any) -> str:
    parts = description if isinstance(description, list) else [description]
    return " ".join(str(part).strip() for part in parts).replace("|", "\\|").replace("\n", " ")


def page() -> str:
    """The whole page."""
    defaults = _defaults()
    roles = []
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        entries = _yaml(path)["argument_specs"]
        name = path.parents[1].name
        options: dict[str, Any] = {}
        for entry in entries.values():
            options |= entry.get("options", {})
        rows = [
            {
                "name": key,
                "type": option.get("type", "str"),
                "default": _default(key, option, defaults),
                "meaning": _text(option.get("description", "")),
            }
            for key, option in sorted(options.items())
            if key not in _OF_THE_HOST
        ]
        summary = _text(entries["main"].get("short_description", ""))
        roles.append({"name": name, "summary": f"{summary}.", "rows": rows})
    environment = jinja2.Environment(keep_trailing_newline=True, autoescape=False)  # noqa: S701
    return environment.from_string(TEMPLATE).render(roles=[r for r in roles if r["rows"]])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
