"""Which kind of file system a folder lies on, and whether that is a disk of this machine.

Host side, standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

_OVER_A_NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre",
        "beegfs", "gpfs", "ocfs2", "ncpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
        "fuse.s3fs", "fuse.rclone", "fuse.juicefs",
    }
)  # fmt: skip
_ESCAPED = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}
_LINKS_LOOKED_AT = 256


def over_a_network(kind: str) -> bool:
    """Whether a file system of that kind is read from another machine."""
    return kind in _OVER_A_NETWORK


def kinds(paths: Iterable[str], root: Path = Path("/")) -> dict[str, str | None]:
    """For each folder the kind of its file system; None where that cannot be told.

    A folder counts as read over the network as soon as one of the files that its links lead to is:
    a Hugging Face snapshot holds nothing but links.
    """
    try:
        mounts = _mounts((root / "proc/self/mountinfo").read_text(encoding="utf-8"))
    except OSError:
        return dict.fromkeys(paths)
    return {path: _kind(path, mounts) for path in paths}


def _mounts(text: str) -> list[tuple[str, str]]:
    """Mount points and kinds, in the order in which they were mounted."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split()
        if dash and len(fields) > 4 and after.split():
            point = fields[4]
            for code, char in _ESCAPED.items():
                point = point.replace(code, char)
            found.append((point, after.split()[0]))
    return found


def _kind(path: str, mounts: list[tuple[str, str]]) -> str | None:
    found = [_kind_of_one(os.path.realpath(place), mounts) for place in [path, *_links_in(path)]]
    remote = [kind for kind in found if kind is not None and over_a_network(kind)]
    return remote[0] if remote else found[0]


def _links_in(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            links = (entry.path for entry in entries if entry.is_symlink())
            return list(islice(links, _LINKS_LOOKED_AT))
    except OSError:
        return []


def _kind_of_one(path: str, mounts: list[tuple[str, str]]) -> str | None:
    best: tuple[str, str] | None = None
    for point, kind in mounts:
        below = f"{path}/".startswith(f"{point.rstrip('/')}/")
        # The later one of two on the same place hides the earlier one.
        if below and (best is None or len(point) >= len(best[0])):
            best = (point, kind)
    return best[1] if best else None
