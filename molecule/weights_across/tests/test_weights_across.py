"""From empty caches to DeepSeek serving from rank files made in the run, in more than one way.

One story in chapters: each begins where the one before has ended.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from stories import across, preparation, weights
from stories.machines import HEAD, WORKER, assert_untouched, fingerprint, on
from stories.plays import Played, play, start_play
from stories.servers import assert_deepseek_alone, assert_hikari_alone
from stories.waiting import wait_for
from stories.weights import CHECKPOINT, ENGRAM, OVERLAY, TOKEN

MIB = 1 << 20
# Half of it is the checkpoint's, the other half the Engram tables': two files that are too large to
# travel with others, so that each comes over a rail of its own.
SIZE = 80 * MIB
DISK_MIB = 400
JOB = "transfer-engram-worker"
UNIT = f"spark-pair-job-{JOB}"
SLOWER, SLOWLY = (
    {"megabytes_per_second": rate, "memory_gib": 4, "io_weight": 20, "cpu_weight": 20}
    for rate in (2, 4)
)
SMALL = {
    "weights_disk_floor_gib": 0.02,
    "weights_expected_bytes": {"rank_file": 22 * MIB, "image": 0, "rewritten": 30 * MIB},
}
ABLIT = {"ablit_graft_enabled": True, "weights_hub_token": TOKEN}


@pytest.fixture(scope="module", autouse=True)
def world(prepared: None) -> Iterator[None]:
    """A pair without weights, and a Hub. Hikari serves."""
    with weights.no_weights(DISK_MIB), weights.hub(SIZE):
        yield
    # What is wanted of the servers was changed as well.
    preparation.forget()


@pytest.fixture(scope="module")
def cut_by_hand(tmp_path_factory: pytest.TempPathFactory) -> across.CutByHand:
    """What the rank files must be, stock and with the overlay."""
    return across.cut_by_hand(tmp_path_factory.mktemp("by-hand"))


class SoFar:
    """What one chapter leaves for the next."""

    hashes: Mapping[str, str]


def run(tags: str | None, **more: Any) -> Played:
    return play(tags, extra_vars={**SMALL, **more})


def served_from(overlay: str | None) -> str:
    """The rank files' folder in the command of the rank that runs on the head."""
    told = json.loads(on(HEAD, "docker inspect dsv41-tensorfold"))[0]["Config"]["Env"]
    (folder,) = (line for line in told if line.startswith("TF_DS_RANK_CACHE="))
    assert ("ablit" in folder) == (overlay is not None), folder
    return str(folder)


# ---- empty caches, stock weights, everything downloaded first -----------------------------------


def test_a_check_on_empty_caches_says_every_step_and_touches_nothing() -> None:
    before = fingerprint()
    checked = play("weights", extra_vars=SMALL, check=True).succeeded()
    for words in (
        "would start job download-checkpoint-head",
        "would start job transfer-engram-worker",
        "would start job shard-rank1-head",
        "would start job transfer-rank1-worker",
        "would start job shard-rank0-head",
    ):
        assert words in checked.output or across.told(checked, words), checked.output
    assert_untouched(before)


def test_a_receiver_that_is_killed_loses_no_more_than_is_under_way() -> None:
    run("download").succeeded()
    sending = start_play("transfer", extra_vars={**SMALL, "hf_transfer_while_serving": SLOWER})
    there = across.wait_for_bytes(WORKER, JOB, 4 * MIB)
    # Hikari serves, so the work keeps within limits.
    look = f"systemctl show --value --property MemoryMax --property IOWeight {UNIT}"
    said = on(WORKER, f"{look}; systemctl kill --kill-whom main --signal KILL {UNIT}")
    assert set(said.split()) == {str(4 << 30), "20"}, said
    ended = sending.finish()
    assert ended.code != 0 and "was killed (SIGKILL)" in ended.words, ended.words
    assert WORKER in ended.words
    wait_for("nobody sends any more", lambda: not across.daemons(HEAD), 30)
    assert across.staged(WORKER, ENGRAM) > there // 2
    assert not across.final(WORKER, ENGRAM) - across.proven(WORKER, "engram")


def test_the_run_goes_on_over_one_rail_when_the_other_dies_and_ends_with_deepseek_serving(
    cut_by_hand: across.CutByHand,
) -> None:
    going = start_play(extra_vars={**SMALL, "hf_transfer_while_serving": SLOWLY})
    # More than the killed run has left, so that both rails are at work.
    across.wait_for_bytes(WORKER, JOB, 12 * MIB)
    with across.no_rail(WORKER, 1):
        across.wait_for_end(WORKER, JOB)
    going.finish().succeeded()
    whole, cut = (one["bytes"] for one in across.result(WORKER, JOB)["rails"])
    assert whole > cut > 0, (whole, cut)
    assert_deepseek_alone()
    served_from(None)
    assert across.rank_hashes() == cut_by_hand.stock
    true = weights.true_hashes(ENGRAM)
    found = weights.hashes(ENGRAM, WORKER)
    assert found and {path: true[path] for path in found} == found
    record = weights.provenance(WORKER)
    assert record["engram"]["origin"] == "transferred"
    assert record["rank1"]["origin"] == "transferred"
    assert weights.provenance()["rank0"]["origin"] == "cut"
    assert "rank1" not in weights.provenance()


