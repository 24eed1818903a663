"""What this host holds, from which revisions, and when each file was proven and how.

`/var/lib/spark-pair/provenance.json` is what decides which work is left: rank files that are
recorded need no checkpoint any more. So it is never guessed from what lies around, never emptied
because it cannot be read, and one artefact is replaced without touching the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from .. import jsonfile, paths
from ..errors import Exit, SparkPairError
from . import layout

SCHEMA = 1
RANK_FILE = "rank_file"
"""Kind of an artefact that is one rank file."""
SHARD = ".safetensors"
"""How the name of a file with tensors ends."""
LOCK_SECONDS = 30.0
"""A change of the record takes milliseconds: whoever holds it longer has come to harm."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ProvenanceError(SparkPairError):
    """The record cannot be used; it was left as it is."""

    exit = Exit.REFUSED


class Origin(StrEnum):
    """How an artefact came to this host."""

    DOWNLOADED = "downloaded"
    TRANSFERRED = "transferred"
    GRAFTED = "grafted"
    CUT = "cut"
    ADOPTED = "adopted"


class Trouble(StrEnum):
    """What can be wrong with a recorded file."""

    MISSING = "missing"
    SIZE = "size"
    CHANGED = "changed"
    """Written to, or replaced, since it was proven; whether wrongly is for `verify` to say."""
    CONTENT = "content"
    RECORD = "record"
    """What is recorded is not what is wanted."""
    UNREADABLE = "unreadable"
    UNSTEADY = "unsteady"
    """Changed while it was read."""


@dataclass(frozen=True)
class Stat:
    """What the file system says about a file, links followed."""

    size: int
    mtime_ns: int
    inode: int


