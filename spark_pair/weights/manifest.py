"""What a repository of the Hub holds at one commit, and which of it is wanted. Pure.

Sizes and hashes come from the Hub's own metadata; nothing is guessed. A manifest is what every
later step proves its files against, so it is checked on the way in: a hash that is no hash, or a
path that leaves its folder, is refused here and nowhere else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from ..errors import SparkPairError

HostRole = Literal["head", "worker"]
HOST_ROLES: tuple[HostRole, ...] = ("head", "worker")

Teller = Literal["hub", "cache"]
"""Who said what a commit holds."""
TELLERS: tuple[Teller, ...] = ("hub", "cache")
SHORTEST_PREFIX = 7
"""Hex digits of a commit below which a prefix is not taken for a name."""

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(rf"[0-9a-f]{{{SHORTEST_PREFIX},40}}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_HEX = {"git_sha1": re.compile(r"[0-9a-f]{40}"), "sha256": re.compile(r"[0-9a-f]{64}")}
_HEX["xet_hash"] = _HEX["sha256"]


class ManifestError(SparkPairError):
    """A description of files that cannot be trusted or does not hold what is wanted."""


class Hasher(Protocol):
    """The part of a hashlib object that is used here."""

    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...

    def copy(self) -> Hasher: ...


@dataclass(frozen=True)
class File:
    """One file of a repository at a commit, as the Hub describes it."""

    path: str
    """Inside the repository, with forward slashes."""
    size: int
    """Bytes."""
    git_sha1: str
    """Name of git's object: of the file itself, or of its pointer when sha256 is there."""
    sha256: str | None = None
    """Of the content of a large file; None for a small one, which git_sha1 proves."""
    xet_hash: str | None = None

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if "\0" in self.path or any(part in ("", ".", "..") for part in parts):
            raise ManifestError(f"{self.path!r} is not a path inside a repository.")
        if type(self.size) is not int or self.size < 0:
            raise ManifestError(f"{self.path} has {self.size!r} for a size in bytes.")
        for key, pattern in _HEX.items():
            value = getattr(self, key)
            if value is None and key != "git_sha1":
                continue
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise ManifestError(f"{self.path} has {value!r} for {key}, which is no such hash.")

    @property
    def etag(self) -> str:
        """The hash that proves the content; also the name of the blob in a cache."""
        return self.sha256 or self.git_sha1

    @property
    def proof(self) -> Literal["sha256", "git_sha1"]:
        """Which of the hashes `etag` is."""
        return "sha256" if self.sha256 else "git_sha1"

    def hasher(self) -> Hasher:
        """A fresh hash whose hexdigest over the whole content equals `etag`."""
        if self.sha256:
            return hashlib.sha256()
        # Git names what it keeps by this hash; nobody chose it for its strength.
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "path": self.path,
            "size": self.size,
            "git_sha1": self.git_sha1,
            "sha256": self.sha256,
            "xet_hash": self.xet_hash,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> File:
        """The reverse of `as_dict`; raises ManifestError."""
        try:
            return cls(
                str(data["path"]),
                data["size"],
                data["git_sha1"],
                data.get("sha256"),
                data.get("xet_hash"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"{data!r} does not describe a file: {error}.") from error


@dataclass(frozen=True)
class Selector:
    """Files of a repository by pattern: fnmatchcase over the whole path, `*` crosses `/`."""

    pattern: str
    count: int | None = None
    """How many files it must match; None asks for at least one."""

    def matches(self, path: str) -> bool:
        """Whether a path of the repository is meant."""
        return fnmatchcase(path, self.pattern)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"pattern": self.pattern, "count": self.count}

    @classmethod
    def from_data(cls, data: str | Mapping[str, Any]) -> Selector:
        """A bare pattern, or {pattern, count}; raises ManifestError."""
        given = {"pattern": data} if isinstance(data, str) else data
        if not isinstance(given, Mapping) or set(given) - {"pattern", "count"}:
            raise ManifestError(f"{data!r} is neither a pattern nor a pattern with a count.")
        pattern, count = given.get("pattern"), given.get("count")
        if not isinstance(pattern, str) or not pattern:
            raise ManifestError(f"{data!r} has no pattern.")
        if count is not None and (type(count) is not int or count < 1):
            raise ManifestError(f"{pattern!r} has {count!r} for a count; say how many files.")
        return cls(pattern, count)


