"""A server is started from the weights that it is described with, and from no others."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from spark_pair.description import Files, Weights
from spark_pair.weights import layout
from spark_pair.weights.provenance import Artefact, Held, Origin, stat_of
from spark_pair.weights.rank_file import MAGIC
from spark_pair.weights.served import problems

COMMIT, OVERLAY, TABLES = "45ee5d0f" + "a" * 32, "0bdc2036" + "b" * 32, "1bae0e10" + "c" * 32
OTHER = "9" * 40
STOCK = Weights("45ee5d0f", None, TABLES)
GRAFTED = Weights(COMMIT, OVERLAY, TABLES)


class Host:
    """A machine with rank files and Engram tables on record."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record: dict[str, Artefact] = {}

    def file(self, artefact: str, path: Path, data: bytes, **more: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        found = stat_of(path)
        assert found is not None
        digest = hashlib.sha256(data).hexdigest()
        held = Held(found.size, found.mtime_ns, found.inode, 1.0, "read", digest)
        given = {
            "kind": "rank_file",
            "repo": "own/model",
            "commit": COMMIT,
            "origin": Origin.CUT,
            "at": 1.0,
            "details": {},
            **more,
        }
        files = {path.name: held}
        self.record[artefact] = Artefact(artefact, folder=str(path.parent), files=files, **given)
        return path

    def rank(self, overlay: str | None = None, rank: int = 1, **more: Any) -> Path:
        index = json.dumps([["w", "int16", [2], 0, 4]]).encode()
        data = b"wwww" + index + (4).to_bytes(8, "little") + MAGIC
        name = f"rank{rank}of2-{hashlib.sha256(index).hexdigest()[:20]}.bin"
        folder = layout.rank_files(layout.work(self.root), more.get("commit", COMMIT), overlay)
        given = {"name": layout.rank_name(rank, overlay), "details": {"overlay": overlay}, **more}
        return self.file(given.pop("name"), folder / name, data, **given)

    def engram(self, commit: str = TABLES) -> Path:
        path = self.root / "hub" / "model-00047.safetensors"
        return self.file("engram", path, b"tables", kind="repository", commit=commit)

    def problems(self, wanted: Weights = STOCK, rank: int = 1) -> list[str]:
        return problems(wanted, rank, self.record, self.root)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.rank()
    made.engram()
    return made


def only(found: list[str]) -> str:
    (words,) = found
    return words


def test_what_is_wanted_is_there(host: Host) -> None:
    assert host.problems() == []
    assert host.problems(Weights(COMMIT, None, None)) == []


def test_both_cuts_are_there(host: Host) -> None:
    host.rank(OVERLAY)
    assert host.problems() == [] and host.problems(GRAFTED) == []


def test_a_record_of_an_earlier_release_names_both_alike(host: Host) -> None:
    host.rank(OVERLAY, name="rank1")
    assert host.problems(GRAFTED) == []
    assert "with the overlay" in only(host.problems(STOCK))


def test_one_that_is_recorded_elsewhere_is_not_what_a_server_finds(host: Host) -> None:
    path = host.rank()
    backup = host.root / "backup" / path.name
    backup.parent.mkdir()
    path.rename(backup)
    host.record["rank1"] = dataclasses.replace(host.record["rank1"], folder=str(backup.parent))
    words = only(host.problems())
    assert str(backup.parent) in words and "45ee5d0f/checkpoint/rank-cache" in words


def test_the_whole_path_counts_and_not_only_its_end(host: Host) -> None:
    place = host.rank().parent
    backup = host.root / "backup" / place.relative_to(host.root)
    backup.parent.mkdir(parents=True)
    place.rename(backup)
    host.record["rank1"] = dataclasses.replace(host.record["rank1"], folder=str(backup))
    words = only(host.problems())
    assert f"lies in {backup}, and a server looks for it in {place}" in words


def test_a_folder_on_a_larger_disk_is_the_place_when_a_link_leads_there(host: Host) -> None:
    place = host.rank().parent
    elsewhere = host.root / "large"
    layout.work(host.root).rename(elsewhere)
    layout.work(host.root).symlink_to(elsewhere)
    assert host.problems() == []
    real = elsewhere / place.relative_to(layout.work(host.root))
    host.record["rank1"] = dataclasses.replace(host.record["rank1"], folder=str(real))
    assert host.problems() == []


def test_nothing_is_recorded_of_that_rank(host: Host) -> None:
    words = only(host.problems(rank=0))
    assert words.startswith("no file of rank 0 is on record there") and "--tags adopt" in words


def test_grafted_is_there_and_stock_is_wanted(host: Host) -> None:
    del host.record["rank1"]
    host.rank(OVERLAY)
    assert only(host.problems()) == (
        "rank 1 there was cut with the overlay 0bdc2036, but ablit_graft_enabled is false: set it "
        "to true, or let --tags weights cut stock weights"
    )


def test_stock_is_there_and_grafted_is_wanted(host: Host) -> None:
    assert only(host.problems(GRAFTED)) == (
        "rank 1 there was cut stock, but ablit_graft_enabled is true: set it to false, or let "
        "--tags weights cut with the overlay 0bdc2036"
    )


def test_another_overlay_or_checkpoint_is_there(host: Host) -> None:
    del host.record["rank1"]
    host.rank(OTHER)
    assert "with the overlay 99999999, and 0bdc2036 is wanted" in only(host.problems(GRAFTED))
    del host.record[layout.rank_name(1, OTHER)]
    host.rank(commit=OTHER)
    assert "from the checkpoint 99999999, and 45ee5d0f is wanted" in only(host.problems())


def test_a_file_that_was_touched(host: Host) -> None:
    os.utime(host.rank(), ns=(1, 1))
    words = only(host.problems())
    assert "was written to since it was verified" in words and "--tags verify" in words


def test_a_file_that_is_gone(host: Host) -> None:
    host.rank().unlink()
    assert "is not there" in only(host.problems())


def test_a_file_that_is_no_whole_one(host: Host) -> None:
    path = host.rank()
    host.file("rank1", path, path.read_bytes()[:-1], details={"overlay": None})
    assert f"does not end with {MAGIC.decode()}" in only(host.problems())


def test_a_second_file_of_the_rank(host: Host) -> None:
    (host.rank().parent / f"rank1of2-{'0' * 20}.bin").write_bytes(b"?")
    words = only(host.problems())
    assert "beside the recorded file of rank 1" in words and "0" * 20 in words


def test_the_other_rank_beside_it_does_not_matter(host: Host) -> None:
    host.rank(rank=0)
    assert host.problems() == [] and host.problems(rank=0) == []


def test_of_two_records_the_good_one_counts(host: Host) -> None:
    path = host.rank()
    bad = Held(1, 1, 1, 1.0, "read", "0" * 64)
    host.record["rank1-again"] = Artefact(
        "rank1-again", "rank_file", "own/model", COMMIT, Origin.ADOPTED, 1.0, str(path.parent),
        {"gone.bin": bad}, {"overlay": None},
    )  # fmt: skip
    assert host.problems() == []


def test_the_engram_tables(host: Host) -> None:
    del host.record["engram"]
    assert "the Engram tables are not on record there" in only(host.problems())
    assert host.problems(Weights("45ee5d0f")) == []
    host.engram(OTHER)
    assert "are of 99999999, and 1bae0e10 is wanted" in only(host.problems())
    os.utime(host.engram(), ns=(1, 1))
    assert "Engram: model-00047.safetensors was written to" in only(host.problems())


def test_half_of_the_engram_tables(host: Host) -> None:
    first, second, names = (Files(one, 1) for one in ("*-00047*", "*-00048*", "*.json"))
    assert host.problems(dataclasses.replace(STOCK, engram_files=(first,))) == []
    words = only(host.problems(dataclasses.replace(STOCK, engram_files=(first, second, names))))
    assert "not every *-00048* and *.json is on record there" in words
    assert "*-00047*" not in words and "--tags weights" in words
    both = dataclasses.replace(STOCK, engram_files=(Files("*.safetensors", 2),))
    assert "not every *.safetensors is on record" in only(host.problems(both))


def test_everything_that_is_wrong_is_told(host: Host) -> None:
    host.record.clear()
    assert len(host.problems()) == 2
