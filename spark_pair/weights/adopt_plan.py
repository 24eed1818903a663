"""What lies on a pair without a record, and what `adopt` shall prove and record of it. Pure.

A pair that was prepared by hand holds what took hours to fetch and cut, and nobody wrote down what
it is. Files of a repository prove themselves by the Hub's hashes. Rank files cannot: stock and
grafted ones have the same names and sizes, so the operator says what they were cut from, and the
name of the folder they lie in must not say otherwise.

`seen` is what `weights/look.py` tells of a host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..jobs.words import size as in_words
from .holdings import OVERLAY, RANKS, Wanted, recorded
from .manifest import (
    HOST_ROLES,
    File,
    HostRole,
    Manifest,
    ManifestError,
    Source,
    is_commit,
    is_prefix,
)
from .provenance import RANK_FILE, Artefact, artefact_of
from .rank_file import named_revisions, rank_of

SCHEMA = 1
CHECKPOINT = "checkpoint"
STOCK = "none"
"""How the operator says that no overlay was applied."""

CHECKPOINT_VARIABLE = "weights_adopt_checkpoint"
OVERLAY_VARIABLE = "weights_adopt_overlay"

Seen = Mapping[str, Any]


@dataclass(frozen=True)
class Stated:
    """What the operator says that the rank files were cut from."""

    checkpoint: str = ""
    """Commit or its beginning; empty when not stated."""
    overlay: str = ""
    """The same of the overlay, "none" for stock weights; empty when not stated."""

    @property
    def grafted(self) -> bool:
        """Whether an overlay is stated."""
        return self.overlay not in ("", STOCK)


@dataclass(frozen=True)
class Orders:
    """What both hosts are to do."""

    orders: Mapping[HostRole, dict[str, Any]]
    """The order of the job `adopt` of each host on which there is something to do."""
    problems: tuple[str, ...]
    """Why it cannot be done yet; each says what to do. With problems there are no orders."""


@dataclass(frozen=True)
class RankFound:
    """A rank file as it was seen from outside."""

    path: Path
    rank: int
    size: int
    tensors: int | None
    """None when its end could not be understood."""
    problem: str
    recorded: bool
    """Whether the record speaks of it."""
    again: bool = False
    """Whether it was written since then: it may have been cut anew under its old name."""

    @property
    def place(self) -> str:
        """Its folders and its name as far as they tell it from others."""
        return "/".join(self.path.parts[-4:])


# ---- what lies there -----------------------------------------------------------------------------


def found(
    seen: Seen, sources: Iterable[Source], manifests: Mapping[str, Manifest], role: HostRole
) -> list[str]:
    """What lies on a host and has no record, one line each; nothing for a finished host."""
    lines: list[str] = []
    for source in sources:
        lines += _source_lines(seen, source, manifests.get(source.repo))
    lines += [_rank_line(file, role) for file in _unrecorded_ranks(seen)]
    return lines


def _source_lines(seen: Seen, source: Source, manifest: Manifest | None) -> Iterator[str]:
    for commit, files in sorted(seen["cached"].get(source.repo, {}).items()):
        if manifest is not None and commit == manifest.commit:
            new = unrecorded(seen, Wanted.of(source, manifest))
            if new:
                total = in_words(sum(file.size for file in new))
                yield f"{source.name}: {_files(len(new))} of {commit[:8]}, {total}, in the cache"
        elif manifest is not None:
            total = in_words(sum(files.values()))
            yield (
                f"{source.name}: {_files(len(files))} of {commit[:8]}, {total}, in the cache; not "
                f"the wanted {manifest.commit[:8]}, so they count for nothing"
            )


def _rank_line(file: RankFound, role: HostRole) -> str:
    words = f"rank {file.rank}: {file.place}, {in_words(file.size)}"
    words += f", {file.tensors} tensors" if file.tensors is not None else ""
    words += ", written since it was verified" if file.again else ""
    if file.rank != rank_of_host(role):
        words += f"; rank {file.rank} is served by the {_host_of_rank(file.rank)}, not by this host"
    return f"{words}; {file.problem}" if file.problem else words


def unrecorded(seen: Seen, wanted: Wanted) -> tuple[File, ...]:
    """The wanted files that lie in the cache under their name and have no valid record.

    Of any size: a file of the wrong one is for the job to refuse by name.
    """
    there = seen["cached"].get(wanted.source.repo, {}).get(wanted.commit, {})
    known = recorded(artefacts(seen), [wanted]).get(wanted.name, {})
    return tuple(file for file in wanted.files if file.path in there and file.path not in known)


def all_recorded(seens: Mapping[HostRole, Seen], source: Source, manifest: Manifest) -> bool:
    """Whether nothing that a list wants lies on any host without a record."""
    try:
        wanted = Wanted.of(source, manifest)
    except ManifestError:
        return False
    return not any(unrecorded(seen, wanted) for seen in seens.values())


def artefacts(seen: Seen) -> dict[str, Artefact]:
    """What is recorded on a host and passes the everyday check."""
    return {name: artefact_of(name, entry) for name, entry in seen["artefacts"].items()}


def ranks(seen: Seen) -> list[RankFound]:
    """All files that are named like rank files, by path."""
    folder = Path(seen["ranks"].get("folder", ""))
    made = []
    for entry in seen["ranks"]["files"]:
        path = folder / entry["name"]
        rank = rank_of(path.name)
        if rank is not None:
            footer = entry.get("footer") or {}
            tensors = footer.get("entries")
            made.append(
                RankFound(
                    path,
                    rank,
                    entry["size"],
                    tensors,
                    entry["problem"],
                    entry["recorded"],
                    entry["again"],
                )
            )
    return sorted(made, key=lambda file: (file.rank, str(file.path)))


def _unrecorded_ranks(seen: Seen) -> list[RankFound]:
    return [file for file in ranks(seen) if file.again or not file.recorded]


def rank_of_host(role: HostRole) -> int:
    """The rank that a host of that role serves."""
    return HOST_ROLES.index(role)


def _host_of_rank(rank: int) -> HostRole:
    return HOST_ROLES[RANKS.index(rank)]


# ---- what is to be done --------------------------------------------------------------------------


def cuts(seens: Mapping[HostRole, Seen], stated: Stated) -> bool:
    """Whether rank files are to be recorded, about which something must be stated."""
    return any(_ranks_to_adopt(seen, role, stated) for role, seen in seens.items())


def contradiction(stated: Stated, *, overlay_wanted: bool) -> str:
    """Why nothing is recorded as stated: the plan would want it cut anew. "" when it agrees."""
    if not stated.overlay or stated.grafted == overlay_wanted:
        return ""
    said, now = (str(one).lower() for one in (stated.grafted, overlay_wanted))
    return (
        f"{OVERLAY_VARIABLE} is {stated.overlay!r}, but ablit_graft_enabled is {now}: recorded so, "
        "the rank files would not be what is wanted, and would have to be cut anew. Set "
        f"ablit_graft_enabled: {said}, then adopt again"
    )


def order(
    seens: Mapping[HostRole, Seen],
    sources: Sequence[Source],
    manifests: Mapping[str, Manifest],
    stated: Stated,
    *,
    asked: Mapping[HostRole, Mapping[str, Any]],
    names: Mapping[HostRole, str],
    known: Sequence[Source] = (),
) -> Orders:
    """What each host is to prove and record; nothing for what is recorded already.

    `manifests` by repository; `asked` is what `look` was asked on each host (its home); `names` are
    the hosts' names; `known` are sources of which nothing is wanted, but whose commits may be
    stated. Raises ManifestError when a manifest does not hold what its source wants.
    """
    problems = [
        f"{names[role]} has files of {source.repo} in its cache, and what they should be is known "
        "neither from the Hub nor from the cache's own list: let the controller reach the Hub, "
        "then run it again"
        for source in sources
        for role, seen in seens.items()
        if source.enabled and source.repo not in manifests and seen["cached"].get(source.repo)
    ]
    wanted = [
        Wanted.of(source, manifests[source.repo]) for source in sources if source.repo in manifests
    ]
    new_ranks = {role: _ranks_to_adopt(seen, role, stated) for role, seen in seens.items()}
    cut_from = None
    if any(new_ranks.values()):
        told = _cut_from(stated, [*sources, *known], manifests)
        if isinstance(told, str):
            problems.append(_with_suggestion(told, new_ranks, names))
        else:
            cut_from = told
    if problems:
        return Orders({}, tuple(problems))
    # A run that wants the overlay asks what it consists of, which the hosts then know.
    lists = [
        manifests[source.repo].as_dict()
        for source in sources
        if source.name == OVERLAY and source.repo in manifests
    ]
    orders: dict[HostRole, dict[str, Any]] = {}
    for role, seen in seens.items():
        entries = [_source_entry(seen, one, manifests[one.source.repo]) for one in wanted]
        files = [entry for entry in entries if entry["files"]]
        cuts = [_rank_entry(file, cut_from) for file in new_ranks[role] if cut_from]
        if files or cuts:
            orders[role] = {
                "schema": SCHEMA,
                "role": role,
                "home": asked[role]["home"],
                "sources": files,
                "ranks": cuts,
                "lists": lists if cuts and stated.grafted else [],
            }
    return Orders(orders, ())


@dataclass(frozen=True)
class _CutFrom:
    repo: str
    checkpoint: str
    overlay: str | None


def _source_entry(seen: Seen, wanted: Wanted, manifest: Manifest) -> dict[str, Any]:
    paths = [file.path for file in unrecorded(seen, wanted)]
    return {"name": wanted.name, "manifest": manifest.as_dict(), "files": paths}


def _rank_entry(file: RankFound, cut_from: _CutFrom) -> dict[str, Any]:
    return {
        "rank": file.rank,
        "path": str(file.path),
        "repo": cut_from.repo,
        "checkpoint": cut_from.checkpoint,
        "overlay": cut_from.overlay,
    }


def _ranks_to_adopt(seen: Seen, role: HostRole, stated: Stated) -> list[RankFound]:
    """Rank files that the host needs a record of.

    Those of the other host's rank count only when there is none of its own: then somebody has
    mixed the hosts up, and the job says so. Otherwise they are left over from the cut.
    """
    rank = rank_of_host(role)
    known = [
        (artefact.commit, artefact.details.get(OVERLAY))
        for name, artefact in artefacts(seen).items()
        if artefact.kind == RANK_FILE and name.startswith(f"rank{rank}")
    ]
    new = _unrecorded_ranks(seen)
    own = [file for file in new if file.rank == rank]
    matching = [file for file in own if _folder_agrees(file, stated)]
    if known:
        # Stock and grafted ones can lie there together, each on a record of its own.
        other = bool(stated.checkpoint) and not any(_agrees(one, stated) for one in known)
        return [file for file in matching if named_revisions(file.path)] if other else []
    return matching or own or new


def _folder_agrees(file: RankFound, stated: Stated) -> bool:
    named = named_revisions(file.path)
    return named is None or not stated.checkpoint or _agrees(named, stated)


def _agrees(revisions: tuple[str, str | None], stated: Stated) -> bool:
    checkpoint, overlay = revisions
    if not _same(checkpoint, stated.checkpoint):
        return False
    if not stated.overlay:
        return True
    if overlay is None or stated.overlay == STOCK:
        return overlay is None and stated.overlay == STOCK
    return _same(overlay, stated.overlay)


def _same(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _cut_from(
    stated: Stated, sources: Sequence[Source], manifests: Mapping[str, Manifest]
) -> _CutFrom | str:
    """The full commits that are stated, or a sentence about what is missing."""
    missing = [
        variable
        for variable, value in (
            (CHECKPOINT_VARIABLE, stated.checkpoint),
            (OVERLAY_VARIABLE, stated.overlay),
        )
        if not value
    ]
    if missing:
        return f"Nobody has said what they were cut from: set {' and '.join(missing)}"
    source = next((one for one in sources if one.name == CHECKPOINT), None)
    if source is None:
        return "There is no source named checkpoint, so nobody knows which repository it was"
    checkpoint = _full(stated.checkpoint, CHECKPOINT, sources, manifests)
    if checkpoint is None:
        return _unknown(CHECKPOINT_VARIABLE, stated.checkpoint)
    if stated.overlay == STOCK:
        return _CutFrom(source.repo, checkpoint, None)
    overlay = _full(stated.overlay, OVERLAY, sources, manifests)
    if overlay is None:
        return _unknown(OVERLAY_VARIABLE, stated.overlay)
    return _CutFrom(source.repo, checkpoint, overlay)


def _full(
    revision: str, name: str, sources: Sequence[Source], manifests: Mapping[str, Manifest]
) -> str | None:
    """The whole commit of which the operator gave the beginning."""
    if is_commit(revision):
        return revision
    known = [
        commit
        for source in sources
        if source.name == name
        for commit in (source.revision, getattr(manifests.get(source.repo), "commit", ""))
        if is_commit(commit) and commit.startswith(revision)
    ]
    return known[0] if known and is_prefix(revision) else None


def _unknown(variable: str, value: str) -> str:
    return (
        f"{variable} is {value!r}, which is not the beginning of a commit that is known here: give "
        "all 40 hex digits in quotes"
    )


def _with_suggestion(
    told: str, new: Mapping[HostRole, Sequence[RankFound]], names: Mapping[HostRole, str]
) -> str:
    """What lies where, what is missing, and what the folders' names suggest."""
    there = "; ".join(
        f"{names[role]}: {', '.join(file.place for file in files)}"
        for role, files in new.items()
        if files
    )
    named = {named_revisions(file.path) for files in new.values() for file in files}
    words = f"Rank files without a record that holds lie there ({there}). {told}."
    if len(named) == 1 and (revisions := named.pop()) is not None:
        checkpoint, overlay = revisions
        words += (
            f' By the name of their folder it would be {CHECKPOINT_VARIABLE}: "{checkpoint}" and '
            f'{OVERLAY_VARIABLE}: "{overlay or STOCK}", if you know that to be true.'
        )
    return words


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
