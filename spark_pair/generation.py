"""Generations on the head: a prepared configuration, written once and never changed.

Host side, standard library only. A generation is made beside its place and renamed, so that it is
whole or absent. One that is there is compared with what it should be, never overwritten: it may be
the one that serves right now.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import engine_checkout, engine_settings
from .engine_checkout import head_commit
from .errors import SparkPairError
from .system import Runner, run_plainly

RECIPE = "recipe"
LOCAL_SH = f"{RECIPE}/{engine_checkout.LOCAL_SH}"
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


def differences(wanted: Wanted, runner: Runner = run_plainly) -> list[str]:
    """What differs in a generation that exists, by file; [] when it is as it should be."""
    files = {
        LOCAL_SH: wanted.local_sh,
        LAUNCH: wanted.launch,
        MANIFEST: wanted.manifest,
    }
    found = [name for name, text in files.items() if _read(wanted.path / name) != text]
    if head_commit(wanted.path / RECIPE, wanted.owner, runner) != wanted.commit:
        return [*found, f"{RECIPE} (another commit)"]
    return [*found, *_foreign(wanted.path, wanted.owner, runner).files]


def check(wanted: Wanted, runner: Runner = run_plainly) -> bool:
    """Whether the generation is there; raises GenerationError when it was changed afterwards."""
    if not wanted.path.is_dir():
        return False
    changed = differences(wanted, runner)
    if changed:
        found = _foreign(wanted.path, wanted.owner, runner)
        if changed == list(found.files) and found.only_strays:
            raise GenerationError(f"{strays(wanted.path, found)}, then run again")
        words = _changed(wanted.path, changed)
        raise GenerationError("\n".join([words, *(f"  {line}" for line in found.diff)]))
    return True


def strays(path: Path, found: engine_checkout.Changes) -> str:
    """In words that files were left in a generation, and what to do about it."""
    return (
        f"the generation {path} holds new files that were not declared "
        f"({', '.join(found.strays)}): move them out of {path / RECIPE} (one that "
        "the recipe needs belongs into a patch, engine_image_patches)"
    )


def changed(path: Path, owner: str, runner: Runner = run_plainly) -> engine_checkout.Changes:
    """What was changed in a generation after it was made, told from the generation alone.

    Its name is a hash over its files, the recipe's commit is in one of them, and the recipe's copy
    notes what it was made from. What cannot be told counts as changed.
    """
    if words := _own_changes(path, owner, runner):
        return engine_checkout.Changes(tuple(words))
    try:
        return _foreign(path, owner, runner)
    except engine_checkout.CheckoutError as error:
        return engine_checkout.Changes((str(error),))


def _own_changes(path: Path, owner: str, runner: Runner) -> list[str]:
    """What was changed in a generation's files and in the commit of its recipe."""
    texts = {name: _read(path / name) for name in (MANIFEST, LOCAL_SH, LAUNCH)}
    if unread := [f"{name} cannot be read" for name, text in texts.items() if text is None]:
        return unread
    manifest, local_sh, launch = (text or "" for text in texts.values())
    if engine_settings.generation_hash(manifest, local_sh, launch) != path.name:
        return [f"{MANIFEST}, {LOCAL_SH} or {LAUNCH}"]
    if head_commit(path / RECIPE, owner, runner) != json.loads(manifest).get("commit"):
        return [f"{RECIPE} (another commit)"]
    return []


def _foreign(path: Path, owner: str, runner: Runner) -> engine_checkout.Changes:
    """What the generation's recipe holds that nobody declared."""
    own = (engine_checkout.LOCAL_SH,)
    return engine_checkout.changes(path / RECIPE, owner, runner, own)


def _changed(path: Path, names: Sequence[str]) -> str:
    return (
        f"the generation {path} was changed after it was made ({', '.join(names)}): it no longer "
        "is what its name says, and is not overwritten. To keep a change of the recipe, write "
        f"'git -C {path / RECIPE} diff' to a file and declare that in engine_image_patches. When "
        f"no server uses the generation, remove it (sudo rm -r {path}) and run again"
    )


def make(wanted: Wanted, runner: Runner = run_plainly) -> None:
    """Write the generation from the checkout. Raises GenerationError, leaving nothing behind."""
    commit = head_commit(wanted.checkout, wanted.owner, runner)
    if commit != wanted.commit:
        raise GenerationError(
            f"the recipe's checkout {wanted.checkout} stands at {commit or 'no commit'}, not at "
            f"{wanted.commit}: remove it (sudo rm -r {wanted.checkout}) and run again"
        )
    if changed := engine_checkout.refusal(wanted.checkout, wanted.owner, runner):
        raise GenerationError(changed)
    parent = wanted.path.parent
    parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    partial = parent / f".{wanted.path.name}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(mode=0o755)
    try:
        copied = runner(["cp", "-a", str(wanted.checkout), str(partial / RECIPE)], 300)
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


def local_sh(path: Path) -> str:
    """Settings of the generation at `path`, secret ones included; "" when there is none."""
    return _read(path / LOCAL_SH) or ""


def current_local_sh(current: Path) -> str:
    """Settings of the generation that `current` leads to, for a diff; "" when there is none."""
    return local_sh(current)


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
