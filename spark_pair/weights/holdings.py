"""What a machine holds of the weights, and how it is read from the record. Pure.

The record decides what is left to do. Files that lie there without one are credited as bytes that
need not be fetched, but a step still has to prove them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from .manifest import File, HostRole, Manifest, Source
from .provenance import SHARD, Artefact, Origin

OVERLAY = "overlay"
"""Key of an artefact's details for the overlay's commit; absent or None for stock weights."""

GRAFTED = "grafted"
"""The same for the paths of the shards that carry it."""

RANKS = (0, 1)
"""Rank 0 stays on the head, rank 1 goes to the worker."""

Sizes = Mapping[str, Mapping[str, int]]
"""source -> path -> bytes."""


@dataclass(frozen=True)
class Wanted:
    """A source with the files that are wanted of it, at the commit it was resolved to."""

    source: Source
    commit: str
    files: tuple[File, ...]

    @classmethod
    def of(cls, source: Source, manifest: Manifest) -> Wanted:
        """Raises ManifestError when the manifest does not hold what the source asks for."""
        return cls(source, manifest.commit, manifest.select(source.files))

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.source.name


@dataclass(frozen=True)
class RankFile:
    """A verified and recorded rank file and what it was cut from."""

    rank: int
    size: int
    checkpoint: str
    """Commit."""
    overlay: str | None
    """Commit of the overlay that the shards carried; None for stock weights."""
    artefact: str = ""
    """What the record calls it."""
    folder: str = ""
    path: str = ""
    """Its name in that folder."""
    sha256: str = ""


@dataclass(frozen=True)
class Holdings:
    """What one machine holds. Bytes throughout; paths are those inside the repository."""

    recorded: Sizes = field(default_factory=dict)
    """Verified and recorded at the wanted commit, and unchanged since by the everyday check."""
    found: Sizes = field(default_factory=dict)
    """Whole by their size, not proven."""
    parts: Sizes = field(default_factory=dict)
    """Our own unfinished files, by what there is of them."""
    graft: str | None = None
    """Commit of the overlay that the checkpoint's shards carry, by the record."""
    unfinished: str | None = None
    """Commit of the overlay that some of them carry, since a graft of it, or its undoing, did not
    come to its end. All shards are there then; which state each is in, only a look inside tells."""
    work: int = 0
    """What a graft keeps besides the shards: what undoes it, or the rewritten shards."""
    moved: int = 0
    """Of the checkpoint's bytes, those that lie in the work folder and not in the cache."""
    ranks: tuple[RankFile, ...] = ()
    """Rank files, of one rank also several, cut from different weights."""
    strangers: frozenset[int] = frozenset()
    """Ranks of which a file lies where ours would, without a record."""
    staged: Mapping[int, int] = field(default_factory=dict)
    """Bytes of unfinished rank files of the wanted weights, by rank; their step makes use of them
    or takes them away."""
    replaced: Mapping[int, int] = field(default_factory=dict)
    """Bytes of rank files of the wanted weights that are known to be wrong; a cut deletes them."""
    elsewhere: frozenset[str] = frozenset()
    """Files of the checkpoint whose bytes lie there for another commit alone."""
    image: bool = False
    """Whether the image of the engine is there."""
    leftovers: int = 0
    """Interrupted downloads of other programs and their caches; never touched, only told."""

    @property
    def overlaid(self) -> str | None:
        """Commit of the overlay that some shards carry, all in order or not."""
        return self.graft or self.unfinished

    def rank(self, rank: int, checkpoint: str, overlay: str | None) -> RankFile | None:
        """The rank file that was cut from these commits."""
        wanted = (rank, checkpoint, overlay)
        found = (one for one in self.ranks if (one.rank, one.checkpoint, one.overlay) == wanted)
        return next(found, None)

    def begun(self, rank: int, size: int) -> int:
        """Of a rank file of that size, the bytes that its cut need not find room for."""
        return min(size, self.staged.get(rank, 0) + self.replaced.get(rank, 0))

    def settled(self, rank: int) -> Holdings:
        """The same once nothing unfinished or wrong of a rank is left."""
        staged = {one: size for one, size in self.staged.items() if one != rank}
        replaced = {one: size for one, size in self.replaced.items() if one != rank}
        return replace(self, staged=staged, replaced=replaced)

    def has(self, name: str, files: Iterable[File]) -> bool:
        """Whether all of these files of a source are recorded."""
        held = self.recorded.get(name, {})
        return all(file.path in held for file in files)

    def credit(self, name: str, files: Iterable[File]) -> int:
        """Bytes of these files that are there, proven or not, whole or in part."""
        return sum(self._credit(name, file) for file in files)

    def _credit(self, name: str, file: File) -> int:
        if file.path in self.recorded.get(name, {}) or file.path in self.found.get(name, {}):
            return file.size
        return min(file.size, self.parts.get(name, {}).get(file.path, 0))

    def proven(self, name: str, files: Iterable[File]) -> Holdings:
        """The same once these files of a source are whole, verified and recorded."""
        sizes = {file.path: file.size for file in files}
        return replace(
            self,
            recorded={**self.recorded, name: {**self.recorded.get(name, {}), **sizes}},
            found=_without(self.found, name, sizes),
            parts=_without(self.parts, name, sizes),
        )

    def without(self, name: str, files: Iterable[File]) -> Holdings:
        """The same once these files of a source are deleted."""
        paths = {file.path for file in files}
        return replace(
            self,
            recorded=_without(self.recorded, name, paths),
            found=_without(self.found, name, paths),
            parts=_without(self.parts, name, paths),
        )


