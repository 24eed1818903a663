"""Deletes shards so that their room is really free.

A shard has many names and its bytes lie in one place. What is behind a name may be a blob of the
repository, a payload of the store that repositories share, a file of its own (grafted, or a copy
that somebody made), or something outside of it all. The bytes go first and the names after them: a
killed process leaves names without bytes, which count for nothing and are taken away by the next
run, and never bytes without a name.

Bytes that something else uses, too, stay: another commit of the repository, another repository in
the shared store, another folder made from this checkpoint, or whatever a link outside leads to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import layout, shared_store
from .manifest import File
from .remove_order import PruneOrder

Kind = Literal["own", "blob", "shared", "outside"]


@dataclass(frozen=True)
class Bytes:
    """The bytes behind some names of a shard."""

    path: Path
    """The real file."""
    size: int
    kind: Kind
    links: int
    """Hard links to it; what others hold stays on the disk."""
    kept: str = ""
    """Why they stay, in words; empty when they are deleted."""


@dataclass(frozen=True)
class Target:
    """A shard with all its names and all its bytes, as they are now."""

    file: File
    names: tuple[Path, ...]
    """Names that lead to bytes, or nowhere any more; they go after the bytes."""
    bytes: tuple[Bytes, ...]

    @property
    def size(self) -> int:
        """Bytes that are deleted with it."""
        return sum(one.size for one in self.bytes if not one.kept)


class Removal:
    """The shards of one order, on this machine's disk."""

    def __init__(self, order: PruneOrder) -> None:
        self._order = order
        self._cache = order.where()
        self._repo = order.manifest.repo
        self._blobs = Path(os.path.realpath(self._cache.folder(self._repo) / "blobs"))

    def targets(self) -> list[Target]:
        """What there is of the ordered shards; a shard without name and bytes is not among them."""
        others = self._other_names()
        found = (self._target(file, others) for file in self._order.files)
        return [one for one in found if one.names]

    def remove(self, target: Target) -> None:
        """Delete a shard. Raises StoreBusyError, OSError."""
        for one in target.bytes:
            if one.kept:
                continue
            if one.kind == "shared":
                with shared_store.held(one.path):
                    # Somebody may have linked to it since it was looked at.
                    if not self._shared_by(one.path):
                        shared_store.remove(one.path)
            else:
                one.path.unlink(missing_ok=True)
        kept = {one.path for one in target.bytes if one.kept}
        for name in target.names:
            # The name of a file that is no link is the file.
            if Path(os.path.realpath(name.parent)) / name.name not in kept:
                name.unlink(missing_ok=True)

    # ---- what there is

    def _target(self, file: File, others: Mapping[Path, str]) -> Target:
        blob = self._cache.blob(self._repo, file)
        places = dict.fromkeys([*self._order.folders, self._order.snapshot])
        names = [folder / file.path for folder in places]
        there = [name for name in (*names, blob) if os.path.lexists(name)]
        real = dict.fromkeys(Path(os.path.realpath(name)) for name in there)
        found = [one for path in real if (one := self._bytes(path, names, others))]
        # The blob's own name stays when other names lead through it.
        kept = others.get(Path(os.path.realpath(blob.parent)) / blob.name, "")
        through = [name for name in there if not (name == blob and kept)]
        return Target(file, tuple(through), tuple(found))

    def _bytes(self, path: Path, names: list[Path], others: Mapping[Path, str]) -> Bytes | None:
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None  # a name that leads nowhere
        if not stat.S_ISREG(found.st_mode):
            return Bytes(path, 0, "outside", 1, "is no file")
        kind = self._kind(path, names)
        kept = others.get(path, "")
        if kind == "shared" and not kept:
            kept = self._shared_by(path)
        if kind == "outside":
            kept = "lies outside of the cache and of the work folder"
        return Bytes(path, found.st_size, kind, found.st_nlink, kept)

    def _kind(self, path: Path, names: list[Path]) -> Kind:
        if path.parent == self._blobs:
            return "blob"
        if shared_store.is_payload(self._cache.root, path):
            return "shared"
        own = {Path(os.path.realpath(name.parent)) / name.name for name in names}
        return "own" if path in own else "outside"

    # ---- who else uses it

    def _shared_by(self, payload: Path) -> str:
        """Who else uses a payload of the shared store; "" for nobody."""
        users = shared_store.users(self._cache.root, payload)
        if users is None:
            return "lies in the store of all repositories, without a list of who uses it"
        others = sorted({one.parts[-3] for one in users if one.parent != self._blobs})
        if others:
            return f"is used by {', '.join(others)}, too"
        return "" if len(users) <= 1 else "is used under two names"

    def _other_names(self) -> dict[Path, str]:
        """Blobs and payloads that other commits, or other folders of ours, lead to; who that is."""
        paths = {file.path for file in self._order.files}
        found: dict[Path, str] = {}
        for name, words in (*self._of_other_commits(), *self._of_other_folders(paths)):
            if name.is_symlink():
                # The blob that it names, and the payload behind that.
                step = Path(os.path.realpath(name.parent), name.readlink())
                blob = Path(os.path.realpath(step.parent)) / step.name
                for one in (blob, Path(os.path.realpath(name))):
                    found.setdefault(one, words)
        return found

    def _of_other_commits(self) -> Iterator[tuple[Path, str]]:
        own = self._order.snapshot
        for commit in sorted(own.parent.glob("*")):
            if commit.name != own.name and commit.is_dir() and not commit.is_symlink():
                words = f"is used by the commit {commit.name[: layout.DIGITS]} of it, too"
                yield from ((name, words) for name in _files(commit))

    def _of_other_folders(self, paths: Iterable[str]) -> Iterator[tuple[Path, str]]:
        commit = self._order.manifest.commit[: layout.DIGITS]
        for folder in sorted(self._order.work.glob(f"{commit}*/checkpoint")):
            if folder not in self._order.folders:
                words = f"is used by {folder.parent.name}/checkpoint, too"
                yield from ((folder / path, words) for path in paths)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)
