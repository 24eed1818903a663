"""Bring files from the peer so that nothing wrong is ever in place and nothing right is lost.

What is there already, under whatever name and in whatever layout, is proven and not sent. The rest
comes over all rails at once, the biggest first. Each file is hashed while it arrives, in the page
cache, so that its end is also the end of its proof; one that is wrong is sent once more from
nothing. A line that fails hands its file to the others, which go on at the byte where it stopped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ..errors import SparkPairError
from ..jobs import words as job_words
from .manifest import File
from .noted import How
from .offer import Request
from .pace import Meter, Reading
from .parts import Part, PartBusyError, sweep
from .peer_offer import Command, Lent, PeerAwayError, PeerOffer, PeerOfferError, over_ssh
from .provenance import Stat, stat_from
from .rsync_streams import (
    STALL_SECONDS,
    Ended,
    StalledError,
    Verdict,
    daemon_words,
    rsync_words,
    run,
    ssh_words,
)
from .transfer_order import Rail, Way

SMALL_BYTES = 16 << 20
"""Files up to this size come together, since each rsync costs a tenth of a second."""
READ_BYTES = 1 << 20
BEAT_SECONDS = 2.0
LOCK_SECONDS = 15.0
"""So long a killed run's rsync may take to notice."""

Read = Callable[[File, Path], Stat | None]
"""Reads a file and tells how it was, if its content is right, or None."""
State = Literal["present", "sent", "stopped", "failed"]


class _StoppedError(Exception):
    """Told to stop; what is there is kept."""


class _FailedError(SparkPairError):
    """One file cannot be had."""


class _WrongError(SparkPairError):
    """The content that came is not the expected one."""


@dataclass(frozen=True)
class Patience:
    """When to wait and when to give up."""

    line_failures: int = 6
    """After so many outages in a row without PROGRESS_BYTES in between nobody waits for a rail."""
    rest_seconds: float = 5.0
    """How long it is left alone after the first; twice as long after the second, and so on."""
    probe_seconds: float = 60.0
    """How often one that nobody waits for is tried again, as long as another works."""
    progress_bytes: int = 1 << 20
    stall_seconds: float = STALL_SECONDS
    """So long an rsync may bring nothing."""
    offers: int = 4
    """So often in a row the connection to the peer is made before anything comes."""
    away_seconds: float = 600.0
    """So long the peer may be out of reach, as while it boots."""


@dataclass(frozen=True)
class Found:
    """A file that is there and right."""

    path: Path
    stat: Stat | None
    """As it was when that was proven in this run; None when the record vouches for it."""


