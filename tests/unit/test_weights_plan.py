"""What is left to do for the weights, in which order, and whether it fits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_pair.weights import goal as goals
from spark_pair.weights import holdings, plan, steps
from spark_pair.weights.budget import (
    GB,
    GIB,
    PURPOSES,
    Disks,
    Effect,
    FileSystem,
    Peak,
    Places,
    Spot,
)
from spark_pair.weights.goal import Options
from spark_pair.weights.holdings import Holdings, Pair, RankFile, Wanted
from spark_pair.weights.manifest import File, HostRole, Manifest, Selector, Source
from spark_pair.weights.plan import Plan
from spark_pair.weights.plan_table import WIDTH, table
from spark_pair.weights.provenance import Artefact, Held, Origin

NAMES: dict[HostRole, str] = {"head": "spark-033f", "worker": "spark-5bf0"}
CHECKPOINT, ENGRAM, OVERLAY = "45ee5d0f" + "0" * 32, "1bae0e10" + "0" * 32, "0bdc2036" + "0" * 32
EMPTY: Pair = {"head": Holdings(), "worker": Holdings()}

# The real pair. The checkpoint's size is specified as "196 GiB" for 39 shards, the Engram tables as
# "about 203 GB" for two, the overlay's big file as 682,275,992 bytes. How the checkpoint's bytes
# spread over its shards is not known: they are taken as equal.
CHECKPOINT_BYTES = 196 * GIB
ENGRAM_BYTES = 203 * GB
OVERLAY_BYTES = 682_275_992

SHARD = "model-00007-of-00039.safetensors"
BIG = 4000 * GB
"""A disk on which every order fits; the real ones' size does not matter for what is written."""


def file(path: str, size: int) -> File:
    return File(path, size, "a" * 40, "b" * 64 if path.endswith(".safetensors") else None)


def split(total: int, paths: Sequence[str]) -> list[File]:
    """Files of about equal size that add up."""
    share = total // len(paths)
    sizes = [share] * (len(paths) - 1) + [total - share * (len(paths) - 1)]
    return [file(path, size) for path, size in zip(paths, sizes, strict=True)]


def manifests(
    checkpoint: int = CHECKPOINT_BYTES, engram: int = ENGRAM_BYTES, overlay: int = OVERLAY_BYTES
) -> dict[str, Manifest]:
    """The three repositories with sizes in bytes; small files are too small to matter."""
    shards = [f"model-{number:05d}-of-00039.safetensors" for number in range(1, 40)]
    tables = [f"model-{number:05d}-of-00048.safetensors" for number in (47, 48)]
    return {
        "checkpoint": Manifest(
            "Mia-AiLab/DeepSeek-V4.1-Flash-1017-EXL3-EAQ-v1-2.9-bpw",
            CHECKPOINT,
            (*split(checkpoint - 2, shards), file("config.json", 2)),
        ),
        "engram": Manifest(
            "deepseek-ai/DeepSeek-V4.1-Flash-1017",
            ENGRAM,
            (*split(engram - 2, tables), file("config.json", 2), file("other.safetensors", 99)),
        ),
        "overlay": Manifest(
            "drowzeys/keys-DeepSeek-V4.1-Flash-1017-Abliterated",
            OVERLAY,
            (file("exl3_wo_b_l10_35_mia29.safetensors", overlay),),
        ),
    }


def source(name: str, *hosts: HostRole, files: Sequence[str] = ("*",), **more: Any) -> Source:
    made = manifests()[name]
    selectors = tuple(Selector(pattern) for pattern in files)
    return Source(name, made.repo, made.commit[:8], selectors, hosts, **more)


SOURCES = (
    source("checkpoint", "head"),
    source("engram", "head", "worker", files=("model-0004[78]-*", "config.json")),
    source("overlay", "head", gated=True),
)
PLACES: Places = {
    host: {
        "cache": "/home/u/.cache/huggingface/hub",
        "work": "/home/u/.cache/huggingface/tensorfold-dsv41",
        "ranks": "/home/u/.cache/huggingface/tensorfold-dsv41",
        "images": "/var/lib/docker",
        "scratch": "/home/u/.cache/spark-pair",
    }
    for host in NAMES
}


def one_disk(head: int = BIG, worker: int = BIG) -> Disks:
    """Each machine with one empty disk of that many bytes, as a Spark has it."""
    return Disks(
        {"head": [FileSystem("/", head, head)], "worker": [FileSystem("/", worker, worker)]}, PLACES
    )


def make(
    options: Options | None = None,
    *,
    pair: Pair = EMPTY,
    disks: Disks | None = None,
    sizes: Mapping[str, Manifest] | None = None,
    sources: Sequence[Source] = SOURCES,
) -> Plan:
    return plan.make(
        sources,
        sizes or manifests(),
        pair,
        disks or one_disk(),
        options or Options(floor_bytes=0),
        names=NAMES,
    )


def at(made: Plan, host: HostRole) -> Peak:
    return next(peak for peak in made.peaks if peak.spot.host == host)


def ids(made: Plan) -> list[str]:
    return [step.id for step in made.steps]


def gb(count: int) -> float:
    return count / GB


# ---- the real numbers

AS_THE_ACCOUNT_COUNTS = {"checkpoint": 196 * GB}
"""The account adds the checkpoint's GiB to the others' GB."""