def stat_of(path: Path) -> Stat | None:
    """What the file system says about a file now; None when it is not there. OSError."""
    try:
        return stat_from(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def stat_from(found: os.stat_result) -> Stat:
    """The part of it that tells one state of a file from another."""
    return Stat(found.st_size, found.st_mtime_ns, found.st_ino)


class Described(Protocol):
    """A file as its repository describes it (`manifest.File` is one)."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def git_sha1(self) -> str:
        """Blob id; proves the content only of a file that has no sha256."""

    @property
    def sha256(self) -> str | None:
        """Hash of the content, of big files."""


@dataclass(frozen=True)
class Held:
    """One file that was proven at some time."""

    size: int
    mtime_ns: int
    inode: int
    verified_at: float
    """Epoch seconds."""
    how: str
    """What proved it: "written" (hashed while it was written), "read" (read back), …"""
    sha256: str = ""
    git_sha1: str = ""
    """One of both; the git id (of the blob) is all that a repository says about small files."""
    failed_at: float | None = None
    """Since when the content is known to be wrong; time and inode are those of the wrong file."""

    @property
    def stat(self) -> Stat:
        """What the file system said when it was proven."""
        return Stat(self.size, self.mtime_ns, self.inode)

    @property
    def told_at(self) -> float:
        """Epoch seconds of the last that is known about its content, good or bad."""
        return max(self.verified_at, self.failed_at or 0.0)

    @property
    def algorithm(self) -> str:
        """Which of both counts."""
        return "git sha1" if self.git_sha1 and not self.sha256 else "sha256"

    @property
    def digest(self) -> str:
        """Hash of the content; empty when none is recorded yet."""
        return self.sha256 or self.git_sha1

    def new_hash(self) -> hashlib._Hash:
        """An empty hash of the kind that `digest` is."""
        if self.algorithm == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)

    def agrees_with(self, wanted: Described) -> bool:
        """Whether the repository describes the very content that was proven."""
        if self.size != wanted.size:
            return False
        if wanted.sha256 and self.sha256:
            return self.sha256 == wanted.sha256
        return not wanted.sha256 and bool(self.git_sha1) and self.git_sha1 == wanted.git_sha1

    def proves(self, wanted: Described) -> bool:
        """The same of a new proof, which says what the repository says and nothing besides."""
        hashes = (wanted.sha256 or "", "" if wanted.sha256 else wanted.git_sha1)
        return (self.size, self.sha256, self.git_sha1) == (wanted.size, *hashes)


@dataclass(frozen=True)
class Artefact:
    """Something that the pair's servers need, or that is needed to make it."""

    name: str
    """"checkpoint", "engram", "overlay", "rank0" …: what the plan calls it."""
    kind: str
    """"repository", "rank_file" …"""
    repo: str
    commit: str
    """40 hex digits; of what was cut or grafted, that of the checkpoint behind it."""
    origin: Origin
    at: float
    """Epoch seconds when it was complete here."""
    folder: str
    """Absolute; the files' paths are below it."""
    files: Mapping[str, Held]
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else its kind has to remember, such as the overlay's commit of a grafted one."""

    @property
    def total(self) -> int:
        """Bytes of all its files."""
        return sum(held.size for held in self.files.values())


@dataclass(frozen=True, order=True)
class Difference:
    """One recorded file that is not as recorded."""

    artefact: str
    path: str
    trouble: Trouble
    words: str

    def __str__(self) -> str:
        return f"{self.artefact}: {self.path} {self.words}"


# ---- the everyday check -------------------------------------------------------------------------


def everyday(
    record: Artefact,
    stat: Callable[[str], Stat | None],
    wanted: Mapping[str, Described] | None = None,
) -> list[Difference]:
    """Compare an artefact with the file system without reading it: sizes, times, inodes.

    With `wanted` (files of the manifest by path) also what was recorded with what is wanted: each
    file of it must be recorded, with the same hash. Any write by ordinary means changes the time
    or the inode; what changes bytes behind the file system's back only `verify` finds, and what it
    found is remembered here.
    """
    found: list[Difference] = []

    def differs(path: str, trouble: Trouble, words: str) -> None:
        found.append(Difference(record.name, path, trouble, words))

    for path, held in record.files.items():
        now = stat(path)
        if now is None:
            differs(path, Trouble.MISSING, "is not there")
        elif now.size != held.size:
            differs(path, Trouble.SIZE, f"has {now.size} bytes instead of {held.size}")
        elif held.failed_at is not None:
            # Also when it was touched since: wrong it stays until somebody has read it again.
            differs(path, Trouble.CONTENT, "failed its last verification")
        elif now.inode != held.inode:
            differs(path, Trouble.CHANGED, "was replaced since it was verified")
        elif now.mtime_ns != held.mtime_ns:
            differs(path, Trouble.CHANGED, "was written to since it was verified")
    for path, described in (wanted or {}).items():
        known = record.files.get(path)
        if known is None:
            differs(path, Trouble.RECORD, "is wanted and not recorded")
        elif not known.agrees_with(described):
            differs(path, Trouble.RECORD, "is recorded with another content than is wanted")
    return sorted(found)


# ---- the file ---------------------------------------------------------------------------------


class Provenance:
    """The record of one host. Writing needs the rights to the folder; each call is one change."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or paths.VAR / "provenance.json"

    def load(self) -> dict[str, Artefact]:
        """Every artefact by name; ProvenanceError for a record that this release cannot read."""
        return {name: self._parse(name, entry) for name, entry in self._entries().items()}

    def record(self, artefact: Artefact) -> None:
        """Put an artefact in, in place of an earlier one of that name.

        A rank file that was cut from other weights keeps its entry, under a name of its own:
        earlier releases had but one for each rank.
        """
        _check(artefact)
        with self._changing() as entries:
            now = entries.get(artefact.name)
            if now is not None and artefact.kind == RANK_FILE:
                before = self._parse(artefact.name, now)
                entries.setdefault(_own_name(before, artefact), entry_of(before))
            entries[artefact.name] = entry_of(artefact)

    def merge(self, artefact: Artefact) -> None:
        """Put files in beside those that are recorded of the same artefact and commit.

        Of another commit nothing stays. What is recorded later than it was proven stays, too: a
        proof that lay about says nothing about what `verify` found since. When the files lie in
        another folder now, what stays is what lies there too, the same file by size, time and
        inode. Where it came from is not rewritten by a few files more.
        """
        _check(artefact)
        with self._changing() as entries:
            now = entries.get(artefact.name)
            before = self._parse(artefact.name, now) if now is not None else None
            entries[artefact.name] = entry_of(_merged(before, artefact))

    def forget(self, name: str) -> bool:
        """Take an artefact out; whether it was there."""
        with self._changing() as entries:
            return entries.pop(name, None) is not None

    def drop(self, name: str, paths: Iterable[str]) -> tuple[str, ...]:
        """Take files out of an artefact, and the artefact with the last; those that were there."""
        dropped: tuple[str, ...] = ()
        with self._changing() as entries:
            if name in entries:
                now = self._parse(name, entries[name])
                dropped = tuple(sorted(set(paths) & set(now.files)))
                left = {path: held for path, held in now.files.items() if path not in dropped}
                if left:
                    entries[name] = entry_of(replace(now, files=left))
                else:
                    del entries[name]
        return dropped

    def update(self, before: Artefact, after: Artefact) -> tuple[str, ...]:
        """Note what a verification found about the files it began with.

        It takes minutes, and meanwhile a file may have been fetched again and recorded: what is
        newer than `before` stays. Returns the paths that were left for that reason.
        """
        left: list[str] = []
        with self._changing() as entries:
            if before.name not in entries:
                return tuple(sorted(after.files))
            now = self._parse(before.name, entries[before.name])
            files = dict(now.files)
            for path, held in after.files.items():
                if path in files and files[path] == before.files.get(path):
                    files[path] = held
                elif files.get(path) != held:
                    left.append(path)
            entries[before.name] = entry_of(replace(now, files=files))
        return tuple(sorted(left))

    def _entries(self) -> dict[str, Any]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        artefacts = data.get("artefacts") if isinstance(data, dict) else None
        if isinstance(data, dict) and data.get("schema", SCHEMA) != SCHEMA:
            raise ProvenanceError(
                f"{self.path} has schema {data['schema']!r}, and this release knows {SCHEMA}: use "
                "the release that wrote it, or a newer one"
            )
        if not isinstance(artefacts, dict) or "schema" not in data:
            raise ProvenanceError(
                f"{self.path} is damaged, so nobody can say what is on this host. Move it away and "
                "run --tags adopt, which reads the weights again; nothing needs to be downloaded"
            )
        return artefacts

    def _parse(self, name: str, entry: Any) -> Artefact:
        try:
            return artefact_of(name, entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProvenanceError(
                f"{self.path}: what is recorded about {name} cannot be understood ({error!r}). "
                "Take that entry out and run --tags adopt"
            ) from None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """The entries as they lie there, to be changed; one process at a time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.name}.lock")
        # Nobody else may open it, or whoever can read could keep root waiting.
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(handle, 0o600)
            self._lock(handle)
            entries = self._entries()
            before = json.dumps(entries, sort_keys=True)
            yield entries
            if json.dumps(entries, sort_keys=True) != before:
                jsonfile.write(self.path, {"schema": SCHEMA, "artefacts": entries})
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise ProvenanceError(
                        f"{self.path} has been held by another process for {LOCK_SECONDS:.0f} s: "
                        f"see which with 'sudo fuser -v {self.path.parent}/.*.lock', then run it "
                        "again"
                    ) from None
                time.sleep(0.05)
            else:
                return


