"""What is recorded of the files that a job brings, and the note it takes of each it has proven."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from .cache import Payload
from .manifest import File
from .provenance import Artefact, Held, Provenance, ProvenanceError, Stat, stat_of
from .record import Proof, Proofs

How = Literal["written", "read"]
"""What proved a file: hashed while it was written, or read where it lay."""


class Noted:
    """The files of one artefact; any thread may call it."""

    def __init__(self, artefact: Artefact, proofs: Proofs, provenance: Provenance) -> None:
        """`artefact` is what the record shall say of them; its own files do not count."""
        self._artefact = artefact
        self._proofs = proofs
        self._record = _recorded(artefact, provenance)

    def held(self, path: str) -> Held | None:
        """What is recorded of a file of the very artefact in the very folder."""
        return self._record.files.get(path) if self._record else None

    def trusted(self, file: File, payload: Payload) -> bool:
        """Whether the record vouches for a file that lies there, by the everyday check."""
        held = self.held(file.path)
        return (
            held is not None
            and held.failed_at is None
            and held.agrees_with(file)
            and held.stat == stat_of(payload.path)
        )

    def settled(self, file: File, path: Path, proven: Stat, how: How) -> None:
        """Note a file that lies at `path` and was so when it was proven; never raises."""
        try:
            found = stat_of(path)
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
            how=how,
            sha256=file.sha256 or "",
            git_sha1="" if file.sha256 else file.git_sha1,
        )
        self._proofs.add(Proof(self._artefact, file.path, held))


def _recorded(artefact: Artefact, provenance: Provenance) -> Artefact | None:
    """What is recorded of the very artefact; a record that cannot be read is no reason to do
    nothing, since every file is proven then."""
    try:
        known = provenance.load().get(artefact.name)
    except (ProvenanceError, OSError):
        return None
    wanted = (artefact.repo, artefact.commit, artefact.folder)
    return known if known and (known.repo, known.commit, known.folder) == wanted else None
