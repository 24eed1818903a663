"""JSON files that are either the old or the new content, never half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def read(path: Path) -> Any | None:
    """Return the parsed file, or None when there is none or it cannot be parsed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


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
