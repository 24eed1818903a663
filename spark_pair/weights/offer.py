"""The peer's half of a transfer: it lends files for as long as whoever asked stays connected.

The receiver's job opens one ssh connection and runs `spark-pair weights offer` at its other end.
The request comes as a line on the standard input, the answer goes as a line to the output, and
then the files can be had: at a port of each rail, by an rsync that knows the one-time secret. The
input stays open; it carries a line now and then with how far the receiver is, so that what was
sent leaves the page cache. When it ends, or nothing came for SILENT_SECONDS, all is over.

This process listens by itself and hands each connection to an rsync of its own, as inetd does: the
ports are taken before they are told, nobody but the peer's own address of that rail gets as far as
rsync, and every rsync is a child that the kernel ends together with this process, even if that is
killed. A daemon's own children would live on.

What can be had is exactly the files that were asked for: each folder that really holds some is a
module, read-only, with a filter that hides all else. Links are followed here and not by rsync,
which refuses those that leave a module in some releases.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import select
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, TextIO

from ..errors import DescriptionError, SparkPairError
from .cache import Cache
from .manifest import File, ManifestError, is_commit

SCHEMA = 1
ACCOUNT = "transfer"
"""Whom rsync asks for the secret; no account of the machine."""
SILENT_SECONDS = 60.0
CONNECTIONS_MOST = 32
ENDS_WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""Before a command: the kernel kills it when the thread that started it ends."""

_MOST_BYTES = 64 << 20
_LOOK_SECONDS = 1.0
_TROUBLES_TOLD = 3
_SECRET = re.compile(r"[0-9a-f]{32,128}")
_WILD = re.compile(r"[*?\[]")


class OfferError(SparkPairError):
    """The files cannot be lent; the message says which and why."""


@dataclass(frozen=True)
class Real:
    """Where the bytes of a file really are, all links followed."""

    folder: Path
    name: str
    size: int

    @property
    def path(self) -> Path:
        """Of the file."""
        return self.folder / self.name


@dataclass(frozen=True)
class Line:
    """A rail as the one who lends sees it."""

    listen: str
    allow: str


@dataclass(frozen=True)
class Request:
    """What the receiver asks for."""

    secret: str
    lines: tuple[Line, ...]
    """None when the files are fetched over ssh: then they only have to be found."""
    ports: tuple[int, int]
    home: Path
    repo: str
    commit: str
    files: tuple[File, ...]
    folder: Path | None
    """Where a single file lies that belongs to no cache; `files` then holds just that."""

    @classmethod
    def from_dict(cls, data: Any) -> Request:
        """Raises DescriptionError."""
        try:
            if data["schema"] != SCHEMA:
                raise DescriptionError(
                    f"the request has schema {data['schema']!r}, not {SCHEMA}: both machines need "
                    "the same release of the tool; run --tags tools"
                )
            first, last = (int(port) for port in data["ports"])
            folder = data["folder"]
            request = cls(
                secret=str(data["secret"]),
                lines=tuple(Line(str(one["listen"]), str(one["allow"])) for one in data["lines"]),
                ports=(first, last),
                home=Path(data["home"]),
                repo=str(data["repo"]),
                commit=str(data["commit"]),
                files=tuple(File.from_dict(one) for one in data["files"]),
                folder=None if folder is None else Path(folder),
            )
        except (KeyError, TypeError, ValueError, ManifestError) as error:
            raise DescriptionError(f"the request cannot be understood: {error!r}") from error
        if not _SECRET.fullmatch(request.secret) or not request.files:
            raise DescriptionError("the request has no secret, or names no file")
        if request.folder is None and not is_commit(request.commit):
            raise DescriptionError(f"the request has {request.commit!r} for the commit")
        return request

    def as_dict(self) -> dict[str, Any]:
        """The reverse of `from_dict`."""
        return {
            "schema": SCHEMA,
            "secret": self.secret,
            "lines": [{"listen": one.listen, "allow": one.allow} for one in self.lines],
            "ports": list(self.ports),
            "home": str(self.home),
            "repo": self.repo,
            "commit": self.commit,
            "files": [file.as_dict() for file in self.files],
            "folder": None if self.folder is None else str(self.folder),
        }


def new_secret() -> str:
    """What lets one transfer in and is worth nothing afterwards."""
    return secrets.token_hex(32)


# ---- which files --------------------------------------------------------------------------------


def resolve(request: Request) -> list[Real]:
    """Where each file really is, in the order of the request. Raises OfferError naming those that
    are not there as they must be."""
    found, troubles = [], []
    for file in request.files:
        try:
            found.append(_real(request, file))
        except OfferError as error:
            troubles.append(str(error))
        except OSError as error:
            troubles.append(f"{file.path} cannot be looked at ({error.strerror})")
    if troubles:
        more = len(troubles) - _TROUBLES_TOLD
        words = "; ".join(troubles[:_TROUBLES_TOLD]) + (f"; and {more} more" if more > 0 else "")
        raise OfferError(words)
    return found


