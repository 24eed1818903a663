"""The recipe's dry run says what a start would do; what was not declared is refused untouched."""

from collections.abc import Iterator

import pytest
from stories import preparation, tool
from stories.machines import HEAD, clear_faults, exit_code_of, set_fault
from stories.plays import play
from stories.servers import assert_deepseek_alone, assert_hikari_alone, back_to_hikari

REFUSED = 10
DIFFERENCES = {
    "one_rail": "TF_RDMA_DEVICES has 1 rail(s) (rocep1s0f0), declared 2",
    "other_image": "rank 1: the image is tensorfold-dsv41:another, declared tensorfold-dsv41:",
    "other_value": "rank 1: TF_DS_GRAPHS is 0, declared 1",
    "unknown_variable": "rank 0: TF_DS_SPILL is 1, and nobody declared it",
}


@pytest.fixture(scope="module", autouse=True)
def one_pair_for_all(prepared: None) -> Iterator[None]:
    """A refusal leaves the pair as it was, so that the next one can begin right there."""
    back_to_hikari()
    yield
    clear_faults()
    back_to_hikari()


@pytest.fixture(autouse=True)
def no_fault_stays() -> Iterator[None]:
    yield
    clear_faults()


def _switch() -> tuple[int, str]:
    return exit_code_of(HEAD, "spark-pair switch deepseek", seconds=180)


def _assert_nothing_was_touched() -> None:
    assert_hikari_alone()
    assert tool.hold() is None
    entered = [event["phase"] for event in tool.last_switch() if event["event"] == "phase"]
    assert entered == ["observe", "refuse"]


@pytest.mark.parametrize("fault", DIFFERENCES)
def test_a_difference_is_refused(fault: str) -> None:
    set_fault(HEAD, "recipe", dry_run=fault)
    code, said = _switch()
    assert code == REFUSED, said
    assert DIFFERENCES[fault] in said, said
    _assert_nothing_was_touched()


def test_a_switch_that_only_looks_says_the_same() -> None:
    set_fault(HEAD, "recipe", dry_run="other_value")
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek --dry-run", seconds=60)
    assert code == REFUSED and DIFFERENCES["other_value"] in said, said
    assert_hikari_alone()


def test_what_is_not_understood_is_shown_refused_and_accepted_by_its_sha256() -> None:
    set_fault(HEAD, "recipe", dry_run="unparsable")
    code, said = _switch()
    assert code == REFUSED, said
    assert "docker compose --file docker-compose.yml up" in said, "the output is shown"
    assert "is not understood" in said and "tensorfold_service_accept_dry_run: " in said
    accepted = said.rpartition("tensorfold_service_accept_dry_run: ")[2].split()[0]
    _assert_nothing_was_touched()

    preparation.forget()
    try:
        play("service", extra_vars={"tensorfold_service_accept_dry_run": "0" * 64}).succeeded()
        assert _switch()[0] == REFUSED, "only the output of that very name is accepted"
        play("service", extra_vars={"tensorfold_service_accept_dry_run": accepted}).succeeded()
        code, said = _switch()
        assert code == 0, said
        assert "accepted without being understood" in said
        assert_deepseek_alone()
    finally:
        clear_faults()
        play("service").succeeded()
        preparation.note()
