"""The programs that bring an image to the other machine: one writes it to an archive, one fetches
that and takes the image out of it.

The archive stays where it is until the image is there: Docker need not write the same bytes twice,
and a transfer that was cut off goes on only with the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from .. import jsonfile
from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from ..system import Runner, run_plainly
from ..weights.manifest import File
from ..weights.offer import Line, Request, new_secret
from ..weights.peer_offer import Command, over_ssh
from ..weights.provenance import Stat, stat_of
from ..weights.transfer import Found, Patience, Read, carry
from .build_job import docker_root, free_bytes
from .identity import Image, also_called, inspect
from .order import ExportOrder, FetchOrder
from .program import run

_SCHEMA = 1
_NOTE = "archive.json"
_READ_BYTES = 4 << 20
_FLUSH_BYTES = 64 << 20
_DOCKER_SECONDS = 60.0


def export(
    order: ExportOrder, reporter: Reporter, *, runner: Runner = run_plainly
) -> tuple[str, Mapping[str, Any]]:
    """Write the image of an order to an archive, unless that is there; its name, size and sha256.

    Raises JobFailedError, or JobStoppedError after a stop; half an archive is never left.
    """
    reporter.step(f"write {order.image} to an archive")
    found = inspect(order.image, runner)
    if found is None or found.identity != order.identity:
        _fail(f"{order.image} is not the image any more that was to be sent: run again")
    there = _noted(order)
    if there is None:
        there = _write(order, found, reporter)
    words = f"{order.image} is in an archive of {job_words.size(int(there['size']))}"
    return words, {key: there[key] for key in ("path", "size", "sha256")}


def _noted(order: ExportOrder) -> Mapping[str, Any] | None:
    """The archive of an earlier run, when it is whole and of the same image."""
    note = jsonfile.read_guarded(order.folder / _NOTE)
    if not isinstance(note, dict) or note.get("schema") != _SCHEMA:
        return None
    path = order.folder / f"{order.identity}.tar"
    found = stat_of(path)
    same = note.get("path") == path.name and note.get("image") == order.image
    if not same or found is None or note.get("stat") != _stat(found):
        return None
    return note


def _write(order: ExportOrder, image: Image, reporter: Reporter) -> Mapping[str, Any]:
    shutil.rmtree(order.folder, ignore_errors=True)
    need, free = image.size + order.floor_bytes, free_bytes(order.folder)
    if free < need:
        _fail(
            f"the archive would need {job_words.size(need)} on the disk of {order.folder}, what "
            f"stays free included, and {job_words.size(free)} are free: make room and run it again"
        )
    order.folder.mkdir(parents=True)
    path = order.folder / f"{order.identity}.tar"
    partial = path.with_suffix(".new")
    reporter.step(f"write {order.image} to an archive", image.size or None)
    try:
        digest = _save(order, partial, reporter)
        partial.replace(path)
    except BaseException:
        shutil.rmtree(order.folder, ignore_errors=True)
        raise
    found = stat_of(path)
    note = {
        "schema": _SCHEMA,
        "path": path.name,
        "image": order.image,
        "size": found.size if found else 0,
        "sha256": digest,
        "stat": _stat(found) if found else None,
    }
    jsonfile.write(order.folder / _NOTE, note)
    return note


def _save(order: ExportOrder, path: Path, reporter: Reporter) -> str:
    """Let Docker write the archive through this process, which hashes it; its sha256."""
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            ["docker", "save", order.image],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        ) as process,
    ):
        try:
            if process.stdout is None:
                _fail("docker save cannot be read")
            digest = _pour(process.stdout, path, reporter, order.floor_bytes)
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        said.seek(0)
        if code:
            words = said.read(1 << 16).decode("utf-8", "replace").strip()
            _fail(f"Docker does not write {order.image} to an archive: {words or f'code {code}'}")
    return digest


def _pour(source: IO[bytes], path: Path, reporter: Reporter, floor: int) -> str:
    digest, done, flushed = hashlib.sha256(), 0, 0
    with path.open("wb", buffering=0) as target:
        while data := source.read(_READ_BYTES):
            reporter.check()
            target.write(data)
            digest.update(data)
            done += len(data)
            reporter.advance(len(data))
            if done - flushed >= _FLUSH_BYTES:
                # What serves on this machine has better use for the memory.
                os.fdatasync(target.fileno())
                os.posix_fadvise(target.fileno(), flushed, done - flushed, os.POSIX_FADV_DONTNEED)
                flushed = done
                if free_bytes(path.parent) < floor:
                    _fail(
                        f"the disk of {path.parent} has less than {job_words.size(floor)} left, so "
                        "the archive was given up: make room and run it again"
                    )
        os.fsync(target.fileno())
        os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _stat(found: Stat) -> list[int]:
    return [found.size, found.mtime_ns, found.inode]


# ---- the other machine --------------------------------------------------------------------------


def fetch(
    order: FetchOrder,
    reporter: Reporter,
    *,
    runner: Runner = run_plainly,
    command: Command = over_ssh,
    patience: Patience | None = None,
) -> tuple[str, Mapping[str, Any]]:
    """Bring the archive of an order over, load it, and see that it holds the image.

    Raises JobFailedError, or JobStoppedError after a stop: what came of the archive is kept then.
    """
    reporter.step(f"fetch {order.image}", order.archive.size)
    before = inspect(order.image, runner)
    if before is not None and before.identity == order.identity:
        _sweep(order.folder)
        return f"{order.image} is there already", {"identity": before.identity}
    _check_room(order, runner)
    target = InScratch(order)
    result = carry(
        order.way,
        target,
        progress=lambda one: reporter.show(f"fetch {order.image}", one.total, one.done, one.rate),
        stop=reporter.stop_asked,
        floor_bytes=order.floor_bytes,
        patience=patience,
        command=command,
    )
    if not result.whole:
        reporter.check()
        _fail(" ".join(result.problems))
    _load(order, before, reporter, runner)
    after = inspect(order.image, runner)
    if after is None or after.identity != order.identity:
        found = f"{after.identity[:12]}…" if after else "no image of that name"
        _fail(
            f"the archive came as it was written, but Docker made {found} of it and not "
            f"{order.identity[:12]}…: are both machines' Docker of the same release?"
        )
    _sweep(order.folder)
    came = job_words.size(result.payload) if result.payload else "nothing"
    words = f"{order.image} is there and the same as on {order.way.peer.name}, {came} came over"
    return words, {"identity": after.identity, "payload_bytes": result.payload}


def _check_room(order: FetchOrder, runner: Runner) -> None:
    """The archive and what Docker makes of it lie beside each other for a while."""
    docker, scratch = docker_root(runner), order.folder
    there = sum(path.stat().st_size for path in scratch.glob("*") if path.is_file())
    size = order.archive.size
    needs = {docker: size, scratch: max(0, size - there)}
    if _device(docker) == _device(scratch):
        needs = {docker: size + needs[scratch]}
    for folder, need in needs.items():
        free = free_bytes(folder)
        if free < need + order.floor_bytes:
            _fail(
                f"{order.image} would need {job_words.size(need + order.floor_bytes)} on the disk "
                f"of {folder}, what stays free included, and {job_words.size(free)} are free: make "
                "room and run it again"
            )


def _device(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.stat().st_dev


def _load(order: FetchOrder, before: Image | None, reporter: Reporter, runner: Runner) -> None:
    reporter.step(f"load {order.image}")
    if before is not None:
        # The archive takes the name over, and an image without one is soon pruned by somebody.
        kept = also_called(order.image, before.identity)
        done = runner(["docker", "image", "tag", order.image, kept], _DOCKER_SECONDS)
        if not done.ok:
            _fail(f"the present {order.image} cannot be kept as {kept}: {done.last_words(1)}")
    argv = ["docker", "load", "--quiet", "--input", str(order.folder / order.archive.path)]
    ended = run(argv, reporter)
    if not ended.ok:
        _fail(f"Docker does not load the archive of {order.image}: {ended.words()}")


def _sweep(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


class InScratch:
    """The archive in a folder of its own; see transfer.Target."""

    def __init__(self, order: FetchOrder) -> None:
        self._order = order
        self.staging = order.folder
        self.staging.mkdir(parents=True, exist_ok=True)
        wanted = order.archive.etag
        for path in self.staging.iterdir():
            # Of another image, which nobody goes on with.
            if not path.name.lstrip(".").startswith((wanted, order.archive.path)):
                path.unlink(missing_ok=True) if path.is_file() else shutil.rmtree(path)

    @property
    def files(self) -> tuple[File, ...]:
        return (self._order.archive,)

    def request(self, files: Any) -> Request:
        way = self._order.way
        return Request(
            secret=new_secret(),
            # Over ssh nobody has to listen.
            lines=()
            if way.transport == "ssh"
            else tuple(Line(listen=rail.peer, allow=rail.here) for rail in way.rails),
            ports=way.ports,
            home=way.peer.home,
            repo="",
            commit="",
            files=tuple(files),
            folder=self._order.origin,
        )

    def find(self, file: File, read: Read) -> Found | None:
        path = self.staging / file.path
        if not path.is_file() or path.is_symlink():
            return None
        if path.stat().st_size == file.size and (proven := read(file, path)):
            return Found(path, proven)
        path.unlink()
        return None

    def place(self, file: File, staged: Path) -> Path:
        path = self.staging / file.path
        staged.replace(path)
        return path

    def again(self, file: File) -> Path:
        return self.staging / file.path

    def finish(self) -> None:
        pass


def _fail(words: str) -> NoReturn:
    raise JobFailedError(words, {})
