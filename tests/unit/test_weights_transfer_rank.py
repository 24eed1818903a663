"""One rank file from a folder of the peer into one here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from two_caches import MIB, TwoCaches

from spark_pair.jobs.shapes import JobFailedError
from spark_pair.weights import transfer
from spark_pair.weights.parts import Part
from spark_pair.weights.provenance import Artefact, Origin, stat_of
from spark_pair.weights.rank_file import MAGIC
from spark_pair.weights.transfer_order import RankTransferOrder

CHECKPOINT, OVERLAY = "45ee5d0f" + "0" * 32, "0bdc2036" + "1" * 32


def rank_file(byte: bytes = b"\x5a", rank: int = 1) -> tuple[str, bytes, str]:
    """Name, bytes and the hash of the list of a rank file of two megabytes."""
    entries = [["a", "uint8", [2 * MIB], 0, 2 * MIB]]
    index = json.dumps(entries).encode()
    digest = hashlib.sha256(index).hexdigest()
    data = byte * 2 * MIB + index + (2 * MIB).to_bytes(8, "little") + MAGIC
    return f"rank{rank}of2-{digest[:20]}.bin", data, digest


class Ranks:
    """A rank file at the lender's, and where it goes."""

    def __init__(self, pair: TwoCaches) -> None:
        self.pair = pair
        self.name, self.data, self.index = rank_file()
        self.origin = pair.there / "work/rank-cache"
        self.origin.mkdir(parents=True)
        (self.origin / self.name).write_bytes(self.data)
        self.folder = pair.here / "work/rank-cache"
        self.place = self.folder / self.name

    def order(self, **changes: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "transfer_rank",
            "home": str(self.pair.here),
            "artefact": {
                "name": "rank1-ablit-0bdc2036",
                "repo": "own/checkpoint",
                "commit": CHECKPOINT,
                "folder": str(self.folder),
                "details": {"overlay": OVERLAY, "index_sha256": self.index},
            },
            "from": str(self.origin),
            "file": {
                "path": self.name,
                "size": len(self.data),
                "sha256": hashlib.sha256(self.data).hexdigest(),
                "entries": 1,
                "index_sha256": self.index,
            },
            **self.pair.way(),
            "floor_bytes": 0,
            **changes,
        }

    def transfer(self, **changes: Any) -> tuple[str, Mapping[str, Any]]:
        return self.pair.transfer(order=self.order(**changes))

    def record(self) -> Artefact:
        return self.pair.record("rank1-ablit-0bdc2036", self.order())

    def failing(self, **changes: Any) -> str:
        with pytest.raises(JobFailedError) as caught:
            self.transfer(**changes)
        return str(caught.value)


@pytest.fixture(autouse=True)
def _small_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SMALL_BYTES", 1000)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(TwoCaches(tmp_path))


def test_it_comes_and_is_recorded_with_what_it_was_cut_from(ranks: Ranks) -> None:
    words, data = ranks.transfer()
    assert words.startswith("1 file of rank1-ablit-0bdc2036 (2.1 MB) are there and proven")
    assert ranks.place.read_bytes() == ranks.data
    assert [one.name for one in ranks.folder.iterdir()] == [ranks.name]
    assert data["payload_bytes"] == len(ranks.data)
    record = ranks.record()
    assert (record.kind, record.origin, record.commit) == (
        "rank_file",
        Origin.TRANSFERRED,
        CHECKPOINT,
    )
    assert record.details == {"overlay": OVERLAY, "index_sha256": ranks.index}
    assert record.files[ranks.name].stat == stat_of(ranks.place)
    assert (ranks.origin / ranks.name).is_file()


def test_the_second_run_sends_nothing_and_needs_no_peer(ranks: Ranks) -> None:
    ranks.transfer()
    ranks.record()
    (ranks.origin / ranks.name).unlink()
    assert ranks.transfer()[1]["payload_bytes"] == 0
    assert ranks.pair.offers == 1


