"""Symbolic links that lead somewhere at every moment."""

from __future__ import annotations

from pathlib import Path


def flip(link: Path, target: Path) -> None:
    """Point a link somewhere else in one rename; nothing is done when it leads there already."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() == target:
        return
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
