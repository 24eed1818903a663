"""One machine is down: the other is left alone, and can still be looked at."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from stories.machines import HEAD, WORKER, assert_untouched, fingerprint, pair_command
from stories.plays import Played
from stories.servers import back_to_hikari

# Six times the patience that ansible.cfg asks for. Nobody answers at the other one's address, which
# is known after three seconds; a busy test machine must not make this one unreachable too.
PATIENT = {"ANSIBLE_TIMEOUT": "60"}


@pytest.fixture(scope="module", autouse=True)
def head() -> Iterator[None]:
    """The head after its peer has lost its power: as it was, whatever is asked of it."""
    back_to_hikari()
    pair_command("cut-power", WORKER)
    before = fingerprint((HEAD,))
    yield
    assert_untouched(before)
    pair_command("boot", WORKER)
    back_to_hikari()


REFUSED = (None, "adopt", "weights", "download", "service", "cutover", "rollback")


def _with(tags: str | None) -> Any:
    mark = pytest.mark.play(tags=tags, environment=PATIENT)
    return pytest.param(id=str(tags), marks=mark)


@pytest.mark.parametrize((), [_with(tags) for tags in REFUSED])
def test_it_is_refused(played: Played) -> None:
    words = played.refused().one_sentence()
    assert f"{WORKER} (the worker of this pair) cannot be reached" in words


@pytest.mark.play(tags="plan", environment=PATIENT)
def test_a_plan_shows_what_the_other_one_holds(played: Played) -> None:
    words = played.refused().one_sentence()
    assert "No plan can be made without both machines" in words and "cannot be reached" in words
    assert f"{HEAD} holds:" in played.output


# Only a check, since a verification takes a note of what it has read.
@pytest.mark.play(tags="verify", environment=PATIENT, check=True)
def test_the_other_one_is_verified_and_who_is_not_is_named(played: Played) -> None:
    words = played.refused().one_sentence()
    assert "Not the whole pair was verified" in words
    assert f"{WORKER} (the worker of this pair) cannot be reached" in words
    assert f"{HEAD}: would verify the weights" in played.output


@pytest.mark.play(tags="status", environment=PATIENT)
def test_status_still_tells_what_it_can(played: Played) -> None:
    assert HEAD in played.unchanged().table
    assert "cannot be reached" in str(played.result_of("Show the table", HEAD)["notes"])


@pytest.mark.play(tags="preflight", environment=PATIENT)
def test_preflight_still_prints_its_table(played: Played) -> None:
    rows = [line for line in played.output.splitlines() if "reachable over ssh" in line]
    assert rows and re.search(r"yes\s+FAILED", rows[0]), rows
    assert "cannot be reached" in played.words
