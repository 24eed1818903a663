"""Fetch files of the Hub so that nothing wrong is ever in place and nothing right is lost.

What the hub's own client lacks is here: every file is hashed as it is written and compared before
it gets its name in the cache; a wrong one is thrown away and fetched once more; a run that was
killed goes on at the byte where it stopped; a connection that breaks, stalls or is refused for a
while is tried again a bounded number of times; before the disk is too full it stops.

Large files come from the content store (Xet) or, when they have none there or it fails, by plain
HTTP. Beyond PLAIN_HTTP_AT_MOST the Hub's own client refuses plain HTTP, and so do we.
"""

from __future__ import annotations

import errno
import os
import pwd
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from hf_xet import XetDownloadStreamGroup, XetFileInfo, XetSession

from ..errors import SparkPairError
from ..jobs.words import duration, without_keys
from .cache import Cache, CacheError, Payload
from .hub import Hub, HubError, wait_before
from .kept import Kept
from .manifest import File, Manifest
from .pace import Limiter, Meter, Reading
from .parts import READ_BYTES, Part, PartBusyError, sweep
from .provenance import Stat, stat_from
from .streams import StalledError, drained, in_order

PLAIN_HTTP_AT_MOST = 50_000_000_000
CHUNK_BYTES = 256 << 10
SMALL_BYTES = 16 << 20
"""Files up to this size are fetched first: they show at once whether access is given."""
XET_MISSES = 3
"""So often in a row the content store may fail before plain HTTP is tried."""

PIECE_LEAST, PIECE_MOST = 1 << 20, 16 << 20
PIECE_SECONDS = 3.0
PIECES_AT_ONCE = 3
"""How a file is asked for at the content store; see _Stored."""

State = Literal["present", "fetched", "stopped", "failed"]
Trust = Callable[[File, Payload], bool]

_HOPELESS = frozenset({"token", "terms", "right", "repository", "revision", "tls"})
"""Kinds of HubError that meet every other file of the repository as well."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class _StoppedError(Exception):
    """Told to stop; what is there is kept."""


class _FailedError(SparkPairError):
    """One file cannot be had."""


class _GaveUpError(_FailedError):
    """One file was waited for too long; later it may come."""


@dataclass(frozen=True)
class Patience:
    """When to wait and when to give up."""

    stall_seconds: float = 120.0
    """Without a byte for so long, a connection is given up and made anew."""
    seconds: float = 1800.0
    """A file is given up when it has not come forward for so long: a line that is renewed at night,
    a router that starts anew and most outages are over by then; more than that, a person should
    know. When nothing at all came for so long, all files are."""
    tries: int = 8
    """And after so many attempts in a row that brought less than `progress_bytes`."""
    progress_bytes: int = 1 << 20
    wait_factor: float = 1.0
    """Of the seconds between attempts; tests make it small."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    file: File
    state: State
    fetched: int = 0
    """Bytes that came over the network for it in this run."""
    path: Path | None = None
    """In the snapshot, when it is there."""
    words: str = ""
    """Why not, in a sentence."""
    may_pass: bool = False
    """Whether it was only waited for too long."""
    stat: Stat | None = None
    """The file as it was when it was proven in this run; None for one that was trusted."""

    @property
    def whole(self) -> bool:
        """Whether it is there, proven or trusted."""
        return self.state in ("present", "fetched")


@dataclass(frozen=True)
class Result:
    """What became of all of them."""

    outcomes: tuple[Outcome, ...]
    words: str = ""
    """Why it ended early; "" when it did not."""

    @property
    def whole(self) -> bool:
        """Whether every file is there; only then the commit got its list."""
        return all(outcome.whole for outcome in self.outcomes)

    @property
    def fetched(self) -> int:
        """Bytes that came over the network."""
        return sum(outcome.fetched for outcome in self.outcomes)

    @property
    def problems(self) -> tuple[str, ...]:
        """The sentences of those that are not there, each once."""
        words = [self.words, *(outcome.words for outcome in self.outcomes if not outcome.whole)]
        return tuple(dict.fromkeys(word for word in words if word))


