"""What a switch would do, in words."""

from __future__ import annotations

from typing import Any

import pytest
from fake_pair import NEW, describe

from spark_pair.plan_text import switch_lines

GENERATIONS = f"/var/lib/spark-pair/generations/{NEW}"


def test_from_hikari_to_deepseek() -> None:
    assert switch_lines(describe(), "deepseek", running={"hikari"}) == [
        "observe  both machines: a (head), b (worker)",
        "refuse   unless every check of deepseek passes while the old server still serves",
        "drain    hikari: 0 running and 0 waiting for 60 s in a row; after 300 s give up",
        "arm      journal and its disk room on a",
        "keepers  stop watchdog.timer on b (if active)",
        "keepers  stop metrics.timer on b (if active)",
        "keepers  stop watchdog.service on b (if active)",
        "stop     hikari-head.service on b; never disabled",
        "stop     hikari-worker.service on a; never disabled",
        "stop     verify: port 8000 free on b",
        "release  wait for 112 GiB available on both machines",
        f"start    /var/lib/spark-pair/current/deepseek -> {GENERATIONS}",
        "start    deepseek.service on a",
        "verify   a completion from DeepSeek on a:8888",
        "verify   a context of 262144",
        "commit   deepseek",
        "(failure after stop: the former server, else hikari)",
    ]


def test_back_to_hikari_on_an_operators_order() -> None:
    lines = switch_lines(describe(), "hikari", running={"deepseek"}, drain="stop")
    assert (
        "drain    deepseek: 0 running and 0 waiting for 60 s in a row; after 120 s stop anyway"
        in lines
    )
    assert "stop     verify: no container ds on a" in lines
    assert "stop     verify: no container ds on b" in lines
    starts = [line for line in lines if line.startswith("start")]
    assert starts == [
        "start    hikari-worker.service on a",
        "start    hikari-head.service on b",
    ]
    restores = [line for line in lines if line.startswith("restore")]
    assert restores == [
        "restore  watchdog.timer on b (if it was active)",
        "restore  metrics.timer on b (if it was active)",
    ]
    assert not any(line.startswith("release") for line in lines)


def test_a_pair_that_nobody_looked_at() -> None:
    lines = switch_lines(describe(), "deepseek")
    assert "stop     hikari-head.service on b (if it runs); never disabled" in lines
    assert any(line.startswith("drain    hikari (if it runs):") for line in lines)
    assert not any("stop     deepseek" in line for line in lines)


def test_a_pair_on_which_nothing_runs() -> None:
    lines = switch_lines(describe(), "deepseek", running=set())
    assert not any(line.startswith(("drain", "stop")) for line in lines)


def test_the_target_in_another_generation_is_stopped_too() -> None:
    lines = switch_lines(describe(), "deepseek", running={"deepseek"})
    assert "stop     deepseek.service on a; never disabled" in lines
    assert "start    deepseek.service on a" in lines


def test_nobody_wanted() -> None:
    lines = switch_lines(describe(), "none", running={"hikari"})
    assert "start    nothing: no model server is wanted" in lines
    assert lines[-2] == "commit   none"
    assert not any(line.startswith(("verify", "release", "restore")) for line in lines)


@pytest.mark.parametrize("target", ["hikari", "deepseek", "none"])
def test_without_a_fallback_none_is_promised(target: str) -> None:
    def change(data: dict[str, Any]) -> None:
        data["fallback"] = "none"

    assert "failure" not in switch_lines(describe(change), target)[-1]