@pytest.mark.parametrize(
    ("options", "sizes", "head"),
    [
        # The recipe's own order: all downloads, shards written anew by the overlay, then the cut.
        (Options(order="download_first", overlay=True, graft="recipe"), {}, 685),
        (
            Options(order="download_first", overlay=True, graft="recipe"),
            AS_THE_ACCOUNT_COUNTS,
            671,
        ),
        # In place and nothing pruned, in either order.
        (Options(order="download_first", overlay=True), {}, 545),
        (Options(order="minimal", overlay=True), {}, 545),
        # In place and pruned before the Engram tables come.
        (Options(order="minimal", overlay=True, prune=True), {}, 342),
        (Options(order="minimal", prune=True), {}, 342),
        (Options(order="download_first", overlay=True, prune=True), {}, 545),
        # Nobody asked for the overlay, nobody counts the image.
        (Options(order="download_first", image_bytes=0), {}, 519),
        (Options(order="download_first", image_bytes=0), AS_THE_ACCOUNT_COUNTS, 505),
    ],
)
def test_the_heads_peak_on_the_real_pair(
    options: Options, sizes: dict[str, int], head: int
) -> None:
    made = make(options, sizes=manifests(**sizes))
    assert not made.problems
    # The overlay's own file and what undoes it are 0.7 GB each, which the figures leave out.
    assert gb(at(made, "head").footprint) == pytest.approx(head, abs=1.5)


def test_the_workers_peak_on_the_real_pair() -> None:
    for order in goals.ORDERS:
        made = make(Options(order=order))
        assert gb(at(made, "worker").footprint) == pytest.approx(310 + 25, abs=1.5)
        assert gb(at(made, "worker").footprint - made.steps[1].bytes) == pytest.approx(310, abs=1.5)


def test_pruned_the_heads_peak_is_hardly_more_than_what_stays() -> None:
    peak = at(make(Options(order="minimal", prune=True, image_bytes=0)), "head")
    assert peak.footprint / (peak.credited + peak.after) <= 1.02


def test_what_the_real_pair_downloads_and_sends() -> None:
    made = make(Options(overlay=True))
    sums = {
        kind: sum(step.bytes for step in made.steps if step.kind == kind)
        for kind in ("download", "transfer")
    }
    assert sums["download"] == CHECKPOINT_BYTES + ENGRAM_BYTES + OVERLAY_BYTES
    assert sums["transfer"] == ENGRAM_BYTES + goals.RANK_FILE_BYTES


# ---- orders


def test_an_image_travels_as_an_archive_that_both_machines_have_room_for() -> None:
    pair: Pair = {"head": Holdings(image=True), "worker": Holdings()}
    made = make(
        Options(image_bytes=10, floor_bytes=0), pair=pair, disks=one_disk(1000, 1000), sources=()
    )
    assert ids(made) == ["image-worker"]
    assert [(at(made, host).most, at(made, host).after) for host in ("head", "worker")] == [
        (10, 0),
        (20, 10),
    ]


def test_downloads_first() -> None:
    assert ids(make(Options(order="download_first", overlay=True, prune=True))) == [
        "image-head",
        "image-worker",
        "download-checkpoint-head",
        "download-overlay-head",
        "download-engram-head",
        "transfer-engram-worker",
        "graft-checkpoint-head",
        "shard-rank1-head",
        "transfer-rank1-worker",
        "shard-rank0-head",
        "prune-checkpoint-head",
    ]


def test_the_minimal_order_makes_room_before_the_engram_tables_come() -> None:
    made = make(Options(order="minimal", prune=True))
    assert ids(made) == [
        "image-head",
        "image-worker",
        "download-checkpoint-head",
        "shard-rank1-head",
        "transfer-rank1-worker",
        "shard-rank0-head",
        "prune-checkpoint-head",
        "download-engram-head",
        "transfer-engram-worker",
    ]
    engram = next(step for step in made.steps if step.id == "download-engram-head")
    assert engram.needs == ("prune-checkpoint-head",)


def test_auto_downloads_first_where_that_fits_and_else_makes_room() -> None:
    options = Options(prune=True, floor_bytes=20 * GIB)
    assert make(options, disks=one_disk(head=600 * GB)).order == "download_first"
    tight = make(options, disks=one_disk(head=400 * GB))
    assert tight.order == "minimal"
    assert not tight.problems


def test_auto_never_deletes_unasked() -> None:
    made = make(Options(), disks=one_disk(head=400 * GB))
    assert not any(step.kind == "prune" for step in made.steps)
    assert len(made.problems) == 2
    assert "spark-033f lacks 165.9 GB (154.5 GiB) on /" in made.problems[0]
    assert "from step download-engram-head on" in made.problems[0]
    assert made.problems[1].startswith("It fits with rank_files_prune_sources: true")


def test_a_refusal_names_the_fewest_settings_that_make_it_fit() -> None:
    free = Options(overlay=True)
    assert "It fits with rank_files_prune" in make(free, disks=one_disk(head=400 * GB)).problems[-1]
    fixed = Options(order="download_first", overlay=True)
    said = make(fixed, disks=one_disk(head=400 * GB)).problems[-1]
    assert "at most 342.8 GB (319.3 GiB) on spark-033f /, 334.0 GB" in said
    assert "weights_disk_order: auto and rank_files_prune_sources: true" in said
    assert "No setting makes it fit" in make(fixed, disks=one_disk(head=200 * GB)).problems[-1]


def test_a_graft_in_place_is_among_the_ways_out() -> None:
    fixed = Options(order="download_first", overlay=True, graft="recipe")
    said = make(fixed, disks=one_disk(head=600 * GB)).problems[-1]
    assert said.startswith("It fits with ablit_graft_method: in_place; ")
    said = make(fixed, disks=one_disk(head=400 * GB)).problems[-1]
    ways = "ablit_graft_method: in_place and weights_disk_order: auto and rank_files_prune"
    assert f"It fits with {ways}" in said
    plain = dataclasses.replace(fixed, overlay=False)
    assert "in_place" not in make(plain, disks=one_disk(head=400 * GB)).problems[-1]


