"""What a download is asked for, as it is handed to its job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DescriptionError
from .cache import Cache
from .manifest import File, Manifest, ManifestError
from .provenance import Artefact, Held, Origin

SCHEMA = 1
_REQUIRED = frozenset({"schema", "source", "endpoint", "home", "manifest", "files"})
_OPTIONAL = frozenset({"workers", "limit_bytes_per_second", "floor_bytes", "gated"})


@dataclass(frozen=True)
class DownloadOrder:
    """Files of one commit that shall be in an account's cache."""

    source: str
    endpoint: str
    """The Hub."""
    home: Path
    """Of the account."""
    manifest: Manifest
    files: tuple[File, ...]
    workers: int
    limit_bytes_per_second: float | None
    floor_bytes: int
    """What stays free on the disk."""
    gated: bool
    """Ask for a small file first."""

    @classmethod
    def from_dict(cls, data: Any) -> DownloadOrder:
        """Raises DescriptionError with what is wrong."""
        if not isinstance(data, Mapping):
            raise DescriptionError("a download's order is not a mapping")
        if data.get("schema") != SCHEMA:
            raise DescriptionError(
                f"a download's order has schema {data.get('schema')!r}, not {SCHEMA}: the tool on "
                "this host is of another release; run --tags tools"
            )
        if problem := _key_problem(data):
            raise DescriptionError(f"a download's order {problem}")
        try:
            manifest = Manifest.from_dict(data["manifest"])
            files = tuple(manifest.file(str(path)) for path in data["files"])
        except (ManifestError, TypeError) as error:
            raise DescriptionError(f"a download's order: {error}") from error
        if not files:
            raise DescriptionError("a download's order names no file")
        limit = data.get("limit_bytes_per_second")
        return cls(
            source=data["source"],
            endpoint=data["endpoint"],
            home=Path(data["home"]),
            manifest=manifest,
            files=files,
            workers=data.get("workers", 4),
            limit_bytes_per_second=None if limit is None else float(limit),
            floor_bytes=data.get("floor_bytes", 0),
            gated=data.get("gated", False),
        )

    def where(self) -> Cache:
        """The cache that the files go to."""
        return Cache.of_account(self.home)

    @property
    def total(self) -> int:
        """Bytes of all the files."""
        return sum(file.size for file in self.files)

    # ---- what its job's proofs may say

    @property
    def whole(self) -> frozenset[str]:
        """Nothing: each file counts by itself."""
        return frozenset()

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """Nothing leaves the record."""
        return {}

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Whether a proof is for a file that was ordered, with the Hub's hash."""
        file = next((one for one in self.files if one.path == path), None)
        if file is None or artefact != self._artefact(artefact.at):
            return False
        return held.proves(file)

    def _artefact(self, at: float) -> Artefact:
        """What a download brings, without its files."""
        repo, commit = self.manifest.repo, self.manifest.commit
        folder = str(self.where().snapshot(repo, commit))
        return Artefact(self.source, "repository", repo, commit, Origin.DOWNLOADED, at, folder, {})


def _key_problem(data: Mapping[str, Any]) -> str:
    if missing := sorted(_REQUIRED - set(data)):
        return f"lacks {', '.join(missing)}"
    if unknown := sorted(map(str, set(data) - _REQUIRED - _OPTIONAL)):
        return f"has unknown keys: {', '.join(unknown)}"
    for key in ("source", "endpoint", "home"):
        if not isinstance(data[key], str) or not data[key]:
            return f"has {data[key]!r} for {key}"
    if not data["home"].startswith("/"):
        return f"has {data['home']!r} for home, which is no absolute path"
    for key, least in (("workers", 1), ("floor_bytes", 0), ("limit_bytes_per_second", 1)):
        value = data.get(key)
        whole = type(value) is int or (key == "limit_bytes_per_second" and type(value) is float)
        if value is not None and (not whole or value < least):
            return f"has {value!r} for {key}"
    if not isinstance(data.get("gated", False), bool):
        return f"has {data['gated']!r} for gated"
    if not isinstance(data["files"], list | tuple):
        return "has no list of files"
    return ""
