"""The status table: true with a host away, with nobody serving, under a hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_pair import NEW, OLD, FakePair

from spark_pair.description import ROLES, Role
from spark_pair.hostview import View
from spark_pair.metrics import Load
from spark_pair.probe import ProbeResult
from spark_pair.report import facts, pair_table, verdict_of
from spark_pair.verdict import State

NOON = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def pair() -> FakePair:
    return FakePair()


def views_of(pair: FakePair, *, ask: bool = True) -> dict[Role, View | None]:
    """Views as `status` gathers them: servers that answer were asked for a completion."""
    views: dict[Role, View | None] = {}
    for role in ROLES:
        if role in pair.away:
            views[role] = None
            continue
        view = pair.nodes[role].observe()
        for name, api in view["apis"].items():
            if ask and api["listens"]:
                api["probe"] = pair.servers[name].probe(1).as_dict()
        views[role] = view
    return views


def table(
    pair: FakePair,
    *,
    state: dict[str, Any] | None = None,
    last: dict[str, Any] | None = None,
    ask: bool = True,
) -> dict[str, str]:
    """The table's rows by their name."""
    text = pair_table(pair.description, views_of(pair, ask=ask), state, last)
    rows = [line.split("  ", 1) for line in text.splitlines()]
    return {name.strip(): value.strip() for name, value in rows}


class TestServing:
    def test_the_whole_table(self, pair: FakePair) -> None:
        pair.start("deepseek")
        pair.links["deepseek"] = NEW
        state = {"serving": {"server": "deepseek", "since": NOON}, "hold": None}
        last = {"time": NOON, "target": "deepseek", "exit": 0, "message": "deepseek serves"}
        assert table(pair, state=state, last=last) == {
            "pair": "a+b",
            "serves": "deepseek since 2023-11-14 22:13:20; verified just now: "
            "a completion took 0.1 s",
            "hikari": "down",
            "deepseek": "serving (a completion took 0.1 s); port 8888 on a; 0 running, 0 waiting; "
            "context 262144",
            "- rank 0": "ds on a: running",
            "- rank 1": "ds on b: running",
            "a (head)": "21.0 of 121.0 GiB available",
            "b (worker)": "21.0 of 121.0 GiB available",
            "wanted": "deepseek (fallback hikari)",
            "hold": "none",
            "last switch": "2023-11-14 22:13:20 to deepseek: exit 0; deepseek serves",
        }

    def test_columns_are_aligned(self, pair: FakePair) -> None:
        lines = pair_table(pair.description, views_of(pair), None, None).splitlines()
        width = len("last switch") + 2
        assert all(line[width - 1] == " " and line[width] != " " for line in lines)

    def test_since_is_not_claimed_for_another_server(self, pair: FakePair) -> None:
        pair.start("hikari")
        state = {"serving": {"server": "deepseek", "since": NOON}}
        assert table(pair, state=state)["serves"].startswith("hikari; verified just now")

    def test_a_queue_is_busy_and_serves(self, pair: FakePair) -> None:
        pair.start("hikari")
        load = Load(8, 1, None)
        pair.servers["hikari"].load = load
        pair.servers["hikari"].probe = lambda _: ProbeResult("timeout", "late", load=load)
        rows = table(pair)
        assert rows["serves"].startswith("hikari")
        assert rows["hikari"].startswith("busy (a completion had to queue (8 running, 1 waiting))")

    def test_two_at_once_are_shouted(self, pair: FakePair) -> None:
        pair.start("hikari")
        pair.start("deepseek")
        assert table(pair)["serves"].startswith("hikari AND deepseek")

    def test_unknown_load_is_said(self, pair: FakePair) -> None:
        pair.start("hikari")
        pair.servers["hikari"].load = Load()
        assert "running unknown, waiting unknown" in table(pair)["hikari"]