def test_pruning_is_not_proposed_when_it_would_delete_what_must_stay() -> None:
    options = Options(keep=(Selector("shard39"),))
    assert "No setting" in make(options, disks=one_disk(head=400 * GB)).problems[-1]
    refused = make(dataclasses.replace(options, prune=True))
    assert "Pruning would delete what must stay" in refused.problems[0]
    assert not refused.steps


def test_a_full_worker_is_refused_too() -> None:
    made = make(disks=one_disk(worker=300 * GB))
    assert "spark-5bf0 lacks 34.0 GB" in made.problems[0]
    assert made.problems[-1].startswith("No setting")


@pytest.mark.fault(23)
def test_leftovers_of_other_programs_are_told() -> None:
    pair: Pair = {"head": Holdings(leftovers=50 * GB), "worker": Holdings()}
    made = make(pair=pair, disks=one_disk(head=500 * GB))
    assert "Interrupted downloads of other programs take 50.0 GB" in made.problems[0]
    assert "spark-033f: interrupted downloads of other programs take 50.0 GB" in table(made, NAMES)


# ---- what is there already


def rank_file(rank: int, graft: str | None = None) -> RankFile:
    return RankFile(rank, goals.RANK_FILE_BYTES, CHECKPOINT, graft)


def held(name: str, *patterns: str) -> dict[str, dict[str, int]]:
    """Files of a repository as a machine may hold them."""
    chosen = manifests()[name].select(Selector(pattern) for pattern in patterns or ("*",))
    return {name: {one.path: one.size for one in chosen}}


ENGRAM_HELD = held("engram", "model-0004[78]-*", "config.json")


def finished(graft: str | None = None) -> Pair:
    """The account's pair in the end: rank files, Engram tables, shard 39, small files."""
    return {
        "head": Holdings(
            recorded={**ENGRAM_HELD, **held("checkpoint", "*-00039-of-*", "config.json")},
            ranks=(rank_file(0, graft),),
            image=True,
        ),
        "worker": Holdings(recorded=ENGRAM_HELD, ranks=(rank_file(1, graft),), image=True),
    }


@pytest.mark.fault(37)
@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("overlay", [False, True])
@pytest.mark.parametrize("order", ["auto", "download_first", "minimal"])
def test_nothing_is_left_although_the_source_shards_are_gone(
    order: Any, overlay: bool, prune: bool
) -> None:
    pair = finished(OVERLAY if overlay else None)
    made = make(Options(order=order, overlay=overlay, prune=prune), pair=pair)
    assert not made.steps
    assert not made.problems
    assert "Nothing is left to do" in table(made, NAMES)


def test_stock_rank_files_are_no_grafted_ones() -> None:
    made = make(Options(overlay=True), pair=finished(None))
    assert "download-checkpoint-head" in ids(made)
    assert "graft-checkpoint-head" in ids(made)
    assert "download-engram-head" not in ids(made)
    assert "cut from other weights" in next(one.words for one in made.steps if one.kind == "shard")
    assert ids(make(Options(), pair=finished(OVERLAY)))[:2] == [
        "download-checkpoint-head",
        "shard-rank1-head",
    ]


def test_only_what_is_missing_is_fetched() -> None:
    pair = finished()
    worker = dataclasses.replace(pair["worker"], recorded={})
    assert ids(make(pair={**pair, "worker": worker})) == ["transfer-engram-worker"]
    head = dataclasses.replace(pair["head"], recorded=held("checkpoint", "*-00039-of-*", "c*"))
    assert ids(make(pair={**pair, "head": head})) == ["transfer-engram-head"]
    lost = dataclasses.replace(pair["head"], recorded={**ENGRAM_HELD, **held("checkpoint", "c*")})
    (step,) = make(pair={**pair, "head": lost}).steps
    assert step.id == "download-checkpoint-head"
    assert gb(step.bytes) == pytest.approx(210.5 / 39, abs=0.1)


def test_whole_and_unfinished_files_are_credited_and_still_proven() -> None:
    big = "model-00047-of-00048.safetensors"
    head = Holdings(found=held("checkpoint"), parts={"engram": {big: 60 * GB}})
    made = make(pair={"head": head, "worker": Holdings()})
    by_id = {step.id: step for step in made.steps}
    whole, half = by_id["download-checkpoint-head"], by_id["download-engram-head"]
    assert (whole.bytes, whole.credited) == (0, CHECKPOINT_BYTES)
    assert (half.bytes, half.credited) == (143 * GB, 60 * GB)
    assert made.credited == CHECKPOINT_BYTES + 60 * GB
    assert at(made, "head").credited == made.credited
    assert "210.5 GB (196.0 GiB) there already, to be verified" in whole.words


def test_tables_found_on_the_worker_are_proven_there_and_sent_to_the_head() -> None:
    pair: Pair = {"head": Holdings(), "worker": Holdings(found=ENGRAM_HELD)}
    made = make(pair=pair)
    engram = [step for step in made.steps if "engram" in step.id]
    assert [(step.id, step.bytes) for step in engram] == [
        ("download-engram-worker", 0),
        ("transfer-engram-head", ENGRAM_BYTES),
    ]


def test_the_head_downloads_although_the_worker_has_a_little() -> None:
    pair: Pair = {"head": Holdings(), "worker": Holdings(found=held("engram", "config.json"))}
    engram = [step for step in make(pair=pair).steps if "engram" in step.id]
    assert [(step.id, step.bytes) for step in engram] == [
        ("download-engram-head", ENGRAM_BYTES),
        ("transfer-engram-worker", ENGRAM_BYTES - 2),
    ]


