"""The store of payloads that all repositories of a cache use together.

The hub's own client keeps it: `blobs/ab/<hash>` is a payload, `<hash>.refs` beside it lists the
blobs that are links to it, and `<hash>.lock` is held by whoever changes either. As the client does,
a list that is missing or cannot be read is never a reason to delete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from .. import jsonfile
from ..errors import SparkPairError

LOCK_SECONDS = 30.0
"""The client holds a lock for as long as it takes to make a link."""
_MARKER = ".huggingface-shared-blobs"
_LAYOUT = "1\n"
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 16 << 20


class StoreBusyError(SparkPairError):
    """Another process holds a payload of the store."""


def is_payload(root: Path, path: Path) -> bool:
    """Whether a real path is a payload of the store of the cache `root` (its links followed)."""
    store = Path(os.path.realpath(root)) / "blobs"
    if path.parent.parent != store or not _HASH.fullmatch(path.name):
        return False
    return path.parent.name == path.name[:2] and _is_marked(store)


def users(root: Path, payload: Path) -> frozenset[Path] | None:
    """The blobs of repositories that are links to a payload now; None when nobody can say."""
    hub = Path(os.path.realpath(root))
    try:
        lines = jsonfile.content(_beside(payload, ".refs"), _MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeError):
        return None
    found = set()
    for line in lines:
        parts = Path(line).parts
        if len(parts) != 3 or parts[1] != "blobs" or ".." in parts or parts[0] == "/":
            continue
        blob = hub.joinpath(*parts)
        if blob.is_symlink() and Path(os.path.realpath(blob)) == payload:
            found.add(blob)
    return frozenset(found)


@contextlib.contextmanager
def held(payload: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Keep the hub's client away from a payload. Raises StoreBusyError, OSError."""
    path = _beside(payload, ".lock")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        with contextlib.suppress(OSError):  # made by another account, which may use it as well
            os.fchmod(handle, 0o666)
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise StoreBusyError(
                        f"{payload} has been held by another process for {seconds:.0f} s: wait "
                        "until nothing is downloaded there, then run it again"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def remove(payload: Path) -> None:
    """Delete a payload and its list of users; only while it is `held`, and nobody uses it."""
    payload.unlink(missing_ok=True)
    _beside(payload, ".refs").unlink(missing_ok=True)


def _is_marked(store: Path) -> bool:
    try:
        marker = store / _MARKER
        return (
            stat.S_ISREG(marker.lstat().st_mode) and marker.read_text(encoding="ascii") == _LAYOUT
        )
    except (OSError, UnicodeError):
        return False


def _beside(payload: Path, ending: str) -> Path:
    return payload.with_name(payload.name + ending)
