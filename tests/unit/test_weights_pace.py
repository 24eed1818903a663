"""How fast, what is shown of it, and reading with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.weights.pace import Limiter, Meter
from spark_pair.weights.streams import StalledError, drained, in_order


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.integers(1, 10_000), min_size=1), st.floats(1.0, 1e6))
def test_what_waits_as_told_keeps_the_rate(counts: list[int], rate: float) -> None:
    clock = Clock()
    limiter = Limiter(rate, clock)
    for count in counts:
        clock.now += limiter.seconds_for(count)
    assert clock.now - 100.0 == pytest.approx(sum(counts) / rate)


def test_time_without_bytes_is_no_credit() -> None:
    clock = Clock()
    limiter = Limiter(100, clock)
    clock.now += 1000
    assert limiter.seconds_for(50) == pytest.approx(0.5)
    assert limiter.seconds_for(50) == pytest.approx(1.0)  # another thread, at the same time


@pytest.mark.parametrize("none", [None, 0])
def test_no_limit(none: float | None) -> None:
    assert Limiter(none).seconds_for(10**12) == 0.0


def test_the_meter_shows_the_rate_of_the_last_seconds() -> None:
    clock = Clock()
    meter = Meter(10_000, clock)
    meter.there("kept", 5_000)  # of an earlier run: there, but it did not come
    meter.say("fetching a")
    for second in range(1, 31):
        clock.now += 1
        meter.came("a", 10 if second <= 15 else 100, second)
        reading = meter.read()
    assert (reading.done, reading.total, reading.fetched) == (5_030, 10_000, 15 * 110)
    assert reading.rate == pytest.approx(100)
    assert reading.step == "fetching a"


def test_a_file_begun_anew_counts_once() -> None:
    meter = Meter(100)
    meter.came("a", 60, 60)
    meter.there("a", 0)
    meter.came("a", 30, 30)
    assert (meter.read().done, meter.read().fetched) == (30, 90)


def look() -> None:
    """Nothing to see."""


def test_a_stream_is_drained_in_order_and_closed() -> None:
    closed: list[str] = []

    def stream() -> Iterator[bytes]:
        try:
            for number in range(100):
                yield b"%d" % number
        finally:
            closed.append("stream")

    given_up = partial(closed.append, "abandoned")
    assert list(drained(stream(), 5, look, given_up)) == [b"%d" % n for n in range(100)]
    assert closed == ["stream", "abandoned"]


def test_what_a_stream_raises_arrives() -> None:
    def stream() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("broke")

    chunks = drained(stream(), 5, look)
    assert next(chunks) == b"a"
    with pytest.raises(ValueError, match="broke"):
        next(chunks)


def test_a_silent_stream_is_given_up_and_told_so() -> None:
    silence = threading.Event()

    def stream() -> Iterator[bytes]:
        yield b"a"
        silence.wait(30)

    chunks = drained(stream(), 0.3, look, silence.set)
    assert next(chunks) == b"a"
    with pytest.raises(StalledError):
        next(chunks)
    assert silence.is_set()


def test_a_look_ends_a_wait() -> None:
    silence = threading.Event()
    looks = iter([None, None, KeyError("stop")])

    def stream() -> Iterator[bytes]:
        silence.wait(30)
        yield b""

    def stop() -> None:
        if error := next(looks):
            raise error

    with pytest.raises(KeyError):
        next(drained(stream(), 30, stop, silence.set))


def test_a_reader_that_leaves_ends_the_stream() -> None:
    closed = threading.Event()

    def stream() -> Iterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    chunks = drained(stream(), 5, look)
    next(chunks)
    chunks.close()
    assert closed.wait(5)


@given(st.integers(1, 4), st.integers(0, 9))
def test_jobs_answer_in_order_and_few_run_at_once(depth: int, count: int) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def job(number: int) -> bytes:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001 * (number % 3))
        with lock:
            running -= 1
        return b"%d" % number

    jobs: Iterator[Callable[[], bytes]] = (partial(job, number) for number in range(count))
    assert list(in_order(jobs, depth)) == [b"%d" % number for number in range(count)]
    assert most <= depth


def test_a_job_that_fails_says_so_in_its_turn() -> None:
    def fail() -> bytes:
        raise RuntimeError("no")

    results = in_order(iter([lambda: b"a", fail]), 3)
    assert next(results) == b"a"
    with pytest.raises(RuntimeError, match="no"):
        next(results)