class Target(Protocol):
    """Where the files go."""

    @property
    def staging(self) -> Path:
        """Folder of unfinished files, on the same file system; it is there."""

    @property
    def files(self) -> tuple[File, ...]:
        """What shall be there."""

    def request(self, files: Sequence[File]) -> Request:
        """What the peer is asked for when some of them have to be sent."""

    def find(self, file: File, read: Read) -> Found | None:
        """The file, if it is there and right; put in order if it lies there in another way."""

    def place(self, file: File, staged: Path) -> Path:
        """Give a file that was proven its name. Raises SparkPairError."""

    def again(self, file: File) -> Path:
        """Give what lies there already another of its names; raises SparkPairError."""

    def finish(self) -> None:
        """All files are there. Raises SparkPairError."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    file: File
    state: State
    path: Path | None = None
    words: str = ""
    """Why not, in a sentence."""
    stat: Stat | None = None
    """The file as it was when it was proven in this run; None for one that was trusted."""

    @property
    def whole(self) -> bool:
        """Whether it is there, proven or trusted."""
        return self.state in ("present", "sent")

    @property
    def how(self) -> How:
        """What proved it."""
        return "written" if self.state == "sent" else "read"


@dataclass(frozen=True)
class Result:
    """What became of all of them."""

    outcomes: tuple[Outcome, ...]
    rails: tuple[tuple[Rail, int], ...]
    """Bytes of files that came over each."""
    wire_bytes: int
    """All bytes, in both directions."""
    words: str = ""
    """Why it ended early; "" when it did not."""

    @property
    def whole(self) -> bool:
        """Whether every file is there."""
        return all(outcome.whole for outcome in self.outcomes)

    @property
    def payload(self) -> int:
        """Bytes of files that came."""
        return sum(count for _, count in self.rails)

    @property
    def problems(self) -> tuple[str, ...]:
        """The sentences of those that are not there, each once."""
        words = [self.words, *(outcome.words for outcome in self.outcomes if not outcome.whole)]
        return tuple(dict.fromkeys(word for word in words if word))


def carry(
    way: Way,
    target: Target,
    *,
    progress: Callable[[Reading], None] = lambda reading: None,
    settled: Callable[[Outcome], None] = lambda outcome: None,
    stop: threading.Event | None = None,
    floor_bytes: int = 0,
    patience: Patience | None = None,
    command: Command = over_ssh,
) -> Result:
    """Bring what is not there to `target`.

    `progress` is called from this thread, `settled` from several. `stop` ends it within seconds,
    and so does a free space that would fall below `floor_bytes`; parts of unfinished files stay.
    Raises PartBusyError when another transfer writes there and what `target` raises at its end;
    everything else is in the result.
    """
    wanted = sorted(set(target.files), key=lambda file: (-file.size, file.path))
    with _Lock(target.staging) as lock:
        carrier = _Carrier(
            way,
            target,
            stop or threading.Event(),
            Meter(sum(file.size for file in wanted)),
            progress,
            settled,
            floor_bytes,
            patience or Patience(),
            command,
            lock.handle,
        )
        try:
            left = carrier.look(wanted)
            if left and not carrier.why:
                carrier.send(left)
        finally:
            for folder in target.staging.glob("small.*"):
                shutil.rmtree(folder, ignore_errors=True)
        result = carrier.result(wanted)
        if result.whole:
            target.finish()
        return result


# ---- lines --------------------------------------------------------------------------------------


@dataclass
class _Line:
    """A rail, and how it did lately."""

    rail: Rail
    port: int | None = None
    came: int = 0
    """Bytes of files."""
    active: int = 0
    failures: int = 0
    rested_at: float = 0.0
    failed_at: float = 0.0
    words: str = ""
    """Its last failure."""


@dataclass
class _Unit:
    """Files that one rsync fetches: a big one, or small ones of one folder."""

    alike: list[list[File]]
    """Each with those of the same content."""
    numbers: list[int]
    """Of the first of each, in the offer."""
    part: Part | None = None
    wrong: int = 0
    """So often it came with wrong content."""
    began: float = 0.0
    """When its present rsync was started."""

    @property
    def big(self) -> bool:
        """Whether it is a file with an rsync of its own."""
        return len(self.alike) == 1 and self.first.size > SMALL_BYTES

    @property
    def first(self) -> File:
        return self.alike[0][0]

    @property
    def size(self) -> int:
        return sum(files[0].size for files in self.alike)


class _Stall:
    """Notices that nothing grows any more."""

    def __init__(self, target: Path, seconds: float) -> None:
        """`target` is a file, or a folder of files."""
        self._target = target
        self._seconds = seconds
        self._size = -1
        self._looked = self._since = time.monotonic()

    def check(self) -> None:
        """Raises StalledError."""
        now = time.monotonic()
        if now - self._looked < min(1.0, self._seconds / 4):
            return
        self._looked = now
        if (size := self._now()) != self._size:
            self._size, self._since = size, now
        elif now - self._since >= self._seconds:
            raise StalledError(f"nothing came for {self._seconds:.0f} s")

    def _now(self) -> int:
        paths = self._target.glob("**/*") if self._target.is_dir() else (self._target,)
        size = 0
        for path in paths:
            with suppress(OSError):
                size += path.lstat().st_size
        return size


class _Lock:
    """One transfer into a folder at a time; what it starts inherits the lock, and so a run that
    was killed holds it until nothing of it writes any more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.handle = -1

    def __enter__(self) -> _Lock:
        self.handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(self.handle)
                    raise PartBusyError(
                        f"another transfer writes to {self._folder}; wait for it or stop it "
                        f"(sudo fuser -v '{self._folder}')"
                    ) from None
                time.sleep(0.1)
            except BaseException:
                os.close(self.handle)
                raise
            else:
                return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


# ---- the work -----------------------------------------------------------------------------------


