"""The program that builds an engine's image, in a copy of the checkout that nobody else uses.

Only what the operator declares is run, with an environment that holds nothing but the image's name;
all settings are in scripts/local.sh, as at a start. That it ends well is no proof: the image must
be there, and hold the declared kit.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..errors import DescriptionError
from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from ..system import Runner, run_plainly
from . import kit as kits
from . import stage_word
from .identity import ImageError, inspect
from .order import BuildOrder
from .program import run

LOCAL_SH = "local-sh"
"""Name of the secret that holds the settings: they may hold a token."""

_COPY_SECONDS = 600.0
_DOCKER_SECONDS = 60.0
_WATCH_SECONDS = 2.0
_LINE_LETTERS = 70

Read = kits.Reader


def build(
    order: BuildOrder,
    reporter: Reporter,
    local_sh: str | None,
    *,
    runner: Runner = run_plainly,
    read: Read | None = None,
) -> tuple[str, Mapping[str, Any]]:
    """Build the image of an order, unless it is there; the words and data of the job's result.

    Raises JobFailedError when it is not there in the end or not as declared, JobStoppedError after
    a stop. Nothing but the log and what Docker keeps of the build stays behind.
    """
    reporter.step(f"build {order.image}")
    wanted = _wanted(order)
    found = inspect(order.image, runner)
    words, built = f"{order.image} is there already", found is None
    left = ""
    if found is None:
        if local_sh is None:
            raise DescriptionError("the build was given no settings: it is the program of a job")
        if wrong := stage_word.problem(order.checkout, order.command):
            raise JobFailedError(f"{wrong}. Nothing was run", {})
        _check_room(order, runner)
        left = _build(order, reporter, local_sh, runner)
        found = inspect(order.image, runner)
        words = f"{order.image} is built"
        if found is None:
            raise JobFailedError(
                f"{' '.join(order.command)} ended well, but there is no image {order.image}: does "
                f"it take the name in IMAGE? Its log is {log_of(order)}",
                {},
            )
    if wanted:
        reporter.step(f"look into {order.image}")
        inside = str((order.kit or {})["in_image"])
        if wrong := kits.problem(order.image, wanted, inside, read):
            _refuse(order, f"{words}, but it {wrong}", runner, ours=built)
    told = {"image": found.name, "identity": found.identity, "size": found.size}
    return f"{words} ({job_words.size(found.size)}){left and f', but {left}'}", told


def _refuse(order: BuildOrder, words: str, runner: Runner, *, ours: bool) -> NoReturn:
    if not ours:
        raise JobFailedError(
            f"{words}: remove it with 'docker image rm {order.image}' and run it again", {}
        )
    # Only the name goes: under it the image would be taken for what it is not.
    runner(["docker", "image", "rm", "--", order.image], _DOCKER_SECONDS)
    raise JobFailedError(
        f"{words}; its name was taken away again. Does the build copy the kit from where "
        f"engine_image_kit.folder puts it, to in_image? Its log is {log_of(order)}",
        {},
    )


def log_of(order: BuildOrder) -> Path:
    """Where everything is kept that the build has said."""
    return order.scratch.parent / f"{order.scratch.name}.log"


def environment(home: Path, image: str) -> dict[str, str]:
    """All that the build's command finds in its environment; the rest is in scripts/local.sh."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    return {
        "HOME": str(home),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "IMAGE": image,
    }


def _wanted(order: BuildOrder) -> dict[str, str]:
    if order.kit is None:
        return {}
    return kits.wanted_files(order.checkout / str(order.kit["folder"]), order.kit)


def _check_room(order: BuildOrder, runner: Runner) -> None:
    folder = docker_root(runner)
    need, free = order.expected_bytes + order.floor_bytes, free_bytes(folder)
    if free < need:
        raise JobFailedError(
            f"the build would need {job_words.size(need)} on Docker's disk ({folder}), what stays "
            f"free included, and {job_words.size(free)} are free: make room and run it again",
            {},
        )


def _build(order: BuildOrder, reporter: Reporter, local_sh: str, runner: Runner) -> str:
    """Run the command; what it left that cannot be removed, in words, or ""."""
    log = log_of(order)
    log.parent.mkdir(parents=True, exist_ok=True)
    _clear(order.scratch)
    try:
        order.scratch.mkdir()
        recipe = order.scratch / "recipe"
        copied = runner(["cp", "-a", str(order.checkout), str(recipe)], _COPY_SECONDS)
        if not copied.ok:
            raise ImageError(
                f"the checkout {order.checkout} cannot be copied: {copied.last_words()}"
            )
        _write_settings(recipe / "scripts/local.sh", local_sh)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            ended = run(
                order.command,
                reporter,
                folder=recipe,
                environment=environment(order.home, order.image),
                line=lambda said: reporter.step(f"build {order.image}: {said[:_LINE_LETTERS]}"),
                watch=_floor_watch(order, runner),
                log=stream,
            )
    finally:
        # Files of root's are no reason to throw a good image away, nor to hide why one is not made.
        left = ""
        try:
            _clear(order.scratch)
        except ImageError as error:
            left = str(error)
    if not ended.ok:
        raise JobFailedError(
            f"{' '.join(order.command)} failed: {ended.words()}; its log is {log}", {}
        )
    return left


def _write_settings(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)


def _floor_watch(order: BuildOrder, runner: Runner) -> Callable[[], None]:
    folder, looked = docker_root(runner), [time.monotonic()]

    def watch() -> None:
        if time.monotonic() - looked[0] < _WATCH_SECONDS:
            return
        looked[0] = time.monotonic()
        if free_bytes(folder) < order.floor_bytes:
            raise JobFailedError(
                f"Docker's disk ({folder}) has less than {job_words.size(order.floor_bytes)} left, "
                "so the build was ended: make room and run it again",
                {},
            )

    return watch


def docker_root(runner: Runner) -> Path:
    """The folder in which Docker keeps images. Raises ImageError when it does not tell."""
    done = runner(["docker", "info", "--format", "{{.DockerRootDir}}"], _DOCKER_SECONDS)
    if not done.ok or not done.out.strip().startswith("/"):
        raise ImageError(f"Docker does not tell where its images are: {done.last_words(1)}")
    return Path(done.out.strip())


def free_bytes(folder: Path) -> int:
    """What an account may still write on the disk of a folder, or of the nearest one above."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _clear(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    # A checkout may hold folders that their owner may not write to.
    for inner, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            Path(inner).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        raise ImageError(
            f"the copy in which a build worked cannot be removed: 'sudo rm -r {folder}' does it"
        )
