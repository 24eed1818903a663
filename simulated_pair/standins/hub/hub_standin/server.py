"""The Hub's HTTP side: what the hub client asks of https://huggingface.co, and of its store.

Large files are answered with a redirect to a second port that stands for the content network, so
that a test can see which host a token was sent to. Repositories never change while it runs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, BinaryIO, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from .faults import ANSWER, BODY, POINTS, Fault, FaultError, Pace
from .repositories import File, Held
from .state import Account, Request, State

SETTLE_SECONDS = 1.0
LISTING = frozenset({"tree"})
CHUNK_BYTES = 64 << 10
API = re.compile(
    r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|refs|commits|xet-read-token)(?:/(.*))?)?"
)
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
CAS = re.compile(r"/v[12]/reconstructions/([0-9a-f]{64})")
XORB = re.compile(r"/xorb/([0-9a-f]{64})/(\d+)/([^/]+/[^/]+)/(.+)")
XET_TOKEN = "xet-token"  # noqa: S105 - the store's own, worth nothing elsewhere
STORED = re.compile(r"/store/([^/]+/[^/]+)/([^/]+)/(.+)")
GATED_WORDS = "Access to model {} is restricted."
RIGHT_WORDS = (
    "Please enable access to public gated repositories in your fine-grained token settings "
    "to view this repository."
)


class RefusedError(Exception):
    """An answer that is an error; the client tells them apart by ``X-Error-Code``."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


