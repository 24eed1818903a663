"""API keys: where they come from, and whether a caller has one."""

from __future__ import annotations

import hmac
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from tensorfold_standin.options import StartError

MAX_BYTES = 1 << 20
RELOAD_SECONDS = 1.0


def read_key_file(path: Path) -> frozenset[str]:
    """Keys of a file of ``label: key`` lines. Raises :class:`StartError`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o044:
            raise StartError(
                "API key file must be a regular file unreadable by other users; use chmod 600"
            )
        if status.st_size > MAX_BYTES:
            raise StartError("API key file is larger than 1 MiB")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StartError(f"API key file cannot be read: {error.strerror}") from error
    keys = {
        line.partition(":")[2].strip() for line in lines if line.strip() and line.strip()[0] != "#"
    }
    keys.discard("")
    if not keys:
        raise StartError("API key file contains no keys")
    return frozenset(keys)


class Keys:
    """The keys in force. A file is read again within a second of a change; a bad one closes."""

    def __init__(self, fixed: Iterable[str], file: Path | None) -> None:
        """Raises :class:`StartError` for an unusable key file."""
        self._fixed = frozenset(fixed)
        self._file = file
        self._from_file = read_key_file(file) if file else frozenset[str]()
        self._checked = time.monotonic()

    @property
    def required(self) -> bool:
        """Whether callers need a key at all."""
        return bool(self._fixed) or self._file is not None

    def accepts(self, authorization: str, x_api_key: str) -> bool:
        """Whether one of the two headers carries a key."""
        self._reload()
        given = authorization.removeprefix("Bearer ").strip() or x_api_key.strip()
        return any(hmac.compare_digest(given, key) for key in self._fixed | self._from_file)

    def _reload(self) -> None:
        if self._file is None or time.monotonic() - self._checked < RELOAD_SECONDS:
            return
        self._checked = time.monotonic()
        try:
            self._from_file = read_key_file(self._file)
        except StartError as error:
            print(
                "[tensorfold] API key file reload refused; authenticated routes remain closed: "
                f"{error}",
                flush=True,
            )
            self._from_file = frozenset()
