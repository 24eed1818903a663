"""The weights of the simulated pair are what the Hub's own client and the engine's tool leave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub, weights
from huggingface_hub import snapshot_download

from simulated_pair.standins.hub.hub_standin.repositories import Repository
from spark_pair.weights.cache import Cache
from spark_pair.weights.rank_file import named_revisions, read_footer

MAKE = Path(__file__).parents[2] / "simulated_pair" / "standins" / "by_hand" / "make.py"
SIZE = 1 << 19
CHECKPOINT, ENGRAM, _ = weights.account(SIZE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("by-hand")
    subprocess.run([sys.executable, "-I", MAKE, target, "--size", str(SIZE)], check=True)
    return target


def listing(hub: Path) -> dict[str, object]:
    """Every file and link of a cache with its content; lists of files as data."""
    found: dict[str, object] = {}
    for path in hub.rglob("*"):
        name = str(path.relative_to(hub))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            data = path.read_bytes()
            mode = path.stat().st_mode & 0o777
            found[name] = (mode, json.loads(data) if path.suffix == ".json" else data)
    return found


@pytest.mark.parametrize("machine", ["head", "worker"])
def test_the_cache_is_what_the_real_client_leaves(made: Path, tmp_path: Path, machine: str) -> None:
    wanted: list[tuple[Repository, list[str]]] = [
        (ENGRAM, ["*-0004[78]-of-*", "*.json", "*.md", "LICENSE", ".gitattributes"])
    ]
    if machine == "head":
        wanted.append((CHECKPOINT, ["*-00039-of-*", *wanted[0][1][1:]]))
    with Hub(tmp_path / "hub", [CHECKPOINT, ENGRAM]) as hub:
        for repository, patterns in wanted:
            snapshot_download(
                repository.name, revision=repository.commit, endpoint=hub.url,
                cache_dir=tmp_path / "cache", allow_patterns=patterns,
            )  # fmt: skip
    assert listing(made / machine / "hub") == listing(tmp_path / "cache")


@pytest.mark.parametrize(("machine", "rank"), [("head", 0), ("worker", 1)])
def test_one_whole_rank_file_each_in_a_folder_that_says_stock(
    made: Path, machine: str, rank: int
) -> None:
    (path,) = made.glob(f"{machine}/tensorfold-dsv41/*/checkpoint/rank-cache/*")
    footer = read_footer(path)
    assert path.name == f"rank{rank}of2-{footer.index_sha256[:20]}.bin"
    assert named_revisions(path) == (CHECKPOINT.commit[:8], None)


def test_the_lists_of_files_are_understood(made: Path) -> None:
    cache = Cache(made / "worker" / "hub")
    manifest = cache.read_tree(ENGRAM.name, ENGRAM.commit)
    assert manifest is not None
    located = [cache.locate(ENGRAM.name, ENGRAM.commit, file) for file in manifest.files]
    assert sum(1 for payload in located if payload and payload.linked) == 2 + 8
