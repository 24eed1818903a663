"""On a bare pair, `--check --diff` tells the whole journey and touches nothing."""

import pytest
from stories.machines import HEAD, WORKER, assert_untouched, fingerprint, pair_command
from stories.plays import Played, play
from stories.servers import assert_hikari_alone

PHASES = {
    "observe": (HEAD, WORKER),
    "refuse": ("deepseek",),
    "drain": ("hikari", "2 s in a row"),
    "arm": (HEAD,),
    "keepers": ("qwen38fn-miaai-head-watchdog.timer", "qwen38fn-miaai-metrics.timer", WORKER),
    "stop": (
        f"qwen38fn-miaai-head.service on {WORKER}",
        f"qwen38fn-miaai-worker.service on {HEAD}",
        f"port 8000 free on {WORKER}",
    ),
    "release": ("112 GiB", "both machines"),
    "start": (f"dsv41-tensorfold.service on {HEAD}", "/var/lib/spark-pair/generations/"),
    "verify": ("DeepSeek-V4.1-Flash-1017", HEAD, "262144"),
    "commit": ("deepseek",),
}
"""Phase -> what its lines name: hosts, units, and what is waited for."""


@pytest.fixture(scope="module")
def looked() -> Played:
    pair_command("reset", "--bare", "--recorded")
    before = fingerprint()
    played = play(check=True)
    assert_untouched(before)
    return played


def test_check_mode_on_a_bare_pair_succeeds_and_touches_nothing(looked: Played) -> None:
    looked.succeeded()
    assert_hikari_alone()


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_is_printed_with_hosts_and_units(looked: Played, phase: str) -> None:
    lines = [line.strip() for line in looked.switch["lines"]]
    told = [line for line in lines if line.split()[0] == phase]
    for words in PHASES[phase]:
        assert any(words in line for line in told), f"{words!r} is not in {told}"
    assert all(line in looked.output for line in told), "the operator does not see it"


def test_what_would_be_written_is_shown(looked: Played) -> None:
    for words in (
        "/etc/spark-pair/pair.json",
        "ExecStart=/var/lib/spark-pair/current/deepseek/launch start.sh restart",
        "NOPASSWD: /usr/local/bin/spark-pair node *",
        "exec /usr/local/bin/spark-pair switch hikari --drain stop --hold",
    ):
        assert words in looked.output
    assert looked.switch["changed"]
