"""The programs of the jobs that delete: the checkpoint's shards, and the head's copy of rank 1.

Nothing is deleted before all of it has been found to be what the order says, and nothing at all
while the record does not vouch for the rank files that make it superfluous.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from . import graft_state
from .order_parts import RankArtefact
from .parts import sweep
from .provenance import Artefact, Provenance, everyday
from .record import Proofs
from .removal import Bytes, Removal, Target
from .remove_order import DropOrder, PruneOrder
from .shared_store import StoreBusyError
from .verify import Disk

_TOLD = 3


# ---- shards -------------------------------------------------------------------------------------


def prune(
    order: PruneOrder, reporter: Reporter, proofs: Proofs, provenance: Provenance
) -> tuple[str, Mapping[str, Any]]:
    """Delete the shards of an order; the words and the data of the job's result.

    Raises JobFailedError when something there is not what was ordered (nothing is deleted then) or
    a disk refuses, JobStoppedError after a stop, ProvenanceError for a record that cannot be used.
    """
    record = provenance.load()
    if problem := _not_superfluous(order, record):
        raise JobFailedError(problem, {})
    removal = Removal(order)
    try:
        targets = removal.targets()
    except OSError as error:
        raise JobFailedError(f"what is there could not be looked at: {error}", {}) from None
    if strange := _strange(targets, _recorded_sizes(order, record)):
        raise JobFailedError(
            f"nothing was deleted, since not all is what was ordered: {_some(strange)}; look at "
            "it, delete it by hand if nobody needs it, and run it again",
            {"strange": strange},
        )
    before = _free(order)
    reporter.step("prune the checkpoint", sum(one.size for one in targets))
    for target in targets:
        reporter.check()
        _carefully(partial(removal.remove, target))
        reporter.advance(target.size)
    staging = order.where().staging(order.manifest.repo)
    for file in order.files:
        _carefully(partial(sweep, staging, file))
    _carefully(partial(_forget_graft, order))
    freed = sum(max(0, after - before.get(disk, after)) for disk, after in _free(order).items())
    return _pruned(targets, freed)


def _not_superfluous(order: PruneOrder, record: Mapping[str, Artefact]) -> str:
    """Why the shards are still needed, as far as this machine can tell; "" when they are not."""
    wanted = (order.manifest.repo, order.manifest.commit, order.overlay)
    cut = [
        artefact
        for artefact in record.values()
        if artefact.kind == "rank_file"
        and (artefact.repo, artefact.commit, artefact.details.get("overlay")) == wanted
    ]
    # Rank 1 leaves for the other machine, which the plan looks at; it is cut first, so rank 0 is
    # the one that may still be lacking.
    if not any(artefact.name.startswith("rank0") for artefact in cut):
        return (
            "nothing was deleted: no file of rank 0 of this checkpoint is recorded on this host, "
            "so the shards may still be needed; --tags plan says what is left to do"
        )
    wrong = [difference for one in cut for difference in everyday(one, Disk(one.folder).stat)]
    if wrong:
        return (
            f"nothing was deleted: {wrong[0]}, so the shards may be needed to cut it again; run "
            "--tags verify, then --tags plan"
        )
    return ""


def _recorded_sizes(order: PruneOrder, record: Mapping[str, Artefact]) -> Mapping[Path, int]:
    """Sizes of recorded files by their real path; a grafted shard may differ from the Hub's own."""
    artefact = record.get(order.artefact)
    if artefact is None or artefact.commit != order.manifest.commit:
        return {}
    return {
        Path(os.path.realpath(Path(artefact.folder, path))): held.size
        for path, held in artefact.files.items()
    }


def _strange(targets: Iterable[Target], recorded: Mapping[Path, int]) -> list[str]:
    """Files in the way that are not the ordered ones, by their size."""
    found = []
    for target in targets:
        for one in target.bytes:
            right = (target.file.size, recorded.get(one.path, target.file.size))
            if not one.kept and one.size not in right:
                found.append(f"{one.path} has {one.size} bytes instead of {target.file.size}")
    return found


def _forget_graft(order: PruneOrder) -> None:
    """Delete what undoes the graft of shards that are gone, and the note about it with the last."""
    for derived in order.derived:
        undo = derived / graft_state.UNDO
        for file in order.files:
            (undo / file.path).unlink(missing_ok=True)
        state = graft_state.read(derived)
        if state is None or state.there(derived):
            continue
        if undo.is_dir():
            shutil.rmtree(undo)
        graft_state.forget(derived)