@dataclass
class _Carrier:
    """What the files that come at once share."""

    way: Way
    target: Target
    stop: threading.Event
    meter: Meter
    progress: Callable[[Reading], None]
    settled: Callable[[Outcome], None]
    floor: int
    patience: Patience
    command: Command
    lock: int
    why: str = ""
    """Why all was ended."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    wire: int = 0
    lines: list[_Line] = field(default_factory=list)
    _queue: deque[_Unit] = field(default_factory=deque)
    _busy: int = 0
    _streams: int = 1
    _offer: PeerOffer | None = None
    _request: Request | None = None
    _ready: bool = False
    """Whether the offer stands."""
    _batches: int = 0
    _flight: dict[int, Part] = field(default_factory=dict)
    _halted: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.lines = [_Line(rail) for rail in self.way.rails]

    def halt(self, words: str) -> None:
        """End it for all files; the first reason counts."""
        with self._changed:
            self.why = self.why or words
            self._halted.set()
            self._changed.notify_all()

    def result(self, files: Iterable[File]) -> Result:
        """What became of the files; of those that were not reached, why."""
        words = self.why or "It was told to stop."
        return Result(
            tuple(
                self.outcomes.get(file.path) or Outcome(file, "stopped", words=words)
                for file in sorted(files, key=lambda file: file.path)
            ),
            tuple((line.rail, line.came) for line in self.lines),
            self.wire,
            self.why,
        )

    # ---- what is there already

    def look(self, files: Sequence[File]) -> list[list[File]]:
        """Prove what is there; those that have to be sent, of one content together."""
        with ThreadPoolExecutor(max(1, self.way.streams), "look") as pool:
            work = [pool.submit(self._looked, alike) for alike in _by_content(files)]
            try:
                while not all(one.done() for one in work):
                    self.progress(self.meter.read())
                    time.sleep(0.05)
            except BaseException:
                self.halt("It was interrupted.")
                raise
        return [left for one in work if (left := one.result())]

    def _looked(self, files: list[File]) -> list[File]:
        """Those of some files of one content that have to be sent."""
        left = self._found(files)
        # One that lay there under its own name only has been given the name that others look for.
        return self._found(left) if 0 < len(left) < len(files) else left

    def _found(self, files: list[File]) -> list[File]:
        left = []
        for file in files:
            try:
                self._go_on()
                found = self.target.find(file, self._read)
            except _StoppedError:
                return []
            except SparkPairError as error:
                self._failed([file], str(error))
            except OSError as error:
                self._failed([file], f"{file.path} cannot be looked at: {error}.")
            else:
                if found is None:
                    self.meter.there(file.path, 0)
                    left.append(file)
                else:
                    self.meter.there(file.path, file.size)
                    self._settle(Outcome(file, "present", found.path, stat=found.stat))
        return left

    def _read(self, file: File, path: Path) -> Stat | None:
        """The file as it was, if its content is right. Raises _FailedError when it was written to
        meanwhile or may not be read, which says nothing about that."""
        hasher = file.hasher()
        try:
            stream = path.open("rb", buffering=0)
        except PermissionError:
            raise _FailedError(
                f"{file.path} is there and may not be read ({path}): give it to this account "
                "(chown) or move it away, then run it again."
            ) from None
        with stream:
            self.meter.say(f"checking {file.path}")
            done, before = 0, stat_from(os.fstat(stream.fileno()))
            while data := stream.read(4 * READ_BYTES):
                hasher.update(data)
                os.posix_fadvise(stream.fileno(), done, len(data), os.POSIX_FADV_DONTNEED)
                done += len(data)
                self.meter.there(file.path, done)
                self._go_on()
            after = stat_from(os.fstat(stream.fileno()))
        if after != before:
            raise _FailedError(
                f"{file.path} was written to while it was checked ({path}); run it again when "
                "nobody writes to it."
            )
        return before if hasher.hexdigest() == file.etag else None

    # ---- sending

    def send(self, left: list[list[File]]) -> None:
        """Bring what is not there. This thread keeps the offer; others run rsync."""
        if words := self._room(left):
            self.halt(words)
            return
        self._request = self.target.request([alike[0] for alike in left])
        try:
            self._open()
        except PeerOfferError as error:
            self.halt(str(error))
            return
        self._queue = deque(self._units(left))
        self._streams = min(self.way.streams, len(self._queue), _streams_most(self.way))
        with ThreadPoolExecutor(self._streams, "transfer") as pool:
            work = [pool.submit(self._work) for _ in range(self._streams)]
            try:
                self._keep(lambda: all(one.done() for one in work))
            except BaseException:
                self.halt("It was interrupted.")
                raise
            finally:
                for one in work:
                    one.exception()  # wait: the offer must outlive what is under way
                if self._offer is not None:
                    self._offer.close()
        for one in work:
            one.result()

    def _room(self, left: list[list[File]]) -> str:
        """That the disk has not room enough, in words; what is there of the files is credited."""
        staging = self.target.staging
        need = 0
        for alike in left:
            with suppress(OSError):
                found = (staging / f"{alike[0].etag}.part").stat()
                need -= min(found.st_size, found.st_blocks * 512, alike[0].size)
            need += alike[0].size
        free = _free(staging)
        if need <= 0 or free - need >= self.floor:
            return ""
        return (
            f"{job_words.size(need)} have to come and {job_words.size(free)} are free on the disk "
            f"of {staging.parent}, of which {job_words.size(self.floor)} stay free: make room and "
            "run it again."
        )

    def _units(self, left: list[list[File]]) -> Iterable[_Unit]:
        """The biggest first; small ones of a folder together, last."""
        batches: dict[str, _Unit] = {}
        for number, alike in enumerate(left):
            if alike[0].size > SMALL_BYTES:
                yield _Unit([alike], [number])
            else:
                unit = batches.setdefault(self._lent(number).module, _Unit([], []))
                unit.alike.append(alike)
                unit.numbers.append(number)
        yield from batches.values()

    def _keep(self, done: Callable[[], bool]) -> None:
        """Show how far it is, keep the offer open, watch the disk, until all is done."""
        beat = 0.0
        opened, seen, away_since = 1, 0, 0.0
        while not done():
            self.progress(self.meter.read())
            if _free(self.target.staging) < self.floor:
                self.halt(
                    f"The disk of {self.target.staging.parent} has less than "
                    f"{job_words.size(self.floor)} free: make room and run it again; what is there "
                    "is kept."
                )
            came = self.meter.read().fetched
            if came - seen >= self.patience.progress_bytes:
                opened, seen = 0, came
            if self._offer is not None and not self._offer.alive and not self._over():
                away_since = away_since or time.monotonic()
                if self._renew(opened + 1, away_since):
                    opened, away_since = opened + 1, 0.0
            elif self._offer is not None and time.monotonic() - beat >= BEAT_SECONDS:
                beat = time.monotonic()
                self._offer.beat({number: part.offset for number, part in self._flying()})
            time.sleep(0.1)
        self.progress(self.meter.read())

    def _open(self) -> None:
        """Ask the peer to lend the files. Raises PeerOfferError."""
        if self._request is None:
            raise PeerOfferError("nothing is asked for")
        self._offer = offer = PeerOffer(self.way.peer, self._request, self.command)
        if self.way.transport == "daemon":
            for line, port, words in zip(self.lines, offer.ports, offer.troubles, strict=True):
                line.port = port
                line.failures = 0
                if port is None:
                    line.failures, line.words = self.patience.line_failures, words
                    line.rested_at = time.monotonic() + self.patience.away_seconds
        with self._changed:
            self._ready = True
            self._changed.notify_all()

    def _renew(self, opened: int, since: float) -> bool:
        """The connection has ended and so has the offer: make both anew; whether that is done.

        A peer that is out of reach, `since` then, may be booting: it is asked again for a while.
        """
        with self._changed:
            self._ready = False
        if self._offer is not None:
            self._offer.close()
        peer = self.way.peer.name
        if opened > self.patience.offers:
            self.halt(f"The connection to {peer} ended {opened} times; run --tags preflight.")
            return False
        self.meter.say(f"the connection to {peer} ended, making it anew")
        self.stop.wait(self.patience.rest_seconds * (opened - 1))
        try:
            self._open()
        except PeerAwayError as error:
            if time.monotonic() - since >= self.patience.away_seconds:
                self.halt(f"{error}. What came is kept; run it again when it answers.")
            self.stop.wait(self.patience.rest_seconds)
            return False
        except PeerOfferError as error:
            self.halt(str(error))
            return False
        return True

    def _work(self) -> None:
        """What one stream does: fetch unit after unit."""
        while (unit := self._take()) is not None:
            try:
                self._one(unit)
            except _StoppedError:
                self._close(unit)
            except (SparkPairError, OSError) as error:
                self._close(unit)
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    self.halt(self._full())
                else:
                    files = [file for alike in unit.alike for file in alike]
                    self._failed(files, _sentence(error, unit.first))
            except BaseException:
                self._close(unit)
                self.halt("It was interrupted.")
                raise
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()

    def _take(self) -> _Unit | None:
        """The next unit; None when there is none and none can come back."""
        with self._changed:
            while True:
                if self._over() or not (self._queue or self._busy):
                    for unit in self._queue:
                        self._close(unit)
                    self._queue.clear()
                    return None
                if self._queue and self._ready:
                    self._busy += 1
                    return self._queue.popleft()
                self._changed.wait(0.25)

    def _back(self, unit: _Unit) -> None:
        """Leave a unit to whichever stream comes next."""
        with self._changed:
            self._queue.appendleft(unit)
            self._changed.notify_all()

    def _one(self, unit: _Unit) -> None:
        """Try to fetch a unit over one line; afterwards it is settled, or in the queue again."""
        line = self._line()
        try:
            unit.began = time.monotonic()
            if unit.big:
                self._big(unit, line)
            else:
                self._batch(unit, line)
        finally:
            with self._changed:
                line.active -= 1
                self._changed.notify_all()

    def _line(self) -> _Line:
        """The line that did best lately and has least to do. Raises _FailedError without any."""
        with self._changed:
            while True:
                self._go_on()
                if all(one.failures >= self.patience.line_failures for one in self.lines):
                    self.halt(self._dead())
                    raise _StoppedError
                rested = [one for one in self.lines if one.rested_at <= time.monotonic()]
                if rested and self._ready:
                    best = min(self._better(rested), key=lambda one: (one.active, one.failures))
                    best.active += 1
                    return best
                self._changed.wait(0.25)

    def _better(self, rested: list[_Line]) -> list[_Line]:
        """Without those that failed lately, as long as others do not: trying one costs its file
        up to half a minute."""
        probed = time.monotonic() - self.patience.probe_seconds
        good = [one for one in rested if not one.failures]
        due = [one for one in rested if one.failures and one.failed_at <= probed and not one.active]
        return due + good if good else rested

    def _big(self, unit: _Unit, line: _Line) -> None:
        """A file with an rsync of its own, hashed as it grows."""
        file, number = unit.first, unit.numbers[0]
        if unit.part is None:
            unit.part = Part(self.target.staging, file)
            unit.part.recheck(lambda offset: self._checked(file, offset))
        part = unit.part
        self.meter.there(file.path, part.offset)
        before = part.offset
        if not part.complete:
            with self._changed:
                self._flight[number] = part
            try:
                ended = self._rsync(
                    line, number, [self._lent(number).name], part.path,
                    lambda seconds: self._grows(part, line, seconds), resumed=part.length() > 0,
                )  # fmt: skip
            finally:
                with self._changed:
                    del self._flight[number]
                # What it wrote last belongs to what is there.
                while not self._over() and self._follow(part, line):
                    pass
            if not self._came(unit, ended, line, part.offset - before):
                self._back(unit)
                return
            if part.length() != file.size:
                raise _FailedError(
                    f"{file.path} has {part.length()} bytes instead of {file.size} on "
                    f"{self.way.peer.name} now: somebody writes to it there. Nothing of it is in "
                    "place."
                )
        if part.right():
            self._place(unit, part)
            return
        unit.wrong += 1
        if unit.wrong > 1:
            part.discard()
            self._close(unit)
            raise self._wrong(file)
        self.meter.say(f"{file.path} came with wrong content, once more")
        part.restart()
        self.meter.there(file.path, 0)
        self._back(unit)

    def _grows(self, part: Part, line: _Line, seconds: float) -> None:
        """Hash what has arrived; wait a moment when nothing has."""
        self._go_on()
        if part.length() > part.file.size:
            raise _FailedError(
                f"{part.file.path} has more than its {part.file.size} bytes on "
                f"{self.way.peer.name} now: somebody writes to it there. Nothing of it is in place."
            )
        if not self._follow(part, line):
            self.stop.wait(seconds)

    def _follow(self, part: Part, line: _Line) -> int:
        count = part.follow()
        if count:
            self.meter.came(part.file.path, count, part.offset)
            with self._changed:
                line.came += count
        return count

    def _checked(self, file: File, offset: int) -> None:
        self.meter.say(f"checking what is there of {file.path}")
        self.meter.there(file.path, offset)
        self._go_on()

    def _place(self, unit: _Unit, part: Part) -> None:
        proven = part.settle()
        self._settled_as_sent(unit.alike[0], proven, part.path)
        part.forget()
        self._close(unit)

    def _settled_as_sent(self, alike: Sequence[File], proven: Stat, staged: Path) -> None:
        """Give a file its name, and those of the same content theirs."""
        path = self.target.place(alike[0], staged)
        self._settle(Outcome(alike[0], "sent", path, stat=proven))
        for file in alike[1:]:
            self.meter.there(file.path, file.size)
            self._settle(Outcome(file, "present", self.target.again(file), stat=proven))

    def _batch(self, unit: _Unit, line: _Line) -> None:
        """Small files with one rsync, hashed afterwards; what is not right comes once more."""
        with self._changed:
            self._batches += 1
            folder = self.target.staging / f"small.{self._batches}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        names = [self._lent(number).name for number in unit.numbers]
        ended = self._rsync(line, unit.numbers[0], names, f"{folder}/", self._waits)
        came, again = 0, _Unit([], [], wrong=unit.wrong)
        for alike, number, name in zip(unit.alike, unit.numbers, names, strict=True):
            staged, file = folder / name, alike[0]
            with suppress(FileNotFoundError):
                size = staged.stat().st_size
                came += size
                self.meter.came(file.path, size, size)
                if size == file.size and (proven := self._read(file, staged)):
                    self._settled_as_sent(alike, proven, staged)
                    sweep(self.target.staging, file)
                    continue
            self.meter.there(file.path, 0)
            again.alike.append(alike)
            again.numbers.append(number)
        with self._changed:
            line.came += came
        trouble: SparkPairError | None = None
        try:
            if self._came(unit, ended, line, came):
                again.wrong += 1
        except SparkPairError as error:
            trouble = error
        if not again.alike:
            return
        if trouble is not None or again.wrong > 1:
            for alike in again.alike:
                self._failed(alike, str(trouble or self._wrong(alike[0])))
            return
        self._back(again)

    def _waits(self, seconds: float) -> None:
        self._go_on()
        self.stop.wait(seconds)

    def _rsync(
        self,
        line: _Line,
        number: int,
        names: Sequence[str],
        target: Path | str,
        watch: Callable[[float], None],
        *,
        resumed: bool = False,
    ) -> Ended:
        lent = self._lent(number)
        if self.way.transport == "ssh":
            source = ssh_words(line.rail, self.way.peer, lent)
        else:
            source = daemon_words(line.rail, line.port or 0, lent)
        limit = self.way.limit_bytes_per_second
        share = None if limit is None else limit / self._sharers()
        argv = rsync_words(source, target, share, resumed=resumed)
        self.meter.say("")
        secret = self._request.secret if self._request else ""
        stall = _Stall(Path(target), self.patience.stall_seconds)

        def watching(seconds: float) -> None:
            watch(seconds)
            stall.check()

        ended = run(argv, names, secret, watching, [self.lock])
        if ended.wire_bytes is not None:
            with self._changed:
                self.wire += ended.wire_bytes
        return ended

    def _sharers(self) -> int:
        """How many streams the limit is for: no more than there are big files left, whose end
        would come at a fraction of it otherwise; what is small besides is soon over."""
        with self._changed:
            big = len(self._flight) + sum(unit.big for unit in self._queue)
        return max(1, min(self._streams, big))

    def _came(self, unit: _Unit, ended: Ended, line: _Line, count: int) -> bool:
        """Whether an rsync did its work; if not, whether it is worth another try: raises when it
        is not, and notes what the line did."""
        if ended.wire_bytes is None:
            with self._changed:
                self.wire += count
        verdict = ended.verdict
        if verdict is Verdict.ENDED:
            # Systemd stops all processes of a job at once, and ours may hear of it last.
            self.stop.wait(1.0)
            self._go_on()
        if verdict is Verdict.SOURCE:
            raise _FailedError(f"{self.way.peer.name} does not send it all: {ended.words}.")
        if verdict is Verdict.HERE:
            if "No space left" in ended.err or "quota" in ended.err:
                self.halt(self._full())
                raise _StoppedError
            raise _FailedError(f"rsync cannot write it here: {ended.words}.")
        with self._changed:
            if verdict is Verdict.DONE:
                line.failures = 0
                return True
            self._failed_line(line, unit.began, ended.words, came=count)
        self.meter.say(f"{line.rail.here} to {line.rail.peer}: {ended.words}")
        return False

    def _failed_line(self, line: _Line, began: float, words: str, *, came: int) -> None:
        """Note that a rail failed. All of its streams fail at once, which is one outage."""
        now = time.monotonic()
        line.words = words
        if came >= self.patience.progress_bytes:
            line.failures = 0
        elif began < line.failed_at:
            return
        line.failures += 1
        line.failed_at = now
        rest = self.patience.rest_seconds * line.failures
        hopeless = line.failures >= self.patience.line_failures
        line.rested_at = now + (self.patience.probe_seconds if hopeless else rest)

    # ---- small things

    def _lent(self, number: int) -> Lent:
        if self._offer is None:
            raise _StoppedError
        return self._offer.files[number]

    def _flying(self) -> list[tuple[int, Part]]:
        with self._changed:
            return list(self._flight.items())

    def _over(self) -> bool:
        return self.stop.is_set() or self._halted.is_set()

    def _go_on(self) -> None:
        if self._over():
            raise _StoppedError

    def _dead(self) -> str:
        words = "; ".join(f"{one.rail.here} to {one.rail.peer}: {one.words}" for one in self.lines)
        closed = ""
        if self.way.transport == "daemon":
            first, last = self.way.ports
            closed = (
                f" If it finds them well, a firewall may keep ports {first} to {last} "
                "(hf_transfer_ports) closed; hf_transfer_transport: ssh needs none of them."
            )
        return (
            f"No rail carries anything any more ({words}). Look at them with --tags preflight, "
            f"then run it again; what came is kept.{closed}"
        )

    def _wrong(self, file: File) -> _WrongError:
        return _WrongError(
            f"{file.path} came twice with content that is not the expected one ({file.proof} "
            f"{file.etag[:12]}…); nothing of it is in place. On {self.way.peer.name} it has been "
            "changed since it was proven, or its disk or memory is bad: run --tags verify there."
        )

    def _full(self) -> str:
        return (
            f"The disk of {self.target.staging.parent} is full: make room and run it again; what "
            "is there is kept."
        )

    def _settle(self, outcome: Outcome) -> None:
        with self._changed:
            self.outcomes[outcome.file.path] = outcome
        self.settled(outcome)

    def _failed(self, files: Iterable[File], words: str) -> None:
        for file in files:
            said = words if file.path in words else f"{file.path}: {words}"
            self._settle(Outcome(file, "failed", words=said))

    @staticmethod
    def _close(unit: _Unit) -> None:
        part, unit.part = unit.part, None
        if part is not None:
            part.close()


def _by_content(files: Iterable[File]) -> list[list[File]]:
    """Files of one content together, in the order of the first of them."""
    alike: dict[str, list[File]] = {}
    for file in files:
        alike.setdefault(file.etag, []).append(file)
    return list(alike.values())


def _streams_most(way: Way) -> int:
    """One for each processor, as each keeps more than one busy: what is beyond that only pushes
    the others' bytes out of the processor's cache. Both rails are used in any case."""
    return max(len(way.rails), len(os.sched_getaffinity(0)))


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _sentence(error: SparkPairError | OSError, file: File) -> str:
    if isinstance(error, SparkPairError):
        return str(error)
    return f"{file.path} cannot be written: {error}."
