"""Whether an image holds the kernel files that were declared, each with its own hash.

Nothing of the image is run: a container is made and never started, and its files are read out of
it. An image without a shell is proven as well as any other, and one that lies about itself cannot.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from ..engine_kit import MANIFEST, KitError, parse_manifest
from ..errors import DescriptionError
from ..system import Runner, run_plainly
from .identity import ImageError

LABEL = "spark-pair.look"
_DOCKER_SECONDS = 60.0
_READ_BYTES = 1 << 20
_TOLD = 3

Reader = Callable[[str, str], dict[str, str]]
"""Hashes by path of what an image (its name) holds in a folder (absolute)."""


def wanted_files(folder: Path, kit: Mapping[str, Any]) -> dict[str, str]:
    """Hashes by path of a kit that lies prepared in `folder`. Raises DescriptionError when its list
    is not the declared one (`manifest_sha256`, `count` of `kit`)."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DescriptionError(
            f"the list of the kit, {path}, cannot be read: {error.strerror}"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != kit["manifest_sha256"]:
        raise DescriptionError(
            f"the list of the kit, {path}, has the sha256 {found}, and engine_image_kit declares "
            f"{kit['manifest_sha256']}"
        )
    try:
        files = parse_manifest(data)
    except KitError as error:
        raise DescriptionError(f"the list of the kit, {path}, is none: {error}") from error
    if len(files) != kit["count"]:
        raise DescriptionError(
            f"the list of the kit names {len(files)} files, and engine_image_kit declares "
            f"{kit['count']}"
        )
    return files


def problem(image: str, wanted: Mapping[str, str], folder: str, read: Reader | None = None) -> str:
    """What an image lacks of a kit, in words that go after "it"; "" when all of it is right.

    Raises ImageError when Docker does not let it be read.
    """
    there = (read or read_out)(image, folder)
    missing = [path for path in wanted if path not in there]
    wrong = [path for path, digest in wanted.items() if there.get(path, digest) != digest]
    if not missing and not wrong:
        return ""
    said = []
    if missing:
        said.append(f"lacks {_some(missing)} of the {len(wanted)} files of the kit in {folder}")
    if wrong:
        said.append(f"has other content in {_some(wrong)} of the kit in {folder}")
    return " and ".join(said)


def read_out(image: str, folder: str, runner: Runner = run_plainly) -> dict[str, str]:
    """The usual `Reader`. A folder that is not there holds nothing."""
    _sweep(runner)
    made = runner(
        [
            "docker", "create", "--pull", "never", "--network", "none",
            "--label", f"{LABEL}={os.getpid()}", "--entrypoint", "/never", image,
        ],
        _DOCKER_SECONDS,
    )  # fmt: skip
    if not made.ok:
        raise ImageError(f"Docker does not let {image} be looked into: {made.last_words(1)}")
    container = made.out.split()[-1]
    try:
        return _copied(container, folder)
    finally:
        runner(["docker", "rm", "--force", container], _DOCKER_SECONDS)


def _sweep(runner: Runner) -> None:
    """Remove what a look has left that was killed."""
    form = f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
    listed_ = runner(
        ["docker", "ps", "--all", "--filter", f"label={LABEL}", "--format", form], _DOCKER_SECONDS
    )
    for line in listed_.out.splitlines() if listed_.ok else ():
        container, _, process = line.partition(" ")
        if process.isdigit() and not Path("/proc", process).exists():
            runner(["docker", "rm", "--force", container], _DOCKER_SECONDS)


def _copied(container: str, folder: str) -> dict[str, str]:
    with subprocess.Popen(
        ["docker", "cp", "--follow-link", f"{container}:{folder}", "-"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        if process.stdout is None or process.stderr is None:
            raise ImageError("docker cp cannot be read")
        try:
            found = hashes(process.stdout)
        except tarfile.TarError:
            found = {}
        said = process.stderr.read().decode("utf-8", "replace").strip()
    if process.returncode and not any(
        words in said.lower() for words in ("could not find the file", "no such file")
    ):
        raise ImageError(f"{folder} cannot be read out of the image: {said or 'no reason given'}")
    return found if not process.returncode else {}


def hashes(stream: IO[bytes]) -> dict[str, str]:
    """Hashes of the regular files of a tar stream, by their path below its first folder."""
    found = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for entry in archive:
            path = entry.name.removeprefix("./").partition("/")[2]
            content = archive.extractfile(entry) if entry.isfile() and path else None
            if content is None:
                continue
            digest = hashlib.sha256()
            while data := content.read(_READ_BYTES):
                digest.update(data)
            found[path] = digest.hexdigest()
    return found


def _some(paths: list[str]) -> str:
    more = len(paths) - _TOLD
    return ", ".join(paths[:_TOLD]) + (f" and {more} more" if more > 0 else "")
