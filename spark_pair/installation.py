"""Releases of the tool on a host: installed beside each other, one of them current.

Host side, standard library only. `current` is flipped by a rename after the new release has proven
that it runs; a release that a unit or a running process names is never removed, because a switch
may be in the middle of its work with it.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import jsonfile
from .errors import SparkPairError
from .links import flip
from .paths import SWITCH_UNIT
from .system import Runner, run_plainly

PREFIX = Path("/opt/spark-pair")
PYTHON = "/usr/bin/python3"
STAMP = "release.json"
"""Written last: a release without it was interrupted and is made anew."""

UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/transient"))
"""Where units lie that may name a release; those of jobs are in the second."""

LINKS = {"spark-pair": Path("/usr/local/bin/spark-pair"), "hf": Path("/usr/local/bin/hf")}
PACKAGES = {"git": "git", "rsync": "rsync"}
"""Program -> package of the operating system."""


class InstallationError(SparkPairError):
    """A release could not be installed; the one before it is untouched."""


def facts(prefix: Path = PREFIX, runner: Runner = run_plainly) -> dict[str, Any]:
    """Describe what decides about a release here: platform, missing packages, what is current."""
    missing = [package for program, package in PACKAGES.items() if not shutil.which(program)]
    if not importlib.util.find_spec("ensurepip") or not importlib.util.find_spec("venv"):
        missing.append("python3-venv")
    current = current_release(prefix)
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "missing_packages": sorted(missing),
        "release": current,
        "complete": current is not None
        and is_complete(prefix / "releases" / current)
        and all(link_state(name, prefix) != "missing" for name in LINKS),
        "switch_running": runner(["systemctl", "is-active", "--quiet", SWITCH_UNIT], 15).ok,
    }


def platform_words() -> str:
    """What a release is bound to: another system Python breaks its virtual environment."""
    return f"{'.'.join(platform.python_version_tuple()[:2])} {platform.machine()}"


def current_release(prefix: Path = PREFIX) -> str | None:
    """Hash of the current release, or None."""
    link = prefix / "current"
    return link.readlink().name if link.is_symlink() else None


def is_complete(release: Path) -> bool:
    """Whether a release was installed to its end, for the Python that is here now."""
    stamp = jsonfile.read(release / STAMP)
    made_for = stamp.get("platform") if isinstance(stamp, dict) else None
    return made_for == platform_words() and (release / "venv/bin/spark-pair").is_file()


def link_state(name: str, prefix: Path = PREFIX) -> str:
    """State of a command in /usr/local/bin: "ours", "missing", or "foreign" (the operator's)."""
    link = LINKS[name]
    if link.is_symlink():
        target = str(link.readlink())
        if target == str(prefix / "current/venv/bin" / name):
            return "ours"
        # A link of ours from another layout, or one that leads nowhere, may be replaced.
        return "missing" if target.startswith(f"{prefix}/") or not link.exists() else "foreign"
    return "foreign" if link.exists() else "missing"


def install(
    digest: str,
    archive: Path,
    *,
    keep: int,
    prefix: Path = PREFIX,
    runner: Runner = run_plainly,
) -> dict[str, Any]:
    """Install a release from its archive, make it current, remove releases beyond `keep`.

    Raises InstallationError; nothing that was there before has changed then.
    """
    if link_state("spark-pair", prefix) == "foreign":
        raise InstallationError(
            f"{LINKS['spark-pair']} exists and is not of this tool: move it away, then run again"
        )
    release = prefix / "releases" / digest
    if not is_complete(release):
        _build(release, archive, runner)
    flip(prefix / "current", Path("releases") / digest)
    for name, link in LINKS.items():
        if link_state(name, prefix) == "missing":
            flip(link, prefix / "current/venv/bin" / name)
    removed = prune(prefix, keep=keep)
    return {"release": digest, "removed": removed}


def _build(release: Path, archive: Path, runner: Runner) -> None:
    if release.exists():
        shutil.rmtree(release)
    release.mkdir(parents=True, mode=0o755)
    try:
        with tempfile.TemporaryDirectory(prefix="spark-pair-") as scratch:
            wheels = _unpack(archive, Path(scratch))
            venv = release / "venv"
            steps: list[tuple[str, list[str]]] = [
                ("making its virtual environment", [PYTHON, "-m", "venv", str(venv)]),
                (
                    "installing its wheels",
                    [
                        str(venv / "bin/python"), "-m", "pip", "install", "--quiet",
                        "--disable-pip-version-check", "--no-index",
                        f"--find-links={scratch}", *wheels,
                    ],
                ),
                ("running it", [str(venv / "bin/spark-pair"), "--version"]),
            ]  # fmt: skip
            for what, argv in steps:
                done = runner(argv, 600)
                if not done.ok:
                    raise InstallationError(f"{what} failed: {done.last_words()}")
        (release / STAMP).write_text(
            json.dumps({"schema": 1, "release": release.name, "platform": platform_words()}) + "\n",
            encoding="utf-8",
        )
    except BaseException:
        shutil.rmtree(release, ignore_errors=True)
        raise


def _unpack(archive: Path, folder: Path) -> list[str]:
    """Put the archive's wheels into a folder, by their plain names; returns their paths.

    Not `extractall(filter=…)`: that came with Python 3.11.4 only.
    """
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                (folder / Path(member.name).name).write_bytes(content.read())
    return sorted(map(str, folder.glob("*.whl")))


def prune(
    prefix: Path = PREFIX,
    *,
    keep: int,
    units: Sequence[Path] = UNITS,
    proc: Path = Path("/proc"),
) -> list[str]:
    """Remove the oldest releases until `keep` are left; those in use do not count as removable."""
    named = (file for folder in units for file in folder.glob("spark-pair-*.service"))
    in_use = set(_named_in(prefix, _texts(named)))
    in_use |= set(_named_in(prefix, _texts(proc.glob("[0-9]*/cmdline"))))
    current = current_release(prefix)
    releases = [path for path in (prefix / "releases").iterdir() if path.is_dir()]
    newest_first = sorted(releases, key=lambda path: path.stat().st_mtime, reverse=True)
    newest_first.sort(key=lambda path: path.name != current)
    removed = []
    for release in newest_first[max(keep, 1) :]:
        if release.name not in in_use:
            shutil.rmtree(release)
            removed.append(release.name)
    return removed


def _named_in(prefix: Path, texts: Iterable[str]) -> list[str]:
    pattern = re.compile(re.escape(f"{prefix}/releases/") + r"([0-9a-f]{12})")
    return [name for text in texts for name in pattern.findall(text)]


def _texts(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        try:
            yield file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # a process that ended meanwhile
