"""The Hugging Face cache of one account: what is in it, and how a proven file gets in.

Two layouts exist. In the classic one blobs/<hash> is the file; in the shared one it is a link to
a payload that all repositories use together. Both are read. Only the classic one is written: its
payload lies in the repository's own folder under the hash that proves it, so a copy of the folder
is whole, removing it frees its bytes, and a container needs only that folder mounted.

Order of writing: blob, link in the snapshot, ref, and when all is there the list of the commit's
files. The ref comes with the first file: a prune between two runs would take unnamed ones away.
Nothing is removed that was not made here; a blob or a link of
the same name is replaced by the proven one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import jsonfile
from ..errors import SparkPairError
from .manifest import File, Manifest, ManifestError

STAGING = ".spark-pair"
"""Folder of unfinished files inside a repository's folder."""

Layout = Literal["classic", "shared", "plain"]
_TREE_FORMAT = 1


class CacheError(SparkPairError):
    """The cache cannot take a file; the message says which path is in the way."""


@dataclass(frozen=True)
class Payload:
    """Where the bytes of a file of a repository really are."""

    path: Path
    """A regular file, every link followed."""
    size: int
    layout: Layout
    """"classic" own blob, "shared" payload of the common store, "plain" a file in the snapshot."""
    linked: bool
    """Whether the snapshot of the asked commit has it under its name."""


@dataclass(frozen=True)
class Leftovers:
    """Bytes that lie about and belong to no finished file."""

    incomplete: int
    """Cut-off downloads of the hub's own client, which it never uses again."""
    xet: int
    """The cache of the content store's client."""
    parts: int
    """Unfinished files of ours; the next run goes on with them."""


class Cache:
    """The folder `hub` of one account's cache."""

    def __init__(self, root: Path, xet: Path | None = None) -> None:
        self.root = root
        self.xet = xet

    @classmethod
    def of_account(cls, home: Path, environment: Mapping[str, str] | None = None) -> Cache:
        """Where the hub's own client keeps its cache in that home and environment."""
        settings = environment or {}

        def folder(*names: str) -> Path | None:
            value = next((settings[name] for name in names if settings.get(name)), None)
            return None if value is None else _expanded(value, home, settings)

        base = folder("HF_HOME")
        if base is None:
            base = (folder("XDG_CACHE_HOME") or home / ".cache") / "huggingface"
        hub = folder("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") or base / "hub"
        return cls(hub, folder("HF_XET_CACHE") or base / "xet")

    def folder(self, repo: str) -> Path:
        """A repository's folder."""
        return self.root / f"models--{repo.replace('/', '--')}"

    def blob(self, repo: str, file: File) -> Path:
        """Where the classic layout keeps a file's bytes."""
        return self.folder(repo) / "blobs" / file.etag

    def snapshot(self, repo: str, commit: str) -> Path:
        """The folder that looks like the repository at that commit."""
        return self.folder(repo) / "snapshots" / commit

    def staging(self, repo: str) -> Path:
        """The folder of unfinished files; on the same file system as the blobs."""
        return self.folder(repo) / STAGING

    def locate(self, repo: str, commit: str, file: File) -> Payload | None:
        """The file's bytes, from the snapshot or by their hash; None if absent or of other size.

        The content is not read: same size is all that is promised.
        """
        entry = self.snapshot(repo, commit) / file.path
        for path, linked in ((entry, True), (self.blob(repo, file), False)):
            real = _regular(path)
            if real is not None and real.stat().st_size == file.size:
                return Payload(real, file.size, self._layout(repo, entry, real), linked)
        return None

    def place(self, repo: str, commit: str, file: File, staged: Path) -> Path:
        """Move a file that was proven into the cache; returns its path in the snapshot.

        `staged` must lie on the file system of the cache (`staging` does). Raises CacheError.
        """
        try:
            if staged.stat().st_size != file.size:
                raise CacheError(f"{staged} has another size than {file.path}; it stays out.")
            blob = self.blob(repo, file)
            self._make(blob.parent)
            _give(staged, blob.parent)
            staged.chmod(0o644)
            _flush(staged)
            staged.replace(blob)
            _flush(blob.parent)
        except OSError as error:
            raise _refused(error, file.path) from error
        return self.link(repo, commit, file)

    def discard(self, repo: str, commit: str, file: File, payload: Payload) -> None:
        """Take a file whose content is wrong out of the cache; raises CacheError.

        A payload in the store that repositories share stays: it is not ours to judge for others.
        """
        entry, blob = self.snapshot(repo, commit) / file.path, self.blob(repo, file)
        try:
            for path in [one for one in (entry, blob) if _regular(one) == payload.path]:
                path.unlink()
        except OSError as error:
            raise _refused(error, file.path) from error

    def link(self, repo: str, commit: str, file: File) -> Path:
        """Give the file of `blob` its name in the snapshot; returns it. Raises CacheError."""
        entry = self.snapshot(repo, commit) / file.path
        target = os.path.relpath(self.blob(repo, file), entry.parent)
        try:
            if entry.is_symlink() and str(entry.readlink()) == target:
                return entry
            self._make(entry.parent)
            # Made in the staging folder: a killed process leaves nothing odd in the snapshot.
            link = self.make_staging(repo) / f"{file.etag}.{os.getpid()}.link"
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            _give(link, entry.parent)
            link.replace(entry)
            _flush(entry.parent)
        except OSError as error:
            raise _refused(error, file.path) from error
        return entry

    def write_tree(self, manifest: Manifest) -> None:
        """Keep the list of all files of a commit as the hub's client does, for work offline."""
        path = self.folder(manifest.repo) / "trees" / f"{manifest.commit}.json"
        files = {file.path: _tree_entry(file) for file in manifest.files}
        wanted = {"format_version": _TREE_FORMAT, "files": files}
        try:
            if jsonfile.read(path) != wanted:
                self._make(path.parent)
                jsonfile.write(path, wanted)
                _give(path, path.parent)
        except OSError as error:
            raise _refused(error, path.name) from error

    def read_tree(self, repo: str, commit: str) -> Manifest | None:
        """The list of all files of a commit, kept by the hub's client or by us; None without one.

        Raises OSError when it is there and cannot be read.
        """
        data = jsonfile.read(self.folder(repo) / "trees" / f"{commit}.json")
        if not isinstance(data, dict) or data.get("format_version") != _TREE_FORMAT:
            return None
        try:
            files = [_of_tree(path, entry) for path, entry in data["files"].items()]
            return Manifest(repo, commit, tuple(files), "cache")
        except (KeyError, TypeError, AttributeError, ManifestError):
            return None

    def trees(self, repo: str) -> list[str]:
        """Commits of which such a list is kept."""
        return sorted(path.stem for path in (self.folder(repo) / "trees").glob("*.json"))

    def write_ref(self, repo: str, commit: str) -> Path:
        """Name the commit, so that a prune of unnamed revisions leaves it alone."""
        path = self.folder(repo) / "refs" / f"pinned-{commit[:8]}"
        try:
            if not path.is_file() or path.read_text(encoding="ascii", errors="replace") != commit:
                self._make(path.parent)
                # Not among the refs, where everything is taken for one.
                staging = self.staging(repo)
                beside = staging if staging.is_dir() else self.folder(repo)
                beside /= f".{commit}.{os.getpid()}.ref"
                with beside.open("w", encoding="ascii") as stream:
                    stream.write(commit)  # no line end: with one, looking it up fails
                    stream.flush()
                    os.fsync(stream.fileno())
                beside.chmod(0o644)
                _give(beside, path.parent)
                beside.replace(path)
                _flush(path.parent)
        except OSError as error:
            raise _refused(error, path.name) from error
        return path

    def partial(self, repo: str, file: File) -> int:
        """Bytes of a file that an earlier run staged and the next goes on from."""
        return _occupied([self.staging(repo) / f"{file.etag}.part"])

    def leftovers(self) -> Leftovers:
        """What lies about in the whole cache, in bytes."""
        return Leftovers(
            incomplete=_occupied(self.root.glob("models--*/blobs/*.incomplete")),
            xet=_occupied(self.xet.rglob("*")) if self.xet else 0,
            parts=_occupied(self.root.glob(f"models--*/{STAGING}/*.part")),
        )

    def make_staging(self, repo: str) -> Path:
        """The folder of unfinished files, made if need be. Raises CacheError."""
        folder = self.staging(repo)
        try:
            self._make(folder)
        except OSError as error:
            raise _refused(error, repo) from error
        return folder

    def _layout(self, repo: str, entry: Path, real: Path) -> Layout:
        own = Path(os.path.realpath(self.folder(repo)))
        if real == Path(os.path.realpath(entry.parent)) / entry.name:
            return "plain"
        return "classic" if real.parent == own / "blobs" else "shared"

    def _make(self, folder: Path) -> None:
        """Make a folder and those above it, owned by whoever owns the first one that was there.

        Root may prepare an account's cache; the account must still be able to use it afterwards.
        """
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _give(path, folder)


