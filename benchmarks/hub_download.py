"""Our download against the Hub's own command, over a limited line and over one without a limit.

The stand-in Hub, `hf download` and ours each run in a process of their own on this machine, so all
three share its cores. Each download begins with an empty cache on the disk; both take turns. Ours
hashes every byte, compares it and brings it to the disk before a file gets its name; the Hub's
command does none of the three. Prints a table in Markdown; nothing is asserted.

usage: .venv/bin/python benchmarks/hub_download.py [--gib N] [--rounds N] [--rate MB] [--folder DIR]

time        from the start of the command to its end, the list of files and Python's start included
ours / hf   speed of ours in parts of the Hub's command's: above 1, ours is faster
of the line bytes of the files in that time, in parts of what the limit lets through
processor   seconds of the client's processor a GB
"""

import argparse
import contextlib
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

REPO = "benchmark/weights"
FILES = 6
"""Of equal size: as many as keep every worker of either busy for most of the time."""
GB, MB, GIB = 10**9, 10**6, 1 << 30


@dataclass(frozen=True)
class Taken:
    """One download."""

    seconds: float
    processor: float
    """Seconds of the client's user and system time."""


# ---- what runs in a process of its own ----------------------------------------------------------


def serve(folder: Path, size: int, rate: float, way: str) -> None:
    """The stand-in Hub, until it is told to end; prints its address and the commit."""
    from simulated_pair.standins.hub.hub_standin.hub import Hub  # noqa: PLC0415
    from simulated_pair.standins.hub.hub_standin.repositories import (  # noqa: PLC0415
        noise_repository,
    )

    sizes = {f"model-{number:05d}.safetensors": size // FILES for number in range(1, FILES + 1)}
    wanted = noise_repository(REPO, {**sizes, "config.json": 3000})
    hub = Hub(folder, [wanted], bytes_per_second=rate)
    if way == "xet":
        hub.use_xet()
    hub.start()
    print(hub.url, wanted.commit, flush=True)
    signal.pause()


def fetch_ours(url: str, commit: str, cache: Path) -> int:
    """Ours, as the job of a download does it."""
    from spark_pair.weights.cache import Cache  # noqa: PLC0415 - not for those who only watch
    from spark_pair.weights.fetch import fetch  # noqa: PLC0415
    from spark_pair.weights.hub import Hub  # noqa: PLC0415

    hub = Hub(url)
    manifest = hub.manifest(REPO, commit)
    result = fetch(hub, Cache(cache), manifest, manifest.files)
    print("\n".join(result.problems), file=sys.stderr)
    return 0 if result.whole else 1


# ---- the measurement ----------------------------------------------------------------------------


@contextlib.contextmanager
def standin(folder: Path, size: int, rate: float, way: str) -> Iterator[tuple[str, str]]:
    """A running stand-in Hub: its address and the commit that it holds."""
    words = ["--serve", str(folder), "--bytes", str(size), "--rate", str(rate), "--way", way]
    with subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline().split() if process.stdout else []
            if len(line) != 2:
                raise SystemExit("the stand-in Hub did not start")
            yield line[0], line[1]
        finally:
            process.terminate()


def timed(words: list[str], environment: dict[str, str]) -> Taken:
    """Run a download to its end. SystemExit when it fails."""
    # What an earlier one has left to be written is not this one's burden.
    os.sync()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        words,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed: {done.stderr[-2000:]}")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(seconds, spent)


def by_hf(url: str, commit: str, home: Path) -> Taken:
    """The Hub's own command."""
    environment = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }
    hf = Path(sys.executable).with_name("hf")
    return timed([str(hf), "download", REPO, "--revision", commit], environment)


def by_us(url: str, commit: str, home: Path) -> Taken:
    """Ours."""
    words = [sys.executable, __file__, "--fetch", url, "--commit", commit, "--cache", str(home)]
    return timed(words, {"HF_HOME": str(home)})


def downloads(
    url: str, commit: str, size: int, rounds: int, folder: Path
) -> tuple[list[Taken], list[Taken]]:
    """Both in turns, each into a cache of its own that is removed at once: the Hub's, then ours."""
    taken: dict[str, list[Taken]] = {"hf": [], "ours": []}
    ways: list[tuple[str, Callable[[str, str, Path], Taken]]] = [("hf", by_hf), ("ours", by_us)]
    for number in range(rounds):
        for name, way in ways if number % 2 == 0 else reversed(ways):
            home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
            taken[name].append(way(url, commit, home))
            weight = sum(
                one.stat().st_size
                for one in home.rglob("*")
                if one.is_file() and not one.is_symlink()
            )
            if weight < size // FILES * FILES:
                raise SystemExit(f"{name} brought {weight:,} bytes of {size:,}")
            shutil.rmtree(home)
    return taken["hf"], taken["ours"]


def row(way: str, rate: float, size: int, hf: list[Taken], ours: list[Taken]) -> str:
    """One line of the table, from the medians."""
    seconds = [statistics.median(one.seconds for one in taken) for taken in (hf, ours)]
    processor = [statistics.median(one.processor for one in taken) for taken in (hf, ours)]
    speeds = [size / MB / one for one in seconds]
    shares = [f"{size / rate / one:.2f}" if rate else "" for one in seconds]
    cells = [
        {"http": "plain HTTP", "xet": "Xet"}[way],
        f"{rate / MB:.0f} MB/s" if rate else "none",
        *(f"{speed:.0f} MB/s" for speed in speeds),
        f"**{speeds[1] / speeds[0]:.2f}**",
        *shares,
        *(f"{spent / size * GB:.2f} s" for spent in processor),
    ]
    return f"| {' | '.join(cells)} |"


def measure(size: int, rounds: int, rate: float, folder: Path) -> None:
    """All of the table."""
    print(f"{size / GB:.2f} GB in {FILES} files, median of {rounds}:\n")
    print(
        "| way | limit | `hf download` | ours | ours / hf | hf of the line | ours of the line "
        "| hf processor a GB | ours processor a GB |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for way in ("http", "xet"):
        for limit in (rate, 0.0):
            with standin(folder / "content", size, limit, way) as (url, commit):
                hf, ours = downloads(url, commit, size, rounds, folder)
            print(row(way, limit, size, hf, ours), flush=True)


def main() -> int:
    """Measure and print, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.5, help="size of all files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=100.0, help="MB a second of the limited line")
    parser.add_argument("--folder", type=Path, help="where content and caches lie for a while")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--fetch", help=argparse.SUPPRESS)
    parser.add_argument("--commit", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.bytes, options.rate, options.way)
    elif options.fetch:
        return fetch_ours(options.fetch, options.commit, options.cache)
    else:
        with tempfile.TemporaryDirectory(prefix="hub-download-", dir=options.folder) as folder:
            measure(int(options.gib * GIB), options.rounds, options.rate * MB, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
