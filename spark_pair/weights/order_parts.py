"""What the orders of several kinds of work have in common. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DescriptionError
from .manifest import is_commit
from .provenance import Artefact

SCHEMA = 1


class OrderError(ValueError):
    """A part of an order is not as it should be; the message says which, after "has"."""


def check_shape(data: Any, kind: str, words: str, keys: frozenset[str]) -> Mapping[str, Any]:
    """The order itself when it is a mapping of that kind with exactly these keys.

    `words` name it in a sentence ("a cut's order"); "schema", "kind", "home" and "floor_bytes" need
    not be among the keys. Raises DescriptionError.
    """
    if not isinstance(data, Mapping):
        raise DescriptionError(f"{words} is not a mapping")
    if data.get("schema") != SCHEMA:
        raise DescriptionError(
            f"{words} has schema {data.get('schema')!r}, not {SCHEMA}: the tool on this host is of "
            "another release; run --tags tools"
        )
    if data.get("kind") != kind:
        raise DescriptionError(f"{words} is of kind {data.get('kind')!r}, not {kind}")
    wanted = keys | {"schema", "kind", "home", "floor_bytes"}
    if missing := sorted(wanted - set(data)):
        raise DescriptionError(f"{words} lacks {', '.join(missing)}")
    if unknown := sorted(map(str, set(data) - wanted)):
        raise DescriptionError(f"{words} has unknown keys: {', '.join(unknown)}")
    return data


def absolute(data: Mapping[str, Any], key: str) -> Path:
    """An absolute path without a step up. Raises OrderError."""
    return absolute_path(data[key], key)


def absolute_path(value: Any, key: str) -> Path:
    """The same of a value that was taken out already."""
    if not isinstance(value, str) or not value.startswith("/") or ".." in Path(value).parts:
        raise OrderError(f"{value!r} for {key}, which is no absolute path")
    return Path(value)


def text(data: Mapping[str, Any], key: str) -> str:
    """A text that is not empty. Raises OrderError."""
    value = data[key]
    if not isinstance(value, str) or not value:
        raise OrderError(f"{value!r} for {key}")
    return value


def commit(data: Mapping[str, Any], key: str) -> str:
    """A whole commit. Raises OrderError."""
    value = text(data, key)
    if not is_commit(value):
        raise OrderError(f"{value!r} for {key}, which is no whole commit")
    return value


def whole_number(data: Mapping[str, Any], key: str, least: int) -> int:
    """A whole number, not less than `least`. Raises OrderError."""
    value = data[key]
    if type(value) is not int or value < least:
        raise OrderError(f"{value!r} for {key}")
    return value


def texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of texts. Raises OrderError."""
    value = data[key]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise OrderError(f"{value!r} for {key}, which is no list of texts")
    return tuple(value)


def file_name(value: str, key: str) -> str:
    """The name of a file without any folder. Raises OrderError."""
    if not value or "/" in value or value in (".", ".."):
        raise OrderError(f"{value!r} for {key}, which is no name of a file")
    return value


@dataclass(frozen=True)
class RankArtefact:
    """What the record says, or shall say, about a rank file."""

    name: str
    repo: str
    commit: str
    """Of the checkpoint."""
    folder: Path
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Any) -> RankArtefact:
        """Raises OrderError."""
        keys = {"name", "repo", "commit", "folder", "details"}
        if not isinstance(data, Mapping) or set(data) != keys:
            raise OrderError("an artefact that is not described by " + ", ".join(sorted(keys)))
        details = data["details"]
        overlay = details.get("overlay", "") if isinstance(details, Mapping) else ""
        if overlay is not None and not (isinstance(overlay, str) and is_commit(overlay)):
            raise OrderError("an artefact whose details do not say which overlay it carries")
        return cls(
            text(data, "name"),
            text(data, "repo"),
            commit(data, "commit"),
            absolute(data, "folder"),
            dict(details),
        )

    @property
    def overlay(self) -> str | None:
        """Commit of the overlay that it carries; None for stock weights."""
        overlay: str | None = self.details["overlay"]
        return overlay

    @property
    def words(self) -> str:
        """What it was cut from, for people."""
        overlay = f" with the overlay {self.overlay[:8]}" if self.overlay else ", stock"
        return f"{self.commit[:8]}{overlay}"

    def describes(self, artefact: Artefact) -> bool:
        """Whether an artefact is this one, wherever it came from and whatever else it remembers."""
        mine = (self.name, "rank_file", self.repo, self.commit, str(self.folder), self.overlay)
        return mine == (
            artefact.name, artefact.kind, artefact.repo, artefact.commit, artefact.folder,
            artefact.details.get("overlay"),
        )  # fmt: skip