def _real(request: Request, file: File) -> Real:
    if request.folder is not None:
        entry = request.folder / file.path
        path = _regular(entry, file)
    else:
        cache = Cache.of_account(request.home)
        payload = cache.locate(request.repo, request.commit, file)
        entry = cache.snapshot(request.repo, request.commit) / file.path
        path = payload.path if payload else _regular(entry, file)
    if not os.access(path, os.R_OK):
        raise OfferError(f"{file.path} may not be read by the account ({path})")
    if not {"\n", "\r"}.isdisjoint(str(path)):
        raise OfferError(f"{file.path} lies at {str(path)!r}: with a line end in it, no name works")
    return Real(path.parent, path.name, file.size)


def _regular(entry: Path, file: File) -> Path:
    """The file at the end of all links. Raises OfferError for any other than the expected."""
    try:
        real = Path(os.path.realpath(entry, strict=True))
        found = real.stat()
    except (FileNotFoundError, NotADirectoryError):
        what = "is a link to nothing" if entry.is_symlink() else "is not there"
        raise OfferError(f"{file.path} {what} ({entry})") from None
    if not stat.S_ISREG(found.st_mode):
        raise OfferError(f"{file.path} is no file ({entry})")
    if found.st_size != file.size:
        raise OfferError(
            f"{file.path} has {found.st_size} bytes instead of {file.size} ({entry}): it is not "
            "whole yet, or was changed"
        )
    return real


# ---- rsync's configuration ----------------------------------------------------------------------


def modules(files: Iterable[Real]) -> dict[Path, str]:
    """A module for each folder that holds some of the files."""
    folders = dict.fromkeys(file.folder for file in files)
    return {folder: f"m{number}" for number, folder in enumerate(folders)}


def configuration(spool: Path, request: Request, names: Mapping[Path, str]) -> str:
    """The text of rsyncd.conf for some folders; `spool` is the folder of its other files."""
    allowed = " ".join(dict.fromkeys(line.allow for line in request.lines))
    lines = [
        f"log file = {spool / 'log'}",
        # Asking a name server who is there takes seconds where none answers.
        "reverse lookup = no",
        "use chroot = no",
        "read only = yes",
        "list = no",
        f"hosts allow = {allowed}",
        "hosts deny = *",
        f"auth users = {ACCOUNT}",
        f"secrets file = {spool / 'secrets'}",
        "strict modes = yes",
    ]
    if os.geteuid() == 0:
        # As root rsync would become "nobody", who cannot read what only its owner can.
        lines += ["uid = 0", "gid = 0"]
    for folder, name in names.items():
        lines += [
            f"[{name}]",
            # The slash keeps a blank at the end of the name.
            f"path = {folder}/",
            f"include from = {spool / name}",
            "exclude = *",
        ]
    return "\n".join([*lines, ""])


def pattern(name: str) -> str:
    """What lets exactly that file of a folder through rsync's filter."""
    # A backslash means itself unless there is something in the name that it could protect.
    return "/" + (re.sub(r"([*?\[\]\\])", r"\\\1", name) if _WILD.search(name) else name)


def _write_spool(spool: Path, request: Request, files: Sequence[Real]) -> None:
    names = modules(files)
    for folder, name in names.items():
        lines = [pattern(file.name) for file in files if file.folder == folder]
        (spool / name).write_bytes(b"".join(os.fsencode(f"{line}\n") for line in lines))
    (spool / "rsyncd.conf").write_bytes(os.fsencode(configuration(spool, request, names)))
    handle = os.open(spool / "secrets", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(f"{ACCOUNT}:{request.secret}\n")


# ---- lending ------------------------------------------------------------------------------------


def offer(stdin: BinaryIO | None = None, stdout: TextIO | None = None) -> int:
    """What `spark-pair weights offer` does; the exit code. Call it from the main thread."""
    source = (stdin or sys.stdin.buffer).fileno()
    target = stdout or sys.stdout
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        line, rest = _first_line(source)
        request = Request.from_dict(json.loads(line))
        with _Lender(request, resolve(request)) as lender:
            print(json.dumps(lender.answer()), file=target, flush=True)
            lender.lend(source, rest)
    except (SparkPairError, ValueError, RecursionError, OSError) as error:
        with suppress(OSError):
            print(json.dumps({"error": str(error)}), file=target, flush=True)
        return 1
    return 0


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _first_line(source: int) -> tuple[bytes, bytes]:
    """The request, and what came after it. Raises OfferError when it does not end."""
    data, deadline = b"", time.monotonic() + SILENT_SECONDS
    while b"\n" not in data:
        ready = select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]
        more = os.read(source, 1 << 20) if ready else b""
        data += more
        if not more or len(data) > _MOST_BYTES:
            raise OfferError("nothing was asked for")
    line, _, rest = data.partition(b"\n")
    return line, rest


