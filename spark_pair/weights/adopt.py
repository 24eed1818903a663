"""Proving and recording what was prepared by hand; the body of the job `adopt`.

It reads what an order names and writes the record of this host: no file is fetched, deleted, moved
or given other rights. All that is added is a ref in the cache, so that a prune leaves the files
alone. Files of a repository are proven by the Hub's own hashes. A rank file is
whole by its end and is read once, so that a later change is noticed; what it was cut from is the
operator's word, which the name of its folder must not contradict.

What cannot be adopted is refused by name with what to do, and everything else is recorded.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import DescriptionError, SparkPairError
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from ..jobs.words import size as in_words
from .adopt_plan import SCHEMA, rank_of_host
from .cache import Cache
from .holdings import OVERLAY, RANKS
from .kept import Kept
from .layout import rank_name
from .manifest import HOST_ROLES, File, HostRole, Manifest, ManifestError, is_commit
from .provenance import RANK_FILE, Artefact, Held, Origin, Provenance, Stat, Trouble, everyday
from .rank_file import (
    Footer,
    RankFileError,
    named_revisions,
    partial_rank_of,
    rank_of,
    read_footer,
)
from .verify import Disk, measure, verify

_TOLD = 5
_KEYS = frozenset({"schema", "role", "home", "sources", "ranks"})

MayRead = Callable[[Sequence[Path]], Mapping[Path, "Barrier"]]
"""Given paths, those that the account cannot read."""


@dataclass(frozen=True)
class Barrier:
    """Why an account cannot read a file."""

    place: Path
    """The file, or the first folder above it that keeps the account out."""
    words: str
    """The system's."""


@dataclass(frozen=True)
class SourceOrder:
    """Files of a repository that lie in the cache."""

    name: str
    manifest: Manifest
    files: tuple[File, ...]


@dataclass(frozen=True)
class RankOrder:
    """A rank file and what the operator says about it."""

    rank: int
    path: Path
    repo: str
    checkpoint: str
    """Commit."""
    overlay: str | None
    """Commit; None for stock weights."""

    @property
    def name(self) -> str:
        """What it is called in the record."""
        return rank_name(self.rank, self.overlay)


@dataclass(frozen=True)
class AdoptOrder:
    """What one host is to prove and record."""

    role: HostRole
    home: Path
    """Home of the account that owns the weights."""
    sources: tuple[SourceOrder, ...]
    ranks: tuple[RankOrder, ...]

    @classmethod
    def from_dict(cls, data: Any) -> AdoptOrder:
        """Raises DescriptionError with what is wrong."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise DescriptionError(
                f"an adoption's order is not of schema {SCHEMA}: the tool on this host is of "
                "another release; run --tags tools"
            )
        # Lists are kept by whoever starts the job.
        if set(data) - {"lists"} != _KEYS or data["role"] not in HOST_ROLES:
            raise DescriptionError(f"an adoption's order holds {', '.join(sorted(map(str, data)))}")
        try:
            return cls(
                role=data["role"],
                home=_absolute(data["home"]),
                sources=tuple(_source_order(one) for one in data["sources"]),
                ranks=tuple(_rank_order(one) for one in data["ranks"]),
            )
        except (KeyError, TypeError, ValueError, ManifestError) as error:
            raise DescriptionError(f"an adoption's order cannot be read: {error}") from error

    def where(self) -> Cache:
        """The cache in which the files lie."""
        return Cache.of_account(self.home)


def _source_order(data: Mapping[str, Any]) -> SourceOrder:
    manifest = Manifest.from_dict(data["manifest"])
    files = tuple(manifest.file(str(path)) for path in data["files"])
    return SourceOrder(str(data["name"]), manifest, files)


def _rank_order(data: Mapping[str, Any]) -> RankOrder:
    commits = [data["checkpoint"], *([data["overlay"]] if data["overlay"] is not None else [])]
    if data["rank"] not in RANKS or not all(is_commit(commit) for commit in commits):
        raise ValueError(f"{data!r} does not describe a rank file")
    return RankOrder(
        data["rank"], _absolute(data["path"]), str(data["repo"]), data["checkpoint"],
        data["overlay"],
    )  # fmt: skip


def _absolute(text: Any) -> Path:
    if not isinstance(text, str) or not text.startswith("/"):
        raise ValueError(f"{text!r} is no absolute path")
    return Path(text)


# ---- the account --------------------------------------------------------------------------------

_TRY_TO_READ = """
import json, os, pathlib, sys
asked = json.load(sys.stdin)
if os.geteuid() == 0:
    os.setgroups(asked["groups"])
    os.setgid(asked["gid"])
    os.setuid(asked["uid"])
