"""Each way in which the new server can fail: Hikari serves again, and whoever asked reads why."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from stories import preparation, tool
from stories.machines import HEAD, WORKER, clear_faults, exit_code_of, set_fault
from stories.plays import play
from stories.servers import assert_deepseek_alone, assert_hikari_alone, back_to_hikari, generates

BOTH = (HEAD, WORKER)


@dataclass(frozen=True)
class Case:
    """A fault, where it is set, and words of the reason that the operator must read."""

    component: str
    fault: dict[str, Any]
    reason: tuple[str, ...]
    hosts: tuple[str, ...] = (HEAD,)
    by_play: bool = False
    """Whether a play asks for the switch, and not the command on the head that it runs."""


def _after_smoke(mode: str) -> dict[str, Any]:
    """A fault that the recipe's own smoke test does not see: start.sh ends with 0 and "LIVE"."""
    return {"mode": mode, "after_smoke": True}


CASES = {
    "answers 200 and generates nothing": Case(
        "engine", _after_smoke("dead"), ("does not generate",), by_play=True
    ),
    "empty text": Case("engine", _after_smoke("empty"), ("no text",)),
    "one repeated character": Case("engine", _after_smoke("repeat"), ("repeat",)),
    "another model's name": Case(
        "engine", _after_smoke("wrong_model"), ("came from model", "DeepSeek-V4.1-Flash-1017")
    ),
    "always an instant stop": Case("engine", _after_smoke("instant_stop_always"), ("stop",)),
    "a prefill that takes longer than anyone waits": Case(
        "engine",
        {"mode": "slow_prefill", "seconds": 30, "after_smoke": True},
        ("no answer within",),
    ),
    "an error for every request": Case("engine", _after_smoke("error500"), ("500",)),
    "metrics without its load": Case(
        "engine", {"mode": "no_metrics"}, ("tensorfold:num_requests_running",)
    ),
    "half the context": Case("engine", {"mode": "smaller_context"}, ("131072", "262144")),
    "rank 0 exits while loading": Case(
        "engine", {"mode": "exit_while_loading", "rank": 0}, ("dsv41-tensorfold", HEAD), BOTH
    ),
    "rank 1 exits while loading": Case(
        "engine",
        {"mode": "exit_while_loading", "rank": 1},
        ("dsv41-tensorfold",),
        BOTH,
        by_play=True,
    ),
    "a rank dies when the server is ready": Case(
        "engine", {"mode": "exit_after_ready", "rank": 1}, ("deepseek",), BOTH
    ),
    "start.sh fails and leaves both ranks": Case(
        "recipe", {"start": "exit1_ranks_running"}, ("dsv41-tensorfold",), by_play=True
    ),
    "start.sh dies half way": Case("recipe", {"start": "die_half_way"}, ("dsv41-tensorfold",)),
    "start.sh ends with 0 and starts nothing": Case(
        "recipe", {"start": "exit0_without_serving"}, ("ended with success",)
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_pair_for_all(prepared: None) -> Iterator[None]:
    """Every failure must leave the pair as it was, so that the next one can begin right there."""
    back_to_hikari()
    yield
    back_to_hikari()


@pytest.fixture(autouse=True)
def whatever_happened() -> Iterator[None]:
    if not generates("hikari"):
        back_to_hikari()
    yield
    clear_faults()


def _cut_over_by_play(**variables: Any) -> str:
    """Let a play fail to switch; its words."""
    played = play(**({"tags": "cutover"} | variables))
    assert played.code != 0 and played.switch["exit"] == 20
    assert "the former server serves again" in played.words, played.words
    return played.words


def _cut_over_by_hand() -> str:
    """Let the head's own command fail to switch; its words."""
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek", seconds=180)
    assert code == 20, said
    assert "hikari serves, verified by a completion" in said, said
    return said


def _assert_recovered(words: str, reasons: tuple[str, ...]) -> None:
    for reason in reasons:
        assert reason in words, f"{reason!r} is not in {words!r}"
    assert_hikari_alone()
    held = tool.hold()
    assert held is not None and held["by"] == "recovery"
    assert tool.last_switch()[-1]["exit"] == 20


@pytest.mark.parametrize("case", CASES)
def test_hikari_serves_again(case: str) -> None:
    what = CASES[case]
    for host in what.hosts:
        set_fault(host, what.component, **what.fault)
    words = _cut_over_by_play() if what.by_play else _cut_over_by_hand()
    _assert_recovered(words, what.reason)


def test_the_next_plain_run_is_held_and_says_why() -> None:
    if tool.hold() is None:
        set_fault(HEAD, "recipe", start="exit0_without_serving")
        play("cutover")
    before = len(tool.journal())
    played = play().succeeded()
    message = played.switch["message"]
    assert "held" in message and "recovery" in message and "--tags cutover" in message
    assert not played.changes
    assert len(tool.journal()) == before, "it must end before a switch begins"
    assert_hikari_alone()


def test_a_start_that_hangs_is_given_up() -> None:
    # Its patience is a minute; a generation of its own makes it seconds.
    impatient = {
        "model_server_extra": {
            "hikari": {"ready_timeout": 60, "unit_stop_timeout": 20, "probe": {"timeout": 5}},
            "deepseek": {"ready_timeout": 6, "unit_stop_timeout": 60, "probe": {"timeout": 5}},
        }
    }
    preparation.forget()
    set_fault(HEAD, "recipe", start="hang")
    _assert_recovered(_cut_over_by_play(tags="service,cutover", extra_vars=impatient), ())
    clear_faults()
    play("service").succeeded()
    preparation.note()


def test_a_single_instant_stop_is_asked_again_and_deepseek_serves() -> None:
    set_fault(HEAD, "engine", **_after_smoke("instant_stop_once"))
    played = play("cutover").succeeded()
    assert played.switch["changed"] and tool.hold() is None
    assert any("again" in line for line in played.switch["lines"]), played.switch["lines"]
    assert_deepseek_alone()
