"""Releases of the tool: their name, and the one archive that a host without internet installs.

Controller side. A release is named by a hash of this package's sources and requirements, so that
both machines of a pair carry the same name whatever Python they have; its archive holds wheels
only, fetched for the *host's* platform, which may differ from the controller's. Standard library
only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

from .errors import SparkPairError

PACKAGE = "spark_pair"
MACHINES = ("aarch64", "x86_64")
MINIMUM_PYTHON = (3, 11)
_MANYLINUX_FLOOR = 17
"""glibc 2.17 is the oldest that wheels are tagged with (manylinux2014)."""


class ReleaseError(SparkPairError):
    """An archive could not be made; the message names the step and what to do."""


def requirements(root: Path) -> list[str]:
    """What the installed tool needs besides itself, as pyproject.toml says."""
    with (root / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    return sorted(str(requirement) for requirement in project["dependencies"])


def sources(root: Path) -> list[Path]:
    """Files that make up the package, in a stable order, without what Python left behind."""
    return sorted(
        path
        for path in (root / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    )


def release_hash(root: Path) -> str:
    """Twelve hex digits that name the release made of these sources and requirements."""
    digest = hashlib.sha256()

    def add(label: str, content: bytes) -> None:
        digest.update(f"{label}\0{len(content)}\0".encode())
        digest.update(content)

    add("pyproject.toml", (root / "pyproject.toml").read_bytes())
    for path in sources(root):
        add(path.relative_to(root).as_posix(), path.read_bytes())
    return digest.hexdigest()[:12]


def check_platform(python: str, machine: str) -> None:
    """Refuse a host that no release can be made for."""
    if not re.fullmatch(r"3\.\d+", python) or (3, int(python[2:])) < MINIMUM_PYTHON:
        raise ReleaseError(f"Python {python} is too old for the tool, which needs 3.11 or newer")
    if machine not in MACHINES:
        raise ReleaseError(f"machine type {machine} is not one of {', '.join(MACHINES)}")


def platform_tags(machine: str, glibc: str) -> list[str]:
    """Wheel platforms that run on a Linux with this glibc ("2.39"), newest first."""
    match = re.fullmatch(r"2\.(\d+)", glibc)
    if not match:
        raise ReleaseError(f"glibc version {glibc!r} is not understood: wheels cannot be chosen")
    minors = range(int(match[1]), _MANYLINUX_FLOOR - 1, -1)
    return [f"manylinux_2_{minor}_{machine}" for minor in minors] + [f"manylinux2014_{machine}"]


def archive_path(root: Path, cache: Path, python: str, machine: str) -> Path:
    """Where the archive for a host with this Python ("3.12") and machine type lies."""
    return cache / f"release-{release_hash(root)}-{python}-{machine}.tar"


def build_archive(
    root: Path, cache: Path, *, python: str, machine: str, glibc: str, say: Callable[[str], None]
) -> Path:
    """Make the archive for one kind of host, or return the one that is there.

    Two hosts of one kind ask at the same time: the second waits for the first and finds it done.
    Raises ReleaseError with pip's last words.
    """
    check_platform(python, machine)
    cache.mkdir(parents=True, exist_ok=True)
    archive = archive_path(root, cache, python, machine)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return archive
        wheels = _third_party(root, cache, python=python, machine=machine, glibc=glibc, say=say)
        say(f"building the wheel of {PACKAGE}")
        with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as scratch:
            own = _own_wheel(root, Path(scratch))
            partial = Path(scratch) / "archive.tar"
            _pack([*wheels, own], partial)
            partial.replace(archive)
        # One archive for each kind of host: it is built anew from the sources at will.
        for old in cache.glob(f"release-*-{python}-{machine}.tar"):
            if old != archive:
                old.unlink()
    return archive


def _third_party(
    root: Path, cache: Path, *, python: str, machine: str, glibc: str, say: Callable[[str], None]
) -> list[Path]:
    """Wheels of the requirements; kept, since they change more rarely than our own sources."""
    needed = requirements(root)
    key = hashlib.sha256("\n".join([python, machine, glibc, *needed]).encode()).hexdigest()[:12]
    store = cache / f"wheels-{key}"
    if not store.is_dir():
        say(f"fetching wheels for Python {python} on {machine} (once)")
        tags = platform_tags(machine, glibc)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as scratch:
            _pip(
                "download",
                "--only-binary=:all:",
                "--implementation=cp",
                f"--python-version={python}",
                *(f"--platform={tag}" for tag in tags),
                f"--dest={scratch}/wheels",
                *needed,
            )
            (Path(scratch) / "wheels").replace(store)
    return sorted(store.glob("*.whl"))


def _own_wheel(root: Path, scratch: Path) -> Path:
    """Build our wheel from a copy: a build in place would leave its own files in the checkout."""
    tree = scratch / "tree"
    tree.mkdir()
    shutil.copy2(root / "pyproject.toml", tree)
    (tree / "README.md").write_text("spark-pair\n", encoding="utf-8")
    for path in sources(root):
        target = tree / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    _pip("wheel", "--no-deps", f"--wheel-dir={scratch}/own", str(tree))
    (wheel,) = (scratch / "own").glob("*.whl")
    return wheel


def _pack(wheels: Iterable[Path], target: Path) -> None:
    with tarfile.open(target, "w") as tar:
        for wheel in sorted(wheels, key=lambda path: path.name):
            tar.add(wheel, arcname=f"wheels/{wheel.name}")
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise ReleaseError(
            f"{sys.executable} has no pip, which fetches the wheels for the hosts: run the "
            "playbook from the virtual environment that 'make setup' makes"
        )
    words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    raise ReleaseError(
        f"'pip {arguments[0]}' failed on the controller: {' / '.join(words[-3:]) or 'no output'}. "
        "The controller needs internet access (or a package mirror) for this step, the hosts do not"
    )