def _pruned(targets: Iterable[Target], freed: int) -> tuple[str, Mapping[str, Any]]:
    targets = list(targets)
    every = [one for target in targets for one in target.bytes]
    gone = [one for one in every if not one.kept]
    kept = [one for one in every if one.kept]
    linked = [one for one in gone if one.links > 1]
    data = {
        "shards": len(targets),
        "deleted_bytes": sum(one.size for one in gone),
        "freed_bytes": freed,
        "kept": {str(one.path): one.kept for one in kept},
        "linked": [str(one.path) for one in linked],
    }
    if not targets:
        return "the shards are gone already", data
    count = "1 shard" if len(targets) == 1 else f"{len(targets)} shards"
    words = f"deleted {count}, {job_words.size(freed)} are free that were not"
    for some, why in ((kept, _kept_words(kept)), (linked, "has hard links that keep its bytes")):
        if some:
            size = job_words.size(sum(one.size for one in some))
            words += f"; {size} stay on the disk: {some[0].path.name} {why}"
            words += f", and {len(some) - 1} more" if len(some) > 1 else ""
    return words, data


def _kept_words(kept: list[Bytes]) -> str:
    return kept[0].kept if kept else ""


def _free(order: PruneOrder) -> dict[int, int]:
    """Free bytes of each file system that shards may lie on."""
    found = {}
    for place in (order.where().root, order.work, *order.folders):
        try:
            status = os.statvfs(place)
            found[place.stat().st_dev] = status.f_bavail * status.f_frsize
        except OSError:
            continue
    return found


# ---- a rank file --------------------------------------------------------------------------------


def drop(
    order: DropOrder, reporter: Reporter, proofs: Proofs, provenance: Provenance
) -> tuple[str, Mapping[str, Any]]:
    """Delete a rank file that the other machine has; the words and the data of the job's result.

    Raises JobFailedError when it is not the recorded one, ProvenanceError for a record that cannot
    be used.
    """
    artefact = order.artefact
    path = artefact.folder / order.path
    reporter.step(f"delete {artefact.name}", order.size)
    if not os.path.lexists(path):
        return f"{artefact.name} ({artefact.words}) is gone already", {"deleted_bytes": 0}
    if problem := _not_the_recorded(order, provenance.load().get(artefact.name)):
        raise JobFailedError(f"{path} was not deleted: {problem}", {})
    reporter.check()
    _carefully(path.unlink)
    reporter.advance(order.size)
    words = f"deleted {artefact.name} ({artefact.words}), {job_words.size(order.size)}"
    return words, {"deleted_bytes": order.size}


def _not_the_recorded(order: DropOrder, known: Artefact | None) -> str:
    held = known.files.get(order.path) if known else None
    if known is None or held is None or not order.artefact.describes(known):
        return f"no record speaks of it as {order.artefact.name}; --tags plan says what is known"
    if (held.size, held.sha256) != (order.size, order.sha256):
        return "it is recorded with another content than the other host has"
    if wrong := [one for one in everyday(known, Disk(known.folder).stat) if one.path == order.path]:
        return f"it {wrong[0].words}; run --tags verify, then --tags plan"
    if _is_link(order.artefact, order.path):
        return "it is a link, and what it leads to is not ours to delete"
    return ""


def _is_link(artefact: RankArtefact, name: str) -> bool:
    return (artefact.folder / name).is_symlink()


# ---- both ---------------------------------------------------------------------------------------


def _carefully(work: Callable[[], None]) -> None:
    try:
        work()
    except StoreBusyError as error:
        raise JobFailedError(str(error), {}) from None
    except PermissionError as error:
        raise JobFailedError(
            f"{error.filename} cannot be deleted: its folder belongs to another account; give it "
            "to this one (sudo chown) and run it again",
            {},
        ) from None
    except OSError as error:
        raise JobFailedError(f"{error.filename} cannot be deleted: {error.strerror}", {}) from None


def _some(words: list[str]) -> str:
    more = len(words) - _TOLD
    return "; ".join(words[:_TOLD]) + (f"; and {more} more" if more > 0 else "")
