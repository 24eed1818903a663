"""The program of a download: fetch what an order names and note every file that is proven.

Needs the packages of the installed tool.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from .cache import Cache, Payload
from .download_order import DownloadOrder
from .fetch import Outcome, Result, fetch
from .hub import Hub
from .manifest import File
from .pace import Reading
from .provenance import Artefact, Held, Origin, Provenance, ProvenanceError, stat_of
from .record import Proof, Proofs

_PROBLEMS_TOLD = 3


def download(
    order: DownloadOrder,
    reporter: Reporter,
    token: str | None,
    proofs: Proofs,
    provenance: Provenance,
) -> tuple[str, Mapping[str, Any]]:
    """Carry out an order; the words and the data of the job's result.

    Raises HubError when the files are not given to us, JobStoppedError after a stop,
    JobFailedError when not all of them are there in the end, ProofError when the disk took no note
    of them. What is there by then is noted.
    """
    hub = Hub(order.endpoint, token, sleep=lambda seconds: _pause(reporter, seconds))
    reporter.step(f"download {order.source}", order.total)
    if order.gated:
        smallest = min(order.files, key=lambda file: (file.size, file.path))
        hub.probe(order.manifest.repo, order.manifest.commit, smallest.path)
    cache = order.where()
    files = _Files(order, cache, proofs, _recorded(order, cache, provenance))
    result = fetch(
        hub,
        cache,
        order.manifest,
        order.files,
        progress=lambda reading: _show(order, reporter, reading),
        settled=files.settled,
        stop=reporter.stop_asked,
        workers=order.workers,
        limit_bytes_per_second=order.limit_bytes_per_second,
        floor_bytes=order.floor_bytes,
        trusted=files.trusted,
    )
    if not result.whole:
        reporter.check()
        raise JobFailedError(_trouble(result), _data(result))
    proofs.check()
    return _success(order, result), _data(result)


def _pause(reporter: Reporter, seconds: float) -> None:
    """Wait, but not for a stop: raises JobStoppedError then."""
    reporter.stop_asked.wait(seconds)
    reporter.check()


class _Files:
    """What is known about the files of an order, and noted as they are proven."""

    def __init__(
        self, order: DownloadOrder, cache: Cache, proofs: Proofs, record: Artefact | None
    ) -> None:
        manifest = order.manifest
        self._artefact = Artefact(
            name=order.source,
            kind="repository",
            repo=manifest.repo,
            commit=manifest.commit,
            origin=Origin.DOWNLOADED,
            at=0.0,
            folder=str(cache.snapshot(manifest.repo, manifest.commit)),
            files={},
        )
        self._proofs = proofs
        self._record = record

    def trusted(self, file: File, payload: Payload) -> bool:
        """Whether the record vouches for a file in the cache, by the everyday check."""
        held = self._record.files.get(file.path) if self._record else None
        return (
            held is not None
            and held.failed_at is None
            and held.agrees_with(file)
            and held.stat == stat_of(payload.path)
        )

    def settled(self, outcome: Outcome) -> None:
        """Note a file that is there and was proven in this run; never raises."""
        file, proven = outcome.file, outcome.stat
        if not outcome.whole or outcome.path is None or proven is None:
            return
        try:
            found = stat_of(outcome.path)
        except OSError:
            found = None
        if found != proven:
            self._proofs.missed += 1  # somebody was quicker
            return
        held = Held(
            size=file.size,
            mtime_ns=proven.mtime_ns,
            inode=proven.inode,
            verified_at=time.time(),
            how="written" if outcome.state == "fetched" else "read",
            sha256=file.sha256 or "",
            git_sha1="" if file.sha256 else file.git_sha1,
        )
        self._proofs.add(Proof(self._artefact, file.path, held))


def _recorded(order: DownloadOrder, cache: Cache, provenance: Provenance) -> Artefact | None:
    """What is recorded of the very snapshot that is ordered; a record that cannot be read is no
    reason not to download, since every file is proven then."""
    try:
        known = provenance.load().get(order.source)
    except (ProvenanceError, OSError):
        return None
    wanted = (order.manifest.repo, order.manifest.commit)
    if known is None or (known.repo, known.commit) != wanted:
        return None
    folder = str(cache.snapshot(*wanted))
    return known if known.folder == folder else None


def _show(order: DownloadOrder, reporter: Reporter, reading: Reading) -> None:
    words = f"download {order.source}"
    # Several files come at once; which of them begins is no news, and everything else is.
    if reading.step and not reading.step.startswith("fetching "):
        words += f": {reading.step}"
    reporter.show(words, reading.total, reading.done, reading.rate)


def _success(order: DownloadOrder, result: Result) -> str:
    count, size = len(order.files), job_words.size(order.total)
    came = job_words.size(result.fetched) if result.fetched else "nothing"
    files = "1 file" if count == 1 else f"{count} files"
    return f"{files} of {order.source} ({size}) are there and proven, {came} came over the network"


def _trouble(result: Result) -> str:
    problems = result.problems
    more = len(problems) - _PROBLEMS_TOLD
    said = " ".join(problems[:_PROBLEMS_TOLD])
    return f"{said} And {more} more of the kind." if more > 0 else said


def _data(result: Result) -> dict[str, Any]:
    return {
        "fetched": result.fetched,
        "files": {one.file.path: one.state for one in result.outcomes},
        "problems": list(result.problems),
    }
