"""Putting an overlay into a checkpoint by overwriting the bytes that it replaces.

Nothing is touched before everything is known to be there, proven, and to fit. Then, shard by shard:
out of the cache, what will be replaced into an undo file, the overlay's bytes over it, one reading
that proves all of it, and only then the name under which a server looks for it. Each of these can
be cut short at any byte, and the next run finds out where it was from what lies on the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..jobs.shapes import JobFailedError
from . import container, graft_state, graft_undo
from . import graft_disk as disk
from .graft_bench import CONTAINER, Bench, held_now, some
from .graft_order import GraftOrder
from .graft_plan import Change, GraftError, GraftPlan, plan
from .graft_proof import Proven, fits, prove
from .graft_state import GraftState, Phase, Shard
from .manifest import File
from .provenance import SHARD, Held
from .safetensors_header import Header, HeaderError, read_header


class InPlace:
    """One run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._order: GraftOrder = bench.order
        self._state = graft_state.read(bench.derived)
        self._sidecar = Path()
        self._plan = GraftPlan({})
        self._files = {file.path: file for file in self._order.files}

    def run(self) -> tuple[dict[str, Held], tuple[str, ...], Mapping[str, Any]]:
        """Graft what is not grafted yet; what is proven of every file, the paths of the shards that
        carry the overlay, and figures. Raises GraftError while nothing is touched, JobFailedError,
        JobStoppedError, OSError."""
        self._sidecar = find_sidecar(self._bench)
        headers = self._headers()
        self._plan = plan(headers, read_header(self._sidecar), self._order.tensors)
        held = {path: held for path in self._plan.shards if (held := self._done(path))}
        todo = [self._files[path] for path in self._plan.shards if path not in held]
        others = self._bench.others(self._plan.shards)
        self._check_before(todo, others)
        written = self._plan_bytes(todo)
        if todo:
            if self._state is not None and self._state.method != "in_place":
                clear_new(self._bench)
            self._note(Phase.GRAFTING)
            total = sum(file.size for file in todo) + written
            self._bench.reporter.step("graft checkpoint", total)
            sidecar = os.open(self._sidecar, os.O_RDONLY)
            try:
                held |= self._bench.each(todo, lambda file: self._graft(file, sidecar))
            finally:
                os.close(sidecar)
        held |= {file.path: self._bench.put(file) for file in others}
        if todo or self._state is None or self._state.unfinished:
            graft_state.flush(self._bench.folder)
            self._note(Phase.GRAFTED)
        sweep(self._bench)
        data = {
            "tensors": self._plan.tensors,
            "shards": len(self._plan.shards),
            "grafted": [file.path for file in todo],
            "overwritten": written,
            "copied": self._bench.copied,
            "read": sum(file.size for file in todo),
        }
        return held, tuple(sorted(self._plan.shards)), data

    def _plan_bytes(self, todo: list[File]) -> int:
        return sum(change.size for file in todo for change in self._plan.shards[file.path])

    # ---- before anything is touched

    def _headers(self) -> dict[str, Header]:
        """The headers of all shards, wherever they lie. GraftError when some are nowhere."""
        places = {file.path: self._place(file) for file in self._order.shards}
        missing = [path for path, place in places.items() if place is None]
        missing += [
            file.path
            for file in self._order.files
            if file.path not in places and self._bench.stock(file) is None
        ]
        if missing:
            raise GraftError(
                f"{some(missing)} of the checkpoint cannot be found: run --tags download"
            )
        return {path: self._header(place) for path, place in places.items() if place}

    def _header(self, place: Path) -> Header:
        try:
            return read_header(place)
        except HeaderError as error:
            if not place.is_relative_to(self._bench.folder):
                raise GraftError(f"{error}: take {place} away and run --tags download") from None
            raise GraftError(
                f"{place} is there and is no shard of the checkpoint: move it away, nothing of "
                "others is overwritten"
            ) from None

    def _place(self, file: File) -> Path | None:
        for path in (self._bench.final(file.path), self._bench.staged(file.path)):
            if disk.is_own(path):
                return path
        payload = self._bench.stock(file)
        return payload.path if payload else None

    def _done(self, path: str) -> Held | None:
        """What the record says of a shard that is grafted, with its undo file beside it."""
        file = self._files[path]
        final = self._bench.final(path)
        if not disk.is_own(final) or not disk.is_own(self._bench.undo(path)):
            return None
        return self._bench.grafted(file)

    def _check_before(self, todo: list[File], others: list[File]) -> None:
        self._check_state()
        room = sum(file.size for file in others if not file.path.endswith(SHARD))
        for file in todo:
            room += self._check_shard(file)
        for file in others:
            payload = self._bench.stock(file)
            if payload is None:
                raise GraftError(f"{file.path} of the checkpoint is not in the cache")
            self._bench.check_place(file)
            self._bench.prove_stock(file, payload.path)
        if todo:
            disk.check_room(self._bench.derived, room, self._order.floor_bytes)

    def _check_state(self) -> None:
        """What an earlier graft left must be of this kind."""
        state = self._state
        if state is None:
            return
        mine = (self._order.manifest.repo, self._order.manifest.commit, self._order.overlay)
        if (state.repo, state.checkpoint, state.overlay) != mine:
            raise GraftError(
                f"{self._bench.derived} belongs to a graft of {state.repo} at "
                f"{state.checkpoint[:8]} with {state.overlay[:8]}: move it away"
            )
        if state.method != "in_place" and state.phase is not Phase.GRAFTING:
            raise GraftError(
                f"{self._bench.folder} was made with ablit_graft_method: {state.method}; leave it "
                "so, or take that graft out first (ablit_graft_enabled: false)"
            )

    def _check_shard(self, file: File) -> int:
        """Bytes that are written for a shard besides its own. GraftError."""
        bench, path = self._bench, file.path
        final, kept = bench.final(path), graft_undo.load(bench.undo(path), file)
        if kept is not None and not fits(kept, self._plan.shards[path]):
            raise GraftError(f"{kept.path} keeps other bytes than the overlay replaces")
        need = 0 if kept else sum(change.size for change in self._plan.shards[path])
        if disk.is_own(final) and kept is None:
            raise GraftError(
                f"{final} is there and nothing tells how to put it back, so it is none of this "
                "graft's: move it away, nothing of others is overwritten"
            )
        if disk.is_own(final) or disk.is_own(bench.staged(path)):
            return need
        payload = bench.stock(file)
        if payload is None:
            raise GraftError(f"{path} of the checkpoint is not in the cache: run --tags download")
        bench.check_owner(payload)
        bench.prove_stock(file, payload.path)
        return need + (file.size if bench.must_copy(payload, file) else 0)

    def _note(self, phase: Phase) -> None:
        order = self._order
        shards = {
            path: Shard(self._files[path].size, self._files[path].etag)
            for path in self._plan.shards
        }
        state = GraftState(
            order.manifest.repo, order.manifest.commit, order.overlay, "in_place", phase, shards
        )
        graft_state.write(self._bench.derived, state)

    # ---- one shard

    def _graft(self, file: File, sidecar: int) -> Held:
        bench, changes = self._bench, self._plan.shards[file.path]
        final, staged = bench.final(file.path), bench.staged(file.path)
        undo = graft_undo.load(bench.undo(file.path), file)
        size = sum(change.size for change in changes)
        if disk.is_own(final):
            if undo is not None:
                proven = self._read(final, file, undo, sidecar)
                if not _trouble(proven, file):
                    bench.reporter.advance(size)
                    bench.release(file)
                    return held_now(file, final, "read", proven.sha256)
                bench.reporter.advance(-file.size)
            disk.move(final, staged)
        elif not disk.is_own(staged):
            bench.take(file)
        bench.release(file)
        if undo is None:
            disk.check_room(bench.derived, size, self._order.floor_bytes)
            undo = graft_undo.save(
                bench.undo(file.path), staged, file, changes, bench.check_writing
            )
        overwrite(staged, changes, sidecar, bench.check, bench.reporter.advance)
        proven = self._read(staged, file, undo, sidecar)
        if trouble := _trouble(proven, file):
            if not proven.differing:
                disk.remove(staged)
                disk.remove(undo.path)
            raise JobFailedError(trouble, {"shard": file.path})
        disk.move(staged, final)
        return held_now(file, final, "read", proven.sha256)

    def _read(self, shard: Path, file: File, undo: graft_undo.Undo, sidecar: int) -> Proven:
        return prove(
            shard,
            self._plan.shards[file.path],
            undo,
            sidecar,
            check=self._bench.check,
            advance=self._bench.reporter.advance,
        )


