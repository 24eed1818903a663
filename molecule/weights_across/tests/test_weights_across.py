"""From empty caches to DeepSeek serving from rank files made in the run, by one plain run each.

Everything is downloaded first here; the other order is in weights_orders.

One story in chapters: each begins where the one before has ended.
"""

from collections.abc import Iterator, Mapping

import pytest
from stories import across, preparation, weights
from stories.across import ABLIT, DISK_MIB, MIB, SIZE, run, start
from stories.across import ENGRAM_JOB as JOB
from stories.machines import HEAD, PAIR, WORKER, assert_untouched, fingerprint, on
from stories.servers import assert_deepseek_alone, assert_hikari_alone, let_deepseek_serve
from stories.waiting import wait_for
from stories.weights import CHECKPOINT, ENGRAM

UNIT = f"spark-pair-job-{JOB}"
# MB/s, for what has to be cut off half-way by a test that may itself be slow.
HARDLY = 0.5


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
    staged: int
    """Bytes of the Engram tables that wait on the worker for the rest."""


# ---- empty caches, stock weights, everything downloaded first -----------------------------------


def test_a_check_on_empty_caches_says_every_step_and_touches_nothing() -> None:
    before = fingerprint()
    checked = run("weights", check=True).succeeded()
    for words in (
        "would start job download-checkpoint-head",
        "would start job transfer-engram-worker",
        "would start job shard-rank1-head",
        "would start job transfer-rank1-worker",
        "would start job shard-rank0-head",
    ):
        assert words in checked.output or across.told(checked, words), checked.output
    assert_untouched(before)


@pytest.mark.fault(24)
def test_a_destination_that_belongs_to_root_is_refused_in_a_sentence() -> None:
    run("download").succeeded()
    place = across.repository(WORKER, ENGRAM)
    # As a container leaves it that ran as root.
    on(WORKER, f"mkdir -p {place}; chown {PAIR.worker.user}: {place}/..")
    refused = run("transfer")
    said = refused.one_sentence()
    assert refused.code != 0 and WORKER in said and place in said and "chown" in said, said
    on(WORKER, f"chown {PAIR.worker.user}: {place}")


def test_a_receiver_that_is_killed_loses_no_more_than_is_under_way() -> None:
    sending = start("transfer", **across.slowly(HARDLY))
    there = across.wait_for_bytes(WORKER, JOB, 2 * MIB)
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


def test_a_receiver_whose_disk_fills_up_loses_nothing() -> None:
    before = across.staged(WORKER, ENGRAM)
    sending = start("transfer", **across.slowly(HARDLY))
    across.wait_for_bytes(WORKER, JOB, before + MIB)
    # Somebody else's file, which nobody could have planned for, takes all that is left.
    ballast = f"{across.repository(WORKER, ENGRAM)}/../ballast"
    on(WORKER, f"cat /dev/zero >{ballast} 2>/dev/null || true")
    ended = sending.finish()
    said = ended.one_sentence()
    assert ended.code != 0 and WORKER in said and "make room and run it again" in said, said
    on(WORKER, f"rm {ballast}")
    SoFar.staged = across.staged(WORKER, ENGRAM)
    assert SoFar.staged >= before + MIB
    assert not across.final(WORKER, ENGRAM) - across.proven(WORKER, "engram")


def test_the_run_goes_on_over_one_rail_when_the_other_dies_and_ends_with_deepseek_serving(
    cut_by_hand: across.CutByHand,
) -> None:
    going = start(None, **across.slowly(2))
    # More than is left of the runs before, so that both rails are at work.
    across.wait_for_bytes(WORKER, JOB, SoFar.staged + 4 * MIB, seconds=300)
    with across.no_rail(WORKER, 1):
        across.wait_for_end(WORKER, JOB)
    going.finish().succeeded()
    whole, cut = (one["bytes"] for one in across.result(WORKER, JOB)["rails"])
    assert whole > cut > 0, (whole, cut)
    # Nothing of what two cut-off runs had brought came again.
    assert whole + cut <= SIZE // 2 - SoFar.staged + MIB, (whole, cut, SoFar.staged)
    assert_deepseek_alone()
    across.served_from()
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


# ---- empty caches, the overlay, everything downloaded first; off, and on again -------------------


def test_beside_ranks_nothing_is_grafted() -> None:
    refused = run("weights", **ABLIT).refused()
    assert "deepseek runs" in refused.one_sentence()


def test_with_the_overlay_it_serves_from_files_of_its_own(cut_by_hand: across.CutByHand) -> None:
    across.back_by_hand()
    across.empty()
    run(None, **ABLIT, weights_disk_order="download_first").succeeded()
    assert_deepseek_alone()
    across.served_from("-ablit-")
    assert across.rank_hashes("-ablit-") == cut_by_hand.grafted
    assert weights.provenance()["checkpoint"]["origin"] == "grafted"
    SoFar.hashes = across.grafted_hashes()
    true = weights.true_hashes(CHECKPOINT)
    changed = {path for path, digest in SoFar.hashes.items() if true[path] != digest}
    assert len(changed) == 24 and set(SoFar.hashes) == set(true)


def test_with_the_overlay_a_second_run_changes_nothing() -> None:
    run(None, **ABLIT, weights_disk_order="download_first").unchanged()


def test_off_and_on_again_gives_the_same_bytes(cut_by_hand: across.CutByHand) -> None:
    across.back_by_hand()
    run("weights").succeeded()
    assert weights.hashes(CHECKPOINT) == weights.true_hashes(CHECKPOINT)
    assert weights.provenance()["checkpoint"]["origin"] == "downloaded"
    assert across.rank_hashes() == cut_by_hand.stock
    assert across.rank_hashes("-ablit-") == cut_by_hand.grafted
    # Both sets are on record, so nothing is to be cut, and either serves: unless one file is lost.
    run("weights", **ABLIT).unchanged()
    let_deepseek_serve()
    across.served_from("-ablit-")
    across.back_by_hand()
    on(WORKER, f"rm {across.ranks(WORKER, '-ablit-')}/rank1of2-*.bin")
    run("weights", **ABLIT).succeeded()
    assert across.grafted_hashes() == SoFar.hashes
    assert across.rank_hashes("-ablit-") == cut_by_hand.grafted


# ---- what does not fit together is refused before anybody is stopped ----------------------------


def test_a_start_on_other_weights_than_are_wanted_is_refused_while_hikari_serves() -> None:
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
