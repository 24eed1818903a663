"""The most that the weights take of the head's disk in the minimal order, against what they end as.

Measured on the simulated pair: the head's weights lie on a file system of their own, empty at
first, whose use is looked at all the time while site.yml brings the weights in, cuts both rank
files and deletes the shards. Images lie elsewhere and are not counted. Prints a table in Markdown;
nothing is asserted.

usage: make pair && .venv/bin/python benchmarks/disk_peak.py [--gib N] [--overlay]

peak          most bytes in use at one moment, by the file system's own account
in the end    bytes in use when the run is over
ratio         peak / in the end; the real sizes allow 1.01 at best (docs/weights.md)
planned       what the plan says of both before the first byte
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "molecule")]
# The commands of this very environment, also when nobody has activated it.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

from stories import machines, plays, preparation, servers, weights  # noqa: E402 - needs the path

GIB, MB = 1 << 30, 10**6
PERIOD_SECONDS = 0.005

# Says the most bytes that were ever in use since it began, and those in use now.
_WATCH = f"""
import os, pathlib, time
def used():
    told = os.statvfs({weights.CACHE!r})
    return (told.f_blocks - told.f_bfree) * told.f_frsize
place = pathlib.Path("/srv/simulation/disk")
first = most = used()
place.with_suffix(".on").touch()
while place.with_suffix(".on").exists():
    most = max(most, used())
    time.sleep({PERIOD_SECONDS})
os.sync()
place.write_text(f"{{first}} {{most}} {{used()}}")
"""


@dataclass
class Use:
    """Of the head's file system for weights, in bytes more than when it was empty."""

    peak: int = 0
    end: int = 0


@contextlib.contextmanager
def watched() -> Iterator[Use]:
    """While inside, the use of the head's file system is looked at; afterwards it is known."""
    place = machines.PAIR.head.state
    program, on, said = place / "disk.py", place / "disk.on", place / "disk"
    said.unlink(missing_ok=True)
    program.write_text(_WATCH)
    machines.on(
        machines.HEAD, f"systemd-run --quiet --collect python3 -I /srv/simulation/{program.name}"
    )
    use = Use()
    try:
        _wait_for(on)
        yield use
        on.unlink()
        _wait_for(said)
        first, most, now = map(int, said.read_text().split())
        use.peak, use.end = most - first, now - first
    finally:
        for path in (program, on, said):
            path.unlink(missing_ok=True)


def _wait_for(path: Path, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not path.exists() or (path.suffix == "" and not path.read_text()):
        if time.monotonic() > until:
            raise SystemExit(f"{path.name} did not appear: the disk was not watched")
        time.sleep(0.1)


def settings(size: int, *, overlay: bool) -> dict[str, Any]:
    """Variables of a run in the minimal order with weights of `size` bytes in all."""
    return {
        "weights_disk_order": "minimal",
        "rank_files_prune_sources": True,
        "ablit_graft_enabled": overlay,
        "weights_disk_floor_gib": 0.05,
        # Half of all is the checkpoint's, and a rank file is half a checkpoint.
        "weights_expected_bytes": {"rank_file": size // 4, "image": 0, "rewritten": 3 * MB},
    }


def planned(made: plays.Played) -> Mapping[str, Any]:
    """What a plan says of the head's file system for the weights."""
    plan = made.result_of("Show what is left to do", machines.HEAD)["plan"]
    (peak,) = [
        one for one in plan["peaks"] if one["host"] == "head" and one["mount"] == weights.CACHE
    ]
    return dict(peak)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.25, help="checkpoint and Engram tables")
    parser.add_argument("--overlay", action="store_true", help="with the graft, in place")
    options = parser.parse_args()
    size = int(options.gib * GIB)
    variables = settings(size, overlay=options.overlay)
    environment = {"HF_TOKEN": weights.TOKEN} if options.overlay else {}

    def play(tags: str) -> plays.Played:
        return plays.play(tags, extra_vars=variables, environment=environment)

    machines.pair_command("start")
    servers.back_to_hikari()
    preparation.prepare()
    # Room for all of it at once: what is measured is the use, not the fit.
    room = int(size * 1.5) >> 20
    with weights.no_weights(room) as kind, weights.hub(size, xet=False, seconds=1800):
        told = planned(play("plan").succeeded())
        began = time.monotonic()
        with watched() as use:
            play("weights").succeeded()
        took = time.monotonic() - began
        play("plan,weights").unchanged()
    expected = told["credited"] + told["after"]
    with_overlay = ", with the overlay grafted in place" if options.overlay else ""
    print(
        f"{size / MB:.0f} MB of checkpoint and Engram tables{with_overlay}, {took:.0f} s, {kind}:\n"
    )
    print("| the head's disk | peak | in the end | ratio |\n|---|---|---|---|")
    for what, peak, end in (
        ("measured", use.peak, use.end),
        ("planned", told["footprint"], expected),
    ):
        print(f"| {what} | {peak / MB:.1f} MB | {end / MB:.1f} MB | **{peak / end:.3f}** |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
