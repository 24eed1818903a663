"""The simulated pair's pure parts: names of a checkout, and overlaps computed from the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulated_pair.ledger import (
    Event,
    LedgerError,
    ends_for,
    intervals,
    overlaps,
    parse,
    still_running,
)
from simulated_pair.naming import NUMBERS, VARIABLE, pair_of


def event(server: str, kind: str, at: float, pid: int = 1, part: str = "rank0") -> Event:
    return Event(server, part, kind, at, pid)


class TestNames:
    def test_two_clones_share_nothing_but_host_names(self, tmp_path: Path) -> None:
        one, two = pair_of(tmp_path / "one"), pair_of(tmp_path / "two")
        assert [machine.name for machine in one.machines] == ["spark-033f", "spark-5bf0"]
        assert one.prefix != two.prefix
        assert {n.subnet for n in one.networks}.isdisjoint(n.subnet for n in two.networks)

    def test_pairs_of_one_checkout_share_nothing_but_host_names(self, tmp_path: Path) -> None:
        pairs = [pair_of(tmp_path, number) for number in NUMBERS]
        subnets = [network.subnet for pair in pairs for network in pair.networks]
        names = [
            *(machine.container for pair in pairs for machine in pair.machines),
            *(network.stem for pair in pairs for network in pair.networks),
        ]
        folders = [machine.state for pair in pairs for machine in pair.machines]
        for unique in (subnets, names, folders):
            assert len(set(unique)) == len(unique)
        for pair in pairs:
            mine = [name for name in names if name.startswith(f"{pair.prefix}-")]
            assert len(mine) == 5, "its name is the beginning of another one's"
            assert pair.common == pairs[0].state

    def test_the_environment_says_which_pair_is_meant(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        assert pair_of(tmp_path) == pair_of(tmp_path, 1)
        monkeypatch.setenv(VARIABLE, "2")
        assert pair_of(tmp_path) == pair_of(tmp_path, 2)
        for wrong in ("0", "two", "-1", "99"):
            monkeypatch.setenv(VARIABLE, wrong)
            with pytest.raises(ValueError, match=VARIABLE):
                pair_of(tmp_path)

    def test_the_same_path_gives_the_same_pair(self, tmp_path: Path) -> None:
        assert pair_of(tmp_path) == pair_of(tmp_path / "." / "x" / "..")

    def test_rails_are_cut_off_and_management_is_not(self, tmp_path: Path) -> None:
        assert [n.internal for n in pair_of(tmp_path).networks] == [False, True, True]

    def test_the_hub_is_on_the_head(self, tmp_path: Path) -> None:
        pair = pair_of(tmp_path)
        assert pair.hub_url == f"http://{pair.head.management}:8760"

    def test_machines_by_name_and_by_role(self, tmp_path: Path) -> None:
        pair = pair_of(tmp_path)
        assert pair.machine("head") is pair.machine("spark-033f")
        with pytest.raises(KeyError):
            pair.machine("nobody")


class TestLedger:
    def test_one_after_the_other_is_no_overlap(self) -> None:
        events = [
            event("hikari", "start", 1),
            event("hikari", "stop", 5),
            event("deepseek", "start", 5),
        ]
        assert overlaps(events) == []

    def test_a_moment_together_is_found(self) -> None:
        events = [
            event("hikari", "start", 1),
            event("deepseek", "start", 4.9),
            event("hikari", "stop", 5),
            event("deepseek", "stop", 9),
        ]
        (found,) = overlaps(events)
        assert (found.first.server, found.second.server) == ("hikari", "deepseek")
        assert found.start == 4.9
        assert found.seconds == pytest.approx(0.1)

    def test_two_that_still_run_overlap_for_ever(self) -> None:
        (found,) = overlaps([event("hikari", "start", 1), event("deepseek", "start", 2)])
        assert found.seconds is None

    def test_parts_of_one_server_may_overlap(self) -> None:
        events = [event("deepseek", "start", 1), event("deepseek", "start", 1, 2, "rank1")]
        assert overlaps(events) == []

    def test_a_violent_end_under_another_pid_closes_the_life(self) -> None:
        events = [event("deepseek", "start", 1, 7), event("deepseek", "gone", 3, 4711)]
        assert [life.end for life in intervals(events)] == [3]

    def test_a_power_cut_ends_what_ran(self) -> None:
        events = [event("hikari", "start", 1), event("deepseek", "start", 2, 2)]
        events.append(event("hikari", "stop", 3))
        assert [end.server for end in ends_for(events, 9)] == ["deepseek"]
        assert still_running([*events, *ends_for(events, 9)]) == []

    def test_a_line_being_written_is_left_out(self) -> None:
        whole = event("hikari", "start", 1).line()
        assert parse(whole + whole[:10]) == [event("hikari", "start", 1)]

    @pytest.mark.parametrize(
        "line", ["no json", "{}", json.dumps({**vars(event("a", "started", 1))})]
    )
    def test_anything_else_is_refused_with_its_line(self, line: str) -> None:
        with pytest.raises(LedgerError, match="line 1"):
            parse(line + "\n")

    @given(
        lives=st.lists(
            st.tuples(
                st.sampled_from(["hikari", "deepseek"]),
                st.floats(0, 100, allow_nan=False),
                st.floats(0.1, 20, allow_nan=False),
            ),
            max_size=8,
        )
    )
    def test_agrees_with_looking_at_every_moment(
        self, lives: list[tuple[str, float, float]]
    ) -> None:
        events = []
        for pid, (server, start, length) in enumerate(lives):
            events.append(event(server, "start", start, pid, f"part{pid}"))
            events.append(event(server, "stop", start + length, pid, f"part{pid}"))
        moments = [start for _, start, _ in lives]
        seen = any(
            len({name for name, start, length in lives if start <= at < start + length}) > 1
            for at in moments
        )
        assert bool(overlaps(events)) == seen