@dataclass
class _Lender:
    """What is open while files are lent."""

    request: Request
    files: Sequence[Real]
    spool: Path = field(init=False)
    listeners: dict[socket.socket, Line] = field(default_factory=dict)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    """Address of a rail -> why nobody can be served there."""

    def __enter__(self) -> _Lender:
        if self.request.lines and shutil.which("rsync") is None:
            raise OfferError("rsync is not installed there; run --tags tools")
        # 0700; in memory and gone with the login where there is such a folder.
        mine = f"/run/user/{os.geteuid()}"
        above = mine if os.access(mine, os.W_OK | os.X_OK) else None
        self.spool = Path(tempfile.mkdtemp(prefix="spark-pair-offer-", dir=above))
        # Whatever serves on this machine comes first; every rsync inherits it.
        os.nice(10)
        try:
            _write_spool(self.spool, self.request, self.files)
            for line in self.request.lines:
                self._listen(line)
        except BaseException:
            self._end()
            raise
        if self.request.lines and not self.listeners:
            self._end()
            raise OfferError(
                "no rail can be served: "
                + "; ".join(f"{address}: {words}" for address, words in self.troubles.items())
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def answer(self) -> dict[str, Any]:
        """What the receiver needs to know to fetch the files."""
        names = modules(self.files)
        ports = {line.listen: one.getsockname()[1] for one, line in self.listeners.items()}
        return {
            "schema": SCHEMA,
            "files": [
                {"module": names[one.folder], "folder": str(one.folder), "name": one.name}
                for one in self.files
            ],
            "ports": [ports.get(line.listen) for line in self.request.lines],
            "troubles": [self.troubles.get(line.listen, "") for line in self.request.lines],
        }

    def lend(self, source: int, came: bytes) -> None:
        """Serve until the input ends or is silent for too long."""
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            for listener in self.listeners:
                selector.register(listener, selectors.EVENT_READ)
            while time.monotonic() - heard < SILENT_SECONDS:
                for key, _ in selector.select(_LOOK_SECONDS):
                    if isinstance(key.fileobj, socket.socket):
                        self._serve(key.fileobj)
                        continue
                    more = os.read(source, 1 << 16)
                    if not more:
                        return
                    heard = time.monotonic()
                    *lines, came = (came + more).split(b"\n")
                    self._forget(lines)
                self.children = [child for child in self.children if child.poll() is None]

    def _listen(self, line: Line) -> None:
        """Take the first free port of a rail's address."""
        first, last = self.request.ports
        words = f"no port from {first} to {last} is free"
        for port in range(first, last + 1):
            family = socket.AF_INET6 if ":" in line.listen else socket.AF_INET
            try:
                listener = socket.create_server((line.listen, port), family=family)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    words = error.strerror or str(error)
                    break
            else:
                listener.setblocking(False)
                self.listeners[listener] = line
                return
        self.troubles[line.listen] = words

    def _serve(self, listener: socket.socket) -> None:
        """Give a connection of the right address to an rsync of its own."""
        try:
            connection, address = listener.accept()
        except OSError:
            return  # whoever it was has gone
        with connection:
            allowed = address[0] == self.listeners[listener].allow
            if not allowed or len(self.children) >= CONNECTIONS_MOST:
                return
            connection.setblocking(True)
            command = ["rsync", "--daemon", "--no-detach", f"--config={self.spool / 'rsyncd.conf'}"]
            child = subprocess.Popen(
                [*ENDS_WITH_ITS_PARENT, *command],
                stdin=connection.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A name of a folder with %HOME% in it would be changed by rsync.
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            )
            self.children.append(child)

    def _forget(self, lines: Iterable[bytes]) -> None:
        """Let the page cache forget what the receiver has; whatever is no such line, never mind."""
        for line in lines:
            try:
                got = [(int(number), int(offset)) for number, offset in json.loads(line or b"[]")]
            except (ValueError, TypeError, RecursionError):
                continue
            for number, offset in got:
                if 0 <= number < len(self.files) and offset > 0:
                    _drop(self.files[number].path, offset)

    def _end(self) -> None:
        for listener in self.listeners:
            listener.close()
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()
        for file in self.files:
            _drop(file.path, file.size)
        shutil.rmtree(self.spool, ignore_errors=True)


def _drop(path: Path, length: int) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, length, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
