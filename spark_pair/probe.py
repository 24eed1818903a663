"""One real request to a model server, and what its answer proves.

A 200 from `/v1/models` or `/health` proves nothing: after one CUDA graph error the server keeps
answering both and generates nothing (fault 1). Neither does a non-empty answer alone: a collapsed
model says `!!!!` (fault 43), and another server on the port answers under another name (fault 36).
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .description import Server
from .metrics import Load, load_from_dict, read_load

Kind = Literal["ok", "timeout", "refused", "http", "bad", "instant_stop", "overloaded", "mismatch"]
"""`overloaded`: it says that it is too busy (429, 503). `mismatch`: it works, but our question does
not fit it: another model's name, or a request it refuses (wrong key, unknown field)."""

_MAX_BODY = 4 << 20
_RETRY_SEED = 20_241_017
_KEYLESS_TRIES = 2


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, or why there is none."""

    status: int
    body: str
    kind: Literal["answered", "timeout", "refused"] = "answered"
    why: str = ""


@dataclass(frozen=True)
class ProbeResult:
    """What one request (with its permitted repeats) proved."""

    kind: Kind
    why: str
    seconds: float = 0.0
    text: str = ""
    load: Load = field(default_factory=Load)
    """The load sampled while the request was out: a queued probe shows up as waiting."""

    @property
    def ok(self) -> bool:
        """Whether the server really generates."""
        return self.kind == "ok"

    def as_dict(self) -> dict[str, Any]:
        """For the journal and for views that travel as JSON."""
        return {
            "kind": self.kind,
            "why": self.why,
            "seconds": round(self.seconds, 3),
            "text": self.text[:200],
            "load": self.load.as_dict(),
        }


def result_from_dict(data: Mapping[str, Any]) -> ProbeResult:
    """Invert `ProbeResult.as_dict`."""
    return ProbeResult(
        kind=data["kind"],
        why=str(data.get("why", "")),
        seconds=float(data.get("seconds", 0.0)),
        text=str(data.get("text", "")),
        load=load_from_dict(data.get("load")),
    )


def judge(status: int, body: str, server: Server) -> tuple[Kind, str, str]:
    """Say what a chat completion's answer proves: kind, reason, text. Pure."""
    if status != 200:
        kind: Kind = "http"
        if status in (429, 503):
            kind = "overloaded"
        elif 400 <= status < 500:
            kind = "mismatch"
        return kind, f"HTTP {status}: {body.strip()[:200]}", ""
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        message = choice["message"]
        texts = [message.get(name) for name in server.probe.accept]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "bad", f"the reply is no chat completion: {body.strip()[:120]!r}", ""
    if reply.get("model") != server.api.model:
        return (
            "mismatch",
            f"the reply came from model {reply.get('model')!r}, expected {server.api.model!r}: "
            "another server holds the port, or api.model of this server is set wrongly",
            "",
        )
    text = "".join(str(found or "") for found in texts).strip()
    if not text:
        usage = reply.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        few = not isinstance(tokens, int) or tokens <= 1
        if choice.get("finish_reason") == "stop" and few:
            return "instant_stop", "the reply stopped at once, without text", ""
        return "bad", f"the reply has no text (finish_reason {choice.get('finish_reason')!r})", ""
    if len(text) > 2 and len(set(text)) == 1:
        return "bad", f"the reply is one repeated character: {text[:12]!r}", text
    return "ok", "", text


def probe(
    server: Server,
    *,
    ask: Callable[[Server, Mapping[str, Any]], Answer] | None = None,
    load: Callable[[Server], Load] | None = None,
) -> ProbeResult:
    """Ask for a completion; an instant stop is asked again unchanged, then with another seed.

    About one reply in a hundred of a healthy engine is an instant stop, so one proves nothing;
    without a seed the identical request draws the identical answer, hence the third try.
    """
    ask = ask or _ask_completion
    load = load or fetch_load
    started = time.monotonic()
    request = {"model": server.api.model, **server.probe.body, "stream": False}
    kind: Kind = "bad"
    why = text = ""
    sampled = Load()
    for body in (request, request, {**request, "seed": _RETRY_SEED}):
        answer, sampled = _with_sample(server, body, ask, load)
        if answer.kind != "answered":
            kind, why = answer.kind, answer.why
            break
        kind, why, text = judge(answer.status, answer.body, server)
        if kind != "instant_stop":
            break
    return ProbeResult(kind, why, time.monotonic() - started, text, sampled)