found = {}
for path in asked["paths"]:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        above = reversed(pathlib.Path(os.path.realpath(path)).parents)
        place = next((one for one in above if not os.access(one, os.X_OK)), path)
        found[path] = [str(place), error.strerror]
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Account:
    """The account that the model servers read the weights as."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of_home(cls, home: Path) -> Account:
        """The owner of a home; DescriptionError when nobody is."""
        try:
            owner = pwd.getpwuid(home.stat().st_uid)
        except (OSError, KeyError) as error:
            raise DescriptionError(f"{home} is no account's home on this host: {error}") from error
        return cls(owner.pw_name, owner.pw_uid, owner.pw_gid)

    def may_read(self, paths: Sequence[Path]) -> Mapping[Path, Barrier]:
        """Try as the account itself: folders above, groups and access lists count as well."""
        asked = {
            "uid": self.uid,
            "gid": self.gid,
            "groups": os.getgrouplist(self.name, self.gid),
            "paths": [str(path) for path in paths],
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY_TO_READ],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
        found = json.loads(done.stdout)
        return {Path(path): Barrier(Path(place), why) for path, (place, why) in found.items()}

    def does(self, work: Callable[[], object]) -> str:
        """Do something as the account itself; why that failed, or "".

        The folders are the account's: what root wrote there could be led elsewhere by a link.
        """
        if os.geteuid() != 0 or self.uid == 0:
            return _trouble_of(work)
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                words = _trouble_of(self._become) or _trouble_of(work)
                os.write(sink, words.encode(errors="replace")[:4000])
            finally:
                os._exit(0)
        os.close(sink)
        with os.fdopen(source, "rb") as stream:
            words = stream.read().decode(errors="replace")
        os.waitpid(child, 0)
        return words

    def _become(self) -> None:
        os.setgroups(os.getgrouplist(self.name, self.gid))
        os.setgid(self.gid)
        os.setuid(self.uid)


def _trouble_of(work: Callable[[], object]) -> str:
    try:
        work()
    except (SparkPairError, OSError) as error:
        return str(error)
    return ""


def _barred(path: Path, barrier: Barrier, account: str, own: Path) -> str:
    """Who stands in the way, and the command that mends it.

    `own` is the folder that holds the artefact and nothing else. Only there may all be given away:
    a command that is copied must not hand a whole home, or the system, to the account.
    """
    place = barrier.place
    owner = _owner(place.stat())
    words = f"{path} cannot be read by {account} ({barrier.words}): "
    if place == path:
        words += f"it belongs to {owner}" if owner != account else "its mode keeps its owner out"
        change = f"chown {account}:" if owner != account else "chmod u+r"
        return f"{words}; sudo {change} '{place}', then run it again"
    words += f"{place} belongs to {owner} and lets nobody else in"
    if owner == account:
        return f"{words}; sudo chmod u+rx '{place}', then run it again"
    if place.is_relative_to(own):
        return f"{words}; sudo chown -R {account}: '{place}', then run it again"
    return (
        f"{words}; let others pass through it (sudo chmod o+x '{place}'), or move or bind-mount "
        "the weights to a place that is open to them, then run it again"
    )


def _owner(found: os.stat_result) -> str:
    try:
        return pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        return f"account number {found.st_uid}"


# ---- the work -----------------------------------------------------------------------------------


def adopt(
    order: AdoptOrder,
    reporter: Reporter,
    *,
    provenance: Provenance | None = None,
    kept: Kept | None = None,
    may_read: MayRead | None = None,
    threads: int = 2,
) -> tuple[str, Mapping[str, Any]]:
    """Prove and record; the words and the data of the job's result.

    Raises JobFailedError when something was refused (the rest is recorded), JobStoppedError after
    a stop (what was read by then is recorded), ProvenanceError for a record that cannot be used.
    """
    account = Account.of_home(order.home)
    work = _Adoption(
        order,
        reporter,
        provenance or Provenance(),
        kept or Kept(),
        account,
        may_read or account.may_read,
        threads,
    )
    for source in order.sources:
        work.source(source)
    for rank in order.ranks:
        work.rank(rank)
    data = {
        "recorded": work.recorded,
        "unchanged": work.unchanged,
        "refused": work.refused,
        "notes": work.notes,
    }
    if work.refused:
        raise JobFailedError(_refusal(work.refused, work.recorded), data)
    if not work.recorded:
        return "everything is recorded already", data
    words = f"recorded {', '.join(work.recorded)} ({in_words(work.read_bytes)} read)"
    if work.named:
        words += f"; a ref keeps 'hf cache prune' away from {', '.join(work.named)}"
    return words, data


def _refusal(refused: Sequence[str], recorded: Sequence[str]) -> str:
    more = len(refused) - _TOLD
    words = f"{len(refused)} could not be adopted: {'; '.join(refused[:_TOLD])}"
    words += f"; and {more} more" if more > 0 else ""
    return f"{words}. Recorded all the same: {', '.join(recorded) or 'nothing'}"


@dataclass
class _Adoption:
    order: AdoptOrder
    reporter: Reporter
    provenance: Provenance
    kept: Kept
    account: Account
    may_read: MayRead
    threads: int
    recorded: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    """Sources whose commit got a ref."""
    notes: list[str] = field(default_factory=list)
    read_bytes: int = 0

    # ---- files of a repository

    def source(self, source: SourceOrder) -> None:
        """Prove the files of a source by the hashes of its manifest and record what is right."""
        manifest = source.manifest
        folder = self.order.where().snapshot(manifest.repo, manifest.commit)
        disk = Disk(folder)
        known = self._known(source, disk)
        new = [file for file in source.files if file.path not in known]
        if not new:
            self.unchanged.append(source.name)
            return
        barred = self.may_read([folder / file.path for file in new])
        whole = [file for file in new if self._is_whole(source, file, folder, barred)]
        blank = Artefact(
            source.name, "repository", manifest.repo, manifest.commit, Origin.ADOPTED, time.time(),
            str(folder), {file.path: _expected(file) for file in whole},
        )  # fmt: skip
        self.reporter.step(f"adopt {source.name}", blank.total)
        proven = verify(
            blank,
            disk,
            threads=self.threads,
            progress=self.reporter.advance,
            stop=self.reporter.stopping,
        )
        self.read_bytes += proven.read_bytes
        wrong = {one.path for one in proven.differences}
        self.refused += [f"{one}{_next_step(one.trouble)}" for one in proven.differences]
        files = {
            path: held
            for path, held in proven.after.files.items()
            if path not in wrong and path not in proven.unread
        }
        if files:
            # First what the files are held against: a record without it would need the Hub.
            self.kept.keep(manifest)
            cache = self.order.where()
            own = cache.folder(manifest.repo)
            self._record(replace(blank, files=files), [folder / path for path in files], own)
            self._name(source, cache)
        self.reporter.check()

    def _name(self, source: SourceOrder, cache: Cache) -> None:
        """Name the commit in the cache as a download does; the only thing that is written there."""
        repo, commit = source.manifest.repo, source.manifest.commit
        words = self.account.does(lambda: cache.write_ref(repo, commit))
        if words:
            self.notes.append(f"{source.name}: no ref keeps a prune of the cache away: {words}")
        else:
            self.named.append(source.name)

    def _known(self, source: SourceOrder, disk: Disk) -> set[str]:
        """Files that are recorded so and pass the everyday check."""
        record = self.provenance.load().get(source.name)
        if record is None or record.commit != source.manifest.commit:
            return set()
        changed = {one.path for one in everyday(record, Disk(record.folder).stat)}
        return {
            file.path
            for file in source.files
            if (held := record.files.get(file.path))
            and file.path not in changed
            and held.agrees_with(file)
            and disk.stat(file.path) == Disk(record.folder).stat(file.path)
        }

    def _is_whole(
        self, source: SourceOrder, file: File, folder: Path, barred: Mapping[Path, Barrier]
    ) -> bool:
        """Whether it is worth reading; otherwise it is refused."""
        name, repo = source.name, source.manifest.repo
        path = folder / file.path
        words = _not_whole(path, file.size)
        if words:
            words = f"{file.path} {words}"
        elif path in barred:
            own = self.order.where().folder(repo)
            words = _barred(path, barred[path], self.account.name, own)
        if words:
            self.refused.append(f"{name}: {words}")
        return not words

    # ---- rank files

    def rank(self, rank: RankOrder) -> None:
        """Check a rank file by its end, read it once, and record it under what is stated."""
        if self._is_recorded(rank):
            self.unchanged.append(rank.name)
            return
        disk = Disk(rank.path.parent)
        try:
            before = disk.stat(rank.path.name)
            words = self._rank_problem(rank)
            footer = None if words else read_footer(rank.path)
        except RankFileError as error:
            words, footer = f"{error}; move it away and cut it anew, or copy it again", None
        except OSError as error:
            words, footer = f"cannot be read ({error.strerror}); {_NOT_THERE}", None
        if footer is None:
            self.refused.append(f"{rank.name}: {words}")
            return
        if problem := footer.name_problem(rank.path.name):
            self.notes.append(f"{rank.name}: {problem}")
        self._measure(rank, footer, disk, before)

    def _measure(self, rank: RankOrder, footer: Footer, disk: Disk, before: Stat | None) -> None:
        name = rank.path.name
        self.reporter.step(f"adopt {rank.name}", footer.size)
        read = measure(
            [name],
            disk,
            how="read",
            threads=1,
            progress=self.reporter.advance,
            stop=self.reporter.stopping,
        )
        self.refused += [f"{rank.name}: {path} {words}; run it again when nobody writes to it"
                         for path, _, words in read.troubles]  # fmt: skip
        self.reporter.check()
        for held in read.files.values():
            if held.stat != before:
                self.refused.append(f"{rank.name}: {name} was changed while it was read; run it "
                                    "again when nobody writes to it")  # fmt: skip
                return
            self.read_bytes += held.size
            artefact = Artefact(
                rank.name, RANK_FILE, rank.repo, rank.checkpoint, Origin.ADOPTED, time.time(),
                str(rank.path.parent), {name: held},
                {OVERLAY: rank.overlay, "index_sha256": footer.index_sha256},
            )  # fmt: skip
            self._record(artefact, [rank.path], self._own_folder(rank))

    def _rank_problem(self, rank: RankOrder) -> str:
        """Why it cannot be adopted, as far as that is known without reading it."""
        name, account = rank.path.name, self.account.name
        if partial_rank_of(name) is not None:
            return f"{name} is a cut that did not end: delete it and cut it anew"
        if rank_of(name) != rank.rank:
            return f"{name} is not named like a file of rank {rank.rank}: say which file is meant"
        if rank.rank != rank_of_host(self.order.role):
            other = HOST_ROLES[1 - HOST_ROLES.index(self.order.role)]
            return (
                f"{rank.path} is of rank {rank.rank}, which the {other} serves, and this host is "
                f"the {self.order.role}: move it to the {other}, or delete it when it is there"
            )
        if not stat.S_ISREG(rank.path.stat().st_mode):
            return f"{rank.path} is no file: move it away and cut it anew"
        siblings = sorted(
            one.name for one in rank.path.parent.iterdir() if rank_of(one.name) == rank.rank
        )
        if len(siblings) > 1:
            return (
                f"{rank.path.parent} holds {len(siblings)} files of rank {rank.rank} "
                f"({', '.join(siblings)}), and with more than one the engine does not start: move "
                "away what is not served"
            )
        if words := _other_revision(rank):
            return words
        if barrier := self.may_read([rank.path]).get(rank.path):
            return _barred(rank.path, barrier, account, self._own_folder(rank))
        return ""

    def _own_folder(self, rank: RankOrder) -> Path:
        """The folder of rank files, unless it holds more than that; then the file alone."""
        folder, home = rank.path.parent, self.order.home
        return rank.path if home.is_relative_to(folder) or len(folder.parts) <= 2 else folder

    def _is_recorded(self, rank: RankOrder) -> bool:
        # Under whatever name: earlier releases had but one for each rank.
        return any(
            record.kind == RANK_FILE
            and record.commit == rank.checkpoint
            and record.details.get(OVERLAY) == rank.overlay
            and record.folder == str(rank.path.parent)
            and rank.path.name in record.files
            and not everyday(record, Disk(record.folder).stat)
            for record in self.provenance.load().values()
        )

    # ---- both

    def _record(self, artefact: Artefact, paths: Iterable[Path], own: Path) -> None:
        if artefact.kind == "repository":
            self.provenance.merge(artefact)
        else:
            self.provenance.record(artefact)
        self.recorded.append(artefact.name)
        strangers = {_owner(path.stat()) for path in paths} - {self.account.name}
        if strangers:
            self.notes.append(
                f"{artefact.name}: files belong to {', '.join(sorted(strangers))}; "
                f"{self.account.name} reads them and cannot replace or delete them. To give them "
                f"over: sudo chown -R {self.account.name}: '{own}'"
            )


_NOT_THERE = "look whether the disk that it lies on is mounted"


def _not_whole(path: Path, size: int) -> str:
    """What can be seen from outside: it is not there, no file, or of another size."""
    try:
        found = path.stat()
    except OSError as error:
        return f"cannot be looked at ({error.strerror}); {_NOT_THERE}"
    if not stat.S_ISREG(found.st_mode):
        return "is no file; move it away, and '--tags plan' names what brings the right one"
    if found.st_size != size:
        return (
            f"has {found.st_size} bytes instead of {size}: its download or its copy was cut off"
            f"{_next_step(Trouble.SIZE)}"
        )
    return ""


def _expected(file: File) -> Held:
    return Held(
        size=file.size,
        mtime_ns=0,
        inode=0,
        verified_at=0.0,
        how="read",
        sha256=file.sha256 or "",
        git_sha1="" if file.sha256 else file.git_sha1,
    )


def _next_step(trouble: Trouble) -> str:
    if trouble is Trouble.UNREADABLE:
        return "; it may be a failing disk: look at 'journalctl -k'"
    if trouble is Trouble.UNSTEADY:
        return "; run it again when nobody writes to it"
    return "; '--tags plan' names the step that brings it again, so that no wrong byte is served"


def _other_revision(rank: RankOrder) -> str:
    """That the folder's name says something else than the operator."""
    named = named_revisions(rank.path)
    stated = (rank.checkpoint[:8], rank.overlay[:8] if rank.overlay else None)
    if named is None or named == stated:
        return ""
    return (
        f"{rank.path} lies in a folder that says {_cut_from(named)}, and you say "
        f"{_cut_from(stated)}: correct weights_adopt_checkpoint and weights_adopt_overlay, or "
        "rename the folder if it is the folder that is wrong"
    )


def _cut_from(revisions: tuple[str, str | None]) -> str:
    checkpoint, overlay = revisions
    return f"{checkpoint} with the overlay {overlay}" if overlay else f"{checkpoint}, stock"
