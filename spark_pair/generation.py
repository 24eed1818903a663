"""Generations on the head: a prepared configuration, written once and never changed.

Host side, standard library only. A generation is made beside its place and renamed, so that it is
whole or absent. One that is there is compared with what it should be, never overwritten: it may be
the one that serves right now.
"""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from .errors import SparkPairError
from .system import Runner, run_plainly

LOCAL_SH = "recipe/scripts/local.sh"
LAUNCH = "launch"
MANIFEST = "generation.json"


class GenerationError(SparkPairError):
    """A generation cannot be made or used; the message says what differs and what to do."""


@dataclass(frozen=True)
class Wanted:
    """What a generation must hold."""

    path: Path
    checkout: Path
    commit: str
    local_sh: str
    launch: str
    manifest: str
    owner: str


def head_commit(checkout: Path, owner: str, runner: Runner = run_plainly) -> str | None:
    """Commit that a checkout stands at, or None when there is no usable checkout."""
    if not (checkout / ".git").exists():
        return None
    # As its owner: git refuses to work in another account's repository.
    done = runner(
        ["runuser", "-u", owner, "--", "git", "-C", str(checkout), "rev-parse", "HEAD"], 30
    )
    return done.out.strip() if done.ok else None


def differences(wanted: Wanted, runner: Runner = run_plainly) -> list[str]:
    """File names that differ in a generation that exists; [] when it is as it should be."""
    files = {
        LOCAL_SH: wanted.local_sh,
        LAUNCH: wanted.launch,
        MANIFEST: wanted.manifest,
    }
    found = [name for name, text in files.items() if _read(wanted.path / name) != text]
    if head_commit(wanted.path / "recipe", wanted.owner, runner) != wanted.commit:
        found.append("recipe (another commit)")
    return found


def check(wanted: Wanted, runner: Runner = run_plainly) -> bool:
    """Whether the generation is there; raises GenerationError when it was changed afterwards."""
    if not wanted.path.is_dir():
        return False
    changed = differences(wanted, runner)
    if changed:
        raise GenerationError(
            f"the generation {wanted.path} was changed after it was made ({', '.join(changed)}): "
            "it no longer is what its name says. When no server uses it, remove it and run again"
        )
    return True


def make(wanted: Wanted, runner: Runner = run_plainly) -> None:
    """Write the generation from the checkout. Raises GenerationError, leaving nothing behind."""
    commit = head_commit(wanted.checkout, wanted.owner, runner)
    if commit != wanted.commit:
        raise GenerationError(
            f"the recipe's checkout {wanted.checkout} stands at {commit or 'no commit'}, not at "
            f"{wanted.commit}: remove it and run again"
        )
    parent = wanted.path.parent
    parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    partial = parent / f".{wanted.path.name}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(mode=0o755)
    try:
        copied = runner(["cp", "-a", str(wanted.checkout), str(partial / "recipe")], 300)
        if not copied.ok:
            raise GenerationError(f"the recipe could not be copied: {copied.last_words()}")
        account = pwd.getpwnam(wanted.owner)
        local_sh = partial / LOCAL_SH
        local_sh.parent.mkdir(exist_ok=True)
        _write(local_sh, wanted.local_sh, 0o600)
        os.chown(local_sh, account.pw_uid, account.pw_gid)
        _write(partial / LAUNCH, wanted.launch, 0o755)
        _write(partial / MANIFEST, wanted.manifest, 0o644)
        os.sync()
        partial.rename(wanted.path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def current_local_sh(current: Path) -> str:
    """Settings of the generation that `current` leads to, for a diff; "" when there is none."""
    return _read(current / LOCAL_SH) or ""


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file that never had wider rights than `mode`, whatever the recipe shipped there."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(handle, mode)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