def test_a_copy_left_on_the_head_is_deleted_once_the_worker_has_its_rank() -> None:
    pair = finished()
    head = dataclasses.replace(pair["head"], ranks=(rank_file(0), rank_file(1)))
    (step,) = make(pair={**pair, "head": head}).steps
    assert (step.id, step.bytes, step.effects[0].frees) == (
        "transfer-rank1-worker",
        0,
        goals.RANK_FILE_BYTES,
    )


def test_rank_1_that_is_cut_already_is_only_sent() -> None:
    head = Holdings(
        recorded={**held("checkpoint"), **ENGRAM_HELD}, ranks=(rank_file(1),), image=True
    )
    pair: Pair = {"head": head, "worker": Holdings(recorded=ENGRAM_HELD, image=True)}
    assert ids(make(pair=pair)) == ["transfer-rank1-worker", "shard-rank0-head"]


def test_a_rank_file_without_a_record_is_not_cut_over() -> None:
    pair = finished()
    head = dataclasses.replace(pair["head"], ranks=(), strangers=frozenset({0}))
    (problem,) = make(pair={**pair, "head": head}).problems
    assert "rank 0 lies on spark-033f" in problem
    assert "--tags adopt" in problem
    worker = Holdings(recorded=ENGRAM_HELD, strangers=frozenset({1}), image=True)
    (problem,) = make(pair={**pair, "worker": worker}).problems
    assert "rank 1 lies on spark-5bf0" in problem
    known = dataclasses.replace(pair["head"], strangers=frozenset({0, 1}))
    assert not make(pair={**pair, "head": known}).problems


def test_the_overlay_is_taken_out_before_stock_files_are_cut() -> None:
    head = Holdings(recorded=held("checkpoint"), graft=OVERLAY, work=OVERLAY_BYTES, image=True)
    pair: Pair = {"head": head, "worker": Holdings(image=True)}
    made = make(pair=pair)
    assert ids(made)[0] == "undo-graft-head"
    assert "shard-rank1-head" in ids(made)
    again = make(Options(overlay=True), pair=pair)
    assert not any(step.kind == "graft" or "overlay" in step.id for step in again.steps)


def test_a_graft_is_undone_also_where_nothing_is_to_be_cut() -> None:
    pair = finished()
    head = dataclasses.replace(
        pair["head"],
        recorded={**ENGRAM_HELD, **held("checkpoint")},
        graft=OVERLAY,
        work=OVERLAY_BYTES,
        ranks=(rank_file(0), rank_file(0, OVERLAY)),
    )
    worker = dataclasses.replace(pair["worker"], ranks=(rank_file(1), rank_file(1, OVERLAY)))
    both: Pair = {"head": head, "worker": worker}
    assert ids(make(pair=both)) == ["undo-graft-head"]
    assert ids(make(Options(overlay=True), pair=both)) == []


def test_turning_the_overlay_on_and_off_needs_no_new_cut() -> None:
    pair = finished()
    both: Pair = {
        "head": dataclasses.replace(pair["head"], ranks=(rank_file(0), rank_file(0, OVERLAY))),
        "worker": dataclasses.replace(pair["worker"], ranks=(rank_file(1), rank_file(1, OVERLAY))),
    }
    for overlay in (False, True):
        assert ids(make(Options(overlay=overlay), pair=both)) == []


def test_an_unfinished_graft_is_gone_on_with_or_taken_back() -> None:
    pair = finished()
    head = dataclasses.replace(
        pair["head"],
        recorded={**ENGRAM_HELD, **held("checkpoint"), **held("overlay")},
        unfinished=OVERLAY,
        work=100,
        ranks=(),
    )
    both: Pair = {"head": head, "worker": dataclasses.replace(pair["worker"], ranks=())}
    cuts = ["shard-rank1-head", "transfer-rank1-worker", "shard-rank0-head"]
    assert ids(make(Options(overlay=True), pair=both)) == ["graft-checkpoint-head", *cuts]
    assert ids(make(pair=both)) == ["undo-graft-head", *cuts]


def test_shards_left_half_way_are_put_in_order_though_nothing_is_to_be_cut() -> None:
    pair = finished(OVERLAY)
    head = dataclasses.replace(
        pair["head"], recorded={**ENGRAM_HELD, **held("checkpoint")}, unfinished=OVERLAY
    )
    both: Pair = {**pair, "head": head}
    assert ids(make(Options(overlay=True), pair=both)) == [
        "download-overlay-head",
        "graft-checkpoint-head",
    ]


def test_a_shard_fetched_anew_is_grafted_again() -> None:
    some = held("checkpoint")
    del some["checkpoint"][SHARD]
    head = Holdings(recorded=some, graft=OVERLAY, work=OVERLAY_BYTES)
    made = make(Options(overlay=True), pair={"head": head, "worker": Holdings()})
    assert "graft-checkpoint-head" in ids(made)
    assert "download-overlay-head" in ids(made)
    assert made.order == "download_first"  # the graft that counts no longer decides nothing


def test_moving_shards_to_another_disk_takes_their_bytes_there() -> None:
    places: Places = {host: {**PLACES[host], "work": "/work"} for host in NAMES}
    rooms = [FileSystem("/", BIG, BIG), FileSystem("/work", BIG, BIG)]
    made = make(Options(overlay=True), disks=Disks({"head": rooms, "worker": rooms}, places))
    peaks = {peak.spot: peak for peak in made.peaks}
    work = peaks[Spot("head", "/work")]
    assert work.footprint == goals.REWRITTEN_BYTES + OVERLAY_BYTES
    anew = make(
        Options(overlay=True, graft="recipe"), disks=Disks({"head": rooms, "worker": rooms}, places)
    )
    assert {peak.spot: peak for peak in anew.peaks}[Spot("head", "/work")].footprint == (
        CHECKPOINT_BYTES
    )


