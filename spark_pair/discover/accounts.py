"""Accounts of this host, and the model data in their homes. Looks at folders, opens no weights."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path
from typing import Any

from ..system import Runner
from .reading import Unread, inside, names, text

CHECKOUT = "dsv41"
"""The recipe's checkout, in the home of the account that runs it."""

_CACHE = ".cache/huggingface/hub"
_HUB = re.compile(
    r"""^\s*(?:export\s+)?(?P<key>HF_HOME|HF_HUB_CACHE)=["']?(?P<value>/[^"'\s]+)""", re.M
)
_SECONDS = 10.0
_ORDINARY = range(1000, 60000)
_NO_LOGIN = ("nologin", "false", "sync")
_MOST_FILES = 5000
_COMMIT = re.compile(r"[0-9a-f]{40}")


def look(root: Path, runner: Runner, login: str, unread: Unread) -> list[dict[str, Any]]:
    """Every account that could run a server, with what its home holds."""
    found = []
    shared = _shared_hub(root)
    for name, uid, home, shell in _passwd(root, runner, login, unread):
        ordinary = uid in _ORDINARY and not shell.endswith(_NO_LOGIN)
        folder = inside(root, home)
        if (ordinary or name == login) and folder.is_dir():
            hubs = {folder / _CACHE, *([shared] if shared and _owner(shared) == uid else [])}
            found.append(
                {
                    "name": name,
                    "uid": uid,
                    "home": home,
                    "models": [one for hub in sorted(hubs) for one in _models(hub, unread)],
                    "checkout": _checkout(folder / CHECKOUT, f"{home}/{CHECKOUT}", name, runner),
                }
            )
    return found


def _passwd(
    root: Path, runner: Runner, login: str, unread: Unread
) -> list[tuple[str, int, str, str]]:
    """Name, uid, home and shell of the accounts; those of a directory service where it lists."""
    listed = runner(["getent", "passwd"], _SECONDS)
    lines = (listed.out if listed.ok else text(root / "etc/passwd") or "").splitlines()
    if login and not any(line.startswith(f"{login}:") for line in lines):
        # A directory service may answer for one name and list nobody.
        lines += runner(["getent", "passwd", login], _SECONDS).out.splitlines()
    found = {}
    for line in lines:
        parts = line.split(":")
        if len(parts) == 7 and parts[2].isdecimal():
            found[parts[0]] = (parts[0], int(parts[2]), parts[5].rstrip("/"), parts[6])
    if not found:
        unread["accounts"] = f"getent: {listed.last_words()}"
    return [found[name] for name in sorted(found)]


def _shared_hub(root: Path) -> Path | None:
    """Where the environment of every login puts the Hugging Face cache; None if it does not."""
    said = {
        found["key"]: found["value"]
        for found in _HUB.finditer(text(root / "etc/environment") or "")
    }
    if cache := said.get("HF_HUB_CACHE"):
        return inside(root, cache)
    return inside(root, said["HF_HOME"]) / "hub" if "HF_HOME" in said else None


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _models(hub: Path, unread: Unread) -> list[dict[str, Any]]:
    """Repositories in a Hugging Face cache with the bytes of their blobs, links followed."""
    found = []
    for name in names(hub):
        if not name.startswith("models--"):
            continue
        size, broken, whole = _size(hub / name / "blobs")
        if not whole:
            unread[f"size of {name}"] = "its blobs cannot be listed to the end"
        found.append(
            {
                "name": name.removeprefix("models--").replace("--", "/"),
                "bytes": size,
                "broken_links": broken,
            }
        )
    return found


def _size(blobs: Path) -> tuple[int, int, bool]:
    """Bytes, broken links, and whether everything was counted."""
    size = broken = count = 0
    try:
        with os.scandir(blobs) as entries:
            for entry in entries:
                count += 1
                if count > _MOST_FILES:
                    return size, broken, False
                try:
                    size += entry.stat().st_size
                except OSError:
                    broken += 1
    except FileNotFoundError:
        return 0, 0, True
    except OSError:
        return size, broken, False
    return size, broken, True


def _checkout(path: Path, shown: str, owner: str, runner: Runner) -> dict[str, Any] | None:
    """Commit and origin of the recipe's checkout, read from its files; None where there is none."""
    if not os.path.lexists(path):
        return None
    found: dict[str, Any] = {
        "path": shown,
        "link": path.is_symlink(),
        "commit": None,
        "url": None,
        "changed": None,
        "problem": "",
    }
    if not path.exists():
        found["problem"] = "a link that leads nowhere yet"
        return found
    git = path / ".git"
    if git.is_file():  # a work tree made by "git worktree"
        git = path / (text(git) or "").removeprefix("gitdir:").strip()
    if not git.is_dir():
        found["problem"] = "not a git checkout"
        return found
    found["commit"] = _head(git)
    found["url"] = _origin(git)
    if found["commit"] is None:
        found["problem"] = "its HEAD cannot be read"
    # As its owner: git runs what a repository's settings say, and refuses another's repository.
    status = runner(
        [
            *("runuser", "-u", owner, "--", "git", "--no-optional-locks", "-C", shown),
            *("status", "--porcelain", "--untracked-files=no"),
        ],
        _SECONDS,
    )
    found["changed"] = len(status.out.splitlines()) if status.ok else None
    return found


def _head(git: Path) -> str | None:
    said = text(git / "HEAD") or ""
    if said.startswith("ref:"):
        name = said.removeprefix("ref:").strip()
        common = git / (text(git / "commondir") or ".")
        said = text(common / name) or _packed(common, name)
    return said if _COMMIT.fullmatch(said) else None


def _packed(git: Path, name: str) -> str:
    for line in (text(git / "packed-refs", 1 << 20) or "").splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name:
            return commit
    return ""


def _origin(git: Path) -> str | None:
    """The address it was cloned from, without a name and password in it."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(text(git / (text(git / "commondir") or ".") / "config") or "")
        url = parser.get('remote "origin"', "url", fallback=None)
    except configparser.Error:
        return None
    return re.sub(r"//[^/@]*@", "//", url) if url else None
