"""One look tells what stands between the pair and a working one; nothing is touched by it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stories.machines import (
    HEAD,
    WORKER,
    Fingerprint,
    assert_untouched,
    clear_faults,
    fingerprint,
    on,
    set_fault,
)
from stories.plays import Played, play
from stories.servers import back_to_hikari

STRANGER = "stranger-on-a-port.service"


@pytest.fixture(scope="module")
def before() -> Iterator[Fingerprint]:
    """The pair with Hikari serving; it must look the same when all of these looks are over."""
    back_to_hikari()
    seen = fingerprint()
    yield seen
    assert_untouched(seen)


@pytest.fixture(autouse=True)
def without_faults(before: Fingerprint) -> Iterator[None]:
    yield
    clear_faults()


@pytest.fixture(scope="module")
def looked(before: Fingerprint) -> Played:
    return play("preflight").unchanged()


def row(played: Played, title: str) -> list[str]:
    """Cells of one row of the table: head, worker, verdict."""
    lines = [line.strip() for line in played.output.splitlines() if line.strip().startswith(title)]
    assert len(lines) == 1, (title, lines)
    return re.split(r"\s{2,}", lines[0])[1:]


def evidence(played: Played) -> dict[str, Any]:
    """What the run has written down."""
    path = Path(str(played.result_of("Show the table", HEAD)["evidence"]))
    content: dict[str, Any] = json.loads(path.read_text())
    assert path.parent.name == content["pair"] == f"{HEAD}+{WORKER}"
    return content


def verdict(content: dict[str, Any], name: str) -> str:
    return str(next(one["verdict"] for one in content["findings"] if one["id"] == name))


@pytest.mark.fault(2)
def test_a_serving_incumbent_explains_memory_and_port(looked: Played) -> None:
    memory = row(looked, "memory available")
    assert [cell.endswith("(hikari)") for cell in memory] == [True, True, False], memory
    assert row(looked, "ports of the servers") == ["8888 free", "8000 hikari", "ok"]
    assert row(looked, "names they serve under")[1:] == ["Qwen3.8-Flash-Next", "ok"]
    assert row(looked, "processes on the GPU")[-1] == "ok"


def test_what_the_machines_really_have_is_in_the_table(looked: Played) -> None:
    assert row(looked, "Python 3.11 or newer")[-1] == "ok"
    for title in ("rail links", "rail subnets", "rail paths", "rail RDMA devices"):
        assert row(looked, title)[-1] == "ok", title
    assert row(looked, "NVIDIA runtime in Docker")[-1] == "ok"


def test_what_was_not_asked_is_unknown_and_what_is_accepted_says_so(looked: Played) -> None:
    assert row(looked, "Hugging Face Hub")[-1] == "unknown"
    assert "! hub (unknown): " in looked.output
    assert row(looked, "architecture")[-1] in ("ok", "accepted")


def test_the_evidence_holds_what_was_measured(looked: Played) -> None:
    content = evidence(looked)
    assert content["verdict"] == "pass" and content["accepted"] == ["architecture"]
    assert verdict(content, "kernel_cma") == "pass"
    for host in (HEAD, WORKER):
        measured = content["hosts"][host]["measured"]
        assert measured["meminfo"]["MemTotal"] > measured["meminfo"]["MemAvailable"] > 0
        assert set(measured["rails"]["interfaces"]) >= {"enp1s0f0np0", "enP2p1s0f0np0"}


def test_check_mode_looks_as_well(looked: Played) -> None:
    checked = play("preflight", check=True).unchanged()
    assert row(checked, "GPU clock settings") == row(looked, "GPU clock settings")


@pytest.mark.fault(9)
def test_a_fault_stops_the_whole_run_and_names_its_machine_only(before: Fingerprint) -> None:
    latched = {"utilization.gpu": "97", "clocks.sm": "507", "power.draw": "22.40"}
    set_fault(WORKER, "nvidia", **latched)
    played = play().refused()
    words = played.one_sentence()
    assert words.startswith(f"{WORKER}: ") and HEAD not in words
    assert "30 to 60 seconds" in words
    assert verdict(evidence(played), "gpu_power") == "fail"
    assert {one.task for one in played.failures} == {"Show the table"}
    assert_untouched(before)


@pytest.mark.fault(9)
def test_the_operator_may_accept_it_and_that_is_recorded() -> None:
    set_fault(WORKER, "nvidia", **{"clocks.applications.graphics": "[N/A]"})
    # As a text, which is what -e preflight_accept=architecture,clocks gives.
    accept = {"preflight_accept": "architecture,clocks"}
    played = play("preflight", extra_vars=accept).unchanged()
    assert row(played, "GPU clock settings")[-1] == "accepted"
    assert verdict(evidence(played), "clocks") == "accepted"
    assert evidence(played)["accepted"] == ["architecture", "clocks"]


@pytest.mark.fault(30)
@pytest.mark.fault(36)
def test_a_stranger_on_a_port_and_a_waiting_reboot_are_found_together() -> None:
    on(HEAD, f"systemd-run --quiet --unit {STRANGER} /usr/bin/python3 -I -m http.server 8888")
    try:
        set_fault(
            WORKER, "nvidia", fail="Failed to initialize NVML: Driver/library version mismatch"
        )
        on(HEAD, "for _ in $(seq 50); do ss -Hltn | grep -q :8888 && break; sleep 0.1; done")
        played = play("preflight").refused()
    finally:
        on(HEAD, f"systemctl stop {STRANGER}")
    found = evidence(played)
    assert verdict(found, "ports") == verdict(found, "driver_module") == "fail"
    assert "(and 1 more in the table above)" in played.one_sentence()
    assert STRANGER in played.output and "reboot this machine" in played.output


def test_a_name_that_is_no_check_is_refused_with_the_nearest() -> None:
    played = play("preflight", extra_vars={"preflight_accept": ["architectur"]}).refused()
    assert "did you mean architecture?" in played.output
    assert "'architectur'" in played.words
