"""What a job has proven, and how root puts it into the record of the host.

A job runs as the account that owns the weights and must not write the record. So it appends a line
to `verified.jsonl` in its folder for every file that it has proven, and systemd's last step, which
is root's, takes them over: after success, failure, a stop or a SIGKILL alike. What cannot be taken
over stays for the next time.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from .. import jsonfile
from ..jobs.shapes import VERIFIED
from .acceptance import Acceptance
from .orders import acceptance
from .provenance import (
    RANK_FILE,
    Artefact,
    Held,
    Provenance,
    ProvenanceError,
    artefact_of,
    entry_of,
    held_entry,
    held_of,
    stat_of,
)

_MOST_BYTES = 64 << 20
"""Far more than a line for each of thousands of files."""
_CLOCK_SECONDS = 86_400.0
"""So far ahead of this machine's clock a proof may be: that may have been set meanwhile."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class ProofError(ProvenanceError):
    """What a job left cannot be taken over."""


@dataclass(frozen=True)
class Proof:
    """One file that was proven."""

    artefact: Artefact
    """What it belongs to; its own files do not count."""
    path: str
    held: Held
    before: Held | None = None
    """What was recorded when it was read again; None for a file that is new to the record."""


class Proofs:
    """The file of one job's proofs, for the job's program; any thread may call it."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder (the program was called by hand) nothing is noted."""
        self._path = folder / VERIFIED if folder else None
        self._lock = threading.Lock()
        self.missed = 0
        """Files that could not be noted; they are read once more in the next run."""

    def add(self, proof: Proof) -> None:
        """Note a proof, on the disk when this returns: a file that is in its place without one
        would be a stranger to the next run."""
        if self._path is None:
            return
        artefact = replace(proof.artefact, files={})
        line = {
            "name": artefact.name,
            "artefact": entry_of(artefact),
            "path": proof.path,
            "held": held_entry(proof.held),
            "before": held_entry(proof.before) if proof.before else None,
        }
        # The line end first, so that a line which a full disk cut in two spoils no other.
        data = b"\n" + json.dumps(line).encode() + b"\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with self._lock:
            try:
                handle = os.open(self._path, flags, 0o644)
                try:
                    if os.write(handle, data) != len(data):
                        self.missed += 1  # the disk was full in the middle of it
                    os.fsync(handle)
                finally:
                    os.close(handle)
            except OSError:
                self.missed += 1

    def check(self) -> None:
        """Raise ProofError when not every proof could be noted."""
        if self.missed and self._path is not None:
            raise ProofError(
                f"the files are there, but {self.missed} of them could not be noted in "
                f"{self._path.parent}: make room there, let nobody write to the files meanwhile "
                "and run it again, nothing is fetched twice"
            )