class Handler(BaseHTTPRequestHandler):
    """One connection, to either port."""

    protocol_version = "HTTP/1.1"
    # An answer is several small writes; with Nagle's algorithm each would wait for the peer.
    disable_nagle_algorithm = True
    wbufsize = -1
    state: ClassVar[State]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: requests are kept in :attr:`State.requests`."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._serve()

    def _serve(self) -> None:
        self.asked = Request(
            self.command,
            self.path,
            token=bool(self.headers.get("Authorization")),
            range=self.headers.get("Range") or "",
            store=self.server.server_port == self.state.store_port,  # type: ignore[attr-defined]
        )
        if self.path.startswith("/control/"):
            self._answer()
            return
        self.state.begin(self.asked)
        try:
            self._answer()
        finally:
            self.state.end(self.asked)

    def _answer(self) -> None:
        try:
            try:
                self._route()
            except RefusedError as error:
                self._refuse(error)
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the asker had enough, or was told so

    def _route(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        query = parse_qs(url.query)
        if path.startswith("/control/"):
            return self._control(path)
        if stored := STORED.fullmatch(path):
            return self._content(stored[1], stored[2], stored[3])
        if path == "/api/whoami-v2":
            return self._whoami()
        if api := API.fullmatch(path):
            return self._api(api[1], api[2] or "revision", unquote(api[3] or "") or "main", query)
        if asked := RESOLVE.fullmatch(path):
            return self._resolve(asked[1], asked[2], asked[3])
        if reconstruction := CAS.fullmatch(path):
            return self._reconstruct(reconstruction[1])
        if xorb := XORB.fullmatch(path):
            return self._xorb(xorb[1], int(xorb[2]), xorb[3], xorb[4])
        raise RefusedError(404, "", "Not Found")

    # --- who asks

    def _account(self) -> Account | None:
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        if not given:
            return None
        account = self.state.accounts.get(given)
        if account is None:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        return account

    def _whoami(self) -> None:
        account = self._account()
        if account is None:
            raise RefusedError(401, "", "Invalid username or password.")
        self._json({"name": account.name, "type": "user", "auth": {"type": "access_token"}})

    def _admit(self, held: Held) -> None:
        """Raises :class:`RefusedError` unless the asker may read the repository's content."""
        account = self._account()
        wanted = held.wanted
        if not wanted.gated:
            return
        words = GATED_WORDS.format(wanted.name)
        if account is None:
            raise RefusedError(
                401, "GatedRepo", f"{words} You must have access to it and be authenticated."
            )
        if not account.gated_right:
            raise RefusedError(403, "", RIGHT_WORDS)
        if wanted.name not in account.accepted:
            raise RefusedError(
                403, "GatedRepo", f"{words} You are not in the authorized list: visit its page."
            )

    # --- what is asked for

    def _held(self, name: str) -> Held:
        self.asked.repository = name
        held = self.state.held.get(name)
        if held is None:
            self._account()
            raise RefusedError(404, "RepoNotFound", "Repository not found")
        return held

    def _commit(self, held: Held, revision: str) -> str:
        wanted = held.wanted
        if revision in wanted.branches:
            return wanted.commit
        if revision == wanted.commit or revision in wanted.older:
            return revision
        raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def _file(self, held: Held, commit: str, path: str) -> File:
        self.asked.path = path
        file = held.files.get(path) if commit == held.wanted.commit else None
        lost = any(self._use(fault) for fault in self._strike({"missing"}))
        if file is None or lost:
            raise RefusedError(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": commit})
        for fault in self._strike({"size"}):
            if self._use(fault):
                file = replace(file, size=fault.size)
        return file

    def _api(self, name: str, what: str, revision: str, query: dict[str, list[str]]) -> None:
        self.asked.kind = "token" if what == "xet-read-token" else what
        held = self._held(name)
        self._fail()
        self._account()
        if what == "refs":
            branches = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": held.wanted.commit}
                for name in held.wanted.branches
            ]
            return self._json({"branches": branches, "converts": [], "tags": []})
        commit = self._commit(held, revision)
        if what == "revision":
            return self._json(self._about(held, commit, query))
        if what == "commits":
            return self._commits(held, commit)
        if what == "tree":
            return self._tree(held, commit, query)
        return self._xet_token(held)

    def _about(self, held: Held, commit: str, query: dict[str, list[str]]) -> dict[str, Any]:
        blobs = query.get("blobs", [""])[0].lower() in {"true", "1"}
        siblings: list[dict[str, Any]] = []
        for file in self._files(held, commit):
            entry: dict[str, Any] = {"rfilename": file.path}
            if blobs:
                entry |= {"size": file.size, "blobId": file.git_sha1}
                if file.sha256:
                    entry["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": 134}
            siblings.append(entry)
        wanted = held.wanted
        gated: bool | str = "manual" if wanted.gated else False
        return {
            **{"_id": commit[:24], "id": wanted.name, "modelId": wanted.name, "sha": commit},
            **{"private": False, "gated": gated, "disabled": False, "siblings": siblings},
            **{"tags": [], "downloads": 0, "likes": 0, "createdAt": "2026-01-01T00:00:00.000Z"},
        }

    def _commits(self, held: Held, commit: str) -> None:
        history = [held.wanted.commit, *held.wanted.older]
        self._json(
            [
                {
                    **{"id": name, "title": "Upload", "message": "", "authors": []},
                    "date": "2026-01-01T00:00:00.000Z",
                }
                for name in history[history.index(commit) :]
            ]
        )

    def _files(self, held: Held, commit: str) -> list[File]:
        """What a listing shows: without the files that are missing, with the wrong sizes."""
        shown: list[File] = []
        for file in held.files.values() if commit == held.wanted.commit else []:
            met = self.state.faults.strike(LISTING, held.wanted.name, file.path, ANSWER)
            if any(fault.what == "missing" for fault in met):
                continue
            sizes = [fault.size for fault in met if fault.what == "size"]
            shown.append(replace(file, size=sizes[0]) if sizes else file)
        return shown

    def _tree(self, held: Held, commit: str, query: dict[str, list[str]]) -> None:
        files = self._files(held, commit)
        begin = int(query.get("cursor", ["0"])[0])
        page = files[begin : begin + self.state.page]
        headers = {}
        if begin + len(page) < len(files):
            url = urlsplit(self.path)
            kept = "&".join(
                f"{key}={quote(value)}"
                for key, values in query.items()
                if key != "cursor"
                for value in values
            )
            more = f"{self._origin()}{url.path}?{kept}&cursor={begin + len(page)}"
            headers["Link"] = f'<{more}>; rel="next"'
        self._json([self._entry(file) for file in page], headers)

    def _entry(self, file: File) -> dict[str, Any]:
        entry: dict[str, Any] = {
            **{"type": "file", "path": file.path, "size": file.size, "oid": file.git_sha1}
        }
        if file.sha256:
            entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
        if file.xet_hash:
            entry["xetHash"] = file.xet_hash
        return entry

    def _xet_token(self, held: Held) -> None:
        self._admit(held)
        cas = self.state.cas_url or (self._store() if self.state.store else "")
        if not cas:
            raise RefusedError(404, "", "This repository is not stored by Xet")
        end = int(time.time()) + 3600
        self._json(
            {"casUrl": cas, "accessToken": XET_TOKEN, "exp": end},
            {
                "X-Xet-Cas-Url": cas,
                "X-Xet-Access-Token": XET_TOKEN,
                "X-Xet-Token-Expiration": str(end),
            },
        )

    # --- Xet's store

    def _reconstruct(self, name: str) -> None:
        self.asked.kind = "cas"
        store = self.state.store
        found = self._named(name)
        if store is None or found is None:
            raise RefusedError(404, "", "Not Found")
        held, file = found
        self.asked.repository, self.asked.path = held.wanted.name, file.path
        self._fail()
        if self.headers.get("Authorization") != f"Bearer {XET_TOKEN}":
            raise RefusedError(401, "", "Unauthorized")
        begin, end = self._range(file.size)

        def link(xorb: str, at: int) -> str:
            return f"{self._store()}/xorb/{xorb}/{at}/{held.wanted.name}/{quote(file.path)}"

        self._json(store.reconstruct(name, begin, end, link))

    def _named(self, xet_hash: str) -> tuple[Held, File] | None:
        for held in self.state.held.values():
            for file in held.files.values():
                if file.xet_hash == xet_hash:
                    return held, file
        return None

    def _xorb(self, xorb: str, at: int, repository: str, path: str) -> None:
        """Bytes of a xorb, asked for because of a file whose part there begins at ``at``."""
        self.asked.kind, self.asked.repository, self.asked.path = "xorb", repository, path
        self._fail()
        if self.state.store is None:
            raise RefusedError(404, "", "Not Found")
        place = self.state.store.xorb(xorb)
        size = place.stat().st_size
        begin, end = self._range(size)
        self._pour(place, (begin, end, size), {}, self._strike(BODY), begin - at)

    # --- a file

    def _resolve(self, name: str, revision: str, path: str) -> None:
        self.asked.kind = "head" if self.command == "HEAD" else "content"
        held = self._held(name)
        self.asked.path = path
        self._fail()
        self._admit(held)
        commit = self._commit(held, revision)
        file = self._file(held, commit, path)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file.sha256 is None:
            headers["ETag"] = f'"{file.git_sha1}"'
            self._body(held, file, headers)
            return
        headers |= {"X-Linked-ETag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
        if file.xet_hash:
            auth = f"{self._origin()}/api/models/{name}/xet-read-token/{commit}"
            headers |= {"X-Xet-Hash": file.xet_hash, "Link": f'<{auth}>; rel="xet-auth"'}
        headers["Location"] = f"{self._store()}/store/{name}/{commit}/{quote(path)}"
        self._send(302, b"", headers)

    def _content(self, name: str, revision: str, path: str) -> None:
        """A large file's bytes, from the store; it asks for no token, its links are secret."""
        self.asked.kind = "head" if self.command == "HEAD" else "content"
        held = self._held(name)
        self.asked.path = path
        self._fail()
        file = self._file(held, self._commit(held, revision), path)
        self._body(held, file, {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"})

    def _body(self, held: Held, file: File, headers: dict[str, str]) -> None:
        faults = self._strike(BODY) if self.command == "GET" else []
        if any(fault.what == "login_page" and self._use(fault) for fault in faults):
            self._login_page()
            return
        begin, end = 0, file.size
        if not any(fault.what == "ignore_range" and self._use(fault) for fault in faults):
            begin, end = self._range(file.size)
        self._pour(held.folder / file.path, (begin, end, file.size), headers, faults)

    def _login_page(self) -> None:
        """Not the Hub's answer but that of somebody between who wants to be logged in to."""
        self.asked.status = 200
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        page = b"<html><title>Please log in</title></html>"
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(page), page))

    def _range(self, size: int) -> tuple[int, int]:
        """The bytes asked for: all, or those of a range. Raises :class:`RefusedError`."""
        if not self.asked.range:
            return 0, size
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.asked.range)
        if not match or int(match[1]) >= size:
            unsatisfied = {"Content-Range": f"bytes */{size}"}
            raise RefusedError(416, "", "Range Not Satisfiable", **unsatisfied)
        return int(match[1]), min(size, int(match[2]) + 1) if match[2] else size

    def _pour(
        self,
        path: Path,
        place: tuple[int, int, int],
        headers: dict[str, str],
        faults: list[Fault],
        shift: int = 0,
    ) -> None:
        """Answer with a file's bytes ``place``: begin, end, and the whole size.

        ``shift`` is added to a fault's offset to find its place in this file.
        """
        begin, end, size = place
        for fault in faults:
            if fault.what == "truncate" and begin <= fault.at + shift < end and self._use(fault):
                end = fault.at + shift
        partly = (begin, end) != (0, size) and bool(self.asked.range)
        self.asked.status = 206 if partly else 200
        self.send_response(self.asked.status)
        if partly:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(end - begin)}
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.flush()
        paces = [self.state.pace] if self.state.pace else []
        paces += [
            self.state.faults.pace(fault)
            for fault in faults
            if fault.what == "slow" and self._use(fault)
        ]
        points = {
            fault.at + shift: fault
            for fault in faults
            if fault.what in POINTS and begin <= fault.at + shift < end
        }
        with path.open("rb") as file:
            if paces or points:
                self._pour_slowly(file, (begin, end), paces, points)
            else:
                self._pour_fast(file.fileno(), begin, end)

    def _pour_slowly(
        self, file: BinaryIO, place: tuple[int, int], paces: list[Pace], points: dict[int, Fault]
    ) -> None:
        """Send bytes with what happens at some of them, at the slowest of the paces."""
        position, end = place
        file.seek(position)
        while position < end:
            stop = min([end, position + CHUNK_BYTES, *(at for at in points if at > position)])
            block = file.read(stop - position)
            if not block:  # the file is shorter than was said
                self.close_connection = True
                return
            if position in points:
                block = self._strike_at(points[position], block)
            for pace in paces:
                pace.wait(len(block))
            self.connection.sendall(block)
            position += len(block)
            self.asked.sent += len(block)

    def _pour_fast(self, descriptor: int, begin: int, end: int) -> None:
        while begin < end:
            sent = os.sendfile(
                self.connection.fileno(), descriptor, begin, min(end - begin, 8 << 20)
            )
            if sent == 0:  # the file is shorter than was said
                self.close_connection = True
                return
            begin += sent
            self.asked.sent += sent

    def _strike_at(self, fault: Fault, block: bytes) -> bytes:
        if not self._use(fault):
            return block
        if fault.what == "corrupt":
            return bytes([block[0] ^ 0xFF]) + block[1:]
        if fault.what == "hang":
            time.sleep(fault.seconds)
            return block
        if fault.what == "reset":
            # Closing with no time to linger sends a reset instead of an end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            raise ConnectionResetError
        self.connection.shutdown(socket.SHUT_RDWR)
        raise BrokenPipeError

    # --- faults and answers

    def _strike(self, whats: set[str] | frozenset[str]) -> list[Fault]:
        asked = self.asked
        kinds = frozenset({asked.kind, "store"} if asked.store else {asked.kind})
        return self.state.faults.strike(kinds, asked.repository, asked.path, frozenset(whats))

    def _use(self, fault: Fault) -> bool:
        return self.state.faults.use(fault)

    def _fail(self) -> None:
        """Raises :class:`RefusedError` when a fault says that this request fails."""
        for fault in self._strike({"status"}):
            if self._use(fault):
                headers = {}
                if fault.retry_after is not None:
                    headers["Retry-After"] = str(fault.retry_after)
                message = fault.message or f"Fault {fault.status}"
                raise RefusedError(fault.status, fault.code, message, **headers)

    def _refuse(self, error: RefusedError) -> None:
        headers = {"X-Error-Message": str(error), **error.headers}
        if error.code:
            headers["X-Error-Code"] = error.code
        data = json.dumps({"error": str(error)}).encode()
        self._send(error.status, data, headers, "application/json")

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), headers or {}, "application/json")

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], kind: str = "text/plain"
    ) -> None:
        self.asked.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
            self.asked.sent += len(data)

    def _host(self) -> str:
        """The host the asker knows this machine by."""
        return (self.headers.get("Host") or "127.0.0.1").rpartition(":")[0] or "127.0.0.1"

    def _origin(self) -> str:
        return f"http://{self._host()}:{self.state.hub_port}"

    def _store(self) -> str:
        return f"http://{self._host()}:{self.state.store_port}"

    # --- control, for tests on another machine

    def _control(self, path: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if path == "/control/faults" and self.command == "PUT":
            try:
                self.state.faults.set(json.loads(body)["faults"])
            except (ValueError, KeyError, FaultError) as error:
                raise RefusedError(400, "", f"not a list of faults: {error}") from error
            return self._json({})
        if path == "/control/requests":
            return self._json([asdict(request) for request in self.state.settled(SETTLE_SECONDS)])
        raise RefusedError(404, "", "Not Found")
