"""What a host holds of the weights, as it is now; reads only, plans nothing.

A look is asked with

  home          of the account that owns the weights
  places        {"cache" | "work" | "ranks" | "images": absolute path}
  repos         [{"repo", "revision"}], a revision being a commit or the beginning of one
  image         name of the engine's image; empty is not asked
  images        names of images that steps of a plan would run; may be left out

and answers with plain data:

  artefacts     the record's entries with the files that pass the everyday check
  doubtful      the same with files that were touched since they were proven; reading them tells
  wrong         the same with files that are not there, have another size or failed a verification
  differences   both in sentences
  manifests     {repo: list of files at the asked revision}, as far as the Hub has told it
  trees         the same by the cache's own lists, which are anybody's who may write there
  cached        {repo: {commit: {path: bytes}}} of files in the cache's snapshots
  blobs         {repo: {hash: bytes}} of files in the cache, whether or not a snapshot names them
  parts         {repo: {hash: bytes}} of our unfinished files, and of files with holes
  leftovers     bytes that other programs left: {"incomplete", "xet"}
  places        where the asked places really lie, links followed
  filesystems   [{"mount", "total", "free", "device"}] of those places
  ranks         {"folder", "files": [{"name", "rank", "size", "footer", "problem", "recorded",
                "again"}]}; recorded: the record speaks of this very file, be it good or not;
                again: it was written since it was proven last, so it may be another cut;
                and "staged": [{"folder", "rank", "bytes"}] of rank files being cut or sent
  grafts        [{"folder", "repo", "checkpoint", "overlay", "method", "state", "shards", "there",
                "undo"}] as graft_state writes them; there: {path: bytes} of shards that lie in the
                work folder, undo: bytes of what undoes it
  image         true, false, or null when Docker cannot be asked
  images        the same by name
  tool          whether the installed tool is there
  unread        {what: why} of everything that could not be read and is missing above

Files that are known to be wrong are neither cached nor blobs: nothing is gained by having them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import paths
from ..errors import SparkPairError
from ..system import Runner, run_plainly
from . import graft_state, layout
from .cache import STAGING, Cache, occupied
from .kept import Kept, of_caches, of_hub
from .manifest import Manifest
from .provenance import (
    Artefact,
    Difference,
    Held,
    Provenance,
    Stat,
    Trouble,
    entry_of,
    everyday,
    stat_of,
)
from .rank_file import RankFileError, rank_of, read_footer
from .verify import Disk

Seen = dict[str, Any]

_DOCKER_SECONDS = 30
_SMALL_BYTES = 64 << 10
_RANK_FILES = "rank[01]of2-*.bin"
_DOUBTFUL = frozenset({Trouble.CHANGED})
"""Reading it again tells whether it is still right; of all other troubles it is not."""


def look(
    asked: Mapping[str, Any],
    *,
    provenance: Provenance | None = None,
    kept: Kept | None = None,
    runner: Runner = run_plainly,
    tool: str = paths.TOOL,
    mounts: Path = Path("/proc/self/mountinfo"),
) -> Seen:
    """Everything that a plan needs to know about this host, as described above. Never raises for
    what it finds; the look goes on without it."""
    cache = Cache.of_account(Path(asked["home"]))
    seeing = _Seeing()
    record = seeing.tried("record", (provenance or Provenance()).load, {})
    state = _state(record, seeing)
    repos = [(one["repo"], one["revision"]) for one in asked.get("repos", ())]
    places = {purpose: _resolved(Path(path)) for purpose, path in asked.get("places", {}).items()}
    wrong = _paths_of(state["wrong"])
    lists = kept or Kept()
    named = dict.fromkeys((asked.get("image", ""), *asked.get("images", ())))
    images = {
        name: seeing.tried("image", partial(_image, name, runner), None) for name in named if name
    }
    left = seeing.tried("leftovers", cache.leftovers, None)
    return {
        "artefacts": _entries(state["good"]),
        "doubtful": _entries(state["doubtful"]),
        "wrong": _entries(state["wrong"]),
        "differences": [str(one) for one in state["differences"]],
        "manifests": _lists(repos, partial(of_hub, lists), seeing, "kept list"),
        "trees": _lists(repos, partial(of_caches, lists, cache), seeing, "cache's list"),
        "cached": _by_repo(repos, lambda repo: _cached(cache, repo, wrong), seeing, "cached"),
        "blobs": _by_repo(repos, lambda repo: _blobs(cache, repo, wrong), seeing, "blobs"),
        "parts": _by_repo(repos, lambda repo: _parts(cache, repo, wrong), seeing, "parts"),
        "leftovers": {"incomplete": left.incomplete, "xet": left.xet} if left else {},
        "places": {purpose: str(path) for purpose, path in places.items()},
        "filesystems": seeing.tried(
            "filesystems", lambda: _filesystems(places.values(), mounts), []
        ),
        "ranks": seeing.tried("ranks", lambda: _ranks(places.get("ranks"), record), {"files": []}),
        "grafts": seeing.tried("grafts", lambda: _grafts(places.get("work")), []),
        "image": images.get(asked.get("image", "")),
        "images": images,
        "tool": os.access(tool, os.X_OK),
        "unread": seeing.unread,
    }


class _Seeing:
    """Looks at one thing after the other; what fails is noted and does not end the look."""

    def __init__(self) -> None:
        self.unread: dict[str, str] = {}

    def tried(self, what: str, look: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return look()
        except (SparkPairError, OSError) as error:
            self.unread[what] = str(error)
            return otherwise


# ---- the record ---------------------------------------------------------------------------------


def _state(record: Mapping[str, Artefact], seeing: _Seeing) -> dict[str, Any]:
    """Recorded files by the everyday check: good, doubtful and wrong ones, as artefacts."""
    found: dict[str, Any] = {"good": {}, "doubtful": {}, "wrong": {}, "differences": []}
    for name, artefact in record.items():
        differences: Sequence[Difference] = seeing.tried(
            f"artefact {name}", partial(everyday, artefact, Disk(artefact.folder).stat), ()
        )
        if f"artefact {name}" in seeing.unread:
            continue
        found["differences"] += differences
        doubtful = {one.path for one in differences if one.trouble in _DOUBTFUL}
        wrong = {one.path for one in differences} - doubtful
        for kind, paths_ in (
            ("good", set(artefact.files) - doubtful - wrong),
            ("doubtful", doubtful),
            ("wrong", wrong),
        ):
            if paths_:
                found[kind][name] = _only(artefact, paths_)
    return found


def _only(artefact: Artefact, wanted: set[str]) -> Artefact:
    files = {path: held for path, held in artefact.files.items() if path in wanted}
    return replace(artefact, files=files)


def _entries(artefacts: Mapping[str, Artefact]) -> dict[str, Any]:
    return {name: entry_of(artefact) for name, artefact in artefacts.items()}


def _paths_of(artefacts: Mapping[str, Artefact]) -> set[str]:
    """The real files behind the paths of some artefacts."""
    return {
        os.path.realpath(Path(one.folder, path)) for one in artefacts.values() for path in one.files
    }


# ---- the cache ----------------------------------------------------------------------------------


def _lists(
    repos: Sequence[tuple[str, str]],
    look: Callable[[str, str], Manifest | None],
    seeing: _Seeing,
    what: str,
) -> Seen:
    found = {}
    for repo, revision in repos:
        manifest = seeing.tried(f"{what} of {repo}", partial(look, repo, revision), None)
        if manifest is not None:
            found[repo] = manifest.as_dict()
    return found


def _by_repo(
    repos: Sequence[tuple[str, str]],
    look: Callable[[str], Seen],
    seeing: _Seeing,
    what: str,
) -> Seen:
    names = dict.fromkeys(repo for repo, _ in repos)
    return {repo: seeing.tried(f"{what} of {repo}", partial(look, repo), {}) for repo in names}


def _cached(cache: Cache, repo: str, wrong: set[str]) -> Seen:
    """Files of every commit in the cache that are there, by size; not those known to be wrong."""
    snapshots = cache.folder(repo) / "snapshots"
    return {
        commit.name: dict(sorted(_files(commit, wrong)))
        for commit in sorted(snapshots.glob("*"))
        if commit.is_dir()
    }


def _files(snapshot: Path, wrong: set[str]) -> list[tuple[str, int]]:
    found = []
    for folder, _, names in os.walk(snapshot):
        for name in names:
            path = Path(folder, name)
            size = _size(path, wrong)
            if size is not None:
                found.append((path.relative_to(snapshot).as_posix(), size))
    return found


def _blobs(cache: Cache, repo: str, wrong: set[str]) -> Seen:
    """Whole files by their hash, whether or not a snapshot names them."""
    found = {}
    for path in sorted((cache.folder(repo) / "blobs").glob("*")):
        size = _size(path, wrong) if "." not in path.name else None
        if size is not None:
            found[path.name] = size
    return found


def _size(path: Path, wrong: set[str]) -> int | None:
    """Bytes of the regular file at the end of all links, without holes: with them it is not whole.
    None without a file, or for a wrong one."""
    real = os.path.realpath(path)
    try:
        status = os.lstat(real)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or real in wrong:
        return None
    # Small files may lie in the directory itself and occupy nothing.
    return status.st_size if status.st_size <= _SMALL_BYTES else occupied(status)


def _parts(cache: Cache, repo: str, wrong: set[str]) -> Seen:
    """Bytes of unfinished files, by the hash of the file: ours, and those in place with holes."""
    found = {}
    for name, size in _blobs(cache, repo, wrong).items():
        if size < (cache.folder(repo) / "blobs" / name).stat().st_size:
            found[name] = size
    for path in sorted((cache.folder(repo) / STAGING).glob("*.part")):
        with contextlib.suppress(FileNotFoundError):  # it was put in its place meanwhile
            found[path.stem] = max(occupied(path.lstat()), found.get(path.stem, 0))
    return found


# ---- rank files, image --------------------------------------------------------------------------


def _ranks(folder: Path | None, record: Mapping[str, Artefact]) -> Seen:
    if folder is None:
        return {"folder": "", "files": []}
    recorded = {
        os.path.realpath(Path(artefact.folder, path)): held
        for name, artefact in record.items()
        if artefact.kind == "rank_file"
        for path, held in artefact.files.items()
    }
    # What is still being cut or sent lies in a hidden folder.
    paths_ = (
        path
        for path in sorted(folder.rglob(_RANK_FILES))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    files = [_rank(folder, path, recorded) for path in paths_]
    return {
        "folder": str(folder),
        "files": [one for one in files if one],
        "staged": [*_staged(folder)],
    }


def _staged(folder: Path) -> Iterator[Seen]:
    """What an interrupted cut or transfer has left for its next run, or is at work on."""
    kinds = {layout.cutting(rank): rank for rank in (0, 1)} | {layout.SENDING: 1}
    for hidden, rank in kinds.items():
        for place in sorted(folder.rglob(hidden)):
            count = sum(occupied(path.lstat()) for path in place.rglob("*") if path.is_file())
            where = place.parent.relative_to(folder).as_posix()
            yield {"folder": where, "rank": rank, "bytes": count}


def _rank(folder: Path, path: Path, recorded: Mapping[str, Held]) -> Seen | None:
    found = stat_of(path)
    if found is None:
        return None
    size = found.size
    held = recorded.get(os.path.realpath(path))
    told: Seen = {
        "name": path.relative_to(folder).as_posix(),
        "rank": rank_of(path.name),
        "size": size,
        "footer": None,
        "problem": "",
        # Whether the record speaks of this very file, be it good or not.
        "recorded": held is not None and held.size == size,
        "again": held is not None and _written_since(held, found),
    }
    try:
        footer = read_footer(path)
    except (RankFileError, OSError) as error:
        return {**told, "problem": str(error)}
    return {
        **told,
        "footer": {
            "index_sha256": footer.index_sha256,
            "entries": footer.entries,
            "bytes": footer.data_bytes,
        },
    }


def _written_since(held: Held, found: Stat) -> bool:
    """Whether a rank file is another one than was proven last, as far as that can be seen.

    One that went bad by itself carries its old time: nobody shall adopt that.
    """
    if held.failed_at is None:
        return held.stat != found
    return found.mtime_ns > held.verified_at * 1e9


def _grafts(work: Path | None) -> list[Seen]:
    if work is None:
        return []
    return [
        {
            "folder": name,
            **state.as_dict(),
            "there": state.there(work / name),
            "undo": graft_state.undo_bytes(work / name),
        }
        for name, state in graft_state.read_all(work).items()
    ]


def _image(name: str, runner: Runner) -> bool:
    done = runner(
        ["docker", "image", "inspect", "--format", "{{.Id}}", "--", name], _DOCKER_SECONDS
    )
    if done.ok:
        return True
    if "no such image" in done.err.lower():
        return False
    raise OSError(f"docker does not tell about {name}: {done.last_words(1)}")


# ---- file systems -------------------------------------------------------------------------------


def _resolved(path: Path) -> Path:
    """Where a path leads, which need not exist yet: a link to a larger disk is followed."""
    return Path(os.path.realpath(path))


def _filesystems(places: Sequence[Path] | Any, mounts: Path) -> list[Seen]:
    """The file systems that the places lie on, each once, by its mount."""
    table = _mounts(mounts.read_text(encoding="utf-8", errors="replace"))
    found: dict[str, Seen] = {}
    for place in places:
        holders = [mount for mount in table if place.is_relative_to(mount)]
        if not holders:
            continue
        mount = max(holders, key=lambda one: len(Path(one).parts))
        status = os.statvfs(mount)
        found[mount] = {
            "mount": mount,
            "total": status.f_blocks * status.f_frsize,
            "free": status.f_bavail * status.f_frsize,
            "device": table[mount],
        }
    return [found[mount] for mount in sorted(found)]


def _mounts(text: str) -> dict[str, str]:
    """What is mounted where: the device of every mount point, the last mount of each counts."""
    found = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, source = before.split(), after.split()
        if len(fields) < 5 or len(source) < 2:
            continue
        device = source[1] if source[1].startswith("/dev/") else fields[2]
        found[_unescaped(fields[4])] = device
    return found


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
