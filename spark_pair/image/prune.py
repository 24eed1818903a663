"""Removing images by name from this host."""

from __future__ import annotations

from collections.abc import Sequence

from ..system import Runner, run_plainly
from .identity import ImageError
from .look import use

_REMOVE_SECONDS = 300.0


def prune(names: Sequence[str], *, check: bool, runner: Runner = run_plainly) -> list[str]:
    """Remove those that are there; their names. With `check` nothing is removed.

    Raises ImageError, before anything is removed, when a container uses one of them.
    """
    there = []
    for name in names:
        found = use(name, runner)
        if found["containers"]:
            raise ImageError(
                f"the image {name} is in use by {', '.join(found['containers'])} and is not removed"
            )
        if found["there"]:
            there.append(name)
    for name in () if check else there:
        done = runner(["docker", "image", "rm", "--", name], _REMOVE_SECONDS)
        if not done.ok:
            raise ImageError(f"Docker does not remove the image {name}: {done.last_words(1)}")
    return there
