"""A graft in place against copying the shards that it touches, in one run.

The overlay has the real one's 104 tensors and its proportion: it replaces one byte in 207 of the
shards that it touches. All are on one disk, everything ends flushed to it, and the page cache is
emptied of the shards before each. Prints a table in Markdown; nothing is asserted.

usage: .venv/bin/python benchmarks/graft.py [--gb N] [--shards N] [--rounds N] [--folder DIR]

write    bytes kept for the undo and bytes overwritten, without the reading that proves them;
         against copying the shards, which is the least that writing them anew costs
whole    the job from its start to its end; against copying the shards and hashing the copies
undo     the same way back, its proof included
written  what went to the disk, as the kernel counts it, in parts of the overlay
"""

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit")]

from graft_host import GraftHost, digest  # noqa: E402 - needs the path

from simulated_pair.standins.hub.hub_standin.content import Tensor  # noqa: E402
from spark_pair.weights import graft  # noqa: E402
from spark_pair.weights import graft_disk as disk  # noqa: E402
from spark_pair.weights.graft_proof import Proven  # noqa: E402

GB, MB = 10**9, 10**6
LAYERS = range(10, 36)
SHARE = 141_000 / 682
"""Bytes of the touched shards for one of the overlay's."""
THREADS = 2


def tensors(size: int, count: int) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    """`count` shards of about `size` bytes in all, one that stays, and the overlay's tensors."""
    rows = int(size / SHARE / len(LAYERS) / 2 / 1024)
    overlay: list[Tensor] = []
    shards: dict[str, list[Tensor]] = {}
    for layer in LAYERS:
        name = f"model-{(layer - 10) % count + 1:05}.safetensors"
        part = f"layers.{layer}.attn.wo_b"
        for key, dtype, shape in (
            ("trellis", "I16", (rows, 1024)),
            ("suh", "F16", (1024,)),
            ("svh", "F16", (1024,)),
            ("mul1", "I32", ()),
        ):
            overlay.append(Tensor(f"{part}.{key}", dtype, shape, "overlay"))
            shards.setdefault(name, []).append(Tensor(f"{part}.{key}", dtype, shape, "stock"))
    for number, held in enumerate(shards.values()):
        length = (size // count - sum(one.size for one in held)) // 4
        for key in ("attn.a", "norm.z"):  # one before and one behind, in the order of names
            held.append(Tensor(f"layers.{number + 10}.{key}", "I16", (length,)))
    shards["other.safetensors"] = [Tensor("embed.weight", "BF16", (1000, 64))]
    return shards, overlay


def forget(paths: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            disk.drop(stream.fileno(), 0, 0)


def written() -> int:
    """Bytes that this process gave to the disk so far."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def seconds(work: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


@contextmanager
def without_proof() -> Iterator[None]:
    """A graft that believes what it has written."""
    with (
        patch.object(graft, "prove", lambda *_, **__: Proven("0" * 64, "", ())),
        patch.object(graft, "_trouble", lambda *_: ""),
    ):
        yield


class Set:
    """A checkpoint with an overlay that is put in and taken out."""

    def __init__(self, root: Path, size: int, count: int) -> None:
        shards, overlay = tensors(size, count)
        self.host = GraftHost(root, stock=shards, overlay=overlay)
        self.names = sorted(shards)[:count]
        self.overlay = sum(one.size for one in overlay)
        self.count = len(overlay)
        self.copies = root / "copies"

    @property
    def paths(self) -> list[Path]:
        """The shards where they are now."""
        places = [(self.host.folder / name, self.host.payload(name)) for name in self.names]
        return [one if one.is_file() else other for one, other in places]

    @property
    def size(self) -> int:
        """Bytes of the touched shards."""
        return sum(path.stat().st_size for path in self.paths)

    def graft(self) -> None:
        """As the job does, record included."""
        self.host.run(threads=THREADS, tensors=self.count)
        self.host.take_over(tensors=self.count)

    def undo(self) -> None:
        """The way back."""
        self.host.run("undo_graft", threads=THREADS)
        self.host.take_over("undo_graft")

    def copy(self) -> None:
        """The least that writing the shards anew costs: the kernel copies them."""
        self.copies.mkdir()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._copy, self.paths))

    def _copy(self, path: Path) -> None:
        with path.open("rb") as source, (self.copies / path.name).open("wb") as target:
            while os.copy_file_range(source.fileno(), target.fileno(), 1 << 30):
                pass
            os.fsync(target.fileno())

    def hash_copies(self) -> None:
        """Read the copies back, as a proof of them would."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._hash, sorted(self.copies.iterdir())))

    @staticmethod
    def _hash(path: Path) -> None:
        disk.hash_file(path, hashlib.sha256(), check=lambda: None)

    def drop_copies(self) -> None:
        """Make room again."""
        for path in self.copies.iterdir():
            path.unlink()
        self.copies.rmdir()


def measure(held: Set, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, round after round, and bytes written in parts of the overlay."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for _ in range(rounds):
        forget(held.paths)
        note("copy", seconds(held.copy))
        forget(sorted(held.copies.iterdir()))
        note("hash", seconds(held.hash_copies))
        held.drop_copies()
        forget(held.paths)
        with without_proof():
            note("write", seconds(lambda: held.host.run(threads=THREADS, tensors=held.count)))
        (held.host.job / "verified.jsonl").unlink()
        held.undo()
        forget(held.paths)
        before = written()
        note("whole", seconds(held.graft))
        note("written", (written() - before) / held.overlay)
        forget(held.paths)
        note("undo", seconds(held.undo))
    return found


def report(held: Set, found: dict[str, list[float]]) -> str:
    """The table."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    proven = statistics.median(
        copy + hashed for copy, hashed in zip(found["copy"], found["hash"], strict=True)
    )
    rows = [
        ("write only", middle["write"], "copy the shards", middle["copy"]),
        ("whole job", middle["whole"], "copy, then hash the copies", proven),
        ("undo, proof included", middle["undo"], "copy, then hash the copies", proven),
    ]
    lines = [
        f"{held.size / GB:.2f} GB in {len(held.names)} shards, "
        f"overlay {held.overlay / MB:.1f} MB in {held.count} tensors, "
        f"{THREADS} threads, median of {len(found['copy'])}:\n",
        "| graft | takes | against | takes | times less |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {took:.2f} s | {other} | {bound:.2f} s | **{bound / took:.1f}** |"
        for name, took, other, bound in rows
    ]
    lines.append(f"\nWritten: {middle['written']:.2f} times the overlay (aim: at most 2.1).")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=3.0, help="size of the touched shards")
    parser.add_argument("--shards", type=int, default=6, help="how many are touched")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="graft-", dir=options.folder) as place:
        held = Set(Path(place), int(options.gb * GB), options.shards)
        stock = [digest(path) for path in held.paths]
        print(report(held, measure(held, options.rounds)))
        if [digest(path) for path in held.paths] != stock:
            raise SystemExit("the shards are not as they were: something else was measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
