"""Requests that run are waited for, and a server that stays busy is left alone."""

import time

import pytest
from stories import tool
from stories.machines import HEAD, exit_code_of, is_active, server_lives, set_fault
from stories.plays import play, start_play
from stories.servers import (
    HIKARI_TIMERS,
    HIKARI_UNITS,
    assert_deepseek_alone,
    assert_hikari_alone,
    generates,
    let_deepseek_serve,
    long_requests,
)
from stories.waiting import wait_for

pytestmark = pytest.mark.usefixtures("hikari_serves")

QUIET_PERIOD = 2.0


def _hikari_stopped_at() -> float:
    """When the first of Hikari's processes ended: CLOCK_MONOTONIC seconds."""
    return min(life.end for _, life in server_lives() if life.server == "hikari" and life.end)


def test_requests_are_waited_for_and_then_the_whole_quiet_period() -> None:
    with long_requests("hikari", 1, 80) as (first,):
        switch = start_play("cutover")
        tool.wait_for_phase("drain")
        first.join(30)
        # Shorter than the quiet period: the silence between two turns of one conversation.
        time.sleep(QUIET_PERIOD / 3)
        with long_requests("hikari", 1, 60) as (second,):
            second.join(30)
        played = switch.finish().succeeded()
    for request in (first, second):
        assert request.reply.status == 200, request.reply
        assert request.reply.finish == "length", "it was cut off"
    assert second.reply.ended is not None
    assert _hikari_stopped_at() - second.reply.ended >= QUIET_PERIOD
    # What it waits for is told, not each change: the first request may have ended by then.
    told = [line for line in played.switch["lines"] if "drain hikari: " in line]
    assert told and "running" in told[0], played.switch["lines"]
    assert_deepseek_alone()


def _assert_hikari_was_left_alone() -> None:
    assert all(is_active(*one) for one in (*HIKARI_UNITS, *HIKARI_TIMERS))
    assert not [life for _, life in server_lives() if life.server == "deepseek"]
    assert generates("hikari")


@pytest.mark.fault(8)
@pytest.mark.parametrize("why", ["a request that does not end", "metrics that are gone"])
def test_at_the_deadline_the_old_server_stays(why: str) -> None:
    if why == "metrics that are gone":
        set_fault("spark-5bf0", "hikari", mode="no_metrics")
        played = play("cutover")
    else:
        with long_requests("hikari", 1, 1200):
            played = play("cutover")
    assert played.code != 0 and played.switch["exit"] == 11
    assert "gave up, the old server serves" in played.words
    assert "nothing was stopped" in played.words
    _assert_hikari_was_left_alone()
    assert tool.hold() is None


def test_a_second_switch_is_told_who_holds_the_lock_and_an_abort_backs_out() -> None:
    with long_requests("hikari", 1, 1200):
        first = start_play("cutover")
        tool.wait_for_phase("drain")
        second = play("rollback")
        assert second.code != 0
        assert "another switch is running" in second.words
        assert "a switch to deepseek" in second.words and "has been running since" in second.words
        code, said = exit_code_of(HEAD, "spark-pair switch deepseek")
        assert code == 75 and "spark-pair abort" in said, said
        code, said = exit_code_of(HEAD, "spark-pair abort")
        assert code == 0, said
        played = first.finish()
    assert played.switch["exit"] == 11 and "aborted by the operator" in played.words
    _assert_hikari_was_left_alone()


def test_an_abort_after_the_stop_brings_hikari_back() -> None:
    switch = start_play("cutover")
    tool.wait_for_phase("start")
    assert exit_code_of(HEAD, "spark-pair abort")[0] == 0
    played = switch.finish()
    assert played.switch["exit"] == 20 and "aborted by the operator" in played.words
    assert_hikari_alone()


def test_a_busy_deepseek_is_left_alone_by_a_plain_run() -> None:
    let_deepseek_serve()
    before = [life for _, life in server_lives() if life.server == "deepseek"]
    with long_requests("deepseek", 8, 2000) as requests:
        played = play()
        assert all(request.is_alive() for request in requests), "a request was cut off"
    assert played.code != 0 and played.switch["exit"] == 10
    assert "refused, nothing was touched" in played.words and "busy" in played.words
    assert [life for _, life in server_lives() if life.server == "deepseek"] == before
    wait_for("DeepSeek has let go", lambda: generates("deepseek"), 30)
    assert_deepseek_alone()