def test_shards_that_were_moved_once_are_not_moved_again() -> None:
    places: Places = {host: {**PLACES[host], "work": "/work"} for host in NAMES}
    rooms = [FileSystem("/", BIG, BIG), FileSystem("/work", BIG, BIG)]
    head = Holdings(recorded=held("checkpoint"), moved=goals.REWRITTEN_BYTES)
    made = make(
        Options(overlay=True),
        pair={"head": head, "worker": Holdings()},
        disks=Disks({"head": rooms, "worker": rooms}, places),
    )
    graft = next(step for step in made.steps if step.kind == "graft")
    assert graft.effects == (Effect(Spot("head", "/work"), grows=OVERLAY_BYTES),)
    assert {peak.spot: peak.credited for peak in made.peaks}[Spot("head", "/work")] == (
        goals.REWRITTEN_BYTES
    )


def test_a_part_that_is_too_long_is_worth_no_more_than_its_file() -> None:
    head = Holdings(parts={"checkpoint": {"config.json": 1000}})
    assert head.credit("checkpoint", [file("config.json", 2)]) == 2


def test_one_that_has_begun_to_cut_goes_on_in_that_order() -> None:
    head = Holdings(recorded=held("checkpoint"), ranks=(rank_file(0),), image=True)
    pair: Pair = {"head": head, "worker": Holdings(ranks=(rank_file(1),), image=True)}
    made = make(Options(prune=True), pair=pair)
    assert ids(made) == ["prune-checkpoint-head", "download-engram-head", "transfer-engram-worker"]
    worker = dataclasses.replace(pair["worker"], recorded=ENGRAM_HELD)
    made = make(Options(prune=True), pair={"head": head, "worker": worker})
    assert ids(made) == ["prune-checkpoint-head", "transfer-engram-head"]


# ---- what is wrong with the sources


def test_problems_of_the_sources_are_all_told() -> None:
    made = make(
        sources=(
            source("checkpoint", "head", "worker"),
            source("engram", "head", files=("model-00049-*",)),
        )
    )
    assert len(made.problems) == 2
    assert "not on head, worker" in made.problems[0]
    assert "model-00049-*" in made.problems[1]
    assert table(made, NAMES).startswith("Nothing is started:")


def test_an_overlay_needs_its_source_and_a_checkpoint() -> None:
    options = Options(overlay=True)
    assert "no source of that name" in make(options, sources=SOURCES[:2]).problems[0]
    assert "without a checkpoint" in make(options, sources=SOURCES[1:]).problems[0]
    off = dataclasses.replace(SOURCES[2], enabled=False)
    assert "not enabled" in make(options, sources=(*SOURCES[:2], off)).problems[0]
    assert not make(sources=(*SOURCES[:2], off)).problems


def test_a_source_nobody_has_asked_about_is_a_problem() -> None:
    sizes = manifests()
    del sizes["engram"]
    assert "is not known: ask the Hub first" in make(sizes=sizes).problems[0]


def test_without_a_checkpoint_things_are_only_fetched() -> None:
    made = make(Options(image_bytes=0, prune=True), sources=SOURCES[1:2])
    assert ids(made) == ["download-engram-head", "transfer-engram-worker"]


# ---- the record


def record(made: Manifest, **changes: Any) -> Artefact:
    files = {
        one.path: Held(one.size, 1, 1, 1.0, "written", one.sha256 or "", one.git_sha1)
        for one in made.files
    }
    whole = Artefact(
        "checkpoint", "repository", made.repo, made.commit, Origin.DOWNLOADED, 1.0, "/hub", files
    )
    return dataclasses.replace(whole, **changes)


def test_the_record_vouches_for_files_of_the_wanted_commit_with_the_hubs_hash() -> None:
    made = manifests()["checkpoint"]
    wanted = [Wanted.of(SOURCES[0], made)]
    good = record(made)
    assert holdings.recorded({"checkpoint": good}, wanted) == held("checkpoint")
    assert holdings.recorded({}, wanted) == {}
    assert holdings.recorded({"checkpoint": record(made, commit=ENGRAM)}, wanted) == {}
    assert holdings.recorded({"checkpoint": record(made, files={})}, wanted) == {"checkpoint": {}}


@pytest.mark.parametrize(
    ("path", "wrong", "when_grafted"),
    [
        (SHARD, {"size": 1}, False),
        (SHARD, {"sha256": "c" * 64}, True),
        ("config.json", {"git_sha1": "c" * 40}, False),
    ],
)
def test_another_content_than_the_hubs_counts_only_for_grafted_shards(
    path: str, wrong: dict[str, Any], when_grafted: bool
) -> None:
    made = manifests()["checkpoint"]
    wanted = [Wanted.of(SOURCES[0], made)]
    files = dict(record(made).files)
    files[path] = dataclasses.replace(files[path], **wrong)
    for origin, counts in ((Origin.ADOPTED, False), (Origin.GRAFTED, when_grafted)):
        found = holdings.recorded({"checkpoint": record(made, origin=origin, files=files)}, wanted)
        assert (path in found["checkpoint"]) is counts
        assert len(found["checkpoint"]) == len(made.files) - (not counts)


