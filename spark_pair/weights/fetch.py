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
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from hf_xet import XetDownloadStreamGroup, XetFileInfo, XetSession

from ..errors import SparkPairError
from .cache import Cache, CacheError, Payload
from .hub import Hub, HubError, wait_before
from .manifest import File, Manifest
from .pace import Limiter, Meter, Reading
from .parts import READ_BYTES, Part, PartBusyError, sweep
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


@dataclass(frozen=True)
class Patience:
    """When to wait and when to give up."""

    stall_seconds: float = 120.0
    """Without a byte for so long, a connection is given up and made anew."""
    tries: int = 8
    """Attempts in a row that bring less than `progress_bytes`, before a file is given up."""
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
        """Whether every file is there; only then the commit got its list and its ref."""
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
    stop: threading.Event | None = None,
    workers: int = 4,
    limit_bytes_per_second: float | None = None,
    floor_bytes: int = 0,
    trusted: Trust = lambda file, payload: False,
    patience: Patience | None = None,
) -> Result:
    """Bring files of a commit into the cache; `manifest` is the whole commit's.

    A file that is there already is read and compared, unless `trusted` says that it was before.
    `progress` is called twice a second from this thread. `stop` ends it within a second or two,
    and so does a free space that would fall below `floor_bytes`: finished files and the parts of
    unfinished ones stay. Raises CacheError when the cache cannot be written at all; everything
    else is in the result.
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
    )
    with ThreadPoolExecutor(max(1, workers), "fetch") as pool:
        futures = [pool.submit(fetcher.alike, files) for files in _by_content(wanted)]
        try:
            _follow(futures, fetcher.meter, progress)
        except BaseException:
            fetcher.halt("It was interrupted.")
            raise
    outcomes = [outcome for done in futures for outcome in done.result()]
    result = Result(tuple(sorted(outcomes, key=lambda one: one.file.path)), fetcher.why)
    if result.whole:
        cache.write_tree(manifest)
        cache.write_ref(manifest.repo, manifest.commit)
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
    why: str = ""
    _halted: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.xet = _Xet(self.hub, self.manifest)

    def halt(self, words: str) -> None:
        """End it for all files; the first reason counts."""
        with self._lock:
            self.why = self.why or words
        self._halted.set()

    def alike(self, files: list[File]) -> list[Outcome]:
        """Files of one content, one after the other: the first is fetched, the others find it."""
        return [self.one(file) for file in files]

    def one(self, file: File) -> Outcome:
        """Everything about one file; never raises."""
        came = _Came()
        try:
            return self._one(file, came)
        except _StoppedError:
            return Outcome(file, "stopped", came.bytes, words=self.why or "It was told to stop.")
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
            words = f"{file.path}: {type(error).__name__}: {error}."
            return Outcome(file, "failed", came.bytes, words=words)

    def _one(self, file: File, came: _Came) -> Outcome:
        self._look()
        repo, commit = self.manifest.repo, self.manifest.commit
        if entry := self._present(file):
            sweep(self.staging, file)
            self.meter.there(file.path, file.size)
            return Outcome(file, "present", path=entry)
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
                    part.settle()
                    entry = self.cache.place(repo, commit, file, part.path)
                    part.forget()
                    return Outcome(file, "fetched", came.bytes, entry)
                self.meter.say(f"{file.path} came with wrong content, once more")
                part.restart()
                self.meter.there(file.path, 0)
            part.discard()
        raise _FailedError(
            f"{file.path} of {repo} came twice with content that is not the one the Hub names "
            f"({file.proof} {file.etag[:12]}…); nothing of it is in place. Try again later, and "
            "look for a proxy or bad memory if it stays."
        )

    def _present(self, file: File) -> Path | None:
        """The entry of a file that is in the cache and right; linked if it was not."""
        repo, commit = self.manifest.repo, self.manifest.commit
        payload = self.cache.locate(repo, commit, file)
        if payload is None:
            return None
        if not self.trusted(file, payload) and not self._proves(file, payload.path):
            self.meter.say(f"{file.path} in the cache is wrong, fetching it")
            return None
        if payload.linked:
            return self.cache.snapshot(repo, commit) / file.path
        return self.cache.link(repo, commit, file)

    def _proves(self, file: File, path: Path) -> bool:
        self.meter.say(f"checking {file.path}")
        hasher = file.hasher()
        with path.open("rb", buffering=0) as stream:
            done = 0
            while data := stream.read(READ_BYTES):
                hasher.update(data)
                os.posix_fadvise(stream.fileno(), done, len(data), os.POSIX_FADV_DONTNEED)
                done += len(data)
                self.meter.there(file.path, done)
                self._look()
        return hasher.hexdigest() == file.etag

    def _recheck(self, part: Part) -> None:
        def go_on(offset: int) -> None:
            self.meter.say(f"checking what is there of {part.file.path}")
            self.meter.there(part.file.path, offset)
            self._look()

        part.recheck(go_on)
        self.meter.there(part.file.path, part.offset)

    def _pull(self, part: Part, came: _Came, *, by_xet: bool) -> None:
        """Get the rest of a file, over as many connections as it takes."""
        file, misses = part.file, 0
        while not part.complete:
            plain = not (file.xet_hash and by_xet)
            if misses >= XET_MISSES and file.size <= PLAIN_HTTP_AT_MOST:
                plain = True
            before, asked = came.bytes, None
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
            misses = 0 if came.bytes - before >= self.patience.progress_bytes else misses + 1
            if misses >= self.patience.tries:
                raise _FailedError(
                    f"{file.path} stands at {part.offset:,} of {file.size:,} bytes and "
                    f"{misses} attempts in a row brought next to nothing: {trouble} "
                    "What is there is kept; run it again later."
                )
            self.meter.say(f"{file.path}: {trouble}")
            self._rest(wait_before(misses, asked))

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
            if plain and int(next(it)) != offset:
                part.restart()  # the server does not know ranges and began anew
            for chunk in it:
                self._make_sure_of_room(len(chunk))
                before = part.offset
                part.write(chunk)
                came.bytes += len(chunk)
                self.meter.came(part.file.path, len(chunk), part.offset)
                pause = self.limiter.seconds_for(len(chunk))
                if part.complete:
                    return
                if before == 0:
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
    """

    def __init__(self, store: _Xet, file: File, offset: int) -> None:
        self._store = store
        self._file = file
        self._next = offset
        self._piece = PIECE_LEAST
        self._most = min(max(file.size // 512, 2 * PIECE_LEAST), PIECE_MOST)
        self._group: XetDownloadStreamGroup | None = None
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
            self._next = min(start + self._piece, self._file.size)
            yield partial(self._read, group, start, self._next)

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
        start, size = 0, response.headers.get("Content-Length", "")
        if response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            start, size = (int(found[1]), found[2]) if found else (-1, "")
        if start not in (0, offset) or (size.isdigit() and int(size) != file.size):
            raise HubError(
                "server",
                f"The Hub gives {size or 'some'} bytes from byte {start} on for {file.path}, which "
                f"has {file.size} and was asked for from byte {offset} on.",
            )
        yield b"%d" % start
        yield from response.iter_raw(CHUNK_BYTES)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