def _check(artefact: Artefact) -> None:
    problem = ""
    if not artefact.name or not artefact.kind:
        problem = "has no name or no kind"
    elif not _COMMIT.fullmatch(artefact.commit):
        problem = f"has the commit {artefact.commit!r}, which is not the full one"
    elif not Path(artefact.folder).is_absolute():
        problem = f"lies in {artefact.folder!r}, which is no absolute path"
    elif not artefact.files:
        problem = "has no files"
    for path, held in artefact.files.items():
        if not (_SHA256.fullmatch(held.sha256) or _COMMIT.fullmatch(held.git_sha1)):
            problem = f"has {path} without the hash of its content"
    if problem:
        raise ProvenanceError(f"{artefact.name or 'an artefact'} cannot be recorded: it {problem}")


def _own_name(before: Artefact, after: Artefact) -> str:
    """What a recorded rank file is called beside one of the same name; that name when it is to be
    replaced."""
    overlays = (before.details.get("overlay"), after.details.get("overlay"))
    if before.kind != RANK_FILE or overlays[0] == overlays[1]:
        return after.name
    return layout.rank_name(int(after.name[4]), overlays[0])


def _merged(before: Artefact | None, more: Artefact) -> Artefact:
    known = (more.kind, more.repo, more.commit)
    if before is None or (before.kind, before.repo, before.commit) != known:
        return more
    kept = dict(before.files)
    if before.folder != more.folder:
        folder = Path(more.folder)
        kept = {path: held for path, held in kept.items() if stat_of(folder / path) == held.stat}
    fetched = more.origin is not Origin.GRAFTED and any(map(_is_shard, more.files))
    if before.origin is Origin.GRAFTED and fetched:
        # A graft vouches for all of its shards together; with one of the Hub's own among them
        # nobody knows what a server would be given, so the grafted ones leave the record.
        hub = {path: held for path, held in kept.items() if not _is_shard(path)}
        return replace(more, files={**hub, **more.files})
    newer = {
        path: held
        for path, held in more.files.items()
        if path not in kept or kept[path].told_at <= held.verified_at
    }
    return replace(
        before,
        at=more.at,
        folder=more.folder,
        files={**kept, **newer},
        details={**before.details, **more.details},
    )


def _is_shard(path: str) -> bool:
    return path.endswith(SHARD)


def entry_of(artefact: Artefact) -> dict[str, Any]:
    """An artefact without its name, as it is written."""
    data = asdict(artefact)
    del data["name"]
    data["files"] = {path: held_entry(held) for path, held in artefact.files.items()}
    return data


def held_entry(held: Held) -> dict[str, Any]:
    """A file of an artefact, as it is written."""
    data = asdict(held)
    for key in ("sha256", "git_sha1", "failed_at"):
        if not data[key]:
            del data[key]
    return data


def artefact_of(name: str, entry: Mapping[str, Any]) -> Artefact:
    """The reverse of `entry_of`; KeyError, TypeError, ValueError, AttributeError for others."""
    return Artefact(
        name=name,
        kind=str(entry["kind"]),
        repo=str(entry["repo"]),
        commit=str(entry["commit"]),
        origin=Origin(entry["origin"]),
        at=float(entry["at"]),
        folder=str(entry["folder"]),
        files={str(path): held_of(data) for path, data in entry["files"].items()},
        details=dict(entry.get("details", {})),
    )


def held_of(data: Mapping[str, Any]) -> Held:
    """The reverse of `held_entry`; KeyError, TypeError or ValueError for others."""
    held = Held(
        size=int(data["size"]),
        mtime_ns=int(data["mtime_ns"]),
        inode=int(data["inode"]),
        verified_at=float(data["verified_at"]),
        how=str(data["how"]),
        sha256=str(data.get("sha256", "")),
        git_sha1=str(data.get("git_sha1", "")),
        failed_at=None if data.get("failed_at") is None else float(data["failed_at"]),
    )
    if not held.digest:
        raise ValueError("a file without a hash")
    return held