def test_the_record_says_which_overlay_shards_and_rank_files_carry() -> None:
    made = manifests()["checkpoint"]
    details = {"overlay": OVERLAY}
    grafted = record(made, origin=Origin.GRAFTED, details=details)
    assert holdings.recorded_graft({"checkpoint": grafted}) == OVERLAY
    assert holdings.recorded_graft({"checkpoint": record(made, details=details)}) is None
    assert holdings.recorded_graft({}) is None
    files = {"rank0of2-0123.bin": Held(106 * GB, 1, 1, 1.0, "read", "d" * 64)}
    rank = record(
        made, name="rank0", kind="rank_file", origin=Origin.CUT, files=files, details=details
    )
    beside = dataclasses.replace(rank, name="rank0-ablit-0bdc2036", folder="/other")
    plain = dataclasses.replace(rank, name="rank1", origin=Origin.ADOPTED, details={})
    recorded = {one.name: one for one in (rank, beside, plain, grafted)}
    assert holdings.recorded_ranks(recorded) == tuple(
        RankFile(
            one.name == "rank1", 106 * GB, CHECKPOINT, one.details.get("overlay"), one.name,
            one.folder, "rank0of2-0123.bin", "d" * 64,
        )
        for one in (rank, beside, plain)
    )  # fmt: skip


def test_a_graft_counts_as_long_as_one_of_its_shards_is_there() -> None:
    made = manifests()["checkpoint"]
    details = {"overlay": OVERLAY, "grafted": [SHARD]}
    grafted = record(made, origin=Origin.GRAFTED, details=details)
    assert holdings.recorded_graft({"checkpoint": grafted}) == OVERLAY
    files = {path: one for path, one in grafted.files.items() if path != SHARD}
    pruned = dataclasses.replace(grafted, files=files)
    assert holdings.recorded_graft({"checkpoint": pruned}) is None


def test_of_a_graft_only_the_shards_that_it_names_differ_from_the_hubs() -> None:
    made = manifests()["checkpoint"]
    wanted = [Wanted.of(SOURCES[0], made)]
    details = {"overlay": OVERLAY, "grafted": [SHARD]}
    files = {
        path: dataclasses.replace(one, size=one.size + 8, sha256="c" * 64)
        if path.endswith(".safetensors")
        else one
        for path, one in record(made).files.items()
    }
    grafted = record(made, origin=Origin.GRAFTED, files=files, details=details)
    found = holdings.recorded({"checkpoint": grafted}, wanted)["checkpoint"]
    assert set(found) == {SHARD, "config.json"}


# ---- for people and for programs


def test_the_table_shows_both_ways_of_counting_and_every_step() -> None:
    made = make(Options(order="minimal", overlay=True, prune=True))
    text = table(made, NAMES)
    for step in made.steps:
        assert step.id in text
    for figure in ("210.5", "196.0", "203.0", "189.1", "106.0", "98.7", "25.0", "23.3"):
        assert figure in text
    assert "spark-033f / is fullest in shard-rank1-head." in text
    assert max(map(len, text.splitlines())) <= WIDTH + 10


def test_small_weights_are_shown_in_mb_all_of_them_whatever_the_disk_holds() -> None:
    sizes = manifests(checkpoint=64 * 10**6, engram=64 * 10**6, overlay=7)
    options = Options(rank_bytes=3 * 10**6, image_bytes=0, floor_bytes=0)
    text = table(make(options, sizes=sizes, disks=one_disk(head=252 * GB)), NAMES)
    rows = [line.split() for line in text.splitlines()]
    assert rows[2] == ["step", "file", "system", "MB", "MiB", "what"]
    assert rows[3][4:6] == ["64.0", "61.0"] and "252000.0" in text
    assert " GB" not in text and " GiB" not in text


def test_a_refused_plan_is_shown_with_what_it_would_have_taken() -> None:
    text = table(make(disks=one_disk(head=400 * GB)), NAMES)
    assert "download-engram-head" in text
    assert "Nothing is started:\n  - spark-033f lacks" in text


def test_a_plan_is_plain_data_for_json() -> None:
    made = make(Options(overlay=True))
    data = json.loads(json.dumps(made.as_dict()))
    assert [step["id"] for step in data["steps"]] == ids(made)
    assert data["peaks"][0]["host"] == "head"
    assert data["peaks"][0]["footprint"] == at(made, "head").footprint


# ---- whatever the pair holds

SMALL = manifests(checkpoint=390 + 2, engram=202, overlay=7)
"""Sizes of the real pair over 10^9 and simpler; small enough that every edge is met."""

FILES = {
    one.name: Wanted.of(one, SMALL[one.name]).files
    for one in (*SOURCES, dataclasses.replace(SOURCES[1], name="engram"))
}


