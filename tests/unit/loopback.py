"""An HTTP server on loopback that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


Reply = Callable[[Asked, BaseHTTPRequestHandler], None]


@dataclass
class Loopback:
    """The server's port, and every request in order."""

    port: int
    asked: list[Asked] = field(default_factory=list)


def send(handler: BaseHTTPRequestHandler, text: str, status: int = 200) -> None:
    """Answer with a whole body of a known length."""
    data = text.encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@contextmanager
def loopback(reply: Reply) -> Iterator[Loopback]:
    """Serve on an ephemeral port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked = Asked(self.command, self.path, dict(self.headers), body)
            known.asked.append(asked)
            try:
                reply(asked, self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the asker had enough

        do_GET = _answer  # noqa: N815 - the name is given by http.server
        do_POST = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    known = Loopback(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()


def completion(text: str = "four", model: str = "DeepSeek", **changes: Any) -> dict[str, Any]:
    """A chat completion as a healthy server answers it."""
    return {
        "model": model,
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 5},
        **changes,
    }
