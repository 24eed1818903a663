"""The program of a transfer: bring what an order names from the peer, and note what is proven."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from .noted import Noted
from .pace import Reading
from .peer_offer import Command, over_ssh
from .provenance import Provenance
from .record import Proofs
from .transfer import Outcome, Patience, Result, Target, carry
from .transfer_order import RankTransferOrder, TransferOrder
from .transfer_targets import InCache, InFolder

_PROBLEMS_TOLD = 3

Order = TransferOrder | RankTransferOrder


def run(
    order: Order,
    reporter: Reporter,
    proofs: Proofs,
    provenance: Provenance,
    *,
    command: Command = over_ssh,
    patience: Patience | None = None,
) -> tuple[str, Mapping[str, Any]]:
    """Carry out an order; the words and the data of the job's result.

    Raises JobStoppedError after a stop, JobFailedError when not all of it is there in the end,
    ProofError when the disk took no note of it, CacheError or PlaceError when the place cannot be
    used. What is there by then is noted.
    """
    name = order.artefact().name
    noted = Noted(order.artefact(), proofs, provenance)
    reporter.step(f"transfer {name}", order.total)
    target: Target = (
        InCache(order, noted) if isinstance(order, TransferOrder) else InFolder(order, noted)
    )

    def settled(outcome: Outcome) -> None:
        if outcome.whole and outcome.path is not None and outcome.stat is not None:
            noted.settled(outcome.file, outcome.path, outcome.stat, outcome.how)

    result = carry(
        order.way,
        target,
        progress=lambda reading: _show(order, reporter, reading),
        settled=settled,
        stop=reporter.stop_asked,
        floor_bytes=order.floor_bytes,
        patience=patience,
        command=command,
    )
    if not result.whole:
        reporter.check()
        raise JobFailedError(_trouble(result), _data(result))
    proofs.check()
    return _success(order, result), _data(result)


# ---- what is told -------------------------------------------------------------------------------


def _show(order: Order, reporter: Reporter, reading: Reading) -> None:
    words = f"transfer {order.artefact().name}"
    if reading.step:
        words += f": {reading.step}"
    reporter.show(words, reading.total, reading.done, reading.rate)


def _success(order: Order, result: Result) -> str:
    count, size = len(result.outcomes), job_words.size(order.total)
    files = "1 file" if count == 1 else f"{count} files"
    came = job_words.size(result.payload) if result.payload else "nothing"
    used = [count for _, count in result.rails if count]
    rails = f" over {len(used)} rails" if len(used) > 1 else ""
    peer = order.way.peer.name
    return (
        f"{files} of {order.artefact().name} ({size}) are there and proven, {came} came from "
        f"{peer}{rails}"
    )


def _trouble(result: Result) -> str:
    problems = result.problems
    more = len(problems) - _PROBLEMS_TOLD
    said = " ".join(problems[:_PROBLEMS_TOLD])
    return f"{said} And {more} more of the kind." if more > 0 else said


def _data(result: Result) -> dict[str, Any]:
    return {
        "payload_bytes": result.payload,
        "wire_bytes": result.wire_bytes,
        "rails": [
            {"here": rail.here, "peer": rail.peer, "bytes": count} for rail, count in result.rails
        ],
        "files": {one.file.path: one.state for one in result.outcomes},
        "problems": list(result.problems),
    }
