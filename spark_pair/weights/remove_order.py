"""What is asked of the jobs that delete: the checkpoint's shards, or a rank file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DescriptionError
from . import layout
from .cache import Cache
from .manifest import File, Manifest, ManifestError
from .order_parts import (
    OrderError,
    RankArtefact,
    absolute,
    absolute_path,
    check_shape,
    commit,
    file_name,
    text,
    texts,
    whole_number,
)
from .provenance import SHARD, Artefact, Held
from .rank_file import rank_of

PRUNE = "prune"
DROP = "drop"
_PRUNE_WORDS = "the order of a pruning"
_DROP_WORDS = "the order to drop a rank file"
_PRUNE_KEYS = frozenset(
    {"manifest", "files", "artefact", "repo", "commit", "folders", "work", "overlay"}
)
_DROP_KEYS = frozenset({"artefact", "file"})
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PruneOrder:
    """Shards of a checkpoint that shall be deleted, since both rank files are proven."""

    home: Path
    """Of the account."""
    manifest: Manifest
    files: tuple[File, ...]
    """The shards to delete."""
    artefact: str
    """What the record calls the checkpoint."""
    folders: tuple[Path, ...]
    """Where they may lie under their names: the grafted checkpoint, the snapshot of the cache."""
    work: Path
    """The folder of everything made from a checkpoint."""
    overlay: str | None
    """Commit of the overlay that the rank files carry; None for stock ones."""

    @classmethod
    def from_dict(cls, data: Any) -> PruneOrder:
        """Raises DescriptionError with what is wrong."""
        data = check_shape(data, PRUNE, _PRUNE_WORDS, _PRUNE_KEYS)
        try:
            manifest = Manifest.from_dict(data["manifest"])
            whole_number(data, "floor_bytes", 0)
            order = cls(
                home=absolute(data, "home"),
                manifest=manifest,
                files=tuple(manifest.file(path) for path in texts(data, "files")),
                artefact=text(data, "artefact"),
                folders=tuple(absolute_path(one, "folders") for one in texts(data, "folders")),
                work=absolute(data, "work"),
                overlay=None if data["overlay"] is None else commit(data, "overlay"),
            )
            if (data["repo"], data["commit"]) != (manifest.repo, manifest.commit):
                raise OrderError("a list of files that is of another commit")
            _check(order)
        except (OrderError, ManifestError) as error:
            raise DescriptionError(f"{_PRUNE_WORDS} has {error}") from None
        return order

    def where(self) -> Cache:
        """The account's cache."""
        return Cache.of_account(self.home)

    @property
    def derived(self) -> tuple[Path, ...]:
        """Folders of what was made from this checkpoint, to which some of `folders` belong."""
        return tuple(one.parent for one in self.folders if one != self.snapshot)

    @property
    def snapshot(self) -> Path:
        """The folder of the commit in the account's cache."""
        return self.where().snapshot(self.manifest.repo, self.manifest.commit)

    @property
    def whole(self) -> frozenset[str]:
        """Nothing is proven."""
        return frozenset()

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """All of the files, as far as they are absent in the end."""
        return {self.artefact: frozenset(file.path for file in self.files)}

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Nothing new is recorded."""
        return False


@dataclass(frozen=True)
class DropOrder:
    """A rank file that shall be deleted here, since the other machine has it proven."""

    home: Path
    artefact: RankArtefact
    """What the record says about it."""
    path: str
    """Its name in the artefact's folder."""
    size: int
    sha256: str

    @classmethod
    def from_dict(cls, data: Any) -> DropOrder:
        """Raises DescriptionError with what is wrong."""
        data = check_shape(data, DROP, _DROP_WORDS, _DROP_KEYS)
        try:
            file = data["file"]
            if not isinstance(file, Mapping) or set(file) != {"path", "size", "sha256"}:
                raise OrderError("a file that is not described by path, size, sha256")
            whole_number(data, "floor_bytes", 0)
            order = cls(
                home=absolute(data, "home"),
                artefact=RankArtefact.from_dict(data["artefact"]),
                path=file_name(text(file, "path"), "path"),
                size=whole_number(file, "size", 1),
                sha256=text(file, "sha256"),
            )
            if rank_of(order.path) is None:
                raise OrderError(f"{order.path!r} for path, which is no name of a rank file")
            if not _SHA256.fullmatch(order.sha256):
                raise OrderError(f"{order.sha256!r} for sha256")
        except OrderError as error:
            raise DescriptionError(f"{_DROP_WORDS} has {error}") from None
        return order

    @property
    def whole(self) -> frozenset[str]:
        """Nothing is proven."""
        return frozenset()

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """The file, when it is absent in the end."""
        return {self.artefact.name: frozenset({self.path})}

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Nothing new is recorded."""
        return False


def _check(order: PruneOrder) -> None:
    if not order.files:
        raise OrderError("no files")
    if small := [file.path for file in order.files if not file.path.endswith(SHARD)]:
        raise OrderError(f"{small[0]!r} among the files, which is no shard and stays")
    name = order.manifest.commit
    for folder in order.folders:
        ours = folder == order.snapshot or (
            folder.name == "checkpoint"
            and folder.parent.parent == order.work
            and folder.parent.name.startswith(name[: layout.DIGITS])
        )
        if not ours:
            raise OrderError(f"{str(folder)!r} among the folders, which holds no shards of {name}")
