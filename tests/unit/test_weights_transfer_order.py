"""What a transfer is asked for is checked before it begins, and what it may record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_weights_transfer_rank import Ranks
from two_caches import BIG, SMALL, TwoCaches

from spark_pair.errors import DescriptionError
from spark_pair.weights.provenance import Held, Origin
from spark_pair.weights.rsync_streams import Ended, Verdict, rsync_words
from spark_pair.weights.transfer_order import RankTransferOrder, TransferOrder, read_order


@pytest.fixture
def pair(tmp_path: Path) -> TwoCaches:
    return TwoCaches(tmp_path)


@pytest.fixture
def ranks(pair: TwoCaches) -> Ranks:
    return Ranks(pair)


def held(**changes: Any) -> Held:
    words: dict[str, Any] = {
        "size": 1, "mtime_ns": 0, "inode": 0, "verified_at": 1.0, "how": "written", **changes
    }  # fmt: skip
    return Held(**words)


def test_both_kinds_are_told_apart(pair: TwoCaches, ranks: Ranks) -> None:
    assert isinstance(read_order(pair.order()), TransferOrder)
    assert isinstance(read_order(ranks.order()), RankTransferOrder)
    with pytest.raises(DescriptionError, match="of kind 'shard', not transfer"):
        read_order({**pair.order(), "kind": "shard"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "of another release; run --tags tools"),
        ({"extra": 1}, "unknown keys: extra"),
        ({"files": []}, "has no file"),
        ({"files": ["nowhere"]}, "has no file nowhere"),
        ({"files": "abc"}, "no list of texts"),
        ({"manifest": None}, "no manifest"),
        ({"source": ""}, "'' for source"),
        ({"home": "~"}, "no absolute path"),
        ({"transport": "nfs"}, "'nfs' for transport"),
        ({"streams": 0}, "0 for streams"),
        ({"streams": 99}, "99 for streams"),
        ({"floor_bytes": -1}, "-1 for floor_bytes"),
        ({"limit_bytes_per_second": 0}, "0 for limit"),
        ({"limit_bytes_per_second": True}, "True for limit"),
        ({"ports": [80, 90]}, "for ports"),
        ({"ports": [9000, 8000]}, "for ports"),
        ({"rails": []}, "no rails"),
        ({"rails": [{"here": "spark-1", "peer": "192.0.2.1"}]}, "for an address of a rail"),
        ({"rails": ["x"]}, "for a rail"),
        ({"peer": {}}, "a peer without exactly"),
    ],
)
def test_what_is_wrong_is_said(pair: TwoCaches, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        read_order({**pair.order(), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user": "-oProxyCommand=x"}, "the peer's account"),
        ({"user": "a b"}, "the peer's account"),
        ({"addresses": ["-oProxyCommand=x"]}, "the peer's address"),
        ({"addresses": []}, "without addresses"),
        ({"port": "22"}, "'22' for port"),
        ({"port": 70000}, "the peer's port"),
        ({"name": "-x"}, "the peer's name"),
        ({"home": "x"}, "'x' for home, which is no absolute path"),
    ],
)
def test_a_peer_is_no_option_of_ssh(pair: TwoCaches, changes: dict[str, Any], words: str) -> None:
    order = pair.order()
    with pytest.raises(DescriptionError, match=words):
        read_order({**order, "peer": {**order["peer"], **changes}})


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("file", {"path": "../rank"}, "the name of a file"),
        ("file", {"path": ".hidden"}, "the name of a file"),
        ("file", {"sha256": "x"}, "for sha256"),
        ("file", {"size": 0}, "for size"),
        ("artefact", {"folder": "x"}, "'x' for folder, which is no absolute path"),
        ("artefact", {"commit": "main"}, "for commit, which is no whole commit"),
        ("artefact", {"name": ""}, "for name"),
        ("artefact", {"details": {}}, "which overlay it carries"),
    ],
)
def test_a_rank_file_is_described(
    ranks: Ranks, part: str, changes: dict[str, Any], words: str
) -> None:
    order = ranks.order()
    with pytest.raises(DescriptionError, match=words):
        read_order({**order, part: {**order[part], **changes}})


def test_only_what_was_ordered_is_recorded(pair: TwoCaches) -> None:
    order = TransferOrder.from_dict(pair.order(files=[BIG, SMALL]))
    artefact, big, small = order.artefact(), pair.file(BIG), pair.file(SMALL)
    right = held(size=big.size, sha256=big.sha256)
    assert order.accepts(replace(artefact, at=5.0), BIG, right)
    assert order.accepts(artefact, SMALL, held(size=small.size, git_sha1=small.git_sha1))
    assert not order.accepts(artefact, BIG, held(size=big.size, sha256="0" * 64))
    assert not order.accepts(artefact, BIG, replace(right, size=1))
    assert not order.accepts(artefact, "b.safetensors", right)
    assert not order.accepts(replace(artefact, origin=Origin.DOWNLOADED), BIG, right)
    assert not order.accepts(replace(artefact, folder="/elsewhere"), BIG, right)
    assert not order.accepts(replace(artefact, details={"overlay": "x"}), BIG, right)
    assert not order.whole and not order.gone


def test_only_the_rank_file_that_was_ordered_is_recorded(ranks: Ranks) -> None:
    order = RankTransferOrder.from_dict(ranks.order())
    file = order.rank
    right = held(size=file.size, sha256=file.sha256)
    assert order.accepts(replace(order.artefact(), at=5.0), file.path, right)
    assert not order.accepts(order.artefact(), "other", right)
    assert not order.accepts(order.artefact(), file.path, replace(right, sha256="0" * 64))
    assert not order.accepts(replace(order.artefact(), details={}), file.path, right)
    assert order.whole == {file.path} and not order.gone


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (0, Verdict.DONE),
        (5, Verdict.LINE),
        (10, Verdict.LINE),
        (12, Verdict.LINE),
        (30, Verdict.LINE),
        (35, Verdict.LINE),
        (255, Verdict.LINE),
        (11, Verdict.HERE),
        (127, Verdict.HERE),
        (20, Verdict.ENDED),
        (-15, Verdict.ENDED),
        (23, Verdict.SOURCE),
        (24, Verdict.SOURCE),
    ],
)
def test_what_an_end_of_rsync_means(code: int, verdict: Verdict) -> None:
    assert Ended(code, "", "").verdict is verdict


@pytest.mark.parametrize(
    ("process", "verdict"),
    [
        ("sender", Verdict.SOURCE),
        ("receiver", Verdict.HERE),
        ("generator", Verdict.HERE),
    ],
)
def test_whose_fault_a_file_is_that_did_not_come(process: str, verdict: Verdict) -> None:
    said = f'rsync: [{process}] open "/x/y.part" failed: Permission denied (13)\n'
    assert Ended(23, "", said + "rsync error: some files/attrs were not transferred").verdict is (
        verdict
    )
    other = 'rsync: [sender] send_files failed to open "/x" (in files): Permission denied (13)\n'
    assert Ended(23, "", said + other).verdict is verdict


def test_what_it_said_is_told_without_its_last_line() -> None:
    said = "rsync: connection refused\n\nrsync error: error in socket IO (code 10)\n"
    assert Ended(10, "", said).words == "rsync: connection refused"
    assert Ended(10, "", "rsync error: x").words == "rsync error: x"
    assert Ended(10, "", "").words == "rsync ended with exit code 10"


def test_bytes_on_the_wire_are_both_directions() -> None:
    out = "Total bytes sent: 62\nTotal bytes received: 200\n"
    assert Ended(0, out, "").wire_bytes == 262
    assert Ended(12, "Total bytes sent: 62\n", "").wire_bytes is None


def test_a_limit_is_given_to_rsync() -> None:
    assert "--bwlimit=1000" in rsync_words(["src"], "x", 1_024_000, resumed=False)
    assert "--bwlimit=1" in rsync_words(["src"], "x", 5, resumed=False)
    assert not any("bwlimit" in word for word in rsync_words(["src"], "x", None, resumed=False))


def test_rsync_sums_only_what_it_adds_to_something() -> None:
    whole = rsync_words(["src"], "x", None, resumed=False)
    assert {"--inplace", "--whole-file", "--checksum-choice=none"} <= set(whole)
    assert "--append" not in whole
    # Without --append all would come again; rsync refuses it beside either of the others.
    more = rsync_words(["src"], "x", None, resumed=True)
    assert {"--inplace", "--append"} <= set(more)
    assert {"--whole-file", "--checksum-choice=none"}.isdisjoint(more)