def test_a_second_run_changes_nothing() -> None:
    before = len(weights.asked())
    run(None).unchanged()
    assert len(weights.asked()) == before


# ---- the overlay, off, and on again -------------------------------------------------------------


def test_beside_ranks_nothing_is_grafted() -> None:
    refused = run("weights", **ABLIT).refused()
    assert "deepseek runs" in refused.one_sentence()


def test_with_the_overlay_it_serves_from_files_of_its_own(cut_by_hand: across.CutByHand) -> None:
    play("rollback").succeeded()
    assert_hikari_alone()
    run("weights,service,cutover", **ABLIT).succeeded()
    assert_deepseek_alone()
    served_from(OVERLAY)
    assert across.rank_hashes("-ablit-") == cut_by_hand.grafted
    assert across.rank_hashes() == cut_by_hand.stock
    assert weights.provenance()["checkpoint"]["origin"] == "grafted"
    SoFar.hashes = across.grafted_hashes()
    true = weights.true_hashes(CHECKPOINT)
    changed = {path for path, digest in SoFar.hashes.items() if true[path] != digest}
    assert len(changed) == 24 and set(SoFar.hashes) == set(true)


def test_off_and_on_again_gives_the_same_bytes(cut_by_hand: across.CutByHand) -> None:
    play("rollback").succeeded()
    run("weights").succeeded()
    assert weights.hashes(CHECKPOINT) == weights.true_hashes(CHECKPOINT)
    assert weights.provenance()["checkpoint"]["origin"] == "downloaded"
    # Both sets are on record, so nothing is to be cut: unless one file is lost.
    run("weights", **ABLIT).unchanged()
    run("service,cutover", **ABLIT).succeeded()
    served_from(OVERLAY)
    play("rollback").succeeded()
    on(WORKER, f"rm {across.ranks(WORKER, '-ablit-')}/rank1of2-*.bin")
    run("weights", **ABLIT).succeeded()
    assert across.grafted_hashes() == SoFar.hashes
    assert across.rank_hashes("-ablit-") == cut_by_hand.grafted


# ---- what does not fit together is refused before anybody is stopped ----------------------------


def test_a_start_on_other_weights_than_are_wanted_is_refused_while_hikari_serves() -> None:
    run("service", **ABLIT).succeeded()
    folder = across.ranks(WORKER, "-ablit-")
    on(WORKER, f"cp {folder}/rank1of2-*.bin {folder}/rank1of2-{'0' * 20}.bin")
    doubled = run("cutover", **ABLIT)
    assert doubled.switch["exit"] == 10, doubled.output
    assert "rank 1" in doubled.words and WORKER in doubled.words, doubled.words
    on(WORKER, f"rm {folder}/rank1of2-{'0' * 20}.bin")
    across.forget(WORKER, "rank1-ablit-0bdc2036")
    other = run("cutover", **ABLIT)
    assert other.switch["exit"] == 10, other.output
    assert "ablit_graft_enabled" in other.words, other.words
    assert_hikari_alone()


# ---- the order for a small disk: everything anew, pruned ----------------------------------------


def test_in_the_minimal_order_the_shards_are_gone_in_the_end(
    cut_by_hand: across.CutByHand,
) -> None:
    across.empty()
    wanted = {**ABLIT, "weights_disk_order": "minimal", "rank_files_prune_sources": True}
    # A plain run would end before the cut-over: somebody has gone back to Hikari.
    tags = "preflight,plan,weights,service,cutover,status"
    played = run(tags, **wanted).succeeded()
    assert_deepseek_alone()
    served_from(OVERLAY)
    assert across.rank_hashes("-ablit-") == cut_by_hand.grafted
    order = [one for one in across.jobs(played) if one.startswith(("shard", "prune", "download-e"))]
    assert order == [
        "shard-rank1-head", "shard-rank0-head", "prune-checkpoint-head", "download-engram-head",
    ]  # fmt: skip
    left = across.shards_left()
    assert [Path(path).name for path in left] == ["model-00039-of-00039.safetensors"], left
    held = weights.provenance()["checkpoint"]["files"]
    assert [path for path in held if path.endswith(".safetensors")] == [
        "model-00039-of-00039.safetensors"
    ]
    assert "PREPARE=0" in on(
        HEAD, "cat /var/lib/spark-pair/current/deepseek/recipe/scripts/local.sh"
    )
    refused = run("service", tensorfold_service_prepare=1, **wanted).refused()
    assert "tensorfold_service_prepare" in refused.words
    run(tags, **wanted).unchanged()
