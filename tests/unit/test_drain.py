"""Waiting for quiet: what is told meanwhile, requests that never end, servers without metrics."""

from __future__ import annotations

from typing import Any

import pytest
from fake_pair import FakePair, describe, phases, switch

from spark_pair.errors import Exit
from spark_pair.metrics import Load


@pytest.fixture
def pair() -> FakePair:
    def patient(data: dict[str, Any]) -> None:
        data["policy"] |= {"drain_deadline": 1800, "long_request_allowance": 900}

    made = FakePair(describe(patient))
    made.start("hikari")
    return made


def lines(pair: FakePair) -> list[str]:
    told = [str(row["text"]) for row in pair.events if row["event"] == "note"]
    return [text for text in told if text.startswith("drain ")]


def seconds(pair: FakePair, phase: str) -> float:
    return sum(
        float(row["seconds"])
        for row in pair.events
        if row["event"] == "outcome" and row["phase"] == phase
    )


class TestOneThatDies:
    """Nobody finishes its requests any more, and "it still serves" would be a lie."""

    @pytest.mark.parametrize("load", [Load(), Load(2, 0, (7.0,))], ids=["silent", "frozen"])
    def test_is_not_waited_for(self, pair: FakePair, load: Load) -> None:
        switch(pair)
        pair.servers["deepseek"].load = load

        def die(world: FakePair) -> None:
            world.containers["worker"].clear()

        pair.on_sleep = die
        before = seconds(pair, "drain")
        code, _ = switch(pair, "hikari")
        assert code is Exit.DONE
        assert pair.generates() == ["hikari"]
        assert seconds(pair, "drain") - before < 60

    def test_is_waited_for_when_its_machine_cannot_be_asked(self, pair: FakePair) -> None:
        switch(pair)
        pair.servers["deepseek"].load = Load()

        def leave(world: FakePair) -> None:
            world.away = {"worker"}

        pair.on_sleep = leave
        code, job = switch(pair, "hikari")
        assert code is Exit.GAVE_UP
        assert "whether it still serves is not known (b did not say" in job.message
        assert "stop deepseek.service" not in pair.actions


class TestStuckRequests:
    @pytest.mark.fault(8)
    def test_are_told_after_the_time_that_the_longest_reply_may_take(self, pair: FakePair) -> None:
        pair.servers["hikari"].load = Load(2, 0, (7.0,))
        code, job = switch(pair)
        assert code is Exit.GAVE_UP
        assert seconds(pair, "drain") >= 1800
        assert "2 running, 0 waiting, unchanged for 1800 s without a token: stuck" in job.message
        assert "'spark-pair switch deepseek --drain stop' stops it after 120 s" in job.message
        stuck = [text for text in lines(pair) if "stuck" in text]
        assert "unchanged for 900 s without a token: stuck; gives up in 15 min" in stuck[0]
        assert len(stuck) <= 900 / 60
        assert pair.generates() == ["hikari"]

    def test_end_at_the_operators_deadline(self, pair: FakePair) -> None:
        pair.servers["hikari"].load = Load(2, 0, (7.0,))
        code, _ = switch(pair, drain="stop")
        assert code is Exit.DONE
        assert 120 <= seconds(pair, "drain") < 130
        assert (
            lines(pair)[-1] == "drain hikari: 2 running, 0 waiting after 120 s; stopping as asked"
        )

    @pytest.mark.parametrize("moving", ["running", "progress"])
    def test_are_not_those_that_move(self, pair: FakePair, moving: str) -> None:
        def work(world: FakePair) -> None:
            now = world.clock // 300
            world.servers["hikari"].load = (
                Load(1 + now % 2, 0, (7.0,)) if moving == "running" else Load(2, 0, (now,))
            )

        work(pair)
        pair.on_sleep = work
        code, job = switch(pair)
        assert code is Exit.GAVE_UP
        assert "stuck" not in job.message + "".join(lines(pair))

    @pytest.mark.parametrize("load", [Load(None, 0, (7.0,)), Load(2, 0, None), Load(0, 1, (7.0,))])
    def test_are_not_guessed(self, pair: FakePair, load: Load) -> None:
        pair.servers["hikari"].load = load
        _, job = switch(pair)
        assert "stuck" not in job.message + "".join(lines(pair))

    def test_that_end_after_all_let_the_drain_go_on(self, pair: FakePair) -> None:
        pair.servers["hikari"].load = Load(2, 0, (7.0,))
        begun = pair.clock

        def end(world: FakePair) -> None:
            if world.clock - begun > 1000:
                world.servers["hikari"].load = Load(0, 0, (9.0,))

        pair.on_sleep = end
        assert switch(pair)[0] is Exit.DONE


class TestProgress:
    def test_how_it_stands_and_what_the_deadline_does(self, pair: FakePair) -> None:
        pair.servers["hikari"].load = Load(1, 3, (7.0,))
        begun = pair.clock

        def end(world: FakePair) -> None:
            if world.clock - begun >= 150:
                world.servers["hikari"].load = Load(0, 0, (9.0,))

        pair.on_sleep = end
        switch(pair)
        assert lines(pair) == [
            "drain hikari: 1 running, 3 waiting; gives up in 30 min",
            "drain hikari: 1 running, 3 waiting; gives up in 29 min",
            "drain hikari: 1 running, 3 waiting; gives up in 28 min",
            "drain hikari: 0 running, 0 waiting; has to stay so for 60 s",
        ]

    def test_of_a_rollback(self, pair: FakePair) -> None:
        pair.servers["hikari"].load = Load(1, 0, (7.0,))
        switch(pair, drain="stop")
        assert lines(pair)[0] == "drain hikari: 1 running, 0 waiting; stopped anyway in 120 s"

    def test_restless_load_does_not_fill_the_journal(self, pair: FakePair) -> None:
        def flicker(world: FakePair) -> None:
            world.servers["hikari"].load = Load(1 + world.clock % 2, 0, (world.clock,))

        flicker(pair)
        pair.on_sleep = flicker
        switch(pair)
        assert 30 <= len(lines(pair)) <= 1800 / 10 + 2


class TestWithoutMetrics:
    @pytest.fixture
    def pair(self) -> FakePair:
        def blind(data: dict[str, Any]) -> None:
            del data["servers"]["hikari"]["metrics"]

        made = FakePair(describe(blind))
        made.start("hikari")
        made.servers["hikari"].load = Load()
        return made

    def test_nobody_waits_for_what_cannot_be_seen(self, pair: FakePair) -> None:
        code, job = switch(pair)
        assert code is Exit.GAVE_UP
        assert seconds(pair, "drain") == 0
        assert job.message == (
            "hikari has no metrics in its description, so nobody can see whether it is idle; it "
            "still serves and nothing was stopped. 'spark-pair switch deepseek --drain stop' stops "
            "it after 120 s"
        )

    def test_an_operator_may_stop_it(self, pair: FakePair) -> None:
        code, _ = switch(pair, drain="stop")
        assert code is Exit.DONE
        assert phases(pair)[-1] == "commit"
        assert pair.generates() == ["deepseek"]
