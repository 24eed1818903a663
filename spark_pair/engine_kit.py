"""A kernel kit: files that the recipe does not bring, listed by a manifest, all or none of them.

Standard library only; the controller proves what the operator has, the head what has arrived. A
kit is made beside its place, proven file by file and renamed, so that it is whole or absent.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from . import paths
from .errors import SparkPairError

MANIFEST = "MANIFEST"
KITS = paths.VAR / "kits"

_LINE = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(\S.*)")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+,=@-]*")
_BLOCK = 1 << 20
_SHOWN = 3


class KitError(SparkPairError):
    """A kit is not what was declared; the message names what differs."""


@dataclass(frozen=True)
class Declared:
    """What the operator knows a kit by."""

    manifest_sha256: str
    count: int

    @property
    def place(self) -> Path:
        """Where the head keeps it, whatever recipe uses it."""
        return KITS / self.manifest_sha256[:12]


def parse_manifest(data: bytes) -> dict[str, str]:
    """Path -> sha256 of a manifest as sha256sum prints it. Raises KitError."""
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise KitError(f"its {MANIFEST} is not plain text") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise KitError(
                f"line {number} of its {MANIFEST} is not a sha256, two blanks and a path, as "
                "sha256sum prints them"
            )
        digest, path = match.groups()
        if path == MANIFEST or not all(_PART.fullmatch(part) for part in path.split("/")):
            raise KitError(f"line {number} of its {MANIFEST} names no usable path: {path[:80]!r}")
        if path in found:
            raise KitError(f"its {MANIFEST} lists {path} twice")
        found[path] = digest
    return found


def manifest_text(files: Mapping[str, str]) -> str:
    """The manifest of these files (path -> sha256), in the one order that everybody can make."""
    return "".join(f"{files[path]}  {path}\n" for path in sorted(files))


def prove(source: Path, declared: Declared) -> dict[str, str]:
    """Path -> sha256 of a kit in a folder or a tar archive, every byte of it read.

    Raises KitError unless it holds exactly the files of the declared manifest.
    """
    if not source.exists():
        raise KitError("there is nothing of that name")
    with _opened(source) as holder:
        files = _declared_files(holder.manifest(), declared)
        found = dict(holder.digests())
    found.pop(MANIFEST, None)
    wrong = sorted(path for path in files if path in found and found[path] != files[path])
    if wrong:
        first = wrong[0]
        raise KitError(
            f"{_some(wrong)} {'is' if len(wrong) == 1 else 'are'} not what its {MANIFEST} says "
            f"({first} has sha256 {found[first][:12]}…, listed is {files[first][:12]}…)"
        )
    if missing := sorted(files.keys() - found.keys()):
        raise KitError(f"{_some(missing)} of its {MANIFEST} is missing")
    if extra := sorted(found.keys() - files.keys()):
        raise KitError(f"{_some(extra)} is not in its {MANIFEST}")
    return files


def pack(source: Path, target: Path) -> None:
    """Put a folder's files into a tar archive beside `target`, then rename it there.

    The name beside it is this call's alone: the plays of two pairs pack the same kit at once.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    partial = Path(name)
    try:
        with tarfile.open(partial, "w") as archive:
            for path in sorted(path for path in source.rglob("*") if path.is_file()):
                archive.add(path, path.relative_to(source).as_posix(), recursive=False)
        partial.rename(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def present(declared: Declared, place: Path | None = None) -> bool:
    """Whether the kit is in its place; one that is there is proven again, never trusted."""
    place = place or declared.place
    if not place.is_dir():
        return False
    try:
        prove(place, declared)
    except KitError as error:
        raise KitError(
            f"the kit in {place} was changed after it was put there: {error}. Nothing uses it but "
            f"new checkouts: remove it (sudo rm -r {place}) and run again"
        ) from error
    return True


def install(archive: Path, declared: Declared, place: Path | None = None) -> None:
    """Unpack an archive beside the kit's place, prove it, rename it there.

    Raises KitError and leaves nothing behind when it is not the declared one.
    """
    place = place or declared.place
    fresh = place.with_name(f"{place.name}.new")
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o755)
    try:
        with _opened(archive) as holder:
            wanted = {*_declared_files(holder.manifest(), declared), MANIFEST}
            for path, data in holder.files():
                if path not in wanted:
                    raise KitError(f"{path} is not in its {MANIFEST}")
                target = fresh / path
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
                target.write_bytes(data)
                target.chmod(0o644)
        prove(fresh, declared)
        os.sync()
        fresh.rename(place)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def digest(path: Path) -> str:
    """sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


class _Folder:
    """A kit that lies in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def manifest(self) -> bytes:
        try:
            return (self.root / MANIFEST).read_bytes()
        except OSError as error:
            raise KitError(f"it has no readable {MANIFEST}: {error.strerror}") from error

    def _paths(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise KitError(f"{name} is no plain file")
            if path.is_file():
                yield name, path

    def digests(self) -> Iterator[tuple[str, str]]:
        for name, path in self._paths():
            yield name, digest(path)

    def files(self) -> Iterator[tuple[str, bytes]]:
        for name, path in self._paths():
            yield name, path.read_bytes()


class _Archive:
    """A kit in a tar archive, at its root or in the one folder that holds its manifest."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = tarfile.open(path)  # noqa: SIM115 - closed by __exit__
            self._members = {
                str(PurePosixPath(one.name)): one
                for one in self._archive.getmembers()
                if not one.isdir()
            }
        except (tarfile.TarError, OSError, EOFError) as error:
            raise KitError(
                f"it is no folder and no tar archive that can be read: {error}"
            ) from error
        depth = sorted(
            (name for name in self._members if PurePosixPath(name).name == MANIFEST),
            key=lambda name: (name.count("/"), name),
        )
        if not depth:
            raise KitError(f"it holds no {MANIFEST}")
        self._top = PurePosixPath(depth[0]).parent

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def manifest(self) -> bytes:
        return self._read(self._members[str(self._top / MANIFEST)])

    def _read(self, member: tarfile.TarInfo) -> bytes:
        file = self._archive.extractfile(member) if member.isfile() else None
        if file is None:
            raise KitError(f"{member.name} is no plain file")
        with file:
            return file.read()

    def files(self) -> Iterator[tuple[str, bytes]]:
        for name, member in sorted(self._members.items()):
            path = PurePosixPath(name)
            if self._top not in path.parents:
                raise KitError(f"{name} lies outside of the folder of its {MANIFEST}")
            yield path.relative_to(self._top).as_posix(), self._read(member)

    def digests(self) -> Iterator[tuple[str, str]]:
        for name, data in self.files():
            yield name, hashlib.sha256(data).hexdigest()


def _opened(source: Path) -> _Folder | _Archive:
    return _Folder(source) if source.is_dir() else _Archive(source)


def _declared_files(data: bytes, declared: Declared) -> dict[str, str]:
    found = hashlib.sha256(data).hexdigest()
    if found != declared.manifest_sha256:
        raise KitError(f"its {MANIFEST} has sha256 {found}, declared is {declared.manifest_sha256}")
    files = parse_manifest(data)
    if len(files) != declared.count:
        raise KitError(f"its {MANIFEST} lists {len(files)} files, declared are {declared.count}")
    return files


def _some(names: list[str]) -> str:
    """The first few of a list, and how many more."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