def _with_sample(
    server: Server,
    body: Mapping[str, Any],
    ask: Callable[[Server, Mapping[str, Any]], Answer],
    load: Callable[[Server], Load],
) -> tuple[Answer, Load]:
    """Ask, and if the answer is slow sample the load meanwhile: is the request queued or hung?"""
    box: list[Answer] = []
    thread = threading.Thread(target=lambda: box.append(ask(server, body)), daemon=True)
    thread.start()
    thread.join(min(2.0, server.probe.timeout / 2))
    sampled = load(server) if thread.is_alive() and server.metrics else Load()
    thread.join(server.probe.timeout + 10)
    if not box:
        return Answer(0, "", "timeout", f"no answer within {server.probe.timeout:g} s"), sampled
    return box[0], sampled


def _ask_completion(server: Server, body: Mapping[str, Any]) -> Answer:
    return request(server, "POST", "/v1/chat/completions", server.probe.timeout, body)


def without_key(server: Server, timeout: float = 10.0) -> str:
    """How the server answers whoever sends no key, in words; "" where it refuses, as it must."""
    anybody = replace(server, api=replace(server.api, key_file=None))
    why = ""
    for _ in range(_KEYLESS_TRIES):
        answer = request(anybody, "GET", "/v1/models", timeout)
        if answer.kind == "answered":
            return "" if answer.status in (401, 403) else f"HTTP {answer.status}"
        why = answer.why
    return why


def fetch_load(server: Server, timeout: float = 5.0) -> Load:
    """Read the server's gauges; anything that goes wrong is an unknown load."""
    if server.metrics is None:
        return Load()
    answer = request(server, "GET", server.metrics.path, timeout)
    if answer.kind != "answered" or answer.status != 200:
        return Load()
    return read_load(answer.body, server.metrics)


def request(
    server: Server,
    method: str,
    path: str,
    timeout: float,
    body: Mapping[str, Any] | None = None,
) -> Answer:
    """One HTTP request over loopback with a deadline for the whole of it, not for each read."""
    deadline = time.monotonic() + timeout
    headers = {"Accept": "application/json, text/plain"}
    payload = None
    if body is not None:
        payload = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    try:
        if server.api.key_file:
            headers["Authorization"] = f"Bearer {read_key(Path(server.api.key_file))}"
        connection = _connect(server, timeout)
    except (OSError, ValueError) as error:
        return Answer(0, "", "refused", f"the API key cannot be read: {error}")
    late = Answer(0, "", "timeout", f"no answer within {timeout:g} s")
    try:
        connection.connect()
        with _cut_off(connection.sock, deadline):
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            data = b""
            while len(data) < _MAX_BODY and (piece := response.read1(65536)):
                data += piece
        if time.monotonic() >= deadline:
            return late
        if response.length:
            # Half of the metrics would be read as less load than there is.
            raise http.client.IncompleteRead(b"", response.length)
        return Answer(response.status, data.decode("utf-8", "replace"))
    except TimeoutError:
        return late
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() >= deadline:
            return late
        return Answer(0, "", "refused", f"{type(error).__name__}: {error}")
    finally:
        connection.close()


@contextmanager
def _cut_off(stream: socket.socket, deadline: float) -> Iterator[None]:
    """End every read and write on `stream` at `deadline`.

    http.client's timeout is one for each read, and a server that trickles outlasts it for ever.
    """

    def cut() -> None:
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)

    watch = threading.Timer(max(0.0, deadline - time.monotonic()), cut)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _connect(server: Server, timeout: float) -> http.client.HTTPConnection:
    if server.api.scheme == "https":
        # Loopback to the server's own certificate, which cannot name 127.0.0.1.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(
            "127.0.0.1", server.api.port, timeout=timeout, context=context
        )
    return http.client.HTTPConnection("127.0.0.1", server.api.port, timeout=timeout)


def read_key(path: Path) -> str:
    """First usable key of a `label: key` file, as the engine reads it."""
    for line in path.read_text(encoding="utf-8").splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            key = stripped.split(":", 1)[-1].strip()
            if not (key.isascii() and key.isprintable()):
                raise OSError(f"the key in {path} has characters that no HTTP header can carry")
            return key
    raise OSError(f"{path} holds no key")
