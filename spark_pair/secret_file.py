"""A file that holds a secret, written in place and never readable by others. Standard library.

In place, because a container that was given this very file keeps it as it was opened: a new file
under the old name would never be seen by the server that runs.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import SparkPairError

MODE = 0o600
_MOST = 1 << 20


class SecretFileError(SparkPairError):
    """The file cannot be used; the message never holds what is in it."""


def is_as_wanted(path: Path, content: str) -> bool:
    """Whether the file holds `content`, belongs to this account and is closed to others."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        if os.path.lexists(path) and not path.is_symlink() and isinstance(error, PermissionError):
            return False  # its own mode can be mended
        raise SecretFileError(f"{path} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        _must_be_a_file(path, status)
        closed = stat.S_IMODE(status.st_mode) == MODE and status.st_uid == os.geteuid()
        return closed and os.read(handle, _MOST) == content.encode()
    finally:
        os.close(handle)


def write(path: Path, content: str) -> bool:
    """Make it so; whether anything was changed. Folders that are missing are made for the owner.

    Raises SecretFileError when something else is there, or when this account may not write it.
    """
    if is_as_wanted(path, content):
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and not path.is_symlink():
            path.chmod(MODE)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, MODE)
    except OSError as error:
        raise SecretFileError(f"{path} cannot be written: {error.strerror}") from error
    try:
        _must_be_a_file(path, os.fstat(handle))
        os.fchmod(handle, MODE)
        data = content.encode()
        # Never empty in between: whoever reads meanwhile would find no key at all.
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    except OSError as error:
        raise SecretFileError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        os.close(handle)
    return True


def _must_be_a_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SecretFileError(f"{path} is no plain file: move it away, then run again")