class TestNobody:
    def test_serves(self, pair: FakePair) -> None:
        rows = table(pair)
        assert rows["serves"] == "nobody"
        assert rows["hikari"] == "down"
        assert rows["last switch"] == "none"

    def test_a_server_that_does_not_generate_does_not_serve(self, pair: FakePair) -> None:
        pair.start("hikari")
        pair.servers["hikari"].probe = lambda _: ProbeResult("bad", "the reply has no text")
        rows = table(pair)
        assert rows["serves"] == "nobody"
        assert rows["hikari"].startswith("up (but it does not generate: the reply has no text)")

    def test_not_asked_is_not_verified(self, pair: FakePair) -> None:
        pair.start("hikari")
        rows = table(pair, ask=False)
        assert rows["serves"] == "nobody"
        assert rows["hikari"].startswith("up (all parts run; no completion was asked)")

    def test_an_open_switch(self, pair: FakePair) -> None:
        last = {"time": NOON, "target": "deepseek", "exit": None, "message": "not ended"}
        assert table(pair, last=last)["last switch"].endswith("to deepseek: still open; not ended")

    def test_a_half_server_shows_what_is_left(self, pair: FakePair) -> None:
        pair.containers["head"].add("ds")
        rows = table(pair)
        assert rows["deepseek"].startswith("partial (ds on a is there, ds on b is not)")
        assert (rows["- rank 0"], rows["- rank 1"]) == ("ds on a: running", "ds on b: absent")


class TestAway:
    def test_the_worker(self, pair: FakePair) -> None:
        pair.start("hikari")
        pair.away = {"worker"}
        rows = table(pair)
        assert rows["serves"] == "unknown: b cannot be reached"
        assert rows["hikari"] == "unknown (b did not say how it is there)"
        assert rows["b (worker)"] == "cannot be reached"
        assert rows["a (head)"].endswith("GiB available")

    def test_both(self, pair: FakePair) -> None:
        pair.away = {"head", "worker"}
        rows = table(pair)
        assert rows["serves"] == "unknown: a and b cannot be reached"
        assert "restart needed" not in rows

    def test_memory_that_cannot_be_read(self, pair: FakePair) -> None:
        views = views_of(pair)
        head = views["head"]
        assert head is not None
        head["memory"] = None
        assert "memory unknown" in pair_table(pair.description, views, None, None)


class TestNotices:
    def test_a_hold(self, pair: FakePair) -> None:
        state = {"hold": {"since": NOON, "by": "recovery", "reason": "it was slow"}}
        assert table(pair, state=state)["hold"] == (
            "since 2023-11-14 22:13:20 by recovery: it was slow "
            "(a plain run stops before cut-over; --tags cutover clears it)"
        )

    def test_a_hold_without_its_time(self, pair: FakePair) -> None:
        state = {"hold": {"by": "rollback", "reason": "x"}}
        assert table(pair, state=state)["hold"].startswith("since unknown by rollback: x")

    def test_another_generation_runs(self, pair: FakePair) -> None:
        pair.start("deepseek")
        assert table(pair)["restart needed"] == (
            f"deepseek runs generation {OLD}, prepared is {NEW}: --tags cutover"
        )

    def test_a_server_that_is_down_needs_no_restart(self, pair: FakePair) -> None:
        assert "restart needed" not in table(pair)

    def test_an_unknown_generation_is_not_late(self, pair: FakePair) -> None:
        pair.start("deepseek")
        pair.away = {"head"}
        assert "restart needed" not in table(pair)


class TestFacts:
    def test_as_data(self, pair: FakePair) -> None:
        pair.start("deepseek")
        pair.away = set()
        known = facts(pair.description, views_of(pair), {"hold": {"by": "x"}}, {"exit": 0})
        assert known["serving"] == ["deepseek"]
        assert known["verdicts"]["hikari"] == {"state": "down", "why": ""}
        assert known["restart_needed"] == {"deepseek": {"running": OLD, "wanted": NEW}}
        assert known["hold"] == {"by": "x"}
        assert known["last_switch"] == {"exit": 0}
        assert known["unreachable"] == []

    def test_nothing_known(self, pair: FakePair) -> None:
        known = facts(pair.description, {}, None, None)
        assert known["unreachable"] == ["a", "b"]
        assert known["serving"] == []
        assert {row["state"] for row in known["verdicts"].values()} == {"unknown"}

    def test_a_failed_probe_alone_is_never_dead(self, pair: FakePair) -> None:
        pair.start("hikari")
        server = pair.description.server("hikari")
        for kind in ("timeout", "refused", "http", "bad", "instant_stop"):
            pair.servers["hikari"].probe = lambda _, kind=kind: ProbeResult(kind, "x")  # type: ignore[misc]
            found = verdict_of(server, views_of(pair), pair.description)
            assert found.state is State.UP
