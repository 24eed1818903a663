"""Verification of recorded files against what bounds it, in one run: the disk, then the processor.

Both take turns, with the same number of threads. Prints a table in Markdown; nothing is asserted.

usage: .venv/bin/python benchmarks/verify_speed.py [--gib N] [--rounds N] [--folder DIR]

cold        verify as it runs on a host, against plain reads of the same files. The page cache is
            emptied of them before each, so that both read the disk
in memory   verify with a reader that takes the files from the page cache and leaves them there,
            against sha256 of as many bytes of one buffer
ratio       speed of verify in parts of the bound: 1 means that nothing else costs time
processor   seconds of it a GB, which other work on the machine hardly changes
everyday    the check of sizes, times and inodes that needs no reading
"""

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from spark_pair.weights.provenance import Artefact, Origin, everyday  # noqa: E402 - needs the path
from spark_pair.weights.verify import BLOCK_BYTES, Disk, measure, verify  # noqa: E402

FILES = 64
"""About as many as a machine of the pair has recorded."""
GB, MB, GIB = 10**9, 10**6, 1 << 30
THREADS = (1, 2, 4)


class Warm(Disk):
    """A reader that takes what is in memory and leaves it there."""

    def blocks(self, path: str) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        with (self.folder / path).open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                yield buffer[:count]


def make_files(folder: Path, size: int) -> list[str]:
    """Files of random bytes on the disk; their names."""
    names = [f"model-{number:05d}.safetensors" for number in range(1, FILES + 1)]
    for name in names:
        with (folder / name).open("wb") as stream:
            for at in range(0, size // FILES, MB):
                stream.write(os.urandom(min(MB, size // FILES - at)))
            os.fsync(stream.fileno())
    return names


def record_of(folder: Path, names: Sequence[str]) -> Artefact:
    """What a host would have recorded about them."""
    measured = measure(names, Disk(folder), how="read")
    return Artefact(
        "checkpoint",
        "repository",
        "benchmark/weights",
        "0" * 40,
        Origin.ADOPTED,
        time.time(),
        str(folder),
        measured.files,
    )


def forget(folder: Path, names: Sequence[str]) -> None:
    """Take the files out of the page cache."""
    for name in names:
        with (folder / name).open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Taken:
    """What something took, in seconds."""

    seconds: float
    processor: float
    """Of all threads together; other work on the machine does not change it much."""


def timed(work: Callable[[], object]) -> Taken:
    """Do something."""
    began, before = time.monotonic(), time.process_time()
    work()
    return Taken(time.monotonic() - began, time.process_time() - before)


def read_all(folder: Path, names: Sequence[str], threads: int) -> None:
    """Read the files and do nothing with what comes."""
    reader = Warm(folder)

    def one(name: str) -> None:
        for _ in reader.blocks(name):
            pass

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, names))


def hash_alone(size: int, threads: int) -> None:
    """Hash as many bytes as the files have, without reading any."""
    block = os.urandom(BLOCK_BYTES)
    blocks, rest = divmod(size // FILES, BLOCK_BYTES)

    def one(_: int) -> None:
        digest = hashlib.sha256(block[:rest])
        for _ in range(blocks):
            digest.update(block)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(FILES)))


def prove(record: Artefact, reader: Disk, threads: int) -> None:
    """Verify. SystemExit when it finds anything, since then something else was measured."""
    found = verify(record, reader, threads=threads)
    if not found.ok:
        raise SystemExit(f"the files are not as they were written: {found.differences}")


def compare(
    record: Artefact, names: Sequence[str], threads: int, rounds: int, *, cold: bool
) -> str:
    """One line of the table."""
    folder = Path(record.folder)
    reader = Disk(folder) if cold else Warm(folder)
    ways: dict[str, Callable[[], None]] = {
        "bound": lambda: read_all(folder, names, threads),
        "verify": lambda: prove(record, reader, threads),
    }
    if not cold:
        ways["bound"] = lambda: hash_alone(record.total, threads)
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            if cold:
                forget(folder, names)
            else:
                read_all(folder, names, threads)
            taken[name].append(timed(ways[name]))
    speeds = [record.total / statistics.median(one.seconds for one in taken[name]) for name in ways]
    spent = [
        statistics.median(one.processor for one in taken[name]) / record.total for name in ways
    ]
    cells = ["cold, against plain reads" if cold else "in memory, against sha256 alone"]
    cells += [str(threads), *(f"{speed / MB:.0f} MB/s" for speed in speeds)]
    cells += [f"**{speeds[1] / speeds[0]:.2f}**", *(f"{one * GB:.2f} s" for one in spent)]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0, help="size of all files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="verify-speed-", dir=options.folder) as place:
        folder = Path(place)
        names = make_files(folder, int(options.gib * GIB))
        record = record_of(folder, names)
        print(f"{record.total / GB:.2f} GB in {FILES} files, median of {options.rounds}:\n")
        print(
            "| files | threads | bound | verify | ratio | bound's processor a GB "
            "| verify's processor a GB |\n|---|---|---|---|---|---|---|",
            flush=True,
        )
        for cold in (True, False):
            for threads in THREADS:
                print(compare(record, names, threads, options.rounds, cold=cold), flush=True)
        disk = Disk(folder)
        checks = [timed(lambda: everyday(record, disk.stat)) for _ in range(100)]
        took = statistics.median(one.seconds for one in checks) * 1e3
        print(f"\nThe everyday check of these files takes {took:.2f} ms.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
