"""What the jobs about an engine's image are asked for. Pure.

Three of them: the head builds an image, the head writes it to an archive, the worker fetches that
archive and takes the image out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DescriptionError
from ..weights.manifest import File
from ..weights.order_parts import OrderError, absolute, check_shape, text, texts, whole_number
from ..weights.transfer_order import WAY_KEYS, Way, way_of

BUILD, EXPORT, FETCH = "image_build", "image_export", "image_fetch"

_KIT = ("folder", "in_image", "manifest_sha256", "count")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ARCHIVE = re.compile(r"[0-9a-f]{64}\.tar")


@dataclass(frozen=True)
class BuildOrder:
    """An image that shall be built from a checkout."""

    home: Path
    floor_bytes: int
    """What stays free on Docker's disk."""
    image: str
    checkout: Path
    scratch: Path
    """Folder in which a copy of the checkout is worked on; made by the job and removed by it."""
    command: tuple[str, ...]
    kit: Mapping[str, Any] | None
    """`folder` in the checkout, `in_image`, `manifest_sha256` and `count`; None without one."""
    expected_bytes: int
    """Room that an image takes, for a refusal before the build."""

    @classmethod
    def from_dict(cls, data: Any) -> BuildOrder:
        """Raises DescriptionError with what is wrong."""
        words = "a build's order"
        keys = frozenset({"image", "checkout", "scratch", "command", "kit", "expected_bytes"})
        order = check_shape(data, BUILD, words, keys)
        try:
            command = texts(order, "command")
            if not command:
                raise OrderError("no command")
            return cls(
                home=absolute(order, "home"),
                floor_bytes=whole_number(order, "floor_bytes", 0),
                image=text(order, "image"),
                checkout=absolute(order, "checkout"),
                scratch=absolute(order, "scratch"),
                command=command,
                kit=_kit(order["kit"]),
                expected_bytes=whole_number(order, "expected_bytes", 0),
            )
        except OrderError as error:
            raise DescriptionError(f"{words} has {error}") from error


@dataclass(frozen=True)
class ExportOrder:
    """An image that shall be written to an archive, so that the other machine can fetch it."""

    home: Path
    floor_bytes: int
    image: str
    identity: str
    folder: Path

    @classmethod
    def from_dict(cls, data: Any) -> ExportOrder:
        """Raises DescriptionError with what is wrong."""
        words = "an export's order"
        order = check_shape(data, EXPORT, words, frozenset({"image", "identity", "folder"}))
        try:
            return cls(
                home=absolute(order, "home"),
                floor_bytes=whole_number(order, "floor_bytes", 0),
                image=text(order, "image"),
                identity=_digest(order, "identity"),
                folder=absolute(order, "folder"),
            )
        except OrderError as error:
            raise DescriptionError(f"{words} has {error}") from error


@dataclass(frozen=True)
class FetchOrder:
    """An archive that shall come from the peer, and the image that shall come out of it."""

    home: Path
    floor_bytes: int
    image: str
    identity: str
    folder: Path
    """Here."""
    origin: Path
    """On the peer."""
    archive: File
    way: Way

    @classmethod
    def from_dict(cls, data: Any) -> FetchOrder:
        """Raises DescriptionError with what is wrong."""
        words = "an image's order"
        own = frozenset({"image", "identity", "folder", "from", "archive"})
        order = check_shape(data, FETCH, words, own | WAY_KEYS)
        try:
            return cls(
                home=absolute(order, "home"),
                floor_bytes=whole_number(order, "floor_bytes", 0),
                image=text(order, "image"),
                identity=_digest(order, "identity"),
                folder=absolute(order, "folder"),
                origin=absolute(order, "from"),
                archive=_archive(order["archive"]),
                way=way_of(order),
            )
        except OrderError as error:
            raise DescriptionError(f"{words} has {error}") from error


def _kit(data: Any) -> Mapping[str, Any] | None:
    if data is None:
        return None
    if not isinstance(data, Mapping) or set(data) != set(_KIT):
        raise OrderError("a kit without exactly " + ", ".join(_KIT))
    _digest(data, "manifest_sha256")
    whole_number(data, "count", 1)
    absolute(data, "in_image")
    if text(data, "folder").startswith("/") or ".." in Path(data["folder"]).parts:
        raise OrderError(f"{data['folder']!r} for folder, which is no path below the checkout")
    return dict(data)


def _archive(data: Any) -> File:
    if not isinstance(data, Mapping) or set(data) != {"path", "size", "sha256"}:
        raise OrderError("an archive without exactly path, size, sha256")
    path = text(data, "path")
    if not _ARCHIVE.fullmatch(path):
        raise OrderError(f"{path!r} for the name of an archive")
    return File(path, whole_number(data, "size", 1), "0" * 40, _digest(data, "sha256"))


def _digest(data: Mapping[str, Any], key: str) -> str:
    value = text(data, key)
    if not _SHA256.fullmatch(value):
        raise OrderError(f"{value!r} for {key}")
    return value
