"""What is found on a pair without a record, what is asked for, and what each host shall record."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prepared_by_hand import CHECKPOINT, ENGRAM, OVERLAY, SOURCES, STOCK_FOLDER, Machine

from spark_pair.jobs.inside import Reporter
from spark_pair.weights import seen
from spark_pair.weights.adopt import AdoptOrder, adopt
from spark_pair.weights.adopt_plan import (
    STOCK,
    Orders,
    Stated,
    all_recorded,
    contradiction,
    cuts,
    found,
    order,
)
from spark_pair.weights.kept import ordered
from spark_pair.weights.manifest import File, HostRole, Manifest
from spark_pair.weights.verify import Disk, verify

STATED = Stated(CHECKPOINT.commit[:8], STOCK)
NAMES: Mapping[HostRole, str] = {"head": "spark-a", "worker": "spark-b"}
ABLIT = f"{CHECKPOINT.commit[:8]}-ablit-{OVERLAY.commit[:8]}"


class Pair:
    """Two machines and what the controller knows of them."""

    def __init__(self, folder: Path) -> None:
        self.head = Machine(folder, "head")
        self.worker = Machine(folder, "worker")
        self.machines = {"head": self.head, "worker": self.worker}

    def looks(self) -> dict[HostRole, dict[str, Any]]:
        return {machine.role: machine.look() for machine in (self.head, self.worker)}

    def manifests(self) -> dict[str, Manifest]:
        return seen.trees(self.looks().values())

    def order(self, stated: Stated = STATED, **more: Any) -> Orders:
        given: dict[str, Any] = {
            "seens": self.looks(),
            "sources": SOURCES,
            "manifests": self.manifests(),
            "stated": stated,
            "asked": {role: machine.asked for role, machine in self.machines.items()},
            "names": NAMES,
        }
        return order(**{**given, **more})

    def found(self, role: HostRole) -> list[str]:
        return found(self.looks()[role], SOURCES, self.manifests(), role)

    def adopt(self, orders: Orders) -> None:
        for role, one in orders.orders.items():
            machine = self.machines[role]
            adopt(
                AdoptOrder.from_dict(one), Reporter(), provenance=machine.provenance,
                kept=machine.kept, may_read=lambda _: {},
            )  # fmt: skip


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def ranks_of(orders: Orders, role: HostRole) -> list[tuple[int, str]]:
    return [(one["rank"], one["path"]) for one in orders.orders[role]["ranks"]]


# ---- found ---------------------------------------------------------------------------------------


def test_what_lies_there_is_told_in_words_with_sizes(pair: Pair) -> None:
    checkpoint, engram, rank = pair.found("head")
    assert checkpoint.startswith(f"checkpoint: 6 files of {CHECKPOINT.commit[:8]}, ")
    assert engram.startswith(f"engram: 7 files of {ENGRAM.commit[:8]}, ")
    assert rank.startswith(f"rank 0: {CHECKPOINT.commit[:8]}/checkpoint/rank-cache/rank0of2-")
    for line in (checkpoint, engram, rank):
        assert " kB" in line
    assert "tensors" in rank
    assert [line.split(":")[0] for line in pair.found("worker")] == ["engram", "rank 1"]


def test_a_rank_file_that_is_not_whole_and_one_of_the_other_host(pair: Pair) -> None:
    shutil.copy(pair.worker.rank, pair.head.ranks)
    os.truncate(pair.head.ranks / pair.worker.rank.name, 100)
    line = pair.found("head")[-1]
    assert "rank 1 is served by the worker, not by this host" in line
    assert "does not end with TFDSRK01" in line


def test_files_of_another_commit_count_for_nothing(pair: Pair) -> None:
    (snapshot,) = pair.worker.files.glob(f"hub/models--*/snapshots/{ENGRAM.commit}")
    snapshot.rename(snapshot.with_name("d" * 40))
    line = pair.found("worker")[0]
    assert "of dddddddd" in line and f"not the wanted {ENGRAM.commit[:8]}" in line


def test_a_finished_pair_has_nothing_to_tell_and_nothing_to_do(pair: Pair) -> None:
    pair.adopt(pair.order())
    assert pair.found("head") == [] and pair.found("worker") == []
    assert pair.order() == Orders({}, ())
    assert pair.order(Stated()) == Orders({}, ()), "nothing more needs to be stated either"


def cut_anew(machine: Machine) -> Path:
    """Another cut under the same name and of the same size."""
    path = machine.rank
    with path.open("r+b") as stream:
        stream.write(bytes(byte ^ 1 for byte in path.read_bytes()[:9]))
    return path


@pytest.mark.parametrize("verified", [False, True])
def test_a_rank_file_that_was_cut_anew_under_its_name_is_adopted_again(
    pair: Pair, verified: bool
) -> None:
    pair.adopt(pair.order())
    path = cut_anew(pair.worker)
    if verified:
        before = pair.worker.provenance.load()["rank1"]
        done = verify(before, Disk(before.folder))
        assert not done.ok
        pair.worker.provenance.update(done.before, done.after)
    (line,) = pair.found("worker")
    assert "written since it was verified" in line
    (problem,) = pair.order(Stated()).problems
    assert path.name in problem and "weights_adopt_checkpoint" in problem
    orders = pair.order()
    assert set(orders.orders) == {"worker"}
    assert ranks_of(orders, "worker") == [(1, str(path))]
    pair.adopt(orders)
    assert pair.order() == Orders({}, ())
    record = pair.worker.provenance.load()["rank1"]
    assert verify(record, Disk(record.folder)).ok


@pytest.mark.fault(32)
def test_a_rank_file_that_went_bad_is_not_adopted(pair: Pair) -> None:
    pair.adopt(pair.order())
    told = pair.worker.rank.stat()
    cut_anew(pair.worker)
    os.utime(pair.worker.rank, ns=(told.st_atime_ns, told.st_mtime_ns))
    before = pair.worker.provenance.load()["rank1"]
    done = verify(before, Disk(before.folder))
    assert not done.ok
    pair.worker.provenance.update(done.before, done.after)
    assert pair.order() == Orders({}, ())


# ---- what must be stated -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "missing"),
    [
        (Stated(), "set weights_adopt_checkpoint and weights_adopt_overlay"),
        (Stated(checkpoint=CHECKPOINT.commit), "set weights_adopt_overlay"),
        (Stated(overlay=STOCK), "set weights_adopt_checkpoint"),
    ],
)
def test_what_is_not_stated_is_asked_for_with_what_the_folder_suggests(
    pair: Pair, stated: Stated, missing: str
) -> None:
    orders = pair.order(stated)
    (problem,) = orders.problems
    assert orders.orders == {}
    assert f"{missing}." in problem
    for words in ("spark-a", "spark-b", pair.head.rank.name, pair.worker.rank.name,
                  f'weights_adopt_checkpoint: "{CHECKPOINT.commit[:8]}"',
                  'weights_adopt_overlay: "none"'):  # fmt: skip
        assert words in problem


def test_a_grafted_folder_suggests_its_overlay(pair: Pair) -> None:
    for machine in (pair.head, pair.worker):
        machine.ranks.parents[1].rename(machine.files / "tensorfold-dsv41" / ABLIT)
    (problem,) = pair.order(Stated()).problems
    assert f'weights_adopt_overlay: "{OVERLAY.commit[:8]}"' in problem


def test_folders_that_do_not_agree_suggest_nothing(pair: Pair) -> None:
    pair.head.ranks.parents[1].rename(pair.head.files / "tensorfold-dsv41" / ABLIT)
    (problem,) = pair.order(Stated()).problems
    assert "By the name" not in problem


@pytest.mark.parametrize(
    ("stated", "variable"),
    [
        (Stated("cafecafe", STOCK), "weights_adopt_checkpoint"),
        (Stated("45ee", STOCK), "weights_adopt_checkpoint"),
        (Stated(CHECKPOINT.commit, "cafecafe"), "weights_adopt_overlay"),
    ],
)
def test_a_beginning_that_nobody_knows(pair: Pair, stated: Stated, variable: str) -> None:
    (problem,) = pair.order(stated).problems
    assert f"{variable} is " in problem and "40 hex digits" in problem


def test_the_beginning_of_a_commit_becomes_the_whole_one(pair: Pair) -> None:
    (rank,) = pair.order(Stated(CHECKPOINT.commit[:8], OVERLAY.commit[:8])).orders["head"]["ranks"]
    assert (rank["checkpoint"], rank["overlay"]) == (CHECKPOINT.commit, OVERLAY.commit)
    (rank,) = pair.order(Stated("c" * 40, STOCK)).orders["head"]["ranks"]
    assert (rank["checkpoint"], rank["overlay"]) == ("c" * 40, None)


def test_a_beginning_is_looked_up_in_sources_of_which_nothing_is_wanted(pair: Pair) -> None:
    wanted = [one for one in SOURCES if one.name != "overlay"]
    stated = Stated(CHECKPOINT.commit[:8], OVERLAY.commit[:8])
    manifests = {CHECKPOINT.name: pair.manifests()[CHECKPOINT.name]}
    manifests[ENGRAM.name] = pair.manifests()[ENGRAM.name]
    given: dict[str, Any] = {"sources": wanted, "manifests": manifests}
    assert "weights_adopt_overlay is " in pair.order(stated, **given).problems[0]
    (rank,) = pair.order(stated, **given, known=SOURCES).orders["head"]["ranks"]
    assert rank["overlay"] == OVERLAY.commit


@pytest.mark.parametrize(
    ("overlay", "wanted", "words"),
    [
        (OVERLAY.commit[:8], False, "Set ablit_graft_enabled: true"),
        (STOCK, True, "Set ablit_graft_enabled: false"),
        (OVERLAY.commit, True, ""),
        (STOCK, False, ""),
        ("", True, ""),
    ],
)
def test_nothing_is_recorded_that_the_plan_would_want_cut_anew(
    overlay: str, wanted: bool, words: str
) -> None:
    said = contradiction(Stated(CHECKPOINT.commit, overlay), overlay_wanted=wanted)
    assert words in said and bool(said) == bool(words)


def test_with_an_overlay_its_list_goes_along_to_be_kept(pair: Pair) -> None:
    overlay = Manifest(OVERLAY.name, OVERLAY.commit, (File("README.md", 7, "a" * 40, None),))
    manifests = {**pair.manifests(), OVERLAY.name: overlay}
    grafted = Stated(CHECKPOINT.commit, OVERLAY.commit)
    for one in pair.order(grafted, manifests=manifests).orders.values():
        assert overlay in list(ordered(one))
        assert AdoptOrder.from_dict(one).ranks
    for one in pair.order(manifests=manifests).orders.values():
        assert one["lists"] == []


def test_what_needs_to_be_stated_at_all(pair: Pair) -> None:
    assert cuts(pair.looks(), STATED) and cuts(pair.looks(), Stated())
    pair.adopt(pair.order())
    assert not cuts(pair.looks(), STATED) and not cuts(pair.looks(), Stated())


def test_without_rank_files_nothing_needs_to_be_stated(pair: Pair) -> None:
    pair.head.rank.unlink()
    pair.worker.rank.unlink()
    orders = pair.order(Stated())
    assert sorted(orders.orders) == ["head", "worker"] and orders.problems == ()


def test_files_that_nothing_can_prove(pair: Pair) -> None:
    known = {CHECKPOINT.name: pair.manifests()[CHECKPOINT.name]}
    problems = pair.order(manifests=known).problems
    assert [words.split()[0] for words in problems] == ["spark-a", "spark-b"]
    assert all(ENGRAM.name in words and "reach the Hub" in words for words in problems)


def test_whether_a_list_has_nothing_left_to_prove(pair: Pair) -> None:
    engram = next(one for one in SOURCES if one.name == "engram")
    manifest = pair.manifests()[engram.repo]
    assert not all_recorded(pair.looks(), engram, manifest)
    pair.adopt(pair.order())
    assert all_recorded(pair.looks(), engram, manifest)
    # A list that lacks what is wanted proves nothing.
    assert not all_recorded(pair.looks(), engram, manifest.part(manifest.files[:1]))


# ---- what is ordered -----------------------------------------------------------------------------


def test_each_host_records_what_lies_there_and_its_own_rank(pair: Pair) -> None:
    orders = pair.order()
    assert ranks_of(orders, "head") == [(0, str(pair.head.rank))]
    assert ranks_of(orders, "worker") == [(1, str(pair.worker.rank))]
    head = {one["name"]: one["files"] for one in orders.orders["head"]["sources"]}
    assert [path for path in head["checkpoint"] if path.endswith(".safetensors")] == [
        "model-00039-of-00039.safetensors"
    ]
    assert "README.md" not in head["engram"], "nobody wants it"
    for role, one in orders.orders.items():
        assert AdoptOrder.from_dict(one).role == role


def test_a_file_of_the_wrong_size_is_ordered_so_that_it_is_refused_by_name(pair: Pair) -> None:
    os.truncate(pair.worker.blob("00047"), 10)
    (engram,) = pair.order().orders["worker"]["sources"]
    assert "model-00047-of-00048.safetensors" in engram["files"]


def test_a_leftover_of_the_cut_is_left_alone(pair: Pair) -> None:
    shutil.copy(pair.worker.rank, pair.head.ranks)
    assert ranks_of(pair.order(), "head") == [(0, str(pair.head.rank))]
    pair.adopt(pair.order())
    assert pair.order() == Orders({}, ())


def test_hosts_that_were_mixed_up_are_for_the_job_to_refuse(pair: Pair) -> None:
    moved = pair.head.ranks / pair.worker.rank.name
    shutil.move(pair.worker.rank, moved)
    pair.head.ranks.joinpath(next(pair.head.ranks.glob("rank0*")).name).unlink()
    assert ranks_of(pair.order(), "head") == [(1, str(moved))]


def test_of_two_folders_the_stated_one_counts(pair: Pair) -> None:
    grafted = pair.head.files / STOCK_FOLDER.replace(CHECKPOINT.commit[:8], ABLIT)
    shutil.copytree(pair.head.ranks, grafted)
    assert ranks_of(pair.order(), "head") == [(0, str(pair.head.rank))]
    with_overlay = pair.order(Stated(CHECKPOINT.commit, OVERLAY.commit))
    assert ranks_of(with_overlay, "head") == [(0, str(grafted / pair.head.rank.name))]


def test_a_host_that_is_recorded_changes_over_to_what_is_stated_anew(pair: Pair) -> None:
    pair.adopt(pair.order())
    grafted = pair.head.files / STOCK_FOLDER.replace(CHECKPOINT.commit[:8], ABLIT)
    shutil.copytree(pair.head.ranks, grafted)
    assert pair.order() == Orders({}, ()), "the record is what was stated"
    changed = pair.order(Stated(CHECKPOINT.commit, OVERLAY.commit))
    assert ranks_of(changed, "head") == [(0, str(grafted / pair.head.rank.name))]
    assert "worker" not in changed.orders


def test_a_recorded_file_of_a_source_that_was_touched_is_read_again(pair: Pair) -> None:
    pair.adopt(pair.order())
    os.utime(pair.worker.blob("00048"))
    orders = pair.order().orders
    assert list(orders) == ["worker"]
    (engram,) = orders["worker"]["sources"]
    assert engram["files"] == ["model-00048-of-00048.safetensors"]
