"""Where on a machine the things lie that are made from the checkpoint. Pure.

The recipe looks for them in these folders (docs/fidelity.md: specified for the grafted checkpoint,
assumed for stock weights and for the rank files), below the same folder on both machines.
"""

from __future__ import annotations

from pathlib import Path

DIGITS = 8
"""Of a commit, in the name of a folder."""


def work(home: Path) -> Path:
    """The folder of everything that is made from checkpoints, in an account's home."""
    return home / ".cache" / "huggingface" / "tensorfold-dsv41"


def derived(work: Path, checkpoint: str, overlay: str | None) -> Path:
    """The folder of everything made from a checkpoint, with an overlay or without (commits)."""
    name = checkpoint[:DIGITS]
    return work / (f"{name}-ablit-{overlay[:DIGITS]}" if overlay else name)


def grafted(work: Path, checkpoint: str, overlay: str) -> Path:
    """The checkpoint with the overlay in it."""
    return derived(work, checkpoint, overlay) / "checkpoint"


def rank_files(ranks: Path, checkpoint: str, overlay: str | None) -> Path:
    """The folder in which a server looks for its rank file; one file of each rank at most."""
    return derived(ranks, checkpoint, overlay) / "checkpoint" / "rank-cache"


SENDING = ".spark-pair"
"""Hidden folder beside rank files in which rank 1 arrives."""


def cutting(rank: int) -> str:
    """Hidden folder beside rank files in which one is cut."""
    return f".cutting-rank{rank}"


def rank_name(rank: int, overlay: str | None) -> str:
    """What the record calls a rank file: stock and grafted ones can lie on a disk together."""
    return f"rank{rank}-ablit-{overlay[:DIGITS]}" if overlay else f"rank{rank}"
