"""What an engine is built from: the recipe's commit, an ordered queue of patches, a kernel kit.

All three are declared by the operator and named together by one id, so that a checkout, an image
and a generation can be told apart by what went into them. Pure functions, standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .errors import DescriptionError

STOCK_ROUND_ROWS = 16
"""Rows of a decode round that the stock kernels know; more needs the wide-row kit."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_URL = re.compile(r"https?://\S+")
_BELOW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_PATCH_KEYS = ("path", "url", "sha256")
_KIT_KEYS = ("path", "url", "manifest_sha256", "count", "folder", "in_image")


@dataclass(frozen=True)
class Patch:
    """One file of the queue; applied with `git apply` in the order in which they are declared."""

    source: str
    """Absolute path on the controller, or the URL that the head fetches it from."""
    sha256: str

    @property
    def name(self) -> str:
        """What the operator knows it by: the last part of its source."""
        return _last_part(self.source)

    @property
    def from_url(self) -> bool:
        """Whether the head fetches it."""
        return bool(_URL.fullmatch(self.source))


@dataclass(frozen=True)
class Kit:
    """Kernel files that the recipe does not bring, all or none of them.

    Their list is the file `MANIFEST` among them: lines of a sha256, two blanks and a path, as
    sha256sum prints them.
    """

    source: str
    """Absolute path of a folder or tar archive on the controller, or an archive's URL."""
    manifest_sha256: str
    count: int
    """Number of files that the manifest must list."""
    folder: str
    """Where its files lie in the recipe's checkout."""
    in_image: str
    """Where the image keeps them, an absolute path."""

    @property
    def name(self) -> str:
        """What the operator knows it by: the last part of its source."""
        return _last_part(self.source)

    @property
    def from_url(self) -> bool:
        """Whether the head fetches it."""
        return bool(_URL.fullmatch(self.source))


def patches(label: str, raw: object) -> tuple[Patch, ...]:
    """The queue as declared under the variable `label`; DescriptionError names a bad entry."""
    if raw in (None, ""):
        return ()
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise DescriptionError(
            f"{label} must be a list of patches, each with path or url, and sha256"
        )
    found: list[Patch] = []
    for index, entry in enumerate(raw):
        where = f"{label}[{index}]"
        one = _mapping(where, entry, _PATCH_KEYS)
        patch = Patch(_source(where, one), _digest(f"{where}.sha256", one.get("sha256")))
        if any(patch.sha256 == other.sha256 for other in found):
            raise DescriptionError(f"{where} is the same patch as an earlier entry ({patch.name})")
        found.append(patch)
    return tuple(found)


def kit(label: str, raw: object) -> Kit | None:
    """The kit as declared under the variable `label`, or None. Raises DescriptionError."""
    if raw in (None, "") or raw == {}:
        return None
    one = _mapping(label, raw, _KIT_KEYS)
    count = one.get("count", 64)
    if isinstance(count, str) and re.fullmatch(r"[1-9][0-9]*", count):
        count = int(count)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise DescriptionError(f"{label}.count must be the number of files in the kit, above 0")
    folder = one.get("folder", "kit")
    if not isinstance(folder, str) or not _BELOW.fullmatch(folder):
        raise DescriptionError(f"{label}.folder must be a plain path below the recipe's checkout")
    inside = one.get("in_image", "/kit")
    if not isinstance(inside, str) or not _BELOW.fullmatch(inside.removeprefix("/")):
        raise DescriptionError(f"{label}.in_image must be an absolute path in the image")
    return Kit(
        source=_source(label, one),
        manifest_sha256=_digest(f"{label}.manifest_sha256", one.get("manifest_sha256")),
        count=count,
        folder=folder,
        in_image="/" + inside.removeprefix("/"),
    )


def recipe_id(commit: str, queue: Sequence[Patch], with_kit: Kit | None) -> str:
    """Names a checkout and an image by what they are made from: 12 digits of the commit, and, for
    anything but the stock recipe, 8 digits of a hash over the queue and the kit.

    Where a file comes from does not matter, only its content and, in the kit, its places.
    """
    if not queue and with_kit is None:
        return commit[:12]
    extras = [
        [patch.sha256 for patch in queue],
        {**asdict(with_kit), "source": None} if with_kit else None,
    ]
    material = json.dumps(extras, sort_keys=True).encode("ascii")
    return f"{commit[:12]}-{hashlib.sha256(material).hexdigest()[:8]}"


def without_secret(text: str) -> str:
    """A text with no name and password in its addresses."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def _last_part(source: str) -> str:
    """The last part of a path or an address, without what follows a "?", which may be a token."""
    if _URL.fullmatch(source):
        source = re.split(r"[?#]", without_secret(source), maxsplit=1)[0]
    return source.rstrip("/").rsplit("/", 1)[-1]


def image_name(name: str) -> str:
    """The image that is built from the inputs of that id."""
    return f"tensorfold-dsv41:{name}"


def _mapping(label: str, raw: object, keys: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise DescriptionError(f"{label} must be a mapping of {', '.join(keys)}")
    for key in raw:
        if key not in keys:
            raise DescriptionError(
                f"{label} has an unknown key {str(key)!r}; known are {', '.join(keys)}"
            )
    return raw


def _source(label: str, one: Mapping[str, Any]) -> str:
    path, url = one.get("path"), one.get("url")
    if (path in (None, "")) == (url in (None, "")):
        raise DescriptionError(
            f"{label} must name either a path on this controller or a url, and not both"
        )
    if url in (None, ""):
        if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
            raise DescriptionError(
                f"{label}.path is {path!r}, but must be an absolute path on this controller, as "
                "{{ inventory_dir }}/patches/0001.patch"
            )
        return path
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise DescriptionError(f"{label}.url is {url!r}, but must be an http or https address")
    return url


def _digest(label: str, raw: object) -> str:
    if not isinstance(raw, str) or not _SHA256.fullmatch(raw):
        raise DescriptionError(f"{label} must be a sha256, 64 digits as sha256sum prints them")
    return raw
