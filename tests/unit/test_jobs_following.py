"""Watching a job from afar."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from spark_pair.jobs import following
from spark_pair.jobs.following import Follower, FollowError, view_in


def running(line: str) -> dict[str, Any]:
    return {"state": "running", "line": line}


DONE = {"state": "done", "message": "39 files are there", "result": {"data": {"files": 39}}}


class World:
    """A host that gives one look after the other, and a clock that sleeping moves."""

    def __init__(self, looks: Iterable[dict[str, Any] | None], *, live: bool = True) -> None:
        self.looks = list(looks)
        self.now = 1000.0
        self.said: list[str] = []
        self.follower = Follower(
            "spark-a", "download-x-head", "download x", self.look, self.said.append,
            live=live, sleep=self.sleep, clock=lambda: self.now,
        )  # fmt: skip

    def look(self) -> tuple[dict[str, Any] | None, str]:
        seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return seen, "connection refused" if seen is None else ""

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_every_new_line_is_said_and_the_end_with_its_words() -> None:
    world = World([running("1 of 3"), running("1 of 3"), running("2 of 3"), DONE])
    assert world.follower.follow() == DONE
    assert world.said == ["1 of 3", "2 of 3", "download x: 39 files are there"]


def test_where_nobody_watches_lines_come_seldom() -> None:
    world = World([*(running(f"{number} of 60") for number in range(60)), DONE], live=False)
    world.follower.follow()
    assert world.said[0] == "0 of 60"
    assert (
        60 * following.POLL_SECONDS / following.SECONDS_BETWEEN_LINES - 1 <= len(world.said) <= 10
    )


def test_a_lost_connection_is_waited_for_and_said_once() -> None:
    world = World([running("1 of 3"), *[None] * 100, running("2 of 3"), DONE])
    world.follower.follow()
    assert world.said[1] == "does not answer (connection refused); the job goes on there, waiting"
    assert world.said[2:4] == ["answers again", "2 of 3"]


def test_a_host_that_stays_away_ends_the_watching_and_not_the_job() -> None:
    world = World([running("1 of 3"), None])
    with pytest.raises(FollowError, match="spark-a has not answered for 10 minutes") as raised:
        world.follower.follow()
    assert "goes on by itself there: run again to attach" in str(raised.value)
    assert world.now - 1000.0 >= following.LOST_CONNECTION_SECONDS


def test_two_short_absences_do_not_add_up() -> None:
    away = [None] * 200  # 400 s
    world = World([*away, running("1 of 3"), *away, DONE])
    assert world.follower.follow() == DONE


@pytest.mark.parametrize(
    ("state", "message", "words"),
    [
        ("failed", "the disk is full", "download x on spark-a failed: the disk is full"),
        ("lost", "the machine was booted", "download x on spark-a was cut off: the machine"),
        ("absent", "", "download x on spark-a is not known there: nobody knows"),
    ],
)
def test_a_job_that_was_not_done_is_a_failure_with_its_host(
    state: str, message: str, words: str
) -> None:
    world = World([{"state": state, "message": message, "result": None}])
    with pytest.raises(FollowError, match=words):
        world.follower.follow()


def test_a_job_with_another_order_is_not_taken_for_ours() -> None:
    world = World([DONE])
    world.follower.attached(same=True)
    assert world.said == ["download x runs already, attached to it"]
    with pytest.raises(FollowError, match="runs already, and with another order"):
        world.follower.attached(same=False)


def test_the_view_is_found_among_what_others_say() -> None:
    line = json.dumps(DONE)
    assert view_in(f"sudo: a lecture\n{line}\r\nShared connection closed.\n") == DONE
    for other in ("", "Segmentation fault", "{broken", '{"no": "state"}', "[]"):
        assert view_in(other) is None
