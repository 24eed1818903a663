"""The live line of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from spark_pair.jobs.shapes import JobState, JobView, Progress, Request
from spark_pair.jobs.words import amount, duration, line, size, table

NOW = 1000.0
PROGRESS = Progress(12_300_000_000, 210_400_000_000, 98.3e6, 33 * 60, "download checkpoint", NOW)
REQUEST = Request(id="r1", at=NOW, boot="b", argv=("/opt/tool",), words="fetch the checkpoint")
RUNNING = JobView("download", JobState.RUNNING, "", REQUEST, PROGRESS)


def test_the_live_line() -> None:
    words = "download checkpoint  12.3 of 210.4 GB  98 MB/s  33 min left"
    assert line(RUNNING, NOW) == words
    assert line(RUNNING, NOW + 59) == words


def test_old_speed_is_not_shown() -> None:
    words = "download checkpoint  12.3 of 210.4 GB  no news for 2 min"
    assert line(RUNNING, NOW + 120) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"total": None, "left_seconds": None}, "x  12.3 GB  98 MB/s"),
        ({"total": None, "left_seconds": None, "rate": None, "done": 0}, "x"),
        ({"rate": None, "left_seconds": None}, "x  12.3 of 210.4 GB"),
        ({"rate": 4_240_000.0}, "x  12.3 of 210.4 GB  4.2 MB/s  33 min left"),
        ({"rate": 0.0, "left_seconds": None}, "x  12.3 of 210.4 GB  0 B/s"),
        ({"done": 210_400_000_000, "left_seconds": 0.0}, "x  210.4 of 210.4 GB"),
        ({"done": 0, "total": 0, "rate": None, "left_seconds": None}, "x  0 of 0 B"),
    ],
)
def test_what_is_not_known_is_left_out(change: dict[str, object], words: str) -> None:
    progress = replace(PROGRESS, step="x", **change)  # type: ignore[arg-type]
    assert line(replace(RUNNING, progress=progress), NOW) == words


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (JobView("download", JobState.ABSENT), "download  never started"),
        (JobView("download", JobState.RUNNING), "download  running"),
        (replace(RUNNING, progress=None), "fetch the checkpoint  running"),
        (
            JobView("download", JobState.DONE, "39 files", REQUEST),
            "fetch the checkpoint  done: 39 files",
        ),
        (
            replace(RUNNING, state=JobState.FAILED, message="no network"),
            "fetch the checkpoint  failed: no network",
        ),
    ],
)
def test_other_states(view: JobView, words: str) -> None:
    assert line(view, NOW) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (59.4, "59 s"), (59.7, "1 min"), (90, "2 min"), (5940, "99 min"),
        (20_160, "5 h 36 min"), (273_600, "3 d 4 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_940, "999.9 kB"), (999_950, "1.0 MB"),
        (682_275_992, "682.3 MB"), (3.5e15, "3500.0 TB"),
    ],
)  # fmt: skip
def test_sizes(count: float, words: str) -> None:
    assert size(count) == words


@given(some.integers(0, 10**15), some.integers(0, 10**15))
def test_an_amount_never_says_more_than_all(one: int, other: int) -> None:
    done, total = sorted((one, other))
    shown, whole = amount(done, total).rsplit(" ", 1)[0].split(" of ")
    assert float(shown) <= float(whole)


@given(some.floats(0, 1e9))
def test_a_duration_is_never_sixty_of_anything(seconds: float) -> None:
    words = duration(seconds)
    assert not words.startswith("60 s") and " 60 min" not in words and " 24 h" not in words


def test_table() -> None:
    views = [replace(RUNNING, name="download"), JobView("cut", JobState.FAILED, "no room", REQUEST)]
    assert table(views, NOW).splitlines() == [
        "download  running  download checkpoint  12.3 of 210.4 GB  98 MB/s  33 min left",
        "cut       failed   no room",
    ]
