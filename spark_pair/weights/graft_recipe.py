"""Putting an overlay into a checkpoint the recipe's way: its own tools write the shards anew.

It is the way for an overlay whose tensors are of other types or shapes than the checkpoint's. The
overlay's script makes a new folder, then the recipe's step gives the tensors the types that the
engine cuts from; both run in the engine's image. Nothing is converted here. What comes out is
proven instead: every tensor of another name has the checkpoint's bytes, every one of the overlay's
has the checkpoint's type and shape, and the overlay's bytes where both have the same type.

Commands are templates. In braces stand, as the container sees them, {src} the checkpoint's folder,
{sidecar} the overlay's file of tensors, {script} the program beside it, {dst} the new folder and
{recipe} the recipe's checkout.

The script copies the index of a cache, which may be read-only, over a copy that it has made before,
and ends with a PermissionError when all shards are written. Then the files are made
writable, the index is put there, and the work goes on with the shards that are whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..jobs.shapes import JobFailedError
from . import container, graft_state
from . import graft_disk as disk
from .container import Container, Mount
from .graft import end_tools, find_sidecar, sweep
from .graft_bench import CONTAINER, Bench, held_now, some
from .graft_plan import GraftError, check_count, homes, unlike
from .graft_state import NEW, GraftState, Phase, Shard
from .manifest import File
from .provenance import Held
from .safetensors_header import Header, HeaderError, Tensor, read_header

_RECIPE = "/recipe"
_SCRIPT = ".py"
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class _Compared:
    """What a reading of a shard that was written anew has shown."""

    sha256: str
    wrong: tuple[str, ...]
    """Tensors with other bytes than they must have."""


class ByRecipe:
    """One run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._order = bench.order
        self._state = graft_state.read(bench.derived)
        self._new = bench.derived / NEW
        self._files = {file.path: file for file in self._order.files}
        self._sidecar = Path()
        self._stock: dict[str, Header] = {}
        self._overlay = Header(0, {})
        self._homes: dict[str, str] = {}

    def run(self) -> tuple[dict[str, Held], tuple[str, ...], Mapping[str, Any]]:
        """The same as `InPlace.run`."""
        end_tools(self._bench)
        unlike_ones = self._look()
        touched = [self._files[path] for path in sorted(set(self._homes.values()))]
        held = {file.path: one for file in touched if (one := self._bench.grafted(file))}
        todo = [file for file in touched if file.path not in held]
        others = self._bench.others(file.path for file in touched)
        self._check_before(touched, todo, others, needs_types=bool(unlike_ones))
        if todo:
            self._note(Phase.GRAFTING, touched)
            if not self._all_final(todo):
                self._write(todo)
            total = sum(file.size for file in todo)
            self._bench.reporter.step("graft checkpoint: prove what was written", total)
            held |= self._bench.each(todo, self._prove)
        held |= {file.path: self._bench.put(file) for file in others}
        self._keep_extras()
        if todo or self._state is None or self._state.unfinished:
            self._note(Phase.GRAFTED, touched)
        sweep(self._bench)
        data = {
            "tensors": len(self._homes),
            "shards": len(touched),
            "grafted": [file.path for file in todo],
            "uncompared": len(unlike_ones),
            "overwritten": sum(file.size for file in todo),
            "copied": 0,
            "read": 2 * sum(file.size for file in todo),
        }
        return held, tuple(file.path for file in touched), data

    # ---- before anything is touched

    def _look(self) -> list[str]:
        """Read all headers; tensors of the overlay of another type or shape, in words."""
        self._sidecar = find_sidecar(self._bench)
        self._overlay = read_header(self._sidecar)
        check_count(self._overlay, self._order.tensors)
        missing = [file.path for file in self._order.files if self._bench.stock(file) is None]
        if missing:
            raise GraftError(f"{some(missing)} of the checkpoint is not in the cache: run --tags "
                             "download")  # fmt: skip
        self._stock = {file.path: read_header(self._source(file)) for file in self._order.shards}
        self._homes = homes(self._stock, self._overlay)
        return unlike(self._stock, self._overlay, self._homes)

    def _source(self, file: File) -> Path:
        payload = self._bench.stock(file)
        if payload is None:
            raise GraftError(f"{file.path} vanished from the cache: run --tags download")
        return payload.path

    def _check_before(
        self, touched: list[File], todo: list[File], others: list[File], *, needs_types: bool
    ) -> None:
        if self._state is not None and self._state.method == "in_place":
            raise GraftError(
                f"{self._bench.derived} holds a graft that was made in place; leave "
                "ablit_graft_method at in_place, or take that graft out first "
                "(ablit_graft_enabled: false)"
            )
        if self._state is None and any(disk.is_own(self._bench.final(one.path)) for one in todo):
            raise GraftError(
                f"{self._bench.folder} holds shards that are not of this graft: move it away, "
                "nothing of others is overwritten"
            )
        for file in others:
            self._bench.check_place(file)
        for file in (*touched, *others):
            self._bench.prove_stock(file, self._source(file))
        need = sum(file.size for file in todo if not disk.is_own(self._new / file.path))
        disk.check_room(self._bench.derived, need, self._order.floor_bytes)
        command = [*self._order.command]
        if needs_types:
            # Without it the tools would run for an hour before that is found.
            if not self._order.dtypes_command:
                raise GraftError(
                    "the overlay's tensors are of other types than the checkpoint's, and "
                    "ablit_graft_dtypes_command, which would change that, is empty"
                )
            command += self._order.dtypes_command
        self._check_recipe(command)
        if any("{script}" in word for word in command) and self._script is None:
            raise GraftError("the overlay has no program beside its tensors: set "
                             "ablit_graft_command")  # fmt: skip

    def _check_recipe(self, command: Sequence[str]) -> None:
        """Raise GraftError unless what the commands take from the recipe's checkout is there.

        Docker would make a folder that is missing, as root, in the place of what comes there later.
        """
        wanted = [word for word in command if "{recipe}" in word]
        recipe = self._order.recipe
        if wanted and recipe is None:
            raise GraftError(
                "the commands of the recipe's way need its checkout: set ablit_graft_recipe"
            )
        for word in wanted:
            path = Path(word.replace("{recipe}", str(recipe)))
            if word.startswith("{recipe}") and not os.access(path, os.R_OK):
                raise GraftError(
                    f"{path} is not there, or may not be read by the account: clone the recipe "
                    "where it may, and set ablit_graft_recipe to that folder"
                )

    @property
    def _script(self) -> File | None:
        found = [file for file in self._order.sidecar_files if file.path.endswith(_SCRIPT)]
        return found[0] if len(found) == 1 else None

    # ---- the recipe's tools

    def _write(self, todo: list[File]) -> None:
        """Let the tools write what is not there yet; all shards are whole afterwards."""
        if not self._all_whole(todo):
            # A folder that was begun is made anew: half of it may be of nobody knows what.
            if self._new.is_dir():
                shutil.rmtree(self._new)
            ended = self._run(self._order.command, "graft checkpoint with the overlay's script")
            if not self._all_whole(todo):
                raise JobFailedError(
                    f"the overlay's script ended with exit code {ended.code} before all shards "
                    f"were written: {ended.words()}",
                    {"exit": ended.code},
                )
        self._mend()
        if all(self._is_stock_like(file) for file in todo):
            return
        if not self._order.dtypes_command:
            raise JobFailedError(
                f"the script has written tensors of other types than the checkpoint's to "
                f"{self._new}, and ablit_graft_dtypes_command, which would change that, is empty",
                {},
            )
        ended = self._run(self._order.dtypes_command, "graft checkpoint: give it the stock types")
        left = [file.path for file in todo if not self._is_stock_like(file)]
        if left:
            raise JobFailedError(
                f"after the step that gives the stock types {some(left)} still has others, or is "
                f"not whole; it ended with exit code {ended.code}: {ended.words()}",
                {"exit": ended.code},
            )

    def _mend(self) -> None:
        """Make what the script wrote writable, and put the small files there that it missed."""
        for path in self._new.rglob("*"):
            # A file with a second name is a blob of the cache, whose mode is none of ours.
            if disk.is_own(path) and path.stat().st_nlink == 1:
                path.chmod(path.stat().st_mode | 0o600)
        for file in self._order.files:
            path = self._new / file.path
            if file.path not in self._stock and not path.exists():
                disk.copy(self._source(file), path, file.hasher(), check=self._bench.check)

    def _run(self, command: Sequence[str], words: str) -> container.Ended:
        order, root = self._order, self._bench.root
        places = (self._bench.cache.root, self._bench.derived)
        mounts = list(container.cache_mounts(root, places, writable=True))
        seen = {
            "src": container.inside(mounts, order.snapshot),
            "dst": container.inside(mounts, self._new),
        }
        manifest = order.sidecar_manifest
        if manifest is not None:
            beside = self._bench.cache.snapshot(manifest.repo, manifest.commit)
            for name, file in (("sidecar", order.sidecar), ("script", self._script)):
                if file is not None:
                    seen[name] = container.inside(mounts, beside / file.path)
        if order.recipe is not None:
            mounts.append(Mount(container.real(order.recipe), _RECIPE))
            seen["recipe"] = _RECIPE
        self._bench.reporter.step(words)
        return container.carry_out(
            Container(
                name=CONTAINER,
                image=order.image,
                command=tuple(_filled(word, seen) for word in command),
                mounts=tuple(mounts),
                memory_bytes=order.memory_bytes,
            ),
            self._bench.reporter,
            lambda line: self._bench.reporter.step(f"{words}: {line}" if line else words),
            self._bench.check_writing,
        )

    # ---- what came out

    def _written(self, file: File) -> Path | None:
        places = (self._bench.final(file.path), self._new / file.path)
        return next((path for path in places if disk.is_own(path)), None)

    def _header(self, file: File) -> Header | None:
        path = self._written(file)
        try:
            return read_header(path) if path else None
        except HeaderError:
            return None

    def _all_whole(self, files: Sequence[File]) -> bool:
        """Whether each shard was written to its end, with all the checkpoint's tensors in it."""
        return all(
            (header := self._header(file)) is not None
            and header.tensors.keys() == self._stock[file.path].tensors.keys()
            and self._carries(file, header)
            for file in files
        )

    def _carries(self, file: File, header: Header) -> bool:
        """Whether each of the overlay's tensors is of the overlay's type or of the stock's."""
        stock = self._stock[file.path].tensors
        return all(
            header.tensors[key].fits(self._overlay.tensors[key])
            or header.tensors[key].fits(stock[key])
            for key in self._keys(file)
        )

    def _keys(self, file: File) -> list[str]:
        return [key for key, path in self._homes.items() if path == file.path]

    def _is_stock_like(self, file: File) -> bool:
        """Whether all tensors of a written shard have the checkpoint's types and shapes."""
        header, stock = self._header(file), self._stock[file.path].tensors
        if header is None or header.tensors.keys() != stock.keys():
            return False
        return all(tensor.fits(stock[key]) for key, tensor in header.tensors.items())

    def _all_final(self, files: Sequence[File]) -> bool:
        return all(self._is_stock_like(file) for file in files)

    def _prove(self, file: File) -> Held:
        bench, path = self._bench, self._written(file)
        if path is None:
            raise JobFailedError(f"{self._new / file.path} was taken away meanwhile", {})
        if path.samefile(self._source(file)):
            raise JobFailedError(
                f"{path} is the cache's own {file.path} by another name, so the script may have "
                "written to the Hub's bytes: run --tags verify, then --tags download",
                {"shard": file.path},
            )
        found = self._compare(path, file)
        if found.wrong:
            disk.remove(path)
            raise JobFailedError(
                f"{file.path} as the script wrote it has other bytes of {some(found.wrong)} than "
                "it must have: it was removed; run it again, which writes it anew",
                {"shard": file.path},
            )
        if path != bench.final(file.path):
            path.chmod(0o644)
            graft_state.flush(path)
            disk.move(path, bench.final(file.path))
        return held_now(file, bench.final(file.path), "read", found.sha256)

    def _compare(self, path: Path, file: File) -> _Compared:
        """Read a written shard once, and beside it what each tensor must be."""
        header, stock = read_header(path), self._stock[file.path].tensors
        hasher = hashlib.sha256()
        wrong: dict[str, None] = {}
        with (
            path.open("rb") as new,
            self._source(file).open("rb") as old,
            self._sidecar.open("rb") as overlay,
        ):
            for handle in (new.fileno(), old.fileno()):
                disk.forget_cached(handle)
            at = min((one.start for one in header.tensors.values()), default=header.size)
            hasher.update(disk.read_at(new.fileno(), at, 0))
            for key, tensor in sorted(header.tensors.items(), key=lambda one: one[1].start):
                right: tuple[int, Tensor] | None = (old.fileno(), stock[key])
                if key in self._overlay.tensors:
                    mine = self._overlay.tensors[key]
                    right = (overlay.fileno(), mine) if mine.fits(tensor) else None
                for start, count in _blocks(tensor):
                    self._bench.check()
                    block = disk.read_at(new.fileno(), count, start)
                    hasher.update(block)
                    if right is not None:
                        there = right[1].start + start - tensor.start
                        if disk.read_at(right[0], count, there) != block:
                            wrong[key] = None
                        disk.drop(right[0], there, count)
                    disk.drop(new.fileno(), start, count)
                    self._bench.reporter.advance(count)
        return _Compared(hasher.hexdigest(), tuple(wrong))

    # ---- the end

    def _keep_extras(self) -> None:
        """What the script has made besides goes along, and its folder goes away."""
        if not self._new.is_dir():
            return
        known = {file.path for file in self._order.manifest.files}
        for path in sorted(self._new.rglob("*")):
            place = str(path.relative_to(self._new))
            if disk.is_own(path) and place not in known and path.stat().st_nlink == 1:
                final = self._bench.final(place)
                if not os.path.lexists(final):
                    disk.move(path, final)
        shutil.rmtree(self._new)

    def _note(self, phase: Phase, touched: Sequence[File]) -> None:
        order = self._order
        shards = {file.path: Shard(file.size, file.etag) for file in touched}
        state = GraftState(
            order.manifest.repo, order.manifest.commit, order.overlay, "recipe", phase, shards
        )
        graft_state.write(self._bench.derived, state)


def _blocks(tensor: Tensor) -> Iterator[tuple[int, int]]:
    end = tensor.start + tensor.size
    for start in range(tensor.start, end, disk.BLOCK_BYTES):
        yield start, min(disk.BLOCK_BYTES, end - start)


def _filled(word: str, seen: Mapping[str, str]) -> str:
    """A word of a command with its places filled in. GraftError for one that is not known."""

    def fill(found: re.Match[str]) -> str:
        if found[1] not in seen:
            raise GraftError(f"{{{found[1]}}} in {word!r} stands for nothing here")
        return seen[found[1]]

    return _PLACE.sub(fill, word)
