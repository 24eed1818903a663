"""Reading files below a root, so that a tree of fixtures can stand in for a machine."""

from __future__ import annotations

from pathlib import Path

Unread = dict[str, str]
"""What could not be read -> why. Whatever stands here is unknown, never "not there"."""


def text(path: Path, limit: int = 65536) -> str | None:
    """The first `limit` bytes of a small file without outer blanks; None when it is unreadable."""
    try:
        with path.open("rb") as stream:
            return stream.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return None


def inside(root: Path, path: str) -> Path:
    """An absolute path of the host as it is called below `root`."""
    return root / path.lstrip("/")


def names(folder: Path) -> list[str]:
    """Sorted names in a folder; empty when there is none or it cannot be listed."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
