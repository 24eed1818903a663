#!/usr/bin/env python3
"""Write the plans of docs/weights.md: what the code says for the real pair's sizes.

Only what stands between the markers of a plan is written; a unit test compares it with what the
code prints now. Usage: python docs/make_plan_table.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/weights.md"
sys.path[:0] = [str(ROOT)]

from spark_pair.weights import plan  # noqa: E402 - needs the path above
from spark_pair.weights.budget import GB, GIB, Disks, FileSystem, Peak, Places  # noqa: E402
from spark_pair.weights.goal import FLOOR_BYTES, IMAGE_BYTES, Options  # noqa: E402
from spark_pair.weights.holdings import Holdings, Pair  # noqa: E402
from spark_pair.weights.manifest import File, HostRole, Manifest, Selector, Source  # noqa: E402
from spark_pair.weights.plan_table import table  # noqa: E402

# Sizes as they are specified: the checkpoint in GiB, the others in GB or bytes. How the
# checkpoint's bytes spread over its shards does not matter here. Small files are left out where
# only a pattern names them; of the overlay's four, one holds all but some kilobytes.
CHECKPOINT_BYTES = 196 * GIB
ENGRAM_BYTES = 203 * GB
OVERLAY_BYTES = 682_275_992
OVERLAY_SMALL = ["EXL3_MIA29_ABLIT_META.json", "README.md", "apply_mia29_wo_b_graft.py"]

NAMES: dict[HostRole, str] = {"head": "spark-033f", "worker": "spark-5bf0"}
DISK_BYTES = 1000 * GB
"""The smaller of the two disks such a machine is sold with."""
EMPTY_BYTES, TIGHT_BYTES = 900 * GB, 400 * GB


def _files(total: int, paths: list[str]) -> tuple[File, ...]:
    """Files of about equal size that add up."""
    share, rest = divmod(total, len(paths))
    return tuple(
        File(path, share + (rest if path == paths[-1] else 0), "a" * 40, "b" * 64) for path in paths
    )


MANIFESTS = {
    "checkpoint": Manifest(
        "Mia-AiLab/DeepSeek-V4.1-Flash-1017-EXL3-EAQ-v1-2.9-bpw",
        "45ee5d0f" + "0" * 32,
        _files(CHECKPOINT_BYTES, [f"model-{n:05d}-of-00039.safetensors" for n in range(1, 40)]),
    ),
    "engram": Manifest(
        "deepseek-ai/DeepSeek-V4.1-Flash-1017",
        "1bae0e1088993b9b82de08f59de5be5a34e42170",
        _files(ENGRAM_BYTES, [f"model-{n:05d}-of-00048.safetensors" for n in (47, 48)]),
    ),
    "overlay": Manifest(
        "drowzeys/keys-DeepSeek-V4.1-Flash-1017-Abliterated",
        "0bdc2036113c4fdda38ef6005b3cbc0bc0dfa0f0",
        (
            *_files(OVERLAY_BYTES, ["exl3_wo_b_l10_35_mia29.safetensors"]),
            *_files(3 * 10_000, OVERLAY_SMALL),
        ),
    ),
}
HOSTS: dict[str, tuple[HostRole, ...]] = {"engram": ("head", "worker")}
SOURCES = tuple(
    Source(name, made.repo, made.commit[:8], (Selector("*"),), HOSTS.get(name, ("head",)))
    for name, made in MANIFESTS.items()
)
PLACES: Places = {
    host: {
        "cache": "/home/u/.cache/huggingface/hub",
        "work": "/home/u/.cache/huggingface/tensorfold-dsv41",
        "ranks": "/home/u/.cache/huggingface/tensorfold-dsv41",
        "images": "/var/lib/docker",
        "scratch": "/home/u/.cache/spark-pair",
    }
    for host in NAMES
}
NOTHING: Pair = {"head": Holdings(), "worker": Holdings()}

AS_THE_RECIPE = Options(order="download_first", overlay=True, graft="recipe")
UNPRUNED = Options(overlay=True)
PRUNED = Options(order="minimal", overlay=True, prune=True)
STOCK = Options()


def made(options: Options, head_free: int = EMPTY_BYTES) -> plan.Plan:
    """The plan for two machines that hold nothing; `head_free` bytes are free on the head."""
    disks = Disks(
        {
            "head": [FileSystem("/", DISK_BYTES, head_free)],
            "worker": [FileSystem("/", DISK_BYTES, EMPTY_BYTES)],
        },
        PLACES,
    )
    return plan.make(SOURCES, MANIFESTS, NOTHING, disks, options, names=NAMES)


def _shown(options: Options, head_free: int = EMPTY_BYTES) -> Callable[[], str]:
    return lambda: f"```\n{table(made(options, head_free), NAMES)}\n```"


def _both(count: int) -> str:
    return f"{count / GB:.0f} GB = {count / GIB:.0f} GiB"


def _peaks() -> str:
    """Peaks on both machines by what is decided."""
    rows = [
        ("the recipe's own order: all downloads, shards written anew", AS_THE_RECIPE),
        ("in place, nothing deleted", UNPRUNED),
        ("in place, shards deleted before the Engram tables come", PRUNED),
        ("stock weights, nothing deleted, the image not counted", replace(STOCK, image_bytes=0)),
    ]
    lines = ["| what is decided | peak on the head | peak on the worker | in the end on the head |"]
    lines.append("|---|---|---|---|")
    for words, options in rows:
        peaks: dict[HostRole, Peak] = {peak.spot.host: peak for peak in made(options).peaks}
        head, worker = peaks["head"], peaks["worker"]
        cells = [head.footprint, worker.footprint, head.credited + head.after]
        lines.append(f"| {words} | {' | '.join(map(_both, cells))} |")
    return "\n".join(lines)


def _sums() -> str:
    """What the constants say, in both ways of counting."""
    parts = {
        "checkpoint": CHECKPOINT_BYTES,
        "Engram tables": ENGRAM_BYTES,
        "a rank file": STOCK.rank_bytes,
        "the image": IMAGE_BYTES,
        "the floor": FLOOR_BYTES,
    }
    said = [f"{name} {count / GB:.1f} GB = {count / GIB:.1f} GiB" for name, count in parts.items()]
    return f"{'; '.join(said)}."


BLOCKS: dict[str, Callable[[], str]] = {
    "sizes": _sums,
    "peaks": _peaks,
    "auto": _shown(STOCK),
    "unpruned": _shown(UNPRUNED),
    "pruned": _shown(replace(PRUNED, order="auto"), TIGHT_BYTES),
    "refused": _shown(UNPRUNED, TIGHT_BYTES),
}
_MARKED = re.compile(r"(<!-- plan (\w+) -->\n).*?(<!-- end of plan -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with every plan as the code prints it now. KeyError for a plan nobody knows."""
    return _MARKED.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote the plans of {PAGE.relative_to(ROOT)}")
