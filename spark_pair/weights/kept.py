"""What repositories hold at a commit, kept on a host.

A commit never changes, so its list of files is asked for once. It is kept apart from the cache,
which belongs to an account and may be emptied. The cache's own lists are kept as well once files
were held against them, but as what they are: they count only until the Hub has told its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import jsonfile, paths
from .cache import Cache
from .manifest import Manifest, ManifestError

SCHEMA = 1


class Kept:
    """The lists of one host. Writing needs the rights to the folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or paths.VAR / "manifests"

    def keep(self, manifest: Manifest) -> bool:
        """Keep a list; whether it was written. The Hub's stays: a commit is a commit."""
        path = self.path(manifest.repo, manifest.commit)
        there = self._read(path)
        if there is not None:
            from_hub = manifest.told_by == "hub"
            if there.told_by == "hub" or (there == manifest and not from_hub):
                return False
        jsonfile.write(path, {"schema": SCHEMA, **manifest.as_dict()})
        return True

    def find(self, repo: str, revision: str) -> list[Manifest]:
        """The lists of a repository whose commit begins so. OSError."""
        found = map(self._read, self.folder.glob(f"{_name(repo)}@{revision}*.json"))
        return [one for one in found if one is not None and one.repo == repo]

    def path(self, repo: str, commit: str) -> Path:
        """Where a list is, if it is kept."""
        return self.folder / f"{_name(repo)}@{commit}.json"

    def _read(self, path: Path) -> Manifest | None:
        data = jsonfile.read(path)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            return None
        try:
            return Manifest.from_dict(data)
        except ManifestError:
            return None


def of_hub(kept: Kept, repo: str, revision: str) -> Manifest | None:
    """What the Hub said of a commit, kept on this host; OSError.

    None also when the revision is the beginning of several commits: then only the Hub can say which
    is meant.
    """
    found = [one for one in kept.find(repo, revision) if one.told_by == "hub"]
    return found[0] if len(found) == 1 else None


def of_caches(kept: Kept, cache: Cache, repo: str, revision: str) -> Manifest | None:
    """The same by the cache's own lists, and by what is kept of such; OSError.

    The cache's comes first, since it may have been put right since. None also when the host knows
    several commits that begin so, whoever told them.
    """
    ours = {one.commit: one for one in kept.find(repo, revision)}
    trees = {commit for commit in cache.trees(repo) if commit.startswith(revision)}
    if len(commits := trees | set(ours)) != 1:
        return None
    (commit,) = commits
    found = cache.read_tree(repo, commit) or ours.get(commit)
    return found if found and found.told_by == "cache" else None


def ordered(order: Mapping[str, Any]) -> Iterator[Manifest]:
    """The lists that a job's order carries. Raises ManifestError."""
    sources, lists = (order.get(key, ()) for key in ("sources", "lists"))
    for one in (order, *(sources if isinstance(sources, Iterable) else ())):
        if isinstance(one, Mapping) and "manifest" in one:
            yield Manifest.from_dict(one["manifest"])
    yield from map(Manifest.from_dict, lists)


def _name(repo: str) -> str:
    # The names of a/b--c and a--b/c are not to be one.
    return "--".join(part.replace("--", "%2D%2D") for part in repo.split("/"))
