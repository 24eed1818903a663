"""Packs a root file system as an image archive for `docker load`, without a Docker to build it.

usage: pack_image.py ROOT_DIRECTORY ARCHIVE TAG

The same root always gives the same archive. The image carries a label with the digest of its one
layer, by which load.sh and the recipe's stand-in recognise their own content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

CONTENT_LABEL = "spark-pair.standin.content"
BLOCK_BYTES = 1 << 20
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Docker's names for machines."""


def _neutral(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = 0
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _write_layer(root: Path, layer: Path) -> None:
    with tarfile.open(layer, "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, path.relative_to(root), recursive=False, filter=_neutral)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def pack(root: Path, target: Path, tag: str) -> str:
    """Write the archive; the digest of the image's content."""
    layer = target.with_suffix(".layer")
    _write_layer(root, layer)
    digest = _digest(layer)
    machine = os.uname().machine
    config = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["tensorfold"],
            "Labels": {CONTENT_LABEL: digest},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "engine stand-in"}],
    }
    config_data = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config_data).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add_bytes(archive, config_name, config_data)
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        archive.add(layer, "layer.tar", filter=_neutral)
    layer.unlink()
    return digest


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
