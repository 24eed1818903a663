"""Which variables the roles of this repository know, for refusing misspelt ones.

Controller side; needs PyYAML, which comes with Ansible.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

# Every stage asks for this; libyaml, where PyYAML has it, reads ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _load(path: Path) -> Any:
    if not path.is_file():
        return None
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe one


@functools.cache
def role_prefixes(root: Path) -> tuple[str, ...]:
    """`model_server_`, `host_tools_` … for every role there is."""
    roles = (f"{path.name}_" for path in (root / "roles").iterdir() if path.is_dir())
    return tuple(sorted(roles))


@functools.cache
def known_variables(root: Path) -> frozenset[str]:
    """Every variable that a role documents or that has a default."""
    known: set[str] = set()
    for role in (root / "roles").iterdir():
        specs = _load(role / "meta/argument_specs.yml") or {}
        for entry in specs.get("argument_specs", {}).values():
            known |= set(entry.get("options", {}))
        known |= set(_load(role / "defaults/main.yml") or {})
    for file in sorted((root / "group_vars/all").glob("*.yml")):
        known |= set(_load(file) or {})
    return frozenset(known)