@st.composite
def some_holdings(draw: st.DrawFn, host: HostRole) -> Holdings:
    """Anything a machine may hold after interruptions, changes of mind and deletions."""
    recorded, found, parts = {}, {}, {}
    for name in ("checkpoint", "overlay", "engram") if host == "head" else ("engram",):
        files = FILES[name]
        how = draw(st.sampled_from(["none", "all", "some"]))
        state = {
            one.path: draw(st.sampled_from(["recorded", "found", "part", "none"]))
            if how == "some"
            else ("recorded" if how == "all" else "none")
            for one in files
        }
        recorded[name] = {one.path: one.size for one in files if state[one.path] == "recorded"}
        found[name] = {one.path: one.size for one in files if state[one.path] == "found"}
        parts[name] = {
            one.path: draw(st.integers(0, one.size)) for one in files if state[one.path] == "part"
        }
    commits = st.sampled_from([CHECKPOINT, CHECKPOINT, ENGRAM])
    overlays = st.sampled_from([None, OVERLAY, ENGRAM])
    ranks = tuple(
        RankFile(rank, 106, commit, overlay)
        for rank in ((0, 1) if host == "head" else (1,))
        for commit, overlay in draw(st.sets(st.tuples(commits, overlays), max_size=3))
    )
    graft = draw(overlays) if host == "head" else None
    whole = draw(st.booleans())
    shards = sum(recorded.get("checkpoint", {}).values())
    return Holdings(
        recorded=recorded,
        found=found,
        parts=parts,
        graft=graft if whole else None,
        unfinished=None if whole else graft,
        work=draw(st.integers(0, 141)) if graft else 0,
        moved=draw(st.integers(0, min(141, shards))) if graft else 0,
        ranks=ranks,
        staged=draw(st.dictionaries(st.sampled_from([0, 1]), st.integers(0, 106))),
        replaced=draw(st.sampled_from([{}, {0: 106}])) if host == "head" else {},
        elsewhere=draw(st.frozensets(st.sampled_from(sorted(found.get("checkpoint", {})))))
        if found.get("checkpoint")
        else frozenset(),
        image=draw(st.booleans()),
    )


@st.composite
def some_rooms(draw: st.DrawFn) -> tuple[dict[HostRole, list[FileSystem]], Places]:
    """File systems of both machines; each place on one of up to three."""
    rooms: dict[HostRole, list[FileSystem]] = {}
    places: dict[HostRole, dict[Any, str]] = {}
    tight = draw(st.sampled_from(["nowhere", "head", "head", "both"]))
    for host in NAMES:
        free = st.integers(50, 900) if tight in (host, "both") else st.just(5000)
        rooms[host] = [FileSystem(mount, 5000, draw(free)) for mount in ("/a", "/b", "/c")]
        one = draw(st.booleans())
        places[host] = {
            purpose: "/a/x" if one else draw(st.sampled_from(["/a/x", "/b/x", "/c/x"]))
            for purpose in PURPOSES
        }
    return rooms, places


OPTIONS = st.builds(
    Options,
    order=st.sampled_from(["auto", "auto", "download_first", "minimal"]),
    prune=st.booleans(),
    overlay=st.booleans(),
    graft=st.sampled_from(["in_place", "recipe"]),
    rank_bytes=st.just(106),
    image_bytes=st.sampled_from([0, 25]),
    rewritten_bytes=st.just(141),
    floor_bytes=st.sampled_from([0, 20]),
)
PAIRS = st.fixed_dictionaries({"head": some_holdings("head"), "worker": some_holdings("worker")})
ROOMS = some_rooms()


def small(options: Options, pair: Pair, rooms: Any, places: Places) -> Plan:
    return make(options, pair=pair, disks=Disks(rooms, places), sizes=SMALL)


def walk(
    made: Plan, options: Options, pair: Pair, rooms: Any, places: Places
) -> Iterator[tuple[Pair, dict[HostRole, list[FileSystem]]]]:
    """The pair and its disks before the first step and after every one."""
    goal, problems = plan.read_goal(SOURCES, SMALL, options)
    assert not problems
    disks = Disks(rooms, places)
    laid = steps.lay_out(made.order, goal, pair, options, disks)
    assert [step for step, _ in laid] == list(made.steps)
    yield pair, rooms
    for step, after in laid:
        for effect in step.effects:
            spot = effect.spot
            rooms = {
                **rooms,
                spot.host: [
                    dataclasses.replace(one, free=one.free - effect.grows + effect.frees)
                    if one.mount == spot.mount
                    else one
                    for one in rooms[spot.host]
                ],
            }
        yield after, rooms


@pytest.mark.parametrize("left", [{"staged": {0: 95}}, {"replaced": {0: 106}}])
def test_what_a_cut_takes_away_first_needs_no_room(left: dict[str, Any]) -> None:
    """An ended cut on a tight disk must not keep its own next run from starting."""
    everything = {name: {file.path: file.size for file in files} for name, files in FILES.items()}
    rank1 = RankFile(1, 106, CHECKPOINT, None)
    worker = Holdings(recorded={"engram": everything["engram"]}, ranks=(rank1,))
    free = 106 - sum(next(iter(left.values())).values())
    rooms: dict[HostRole, Any] = {
        "head": [FileSystem("/a", 900, free)],
        "worker": [FileSystem("/a", 900, 0)],
    }
    places: dict[HostRole, Any] = {host: dict.fromkeys(PURPOSES, "/a/x") for host in NAMES}
    options = Options(rank_bytes=106, image_bytes=0, floor_bytes=0)
    pair: Pair = {"head": Holdings(recorded=everything, **left), "worker": worker}
    made = small(options, pair, rooms, places)
    assert ids(made) == ["shard-rank0-head"] and not made.problems
    without: Pair = {**pair, "head": Holdings(recorded=everything)}
    assert (free < 106) == bool(small(options, without, rooms, places).problems)


def test_what_came_of_a_rank_file_is_not_sent_again() -> None:
    everything = {name: {file.path: file.size for file in files} for name, files in FILES.items()}
    cut = (RankFile(0, 106, CHECKPOINT, None), RankFile(1, 106, CHECKPOINT, None))
    pair: Pair = {
        "head": Holdings(recorded=everything, ranks=cut),
        "worker": Holdings(recorded={"engram": everything["engram"]}, staged={1: 100}),
    }
    rooms: dict[HostRole, Any] = {host: [FileSystem("/a", 900, 6)] for host in NAMES}
    places: dict[HostRole, Any] = {host: dict.fromkeys(PURPOSES, "/a/x") for host in NAMES}
    made = small(Options(rank_bytes=106, image_bytes=0, floor_bytes=0), pair, rooms, places)
    assert [(step.id, step.bytes) for step in made.steps] == [("transfer-rank1-worker", 6)]
    assert not made.problems


