"""Homes of two machines as they are found on a pair that was prepared by hand, for tests.

Made once for a whole run and copied for each test: about half a megabyte.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hub_server import weights

from spark_pair.weights.kept import Kept
from spark_pair.weights.look import look
from spark_pair.weights.manifest import HOST_ROLES, HostRole, Selector, Source
from spark_pair.weights.provenance import Provenance

SIZE = 1 << 19
MAKE = Path(__file__).parents[2] / "simulated_pair" / "standins" / "by_hand" / "make.py"
CHECKPOINT, ENGRAM, OVERLAY = weights.account(SIZE)
STOCK_FOLDER = f"tensorfold-dsv41/{CHECKPOINT.commit[:8]}/checkpoint/rank-cache"

SOURCES = (
    Source(
        "checkpoint",
        CHECKPOINT.name,
        CHECKPOINT.commit[:8],
        (Selector("*.safetensors", 39), Selector("*.json")),
        ("head",),
    ),
    Source(
        "engram",
        ENGRAM.name,
        ENGRAM.commit,
        (Selector("*-0004[78]-of-*", 2), Selector("*.json")),
        HOST_ROLES,
    ),
    Source("overlay", OVERLAY.name, OVERLAY.commit, (Selector("*"),), ("head",), True, False),
)


def _made(beside: Path) -> Path:
    """The weights of both, made by the first test that asks in the run's own folder."""
    target = beside / "prepared-by-hand"
    if not target.exists():
        command = [sys.executable, "-I", str(MAKE), str(target), "--size", str(SIZE)]
        subprocess.run(command, check=True)
    return target


class Machine:
    """One machine: a home with weights, and a record that is empty at first."""

    def __init__(self, folder: Path, role: HostRole) -> None:
        """`folder` is a test's tmp_path."""
        self.role = role
        self.home = folder / role / "home"
        self.files = self.home / ".cache" / "huggingface"
        self.provenance = Provenance(folder / role / "var" / "provenance.json")
        self.kept = Kept(folder / role / "var" / "manifests")
        self.files.parent.mkdir(parents=True)
        subprocess.run(["cp", "-a", str(_made(folder.parent) / role), str(self.files)], check=True)

    @property
    def asked(self) -> dict[str, Any]:
        """What `look` is asked."""
        return {
            "home": str(self.home),
            "places": {"ranks": str(self.files / "tensorfold-dsv41")},
            "repos": [{"repo": one.repo, "revision": one.revision} for one in SOURCES],
            "image": "",
        }

    def look(self) -> dict[str, Any]:
        """What lies here and what is recorded."""
        return look(self.asked, provenance=self.provenance, kept=self.kept)

    @property
    def ranks(self) -> Path:
        """The folder of its rank file."""
        return self.files / STOCK_FOLDER

    @property
    def rank(self) -> Path:
        """Its rank file."""
        (path,) = self.ranks.glob(f"rank{HOST_ROLES.index(self.role)}of2-*.bin")
        return path

    def blob(self, number: str) -> Path:
        """The bytes of the shard of that number, such as "00047"."""
        (path,) = self.files.glob(f"hub/models--*/snapshots/*/model-{number}-of-*")
        return path.resolve()

    def everything(self) -> Mapping[str, tuple[int, ...]]:
        """What must not change: mode, owner, size, time and inode of all that lies here.

        Except refs, and the folders that got them: a name is all that adopting adds.
        """
        found = {}
        for path in self.files.rglob("*"):
            if "refs" in path.parts or path.name.startswith("models--"):
                continue
            told = path.lstat()
            found[str(path)] = (
                told.st_mode, told.st_uid, told.st_size, told.st_mtime_ns, told.st_ino,
            )  # fmt: skip
        return found
