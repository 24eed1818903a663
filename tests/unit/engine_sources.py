"""A recipe's repository, patches of it and a kit, made for a test."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_pair import engine_kit
from spark_pair.system import Result, run

START = "\n".join(["#!/bin/sh", *(f"line {number}" for number in range(1, 30)), ""])


def without_runuser(argv: Sequence[str], timeout: float) -> Result:
    """Run as who we are; becoming somebody else needs root."""
    words = list(argv)
    return run(words[4:] if words[0] == "runuser" else words, timeout=timeout)


def git(folder: Path, *words: str) -> str:
    """Run git and return what it prints."""
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *words],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "LC_ALL": "C"},
    )
    return done.stdout.strip()


def commit(folder: Path, files: Mapping[str, str], message: str = "x") -> str:
    """Write files into a repository and commit them; the commit's id."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-qm", message)
    return git(folder, "rev-parse", "HEAD")


def patch_of(folder: Path, target: Path, change: Mapping[str, str]) -> str:
    """Write the patch that makes this change; its sha256. The repository stays as it was."""
    for name, text in change.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    target.write_text(git(folder, "diff", "--cached", "--binary", "HEAD") + "\n")
    git(folder, "reset", "-q", "--hard")
    return engine_kit.digest(target)


def kit(folder: Path, count: int = 64) -> engine_kit.Declared:
    """Make a kit of small files."""
    files = {}
    for number in range(count):
        path = folder / f"wide/rows-{number}.cubin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"kernel %d\0" % number)
        files[f"wide/{path.name}"] = engine_kit.digest(path)
    text = engine_kit.manifest_text(files)
    (folder / engine_kit.MANIFEST).write_text(text)
    return engine_kit.Declared(hashlib.sha256(text.encode()).hexdigest(), count)
