"""Directories that containers mount: there before Docker makes them, and the account's own.

Docker creates what is missing at a mount as root, and the next download or copy of the account
fails there. The home belongs to the account, so root follows no link in it: new directories are
made by the account itself, and only a real directory below the home is given back to it.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from .daemon_json import RefusedError
from .docker import Host

ROOT_UID = 0
_SECONDS = 30.0
_ENTRIES = 2000
"""Entries of a directory that are looked at for root's; more would only take time."""


@dataclass(frozen=True)
class Account:
    """Who runs the servers; `home` is where its directories are."""

    name: str
    uid: int
    gid: int
    home: Path


@dataclass(frozen=True)
class Mended:
    """What had to be done, in words, and what is left for the operator."""

    did: tuple[str, ...]
    notes: tuple[str, ...]


def account(host: Host, name: str, home: str) -> Account:
    """The account and its home; RefusedError when one of them is not there."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise RefusedError(
            f"There is no account {name} on {host.name}: correct spark_user in the inventory."
        ) from None
    if not Path(home).is_dir():
        raise RefusedError(
            f"{home} on {host.name} is no directory: correct spark_home in the inventory."
        )
    return Account(name, entry.pw_uid, entry.pw_gid, Path(home))


def with_parents(paths: Iterable[str]) -> list[str]:
    """Each path below the home after the directories that lead to it, every one once.

    RefusedError for a path that leaves the home.
    """
    found: list[str] = []
    for path in paths:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise RefusedError(
                f"container_runtime_paths holds {path!r}: name directories below spark_home, "
                "without '..'. For one on another disk make a link in the home and name the link."
            )
        for step in (*reversed(pure.parents), pure):
            if step.parts and str(step) not in found:
                found.append(str(step))
    return found


def mend(host: Host, who: Account, paths: Sequence[str], *, check: bool) -> Mended:
    """Make or give back what is missing; nothing is touched before all of it was looked at."""
    missing: list[Path] = []
    roots: list[Path] = []
    notes: list[str] = []
    listed = [who.home / name for name in with_parents(paths)]
    for path in listed:
        if any(path.is_relative_to(above) for above in missing):
            missing.append(path)
            continue
        state = _state(host, who, path)
        if state == "missing":
            missing.append(path)
            continue
        if state == "root's":
            roots.append(path)
            notes += _left_by_root(host, who, path, listed)
    if not check:
        for path in roots:
            _give_back(path, who)
        for path in missing:
            _make(host, who, path)
    did = [f"give {path} to {who.name} (it is root's, as Docker makes it)" for path in roots]
    did += [f"make {path}" for path in missing]
    return Mended(tuple(did), tuple(notes))


def _state(host: Host, who: Account, path: Path) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise RefusedError(
                f"{path} on {host.name} is a link to {path.readlink()}, which is not there: mount "
                "that disk, or correct the link."
            ) from None
        return "missing"
    if not stat.S_ISDIR(status.st_mode):
        raise RefusedError(
            f"{path} on {host.name} is no directory, but containers mount it: move it aside."
        )
    if status.st_uid == who.uid or _writable(host, who, path):
        return "fine"
    real = path.resolve()
    if (
        status.st_uid == ROOT_UID
        and not path.is_symlink()
        and real.is_relative_to(who.home.resolve())
    ):
        return "root's"
    owner = _owner(status.st_uid)
    raise RefusedError(
        f"{path} on {host.name} leads to {real}, which belongs to {owner}, and {who.name} cannot "
        f"write there. If it is meant for the servers: sudo chown {who.name}: {real}"
    )


def _writable(host: Host, who: Account, path: Path) -> bool:
    return host.run(["runuser", "-u", who.name, "--", "test", "-w", str(path)], _SECONDS).ok


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _left_by_root(host: Host, who: Account, path: Path, listed: Sequence[Path]) -> Iterator[str]:
    with os.scandir(path) as entries:
        left = any(
            entry.stat(follow_symlinks=False).st_uid == ROOT_UID and Path(entry.path) not in listed
            for entry in islice(entries, _ENTRIES)
        )
    if left:
        yield (
            f"{path} on {host.name} holds entries of root, which {who.name} may not be able to "
            f"replace; to give them back, too: sudo chown -R {who.name}: {path}"
        )


def _give_back(path: Path, who: Account) -> None:
    # The very directory that was looked at, not what a link may lead to by now.
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(handle, who.uid, who.gid)
    finally:
        os.close(handle)


def _make(host: Host, who: Account, path: Path) -> None:
    made = host.run(
        ["runuser", "-u", who.name, "--", "mkdir", "-p", "-m", "0755", str(path)], _SECONDS
    )
    if not made.ok:
        raise RefusedError(
            f"{who.name} cannot make {path} on {host.name}: {made.last_words(1)}. Correct the "
            "owner of the directory above it."
        )
