"""Reading with a deadline: a stream is drained by a thread of its own.

Neither of the two ways to the Hub's bytes can be told to give up while it waits, so the wait
happens here, where "stop" and "nothing came for two minutes" are noticed within a second.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future

CHUNKS_AHEAD = 16
LOOK_SECONDS = 0.25
JOIN_SECONDS = 2.0


class StalledError(Exception):
    """Nothing came for too long."""


def drained(
    stream: Iterator[bytes],
    stall_seconds: float,
    look: Callable[[], None],
    abandon: Callable[[], None] = lambda: None,
) -> Generator[bytes, None, None]:
    """The chunks of a stream, read ahead by a thread.

    `look` is called at least every LOOK_SECONDS and may raise to end it all. What the stream
    raises is raised here. Raises StalledError when nothing came for `stall_seconds`. At the end,
    whatever it was, `abandon` is called: it shall make a stream that still waits end.
    """
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(CHUNKS_AHEAD)
    unwanted = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not unwanted.is_set():
            try:
                ready.put(item, timeout=LOOK_SECONDS)
            except queue.Full:
                continue
            return

    def read() -> None:
        try:
            for chunk in stream:
                put(chunk)
                if unwanted.is_set():
                    break
            put(None)
        except BaseException as error:
            put(error)
        finally:
            close = getattr(stream, "close", None)
            if close:
                close()

    reader = threading.Thread(target=read, name="stream", daemon=True)
    reader.start()
    try:
        while True:
            item = _next(ready, stall_seconds, look)
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        unwanted.set()
        abandon()
        reader.join(JOIN_SECONDS)


def in_order(jobs: Iterator[Callable[[], bytes]], depth: int) -> Generator[bytes, None, None]:
    """The results of jobs, `depth` of which run at once, in the order of the jobs."""
    running: deque[Future[bytes]] = deque()
    for job in jobs:
        running.append(_started(job))
        if len(running) >= depth:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _started(job: Callable[[], bytes]) -> Future[bytes]:
    """A job in a thread of its own, which does not keep the process from ending."""
    future: Future[bytes] = Future()

    def work() -> None:
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="piece", daemon=True).start()
    return future


def _next(
    ready: queue.Queue[bytes | BaseException | None],
    stall_seconds: float,
    look: Callable[[], None],
) -> bytes | BaseException | None:
    deadline = time.monotonic() + stall_seconds
    while True:
        look()
        try:
            return ready.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            if time.monotonic() >= deadline:
                raise StalledError from None
