"""The program that cuts a rank file: the recipe's own tool in its image, and what proves its work.

The tool reads the checkpoint and writes about as much as half of it. It works in a hidden folder
beside the place, `.cutting-rank<n>`; what it says about its file must agree with the file's end,
and only what was read once from the first byte to the last gets its name.

A cut that was ended by force is begun anew, since the tool knows no other way. One that was whole
by then is not: what the tool said is noted beside it, and the next run goes on with reading it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .. import jsonfile
from ..jobs import words as job_words
from ..jobs.inside import Reporter
from ..jobs.shapes import JobFailedError
from . import layout
from .container import Container, Mount, cache_mounts, carry_out, inside, real, remove
from .graft_state import flush
from .provenance import Artefact, Held, Origin, Provenance, everyday, stat_of
from .rank_file import Footer, RankFileError, rank_of, read_footer
from .record import Proof, Proofs
from .shard_order import INDEX, ShardOrder
from .verify import Disk, measure

OUT = "/out"
"""Where the tool sees the folder that it writes to."""
_NOTE = "cut.json"
_SCHEMA = 1
_PROGRESS = re.compile(r"rank (\d+) of \d+: (\d+) of (\d+) MiB")
_MIB = 2**20


@dataclass(frozen=True)
class Told:
    """What the tool says about the file that it has written."""

    name: str
    entries: int
    data_bytes: int

    @classmethod
    def of_output(cls, out: str, rank: int) -> Told | None:
        """From the line that it prints at its end; None when there is none about that rank."""
        for line in reversed(out.splitlines()):
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict) and (data.get("rank"), data.get("world")) == (rank, 2):
                return cls.from_dict(data)
        return None

    @classmethod
    def from_dict(cls, data: Any) -> Told | None:
        """None for what describes no file."""
        try:
            told = cls(Path(data["file"]).name, data["entries"], data["data_bytes"])
        except (KeyError, TypeError):
            return None
        return told if type(told.entries) is type(told.data_bytes) is int and told.name else None

    def as_dict(self) -> dict[str, Any]:
        """The part of the tool's line that is compared."""
        return {"file": self.name, "entries": self.entries, "data_bytes": self.data_bytes}


def shard(
    order: ShardOrder,
    reporter: Reporter,
    proofs: Proofs,
    provenance: Provenance,
) -> tuple[str, Mapping[str, Any]]:
    """Cut what an order names; the words and the data of the job's result.

    Raises JobFailedError when the tool fails, when its file is not what it says, or for want of
    room, ContainerError when Docker does not run it, JobStoppedError after a stop, ProofError when
    the disk took no note of the file, ProvenanceError for a record that cannot be used.
    """
    cut = _Cut(order, reporter, provenance)
    if there := cut.finished():
        return f"rank {order.rank} of {order.artefact.words} is there and recorded", there
    cut.check_source()
    cut.check_place()
    told = cut.left() or cut.run()
    footer = cut.agreed(told)
    held = cut.read(told.name, footer)
    cut.check_source()
    cut.settle(told.name, footer, held, proofs)
    proofs.check()
    words = f"rank {order.rank} of {order.artefact.words} is cut and proven: {told.name}, "
    words += f"{job_words.size(footer.size)}, {footer.entries} tensors"
    return words, {
        "file": told.name,
        "size": footer.size,
        "sha256": held.sha256,
        "entries": footer.entries,
        INDEX: footer.index_sha256,
        "note": footer.name_problem(told.name),
    }