def fetch(
    hub: Hub,
    cache: Cache,
    manifest: Manifest,
    files: Iterable[File],
    *,
    progress: Callable[[Reading], None] = lambda reading: None,
    settled: Callable[[Outcome], None] = lambda outcome: None,
    stop: threading.Event | None = None,
    workers: int = 4,
    limit_bytes_per_second: float | None = None,
    floor_bytes: int = 0,
    trusted: Trust = lambda file, payload: False,
    patience: Patience | None = None,
) -> Result:
    """Bring files of a commit into the cache; `manifest` is the whole commit's.

    A file that is there already is read and compared, unless `trusted` says that it was before.
    `progress` is called twice a second from this thread; `settled` from several, as soon as it is
    known what became of a file, which a process that is killed later could not tell any more.
    `stop` ends it within a second or two, and so does a free space that would fall below
    `floor_bytes`: finished files and the parts of unfinished ones stay. Raises CacheError when the
    cache cannot be written at all; everything else is in the result.
    """
    wanted = sorted(set(files), key=lambda file: (file.size > SMALL_BYTES, -file.size, file.path))
    fetcher = _Fetcher(
        hub,
        cache,
        manifest,
        cache.make_staging(manifest.repo),
        stop or threading.Event(),
        Meter(sum(file.size for file in wanted)),
        Limiter(limit_bytes_per_second),
        floor_bytes,
        trusted,
        patience or Patience(),
        settled,
    )
    with ThreadPoolExecutor(max(1, workers), "fetch") as pool:
        outcomes: dict[str, Outcome] = {}
        left = wanted
        try:
            for last in (False, True):
                work = [pool.submit(fetcher.alike, one, last) for one in _by_content(left)]
                _follow(work, fetcher.meter, progress)
                for one in [one for done in work for one in done.result()]:
                    before = outcomes.get(one.file.path)
                    fetched = one.fetched + (before.fetched if before else 0)
                    outcomes[one.file.path] = replace(one, fetched=fetched)
                # What was only waited for too long is tried once more before all is given up.
                left = [one.file for one in outcomes.values() if one.may_pass]
        except BaseException:
            fetcher.halt("It was interrupted.")
            raise
    result = Result(tuple(outcomes[path] for path in sorted(outcomes)), fetcher.why)
    if result.whole:
        cache.write_tree(manifest)
    return result


def _by_content(files: Iterable[File]) -> list[list[File]]:
    """Files of one content together, in the order of the first of them."""
    alike: dict[str, list[File]] = {}
    for file in files:
        alike.setdefault(file.etag, []).append(file)
    return list(alike.values())


def _follow(
    futures: list[Future[list[Outcome]]], meter: Meter, progress: Callable[[Reading], None]
) -> None:
    left: set[Future[list[Outcome]]] = set(futures)
    while left:
        left = wait(left, timeout=0.5).not_done
        progress(meter.read())


