"""The program of a download: fetch what an order names and note every file that is proven.

Needs the packages of the installed tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from .cache import Cache
from .download_order import DownloadOrder
from .fetch import Outcome, Result, fetch
from .hub import Hub
from .noted import How, Noted
from .pace import Reading
from .provenance import Artefact, Origin, Provenance
from .record import Proofs

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
    files = Noted(_artefact(order, cache), proofs, provenance)
    result = fetch(
        hub,
        cache,
        order.manifest,
        order.files,
        progress=lambda reading: _show(order, reporter, reading),
        settled=lambda outcome: _note(files, outcome),
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


def _artefact(order: DownloadOrder, cache: Cache) -> Artefact:
    """What is recorded of the files, without them."""
    repo, commit = order.manifest.repo, order.manifest.commit
    folder = str(cache.snapshot(repo, commit))
    return Artefact(order.source, "repository", repo, commit, Origin.DOWNLOADED, 0.0, folder, {})


def _note(files: Noted, outcome: Outcome) -> None:
    """Note a file that is there and was proven in this run."""
    if outcome.whole and outcome.path is not None and outcome.stat is not None:
        how: How = "written" if outcome.state == "fetched" else "read"
        files.settled(outcome.file, outcome.path, outcome.stat, how)


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
