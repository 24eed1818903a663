"""Whether a machine holds the very weights that a server is to be started with. Pure but for looks.

Rank files of stock and of grafted weights have the same names and sizes, and an engine starts from
either. So what the record says about the file decides, and nothing is started on a guess.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from ..description import Weights
from .layout import DIGITS, rank_files, work
from .provenance import RANK_FILE, Artefact, everyday
from .rank_file import RankFileError, rank_of, read_footer
from .verify import Disk

ENGRAM = "engram"
_MADE = "--tags weights makes it, and --tags adopt takes over one that was made by hand"


def problems(wanted: Weights, rank: int, record: Mapping[str, Artefact], home: Path) -> list[str]:
    """Why a server must not be started on this machine, which serves that rank; reads no content.

    `record` is the record of the machine, `home` that of the account whose weights are served.
    """
    return [*_rank_problems(wanted, rank, record, home), *_engram_problems(wanted, record)]


def _rank_problems(
    wanted: Weights, rank: int, record: Mapping[str, Artefact], home: Path
) -> Iterator[str]:
    files = [
        artefact
        for name, artefact in sorted(record.items())
        if artefact.kind == RANK_FILE and name.startswith(f"rank{rank}")
    ]
    right = [artefact for artefact in files if _is_wanted(artefact, wanted)]
    if not files:
        yield f"no file of rank {rank} is on record there: {_MADE}"
    elif not right:
        yield _another(rank, files[0], wanted)
    else:
        found = [list(_file_problems(rank, artefact, home)) for artefact in right]
        yield from min(found, key=len)


def _is_wanted(artefact: Artefact, wanted: Weights) -> bool:
    overlay = artefact.details.get("overlay")
    if not artefact.commit.startswith(wanted.checkpoint):
        return False
    if wanted.overlay is None or overlay is None:
        return wanted.overlay is overlay
    return str(overlay).startswith(wanted.overlay)


def _another(rank: int, artefact: Artefact, wanted: Weights) -> str:
    """That another cut than the wanted one is there, and the ways out."""
    overlay = artefact.details.get("overlay")
    cut = f"rank {rank} there was cut "
    if not artefact.commit.startswith(wanted.checkpoint):
        return (
            f"{cut}from the checkpoint {artefact.commit[:DIGITS]}, and "
            f"{wanted.checkpoint[:DIGITS]} is wanted: --tags weights cuts that one"
        )
    if wanted.overlay is None:
        return (
            f"{cut}with the overlay {str(overlay)[:DIGITS]}, but ablit_graft_enabled is false: set "
            "it to true, or let --tags weights cut stock weights"
        )
    if overlay is None:
        return (
            f"{cut}stock, but ablit_graft_enabled is true: set it to false, or let --tags weights "
            f"cut with the overlay {wanted.overlay[:DIGITS]}"
        )
    return (
        f"{cut}with the overlay {str(overlay)[:DIGITS]}, and {wanted.overlay[:DIGITS]} is wanted: "
        "--tags weights cuts with that one"
    )


def _file_problems(rank: int, artefact: Artefact, home: Path) -> Iterator[str]:
    folder = Path(artefact.folder)
    overlay = artefact.details.get("overlay")
    place = rank_files(work(home), artefact.commit, None if overlay is None else str(overlay))
    # Either may be reached through a link to a larger disk.
    if os.path.realpath(folder) != os.path.realpath(place):
        yield (
            f"the recorded file of rank {rank} lies in {folder}, and a server looks for it in "
            f"{place}: move it there, then run --tags adopt"
        )
        return
    for one in everyday(artefact, Disk(folder).stat):
        yield f"rank {rank}: {one.path} {one.words}; run --tags verify, then --tags plan"
        return
    try:
        names = sorted(one.name for one in folder.iterdir() if rank_of(one.name) == rank)
        for name in artefact.files:
            read_footer(folder / name)
    except (RankFileError, OSError) as error:
        yield f"rank {rank}: {error}"
        return
    if strange := [name for name in names if name not in artefact.files]:
        yield (
            f"{folder} holds {strange[0]} beside the recorded file of rank {rank}, and with two of "
            "a rank the engine does not start: move it away"
        )


def _engram_problems(wanted: Weights, record: Mapping[str, Artefact]) -> Iterator[str]:
    if wanted.engram is None:
        return
    artefact = record.get(ENGRAM)
    if artefact is None:
        yield (
            "the Engram tables are not on record there: --tags weights brings them, and --tags "
            "adopt takes over what lies in the cache"
        )
    elif not artefact.commit.startswith(wanted.engram):
        yield (
            f"the Engram tables there are of {artefact.commit[:DIGITS]}, and "
            f"{wanted.engram[:DIGITS]} is wanted: --tags weights brings those"
        )
    elif wrong := everyday(artefact, Disk(artefact.folder).stat):
        yield f"Engram: {wrong[0].path} {wrong[0].words}; run --tags verify, then --tags plan"
    elif lacking := [
        one.pattern
        for one in wanted.engram_files
        if sum(fnmatchcase(path, one.pattern) for path in artefact.files) < one.count
    ]:
        yield (
            f"of the Engram tables not every {' and '.join(lacking)} is on record there: --tags "
            "weights brings what is missing, and --tags adopt takes over what lies in the cache"
        )
