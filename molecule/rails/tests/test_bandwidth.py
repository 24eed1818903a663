"""What each rail carries is measured when asked for, never over a serving model, and traceless."""

from collections.abc import Iterator
from typing import Any

import pytest
from stories.machines import (
    HEAD,
    WORKER,
    assert_untouched,
    clear_faults,
    fingerprint,
    on,
    set_fault,
)
from stories.plays import Played, play
from stories.servers import generates

from simulated_pair.naming import RAIL_INTERFACES

TEST = {"cx7_network_bandwidth_test": True}
ALLOWED = {**TEST, "cx7_network_allow_disruption": True}
JUDGED = "Judge the bandwidth"
SQUATTER = "story-squatter.service"


@pytest.fixture(scope="module", autouse=True)
def machines_stay_as_they_are() -> Iterator[None]:
    before = fingerprint()
    yield
    assert_untouched(before)


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    clear_faults()
    assert on(HEAD, "systemctl list-units --all --no-legend 'spark-pair-rail-*'") == ""


def measured(played: Played) -> dict[str, Any]:
    (finding,) = played.succeeded().result_of(JUDGED, WORKER)["findings"]
    return dict(finding)


def test_a_serving_model_keeps_its_rails() -> None:
    played = play("network", extra_vars=TEST).refused()
    assert "A model server runs" in played.words
    assert "Nothing was measured" in played.words
    assert generates("hikari")


def test_both_rails_are_measured_at_the_gid_indexes_of_the_moment() -> None:
    set_fault(WORKER, "sysfs", gid_shift=2)
    played = play("network", extra_vars=ALLOWED).unchanged()
    finding = measured(played)
    assert finding["verdict"] == "pass"
    assert {name: one["gbps"] for name, one in finding["details"].items()} == dict.fromkeys(
        RAIL_INTERFACES, 92.6
    )


@pytest.mark.fault(5)
def test_a_cable_plugged_in_hot_is_recognised() -> None:
    set_fault(WORKER, "rdma", gbps=13)
    played = play("network", extra_vars=ALLOWED).refused()
    for words in ("carries 13.0 Gb/s", HEAD, WORKER, "Reboot both machines with the cable in"):
        assert words in played.words


def test_without_rdma_programs_streams_are_measured() -> None:
    iperf3 = {"cx7_network_bandwidth_tool": "iperf3", "cx7_network_bandwidth_floor": 1}
    finding = measured(play("network", extra_vars={**ALLOWED, **iperf3}))
    assert {one["tool"] for one in finding["details"].values()} == {"iperf3"}
    assert all(one["gbps"] >= 1 for one in finding["details"].values())


def test_a_port_of_somebody_else_ends_the_test_on_both_machines() -> None:
    on(HEAD, f"systemd-run --quiet --collect --unit={SQUATTER} python3 -m http.server 18516")
    try:
        on(
            HEAD,
            "for n in $(seq 100); do ss -ltn | grep -q :18516 && exit; sleep 0.1; done; exit 1",
        )
        played = play("network", extra_vars=ALLOWED).refused()
    finally:
        on(HEAD, f"systemctl stop {SQUATTER}")
    assert "port 18516 is taken" in played.words
    assert not [one for one in played.outcomes if one.task.endswith("Measure from the worker")]
