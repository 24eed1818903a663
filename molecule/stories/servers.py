"""The two servers as a client outside the pair meets them."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simulated_pair import serving

from .machines import (
    HEAD,
    HOSTS,
    WORKER,
    assert_never_two_servers,
    clear_faults,
    exit_code_of,
    is_active,
    machine,
    on,
    pair_command,
)
from .waiting import wait_for

API = {
    "hikari": (WORKER, serving.HIKARI_PORT, "Qwen3.8-Flash-Next"),
    "deepseek": (HEAD, serving.DEEPSEEK_PORT, "DeepSeek-V4.1-Flash-1017"),
}
"""Server -> host, port and the model's name."""

HIKARI_UNITS = ((HEAD, "qwen38fn-miaai-worker.service"), (WORKER, "qwen38fn-miaai-head.service"))
HIKARI_TIMERS = (
    (WORKER, "qwen38fn-miaai-head-watchdog.timer"),
    (WORKER, "qwen38fn-miaai-metrics.timer"),
)
WATCHDOG_SERVICE = "qwen38fn-miaai-head-watchdog.service"
RANK = "dsv41-tensorfold"


@dataclass
class Reply:
    """How one request went; times are CLOCK_MONOTONIC seconds, which the machines share."""

    began: float
    ended: float | None = None
    status: int | None = None
    model: str = ""
    text: str = ""
    finish: str = ""
    error: str = ""


class Request(threading.Thread):
    """One chat completion in the background; `close` hangs up as an impatient client does."""

    def __init__(self, server: str, prompt: str, max_tokens: int, seconds: float) -> None:
        super().__init__(daemon=True)
        host, port, model = API[server]
        self._body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        self._connection = http.client.HTTPConnection(
            machine(host).management, port, timeout=seconds
        )
        self.reply = Reply(began=time.monotonic())

    def run(self) -> None:
        reply = self.reply
        try:
            self._connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(self._body),
                {"Content-Type": "application/json"},
            )
            response = self._connection.getresponse()
            data = json.load(response)
            reply.status, reply.model = response.status, data.get("model", "")
            if data.get("choices"):
                choice = data["choices"][0]
                message = choice["message"]
                reply.text = message.get("content") or message.get("reasoning_content") or ""
                reply.finish = choice["finish_reason"]
        except (OSError, ValueError, http.client.HTTPException) as error:
            reply.error = f"{type(error).__name__}: {error}"
        finally:
            reply.ended = time.monotonic()
            self._connection.close()

    def close(self) -> None:
        """Hang up, whatever the server is doing."""
        if (connected := self._connection.sock) is not None:
            try:
                connected.shutdown(2)
            except OSError:
                return


def completion(server: str, seconds: float = 10) -> Reply:
    """Ask a server for one real completion from outside the pair and wait for it."""
    request = Request(server, "Say something about two machines.", 16, seconds)
    request.start()
    request.join(seconds + 5)
    return request.reply


def generates(server: str, seconds: float = 5) -> bool:
    """Whether a server answers with text, in its own name."""
    reply = completion(server, seconds)
    return reply.status == 200 and reply.model == API[server][2] and bool(reply.text.strip())


def running_requests(server: str) -> float:
    """Requests that a server holds, running and waiting; 0 when it does not say."""
    host, port, _ = API[server]
    return serving.requests_held(machine(host), port, 5) or 0


@contextmanager
def long_requests(server: str, count: int, tokens: int) -> Iterator[list[Request]]:
    """Keep a server busy with `count` requests of `tokens` slow tokens (20 a second) each.

    Entered when the server holds them all; on leaving, those that still run are hung up.
    """
    requests = [
        Request(server, f"[[long]] story number {number}", tokens, 120) for number in range(count)
    ]
    for request in requests:
        request.start()
    try:
        wait_for(f"{server} holds {count} requests", lambda: running_requests(server) >= count, 10)
        yield requests
    finally:
        for request in requests:
            request.close()
            request.join(10)


def rank_runs(host: str) -> bool:
    """Whether a DeepSeek rank's container runs on `host`."""
    names = on(host, "docker ps --format '{{.Names}}'").split()
    return RANK in names


def assert_deepseek_alone() -> None:
    """DeepSeek generates with both ranks, and nothing of Hikari runs."""
    assert generates("deepseek"), completion("deepseek")
    assert [rank_runs(host) for host in HOSTS] == [True, True]
    assert [is_active(*unit) for unit in HIKARI_UNITS] == [False, False]
    assert_never_two_servers()


def assert_hikari_alone() -> None:
    """Hikari generates with its keepers back, and nothing of DeepSeek is left."""
    assert generates("hikari"), completion("hikari")
    assert [is_active(*unit) for unit in HIKARI_UNITS] == [True, True]
    assert [is_active(*unit) for unit in HIKARI_TIMERS] == [True, True]
    assert [rank_runs(host) for host in HOSTS] == [False, False]
    assert_never_two_servers()


def the_one_that_generates() -> str:
    """The only server that answers; AssertionError when it is none or both."""
    found = [server for server in API if generates(server)]
    assert len(found) == 1, f"exactly one server must answer, these do: {found}"
    return found[0]


def let_deepseek_serve() -> None:
    """Bring the pair to where a story about a serving DeepSeek begins.

    By the host's own command: how it came to serve is another story, which costs a play.
    """
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek", seconds=180)
    assert code == 0, said
    assert_deepseek_alone()


def back_to_hikari() -> None:
    """Give the next story a pair on which Hikari serves, whatever the last one left."""
    clear_faults()
    pair_command("reset")
