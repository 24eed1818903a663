"""An OpenAI-style HTTP service over :mod:`standin.speech` and :mod:`standin.lanes`.

A server stand-in derives from :class:`Service` and says what is its own: names, metrics, refusals,
whether its ranks still advance. What cannot be shown here: speed, quality, tokenisation and
everything below HTTP.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import select
import socket
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from standin import speech
from standin.lanes import Lanes
from standin.simulation import Fault, Faults

PREFILL_TOKENS_PER_SECOND = 50_000.0
CHUNK_SECONDS = 0.1
DRAIN_SECONDS = 2.0


class RefusedError(Exception):
    """A request that is answered with an error object; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str, **fields: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, **fields}}


class RunningError(Exception):
    """A request that fails after it was admitted."""


class ClientGoneError(Exception):
    """The caller closed its connection."""


@dataclass(frozen=True)
class Call:
    """One request for text, read from its JSON body. Token counts are stand-in tokens."""

    chat: bool
    prompt: str
    prompt_tokens: int
    max_tokens: int
    thinking: bool
    effort: str
    seed: int | None
    stream: bool
    usage_chunk: bool
    body: dict[str, Any]
    ident: str = field(default_factory=lambda: uuid.uuid4().hex[:24])


@dataclass
class Counters:
    """Totals over *finished* requests: they stay flat during a long reply."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    disconnections: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    latency_seconds: float = 0.0
    first_token_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0

    @property
    def requests(self) -> int:
        """Requests that ended in any way."""
        return sum(self.finished.values())


def flatten(messages: object) -> str:
    """The text of a chat. Raises :class:`RefusedError` when it is not a list of messages."""
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages must be a list", type="invalid_request_error")
    texts: list[str] = []
    for message in messages:
        if not isinstance(message, dict):
            raise RefusedError(400, "every message must be an object", type="invalid_request_error")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(
                str(part.get("text", "")) for part in content if isinstance(part, dict)
            )
        texts.append(f"{message.get('role', '')}: {content or ''}")
    return "\n".join(texts)


class Service:
    """The behaviour both servers share; subclasses override the small methods at the top."""

    model = "model"
    owner = "standin"
    wrong_model = "some-other-model"
    default_max_tokens = 32768
    # Subclasses that know a context window set it; None means "never too long".
    context: int | None = None

    def __init__(self, lanes: Lanes, faults: Faults) -> None:
        self.lanes = lanes
        self.faults = faults
        self.counters = Counters()
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self._completed = False
        self._instant_stop_given = False

    # -- what a subclass says ------------------------------------------------------------------
    def default_thinking(self) -> bool:
        """Whether a request thinks when it does not say."""
        return True

    def default_effort(self) -> str:
        """The effort named in the log for a thinking request."""
        return "high"

    def refuse(self, body: dict[str, Any]) -> None:
        """Raise :class:`RefusedError` for a body the server never accepts."""

    def reservation(self, call: Call) -> int:
        """Positions of the shared pool that the request holds from admission to its end."""
        return 0

    def check_running(self, call: Call) -> None:
        """Raise :class:`RunningError` for what only fails once the request runs."""

    def advances(self) -> bool:
        """False while no token can be made, because a peer is away."""
        return True

    def metrics_text(self, fault: Fault) -> str:
        """The body of ``/metrics``."""
        raise NotImplementedError

    def model_object(self) -> dict[str, Any]:
        """The entry of ``/v1/models``."""
        return {
            "id": self.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": self.owner,
        }

    def health(self) -> dict[str, Any]:
        """The body of ``/health``."""
        return {"status": "ok"}

    def reply_extras(self, call: Call, said: speech.Speech, seconds: float) -> dict[str, Any]:
        """Fields a server adds to its replies."""
        return {}

    def log_done(self, call: Call, said: speech.Speech, finish: str) -> None:
        """Write the line that ends a request."""

    def client_error(self, message: str) -> RefusedError:
        """How a bad body is refused."""
        return RefusedError(400, message, type="invalid_request_error")

    # -- faults --------------------------------------------------------------------------------
    def fault(self) -> Fault:
        """The fault that applies now: one that waits for the smoke test is not yet there."""
        fault = self.faults.current()
        if fault.after_smoke and not self._completed:
            return Fault()
        return fault

    # -- one request ---------------------------------------------------------------------------
    def read_call(self, body: dict[str, Any], *, chat: bool) -> Call:
        """Turn a JSON body into a :class:`Call`. Raises :class:`RefusedError`."""
        self.refuse(body)
        if chat:
            prompt = flatten(body.get("messages"))
        else:
            given = body.get("prompt")
            if not isinstance(given, str):
                raise self.client_error("prompt must be a string")
            prompt = given
        prompt_tokens = speech.count_tokens(prompt)
        asked = body.get("max_tokens", body.get("max_completion_tokens"))
        if asked is not None and (
            not isinstance(asked, int) or isinstance(asked, bool) or asked < 1
        ):
            raise self.client_error("max_tokens must be a positive integer")
        max_tokens = asked if asked is not None else self.default_max_tokens
        if self.context is not None:
            room = self.context - prompt_tokens
            if asked is None:
                max_tokens = max(1, min(max_tokens, room - 64))
            if room < max_tokens:
                raise RefusedError(
                    400,
                    f"This server's maximum context length is {self.context} tokens, but the "
                    f"prompt has {prompt_tokens} and max_tokens is {max_tokens}",
                    type="invalid_request_error",
                    param="messages" if chat else "prompt",
                    code="context_length_exceeded",
                )
        template = body.get("chat_template_kwargs")
        options = template if isinstance(template, dict) else {}
        effort = str(options.get("reasoning_effort", body.get("reasoning_effort", "")) or "")
        thinking = options.get("enable_thinking", self.default_thinking())
        if effort == "none" or not chat:
            thinking = False
        stream_options = body.get("stream_options")
        seed = body.get("seed")
        return Call(
            chat=chat,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            thinking=bool(thinking),
            effort=(effort or self.default_effort()) if thinking else "none",
            seed=seed if isinstance(seed, int) else None,
            stream=body.get("stream") is True,
            usage_chunk=isinstance(stream_options, dict)
            and stream_options.get("include_usage") is True,
            body=body,
        )

    def decide(self, call: Call, fault: Fault) -> speech.Speech:
        """Decide what is said to a request under a fault."""
        if fault.mode == "empty":
            return speech.empty(call.max_tokens)
        if fault.mode == "repeat":
            return speech.repeated_character(call.max_tokens)
        if fault.mode == "instant_stop_always":
            return speech.instant_stop()
        if fault.mode == "instant_stop_once":
            with self.lock:
                given, self._instant_stop_given = self._instant_stop_given, True
            if not given:
                return speech.instant_stop()
        return speech.compose(
            call.prompt, max_tokens=call.max_tokens, thinking=call.thinking, seed=call.seed
        )

    def hold(self) -> None:
        """Keep a request for ever, as an engine stuck in a collective does; its lane stays taken.

        Returns only when the process is told to stop.
        """
        self.stopping.wait()
        raise ClientGoneError

    def pause(self, seconds: float, connection: Connection) -> None:
        """Let time pass for a request that runs; a request whose server died is held."""
        end = time.monotonic() + seconds
        while True:
            if self.fault().mode == "dead":
                self.hold()
            while not self.advances():
                # Nobody looks at the caller's connection while a peer is waited for.
                if self.stopping.wait(CHUNK_SECONDS):
                    raise ClientGoneError
            if self.stopping.is_set() or connection.gone():
                raise ClientGoneError
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, CHUNK_SECONDS))

    def answer(self, call: Call, connection: Connection) -> None:
        """Serve one request from the queue to its last byte."""
        began = time.monotonic()
        reserved = self.reservation(call)
        if not self.lanes.enter(reserved, lambda: self.stopping.is_set() or connection.gone()):
            self._finish(call, speech.Speech(), "cancelled", began, began)
            return
        # Given back before the last byte: who has the whole reply does not count as running.
        lane = contextlib.ExitStack()
        lane.callback(self.lanes.leave, reserved)
        said = speech.Speech()
        finish = "cancelled"
        first = began
        try:
            fault = self.fault()
            if fault.mode == "error500":
                raise RunningError("the stand-in was asked to fail while running")
            self.check_running(call)
            connection.admitted()
            prefill = call.prompt_tokens / PREFILL_TOKENS_PER_SECOND
            if fault.mode == "slow_prefill":
                prefill += fault.seconds
            self.pause(prefill, connection)
            said = self.decide(call, fault)
            first = time.monotonic()
            self._speak(said, connection)
            model = self.wrong_model if fault.mode == "wrong_model" else self.model
            self._finish(call, said, said.finish, began, first)
            finish = said.finish
            lane.close()
            connection.finished(said, model, self.reply_extras(call, said, first - began))
            # A deliberately empty reply is no successful completion for "after the smoke test".
            self._completed = self._completed or bool(said.content or said.reasoning)
        except RunningError as failure:
            finish = "error"
            self._finish(call, said, finish, began, first)
            print(f"stream error: {failure}", file=sys.stderr, flush=True)
            lane.close()
            connection.failed(str(failure))
        except ClientGoneError:
            with self.lock:
                self.counters.disconnections += 1
        finally:
            lane.close()
            if finish == "cancelled":
                self._finish(call, said, finish, began, first)

    def _speak(self, said: speech.Speech, connection: Connection) -> None:
        per_chunk = max(1, int(said.tokens_per_second * CHUNK_SECONDS))
        for kind, tokens in (("reasoning_content", said.reasoning), ("content", said.content)):
            for start in range(0, len(tokens), per_chunk):
                chunk = tokens[start : start + per_chunk]
                self.pause(len(chunk) / said.tokens_per_second, connection)
                connection.text(kind, "".join(chunk))

    def _finish(
        self, call: Call, said: speech.Speech, finish: str, began: float, first: float
    ) -> None:
        rounds = -(-said.tokens // 3)
        with self.lock:
            counters = self.counters
            counters.finished[finish] = counters.finished.get(finish, 0) + 1
            if finish in ("stop", "length"):
                counters.prompt_tokens += call.prompt_tokens
                counters.generation_tokens += said.tokens
                counters.drafted += 2 * rounds
                counters.accepted += max(0, said.tokens - rounds)
            counters.latency_seconds += time.monotonic() - began
            counters.first_token_seconds += first - began
        self.log_done(call, said, finish)


class Connection:
    """The caller's side of one request: plain JSON or server-sent events."""

    def __init__(self, handler: Handler, call: Call, model: str) -> None:
        self._handler = handler
        self._call = call
        self._model = model
        self._created = int(time.time())
        self._said: dict[str, list[str]] = {"reasoning_content": [], "content": []}
        self._streaming = False

    def gone(self) -> bool:
        """Whether the caller has closed the connection."""
        peer: socket.socket = self._handler.connection
        try:
            readable, _, _ = select.select([peer], [], [], 0)
            return bool(readable) and peer.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    def admitted(self) -> None:
        """A lane was given: a stream begins here, before any token, with the role alone."""
        if not self._call.stream:
            return
        self._open_stream()
        if self._call.chat:
            self._event(self._chunk({"role": "assistant"}))

    def text(self, kind: str, text: str) -> None:
        """A piece of the reply; ``kind`` is ``content`` or ``reasoning_content``."""
        self._said[kind].append(text)
        if self._call.stream and self._call.chat:
            self._event(self._chunk({kind: text}))
        elif self._call.stream:
            self._event(self._envelope([{"index": 0, "text": text, "finish_reason": None}]))

    def finished(self, said: speech.Speech, model: str, extras: dict[str, Any]) -> None:
        """The reply is whole."""
        self._model = model
        usage = {
            "prompt_tokens": self._call.prompt_tokens,
            "completion_tokens": said.tokens,
            "total_tokens": self._call.prompt_tokens + said.tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": len(said.reasoning)},
        }
        if self._call.stream:
            choice: dict[str, Any] = {"index": 0, "finish_reason": said.finish}
            if self._call.chat:
                choice["delta"] = {}
            else:
                choice["text"] = ""
            last = self._envelope([choice])
            if not self._call.usage_chunk:
                last |= {"usage": usage, **extras}
            self._event(last)
            if self._call.usage_chunk:
                self._event({**self._envelope([]), "usage": usage, **extras})
            self._end_stream()
            return
        content = "".join(self._said["content"])
        if self._call.chat:
            message: dict[str, Any] = {"role": "assistant", "content": content}
            if self._call.thinking:
                message["reasoning_content"] = "".join(self._said["reasoning_content"])
            choice = {"index": 0, "message": message, "finish_reason": said.finish}
        else:
            choice = {"index": 0, "text": content, "finish_reason": said.finish}
        self._handler.send_json(200, {**self._envelope([choice]), "usage": usage, **extras})

    def failed(self, message: str) -> None:
        """The request failed after it was admitted: status 500, or an event in a stream of 200."""
        if not self._call.stream:
            self._handler.send_json(500, {"error": {"message": message}})
            return
        if not self._streaming:
            self._open_stream()
        self._event({"error": {"message": message, "type": "server_error"}})
        self._end_stream()

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion" if self._call.chat else "text_completion"
        if self._call.stream and self._call.chat:
            kind = "chat.completion.chunk"
        return {
            "id": f"{'chatcmpl' if self._call.chat else 'cmpl'}-{self._call.ident}",
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        return self._envelope([{"index": 0, "delta": delta, "finish_reason": None}])

    def _open_stream(self) -> None:
        self._streaming = True
        self._handler.open_stream()

    def _event(self, data: dict[str, Any]) -> None:
        self._handler.write_stream(f"data: {json.dumps(data)}\n\n".encode())

    def _end_stream(self) -> None:
        self._handler.write_stream(b"data: [DONE]\n\n")


class Handler(BaseHTTPRequestHandler):
    """Routes of the service; one instance a connection."""

    protocol_version = "HTTP/1.1"
    service: ClassVar[Any]

    def log_message(self, format: str, *args: object) -> None:
        """Access lines are left out: the server logs requests when they end."""

    def handle(self) -> None:
        """Serve a connection; a caller that goes away is no event worth a traceback."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def allowed(self, path: str) -> bool:
        """Whether the caller may use a path; an answer was sent when not."""
        return True

    def send_text(self, status: int, content_type: str, text: str, **headers: str) -> None:
        """Send a whole answer. Header names are given with underscores."""
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def send_json(self, status: int, body: dict[str, Any], **headers: str) -> None:
        """Send a JSON answer."""
        self.send_text(status, "application/json", json.dumps(body), **headers)

    def open_stream(self) -> None:
        """Begin a stream of events; the connection ends with it."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def write_stream(self, data: bytes) -> None:
        """Write a part of a stream. Raises :class:`ClientGoneError`."""
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError as error:
            raise ClientGoneError from error

    def unknown_path(self, path: str) -> None:
        """Answer a path that is not there."""
        self.send_json(404, {"error": {"message": f"unknown path {path}"}})

    def do_GET(self) -> None:
        """Health, models and metrics."""
        path = self.path.split("?", 1)[0]
        if not self.allowed(path):
            return
        if path in ("/", "/health"):
            self.send_json(200, self.service.health())
        elif path.endswith("/models"):
            self.send_json(200, {"object": "list", "data": [self.service.model_object()]})
        elif path in ("/metrics", "/v1/metrics"):
            text = self.service.metrics_text(self.service.fault())
            self.send_text(200, "text/plain; version=0.0.4", text)
        else:
            self.unknown_path(path)

    def do_POST(self) -> None:
        """Text."""
        path = self.path.split("?", 1)[0]
        # The body is read in any case: what is left unread would be taken for the next request.
        body = self._body()
        if not self.allowed(path):
            return
        chat = path.endswith("/chat/completions")
        if not chat and not path.endswith("/completions"):
            self.unknown_path(path)
            return
        try:
            data = self._parse(body)
            call = self.service.read_call(data, chat=chat)
        except RefusedError as refusal:
            self._refuse(refusal, body)
            return
        self.service.answer(call, Connection(self, call, self.service.model))

    def _body(self) -> bytes:
        # A chunked body has no length and is read as empty, as the real server does.
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = 0
        return self.rfile.read(length)

    def _parse(self, body: bytes) -> dict[str, Any]:
        try:
            data = json.loads(body or b"{}")
        except ValueError as error:
            raise self.service.client_error("the body is not JSON") from error
        if not isinstance(data, dict):
            raise self.service.client_error("the body must be a JSON object")
        return data

    def _refuse(self, refusal: RefusedError, body: bytes) -> None:
        overflow = refusal.body["error"].get("code") == "context_length_exceeded"
        if overflow and json.loads(body).get("stream") is True:
            self.open_stream()
            self.write_stream(f"data: {json.dumps(refusal.body)}\n\ndata: [DONE]\n\n".encode())
            return
        self.send_json(refusal.status, refusal.body)


class Listener(ThreadingHTTPServer):
    """The listening socket; connections are served by threads that never delay the exit."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Print a failure in one line, except when the caller simply went away."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, ClientGoneError)):
            print(f"[stand-in] request failed: {error!r}", file=sys.stderr, flush=True)


def listen(service: Service, handler: type[Handler], host: str, port: int) -> Listener:
    """Bind and serve in the background. Raises ``OSError`` when the port is taken."""
    bound = type("BoundHandler", (handler,), {"service": service})
    listener = Listener((host, port), bound)
    threading.Thread(target=listener.serve_forever, args=(0.1,), daemon=True).start()
    return listener


def close(service: Service, listener: Listener) -> None:
    """Stop accepting and give open replies at most :data:`DRAIN_SECONDS` seconds."""
    listener.shutdown()
    listener.server_close()
    end = time.monotonic() + DRAIN_SECONDS
    while service.lanes.running and time.monotonic() < end:
        time.sleep(0.05)
    service.stopping.set()


def digest(said: speech.Speech) -> str:
    """Twelve hex digits that identify a reply's text."""
    text = "".join(said.reasoning) + "\0" + "".join(said.content)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