def test_what_another_commit_needs_is_no_reason_to_prune() -> None:
    shards = {file.path: file.size for file in FILES["checkpoint"]}
    rest = {name: {one.path: one.size for one in FILES[name]} for name in ("engram",)}
    kept = {path: size for path, size in shards.items() if size < 10 or "-00039-" in path}
    gone = {path: size for path, size in shards.items() if path not in kept}
    head = Holdings(
        recorded={**rest, "checkpoint": kept},
        found={"checkpoint": gone},
        elsewhere=frozenset(gone),
        ranks=(RankFile(0, 106, CHECKPOINT, None),),
    )
    worker = Holdings(recorded=rest, ranks=(RankFile(1, 106, CHECKPOINT, None),))
    rooms: dict[HostRole, Any] = {host: [FileSystem("/a", 5000, 5000)] for host in NAMES}
    places: dict[HostRole, Any] = {host: dict.fromkeys(PURPOSES, "/a/x") for host in NAMES}
    options = Options(prune=True, rank_bytes=106, image_bytes=0, floor_bytes=0)
    assert ids(small(options, {"head": head, "worker": worker}, rooms, places)) == []
    without = dataclasses.replace(head, elsewhere=frozenset())
    pair: Pair = {"head": without, "worker": worker}
    assert ids(small(options, pair, rooms, places)) == ["prune-checkpoint-head"]


@given(OPTIONS, PAIRS, ROOMS)
@settings(deadline=None)
def test_no_step_of_an_accepted_plan_takes_more_than_is_free(
    options: Options, pair: Pair, disks: tuple[Any, Places]
) -> None:
    rooms, places = disks
    made = small(options, pair, rooms, places)
    if made.problems:
        return
    states = list(walk(made, options, pair, rooms, places))
    for step, (_, before) in zip(made.steps, states[:-1], strict=True):
        for effect in step.effects:
            free = next(
                one.free for one in before[effect.spot.host] if one.mount == effect.spot.mount
            )
            assert effect.grows == 0 or effect.grows + options.floor_bytes <= free


@given(OPTIONS, PAIRS, ROOMS)
@settings(deadline=None)
def test_a_plan_from_a_state_after_any_of_its_steps_is_the_rest_of_it(
    options: Options, pair: Pair, disks: tuple[Any, Places]
) -> None:
    rooms, places = disks
    made = small(options, pair, rooms, places)
    if made.problems:
        return
    for number, (state, left) in enumerate(walk(made, options, pair, rooms, places)):
        rest = small(options, state, left, places)
        assert not rest.problems
        assert [(one.id, one.bytes, one.effects) for one in rest.steps] == [
            (one.id, one.bytes, one.effects) for one in made.steps[number:]
        ]


@pytest.mark.fault(26)
@given(OPTIONS, PAIRS, ROOMS)
@settings(deadline=None)
def test_every_step_leaves_what_it_says_it_writes_and_frees(
    options: Options, pair: Pair, disks: tuple[Any, Places]
) -> None:
    """The bytes that are credited change by exactly a step's effects."""
    rooms, places = disks
    goal, _ = plan.read_goal(SOURCES, SMALL, options)
    layout = Disks(rooms, places)
    for order in goals.ORDERS:
        before = steps.credited(goal, pair, options, layout)
        for step, after in steps.lay_out(order, goal, pair, options, layout):
            expected = dict(before)
            for effect in step.effects:
                expected[effect.spot] += effect.grows - effect.frees
            before = steps.credited(goal, after, options, layout)
            assert before == expected, step.id


@given(OPTIONS, PAIRS, ROOMS)
@settings(deadline=None)
def test_nothing_is_pruned_unasked_and_never_before_both_rank_files_are_in_place(
    options: Options, pair: Pair, disks: tuple[Any, Places]
) -> None:
    made = small(options, pair, *disks)
    names = ids(made)
    assert len(set(names)) == len(names)
    assert options.prune or not any(step.kind == "prune" for step in made.steps)
    for number, step in enumerate(made.steps):
        assert set(step.needs) <= set(names[:number])
        assert step.bytes >= 0
        assert all(effect.grows >= 0 and effect.frees >= 0 for effect in step.effects)
        if step.kind == "prune":
            assert not any(later.kind == "shard" for later in made.steps[number:])
            assert "transfer-rank1-worker" not in names[number:]


@given(OPTIONS, PAIRS, ROOMS)
@settings(deadline=None)
def test_a_refusal_says_exactly_what_is_missing(
    options: Options, pair: Pair, disks: tuple[Any, Places]
) -> None:
    rooms, places = disks
    made = small(options, pair, rooms, places)
    missing = {peak.spot: peak.missing for peak in made.peaks if peak.missing}
    assert bool(missing) == bool(made.problems)
    if not missing:
        return

    def with_more(spot: Spot, less: int) -> Plan:
        more = {
            host: [
                dataclasses.replace(
                    one,
                    free=one.free
                    + missing.get(Spot(host, one.mount), 0)
                    - (less if Spot(host, one.mount) == spot else 0),
                )
                for one in given_rooms
            ]
            for host, given_rooms in rooms.items()
        }
        return small(dataclasses.replace(options, order=made.order), pair, more, places)

    for spot in missing:
        assert not with_more(spot, 0).problems
        assert with_more(spot, 1).problems
