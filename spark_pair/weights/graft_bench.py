"""What putting an overlay into a checkpoint and taking it out have in common.

Where each file of the checkpoint lies, what the record knows of it, and how a shard leaves the
cache. A blob's name is the hash of its bytes and others may share it, so it is never written to: a
shard goes out of the cache by a rename, or as a copy where something else uses its bytes, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from . import container, layout, shared_store
from . import graft_disk as disk
from .cache import Payload
from .graft_order import CHECKPOINT, GraftOrder
from .graft_plan import GraftError
from .graft_state import STAGING, UNDO
from .manifest import File
from .provenance import SHARD, Artefact, Held, Origin, stat_of

INDEX = ".safetensors.index.json"
CONFIG = "config.json"
CONTAINER = "spark-pair-graft"
"""In which the recipe's tools write shards anew."""
_TOLD = 5

T = TypeVar("T")


class _AbandonedError(Exception):
    """Another shard has failed, so this one need not be finished."""


class Bench:
    """The place of work for one order."""

    def __init__(
        self, order: GraftOrder, reporter: Reporter, known: Mapping[str, Artefact], threads: int
    ) -> None:
        """`known` is the record of this host."""
        self.order = order
        self.reporter = reporter
        self.known = known
        self.threads = threads
        self.cache = order.where()
        self.derived = order.derived
        self.folder = order.folder
        self.root = self.cache.root.parent
        self.copied = 0
        """Bytes of shards that could not be moved."""
        self._lock = threading.Lock()
        self._abandoned = threading.Event()

    # ---- places

    def final(self, path: str) -> Path:
        """Where a server finds a file of the grafted checkpoint."""
        return self.folder / path

    def staged(self, path: str) -> Path:
        """Where a shard is worked on."""
        return self.derived / STAGING / path

    def undo(self, path: str) -> Path:
        """Where what undoes a shard's graft is kept."""
        return self.derived / UNDO / path

    def stock(self, file: File) -> Payload | None:
        """The Hub's own file in the cache, by its size."""
        manifest = self.order.manifest
        return self.cache.locate(manifest.repo, manifest.commit, file)

    def entry(self, file: File) -> Path:
        """The name of a file in the cache's snapshot."""
        return self.order.snapshot / file.path

    # ---- what is known

    def check(self) -> None:
        """Raise when the work is to end here."""
        self.reporter.check()
        if self._abandoned.is_set():
            raise _AbandonedError

    def check_writing(self) -> None:
        """The same for whatever takes room: others may fill the disk meanwhile."""
        self.check()
        disk.check_room(self.derived, 0, self.order.floor_bytes)

    def recorded(self, file: File, where: Path) -> Held | None:
        """What the record says of a file of the checkpoint, if it is unchanged since."""
        record = self.known.get(CHECKPOINT)
        manifest = self.order.manifest
        if record is None or (record.repo, record.commit) != (manifest.repo, manifest.commit):
            return None
        held = record.files.get(file.path)
        if held is None or held.failed_at is not None or stat_of(where) != held.stat:
            return None
        return held

    def grafted(self, file: File) -> Held | None:
        """The same of a shard that carries this very overlay."""
        record = self.known.get(CHECKPOINT)
        if record is None or record.origin is not Origin.GRAFTED:
            return None
        if record.folder != str(self.folder) or record.details.get("overlay") != self.order.overlay:
            return None
        carries = record.details.get("grafted")
        if isinstance(carries, list) and file.path not in carries:
            return None
        return self.recorded(file, self.final(file.path))

    def prove_stock(self, file: File, where: Path) -> Held:
        """Know that a file is the Hub's own: by the record, or by reading it. GraftError."""
        held = self.recorded(file, where)
        if held is not None and held.agrees_with(file):
            return held
        found = disk.hash_file(where, file.hasher(), check=self.check)
        if found != file.etag:
            raise GraftError(
                f"{where} is not what the Hub has: nothing was grafted. Take it away and run "
                "--tags download, which brings it again"
            )
        return held_now(file, where, "read", found)

    # ---- out of the cache

    def must_copy(self, payload: Payload, file: File) -> bool:
        """Whether a shard's bytes are used by something else, or lie on another file system."""
        return self.elsewhere(payload) or bool(self.other_user(payload, file))

    def elsewhere(self, payload: Payload) -> bool:
        """Whether a shard lies on another file system than the place of work."""
        return disk.device(payload.path) != disk.device(self.derived)

    def other_user(self, payload: Payload, file: File) -> str:
        """What else uses the bytes of a shard, in words; "" for nothing."""
        if payload.path.stat().st_nlink > 1:
            return "it has another name, by a hard link"
        if payload.layout == "shared":
            if not shared_store.is_payload(self.cache.root, payload.path):
                return "it lies outside of the cache"
            users = shared_store.users(self.cache.root, payload.path)
            blob = self.cache.blob(self.order.manifest.repo, file)
            own = Path(os.path.realpath(blob.parent)) / blob.name
            if users is None or users - {own}:
                return "other repositories use it"
        for name in self._other_names(file):
            if name.is_symlink() and container.real(name) == payload.path:
                return f"{name} leads to it"
        return ""

    def _other_names(self, file: File) -> Iterator[Path]:
        own = self.entry(file)
        for place, _, names in os.walk(own.parents[len(Path(file.path).parts)]):
            yield from (path for name in names if (path := Path(place, name)) != own)
        commit = self.order.manifest.commit[: layout.DIGITS]
        for folder in sorted(self.order.work.glob(f"{commit}*/checkpoint")):
            if folder != self.folder:
                yield folder / file.path

    def check_owner(self, payload: Payload) -> None:
        """Raise GraftError for a shard that this account may not change."""
        found = payload.path.stat()
        if os.geteuid() not in (0, found.st_uid):
            raise GraftError(
                f"{payload.path} belongs to another account (number {found.st_uid}), so it cannot "
                f"be grafted: sudo chown {os.geteuid()} '{payload.path}', then run it again"
            )

    def take(self, file: File) -> None:
        """Bring a shard out of the cache to where it is worked on. GraftError, OSError."""
        payload = self.stock(file)
        staged = self.staged(file.path)
        if payload is None:
            raise GraftError(
                f"{file.path} lies neither in the cache nor in {self.derived}: run --tags download"
            )
        if self.must_copy(payload, file):
            disk.check_room(self.derived, file.size, self.order.floor_bytes)
            beside = disk.beside(staged)
            hasher = file.hasher()
            disk.copy(payload.path, beside, hasher, check=self.check_writing)
            if hasher.hexdigest() != file.etag:
                disk.remove(beside)
                raise GraftError(f"{payload.path} is not what the Hub has: run --tags verify")
            disk.move(beside, staged)
            with self._lock:
                self.copied += file.size
            return
        with self._held(payload):
            disk.move(payload.path, staged)
        staged.chmod(0o644)

    def _held(self, payload: Payload) -> contextlib.AbstractContextManager[None]:
        if payload.layout == "shared":
            return shared_store.held(payload.path)
        return contextlib.nullcontext()

    def release(self, file: File) -> None:
        """Let nothing in the cache name a shard that is out of it. Its bytes were moved, or were
        copied to another file system and proven there."""
        payload = self.stock(file)
        if payload and self.elsewhere(payload) and not self.other_user(payload, file):
            with self._held(payload):
                disk.remove(payload.path)
        blob = self.cache.blob(self.order.manifest.repo, file)
        store = container.real(blob)
        for name in (self.entry(file), blob):
            if name.is_symlink() and not name.exists():
                disk.remove(name)
        if store != blob and shared_store.is_payload(self.cache.root, store) and not store.exists():
            with shared_store.held(store):
                if not store.exists():
                    shared_store.remove(store)

    # ---- the rest of the checkpoint

    def others(self, touched: Iterable[str]) -> list[File]:
        """The files that the overlay leaves as they are, in the order in which they get their
        names: a folder without its configuration is no checkpoint to anybody."""
        names = set(touched)
        rest = [file for file in self.order.files if file.path not in names]

        def late(file: File) -> tuple[int, str]:
            last = 2 if file.path == CONFIG else 1 if file.path.endswith(INDEX) else 0
            return last, file.path

        return sorted(rest, key=late)

    def check_place(self, file: File) -> None:
        """Raise GraftError when something else lies where a file shall be."""
        final = self.final(file.path)
        if final.is_symlink() or not final.exists():
            return
        if disk.is_own(final) and final.stat().st_size == file.size:
            if self.recorded(file, final) is not None:
                return
            if disk.hash_file(final, file.hasher(), check=self.check) == file.etag:
                return
        raise GraftError(
            f"{final} is there and is not the checkpoint's {file.path}: move it away, nothing of "
            "others is overwritten"
        )

    def put(self, file: File) -> Held:
        """Give an untouched file its name beside the grafted ones: a link to a shard, a copy of
        anything small."""
        final, payload = self.final(file.path), self.stock(file)
        if payload is None:
            raise GraftError(f"{self.entry(file)} vanished meanwhile: run --tags download")
        beside = disk.beside(self.staged(file.path))
        if file.path.endswith(SHARD):
            if not disk.is_own(final):
                disk.link(final, self._link_text(payload, final), beside)
            return self.prove_stock(file, final)
        if disk.is_own(final):
            if held := self.recorded(file, final):
                return held
            if disk.hash_file(final, file.hasher(), check=self.check) == file.etag:
                final.chmod(0o644)
                return held_now(file, final, "read", file.etag)
        hasher = file.hasher()
        disk.copy(payload.path, beside, hasher, check=self.check)
        if hasher.hexdigest() != file.etag:
            raise GraftError(f"{payload.path} is not what the Hub has: run --tags verify")
        disk.move(beside, final)
        return held_now(file, final, "written", file.etag)

    def _link_text(self, payload: Payload, final: Path) -> str:
        disk.make(final.parent)
        return container.link_text(payload.path, final.parent, self.root)

    # ---- several at once

    def each(self, files: Sequence[File], work: Callable[[File], T]) -> dict[str, T]:
        """The work for each file, the biggest first; the first failure ends all of it."""
        ordered = sorted(files, key=lambda file: (-file.size, file.path))
        if self.threads == 1:
            return {file.path: work(file) for file in ordered}

        def guarded(file: File) -> T:
            try:
                self.check()
                return work(file)
            except BaseException:
                self._abandoned.set()
                raise

        with ThreadPoolExecutor(self.threads, "graft") as pool:
            futures = {file.path: pool.submit(guarded, file) for file in ordered}
        troubles = [found for one in futures.values() if (found := one.exception())]
        for trouble in sorted(troubles, key=lambda one: isinstance(one, _AbandonedError)):
            raise trouble
        return {path: future.result() for path, future in futures.items()}


def held_now(file: File, where: Path, how: str, digest: str) -> Held:
    """What is recorded of a file that was proven just now; `digest` is its sha256 or, of a file
    that the Hub names by git's hash, that one."""
    found = stat_of(where)
    if found is None:
        raise JobFailedError(f"{where} was taken away while it was proven", {})
    return Held(
        size=found.size,
        mtime_ns=found.mtime_ns,
        inode=found.inode,
        verified_at=time.time(),
        how=how,
        sha256=digest if file.sha256 else "",
        git_sha1="" if file.sha256 else digest,
    )


def some(paths: Iterable[str]) -> str:
    """A few of them, and how many more there are."""
    known = sorted(paths)
    more = len(known) - _TOLD
    return ", ".join(known[:_TOLD]) + (f" and {more} more" if more > 0 else "")