class _Cut:
    """One cut, from what is there to the file in its place."""

    def __init__(self, order: ShardOrder, reporter: Reporter, provenance: Provenance) -> None:
        self._order, self._reporter = order, reporter
        self._folder = order.artefact.folder
        self._staging = self._folder / layout.cutting(order.rank)
        self._record = provenance.load()

    # ---- before it

    def finished(self) -> Mapping[str, Any] | None:
        """What is recorded, when the very file that is ordered is in its place already."""
        known = self._record.get(self._order.artefact.name)
        if known is None or not self._order.artefact.describes(known):
            return None
        names = self._of_this_rank()
        if len(names) != 1 or names[0] not in known.files or names[0] in self._order.wrong:
            return None
        if any(one.path == names[0] for one in everyday(known, Disk(known.folder).stat)):
            return None
        self._sweep()
        held = known.files[names[0]]
        return {"file": names[0], "size": held.size, "sha256": held.sha256}

    def check_source(self) -> None:
        """Raise JobFailedError unless the record vouches for the checkpoint as it is now."""
        model, artefact = self._order.model, self._order.artefact
        known = next(
            (
                one
                for one in self._record.values()
                if one.kind == "repository" and real(Path(one.folder)) == real(model)
            ),
            None,
        )
        if known is None or known.commit != artefact.commit:
            self._fail(f"no record speaks of the checkpoint {artefact.commit[:8]} in {model}")
        elif (known.details.get("overlay") or None) != artefact.overlay:
            self._fail(f"the checkpoint in {model} does not carry what {artefact.words} means")
        elif wrong := everyday(known, Disk(known.folder).stat):
            self._fail(f"{wrong[0]}, so what was cut from it would not be what is wanted")

    def check_place(self) -> None:
        """Raise JobFailedError when a file is in the way, or there is no room."""
        strange = [name for name in self._of_this_rank() if name not in self._order.wrong]
        if strange:
            self._fail(
                f"{self._folder} holds {strange[0]} already, which no record speaks of, and with "
                "two files of one rank the engine does not start; take it over with --tags adopt, "
                "or move it away"
            )

    def left(self) -> Told | None:
        """What an earlier run of the same order has cut to the end; all else of it is removed."""
        remove(self._container())
        note = jsonfile.read_guarded(self._staging / _NOTE)
        told = Told.from_dict(note.get("told")) if isinstance(note, dict) else None
        if told is not None and note == self._note(told) and (self._staging / told.name).is_file():
            return told
        self._sweep()
        return None

    # ---- the tool

    def run(self) -> Told:
        """Let the tool cut; what it says about its file."""
        order = self._order
        self._make_room()
        self._staging.mkdir(parents=True)
        self._reporter.step(f"cut rank {order.rank}", order.expected_bytes or None)
        watched = _Watched(self._reporter, self._check_floor)
        try:
            ended = carry_out(self._container(), watched, _Progress(self._reporter, order))
            if not ended.ok:
                self._fail(f"the cut of rank {order.rank} failed: {ended.words()}")
            told = Told.of_output(ended.out, order.rank)
            if told is None:
                self._fail("the tool ended without saying which file it has written")
            # A note about bytes that are not on the disk yet would be believed after a power cut.
            with contextlib.suppress(FileNotFoundError):
                flush(self._staging / told.name)
            jsonfile.write(self._staging / _NOTE, self._note(told))
        except BaseException:
            # Half of a cut is of no use to the next run, and is half of what this disk holds.
            self._sweep()
            raise
        return told

    def _make_room(self) -> None:
        """Delete what is known to be wrong, as the order allows, unless there is no room anyway."""
        self._folder.mkdir(parents=True, exist_ok=True)
        wrong = [self._folder / name for name in self._order.wrong]
        sizes = sum(found.size for path in wrong if (found := stat_of(path)))
        needed = self._order.expected_bytes + self._order.floor_bytes
        if (free := _free(self._folder) + sizes) < needed:
            self._fail(
                f"the cut would need {job_words.size(needed)} on the disk of {self._folder}, what "
                f"stays free included, and {job_words.size(free)} are free: make room and run it "
                "again"
            )
        for path in wrong:
            path.unlink(missing_ok=True)

    def _check_floor(self) -> None:
        floor = self._order.floor_bytes
        if _free(self._folder) < floor:
            self._fail(
                f"the disk of {self._folder} has less than {job_words.size(floor)} left, so the "
                "cut was ended: make room and run it again"
            )

    def _container(self) -> Container:
        order = self._order
        root = order.home / ".cache/huggingface"
        mounts = cache_mounts(root, _places(order.model))
        words = {
            "model": inside(mounts, order.model),
            "out": OUT,
            "rank": str(order.rank),
        }
        return Container(
            name=f"spark-pair-cut-rank{order.rank}",
            image=order.image,
            command=tuple(_filled(word, words) for word in order.command),
            mounts=(*mounts, Mount(real(self._staging), OUT, writable=True)),
            memory_bytes=order.memory_bytes,
        )

    # ---- after it

    def agreed(self, told: Told) -> Footer:
        """The end of the file, when it and the tool say the same."""
        path = self._staging / told.name
        try:
            footer = read_footer(path)
        except (RankFileError, OSError) as error:
            self._sweep()
            self._fail(f"what the tool has written is no whole rank file: {error}")
        if rank_of(told.name) != self._order.rank:
            self._sweep()
            self._fail(f"the tool calls its file {told.name}, which is no rank {self._order.rank}")
        if (footer.entries, footer.data_bytes) != (told.entries, told.data_bytes):
            self._sweep()
            self._fail(
                f"the tool says that {told.name} has {told.entries} tensors with "
                f"{told.data_bytes} bytes, and the file says {footer.entries} with "
                f"{footer.data_bytes}"
            )
        return footer

    def read(self, name: str, footer: Footer) -> Held:
        """Read all of the file, so that whatever happens to it later can be told."""
        self._reporter.step(f"read rank {self._order.rank}", footer.size)
        read = measure(
            [name],
            Disk(self._staging),
            how="read",
            threads=1,
            progress=self._reporter.advance,
            stop=self._reporter.stopping,
        )
        self._reporter.check()
        for path, _, words in read.troubles:
            self._fail(f"{path} {words}")
        return read.files[name]

    def settle(self, name: str, footer: Footer, held: Held, proofs: Proofs) -> None:
        """Note the file and give it its name."""
        order = self._order
        artefact = Artefact(
            name=order.artefact.name,
            kind="rank_file",
            repo=order.artefact.repo,
            commit=order.artefact.commit,
            origin=Origin.CUT,
            at=held.verified_at,
            folder=str(self._folder),
            files={},
            details={**order.artefact.details, INDEX: footer.index_sha256},
        )
        staged = self._staging / name
        staged.chmod(0o644)
        flush(staged)
        if stat_of(staged) != held.stat:
            self._fail(f"{name} was changed after it was read; run it again")
        # Noted first: of a file in its place without a note nobody would know what it is.
        proofs.add(Proof(artefact, name, held))
        for old in order.wrong:
            if old != name:
                (self._folder / old).unlink(missing_ok=True)
        staged.replace(self._folder / name)
        flush(self._folder)
        self._sweep()

    # ---- small things

    def _note(self, told: Told) -> dict[str, Any]:
        artefact = self._order.artefact
        return {
            "schema": _SCHEMA,
            "repo": artefact.repo,
            "commit": artefact.commit,
            "overlay": artefact.overlay,
            "rank": self._order.rank,
            "image": self._order.image,
            "command": list(self._order.command),
            "told": told.as_dict(),
        }

    def _of_this_rank(self) -> list[str]:
        try:
            names = sorted(one.name for one in self._folder.iterdir())
        except FileNotFoundError:
            return []
        return [name for name in names if rank_of(name) == self._order.rank]

    def _sweep(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        if os.path.lexists(self._staging):
            self._fail(f"{self._staging} of an earlier cut cannot be removed; remove it by hand")

    def _fail(self, words: str) -> NoReturn:
        raise JobFailedError(words, {})


class _Watched(Reporter):
    """A reporter that also ends the work when a condition no longer holds."""

    def __init__(self, reporter: Reporter, condition: Callable[[], None]) -> None:
        super().__init__()
        self.stop_asked = reporter.stop_asked
        self._condition = condition

    def check(self) -> None:
        super().check()
        self._condition()


class _Progress:
    """Turns the tool's lines into progress."""

    def __init__(self, reporter: Reporter, order: ShardOrder) -> None:
        self._reporter, self._order = reporter, order
        self._done, self._total = 0, order.expected_bytes

    def __call__(self, line: str) -> None:
        found = _PROGRESS.search(line)
        if found is None:
            return
        done, total = (int(found[group]) * _MIB for group in (2, 3))
        if total != self._total:
            self._total = total
            self._reporter.step(f"cut rank {self._order.rank}", total, done)
        else:
            self._reporter.advance(done - self._done)
        self._done = done


def _places(model: Path) -> list[Path]:
    """Every folder that the files of a checkpoint really lie in, and its own."""
    return [model, *sorted({real(one).parent for one in model.rglob("*") if one.is_file()})]


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