@dataclass
class _Fetcher:
    """What the files that are fetched at once share."""

    hub: Hub
    cache: Cache
    manifest: Manifest
    staging: Path
    stop: threading.Event
    meter: Meter
    limiter: Limiter
    floor: int
    trusted: Trust
    patience: Patience
    settled: Callable[[Outcome], None]
    why: str = ""
    _named: bool = False
    _came_at: float = field(default_factory=time.monotonic)
    """When anything came last, for any file."""
    _halted: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.xet = _Xet(self.hub, self.manifest)

    def halt(self, words: str) -> None:
        """End it for all files; the first reason counts."""
        with self._lock:
            self.why = self.why or words
        self._halted.set()

    def alike(self, files: list[File], last: bool) -> list[Outcome]:
        """Files of one content, one after the other: the first is fetched, the others find it.

        Before the `last` round nothing is settled about those that are tried once more.
        """
        outcomes = []
        for file in files:
            outcome = self.one(file)
            if outcome.may_pass and (last or self._halted.is_set()):
                outcome = replace(outcome, may_pass=False)
            outcomes.append(outcome)
            if not outcome.may_pass:
                self.settled(outcome)
        return outcomes

    def one(self, file: File) -> Outcome:
        """Everything about one file; never raises."""
        came = _Came()
        try:
            return self._one(file, came)
        except _StoppedError:
            return Outcome(file, "stopped", came.bytes, words=self.why or "It was told to stop.")
        except _GaveUpError as error:
            return Outcome(file, "failed", came.bytes, words=str(error), may_pass=True)
        except (_FailedError, PartBusyError, CacheError) as error:
            return Outcome(file, "failed", came.bytes, words=str(error))
        except HubError as error:
            if error.kind in _HOPELESS:
                self.halt(str(error))
            return Outcome(file, "failed", came.bytes, words=str(error))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.halt(self._full())
                return Outcome(file, "stopped", came.bytes, words=self.why)
            words = f"{file.path} cannot be written below {self.staging}: {error}."
            return Outcome(file, "failed", came.bytes, words=words)
        except Exception as error:  # one file's accident is not the others'
            words = f"{file.path}: {type(error).__name__}: {_first_line(error)}."
            return Outcome(file, "failed", came.bytes, words=words)

    def _one(self, file: File, came: _Came) -> Outcome:
        self._look()
        repo, commit = self.manifest.repo, self.manifest.commit
        if found := self._present(file):
            sweep(self.staging, file)
            self._name_the_commit()
            self.meter.there(file.path, file.size)
            return Outcome(file, "present", path=found[0], stat=found[1])
        if file.size > PLAIN_HTTP_AT_MOST and not file.xet_hash:
            raise _FailedError(
                f"{file.path} has {file.size:,} bytes and is not in the Hub's content store; over "
                f"{PLAIN_HTTP_AT_MOST:,} bytes plain HTTP is not offered. Fetch from the Hub "
                "itself, not from a mirror."
            )
        with Part(self.staging, file) as part:
            self._recheck(part)
            for attempt in (0, 1):
                self._pull(part, came, by_xet=attempt == 0 or file.size > PLAIN_HTTP_AT_MOST)
                if part.right():
                    proven = part.settle()
                    entry = self.cache.place(repo, commit, file, part.path)
                    part.forget()
                    self._name_the_commit()
                    return Outcome(file, "fetched", came.bytes, entry, stat=proven)
                self.meter.say(f"{file.path} came with wrong content, once more")
                part.restart()
                self.meter.there(file.path, 0)
            part.discard()
        raise _FailedError(
            f"{file.path} of {repo} came twice with content that is not the one the Hub names "
            f"({file.proof} {file.etag[:12]}…); nothing of it is in place. Try again later; if it "
            "stays, look for a proxy or bad memory, or remove the list that names it "
            f"({Kept().path(repo, commit)}), so that the Hub is asked anew."
        )

    def _name_the_commit(self) -> None:
        with self._lock:
            if not self._named:
                self.cache.write_ref(self.manifest.repo, self.manifest.commit)
                self._named = True

    def _present(self, file: File) -> tuple[Path, Stat | None] | None:
        """The entry of a file that is in the cache and right, and the file as it was when that
        was proven; linked if it was not."""
        repo, commit = self.manifest.repo, self.manifest.commit
        while payload := self.cache.locate(repo, commit, file):
            proven = None
            if self.trusted(file, payload) or (proven := self._proves(file, payload.path)):
                if payload.linked:
                    return self.cache.snapshot(repo, commit) / file.path, proven
                return self.cache.link(repo, commit, file), proven
            self.meter.say(f"{file.path} in the cache is wrong, fetching it")
            # Nobody shall take it for right meanwhile, and the plan counts on its space.
            self.cache.discard(repo, commit, file, payload)
            self.meter.there(file.path, 0)
        return None

    def _proves(self, file: File, path: Path) -> Stat | None:
        """The file that was read and is right; None when it is wrong.

        Raises _FailedError when somebody writes to it, which says nothing about either.
        """
        self.meter.say(f"checking {file.path}")
        hasher = file.hasher()
        try:
            opened = path.open("rb", buffering=0)
        except PermissionError as error:
            raise _FailedError(_unreadable(file, path)) from error
        with opened as stream:
            done, before = 0, stat_from(os.fstat(stream.fileno()))
            while data := stream.read(READ_BYTES):
                hasher.update(data)
                os.posix_fadvise(stream.fileno(), done, len(data), os.POSIX_FADV_DONTNEED)
                done += len(data)
                self.meter.there(file.path, done)
                self._look()
            after = stat_from(os.fstat(stream.fileno()))
        if after != before:
            raise _FailedError(
                f"{file.path} in the cache was written to while it was checked ({path}); run it "
                "again when nobody writes to it."
            )
        return before if hasher.hexdigest() == file.etag else None

    def _recheck(self, part: Part) -> None:
        def go_on(offset: int) -> None:
            self.meter.say(f"checking what is there of {part.file.path}")
            self.meter.there(part.file.path, offset)
            self._look()

        part.recheck(go_on)
        self.meter.say(f"fetching {part.file.path}")
        self.meter.there(part.file.path, part.offset)

    def _pull(self, part: Part, came: _Came, *, by_xet: bool) -> None:
        """Get the rest of a file, over as many connections as it takes."""
        file, misses, since = part.file, 0, time.monotonic()
        while not part.complete:
            plain = not (file.xet_hash and by_xet)
            if misses >= XET_MISSES and file.size <= PLAIN_HTTP_AT_MOST:
                plain = True
            before, asked = part.offset, None
            try:
                self._stream(part, came, plain=plain)
                trouble: Exception = _FailedError("The connection ended early.")
            except HubError as error:
                if not error.temporary:
                    raise
                trouble, asked = error, error.retry_after
            except StalledError:
                trouble = _FailedError(f"No byte came for {self.patience.stall_seconds:.0f} s.")
            if part.complete:
                return
            misses += 1
            if part.offset - before >= self.patience.progress_bytes:
                misses, since = 0, time.monotonic()
            silent = time.monotonic() - since
            if misses >= self.patience.tries and silent >= self.patience.seconds:
                self._give_up(part, misses, silent, trouble)
            self.meter.say(f"{file.path}: {trouble}")
            self._rest(wait_before(misses, asked))

    def _give_up(self, part: Part, misses: int, silent: float, trouble: Exception) -> None:
        """Raises _GaveUpError; ends it for all when nothing came for any of them."""
        words = (
            f"{part.file.path} stands at {part.offset:,} of {part.file.size:,} bytes and {misses} "
            f"attempts in a row ({duration(silent)}) brought next to nothing: {trouble} What is "
            "there is kept; run it again later."
        )
        if 0 < self.patience.seconds <= time.monotonic() - self._came_at:
            self.halt(words)
        raise _GaveUpError(words)

    def _stream(self, part: Part, came: _Came, *, plain: bool) -> None:
        """One connection's worth of a file."""
        file, offset, stall = part.file, part.offset, self.patience.stall_seconds
        if plain:
            chunks = _plain(self.hub, self.manifest, file, offset, stall)
            it = drained(chunks, stall, self._look)
        else:
            stored = _Stored(self.xet, file, offset)
            it = drained(stored.chunks(), stall, self._look, stored.abandon)
        with closing(it):
            # A server that does not know ranges begins anew; what is there already is passed over,
            # so that a line which breaks before that costs nothing.
            known = offset - int(next(it)) if plain else 0
            for number, chunk in enumerate(it):
                self._make_sure_of_room(len(chunk))
                part.write(chunk[known:])
                known = max(0, known - len(chunk))
                came.bytes += len(chunk)
                self._came_at = time.monotonic()
                self.meter.came(part.file.path, len(chunk), part.offset)
                pause = self.limiter.seconds_for(len(chunk))
                if part.complete:
                    return
                if number == 0:  # whatever was said about the connections before is over
                    self.meter.say(f"fetching {part.file.path}")
                if pause > 0:
                    self._rest(pause, jitter=False)

    def _make_sure_of_room(self, count: int) -> None:
        if self.floor:
            found = os.statvfs(self.staging)
            if found.f_bavail * found.f_frsize - count < self.floor:
                self.halt(self._full())
                raise _StoppedError

    def _full(self) -> str:
        kept = f" down to the {self.floor / 1e9:.2f} GB that are to stay free" if self.floor else ""
        return (
            f"The disk of {self.staging.parent} is full{kept}; finished files and parts are kept. "
            "Make room, then run it again."
        )

    def _look(self) -> None:
        if self.stop.is_set() or self._halted.is_set():
            raise _StoppedError

    def _rest(self, seconds: float, *, jitter: bool = True) -> None:
        """Wait, but not for a stop."""
        if jitter:  # several files that broke at once should not all come back at once
            seconds *= self.patience.wait_factor * random.uniform(1.0, 1.25)  # noqa: S311
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._look()
            self.stop.wait(min(left, 0.25))