def _without(sizes: Sizes, name: str, paths: Iterable[str]) -> Sizes:
    gone = set(paths)
    kept = {path: size for path, size in sizes.get(name, {}).items() if path not in gone}
    return {**sizes, name: kept}


Pair = Mapping[HostRole, Holdings]


def holder(name: str, files: Iterable[File], pair: Pair) -> HostRole | None:
    """A machine on which all of these files are recorded, the head before the worker."""
    files = tuple(files)
    return next((host for host in sorted(pair) if pair[host].has(name, files)), None)


def recorded(
    artefacts: Mapping[str, Artefact], wanted: Iterable[Wanted]
) -> dict[str, dict[str, int]]:
    """Files of the wanted sources that a machine's record vouches for.

    `artefacts` is the record of the machine without what failed the everyday check. What is
    recorded of another commit counts for nothing. A grafted shard differs from the Hub's own by
    intent; every other file must be recorded with the hash that the Hub gives.
    """
    return {
        one.name: {file.path: file.size for file in one.files if _vouched(artefact, file)}
        for one in wanted
        if (artefact := artefacts.get(one.name)) and artefact.commit == one.commit
    }


def _vouched(artefact: Artefact, file: File) -> bool:
    held = artefact.files.get(file.path)
    if held is None:
        return False
    if artefact.origin is Origin.GRAFTED and file.path.endswith(SHARD):
        carrying = artefact.details.get(GRAFTED)
        if carrying is None:
            return held.size == file.size
        if file.path in carrying:
            # One that a script wrote anew may have another header; whoever grafted looked inside.
            return True
    return held.agrees_with(file)


def recorded_ranks(artefacts: Mapping[str, Artefact]) -> tuple[RankFile, ...]:
    """Rank files that a machine's record vouches for.

    Their rank stands at the beginning of their name; what follows it, earlier releases did not
    write, so what they were cut from is taken from the entry.
    """
    return tuple(
        RankFile(rank, held.size, one.commit, _overlay(one), name, one.folder, path, held.sha256)
        for name, one in artefacts.items()
        if one.kind == "rank_file" and (rank := rank_of_name(name)) is not None
        for path, held in one.files.items()
    )


def rank_of_name(name: str) -> int | None:
    """Which rank an artefact is of, by its name."""
    return next((rank for rank in RANKS if name[:5] == f"rank{rank}"), None)


def recorded_graft(artefacts: Mapping[str, Artefact]) -> str | None:
    """Commit of the overlay that the checkpoint's recorded shards carry.

    None for stock ones, and when none of those is left that carry it.
    """
    artefact = artefacts.get("checkpoint")
    if artefact is None or artefact.origin is not Origin.GRAFTED:
        return None
    carrying = artefact.details.get(GRAFTED)
    left = carrying is None or any(path in artefact.files for path in carrying)
    return _overlay(artefact) if left else None


def _overlay(artefact: Artefact) -> str | None:
    """Commit of the overlay, among what a grafted or cut artefact has to remember."""
    return artefact.details.get(OVERLAY)
