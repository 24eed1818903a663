"""What the cut of a rank file is asked for, as it is handed to its job. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DescriptionError
from .order_parts import (
    OrderError,
    RankArtefact,
    absolute,
    check_shape,
    file_name,
    text,
    texts,
    whole_number,
)
from .provenance import Artefact, Held, Origin
from .rank_file import rank_of

KIND = "shard"
INDEX = "index_sha256"
"""What the record remembers of a rank file beside the overlay: the hash of its list of tensors,
which is known only once it is cut."""
_WORDS = "the order of a cut"
_KEYS = frozenset(
    {
        "rank", "model", "artefact", "image", "command", "memory_bytes", "expected_bytes", "wrong",
    }
)  # fmt: skip
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ShardOrder:
    """One rank file that shall be cut from a checkpoint."""

    home: Path
    """Of the account."""
    rank: int
    model: Path
    """The folder of the checkpoint."""
    artefact: RankArtefact
    """What the record shall say; its folder is where the file goes."""
    image: str
    command: tuple[str, ...]
    """Run in the image; {model}, {out} and {rank} stand for what they are there."""
    memory_bytes: int
    expected_bytes: int
    """About what the file will have."""
    wrong: tuple[str, ...]
    """Names of files of that rank in the folder that are known to be wrong, and are replaced."""
    floor_bytes: int
    """What stays free on the disk."""

    @classmethod
    def from_dict(cls, data: Any) -> ShardOrder:
        """Raises DescriptionError with what is wrong."""
        data = check_shape(data, KIND, _WORDS, _KEYS)
        try:
            order = cls(
                home=absolute(data, "home"),
                rank=whole_number(data, "rank", 0),
                model=absolute(data, "model"),
                artefact=RankArtefact.from_dict(data["artefact"]),
                image=text(data, "image"),
                command=texts(data, "command"),
                memory_bytes=whole_number(data, "memory_bytes", 1),
                expected_bytes=whole_number(data, "expected_bytes", 0),
                wrong=tuple(file_name(one, "wrong") for one in texts(data, "wrong")),
                floor_bytes=whole_number(data, "floor_bytes", 0),
            )
            _check(order)
        except OrderError as error:
            raise DescriptionError(f"{_WORDS} has {error}") from None
        return order

    @property
    def whole(self) -> frozenset[str]:
        """None by name: a rank file's name is known only once it is cut."""
        return frozenset()

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """The wrong files that were replaced by one of another name."""
        return {self.artefact.name: frozenset(self.wrong)} if self.wrong else {}

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Whether a proof is for the file that was ordered; the artefact comes without files."""
        index = artefact.details.get(INDEX)
        return (
            artefact.origin is Origin.CUT
            and self.artefact.describes(artefact)
            and dict(artefact.details) == {**self.artefact.details, INDEX: index}
            and isinstance(index, str)
            and _SHA256.fullmatch(index) is not None
            and "/" not in path
            and rank_of(path) == self.rank
            and held.how == "read"
            and _SHA256.fullmatch(held.sha256) is not None
        )


def _check(order: ShardOrder) -> None:
    if order.rank not in (0, 1):
        raise OrderError(f"{order.rank!r} for rank, which is neither 0 nor 1")
    if not order.command:
        raise OrderError("no command")
    joined = " ".join(order.command)
    if lacking := [name for name in ("{model}", "{out}", "{rank}") if name not in joined]:
        raise OrderError(f"a command without {' and '.join(lacking)}: {joined}")
    if strange := [name for name in order.wrong if rank_of(name) != order.rank]:
        raise OrderError(f"{strange[0]!r} among the wrong files, which is of another rank")
