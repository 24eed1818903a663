"""From empty caches to DeepSeek serving from rank files made in the run, by one plain run each.

In the order for a small disk, where the shards go before the Engram tables come; the other order
is in weights_across.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from stories import across, preparation, weights
from stories.across import ABLIT, DISK_MIB, ENGRAM_JOB, MIB, SIZE
from stories.machines import HEAD, WORKER, on
from stories.plays import Played
from stories.servers import assert_deepseek_alone

SHARD_39 = "model-00039-of-00039.safetensors"
MINIMAL = {"weights_disk_order": "minimal", "rank_files_prune_sources": True}
STEPS_OF_MINIMAL = [
    "shard-rank1-head", "shard-rank0-head", "prune-checkpoint-head", "download-engram-head",
]  # fmt: skip
BY_SSH = {"hf_transfer_transport": "ssh", **across.slowly(2)}


@pytest.fixture(scope="module", autouse=True)
def world(prepared: None) -> Iterator[None]:
    """A pair without weights, and a Hub. Hikari serves."""
    with weights.no_weights(DISK_MIB), weights.hub(SIZE, xet=False):
        yield
    # What is wanted of the servers was changed as well.
    preparation.forget()


@pytest.fixture(scope="module")
def cut_by_hand(tmp_path_factory: pytest.TempPathFactory) -> across.CutByHand:
    """What the rank files must be, stock and with the overlay."""
    return across.cut_by_hand(tmp_path_factory.mktemp("by-hand"))


def steps(played: Played) -> list[str]:
    """The jobs of a run whose order tells the orders of the plan apart."""
    return [one for one in across.jobs(played) if one in STEPS_OF_MINIMAL]


def assert_pruned() -> None:
    """Of the shards only the one that the engine reads is left, on the disk and on record."""
    assert [Path(path).name for path in across.shards_left()] == [SHARD_39]
    held = weights.provenance()["checkpoint"]["files"]
    assert [path for path in held if path.endswith(".safetensors")] == [SHARD_39]


# ---- the overlay ---------------------------------------------------------------------------------


def test_with_the_overlay_the_shards_are_gone_in_the_end(
    cut_by_hand: across.CutByHand,
) -> None:
    played = across.run(None, **ABLIT, **MINIMAL).succeeded()
    assert_deepseek_alone()
    across.served_from("-ablit-")
    assert across.rank_hashes("-ablit-") == cut_by_hand.grafted
    assert steps(played) == STEPS_OF_MINIMAL
    assert_pruned()


def test_from_then_on_nobody_may_prepare() -> None:
    assert "PREPARE=0" in on(
        HEAD, "cat /var/lib/spark-pair/current/deepseek/recipe/scripts/local.sh"
    )
    refused = across.run("service", tensorfold_service_prepare=1, **ABLIT, **MINIMAL).refused()
    assert "tensorfold_service_prepare" in refused.words


def test_with_the_overlay_a_second_run_changes_nothing() -> None:
    across.run(None, **ABLIT, **MINIMAL).unchanged()


# ---- stock weights, across by ssh ----------------------------------------------------------------


def test_stock_weights_come_across_by_ssh(
    cut_by_hand: across.CutByHand,
) -> None:
    across.back_by_hand()
    across.empty()
    going = across.start(None, **MINIMAL, **BY_SSH)
    across.wait_for_bytes(WORKER, ENGRAM_JOB, MIB, seconds=400)
    receiving, sending = across.daemons(WORKER), across.daemons(HEAD)
    listening = on(HEAD, "ss -ltnH 'sport >= 8730 and sport <= 8739'")
    played = going.finish().succeeded()
    assert any("--rsh=ssh -c aes128-gcm@openssh.com" in line for line in receiving), receiving
    assert sending and not any("--daemon" in line for line in sending), sending
    assert listening == ""
    rails = across.result(WORKER, ENGRAM_JOB)["rails"]
    assert all(one["bytes"] > 0 for one in rails), rails
    assert_deepseek_alone()
    across.served_from()
    assert across.rank_hashes() == cut_by_hand.stock
    assert steps(played) == STEPS_OF_MINIMAL
    assert_pruned()


def test_with_stock_weights_a_second_run_changes_nothing() -> None:
    across.run(None, **MINIMAL, **BY_SSH).unchanged()


def test_what_is_there_does_not_come_by_ssh_again() -> None:
    # Without its record a transfer has to look at all of it.
    across.forget(WORKER, "engram")
    asked = {**MINIMAL, **BY_SSH, "weights_allow_while_serving": True}
    played = across.run("transfer", **asked).succeeded()
    assert across.jobs(played) == [ENGRAM_JOB]
    assert across.result(WORKER, ENGRAM_JOB)["payload_bytes"] == 0
    assert weights.provenance(WORKER)["engram"]["origin"] == "transferred"
