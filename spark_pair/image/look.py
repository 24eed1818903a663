"""What a host has of the engines' images, as it is now; changes nothing.

A look is asked with

  images       names of the images that engines run
  kits         {image: {"files": folder of the prepared kit on this host, "in_image",
               "manifest_sha256", "count"}} of those that must hold one; only where the kit lies
  builds       {image: {"checkout", "command"}} of those that may be built here
  prune        names that the operator wants to be removed
  scratch      folder in which archives of images lie for a while

and answers with plain data:

  docker       why Docker cannot be asked; "" when it can
  installed    whether there is a Docker at all
  images       {name: {"identity", "size", "kit", "unlisted"} or null}; kit: what is wrong with it,
               in words, or ""; unlisted: whether there is no list here to compare it with
  builds       {name: why its command must not be run, in words; "" when it may}
  prune        {name: {"there", "tags": all names of that image, "containers": names of those that
               use it}}
  named        {image: words} of images that generations on this host start with
  scratch      bytes of archives that lie there
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import jsonfile, paths
from ..engine_kit import MANIFEST
from ..errors import DescriptionError
from ..generation import LOCAL_SH
from ..system import Runner, run_plainly
from . import kit as kits
from . import stage_word
from .identity import ImageError, inspect

Seen = dict[str, Any]

_DOCKER_SECONDS = 30.0
_IMAGE = re.compile(r"^IMAGE=(.*)$", re.MULTILINE)
_MOST_BYTES = 1 << 20


def look(
    asked: Mapping[str, Any],
    *,
    runner: Runner = run_plainly,
    read: kits.Reader | None = None,
    current: Path = paths.CURRENT,
    state: Path = paths.STATE,
) -> Seen:
    """Everything that a plan for the images needs to know of this host, as described above. Never
    raises for what it finds."""
    seen: Seen = {
        "docker": "",
        "installed": True,
        "images": {},
        "builds": {
            name: stage_word.problem(Path(one["checkout"]), one["command"])
            for name, one in asked.get("builds", {}).items()
        },
        "prune": {},
        "named": named(current, state),
        "scratch": _bytes_below(Path(asked["scratch"])) if asked.get("scratch") else 0,
    }
    kits_ = asked.get("kits", {})
    try:
        for name in asked.get("images", ()):
            seen["images"][name] = _image(name, kits_.get(name), runner, read)
        for name in asked.get("prune", ()):
            seen["prune"][name] = use(name, runner)
    except ImageError as error:
        seen["docker"] = str(error)
        there = runner(["docker", "--version"], _DOCKER_SECONDS)
        seen["installed"] = there.code != 127
    return seen


def _image(
    name: str, kit: Mapping[str, Any] | None, runner: Runner, read: kits.Reader | None
) -> Seen | None:
    found = inspect(name, runner)
    if found is None:
        return None
    wrong, unlisted = "", False
    if kit:
        unlisted = not (Path(kit["files"]) / MANIFEST).exists()
        try:
            wanted = kits.wanted_files(Path(kit["files"]), kit)
            wrong = kits.problem(name, wanted, kit["in_image"], read)
        except DescriptionError as error:
            wrong = f"cannot be compared with the declared kit: {error}"
    return {
        "identity": found.identity,
        "size": found.size,
        "kit": wrong,
        "unlisted": unlisted,
    }


def use(name: str, runner: Runner) -> Seen:
    """Whether an image is there, its names, and the containers made of it. Raises ImageError."""
    found = inspect(name, runner)
    if found is None:
        return {"there": False, "tags": [], "containers": []}
    done = runner(
        ["docker", "ps", "--all", "--filter", f"ancestor={name}", "--format", "{{.Names}}"],
        _DOCKER_SECONDS,
    )
    if not done.ok:
        raise ImageError(f"Docker does not tell who uses {name}: {done.last_words(1)}")
    return {"there": True, "tags": list(found.tags), "containers": sorted(done.out.split())}


def named(current: Path = paths.CURRENT, state: Path = paths.STATE) -> dict[str, str]:
    """Images of the generations that servers start with, or go back to, each with who needs it."""
    found: dict[str, str] = {}
    for link in sorted(current.glob("*")):
        if image := _image_of(link):
            found[image] = f"the generation that {link.name} starts with"
    known = jsonfile.read(state)
    serving = known.get("serving") if isinstance(known, dict) else None
    former = serving.get("generation") if isinstance(serving, dict) else None
    if isinstance(former, str) and (image := _image_of(current.parent / "generations" / former)):
        found.setdefault(image, "the generation that served last")
    return found


def _image_of(generation: Path) -> str | None:
    try:
        text = jsonfile.content((generation / LOCAL_SH).resolve(), _MOST_BYTES).decode()
        words = shlex.split(match[1]) if (match := _IMAGE.search(text)) else []
    except (OSError, ValueError):
        return None
    return words[0] if len(words) == 1 else None


def _bytes_below(folder: Path) -> int:
    try:
        return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError:
        return 0
