"""Which file system a place lies on, and what a row of steps does to it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.weights import budget
from spark_pair.weights.budget import PURPOSES, Disks, Effect, Effects, FileSystem, Places, Spot

PLACES: Places = {
    "head": {
        "cache": "/home/u/.cache/huggingface/hub",
        "work": "/home/u/.cache/huggingface/tensorfold-dsv41",
        "ranks": "/data/ranks",
        "images": "/var/lib/docker",
        "scratch": "/home/u/.cache/spark-pair",
    },
    "worker": dict.fromkeys(PURPOSES, "/srv"),
}
ROOT = FileSystem("/", 1000, 600)


def disks(*head: FileSystem) -> Disks:
    return Disks({"head": head or (ROOT,), "worker": (ROOT,)}, PLACES)


def test_the_nearest_mount_holds_a_place() -> None:
    found = disks(ROOT, FileSystem("/home", 10, 5), FileSystem("/dat", 9, 4))
    assert found.spot("head", "cache") == Spot("head", "/home")
    assert found.spot("head", "ranks") == Spot("head", "/")  # /dat is no part of /data
    assert found.spots == (Spot("head", "/"), Spot("head", "/home"), Spot("worker", "/"))


def test_two_mounts_of_one_device_are_one_room() -> None:
    found = disks(
        FileSystem("/", 1000, 600, "nvme0n1p2"), FileSystem("/home", 1000, 600, "nvme0n1p2")
    )
    assert {found.spot("head", purpose) for purpose in PURPOSES} == {Spot("head", "/")}


def test_an_unknown_file_system_is_refused_by_name() -> None:
    with pytest.raises(budget.BudgetError, match=r"/data/ranks on the head is not known"):
        disks(FileSystem("/home", 1000, 600))
    with pytest.raises(budget.BudgetError, match="not an absolute path"):
        Disks(
            {"head": [ROOT], "worker": [ROOT]}, {**PLACES, "worker": dict.fromkeys(PURPOSES, "~")}
        )


def test_bytes_on_one_file_system_are_added_up() -> None:
    both = disks().effects(
        grows=[("head", "cache", 3), ("head", "work", 4), ("worker", "ranks", 0)],
        frees=[("head", "images", 2)],
    )
    assert both == (Effect(Spot("head", "/"), grows=7, frees=2),)


def follow(rows: Sequence[tuple[str, int, int]], *, floor: int = 0) -> budget.Peak:
    spot = Spot("head", "/")
    steps = [(name, (Effect(spot, grows, frees),)) for name, grows, frees in rows]
    return budget.simulate(disks(), steps, credited={spot: 50}, floor=floor)[0]


def test_what_a_step_frees_is_still_there_while_it_writes() -> None:
    peak = follow([("make", 100, 0), ("swap", 200, 100), ("small", 50, 0)])
    assert (peak.most, peak.at, peak.after) == (300, "swap", 250)
    assert (peak.footprint, peak.lowest_free) == (350, 300)
    assert not peak.missing


def test_the_first_step_that_does_not_fit_is_named_with_all_that_is_missing() -> None:
    peak = follow([("one", 500, 0), ("two", 90, 0), ("three", 60, 0)], floor=30)
    assert (peak.missing, peak.missing_at) == (80, "two")  # 650 + 30 - 600


def test_exactly_full_fits() -> None:
    assert not follow([("all", 570, 0)], floor=30).missing
    assert follow([("all", 571, 0)], floor=30).missing == 1


def test_freeing_is_welcome_below_the_floor() -> None:
    assert not follow([("prune", 0, 400)], floor=700).missing
    assert not follow([("prune", 0, 400), ("write", 300, 0)], floor=700).missing
    assert follow([("write", 1, 0), ("prune", 0, 400)], floor=700).missing


EFFECTS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=8)


@given(EFFECTS, st.integers(0, 200))
def test_what_is_said_to_be_missing_is_exactly_what_is_missing(
    rows: list[tuple[int, int]], floor: int
) -> None:
    spot = Spot("head", "/")
    steps: list[tuple[str, Effects]] = [
        (str(number), (Effect(spot, grows, frees),)) for number, (grows, frees) in enumerate(rows)
    ]

    def missing(free: int) -> int:
        places = Disks({"head": [FileSystem("/", 9999, free)], "worker": [ROOT]}, PLACES)
        return budget.simulate(places, steps, credited={}, floor=floor)[0].missing

    lacks = missing(600)
    assert missing(600 + lacks) == 0
    if lacks:
        assert missing(600 + lacks - 1) == 1


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (106 * 10**9, "106.0 GB (98.7 GiB)"),
        (196 * 2**30, "210.5 GB (196.0 GiB)"),
        (682_275_992, "682.3 MB (650.7 MiB)"),
        (0, "0.0 MB (0.0 MiB)"),
    ],
)
def test_both_ways_of_counting_are_said(count: int, words: str) -> None:
    assert budget.words(count) == words
