"""What a look at a host says, as the plan needs it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from . import layout
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
from .provenance import RANK_FILE, Artefact, artefact_of
from .rank_file import named_revisions

Seen = Mapping[str, Any]


def holdings(seen: Seen, wanted: Iterable[Wanted]) -> Holdings:
    """What a host holds of the wanted sources."""
    wanted = tuple(wanted)
    artefacts = _artefacts(seen, "artefacts")
    proven = recorded(artefacts, wanted)
    graft = recorded_graft(artefacts)
    unfinished = ""
    for journal in _journals(seen, wanted):
        if journal["state"] != "grafted" or journal["overlay"] != graft:
            # What lies somewhere on the way is proven by whoever goes on with it or takes it back.
            unfinished = journal["overlay"]
            for one in (one for one in wanted if one.name == "checkpoint"):
                proven[one.name] = {**proven.get(one.name, {}), **_under_way(seen, one, journal)}
            break
    found, parts = {}, {}
    for one in wanted:
        left = [file for file in one.files if file.path not in proven.get(one.name, {})]
        found[one.name] = {file.path: file.size for file in left if is_there(seen, one, file)}
        parts[one.name] = _parts(seen, one, left)
    work, moved = _worked_on(_journals(seen, wanted), proven)
    # A rank file that was touched is not cut again before somebody has read it; see `problems`.
    ranks = (*recorded_ranks(artefacts), *recorded_ranks(_artefacts(seen, "doubtful")))
    return Holdings(
        recorded=proven,
        found=found,
        parts=parts,
        graft=None if unfinished else graft,
        unfinished=unfinished or None,
        work=work,
        moved=moved,
        ranks=ranks,
        strangers=frozenset(
            file["rank"]
            for file in seen["ranks"]["files"]
            if file["rank"] in RANKS and not file["recorded"] and _may_be_meant(file, wanted)
        ),
        staged=_staged(seen, wanted),
        replaced=_replaced(seen, wanted),
        elsewhere=frozenset(
            file.path
            for one in wanted
            if one.name == "checkpoint"
            for file in one.files
            if file.path not in proven.get(one.name, {}) and _is_of_others(seen, one, file)
        ),
        image=seen["image"] is True,
        leftovers=sum(seen["leftovers"].values()),
    )


def journal(seen: Seen, checkpoint: Wanted, overlay: str) -> Mapping[str, Any] | None:
    """What is noted of a graft of that overlay (commit); None when nothing is."""
    meant = (checkpoint.source.repo, checkpoint.commit, overlay)
    found = (
        one for one in seen["grafts"] if (one["repo"], one["checkpoint"], one["overlay"]) == meant
    )
    return next(found, None)


def _journals(seen: Seen, wanted: Iterable[Wanted]) -> list[Mapping[str, Any]]:
    """Grafts of the wanted checkpoint of which something lies in the work folder.

    An undoing is not over before its note is gone, even when the last shard is back.
    """
    checkpoint = next((one for one in wanted if one.name == "checkpoint"), None)
    if checkpoint is None:
        return []
    meant = (checkpoint.source.repo, checkpoint.commit)
    return [
        one
        for one in seen["grafts"]
        if (one["repo"], one["checkpoint"]) == meant and (one["there"] or one["state"] == "undoing")
    ]


def _under_way(seen: Seen, one: Wanted, journal: Mapping[str, Any]) -> dict[str, int]:
    """Files of the checkpoint that need no download, since they lie in one of both places."""
    return {
        file.path: file.size
        for file in one.files
        if file.path in journal["there"] or is_there(seen, one, file)
    }


def _worked_on(
    journals: Iterable[Mapping[str, Any]], proven: Mapping[str, Mapping[str, int]]
) -> tuple[int, int]:
    """Bytes that a graft keeps besides the shards, and bytes of shards that it moved."""
    work = moved = 0
    for one in journals:
        work += one["undo"]
        if one["method"] == "recipe":
            work += sum(one["there"].values())
        else:
            known = proven.get("checkpoint", {})
            moved += sum(size for path, size in one["there"].items() if path in known)
    return work, moved


def _wanted_folder(wanted: Iterable[Wanted]) -> str:
    """Where the wanted rank files lie below the folder of all."""
    commits = {one.name: one.commit for one in wanted}
    if "checkpoint" not in commits:
        return ""
    return layout.rank_files(Path(), commits["checkpoint"], commits.get("overlay")).as_posix()


def _staged(seen: Seen, wanted: Iterable[Wanted]) -> dict[int, int]:
    """Bytes of unfinished rank files of the wanted weights, by rank."""
    folder = _wanted_folder(wanted)
    sums: dict[int, int] = {}
    for one in seen["ranks"].get("staged", ()):
        if one["folder"] == folder:
            sums[one["rank"]] = sums.get(one["rank"], 0) + one["bytes"]
    return sums


def _replaced(seen: Seen, wanted: Iterable[Wanted]) -> dict[int, int]:
    """Bytes of rank files of the wanted weights that are known to be wrong, by rank."""
    folder = _wanted_folder(wanted)
    return {
        file["rank"]: file["size"]
        for file in seen["ranks"]["files"]
        if PurePosixPath(file["name"]).parent.as_posix() == folder and _is_known_wrong(seen, file)
    }


def _is_known_wrong(seen: Seen, file: Mapping[str, Any]) -> bool:
    """Whether the record says of a rank file that it is wrong; a cut is let to replace it."""
    path = f"{seen['ranks']['folder']}/{file['name']}"
    return any(
        f"{entry['folder']}/{one}" == path
        for entry in seen["wrong"].values()
        if entry["kind"] == RANK_FILE
        for one in entry["files"]
    )


def _may_be_meant(file: Mapping[str, Any], wanted: Iterable[Wanted]) -> bool:
    """Whether an unrecorded rank file lies where the wanted one would, or where nothing is told.

    In the folder of other weights it is no matter of this plan.
    """
    named = named_revisions(PurePosixPath(file["name"]))
    if named is None:
        return True
    commits = {one.name: one.commit[: layout.DIGITS] for one in wanted}
    return named == (commits.get("checkpoint"), commits.get("overlay"))


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


def is_there(seen: Seen, one: Wanted, file: File) -> bool:
    """Whether a file of that size lies in the cache, in the snapshot or by its hash."""
    repo = one.source.repo
    named = seen["cached"].get(repo, {}).get(one.commit, {})
    return file.size in (named.get(file.path), seen["blobs"].get(repo, {}).get(file.etag))


def _is_of_others(seen: Seen, one: Wanted, file: File) -> bool:
    """Whether a file is there by its hash alone, and another commit names it: nothing of it is
    ours to delete."""
    commits = seen["cached"].get(one.source.repo, {})
    if file.path in commits.get(one.commit, {}):
        return False
    return any(named.get(file.path) == file.size for named in commits.values())


def _parts(seen: Seen, one: Wanted, files: Sequence[File]) -> dict[str, int]:
    there = seen["parts"].get(one.source.repo, {})
    return {file.path: there[file.etag] for file in files if file.etag in there}
