"""JSON files that are either the old or the new content, never half of one."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any


def read(path: Path) -> Any | None:
    """Return the parsed file, or None when there is none or it cannot be parsed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def content(path: Path, most_bytes: int) -> bytes:
    """Read a file of a folder that another account may write to.

    No link is followed, nothing waited for, and no more read than is sensible: raises OSError for
    whatever is no regular file of at most that size.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, "is far too large", str(path))
        return stream.read(most_bytes)


def read_guarded(path: Path, most_bytes: int = 64 << 20) -> Any | None:
    """The same as `read` for such a file; None also when it is none that we would have written."""
    try:
        return json.loads(content(path, most_bytes))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.ENXIO, errno.EISDIR):
            return None
        raise


def write(path: Path, data: Any, mode: int = 0o644, *, flush: bool = True) -> None:
    """Write `data` beside `path`, flush it to disk, rename it into place.

    Without `flush` nobody waits for a busy disk, and a power cut may cost the new content.
    Raises OSError when the disk refuses; the old file is then still whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(data, stream, indent=1, sort_keys=True)
            stream.write("\n")
            # By handle: in a folder of another account the name may lead elsewhere by now.
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            if flush:
                os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