def _expanded(value: str, home: Path, settings: Mapping[str, str]) -> Path:
    """A folder from the environment, with ~ and variables of that environment."""
    for name, text in settings.items():
        value = value.replace(f"${{{name}}}", text)
    path = Path(value)
    if path.parts and path.parts[0] == "~":
        path = home.joinpath(*path.parts[1:])
    return path if path.is_absolute() else home / path


def _regular(path: Path) -> Path | None:
    """The regular file at the end of all links, or None."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        return real if stat.S_ISREG(real.lstat().st_mode) else None
    except OSError:
        return None


def _occupied(paths: Iterable[Path]) -> int:
    """Bytes of regular files; holes of sparse ones do not count, nor does what just vanished."""
    return sum(_sizes(paths))


def _sizes(paths: Iterable[Path]) -> Iterator[int]:
    for path in paths:
        try:
            found = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield occupied(found)


def occupied(found: os.stat_result) -> int:
    """Bytes of a file that are really there; holes are not."""
    return min(found.st_size, found.st_blocks * 512)


def _tree_entry(file: File) -> dict[str, str | int]:
    entry: dict[str, str | int] = {"size": file.size, "blob_id": file.git_sha1}
    if file.sha256:
        entry |= {"lfs_sha256": file.sha256, "lfs_size": file.size}
    if file.xet_hash:
        entry["xet_hash"] = file.xet_hash
    return entry


def _of_tree(path: str, entry: Mapping[str, Any]) -> File:
    size = entry["lfs_size"] if entry.get("lfs_sha256") else entry["size"]
    return File(path, size, entry["blob_id"], entry.get("lfs_sha256"), entry.get("xet_hash"))


def _give(path: Path, folder: Path) -> None:
    """When root works here: the owner of `folder` gets `path`."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _flush(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refused(error: OSError, what: str) -> CacheError:
    where = error.filename2 or error.filename or "the cache"
    hint = {
        13: "give it to the account that downloads (chown), it may have been made by root",
        21: "a folder is where a file must be; move it away",
        20: "a file is where a folder must be; move it away",
        28: "the disk is full; make room and run it again",
    }.get(error.errno or 0, "mend that and run it again")
    return CacheError(f"{what} cannot be put into the cache at {where}: {error.strerror}; {hint}.")