@dataclass(frozen=True)
class Manifest:
    """Everything a repository holds at a commit."""

    repo: str
    commit: str
    """40 hex digits."""
    files: tuple[File, ...]
    """Sorted by path, each path once."""
    told_by: Teller = field(default="hub", compare=False)
    """A cache belongs to an account: what it says of a commit is not the Hub's word."""
    _by_path: dict[str, File] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.repo):
            raise ManifestError(f"{self.repo!r} is not owner/name of a repository.")
        if not is_commit(self.commit):
            raise ManifestError(f"{self.commit!r} is not a commit of 40 hex digits.")
        if self.told_by not in TELLERS:
            raise ManifestError(f"{self.told_by!r} is none of {', '.join(TELLERS)}.")
        by_path = {file.path: file for file in self.files}
        if len(by_path) != len(self.files):
            raise ManifestError(f"{self.repo} at {self.commit[:8]} lists a path twice.")
        object.__setattr__(self, "files", tuple(by_path[path] for path in sorted(by_path)))
        object.__setattr__(self, "_by_path", by_path)

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def file(self, path: str) -> File:
        """The file of that name; raises ManifestError."""
        try:
            return self._by_path[path]
        except KeyError:
            raise ManifestError(f"{self.repo} at {self.commit[:8]} has no file {path}.") from None

    def select(self, selectors: Iterable[Selector]) -> tuple[File, ...]:
        """The files meant by any of them, each once, sorted by path.

        Raises ManifestError naming every selector that matches nothing or another number of files
        than it must: a pattern that misses the big file must never look like success.
        """
        wanted: set[str] = set()
        problems: list[str] = []
        for selector in selectors:
            found = {path for path in self._by_path if selector.matches(path)}
            wanted |= found
            if not found:
                problems.append(f"nothing matches {selector.pattern!r}{self._hint(selector)}")
            elif selector.count not in (None, len(found)):
                problems.append(
                    f"{selector.pattern!r} matches {len(found)} files, not {selector.count}"
                )
        if problems:
            raise ManifestError(
                f"{self.repo} at {self.commit[:8]} does not hold what is wanted: "
                f"{'; '.join(problems)}. Correct the list of files for this repository."
            )
        return tuple(file for file in self.files if file.path in wanted)

    def part(self, files: Iterable[File]) -> Manifest:
        """The same commit with some of its files."""
        return replace(self, files=tuple(files))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "repo": self.repo,
            "commit": self.commit,
            "source": self.told_by,
            "files": [file.as_dict() for file in self.files],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Manifest:
        """The reverse of `as_dict`, without a source "hub"; raises ManifestError."""
        try:
            files = tuple(File.from_dict(file) for file in data["files"])
            return cls(str(data["repo"]), str(data["commit"]), files, data.get("source", "hub"))
        except (KeyError, TypeError) as error:
            raise ManifestError(f"This is no manifest of a repository: {error!r}.") from error

    def _hint(self, selector: Selector) -> str:
        """Files that were probably meant: other case, or the pattern as a part of the path."""
        part = f"*{selector.pattern.casefold()}*"
        near = [path for path in sorted(self._by_path) if fnmatchcase(path.casefold(), part)]
        return f" (there is {', '.join(near[:3])})" if near else ""


@dataclass(frozen=True)
class Source:
    """What is wanted of one repository, and where."""

    name: str
    """"checkpoint", "engram", "overlay" or any other word."""
    repo: str
    revision: str
    """The full commit, or a prefix of at least SHORTEST_PREFIX hex digits."""
    files: tuple[Selector, ...]
    hosts: tuple[HostRole, ...]
    """Which machines of the pair need the files in the end."""
    gated: bool = False
    """Whether its owner gives access only to those who accepted terms."""
    enabled: bool = True

    def __post_init__(self) -> None:
        if problems := list(_source_problems(self)):
            raise ManifestError(f"Source {self.name!r}: {'; '.join(problems)}.")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "repo": self.repo,
            "revision": self.revision,
            "files": [selector.as_dict() for selector in self.files],
            "hosts": list(self.hosts),
            "gated": self.gated,
            "enabled": self.enabled,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Source:
        """Read the variables of one source; raises ManifestError with what is wrong."""
        known = {"name", "repo", "revision", "files", "hosts", "gated", "enabled"}
        name = data.get("name", "?")
        if unknown := sorted(map(str, set(data) - known)):
            raise ManifestError(f"Source {name!r} has unknown keys: {', '.join(unknown)}.")
        if missing := sorted(known - {"gated", "enabled"} - set(data)):
            raise ManifestError(f"Source {name!r} lacks {', '.join(missing)}.")
        for key in ("files", "hosts"):
            if not isinstance(data[key], list | tuple):
                raise ManifestError(f"Source {name!r}: {key} is {data[key]!r}, not a list.")
        return cls(
            name,
            data["repo"],
            data["revision"],
            tuple(Selector.from_data(item) for item in data["files"]),
            tuple(data["hosts"]),
            data.get("gated", False),
            data.get("enabled", True),
        )


def is_commit(revision: str) -> bool:
    """Whether a revision is a whole commit: 40 hex digits, lower case."""
    return _COMMIT.fullmatch(revision) is not None


def is_prefix(revision: str) -> bool:
    """Whether a revision is a whole commit or enough of its beginning."""
    return _REVISION.fullmatch(revision) is not None


def _source_problems(source: Source) -> Iterable[str]:
    if not isinstance(source.name, str) or not _NAME.fullmatch(source.name):
        yield "its name must be lower-case letters, digits, - and _"
    if not isinstance(source.repo, str) or not _REPO.fullmatch(source.repo):
        yield f"repo is {source.repo!r}, not owner/name"
    if not isinstance(source.revision, str) or not is_prefix(source.revision):
        yield (
            f"revision is {source.revision!r}; give the commit itself, "
            f"at least its first {SHORTEST_PREFIX} hex digits in quotes, never a branch"
        )
    if not source.files:
        yield "files names no file"
    if not source.hosts or not set(source.hosts) <= set(HOST_ROLES):
        yield f"hosts is {list(source.hosts)!r}; it must hold head, worker or both"
    for key in ("gated", "enabled"):
        if not isinstance(getattr(source, key), bool):
            yield f"{key} is {getattr(source, key)!r}, neither true nor false"