def test_one_that_is_there_and_not_recorded_is_read(ranks: Ranks) -> None:
    ranks.folder.mkdir(parents=True)
    ranks.place.write_bytes(ranks.data)
    assert ranks.transfer()[1]["payload_bytes"] == 0
    assert ranks.record().files[ranks.name].how == "read"


@pytest.mark.parametrize("size", [5, None])
def test_a_stranger_in_its_place_is_refused(ranks: Ranks, size: int | None) -> None:
    ranks.folder.mkdir(parents=True)
    data = rank_file(b"\xa5")[1][:size]
    ranks.place.write_bytes(data)
    assert "nothing says that it may be replaced" in ranks.failing()
    assert ranks.place.read_bytes() == data


def test_one_that_is_recorded_as_wrong_is_replaced(ranks: Ranks) -> None:
    ranks.transfer()
    before = ranks.record()
    ranks.place.write_bytes(rank_file(b"\xa5")[1])
    held = before.files[ranks.name]
    now = stat_of(ranks.place)
    assert now
    bad = replace(held, mtime_ns=now.mtime_ns, inode=now.inode, failed_at=held.verified_at + 1)
    ranks.pair.provenance.record(replace(before, files={ranks.name: bad}))
    ranks.transfer()
    assert ranks.place.read_bytes() == ranks.data


def test_one_that_was_cut_off_since_it_was_recorded_is_replaced(ranks: Ranks) -> None:
    ranks.transfer()
    ranks.record()
    ranks.place.write_bytes(ranks.data[:5])
    ranks.transfer()
    assert ranks.place.read_bytes() == ranks.data


def test_another_file_of_the_rank_beside_it_is_refused(ranks: Ranks) -> None:
    ranks.folder.mkdir(parents=True)
    other = f"rank1of2-{'0' * 20}.bin"
    (ranks.folder / other).write_bytes(b"x")
    assert f"holds {other}, another file of rank 1" in ranks.failing()
    (ranks.folder / other).rename(ranks.folder / f"rank0of2-{'0' * 20}.bin")
    ranks.transfer()


@pytest.mark.parametrize(
    "wrong", [{"entries": 2}, {"index_sha256": "0" * 64}], ids=["entries", "index"]
)
def test_another_list_of_tensors_is_refused(ranks: Ranks, wrong: dict[str, Any]) -> None:
    order = ranks.order()
    said = ranks.failing(file={**order["file"], **wrong})
    assert "holds 1 tensors" in said and "it is not in place" in said
    assert not ranks.place.exists()


def test_other_content_of_equal_shape_is_refused(ranks: Ranks) -> None:
    """As stock and grafted weights have: same name, same list, other bytes."""
    (ranks.origin / ranks.name).write_bytes(rank_file(b"\xa5")[1])
    assert "came twice with content that is not the expected one" in ranks.failing()
    assert not ranks.place.exists()


def test_a_file_that_is_no_rank_file_is_refused(ranks: Ranks) -> None:
    ranks.data = ranks.data[:-1] + b"X"
    (ranks.origin / ranks.name).write_bytes(ranks.data)
    assert "does not end with TFDSRK01" in ranks.failing()
    assert not ranks.place.exists()


def test_a_part_is_finished_and_one_of_another_file_removed(ranks: Ranks) -> None:
    hidden = ranks.folder / ".spark-pair"
    hidden.mkdir(parents=True)
    order = RankTransferOrder.from_dict(ranks.order())
    with Part(hidden, order.rank.file) as part:
        part.write(ranks.data[:MIB])
        part._write_state()
    (hidden / f"{'e' * 64}.part").write_bytes(b"x")
    assert ranks.transfer()[1]["payload_bytes"] == len(ranks.data) - MIB
    assert [one.name for one in ranks.folder.iterdir()] == [ranks.name]


def test_it_is_not_there(ranks: Ranks) -> None:
    (ranks.origin / ranks.name).unlink()
    assert f"{ranks.name} is not there" in ranks.failing()
