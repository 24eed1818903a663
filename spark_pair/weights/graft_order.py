"""What a graft, or taking one back, is asked for, as it is handed to its job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import DescriptionError
from . import layout
from .cache import Cache
from .manifest import File, Manifest, ManifestError, is_commit
from .provenance import SHARD, Artefact, Held, Origin

SCHEMA = 1
CHECKPOINT = "checkpoint"
"""What the record calls the artefact that is grafted."""

Kind = Literal["graft", "undo_graft"]
Method = Literal["in_place", "recipe"]
KINDS: tuple[Kind, ...] = ("graft", "undo_graft")
METHODS: tuple[Method, ...] = ("in_place", "recipe")
FORMER = (Origin.DOWNLOADED, Origin.ADOPTED, Origin.TRANSFERRED)

_REQUIRED = frozenset(
    {"schema", "kind", "home", "floor_bytes", "method", "manifest", "files", "overlay", "work",
     "former"}
)  # fmt: skip
_OPTIONAL = frozenset(
    {"tensors", "image", "command", "dtypes_command", "recipe", "memory_bytes"}
)  # fmt: skip


@dataclass(frozen=True)
class GraftOrder:
    """A checkpoint that shall carry an overlay, or shall carry it no longer."""

    kind: Kind
    method: Method
    home: Path
    """Of the account."""
    manifest: Manifest
    """The checkpoint's."""
    files: tuple[File, ...]
    """All that is wanted of the checkpoint."""
    overlay: str
    """Commit."""
    sidecar_manifest: Manifest | None
    """The overlay's; None where only its commit counts, which is so when it is taken out."""
    sidecar_files: tuple[File, ...]
    work: Path
    """Folder of everything that is made from checkpoints."""
    tensors: int
    """How many the overlay must have; 0 is not checked."""
    former: Origin
    """What the record said of the checkpoint before it was grafted."""
    image: str
    command: tuple[str, ...]
    """Of the overlay's own script, for the recipe's way; see `graft_recipe`."""
    dtypes_command: tuple[str, ...]
    """Of the step after it; empty when there is none."""
    recipe: Path | None
    """The recipe's checkout."""
    memory_bytes: int
    """What the script may take."""
    floor_bytes: int
    """What stays free on the disk."""

    @classmethod
    def from_dict(cls, data: Any) -> GraftOrder:
        """Raises DescriptionError with what is wrong."""
        if not isinstance(data, Mapping):
            raise DescriptionError("a graft's order is not a mapping")
        if data.get("schema") != SCHEMA:
            raise DescriptionError(
                f"a graft's order has schema {data.get('schema')!r}, not {SCHEMA}: the tool on "
                "this host is of another release; run --tags tools"
            )
        if problem := _key_problem(data):
            raise DescriptionError(f"a graft's order {problem}")
        try:
            manifest = Manifest.from_dict(data["manifest"])
            files = tuple(manifest.file(str(path)) for path in data["files"])
            overlay, sidecar, sidecar_files = _overlay(data["overlay"])
        except (ManifestError, TypeError, KeyError) as error:
            raise DescriptionError(f"a graft's order: {error}") from error
        order = cls(
            kind=data["kind"],
            method=data["method"],
            home=Path(data["home"]),
            manifest=manifest,
            files=files,
            overlay=overlay,
            sidecar_manifest=sidecar,
            sidecar_files=sidecar_files,
            work=Path(data["work"]),
            tensors=data.get("tensors", 0),
            former=Origin(data["former"]),
            image=data.get("image", ""),
            command=tuple(data.get("command", ())),
            dtypes_command=tuple(data.get("dtypes_command", ())),
            recipe=Path(data["recipe"]) if data.get("recipe") else None,
            memory_bytes=data.get("memory_bytes", 0),
            floor_bytes=data["floor_bytes"],
        )
        if problem := order._problem():
            raise DescriptionError(f"a graft's order {problem}")
        return order

    def _problem(self) -> str:
        if not any(file.path.endswith(SHARD) for file in self.files):
            return "names no shard of the checkpoint"
        if self.kind == "graft" and self.sidecar is None:
            return "names no single file with the overlay's tensors"
        if self.kind == "graft" and self.method == "recipe" and not (self.image and self.command):
            return "has no image or no command, which the recipe's way needs"
        return ""

    def where(self) -> Cache:
        """The cache in which the checkpoint and the overlay lie."""
        return Cache.of_account(self.home)

    @property
    def derived(self) -> Path:
        """The folder of everything made from this checkpoint with this overlay."""
        return layout.derived(self.work, self.manifest.commit, self.overlay)

    @property
    def folder(self) -> Path:
        """The checkpoint with the overlay in it."""
        return layout.grafted(self.work, self.manifest.commit, self.overlay)

    @property
    def snapshot(self) -> Path:
        """The checkpoint without it."""
        return self.where().snapshot(self.manifest.repo, self.manifest.commit)

    @property
    def sidecar(self) -> File | None:
        """The overlay's file of tensors; None unless there is exactly one."""
        shards = [file for file in self.sidecar_files if file.path.endswith(SHARD)]
        return shards[0] if len(shards) == 1 else None

    @property
    def shards(self) -> tuple[File, ...]:
        """The checkpoint's files with tensors."""
        return tuple(file for file in self.files if file.path.endswith(SHARD))

    def artefact(self, grafted: tuple[str, ...] = (), at: float = 0.0) -> Artefact:
        """What the record shall say, without the files; `grafted` are the paths of the shards that
        carry the overlay."""
        stock = self.kind == "undo_graft"
        return Artefact(
            name=CHECKPOINT,
            kind="repository",
            repo=self.manifest.repo,
            commit=self.manifest.commit,
            origin=self.former if stock else Origin.GRAFTED,
            at=at,
            folder=str(self.snapshot if stock else self.folder),
            files={},
            details={} if stock else self._details(grafted),
        )

    def _details(self, grafted: tuple[str, ...]) -> dict[str, Any]:
        return {
            "overlay": self.overlay,
            "grafted": sorted(grafted),
            "former": str(self.former),
        }

    # ---- what its job's proofs may say ----------------------------------------------------------

    @property
    def whole(self) -> frozenset[str]:
        """Nobody could cut from half a graft: all files count together, or none does."""
        return frozenset(file.path for file in self.files)

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """No file leaves the record by a graft."""
        return {}

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Whether a proof is of this order: shards with the overlay by size, the rest by hash."""
        grafted = _paths(artefact.details.get("grafted", []))
        if grafted is None or artefact != self.artefact(grafted, artefact.at):
            return False
        known = {file.path for file in self.shards}
        if not set(grafted) <= known or (self.kind == "graft" and not grafted):
            return False
        file = next((one for one in self.files if one.path == path), None)
        if file is None or held.failed_at is not None:
            return False
        if path in grafted:
            # A script that writes a shard anew may write another header.
            return bool(held.sha256) and (held.size == file.size or self.method == "recipe")
        return held.agrees_with(file)


def _paths(data: Any) -> tuple[str, ...] | None:
    """Sorted paths, each once; None for anything else."""
    if not isinstance(data, list) or not all(isinstance(one, str) for one in data):
        return None
    return tuple(data) if data == sorted(set(data)) else None


def _overlay(data: Mapping[str, Any]) -> tuple[str, Manifest | None, tuple[File, ...]]:
    if "manifest" not in data:
        commit = str(data["commit"])
        if not is_commit(commit):
            raise ManifestError(f"{commit!r} is not a commit of the overlay")
        return commit, None, ()
    manifest = Manifest.from_dict(data["manifest"])
    return manifest.commit, manifest, tuple(manifest.file(str(path)) for path in data["files"])


def _key_problem(data: Mapping[str, Any]) -> str:
    if missing := sorted(_REQUIRED - set(data)):
        return f"lacks {', '.join(missing)}"
    if unknown := sorted(map(str, set(data) - _REQUIRED - _OPTIONAL)):
        return f"has unknown keys: {', '.join(unknown)}"
    if not isinstance(data["overlay"], Mapping):
        return "does not say which overlay is meant"
    for key, is_right in _RIGHT.items():
        if key in data and not is_right(data[key]):
            return f"has {data[key]!r} for {key}"
    return ""


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


_RIGHT: Mapping[str, Callable[[Any], bool]] = {
    "kind": KINDS.__contains__,
    "method": METHODS.__contains__,
    "former": FORMER.__contains__,
    "home": _is_path,
    "work": _is_path,
    "tensors": _is_count,
    "memory_bytes": _is_count,
    "floor_bytes": _is_count,
    "image": _is_text,
    "recipe": _is_text,
    "files": _are_words,
    "command": _are_words,
    "dtypes_command": _are_words,
}
