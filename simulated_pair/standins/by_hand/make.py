"""Makes the weights that are found on a pair which somebody has prepared by hand.

usage: make.py TARGET [--size BYTES]

TARGET/head and TARGET/worker then hold what lies in `~/.cache/huggingface` of each machine, as the
Hub's client and the recipe leave it once the source shards are pruned: shard 39 and the small files
of the checkpoint on the head, the Engram tables on both, and one rank file each. The content is
that of the stand-in Hub (of its own default size), the rank files are cut by the stand-in engine's
tool from all 39 shards, stock. Cannot show: how long any of that takes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STANDINS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(STANDINS / "hub"))

from hub_standin import weights  # noqa: E402 - found by the line above
from hub_standin.repositories import File, Held, hold  # noqa: E402

CUTTER = STANDINS / "engine" / "bin" / "tf-dsv41-rank-cache"
RANKS = f"tensorfold-dsv41/{weights.CHECKPOINT_COMMIT[:8]}/checkpoint/rank-cache"
CACHEDIR_TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by huggingface_hub.
# For information about cache directory tags, see:
#\thttps://bford.info/cachedir/
"""
"""As the Hub's client writes it."""


def main() -> None:
    """Make both machines' weights under TARGET."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--size", type=int, help="bytes in all; the Hub's own default otherwise")
    given = parser.parse_args()
    checkpoint, engram = weights.account(*([given.size] if given.size else []))[:2]
    shutil.rmtree(given.target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        whole, tables = hold(checkpoint, Path(folder)), hold(engram, Path(folder))
        head, worker = given.target / "head", given.target / "worker"
        download(head / "hub", whole, shards=("00039-of-00039",))
        for machine in (head, worker):
            download(machine / "hub", tables, shards=("00047-of-00048", "00048-of-00048"))
        for rank, machine in enumerate((head, worker)):
            cut(whole.folder, machine / RANKS, rank)


def download(hub: Path, held: Held, *, shards: tuple[str, ...]) -> None:
    """Put a repository into a cache of the classic layout: its small files and these shards."""
    repository = hub / f"models--{held.wanted.name.replace('/', '--')}"
    snapshot = repository / "snapshots" / held.wanted.commit
    blobs, locks = repository / "blobs", hub / ".locks" / repository.name
    for folder in (blobs, snapshot, locks, repository / "trees"):
        folder.mkdir(parents=True)
    (hub / "CACHEDIR.TAG").write_text(CACHEDIR_TAG)
    for path, file in held.files.items():
        if path.endswith(".safetensors") and not any(shard in path for shard in shards):
            continue
        blob, link = blobs / file.etag, snapshot / path
        if not blob.exists():
            shutil.copyfile(held.folder / path, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
        lock = locks / f"{file.etag}.lock"
        lock.touch()
        lock.chmod(0o664)
    tree = {path: _tree_entry(file) for path, file in held.files.items()}
    listing = repository / "trees" / f"{held.wanted.commit}.json"
    listing.write_text(json.dumps({"format_version": 1, "files": tree}))
    listing.chmod(0o600)


def _tree_entry(file: File) -> dict[str, object]:
    entry: dict[str, object] = {"size": file.size, "blob_id": file.git_sha1}
    if file.sha256:
        entry |= {"lfs_sha256": file.sha256, "lfs_size": file.size}
    return entry


def cut(model: Path, folder: Path, rank: int) -> None:
    """Cut one rank's file; CalledProcessError when the tool refuses."""
    command = [sys.executable, "-I", str(CUTTER), str(model), str(folder), str(rank), "2"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
