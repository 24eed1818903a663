"""The way back, from a DeepSeek that is broken in some way, or with broken variables."""

import pytest
from stories import tool
from stories.machines import (
    HEAD,
    HOSTS,
    WORKER,
    assert_untouched,
    clear_faults,
    exit_code_of,
    fingerprint,
    machine,
    server_lives,
    set_fault,
)
from stories.plays import play, start_play
from stories.servers import (
    assert_deepseek_alone,
    assert_hikari_alone,
    let_deepseek_serve,
)

SCRIPT = "/usr/local/bin/rollback-to-hikari.sh"


@pytest.fixture
def deepseek_serves(hikari_serves: None) -> None:
    let_deepseek_serve()


def _assert_back() -> None:
    assert_hikari_alone()
    held = tool.hold()
    assert held is not None and held["by"] == "rollback"


def test_from_a_deepseek_that_is_dead_but_answers_200(deepseek_serves: None) -> None:
    set_fault(HEAD, "engine", mode="dead")
    assert "does not generate" in play("status").succeeded().table
    assert play("rollback").succeeded().switch["changed"]
    _assert_back()


def test_from_a_deepseek_without_metrics(deepseek_serves: None) -> None:
    set_fault(HEAD, "engine", mode="no_metrics")
    assert play("rollback").succeeded().switch["changed"]
    _assert_back()


def test_with_broken_variables(deepseek_serves: None) -> None:
    broken = {
        "model_server_wanted": "nonsense",
        "model_server_fallback": "nobody",
        "model_server_catalog": {"hikari": {"api": "gone"}},
        "model_server_quiet_period": "soon",
        "tensorfold_service_recipe_commit": "",
        "model_server_no_such_thing": 1,
    }
    play("rollback", extra_vars=broken).succeeded()
    _assert_back()


@pytest.mark.parametrize("host", HOSTS)
def test_by_hand_from_either_machine(host: str, deepseek_serves: None) -> None:
    before = fingerprint()
    code, told = exit_code_of(host, f"{SCRIPT} --dry-run")
    assert code == 0, told
    for words in ("qwen38fn-miaai-head.service", WORKER, "dsv41-tensorfold", "Qwen3.8-Flash-Next"):
        assert words in told
    assert_untouched(before)

    # As the operator's own account: it becomes root by itself.
    code, said = exit_code_of(host, f"runuser -u {machine(host).user} -- {SCRIPT}", seconds=180)
    assert code == 0, said
    assert "hikari serves, verified by a completion" in said
    _assert_back()


def test_a_dead_deepseek_is_restarted_by_a_cut_over(deepseek_serves: None) -> None:
    set_fault(HEAD, "engine", mode="dead")
    restart = start_play("cutover")
    tool.wait_for_phase("stop")
    clear_faults()
    assert restart.finish().succeeded().switch["changed"]
    assert_deepseek_alone()
    parts = [life.part for _, life in server_lives() if life.server == "deepseek"]
    assert sorted(parts) == ["rank0", "rank0", "rank1", "rank1"], "never one rank alone"
