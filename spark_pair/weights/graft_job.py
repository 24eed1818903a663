"""The program of a graft, and of taking one back."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from ..jobs.words import size as in_words
from . import graft_disk as disk
from .graft import InPlace
from .graft_back import Back
from .graft_bench import Bench
from .graft_order import GraftOrder
from .graft_plan import GraftError
from .graft_recipe import ByRecipe
from .provenance import Artefact, Held, Provenance, ProvenanceError
from .record import Proof, Proofs
from .verify_job import usual_threads

_HINTS = {
    errno.EACCES: "give it to the account that the weights belong to (chown)",
    errno.EPERM: "give it to the account that the weights belong to (chown)",
    errno.ENOSPC: "make room",
    errno.EIO: "look at 'journalctl -k', the disk may be failing",
}


def run(
    order: GraftOrder,
    reporter: Reporter,
    proofs: Proofs,
    provenance: Provenance,
    *,
    threads: int | None = None,
) -> tuple[str, Mapping[str, Any]]:
    """Carry out an order; the words and the data of the job's result.

    Raises GraftError when nothing was touched, JobStoppedError after a stop, JobFailedError for
    whatever else comes between, ProofError when the disk took no note of what was proven.
    """
    bench = Bench(order, reporter, _recorded(provenance), threads or usual_threads())
    try:
        with _alone(order.derived, order.kind == "graft"):
            if order.kind == "undo_graft":
                return _undo(bench, proofs)
            return _graft(bench, proofs)
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "mend that")
        where = error.filename2 or error.filename or order.derived
        raise JobFailedError(
            f"{where}: {error.strerror or error}; {hint} and run it again, it goes on from here", {}
        ) from error


def _graft(bench: Bench, proofs: Proofs) -> tuple[str, Mapping[str, Any]]:
    order = bench.order
    way = ByRecipe(bench) if order.method == "recipe" else InPlace(bench)
    held, grafted, data = way.run()
    _note(proofs, order.artefact(grafted), held)
    overlay = order.overlay[:8]
    if not data["grafted"]:
        return f"the overlay {overlay} is in the checkpoint already, nothing was written", data
    how = "overwritten" if order.method == "in_place" else "written anew"
    words = (
        f"the overlay {overlay} is in {len(grafted)} shards of the checkpoint: {data['tensors']} "
        f"tensors, {in_words(data['overwritten'])} {how}, {in_words(data['read'])} read to "
        "prove that everything else is unchanged"
    )
    if uncompared := data.get("uncompared"):
        words += (
            f"; {uncompared} of the tensors were given the stock types, so their bytes could not "
            "be compared with the overlay's"
        )
    return words, data


def _undo(bench: Bench, proofs: Proofs) -> tuple[str, Mapping[str, Any]]:
    back = Back(bench)
    held, data = back.run()
    wanted = {file.path for file in bench.order.files}
    ordered = {path: one for path, one in held.items() if path in wanted}
    _note(proofs, bench.order.artefact(), ordered)
    back.forget()
    overlay = bench.order.overlay[:8]
    if not data["shards"]:
        return f"the overlay {overlay} is not in the checkpoint, nothing was written", data
    return f"the overlay {overlay} is out of {len(data['shards'])} shards again", data


def _note(proofs: Proofs, artefact: Artefact, held: Mapping[str, Held]) -> None:
    for path, one in sorted(held.items()):
        proofs.add(Proof(artefact, path, one))
    proofs.check()


def _recorded(provenance: Provenance) -> Mapping[str, Artefact]:
    """The record; one that cannot be read is no reason not to go on, since all is read then."""
    try:
        return provenance.load()
    except (ProvenanceError, OSError):
        return {}


@contextlib.contextmanager
def _alone(derived: Path, make: bool) -> Iterator[None]:
    """Nobody else grafts or undoes the same meanwhile. GraftError when somebody does."""
    if make:
        disk.make(derived)
    if not derived.is_dir():
        yield
        return
    handle = os.open(derived, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GraftError(
                f"{derived} is being worked on by another process: wait for its end"
            ) from None
        yield
    finally:
        with contextlib.suppress(OSError):  # usually there is something in it
            derived.rmdir()
        os.close(handle)
