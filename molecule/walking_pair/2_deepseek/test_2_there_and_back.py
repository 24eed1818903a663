"""DeepSeek serves, stays when nothing changes, gives way at a rollback, is held off after it."""

import json

import pytest
from stories import tool
from stories.machines import HEAD, WORKER, assert_untouched, fingerprint, on, server_lives, unit
from stories.plays import play
from stories.servers import (
    HIKARI_TIMERS,
    HIKARI_UNITS,
    WATCHDOG_SERVICE,
    assert_deepseek_alone,
    assert_hikari_alone,
)

# Each step begins where the one before it ended.
pytestmark = pytest.mark.usefixtures("story_so_far")


def _units_enabled() -> list[str]:
    return [
        unit(host, name, "UnitFileState")["UnitFileState"]
        for host, name in (*HIKARI_UNITS, *HIKARI_TIMERS)
    ]


def _entered(host: str, name: str) -> int:
    """When a unit became active: microseconds of CLOCK_MONOTONIC."""
    return int(unit(host, name, "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"])


def _watchdog_starts() -> list[int]:
    """When the watchdog's service was started: microseconds of CLOCK_MONOTONIC."""
    words = f"journalctl --unit {WATCHDOG_SERVICE} --output json --boot _PID=1"
    rows = [json.loads(line) for line in on(WORKER, words).splitlines()]
    return [int(row["__MONOTONIC_TIMESTAMP"]) for row in rows if row.get("JOB_TYPE") == "start"]


def test_deepseek_serves_after_a_plain_run() -> None:
    assert_deepseek_alone()
    assert _units_enabled() == ["enabled"] * 4, "stop only, never disable"


def test_the_watchdog_was_silenced_before_the_server_it_revives() -> None:
    starts = _watchdog_starts()
    assert starts, "it never ran, so its silence proves nothing"
    lives = [life for _, life in server_lives()]
    gone = min(life.end for life in lives if life.server == "hikari" and life.end is not None)
    assert max(starts) < gone * 1e6, "the watchdog was at work after Hikari was stopped"


def test_a_second_run_changes_nothing_and_proves_that_deepseek_serves() -> None:
    played = play().unchanged()
    assert played.switch["exit"] == 0
    assert "deepseek serves, verified by a completion" in played.switch["message"]
    assert "deepseek" in played.table and "hikari" in played.table


def test_check_mode_on_the_finished_pair_changes_nothing() -> None:
    before = fingerprint()
    play(check=True).unchanged()
    assert_untouched(before)


def test_rollback_brings_hikari_back_with_its_keepers_last() -> None:
    before = _watchdog_starts()
    played = play("rollback").succeeded()
    assert played.switch["changed"]
    assert_hikari_alone()
    assert _units_enabled() == ["enabled"] * 4

    served = on(WORKER, "journalctl --unit qwen38fn-miaai-head.service --output json --boot")
    ready = max(
        int(row["__MONOTONIC_TIMESTAMP"])
        for row in map(json.loads, served.splitlines())
        if "serving" in str(row.get("MESSAGE"))
    )
    restored = [_entered(host, name) for host, name in HIKARI_TIMERS]
    assert min(restored) > ready, "a keeper came back before the API answered"
    new = [start for start in _watchdog_starts() if start not in before]
    assert all(start > min(restored) for start in new), "its service was not started by its timer"


def test_a_second_rollback_changes_nothing() -> None:
    played = play("rollback").unchanged()
    assert "hikari serves" in played.switch["message"]


def test_a_plain_run_is_held_and_says_why() -> None:
    before = len(tool.journal())
    played = play().succeeded()
    assert not played.switch["changed"]
    assert "held" in played.switch["message"] and "rollback" in played.switch["message"]
    assert "--tags cutover" in played.switch["message"]
    assert len(tool.journal()) == before, "a held run must end before a switch begins"
    assert_hikari_alone()


def test_asking_for_the_cut_over_clears_the_hold() -> None:
    played = play("cutover").succeeded()
    assert played.switch["changed"] and tool.hold() is None
    assert_deepseek_alone()


def test_stop_incumbent_leaves_the_pair_empty_and_stays_so() -> None:
    played = play("stop_incumbent").succeeded()
    assert played.switch["changed"]
    for host in (HEAD, WORKER):
        assert on(host, "docker ps --quiet").split() == []
    play("stop_incumbent").unchanged()
    assert "nobody" in play("status").succeeded().table
