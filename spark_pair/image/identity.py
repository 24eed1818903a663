"""What an image is, whichever machine keeps it: the same on both exactly when they would run alike.

Docker's own identifier is no help: an overlay2 store calls an image by its configuration, a
containerd store by its manifest, so equal images have different names on two machines. What both
tell alike are the layers, by the hash of their content, and the configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Exit, SparkPairError
from ..system import Runner, run_plainly

INSPECT_SECONDS = 60.0

_DECIDES = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell",
    "StopSignal", "User", "Volumes", "WorkingDir",
)  # fmt: skip
"""What of the configuration decides how a container runs. The rest tells how the image was made
(its container, its parent), and one store leaves it out."""


_UNSET: Mapping[str, tuple[Any, ...]] = {
    key: (None, "", [], {}, *(("/",) if key == "WorkingDir" else ())) for key in _DECIDES
}
"""What says of each that nothing is set: stores and builders differ in which they write."""


class ImageError(SparkPairError):
    """Docker does not say what it has, or does not do what it is told; nothing was changed."""

    exit = Exit.REFUSED


@dataclass(frozen=True)
class Image:
    """An image as one machine has it."""

    name: str
    identity: str
    """64 hex digits; equal on two machines for equal content."""
    size: int
    """Bytes, as far as Docker tells."""
    id: str
    """The store's own word for it."""
    tags: tuple[str, ...] = ()
    """All of its names."""


def identity_of(entry: Mapping[str, Any]) -> str:
    """The identity of an entry of `docker image inspect`. Raises ImageError when it has no layers:
    two images without any would look alike."""
    layers = (entry.get("RootFS") or {}).get("Layers")
    if not isinstance(layers, list) or not layers:
        raise ImageError("Docker tells of an image without layers, which cannot be compared")
    config = entry.get("Config") or {}
    material = {
        "layers": layers,
        "os": entry.get("Os") or "",
        "architecture": entry.get("Architecture") or "",
        "config": {key: config[key] for key in _DECIDES if config.get(key) not in _UNSET[key]},
    }
    text = json.dumps(material, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def inspect(name: str, runner: Runner = run_plainly) -> Image | None:
    """The image of that name on this machine; None when there is none. Raises ImageError when
    Docker does not answer."""
    done = runner(["docker", "image", "inspect", "--", name], INSPECT_SECONDS)
    if not done.ok:
        if "no such image" in done.err.lower():
            return None
        raise ImageError(f"Docker does not tell about the image {name}: {done.last_words(1)}")
    try:
        (entry,) = json.loads(done.out)
        identity, size = identity_of(entry), int(entry.get("Size") or 0)
        tags = tuple(sorted(entry.get("RepoTags") or ()))
    except (ValueError, TypeError, AttributeError) as error:
        raise ImageError(
            f"what Docker tells about the image {name} is not understood: {error!r}"
        ) from error
    return Image(name, identity, size, str(entry.get("Id", "")), tags)


def whole_name(name: str) -> str:
    """A name as Docker means it: of its own registry where none is said, and the latest tag."""
    first, slash, rest = name.partition("/")
    if not slash or not (first == "localhost" or "." in first or ":" in first):
        first, rest = "docker.io", name
    if first in ("docker.io", "index.docker.io"):
        first, rest = "docker.io", rest if "/" in rest else f"library/{rest}"
    last = rest.rpartition("/")[2]
    return f"{first}/{rest}" + ("" if ":" in last else ":latest")


def also_called(name: str, identity: str) -> str:
    """A name that keeps an image findable whose own name another one is about to get."""
    base, slash, last = name.rpartition("/")
    plain, _, tag = last.partition(":")
    return f"{base}{slash}{plain}:{tag or 'latest'}-was-{identity[:8]}"
