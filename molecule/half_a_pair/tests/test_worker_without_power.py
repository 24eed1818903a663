"""One machine is down: the other is left alone, and can still be looked at."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from stories.machines import HEAD, WORKER, assert_untouched, fingerprint, pair_command
from stories.plays import Played
from stories.servers import back_to_hikari

# Half of the patience that ansible.cfg asks for; nobody is there to be waited for.
IMPATIENT = {"ANSIBLE_TIMEOUT": "5"}


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


def _with(tags: str | None) -> Any:
    mark = pytest.mark.play(tags=tags, environment=IMPATIENT)
    return pytest.param(id=str(tags), marks=mark)


@pytest.mark.parametrize((), [_with(tags) for tags in (None, "service", "cutover", "rollback")])
def test_it_is_refused(played: Played) -> None:
    words = played.refused().one_sentence()
    assert f"{WORKER} (the worker of this pair) cannot be reached" in words


@pytest.mark.play(tags="status", environment=IMPATIENT)
def test_status_still_tells_what_it_can(played: Played) -> None:
    assert HEAD in played.unchanged().table
    assert "cannot be reached" in str(played.result_of("Show the table", HEAD)["notes"])


@pytest.mark.play(tags="preflight", environment=IMPATIENT)
def test_preflight_still_prints_its_table(played: Played) -> None:
    rows = [line for line in played.output.splitlines() if "reachable over ssh" in line]
    assert rows and re.search(r"yes\s+FAILED", rows[0]), rows
    assert "cannot be reached" in played.words
