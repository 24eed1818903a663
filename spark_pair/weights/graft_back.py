"""Taking an overlay out of a checkpoint again, as if it had never been in it.

The kept bytes go back into each shard, the whole shard must then have the Hub's own hash, and only
then it is a blob of the cache again. What was made besides, links and copies of small files, is
taken away; rank files that lie there stay. Cut short at any byte, the next run finishes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..jobs.shapes import JobFailedError
from . import graft_disk as disk
from . import graft_state, graft_undo
from .cache import Payload
from .goal import KEPT
from .graft import clear_new, sweep
from .graft_bench import Bench, held_now, some
from .graft_order import GraftOrder
from .graft_plan import GraftError
from .graft_state import Phase
from .manifest import File
from .provenance import SHARD, Held


class Back:
    """One run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._order: GraftOrder = bench.order
        self._state = graft_state.read(bench.derived)

    def run(self) -> tuple[dict[str, Held], Mapping[str, Any]]:
        """Put everything back; what is proven of every file in the cache, and figures.

        Raises GraftError while nothing is touched, JobFailedError, JobStoppedError, OSError.
        """
        touched = self._touched()
        self._check_before(touched)
        if self._state is not None and self._state.phase is not Phase.UNDOING:
            self._state = replace(self._state, phase=Phase.UNDOING)
            graft_state.write(self._bench.derived, self._state)
        self._bench.reporter.step("undo graft", sum(file.size for file in touched))
        held = self._bench.each(touched, self._restore)
        data = {
            "shards": sorted(held),
            "read": sum(file.size for file in touched),
        }
        rest = [file for file in self._order.files if file.path not in held]
        missing = [file.path for file in rest if self._bench.stock(file) is None]
        if missing:
            raise JobFailedError(
                f"the overlay is out of {len(held)} shards, which are in the cache again, but "
                f"{some(missing)} of the checkpoint cannot be found: run --tags download",
                data,
            )
        held |= self._bench.each(rest, self._prove)
        return held, {**data, "kept": [str(path) for path in self._clear()]}

    def forget(self) -> None:
        """Take the note of the graft away, once everything is proven and noted."""
        sweep(self._bench)
        clear_new(self._bench)
        if self._state is not None:
            graft_state.forget(self._bench.derived)

    def _touched(self) -> list[File]:
        if self._state is None:
            # The note is lost; each undo file says by itself what it belongs to.
            every = self._order.manifest.files
            return [file for file in every if disk.is_own(self._bench.undo(file.path))]
        own = (self._order.manifest.repo, self._order.manifest.commit, self._order.overlay)
        if (self._state.repo, self._state.checkpoint, self._state.overlay) != own:
            raise GraftError(f"{self._bench.derived} belongs to another graft: move it away")
        wanted = {file.path for file in self._order.files}
        files = [self._order.manifest.file(path) for path in self._state.shards]
        return [file for file in files if file.path in wanted or self._place(file)]

    # ---- before anything is touched

    def _check_before(self, touched: list[File]) -> None:
        for file in touched:
            place = self._place(file)
            if place is None and self._bench.stock(file) is None:
                raise GraftError(
                    f"{file.path} lies neither in {self._bench.derived} nor in the cache, so the "
                    "graft cannot be undone: run --tags download, which brings it as it was"
                )
            undo = graft_undo.load(self._bench.undo(file.path), file)
            if place is not None and undo is None and not self._is_rewritten:
                self._check_untouched(place, file)

    def _check_untouched(self, place: Path, file: File) -> None:
        if disk.hash_file(place, file.hasher(), check=self._bench.check) != file.etag:
            raise GraftError(
                f"{place} carries the overlay and {self._bench.undo(file.path)}, which would undo "
                "that, is gone: move the shard away and run --tags download, which brings it as it "
                "was"
            )

    @property
    def _is_rewritten(self) -> bool:
        """Whether shards were written anew: then the cache still has the former ones."""
        return self._state is not None and self._state.method != "in_place"

    def _place(self, file: File) -> Path | None:
        bench = self._bench
        places = (bench.staged(file.path), bench.final(file.path))
        return next((path for path in places if disk.is_own(path)), None)

    # ---- one file

    def _restore(self, file: File) -> Held:
        bench = self._bench
        place, undo = self._place(file), graft_undo.load(bench.undo(file.path), file)
        if place is None or self._is_rewritten:
            held = self._prove(file)
        else:
            if place != bench.staged(file.path):
                disk.move(place, bench.staged(file.path))
            held = self._put_back(file, undo)
        # What carries the overlay goes first: without its undo file nobody could go on with it.
        for path in (bench.staged(file.path), bench.undo(file.path)):
            disk.remove(path)
        if self._is_rewritten and place is not None:
            disk.remove(place)
        return held

    def _put_back(self, file: File, undo: graft_undo.Undo | None) -> Held:
        bench, staged = self._bench, self._bench.staged(file.path)
        payload = bench.stock(file)
        if payload is not None:
            # Others use it, so a copy was grafted; or a download brought it again.
            found = disk.hash_file(payload.path, file.hasher(), check=bench.check)
            if found == file.etag:
                return self._named(file, payload, held_now(file, payload.path, "read", found))
        if undo is not None:
            graft_undo.restore(undo, staged, bench.check)
        found = disk.hash_file(
            staged, file.hasher(), check=bench.check, advance=bench.reporter.advance
        )
        if found != file.etag:
            disk.remove(staged)
            disk.remove(bench.undo(file.path))
            raise JobFailedError(
                f"{file.path} is not the Hub's with the kept bytes put back, so it was damaged "
                "before: it was removed; --tags download brings it again",
                {"shard": file.path},
            )
        self._place_in_cache(file, staged)
        return held_now(file, bench.entry(file), "read", found)

    def _place_in_cache(self, file: File, staged: Path) -> None:
        cache, manifest = self._bench.cache, self._order.manifest
        staging = cache.make_staging(manifest.repo)
        if disk.device(staging) != disk.device(staged):
            disk.check_room(staging, file.size, self._order.floor_bytes)
            hasher, beside = file.hasher(), staging / f"{file.etag}.back"
            disk.copy(staged, beside, hasher, check=self._bench.check)
            if hasher.hexdigest() != file.etag:
                raise JobFailedError(f"{staged} changed while it was copied", {})
            staged = beside
        cache.place(manifest.repo, manifest.commit, file, staged)

    def _prove(self, file: File) -> Held:
        """Know that a file in the cache is the Hub's own, and has its name in the snapshot."""
        bench = self._bench
        payload = bench.stock(file)
        if payload is None:
            raise JobFailedError(f"{file.path} vanished from the cache: run --tags download", {})
        return self._named(file, payload, bench.prove_stock(file, payload.path))

    def _named(self, file: File, payload: Payload, held: Held) -> Held:
        """The same file with its name in the snapshot."""
        if not payload.linked:
            manifest = self._order.manifest
            self._bench.cache.link(manifest.repo, manifest.commit, file)
        return held

    # ---- what was made besides

    def _clear(self) -> Iterator[Path]:
        """Take away the links and copies of the grafted checkpoint; what is none of them is left
        where it is, and told."""
        needed = self._needed_by_rank_files()
        for file in self._order.manifest.files:
            final = self._bench.final(file.path)
            if file.path in needed:
                continue
            if final.is_symlink():
                disk.remove(final)
            elif disk.is_own(final):
                if self._is_copy(final, file):
                    disk.remove(final)
                else:
                    yield final
        above = {place for file in self._order.manifest.files for place in self._above(file)}
        for folder in sorted(above, reverse=True):
            # The rank files' folder stays, even an empty one: somebody may be about to fill it.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _needed_by_rank_files(self) -> set[str]:
        """What a server reads beside its rank file: while one lies here it can be wanted again,
        and is not cut anew for that."""
        if not any(self._bench.folder.glob("rank-cache/rank[01]of2-*.bin")):
            return set()
        files = self._order.manifest.files
        return {
            file.path
            for file in files
            if not file.path.endswith(SHARD) or any(one.matches(file.path) for one in KEPT)
        }

    def _above(self, file: File) -> list[Path]:
        """The folders of a file of the grafted checkpoint."""
        final = self._bench.final(file.path)
        return [one for one in final.parents if one.is_relative_to(self._bench.folder)]

    def _is_copy(self, final: Path, file: File) -> bool:
        if final.stat().st_size != file.size or file.path.endswith(SHARD):
            return False
        return disk.hash_file(final, file.hasher(), check=self._bench.check) == file.etag
