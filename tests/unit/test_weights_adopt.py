"""Adopting: what is right is proven and recorded, what is not is refused by name; nothing moves."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from prepared_by_hand import CHECKPOINT, ENGRAM, OVERLAY, SOURCES, STOCK_FOLDER, Machine

from spark_pair.errors import DescriptionError
from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError
from spark_pair.weights import adopt_plan, seen
from spark_pair.weights import verify as verifying
from spark_pair.weights.adopt import Account, AdoptOrder, Barrier, _barred, adopt
from spark_pair.weights.adopt_plan import STOCK, Stated
from spark_pair.weights.layout import rank_name
from spark_pair.weights.provenance import Origin, everyday
from spark_pair.weights.verify import Disk

STATED = Stated(CHECKPOINT.commit, STOCK)
ABLIT = f"{CHECKPOINT.commit[:8]}-ablit-{OVERLAY.commit[:8]}"
GRAFTED = rank_name(1, OVERLAY.commit)
ENGRAM_FILE = "model-00047-of-00048.safetensors"


@pytest.fixture
def head(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "head")


@pytest.fixture
def worker(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "worker")


def order_of(machine: Machine, stated: Stated = STATED) -> dict[str, Any]:
    looked = machine.look()
    orders = adopt_plan.order(
        {machine.role: looked},
        SOURCES,
        seen.trees([looked]),
        stated,
        asked={machine.role: machine.asked},
        names={machine.role: machine.role},
    )
    assert not orders.problems
    return orders.orders[machine.role]


def run(
    machine: Machine,
    order: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    barred: Mapping[Path, Barrier] | None = None,
    threads: int = 2,
) -> Mapping[str, Any]:
    return adopt(
        AdoptOrder.from_dict(order or order_of(machine)),
        reporter or Reporter(),
        provenance=machine.provenance,
        kept=machine.kept,
        may_read=lambda paths: {path: one for path, one in (barred or {}).items() if path in paths},
        threads=threads,
    )[1]


def refused(machine: Machine, order: Mapping[str, Any] | None = None, **more: Any) -> str:
    """The only sentence of a run that refuses one thing."""
    with pytest.raises(JobFailedError) as failed:
        run(machine, order, **more)
    (sentence,) = failed.value.data["refused"]
    assert str(sentence) in str(failed.value)
    return str(sentence)


# ---- what is right -------------------------------------------------------------------------------


def test_everything_that_is_right_is_recorded_and_nothing_else_is_touched(head: Machine) -> None:
    before = head.everything()
    data = run(head)
    assert data["recorded"] == ["checkpoint", "engram", "rank0"]
    assert (data["refused"], data["unchanged"], data["notes"]) == ([], [], [])
    assert head.everything() == before

    record = head.provenance.load()
    assert {name: one.commit for name, one in record.items()} == {
        "checkpoint": CHECKPOINT.commit,
        "engram": ENGRAM.commit,
        "rank0": CHECKPOINT.commit,
    }
    for artefact in record.values():
        assert artefact.origin is Origin.ADOPTED
        assert everyday(artefact, Disk(artefact.folder).stat) == []
    assert sorted(path for path in record["checkpoint"].files if "safetensors" in path) == [
        "model-00039-of-00039.safetensors",
        "model.safetensors.index.json",
    ]


def test_what_is_adopted_is_named_in_the_cache_by_its_account(worker: Machine) -> None:
    words, _ = adopt(
        AdoptOrder.from_dict(order_of(worker)),
        Reporter(),
        provenance=worker.provenance,
        kept=worker.kept,
        may_read=lambda _: {},
    )
    assert words.endswith("; a ref keeps 'hf cache prune' away from engram")
    (ref,) = worker.files.glob("hub/models--*/refs/pinned-*")
    assert ref.read_text() == ENGRAM.commit
    assert ref.stat().st_uid == worker.home.stat().st_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_work_in_the_account_s_folders_is_the_account_s_own(tmp_path: Path) -> None:
    nobody = Account("nobody", 65534, 65534)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert "Permission denied" in nobody.does(lambda: (closed / "x").write_text("x"))
    assert not list(closed.iterdir())
    assert nobody.does(lambda: None) == ""


def test_a_rank_file_is_recorded_with_its_hash_and_what_it_was_cut_from(worker: Machine) -> None:
    run(worker)
    artefact = worker.provenance.load()["rank1"]
    assert (artefact.repo, artefact.details["overlay"]) == (CHECKPOINT.name, None)
    (held,) = artefact.files.values()
    assert held.sha256 == hashlib.sha256(worker.rank.read_bytes()).hexdigest()


def test_what_the_files_were_held_against_is_kept(head: Machine, worker: Machine) -> None:
    shutil.rmtree(next(worker.files.glob("hub/models--deepseek-ai--*/trees")).resolve(), False)
    looked = head.look()
    orders = adopt_plan.order(
        {"worker": worker.look()}, SOURCES, seen.trees([looked]), STATED,
        asked={"worker": worker.asked}, names={"worker": "worker"},
    )  # fmt: skip
    run(worker, orders.orders["worker"])
    looked = worker.look()
    assert seen.trees([looked])[ENGRAM.name].commit == ENGRAM.commit
    # A cache's list does not become the Hub's word by being kept.
    assert seen.manifests([looked]) == {}


def test_what_is_recorded_is_not_read_again(head: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    order = order_of(head)
    run(head, order)
    recorded = head.provenance.path.read_bytes()

    def blocks(_: Disk, path: str) -> Iterator[memoryview]:
        raise AssertionError(f"{path} was read")
        yield

    monkeypatch.setattr(verifying.Disk, "blocks", blocks)
    data = run(head, order)
    assert data["unchanged"] == ["checkpoint", "engram", "rank0"] and data["recorded"] == []
    assert head.provenance.path.read_bytes() == recorded


def test_files_of_the_shared_store_are_adopted_too(worker: Machine) -> None:
    blob = worker.blob("00047")
    payload = worker.files / "hub" / "blobs" / "ab" / ("ab" * 32)
    payload.parent.mkdir(parents=True)
    blob.rename(payload)
    payload.chmod(0o444)
    blob.symlink_to(os.path.relpath(payload, blob.parent))
    assert run(worker)["recorded"] == ["engram", "rank1"]
    assert ENGRAM_FILE in worker.provenance.load()["engram"].files


def test_a_touched_file_is_read_again(worker: Machine) -> None:
    run(worker)
    os.utime(worker.blob("00047"))
    data = run(worker)
    assert data["recorded"] == ["engram"]
    artefact = worker.provenance.load()["engram"]
    assert len(artefact.files) > 1 and everyday(artefact, Disk(artefact.folder).stat) == []


def test_progress_is_told_in_bytes(worker: Machine) -> None:
    reporter = Reporter()
    run(worker, reporter=reporter)
    told = reporter.progress()
    assert (told.step, told.done, told.total) == (
        "adopt rank1", worker.rank.stat().st_size, worker.rank.stat().st_size,
    )  # fmt: skip


# ---- files of a repository that are not right ----------------------------------------------------


def change_a_byte(path: Path) -> None:
    """Behind everybody's back: size and time stay."""
    times = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _cut_off(path: Path) -> None:
    os.truncate(path, 1000)