def end_tools(bench: Bench) -> None:
    """End a container of an earlier run, which may still write. ContainerError."""
    if (bench.derived / graft_state.NEW).is_dir():
        container.remove(container.Container(CONTAINER, "", (), ()))


def clear_new(bench: Bench) -> None:
    """Take away what the recipe's tools have begun."""
    end_tools(bench)
    shutil.rmtree(bench.derived / graft_state.NEW, ignore_errors=True)


def find_sidecar(bench: Bench) -> Path:
    """The overlay's file of tensors, proven. GraftError."""
    order = bench.order
    file, manifest = order.sidecar, order.sidecar_manifest
    if file is None or manifest is None:
        raise GraftError("the order names no file with the overlay's tensors")
    payload = bench.cache.locate(manifest.repo, manifest.commit, file)
    if payload is None:
        raise GraftError(f"the overlay's {file.path} is not in the cache: run --tags download")
    if disk.hash_file(payload.path, file.hasher(), check=bench.check) != file.etag:
        raise GraftError(
            f"{payload.path} is not what the Hub has: take it away and run --tags download"
        )
    return payload.path


def overwrite(
    shard: Path,
    changes: tuple[Change, ...],
    sidecar: int,
    check: disk.Check,
    advance: disk.Advance,
) -> None:
    """Write the overlay's tensors over a shard's own; on the disk when this returns."""
    with os.fdopen(disk.open_to_write(shard), "r+b", buffering=0) as stream:
        for change in changes:
            for done in range(0, change.size, disk.WRITE_BYTES):
                check()
                count = min(disk.WRITE_BYTES, change.size - done)
                block = disk.read_at(sidecar, count, change.source + done)
                disk.write_at(stream.fileno(), block, change.start + done)
                advance(count)
        os.fsync(stream.fileno())


def _trouble(proven: Proven, file: File) -> str:
    """What a reading has shown to be wrong, in words; "" for nothing."""
    if proven.differing:
        return (
            f"{file.path}: {some(proven.differing)} cannot be read back as written; look at "
            "'journalctl -k', the disk may be failing, and run it again"
        )
    if proven.stock_sha256 != file.sha256:
        return (
            f"{file.path} differs from the Hub's also where the overlay is not, so it was damaged "
            "before: it was removed; --tags download brings it again, then run this again"
        )
    return ""


def sweep(bench: Bench) -> None:
    """Take away what a run that was cut short has left half-written, and folders that are empty."""
    for folder in (bench.derived / graft_state.STAGING, bench.derived / graft_state.UNDO):
        for path in folder.rglob(".*"):
            if path.name.endswith(disk.UNFINISHED):
                disk.remove(path)
        disk.remove_empty(folder)