@dataclass
class _Came:
    """Bytes that came over the network for one file."""

    bytes: int = 0


class _Xet:
    """The content store of one repository at one commit."""

    def __init__(self, hub: Hub, manifest: Manifest) -> None:
        self._hub = hub
        self._manifest = manifest
        self._session: XetSession | None = None
        self._token: tuple[str, str, int] | None = None
        self._lock = threading.Lock()

    def group(self) -> XetDownloadStreamGroup:
        """A connection to the store. Raises HubError, or what hf_xet raises."""
        session, (store, token, end) = self._access()
        return session.new_download_stream_group(
            endpoint=store,
            token=token,
            token_expiry_unix_secs=end,
            token_refresh_url=self._hub.xet_token_url(self._manifest.repo, self._manifest.commit),
            token_refresh_headers=dict(self._hub.headers),
        )

    def bytes_into_chunk(self, file: File, at: int) -> int:
        """How far byte `at` of a file is behind the beginning of its chunk. Raises HubError."""
        _, (store, token, _end) = self._access()
        return self._hub.bytes_into_chunk(store, token, file.xet_hash or "", at)

    def forget_token(self) -> None:
        """Ask for a new token next time."""
        with self._lock:
            self._token = None

    def _access(self) -> tuple[XetSession, tuple[str, str, int]]:
        with self._lock:
            if self._session is None:
                self._session = XetSession()
            if self._token is None or self._token[2] < time.time() + 60:
                self._token = self._hub.xet_read_token(self._manifest.repo, self._manifest.commit)
            return self._session, self._token


