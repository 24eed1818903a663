"""How often a server was restarted lately, from a journal with boots and torn lines."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.journal import Event
from spark_pair.switch.throttle import restarts

NOW = 1_000_000.0
HOUR = 3600.0


def story(
    switch: str, at: float, *, target: str = "deepseek", restart: bool = True, **armed: Any
) -> list[Event]:
    """A switch that restarted its target, as the journal tells it."""
    return [
        {"event": "begin", "id": switch, "time": at, "target": target},
        {"event": "armed", "id": switch, "time": at + 1, "restart": restart, **armed},
        {"event": "phase", "id": switch, "time": at + 2, "phase": "stop"},
        {"event": "end", "id": switch, "time": at + 3, "exit": 0},
    ]


def count(*events: Event, but: str = "now") -> int:
    return restarts(events, "deepseek", HOUR, now=NOW, but=but)


@pytest.mark.fault(48)
class TestCount:
    def test_within_the_window_only(self) -> None:
        assert count(*story("s1", NOW - 4000), *story("s2", NOW - 3000)) == 1

    def test_of_this_server_only(self) -> None:
        assert count(*story("s1", NOW - 10, target="hikari")) == 0

    def test_not_a_start_of_one_that_was_stopped_on_purpose(self) -> None:
        assert count(*story("s1", NOW - 10, restart=False)) == 0

    def test_not_the_switch_that_asks(self) -> None:
        assert count(*story("s1", NOW - 10), but="s1") == 0

    def test_refused_ones_restarted_nothing(self) -> None:
        begin, *_, end = story("s1", NOW - 10)
        assert count(begin, end) == 0

    @pytest.mark.parametrize("verdict", ["dead", "partial"])
    def test_lines_of_an_earlier_release(self, verdict: str) -> None:
        begin, armed, *rest = story("s1", NOW - 10, verdicts={"deepseek": verdict})
        del armed["restart"]
        assert count(begin, armed, *rest) == 1

    def test_a_torn_line_hides_no_restart(self) -> None:
        begin, _, *rest = story("s1", NOW - 10)
        assert count(begin, *rest) == 1

    def test_a_boot_is_no_restart(self) -> None:
        begin, _, phase, end = story("s1", NOW - 10)
        assert count(begin, {**phase, "phase": "recover"}, end) == 0

    def test_a_clock_that_was_ahead_delays_for_an_hour_at_most(self) -> None:
        ahead = [*story("s1", NOW + 9e6), *story("s2", NOW + 9e6 + 60)]
        assert count(*ahead) == 2
        later = {"event": "begin", "id": "s3", "time": NOW - HOUR - 1, "target": "deepseek"}
        assert count(*ahead, later) == 0

    @pytest.mark.parametrize("missing", ["time", "target"])
    def test_foreign_lines_are_passed_over(self, missing: str) -> None:
        events = story("s1", NOW - 10)
        del events[0][missing]
        assert count(*events, *story("s2", NOW - 5)) == (1 if missing == "target" else 2)

    @given(st.lists(st.floats(min_value=0, max_value=2 * NOW), max_size=5))
    def test_restarts_one_after_the_other_are_never_forgotten_by_a_later_clock(
        self, times: list[float]
    ) -> None:
        events = list(
            itertools.chain.from_iterable(
                story(f"s{number}", at) for number, at in enumerate(times)
            )
        )
        assert count(*events) <= len(times)
        if times and min(times) >= NOW - HOUR:
            assert count(*events) == len(times)
