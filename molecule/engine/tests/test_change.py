"""One variable of the engine is edited: the new value runs in both containers, or the old does."""

import json
from collections.abc import Iterator

import pytest
from stories import preparation, tool
from stories.machines import HEAD, HOSTS, clear_faults, exit_code_of, on, set_fault
from stories.plays import play
from stories.servers import RANK, assert_deepseek_alone, back_to_hikari

WITHOUT_GRAPHS = {"tensorfold_service_graphs": 0}
FEWER_LANES = {"tensorfold_service_graphs": 1, "tensorfold_service_parallel": 2}


@pytest.fixture(scope="module", autouse=True)
def deepseek_serves(prepared: None) -> Iterator[None]:
    back_to_hikari()
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek", seconds=180)
    assert code == 0, said
    preparation.forget()
    yield
    clear_faults()
    back_to_hikari()
    play("service").succeeded()
    preparation.note()


def _environment(host: str) -> dict[str, str]:
    found = json.loads(on(host, f"docker container inspect {RANK}"))[0]["Config"]["Env"]
    return dict(one.split("=", 1) for one in found)


def _generation() -> str:
    return on(HEAD, "basename $(readlink -f /var/lib/spark-pair/current/deepseek)").strip()


def test_an_edited_variable_runs_in_both_containers_after_a_drained_restart() -> None:
    before = _generation()
    assert {_environment(host)["TF_DS_GRAPHS"] for host in HOSTS} == {"1"}
    played = play(None, extra_vars=WITHOUT_GRAPHS).succeeded()
    assert played.switch["changed"]
    assert {_environment(host)["TF_DS_GRAPHS"] for host in HOSTS} == {"0"}
    assert _generation() != before
    assert tool.event("outcome", phase="drain")["outcome"] == "ok"
    assert_deepseek_alone()


def test_a_second_run_changes_nothing() -> None:
    play(None, extra_vars=WITHOUT_GRAPHS).unchanged()
    assert_deepseek_alone()


def test_the_former_generation_serves_when_the_new_one_runs_otherwise_than_planned() -> None:
    former = _generation()
    set_fault(HEAD, "recipe", start="differs_from_dry_run")
    played = play("service,cutover", extra_vars=FEWER_LANES)
    assert played.code != 0 and played.switch["exit"] == 20, played.output
    assert "rank 1: TF_DS_GRAPHS is 0, planned 1" in played.words, played.words
    assert _generation() == former
    assert {_environment(host)["TF_DS_STREAMS"] for host in HOSTS} == {"4"}
    held = tool.hold()
    assert held is not None and held["by"] == "recovery"
    assert_deepseek_alone()
