"""What root's last step of a job may take into the record, as the job's order answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .provenance import Artefact, Held


class Acceptance(Protocol):
    """What an order of any kind tells about the proofs of its job."""

    @property
    def whole(self) -> frozenset[str]:
        """Paths that count only together and then replace what was recorded; empty: each counts by
        itself and is merged."""

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """Artefact name -> paths that leave the record when they are absent."""

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Whether a proof is for what was ordered; the artefact comes without files."""