@dataclass(frozen=True)
class Taken:
    """What came of the proofs that a job has left."""

    files: Mapping[str, tuple[str, ...]]
    """Those that are recorded now, by artefact."""
    skipped: int
    """Proofs that count for nothing, since they are not for what was ordered or is there."""
    incomplete: int = 0
    """Good proofs of files that count only all together, while some of the others lack."""
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Files that left the record, since they were deleted as ordered."""


def take_over(
    folder: Path, provenance: Provenance, order: Any, *, clock: Callable[[], float] = time.time
) -> Taken:
    """Record what the job of that folder has proven.

    The folder belongs to the account that the job runs as, so what lies there is believed only as
    far as `order` goes, root's own copy of what the job was asked for: these files with these
    hashes, if they are there as they were proven. Of what is recorded already a proof can tell only
    that it is right or wrong. What an order lets go leaves the record when it is really not there.

    Raises ProofError when its file is none that a job of ours writes, ProvenanceError when the
    record cannot be used, OSError. The proofs then stay where they are.
    """
    found = list(_read(folder / VERIFIED))
    wanted = acceptance(order)
    known = provenance.load() if found or (wanted and wanted.gone) else {}
    proofs = [one for one in found if one and _counts(one, wanted, known, clock())]
    new = [one for one in proofs if one.before is None]
    done, incomplete = _taken(new, wanted, provenance, clock())
    again = [one for one in proofs if one.before is not None]
    for after in _together(again):
        mine = [one for one in again if _same(one.artefact, after)]
        was = {one.path: one.before for one in mine if one.before is not None}
        left = provenance.update(replace(after, files=was), after)
        taken = set(after.files) - set(left) | set(done.get(after.name, ()))
        done[after.name] = tuple(sorted(taken))
    gone = _gone(wanted, known, provenance)
    (folder / VERIFIED).unlink(missing_ok=True)
    return Taken(done, len(found) - len(proofs), incomplete, gone)


def _taken(
    proofs: list[Proof], wanted: Acceptance | None, provenance: Provenance, now: float
) -> tuple[dict[str, tuple[str, ...]], int]:
    """Record what is new; which files, and how many good proofs are not enough."""
    done: dict[str, tuple[str, ...]] = {}
    incomplete = 0
    whole = wanted.whole if wanted else frozenset()
    for artefact in _together(proofs):
        entry = replace(artefact, at=now)
        if not whole and artefact.kind != RANK_FILE:
            provenance.merge(entry)
        elif whole <= set(artefact.files):
            provenance.record(entry)
        else:
            incomplete += len(artefact.files)
            continue
        done[artefact.name] = tuple(sorted(artefact.files))
    return done, incomplete


def _gone(
    wanted: Acceptance | None, known: Mapping[str, Artefact], provenance: Provenance
) -> dict[str, tuple[str, ...]]:
    """Take out of the record what the order lets go and what is not there any more."""
    found = {}
    for name, paths in (wanted.gone if wanted else {}).items():
        artefact = known.get(name)
        if artefact is None:
            continue
        # A folder that is not there says nothing: its disk may not be mounted.
        if not _is_mounted(artefact.folder):
            continue
        absent = [path for path in paths if stat_of(Path(artefact.folder, path)) is None]
        if left := provenance.drop(name, absent):
            found[name] = left
    return found


def _is_mounted(folder: str) -> bool:
    return Path(folder).is_dir()


def _counts(
    proof: Proof, wanted: Acceptance | None, known: Mapping[str, Artefact], now: float
) -> bool:
    """Whether a proof is for what was ordered, or recorded, and for what is there now."""
    artefact, held = proof.artefact, proof.held
    try:
        if stat_of(Path(artefact.folder, proof.path)) != held.stat:
            return False
    except (OSError, ValueError):
        return False
    if not (held.verified_at >= 0.0 and held.told_at <= now + _CLOCK_SECONDS):
        return False
    if proof.before is not None:
        return _is_about(proof, known.get(artefact.name))
    if wanted is None or held.failed_at is not None or held.how not in ("written", "read"):
        return False
    return wanted.accepts(artefact, proof.path, held)


def _is_about(proof: Proof, known: Artefact | None) -> bool:
    """Whether a recorded file was read again: its hash is the same, and nothing else is told."""
    before = proof.before
    if known is None or before is None or not _same(known, proof.artefact):
        return False
    held = replace(
        proof.held,
        mtime_ns=before.mtime_ns,
        inode=before.inode,
        verified_at=before.verified_at,
        failed_at=before.failed_at,
    )
    return proof.path in known.files and held == before


def _together(proofs: list[Proof]) -> list[Artefact]:
    """The artefacts of some proofs with their files; of two proofs of one file the later counts."""
    found: list[Artefact] = []
    for proof in proofs:
        files = {proof.path: proof.held}
        for at, known in enumerate(found):
            if _same(known, proof.artefact):
                found[at] = replace(proof.artefact, files={**known.files, **files})
                break
        else:
            found.append(replace(proof.artefact, files=files))
    return found


def _same(one: Artefact, other: Artefact) -> bool:
    return (one.name, one.commit, one.folder) == (other.name, other.commit, other.folder)


def _read(path: Path) -> Iterator[Proof | None]:
    """The proofs of a file; None for a line that a kill, a full disk or somebody else spoiled."""
    try:
        lines = jsonfile.content(path, _MOST_BYTES).splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProofError(f"{path} cannot be read ({error.strerror}); move it away") from None
    for line in lines:
        if line:
            yield _proof(line)


def _proof(line: bytes) -> Proof | None:
    try:
        data = json.loads(line)
        name, path = str(data["name"]), str(data["path"])
        parts = PurePosixPath(path).parts
        if not _NAME.fullmatch(name) or not parts or parts[0] == "/" or ".." in parts:
            return None
        artefact = artefact_of(name, {**data["artefact"], "files": {}})
        return Proof(artefact, path, held_of(data["held"]), _maybe(data["before"]))
    except Exception:  # anybody may have written it: nothing of it shall end root's step
        return None


def _maybe(data: Mapping[str, Any] | None) -> Held | None:
    return None if data is None else held_of(data)