class _Stored:
    """The bytes of one file in the content store, from an offset on.

    The store's client hands out what it has in pieces of up to 64 MB, one after the other, while
    it fetches far ahead: of a file asked for as a whole, a killed process would lose hundreds of
    megabytes that had come. So it is asked for pieces, a few at a time, whose size follows what
    the line carries: at most the last seconds are lost, and a slow line still shows progress.

    The store keeps chunks of about 64 KiB and gives whole ones only: a piece that ended inside of
    one would have it sent twice, which is four per cent of pieces of 2 MB. So pieces end where
    chunks do, as far as the store says where that is.
    """

    def __init__(self, store: _Xet, file: File, offset: int) -> None:
        self._store = store
        self._file = file
        self._next = offset
        self._piece = PIECE_LEAST
        # Of pieces that were under way when a process was killed, all is lost: three of these are
        # 0.4 per cent of the file.
        self._most = min(max(file.size // 768, PIECE_LEAST), PIECE_MOST)
        self._group: XetDownloadStreamGroup | None = None
        self._knows_chunks = True
        self._abandoned = False

    def chunks(self) -> Iterator[bytes]:
        """The bytes. Raises HubError."""
        try:
            self._group = group = self._store.group()
            for piece in in_order(self._jobs(group), PIECES_AT_ONCE):
                for start in range(0, len(piece), CHUNK_BYTES):
                    yield piece[start : start + CHUNK_BYTES]
        except (RuntimeError, OSError, ValueError) as error:
            self._store.forget_token()
            raise HubError(
                "server",
                f"The Hub's content store failed for {self._file.path}: {_first_line(error)}.",
            ) from error

    def abandon(self) -> None:
        """End what still waits."""
        self._abandoned = True
        if self._group is not None:
            with suppress(RuntimeError):
                self._group.abort()

    def _jobs(self, group: XetDownloadStreamGroup) -> Iterator[Callable[[], bytes]]:
        while self._next < self._file.size and not self._abandoned:
            start = self._next
            self._next = self._end_of_piece(start)
            yield partial(self._read, group, start, self._next)

    def _end_of_piece(self, start: int) -> int:
        end = start + self._piece
        if end >= self._file.size:
            return self._file.size
        if self._knows_chunks:
            try:
                into = self._store.bytes_into_chunk(self._file, end)
            except HubError:  # it costs some bytes twice, no more
                self._knows_chunks = False
            else:
                end -= into if into < self._piece // 2 else 0
        return end

    def _read(self, group: XetDownloadStreamGroup, start: int, end: int) -> bytes:
        began = time.monotonic()
        info = XetFileInfo(self._file.xet_hash, self._file.size)
        piece = b"".join(group.download_stream(info, start=start, end=end))
        if len(piece) != end - start:
            raise RuntimeError(f"{len(piece)} bytes instead of {end - start} from byte {start} on")
        took = time.monotonic() - began
        if took < PIECE_SECONDS:
            self._piece = min(max(self._piece, 2 * (end - start)), self._most)
        elif took > 4 * PIECE_SECONDS:
            self._piece = max(min(self._piece, (end - start) // 2), PIECE_LEAST)
        return piece


def _plain(
    hub: Hub, manifest: Manifest, file: File, offset: int, stall_seconds: float
) -> Iterator[bytes]:
    """First the offset at which the answer begins, as digits; then its bytes. Raises HubError."""
    url = hub.url_of(manifest.repo, manifest.commit, file.path)
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    with hub.stream(url, headers, stall_seconds, repo=manifest.repo, path=file.path) as response:
        _refuse_a_page(response.headers, file)
        start, size = 0, response.headers.get("Content-Length", "")
        if response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            start, size = (int(found[1]), found[2]) if found else (-1, "")
        # Whoever does not give the range that was asked for must at least give this very file.
        anew = start != offset and size != str(file.size)
        if start not in (0, offset) or anew or (size.isdigit() and int(size) != file.size):
            raise HubError(
                "server",
                f"The Hub gives {size or 'some'} bytes from byte {start} on for {file.path}, which "
                f"has {file.size} and was asked for from byte {offset} on.",
            )
        yield b"%d" % start
        yield from response.iter_raw(CHUNK_BYTES)


def _unreadable(file: File, path: Path) -> str:
    """Whose a file in the cache is that this account cannot read, and what to do."""
    number = path.stat().st_uid
    try:
        owner = pwd.getpwuid(number).pw_name
    except KeyError:
        owner = f"account number {number}"
    me = pwd.getpwuid(os.geteuid()).pw_name
    return (
        f"{file.path} is in the cache and cannot be read by {me}; it belongs to {owner}. Give it "
        f"over (sudo chown {me}: '{path}') or move it away, then run it again."
    )


def _refuse_a_page(headers: Mapping[str, str], file: File) -> None:
    """Raises HubError when what comes is a page for people where the file is none."""
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind == "text/html" and not file.path.lower().endswith((".html", ".htm")):
        raise HubError(
            "server",
            f"A page for people came instead of {file.path}; look for a proxy or a login page "
            "between this machine and the Hub.",
        )


def _first_line(error: BaseException) -> str:
    """Without what addresses carry after a "?": whoever has the store's may fetch by them."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return without_keys(line)[:300].rstrip(".")