def _vanish(path: Path) -> None:
    path.unlink()


def _become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "words", "next_step"),
    [
        (change_a_byte, "has the right size and the wrong content", "'--tags plan' names the step"),
        (_cut_off, "has 1000 bytes instead of", "'--tags plan' names the step"),
        (_vanish, "cannot be looked at", "mounted"),
        (_become_a_folder, "is no file", "move it away"),
    ],
)
def test_one_wrong_file_is_refused_by_name_and_the_rest_is_recorded(
    worker: Machine, harm: Callable[[Path], None], words: str, next_step: str
) -> None:
    order = order_of(worker)
    harm(worker.blob("00047"))
    sentence = refused(worker, order)
    assert sentence.startswith(f"engram: {ENGRAM_FILE} ")
    assert words in sentence and next_step in sentence
    record = worker.provenance.load()
    assert sorted(record) == ["engram", "rank1"]
    wanted = next(one for one in order["sources"] if one["name"] == "engram")["files"]
    assert set(record["engram"].files) == set(wanted) - {ENGRAM_FILE}


def test_a_wrong_file_that_was_recorded_is_not_called_right(worker: Machine) -> None:
    order = order_of(worker)
    run(worker, order)
    blob = worker.blob("00047")
    change_a_byte(blob)
    os.utime(blob)
    assert "wrong content" in refused(worker, order)


def test_with_nothing_right_nothing_is_recorded_of_a_source(worker: Machine) -> None:
    order = order_of(worker)
    order["ranks"] = []
    order["sources"][0]["files"] = [ENGRAM_FILE]
    change_a_byte(worker.blob("00047"))
    refused(worker, order)
    assert worker.provenance.load() == {}


