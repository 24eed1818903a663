"""Applies an overlay of replacement tensors to a checkpoint, into a new directory.

It follows the published script's contract: the source is never written to, every replacement must
have the shape of what it replaces, untouched shards are hard links where the file system allows,
small files keep their mode, the index comes last, over the copy that was made with the others (and
so fails for an ordinary account whose index is read-only). Replacements of another type are spliced
in as they are; the recipe's next step gives them the checkpoint's. It cannot show what the tensors
do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from tensorfold_standin.rank_cache import RankCacheError, Tensor, read_checkpoint
from tensorfold_standin.shards import content, read_shard, write_shard

INDEX = "model.safetensors.index.json"


class OverlayError(Exception):
    """The overlay does not fit."""


def _replacements(source: Path, sidecar: Path) -> dict[Path, list[tuple[Tensor, Tensor]]]:
    """Pairs of (old, new) by shard. Raises :class:`OverlayError`."""
    by_key = {tensor.key: tensor for tensor in read_checkpoint(source)}
    shards: dict[Path, list[tuple[Tensor, Tensor]]] = {}
    for new in read_checkpoint(sidecar):
        old = by_key.get(new.key)
        if old is None:
            raise OverlayError(f"the checkpoint has no tensor {new.key}")
        if old.shape != new.shape:
            raise OverlayError(f"{new.key}: shape mismatch, refusing to splice")
        shards.setdefault(old.path, []).append((old, new))
    return shards


def _splice(shard: Path, target: Path, pairs: list[tuple[Tensor, Tensor]]) -> None:
    partial = target.with_name(target.name + ".tmp")
    if all(old.dtype == new.dtype for old, new in pairs):
        shutil.copyfile(shard, partial)
        with partial.open("r+b") as file:
            for old, new in pairs:
                file.seek(old.start)
                file.write(content(new))
    else:
        replaced = {old.key: new for old, new in pairs}
        tensors = [replaced.get(tensor.key, tensor) for tensor in read_shard(shard)]
        write_shard(partial, [(tensor, content(tensor)) for tensor in tensors])
    partial.chmod(0o644)
    partial.replace(target)


def _link(source: Path, target: Path) -> None:
    # A cache's snapshot holds links to its blobs: the blob itself is what gets another name.
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)


def apply(source: Path, sidecar: Path, target: Path) -> int:
    """Write the new checkpoint; tensors replaced. Raises :class:`OverlayError` or ``OSError``."""
    if target.resolve() == source.resolve():
        raise OverlayError("refusing to write through --src")
    shards = _replacements(source, sidecar)
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        goal = target / path.name
        if path in shards:
            _splice(path, goal, shards[path])
        elif path.suffix == ".safetensors":
            goal.unlink(missing_ok=True)
            _link(path, goal)
        elif path.is_file():
            shutil.copy2(path, goal)
    shutil.copy2(source / INDEX, target / INDEX)
    return sum(len(pairs) for pairs in shards.values())


def main(arguments: list[str]) -> int:
    """``apply-overlay --src DIR --wo-b FILE --dst DIR``; 0 or 1."""
    parser = argparse.ArgumentParser(prog="apply-overlay", allow_abbrev=False)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--wo-b", type=Path, required=True)
    parser.add_argument("--dst", type=Path, required=True)
    parsed = parser.parse_args(arguments)
    try:
        edited = apply(parsed.src, parsed.wo_b, parsed.dst)
    except (OverlayError, RankCacheError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"DONE {parsed.dst} edited {edited}")
    return 0
