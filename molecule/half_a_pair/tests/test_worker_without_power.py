"""One machine is down: the other is left alone, and can still be looked at."""

import re
from collections.abc import Iterator

import pytest
from stories.machines import HEAD, WORKER, Fingerprint, assert_untouched, fingerprint, pair_command
from stories.plays import play
from stories.servers import back_to_hikari

# Half of the patience that ansible.cfg asks for; nobody is there to be waited for.
IMPATIENT = {"ANSIBLE_TIMEOUT": "5"}


@pytest.fixture(scope="module", autouse=True)
def head(as_it_was: Fingerprint) -> Iterator[Fingerprint]:
    """The head after its peer has lost its power."""
    pair_command("cut-power", WORKER)
    yield fingerprint((HEAD,))
    pair_command("boot", WORKER)
    back_to_hikari()


@pytest.mark.parametrize("tags", [None, "service", "cutover", "rollback"])
def test_it_is_refused(tags: str | None, head: Fingerprint) -> None:
    words = play(tags, environment=IMPATIENT).refused().one_sentence()
    assert f"{WORKER} (the worker of this pair) cannot be reached" in words
    assert_untouched(head)


def test_status_still_tells_what_it_can(head: Fingerprint) -> None:
    played = play("status", environment=IMPATIENT).unchanged()
    assert HEAD in played.table
    assert "cannot be reached" in str(played.result_of("Show the table", HEAD)["notes"])
    assert_untouched(head)


def test_preflight_still_prints_its_table(head: Fingerprint) -> None:
    played = play("preflight", environment=IMPATIENT)
    rows = [line for line in played.output.splitlines() if "reachable over ssh" in line]
    assert rows and re.search(r"yes\s+FAILED", rows[0]), rows
    assert "cannot be reached" in played.words
    assert_untouched(head)