def test_a_file_that_the_account_cannot_read(worker: Machine) -> None:
    order = order_of(worker)
    entry = next(worker.files.glob(f"hub/models--*/snapshots/*/{ENGRAM_FILE}"))
    sentence = refused(worker, order, barred={entry: Barrier(entry, "Permission denied")})
    assert str(entry) in sentence and "Permission denied" in sentence and "sudo ch" in sentence
    assert ENGRAM_FILE not in worker.provenance.load()["engram"].files


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_reading_is_tried_as_the_account_itself() -> None:
    # Not below tmp_path, which is closed to everybody else.
    open_folder = Path(gettempdir()) / f"adopt-{os.getpid()}"
    closed = open_folder / "closed"
    try:
        closed.mkdir(parents=True)
        for path, mode in ((open_folder / "a", 0o644), (open_folder / "b", 0o600)):
            path.write_text("x")
            path.chmod(mode)
        (closed / "c").write_text("x")
        closed.chmod(0o700)
        open_folder.chmod(0o755)
        nobody = Account("nobody", 65534, 65534)
        names = ["a", "b", "closed/c"]
        found = nobody.may_read([open_folder / name for name in names])
        assert {path: barrier.place for path, barrier in found.items()} == {
            open_folder / "b": open_folder / "b",
            closed / "c": closed,
        }
        assert {barrier.words for barrier in found.values()} == {"Permission denied"}
    finally:
        shutil.rmtree(open_folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_somebody_else_are_recorded_with_a_word_about_it(worker: Machine) -> None:
    os.chown(worker.rank, 65534, 65534)
    data = run(worker)
    (note,) = data["notes"]
    assert note.startswith("rank1: ") and "nobody" in note and "sudo chown" in note
    assert "rank1" in data["recorded"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_barrier_of_somebody_else_is_told_with_its_owner(worker: Machine) -> None:
    os.chown(worker.ranks, 65534, 65534)
    sentence = refused(worker, barred={worker.rank: Barrier(worker.ranks, "Permission denied")})
    assert f"{worker.ranks} belongs to nobody" in sentence and "chown -R root:" in sentence


def test_nothing_above_the_weights_own_folder_is_to_be_given_away(worker: Machine) -> None:
    order = order_of(worker)
    entry = next(worker.files.glob(f"hub/models--*/snapshots/*/{ENGRAM_FILE}"))
    repository = entry.parents[2]
    above = [Path("/"), Path("/root"), worker.home, worker.files, worker.files / "hub"]
    for place in (*above, repository, entry.parent, entry):
        barrier = Barrier(place, "Permission denied")
        words = _barred(entry, barrier, "nobody", repository)
        assert f"{place}" in words and "sudo ch" in words
        assert ("chown" in words) is (place not in above)
        assert ("chown -R" in words) is (place in (repository, entry.parent))
    sentence = refused(
        worker, order, barred={worker.rank: Barrier(worker.home, "Permission denied")}
    )
    assert "chown" not in sentence


# ---- rank files that are not right ---------------------------------------------------------------


def test_stock_and_grafted_ones_have_records_of_their_own(worker: Machine) -> None:
    run(worker)
    other = worker.files / STOCK_FOLDER.replace(CHECKPOINT.commit[:8], ABLIT)
    shutil.copytree(worker.ranks, other)
    order = order_of(worker, Stated(CHECKPOINT.commit, OVERLAY.commit))
    assert run(worker, order)["recorded"] == [GRAFTED]
    record = worker.provenance.load()
    assert (record["rank1"].folder, record[GRAFTED].folder) == (str(worker.ranks), str(other))
    assert run(worker, order)["unchanged"] == [GRAFTED]


def test_a_record_of_an_earlier_release_is_known_again(worker: Machine) -> None:
    order = order_of(worker)
    run(worker, order)
    known = worker.provenance.load()["rank1"]
    entry = replace(known, details={**known.details, "overlay": OVERLAY.commit})
    worker.provenance.forget("rank1")
    worker.provenance.record(entry)
    rank = {**order["ranks"][0], "overlay": OVERLAY.commit}
    with_it = {**order, "sources": [], "ranks": [rank]}
    assert run(worker, with_it)["unchanged"] == [GRAFTED]


def test_a_folder_that_says_another_revision(worker: Machine) -> None:
    other = worker.files / STOCK_FOLDER.replace(CHECKPOINT.commit[:8], ABLIT)
    other.parent.mkdir(parents=True)
    worker.ranks.rename(other)
    sentence = refused(worker)
    for words in (f"{CHECKPOINT.commit[:8]} with the overlay {OVERLAY.commit[:8]}",
                  f"{CHECKPOINT.commit[:8]}, stock", "weights_adopt_overlay"):  # fmt: skip
        assert words in sentence
    assert run_again_with_the_overlay(worker)["recorded"] == [GRAFTED]
    assert worker.provenance.load()[GRAFTED].details["overlay"] == OVERLAY.commit


def run_again_with_the_overlay(machine: Machine) -> Mapping[str, Any]:
    return run(machine, order_of(machine, Stated(CHECKPOINT.commit, OVERLAY.commit[:8])))


def test_two_files_of_one_rank(worker: Machine) -> None:
    order = order_of(worker)
    shutil.copy(worker.rank, worker.ranks / f"rank1of2-{'0' * 20}.bin")
    sentence = refused(worker, order)
    assert "2 files of rank 1" in sentence and "0" * 20 in sentence and "move away" in sentence


def test_the_rank_of_the_other_host(worker: Machine) -> None:
    order = {**order_of(worker), "role": "head"}
    sentence = refused(worker, order)
    assert "of rank 1, which the worker serves" in sentence and "this host is the head" in sentence


def test_a_cut_that_did_not_end(worker: Machine) -> None:
    order = order_of(worker)
    partial = worker.ranks / ".rank1of2.partial"
    worker.rank.rename(partial)
    order["ranks"][0]["path"] = str(partial)
    assert "did not end" in refused(worker, order)


def test_a_copy_that_was_cut_off(worker: Machine) -> None:
    order = order_of(worker)
    os.truncate(worker.rank, worker.rank.stat().st_size - 1)
    sentence = refused(worker, order)
    assert "does not end with TFDSRK01" in sentence and "copy it again" in sentence


def test_a_rank_file_that_is_gone(worker: Machine) -> None:
    order = order_of(worker)
    worker.rank.unlink()
    assert "cannot be read (No such file" in refused(worker, order)


def test_a_rank_file_under_another_name_is_told_and_recorded(worker: Machine) -> None:
    worker.rank.rename(worker.ranks / f"rank1of2-{'0' * 20}.bin")
    data = run(worker)
    (note,) = data["notes"]
    assert "should carry" in note and "rank1" in data["recorded"]


def test_a_rank_file_that_is_written_to_meanwhile(
    worker: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(worker)
    original = Disk.blocks

    def blocks(self: Disk, path: str) -> Iterator[memoryview]:
        yield from original(self, path)
        if path.startswith("rank1"):
            os.utime(worker.rank)

    monkeypatch.setattr(verifying.Disk, "blocks", blocks)
    assert "changed while it was read" in refused(worker, order)
    assert "rank1" not in worker.provenance.load()


def test_another_record_of_the_same_rank_is_replaced(worker: Machine) -> None:
    run(worker)
    order = order_of_ranks(worker, "f" * 40)
    worker.ranks.parents[1].rename(worker.files / "tensorfold-dsv41" / ("f" * 8))
    assert run(worker, order)["recorded"] == ["rank1"]
    assert worker.provenance.load()["rank1"].commit == "f" * 40


def order_of_ranks(machine: Machine, commit: str) -> dict[str, Any]:
    path = machine.files / STOCK_FOLDER.replace(CHECKPOINT.commit[:8], commit[:8])
    return {
        "schema": 1, "role": machine.role, "home": str(machine.home), "sources": [],
        "ranks": [{"rank": 1, "path": str(path / machine.rank.name), "repo": CHECKPOINT.name,
                   "checkpoint": commit, "overlay": None}],
    }  # fmt: skip


# ---- being stopped, and orders -------------------------------------------------------------------


def test_after_a_stop_what_was_read_is_recorded_and_the_next_run_goes_on(
    worker: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(worker)
    reporter = Reporter()
    original = Disk.blocks

    def blocks(self: Disk, path: str) -> Iterator[memoryview]:
        yield from original(self, path)
        if path == ENGRAM_FILE:
            reporter.stop_asked.set()

    monkeypatch.setattr(verifying.Disk, "blocks", blocks)
    with pytest.raises(JobStoppedError):
        run(worker, order, reporter, threads=1)
    monkeypatch.undo()
    recorded = set(worker.provenance.load()["engram"].files)
    wanted = set(order["sources"][0]["files"])
    assert recorded == {ENGRAM_FILE}, "the largest is read first"
    assert run(worker, order)["recorded"] == ["engram", "rank1"]
    assert set(worker.provenance.load()["engram"].files) == wanted


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"role": "both"},
        {"home": "home/spark"},
        {"extra": 1},
        {"sources": [{"name": "engram"}]},
        {"ranks": [{"rank": 2, "path": "/r", "repo": "", "checkpoint": "0" * 40,
                    "overlay": None}]},
        {"ranks": [{"rank": 1, "path": "/r", "repo": "", "checkpoint": "45ee5d0f",
                    "overlay": None}]},
    ],
)  # fmt: skip
def test_an_order_that_makes_no_sense(worker: Machine, change: dict[str, Any]) -> None:
    with pytest.raises(DescriptionError):
        AdoptOrder.from_dict({**order_of(worker), **change})


def test_a_file_that_the_list_does_not_have(worker: Machine) -> None:
    order = order_of(worker)
    order["sources"][0]["files"].append("../../etc/shadow")
    with pytest.raises(DescriptionError, match="no file"):
        AdoptOrder.from_dict(order)
