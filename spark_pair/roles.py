"""Which variables the roles of this repository know, for refusing misspelt ones.

Controller side; needs PyYAML, which comes with Ansible.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None


_STEPS = ("ablit_graft_", "rank_files_")
"""Steps on the weights that the plan counts with, and that no role of their own does yet."""


@functools.cache
def role_prefixes(root: Path) -> tuple[str, ...]:
    """`model_server_`, `host_tools_` … for every role there is, and for steps without one."""
    roles = (f"{path.name}_" for path in (root / "roles").iterdir() if path.is_dir())
    return tuple(sorted({*roles, *_STEPS}))


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
