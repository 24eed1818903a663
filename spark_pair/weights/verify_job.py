"""The program of a verification: read again all that is recorded on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError, JobStoppedError
from .provenance import Artefact, Difference, Held, Provenance, Trouble
from .record import Proof, Proofs
from .verify import Disk, verify

_DIFFERENCES_TOLD = 5


def usual_threads() -> int:
    """Two read at the speed of a disk; on a machine of many cores a fast one has use for four."""
    return 4 if (os.cpu_count() or 1) >= 8 else 2


def verify_all(
    reporter: Reporter, proofs: Proofs, provenance: Provenance, threads: int
) -> tuple[str, Mapping[str, Any]]:
    """Read every recorded file; the words and the data of the job's result.

    Raises JobFailedError when something is not as recorded, JobStoppedError after a stop,
    ProvenanceError for a record that cannot be read or a disk that takes no note. What was read by
    then is noted.
    """
    record = provenance.load()
    total = sum(artefact.total for artefact in record.values())
    reporter.step("verify", total)
    differences: list[Difference] = []
    read = 0
    for artefact in record.values():
        found = verify(
            artefact,
            Disk(artefact.folder),
            threads=threads,
            progress=reporter.advance,
            stop=reporter.stopping,
            settled=_Notes(artefact, proofs).settled,
        )
        differences += found.differences
        read += found.read_bytes
        if reporter.stopping():
            of = f"{job_words.size(read)} of {job_words.size(total)}"
            raise JobStoppedError(f"was stopped after {of}; what was read is noted")
    files = sum(len(artefact.files) for artefact in record.values())
    data = {
        "files": files,
        "bytes": read,
        "differences": [_difference(one) for one in differences],
    }
    if differences:
        raise JobFailedError(trouble(record, differences), data)
    proofs.check()
    if not files:
        words = "nothing is recorded on this host, so there was nothing to verify"
        return f"{words}; --tags adopt takes over weights that were prepared by hand", data
    return f"{_count(files)} ({job_words.size(read)}) read, all as recorded", data


class _Notes:
    """Notes what a verification of one artefact finds, file by file."""

    def __init__(self, artefact: Artefact, proofs: Proofs) -> None:
        self._artefact = artefact
        self._proofs = proofs

    def settled(self, path: str, held: Held) -> None:
        before = self._artefact.files[path]
        if held != before:
            self._proofs.add(Proof(self._artefact, path, held, before))


def trouble(record: Mapping[str, Artefact], differences: Sequence[Difference]) -> str:
    """What is wrong, and what to do next."""
    files = sum(len(artefact.files) for artefact in record.values())
    said = "; ".join(str(one) for one in differences[:_DIFFERENCES_TOLD])
    more = len(differences) - _DIFFERENCES_TOLD
    if more > 0:
        said += f"; and {more} more"
    verb = "is" if len(differences) == 1 else "are"
    head = f"{len(differences)} of {_count(files)} {verb} not as recorded: {said}."
    return " ".join([head, *_next_steps(record, differences)])


def _next_steps(record: Mapping[str, Artefact], differences: Sequence[Difference]) -> list[str]:
    steps = []
    kinds = {record[one.artefact].kind for one in differences}
    if "rank_file" in kinds:
        steps.append(
            "A rank file cannot be mended: do not start a server from it, move it away and cut it "
            "anew; --tags plan shows what that takes."
        )
    if kinds - {"rank_file"}:
        steps.append(
            "'--tags plan' names the step that brings a file of a repository again: a download, "
            "which --tags download does, or a transfer where the other machine holds it."
        )
    if any(one.trouble is Trouble.UNREADABLE for one in differences):
        steps.append("What cannot be read may be a failing disk: look at 'journalctl -k'.")
    return steps


def _difference(one: Difference) -> dict[str, str]:
    return {
        "artefact": one.artefact,
        "path": one.path,
        "trouble": str(one.trouble),
        "words": one.words,
    }


def _count(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"
