"""Repositories as the Hub describes them: files at a commit, with sizes and hashes.

Content is made once in a directory and kept there with what is known of it, so that a Hub started
again at the same place has the same repositories at once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from .content import BLOCK_BYTES, write_noise

KNOWN = "known.json"


@dataclass(frozen=True)
class File:
    """One file at a commit. ``sha256`` and ``xet_hash`` exist for large files only."""

    path: str
    size: int
    git_sha1: str
    sha256: str | None = None
    xet_hash: str | None = None

    @property
    def etag(self) -> str:
        """What the Hub says the content's name is."""
        return self.sha256 or self.git_sha1


@dataclass(frozen=True)
class Repository:
    """What is wanted of a repository: ``make`` fills a folder, ``words`` change when it changes.

    ``large`` files are stored beside git (LFS, and Xet where the Hub has it). ``branches`` point to
    the commit; ``older`` are commits before it, newest first, which hold nothing.
    """

    name: str
    commit: str
    make: Callable[[Path], None]
    words: str
    gated: bool = False
    large: tuple[str, ...] = ("*.safetensors",)
    branches: tuple[str, ...] = ("main",)
    older: tuple[str, ...] = ()


@dataclass
class Held:
    """A repository whose content lies in ``folder``."""

    wanted: Repository
    folder: Path
    files: dict[str, File] = field(default_factory=dict)

    def give_xet_hash(self, path: str, xet_hash: str) -> None:
        """From now on the file is also in the Xet store, under this name."""
        self.files[path] = replace(self.files[path], xet_hash=xet_hash)


def noise_repository(name: str, sizes: dict[str, int], **more: object) -> Repository:
    """A repository of noise, for tests that care for sizes only."""
    commit = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()

    def make(folder: Path) -> None:
        for path, size in sizes.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            write_noise(place, f"{name} {path}", size)

    words = json.dumps(sizes, sort_keys=True)
    return Repository(name, commit, make, words, **more)  # type: ignore[arg-type]


def describe(path: Path, name: str, *, large: bool) -> File:
    """Size and hashes of a file, read once."""
    size = path.stat().st_size
    blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            whole.update(block)
            if not large:
                blob.update(block)
    if large:  # git knows a pointer only
        pointer = pointer_text(whole.hexdigest(), size)
        blob = hashlib.sha1(f"blob {len(pointer)}\0".encode() + pointer, usedforsecurity=False)
    return File(name, size, blob.hexdigest(), whole.hexdigest() if large else None)


def pointer_text(sha256: str, size: int) -> bytes:
    """What git holds in place of a large file."""
    return (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    )


def hold(wanted: Repository, root: Path) -> Held:
    """Make a repository's content under ``root`` unless it is there already."""
    words = hashlib.sha256(
        json.dumps([wanted.name, wanted.commit, wanted.words, wanted.large]).encode()
    ).hexdigest()
    place = root / wanted.name.replace("/", "--")
    folder = place / "files"
    known = place / KNOWN
    if known.is_file():
        data = json.loads(known.read_text(encoding="utf-8"))
        if data["words"] == words:
            files = [File(**entry) for entry in data["files"]]
            return Held(wanted, folder, {file.path: file for file in files})
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted.make(folder)
    held = Held(wanted, folder)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        large = any(fnmatchcase(name, pattern) for pattern in wanted.large)
        held.files[name] = describe(path, name, large=large)
    entries = [asdict(file) for file in held.files.values()]
    partial = known.with_suffix(".new")
    partial.write_text(json.dumps({"words": words, "files": entries}), encoding="utf-8")
    partial.replace(known)
    return held
