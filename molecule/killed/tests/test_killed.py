"""Somebody pulls the plug on one of those who take part. One server answers in the end."""

import shlex
import signal
from collections.abc import Iterator

import pytest
from stories import tool
from stories.machines import (
    HEAD,
    HOSTS,
    WORKER,
    assert_never_two_servers,
    on,
    pair_command,
    unit,
)
from stories.plays import Controller, play
from stories.servers import (
    assert_deepseek_alone,
    assert_hikari_alone,
    generates,
    let_deepseek_serve,
    the_one_that_generates,
)
from stories.waiting import wait_for

pytestmark = pytest.mark.usefixtures("hikari_serves")


@pytest.fixture
def controller() -> Iterator[Controller]:
    running = Controller("cutover")
    yield running
    running.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"])
def test_without_its_controller_the_switch_ends_well(
    number: signal.Signals, controller: Controller
) -> None:
    tool.wait_for_phase("release")
    assert controller.send(number) != 0
    assert not generates("hikari"), "it died before Hikari was stopped: the story was not told"
    assert tool.wait_until_over()["exit"] == 0
    assert_deepseek_alone()
    again = play("cutover").unchanged()
    assert again.switch["message"] == "deepseek serves, verified by a completion; nothing to do"


# The moment is watched for on the machine itself: from here it would be over before we knew.
_KILL_IN = """
journal=/var/lib/spark-pair/journal.jsonl
for _ in $(seq 6000); do
    if grep -qs '"phase": "PHASE"' $journal; then
        systemctl kill --kill-whom main --signal KILL spark-pair-switch.service
        exit
    fi
    sleep 0.01
done
"""


@pytest.mark.parametrize("phase", ["keepers", "stop", "start", "verify"])
def test_without_its_process_the_switch_ends_well(phase: str) -> None:
    script = shlex.quote(_KILL_IN.replace("PHASE", phase))
    on(HEAD, f"systemd-run --quiet --collect --expand-environment=no bash -c {script}")
    played = play("cutover")
    tool.wait_until_over()
    notes = [one["text"] for one in tool.last_switch() if one["event"] == "note"]
    resumed = [note for note in notes if "resuming the switch" in note]
    assert len(resumed) == 1, f"it was to be killed once: {notes}"
    serving = the_one_that_generates()
    assert_never_two_servers()
    if serving == "deepseek":
        played.succeeded()
        assert_deepseek_alone()
    else:
        assert played.code != 0, "the operator asked for deepseek and must hear that it is not"
        assert_hikari_alone()
    told = play("status").succeeded().table
    assert f"{serving} since" in told or f"serves               {serving}" in told, told


@pytest.mark.parametrize("host", HOSTS)
def test_a_reboot_brings_the_fallback_back_by_itself(host: str) -> None:
    let_deepseek_serve()
    pair_command("cut-power", host)
    pair_command("boot", host)
    wait_for("Hikari serves after the boot", lambda: generates("hikari"), 120, every=1)
    tool.wait_until_over()
    assert_hikari_alone()
    begun = tool.last_switch()[0]
    assert (begun["asked_by"], begun["target"]) == ("boot", "hikari")
    for one in HOSTS:
        resumed = unit(one, "spark-pair-resume.service", "Result")
        assert resumed["Result"] == "success"
    held = tool.hold()
    assert held is not None, "the next plain run would start at once what a boot has just ended"


def test_a_reboot_in_the_middle_of_a_switch_ends_with_hikari() -> None:
    on(HEAD, "nohup spark-pair switch deepseek --no-follow >/dev/null")
    tool.wait_for_phase("start")
    pair_command("cut-power", WORKER)
    pair_command("boot", WORKER)
    wait_for("Hikari serves after the boot", lambda: generates("hikari"), 150, every=1)
    tool.wait_until_over()
    assert_hikari_alone()
