"""What a look at a host says, as the plan needs it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .budget import FileSystem, Purpose
from .holdings import (
    RANKS,
    Holdings,
    Wanted,
    recorded,
    recorded_graft,
    recorded_ranks,
)
from .manifest import File, Manifest
from .provenance import Artefact, artefact_of

Seen = Mapping[str, Any]


def holdings(seen: Seen, wanted: Iterable[Wanted]) -> Holdings:
    """What a host holds of the wanted sources."""
    wanted = tuple(wanted)
    artefacts = _artefacts(seen, "artefacts")
    proven = recorded(artefacts, wanted)
    found, parts = {}, {}
    for one in wanted:
        left = [file for file in one.files if file.path not in proven.get(one.name, {})]
        found[one.name] = {file.path: file.size for file in left if _is_there(seen, one, file)}
        parts[one.name] = _parts(seen, one, left)
    # A rank file that was touched is not cut again before somebody has read it; see `problems`.
    ranks = {**recorded_ranks(_artefacts(seen, "doubtful")), **recorded_ranks(artefacts)}
    return Holdings(
        recorded=proven,
        found=found,
        parts=parts,
        graft=recorded_graft(artefacts),
        ranks=ranks,
        strangers=frozenset(
            file["rank"]
            for file in seen["ranks"]["files"]
            if file["rank"] in RANKS and not file["recorded"]
        ),
        image=seen["image"] is True,
        leftovers=sum(seen["leftovers"].values()),
    )


def filesystems(seen: Seen) -> tuple[FileSystem, ...]:
    """The file systems that the asked places of a host lie on."""
    return tuple(
        FileSystem(one["mount"], one["total"], one["free"], one["device"])
        for one in seen["filesystems"]
    )


def places(seen: Seen) -> dict[Purpose, str]:
    """Where the asked places of a host really lie, links followed."""
    found: dict[Purpose, str] = dict(seen["places"])
    return found


def manifests(seens: Iterable[Seen]) -> dict[str, Manifest]:
    """The lists of files that the Hub has told and hosts keep, by repository.

    Left out where two hosts take one revision for different commits: the Hub shall decide.
    """
    return _lists(seens, "manifests")


def trees(seens: Iterable[Seen]) -> dict[str, Manifest]:
    """The same of the caches' own lists: only to be used when the Hub cannot be asked."""
    return _lists(seens, "trees")


def problems(seen: Seen, host: str) -> list[str]:
    """What keeps anything from being planned for a host of that name, in sentences."""
    told = [
        f"{host}: {why.rstrip('.')}."
        for what, why in seen["unread"].items()
        if what in ("record", "filesystems", "ranks") or what.startswith("artefact ")
    ]
    touched = [
        name
        for name, artefact in _artefacts(seen, "doubtful").items()
        if artefact.kind == "rank_file"
    ]
    if touched:
        told.append(
            f"{host}: {' and '.join(sorted(touched))} changed since the last verification; run "
            "--tags verify, which reads it again and says whether it is still right, or, if you "
            "cut it anew, --tags adopt, which records what it is now."
        )
    return told


def _artefacts(seen: Seen, which: str) -> dict[str, Artefact]:
    return {name: artefact_of(name, entry) for name, entry in seen[which].items()}


def _lists(seens: Iterable[Seen], which: str) -> dict[str, Manifest]:
    found: dict[str, Manifest | None] = {}
    for seen in seens:
        for repo, data in seen[which].items():
            manifest = Manifest.from_dict(data)
            known = found.setdefault(repo, manifest)
            if known is not None and known.commit != manifest.commit:
                found[repo] = None
    return {repo: one for repo, one in found.items() if one is not None}


def _is_there(seen: Seen, one: Wanted, file: File) -> bool:
    """Whether a file of that size lies in the cache, in the snapshot or by its hash."""
    repo = one.source.repo
    named = seen["cached"].get(repo, {}).get(one.commit, {})
    return file.size in (named.get(file.path), seen["blobs"].get(repo, {}).get(file.etag))


def _parts(seen: Seen, one: Wanted, files: Sequence[File]) -> dict[str, int]:
    there = seen["parts"].get(one.source.repo, {})
    return {file.path: there[file.etag] for file in files if file.etag in there}
