"""What a job has proven comes into the record, whatever became of the job; nothing else does."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_pair import cli, jsonfile, paths
from spark_pair.jobs.shapes import (
    VERIFIED,
    JobResult,
    Request,
    kept_order,
    read_result,
    write_request,
    write_result,
)
from spark_pair.weights import layout
from spark_pair.weights import record as record_module
from spark_pair.weights.cache import Cache
from spark_pair.weights.graft_order import GraftOrder
from spark_pair.weights.kept import Kept, of_caches, of_hub, ordered
from spark_pair.weights.manifest import File, Manifest, ManifestError
from spark_pair.weights.provenance import (
    Artefact,
    Held,
    Origin,
    Provenance,
    ProvenanceError,
    Stat,
)
from spark_pair.weights.record import Proof, ProofError, Proofs
from spark_pair.weights.record import take_over as take_over_all

COMMIT, OTHER = "45ee5d0f" * 5, "1bae0e10" * 5


HOME = Path("/home/spark")


def order(commit: str = COMMIT, home: Path = HOME) -> dict[str, Any]:
    """What the job was asked for: nine files of that commit."""
    files = tuple(File(f"model-{n}", n, "a" * 40, f"{n:064x}") for n in range(1, 10))
    return {
        "schema": 1,
        "source": "checkpoint",
        "endpoint": "https://hub",
        "home": str(home),
        "manifest": Manifest("own/name", commit, files).as_dict(),
        "files": [file.path for file in files],
    }


def snapshot(commit: str = COMMIT, home: Path = HOME) -> str:
    return str(Cache.of_account(home).snapshot("own/name", commit))


def take_over(
    folder: Path, provenance: Provenance, wanted: Any = None, **more: Any
) -> dict[str, tuple[str, ...]]:
    """What is recorded of proofs that all count."""
    taken = take_over_all(folder, provenance, wanted or order(), **more)
    assert not taken.skipped
    return dict(taken.files)


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stat]:
    """What is there: every file as it was proven last."""
    there: dict[str, Stat] = {}
    add = Proofs.add

    def noted(proofs: Proofs, proof: Proof) -> None:
        there[f"{proof.artefact.folder}/{proof.path}"] = proof.held.stat
        add(proofs, proof)

    monkeypatch.setattr(Proofs, "add", noted)
    monkeypatch.setattr(record_module, "stat_of", lambda path: there.get(str(path)))
    monkeypatch.setattr(record_module, "_is_mounted", lambda folder: True)
    return there


def held(number: int, **more: Any) -> Held:
    known = {"mtime_ns": number, "inode": number, "verified_at": 50.0, "how": "written"}
    return Held(size=number, **{**known, "sha256": f"{number:064x}", **more})


def artefact(*numbers: int, **more: Any) -> Artefact:
    usual = Artefact(
        name="checkpoint",
        kind="repository",
        repo="own/name",
        commit=COMMIT,
        origin=Origin.DOWNLOADED,
        at=10.0,
        folder=snapshot(),
        files={f"model-{number}": held(number) for number in numbers},
    )
    return replace(usual, **more)


@pytest.fixture
def provenance(tmp_path: Path) -> Provenance:
    return Provenance(tmp_path / "provenance.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs" / "download"
    folder.mkdir(parents=True)
    return folder


def note(folder: Path, *numbers: int, **more: Any) -> None:
    proofs = Proofs(folder)
    for number in numbers:
        proofs.add(Proof(artefact(**more), f"model-{number}", held(number)))
    assert not proofs.missed


def test_a_first_download_is_recorded_and_its_proofs_are_gone(
    provenance: Provenance, folder: Path
) -> None:
    note(folder, 1, 2)
    assert take_over(folder, provenance, clock=lambda: 99.0) == {
        "checkpoint": ("model-1", "model-2")
    }
    assert provenance.load() == {"checkpoint": artefact(1, 2, at=99.0)}
    assert not (folder / VERIFIED).exists()
    assert take_over(folder, provenance) == {}
    assert provenance.load() == {"checkpoint": artefact(1, 2, at=99.0)}


def test_files_fetched_into_an_adopted_artefact_leave_the_rest_as_it_was(
    provenance: Provenance, folder: Path
) -> None:
    adopted = artefact(1, 2, 3, origin=Origin.ADOPTED, details={"by": "hand"})
    engram = artefact(7, name="engram", commit=OTHER)
    provenance.record(adopted)
    provenance.record(engram)
    newer = held(2, inode=99, how="read")
    Proofs(folder).add(Proof(artefact(), "model-2", newer))
    note(folder, 4)
    take_over(folder, provenance, clock=lambda: 99.0)
    files = {**adopted.files, "model-2": newer, "model-4": held(4)}
    assert provenance.load() == {
        "checkpoint": replace(adopted, files=files, at=99.0),
        "engram": engram,
    }


def test_another_commit_takes_the_place_of_the_former(provenance: Provenance, folder: Path) -> None:
    provenance.record(artefact(1, 2, origin=Origin.ADOPTED))
    after = artefact(3, commit=OTHER, folder=snapshot(OTHER), at=99.0)
    Proofs(folder).add(Proof(after, "model-3", held(3)))
    take_over(folder, provenance, order(OTHER), clock=lambda: 99.0)
    assert provenance.load() == {"checkpoint": after}


def test_of_another_folder_only_the_very_same_files_stay(
    provenance: Provenance, folder: Path, tmp_path: Path
) -> None:
    new = Path(snapshot(home=tmp_path))
    new.mkdir(parents=True)
    (new / "model-5").write_bytes(b"12345")
    found = (new / "model-5").stat()
    there = held(5, mtime_ns=found.st_mtime_ns, inode=found.st_ino)
    provenance.record(artefact(1, files={"model-1": held(1), "model-5": there}))
    Proofs(folder).add(Proof(artefact(folder=str(new)), "model-6", held(6)))
    take_over(folder, provenance, order(home=tmp_path))
    recorded = provenance.load()["checkpoint"]
    assert recorded.folder == str(new)
    assert recorded.files == {"model-5": there, "model-6": held(6)}


def test_what_was_read_again_only_changes_what_it_was_read_from(
    provenance: Provenance, folder: Path
) -> None:
    provenance.record(artefact(1, 2, 3))
    proofs = Proofs(folder)
    wrong, right = held(1, failed_at=70.0), held(2, verified_at=70.0)
    proofs.add(Proof(artefact(), "model-1", wrong, held(1)))
    proofs.add(Proof(artefact(), "model-2", right, held(2)))
    # Meanwhile the third was fetched anew.
    fresh = held(3, inode=33)
    provenance.merge(artefact(files={"model-3": fresh}))
    proofs.add(Proof(artefact(), "model-3", held(3, failed_at=70.0), held(3)))
    assert take_over(folder, provenance) == {"checkpoint": ("model-1", "model-2")}
    assert provenance.load() == {
        "checkpoint": artefact(files={"model-1": wrong, "model-2": right, "model-3": fresh})
    }


def test_of_two_proofs_of_one_file_the_later_counts(provenance: Provenance, folder: Path) -> None:
    note(folder, 1)
    Proofs(folder).add(Proof(artefact(), "model-1", held(1, verified_at=60.0)))
    take_over(folder, provenance)
    assert provenance.load()["checkpoint"].files == {"model-1": held(1, verified_at=60.0)}


def test_a_line_that_was_cut_off_spoils_no_other(provenance: Provenance, folder: Path) -> None:
    note(folder, 1)
    whole = (folder / VERIFIED).read_bytes()
    (folder / VERIFIED).write_bytes(whole + whole[: len(whole) // 2])
    note(folder, 2)
    assert take_over_all(folder, provenance, order()).skipped == 1
    assert set(provenance.load()["checkpoint"].files) == {"model-1", "model-2"}


BAD_HELD: list[dict[str, Any]] = [
    {"verified_at": 1e300},
    {"verified_at": float("inf")},
    {"verified_at": float("nan")},
    {"verified_at": 10**400},
    {"verified_at": -1},
    {"inode": float("inf")},
    {"inode": 10**400},
    {"inode": 2},
    {"mtime_ns": 2},
    {"how": "\x1b[31mpwned"},
    {"sha256": f"{2:064x}"},
    {"sha256": []},
    {"git_sha1": "a" * 40},
    {"failed_at": 9},
]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../checkpoint"},
        {"path": "../../etc/shadow"},
        {"path": "/etc/shadow"},
        {"path": ""},
        {"held": {}},
        {"artefact": None},
        {"before": 7},
        {"name": "rank0"},
        {"path": "model-10"},
        *(
            {"held": {"size": 1, "mtime_ns": 1, "inode": 1, "verified_at": 50.0, "how": "written",
                      "sha256": f"{1:064x}", **more}}
            for more in BAD_HELD
        ),
        *(
            {"artefact": {"kind": "repository", "repo": "own/name", "commit": COMMIT, "at": 1.0,
                          "origin": "downloaded", "folder": snapshot(), **more}}
            for more in (
                {"kind": "rank_file"}, {"repo": "own/other"}, {"commit": OTHER}, {"commit": "nope"},
                {"origin": "cut"}, {"origin": "adopted"}, {"folder": "/root"}, {"folder": "/a\0"},
                {"details": {"overlay": 5}},
            )
        ),
    ],
)  # fmt: skip
def test_a_line_that_makes_no_sense_is_none(
    provenance: Provenance, folder: Path, change: dict[str, Any]
) -> None:
    note(folder, 1)
    line = json.loads((folder / VERIFIED).read_text())
    (folder / VERIFIED).write_text(json.dumps({**line, **change}) + "\n")
    note(folder, 2)
    assert take_over_all(folder, provenance, order()).skipped == 1
    assert set(provenance.load()) == {"checkpoint"}
    assert set(provenance.load()["checkpoint"].files) == {"model-2"}


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff\xfe", b"7" * 10_000, b"null", b'"x"'])
def test_no_content_ends_root_s_step(provenance: Provenance, folder: Path, line: bytes) -> None:
    (folder / VERIFIED).write_bytes(line + b"\n")
    note(folder, 2)
    assert take_over_all(folder, provenance, order()).skipped == 1
    assert set(provenance.load()["checkpoint"].files) == {"model-2"}


@pytest.mark.parametrize(
    "change",
    [
        {"size": 2},
        {"sha256": "b" * 64},
        {"how": "written anew"},
        {"verified_at": 1e300},
        {"git_sha1": "a" * 40},
    ],
)
def test_of_what_is_recorded_a_proof_tells_only_that_it_is_right_or_wrong(
    provenance: Provenance, folder: Path, change: dict[str, Any]
) -> None:
    provenance.record(artefact(1))
    proofs = Proofs(folder)
    proofs.add(Proof(artefact(), "model-1", replace(held(1), **change), held(1)))
    proofs.add(Proof(artefact(name="gone"), "model-1", held(1, verified_at=70.0), held(1)))
    taken = take_over_all(folder, provenance, None)
    assert taken.skipped == 2 and not taken.files
    assert provenance.load() == {"checkpoint": artefact(1)}


def test_without_an_order_nothing_new_is_recorded(provenance: Provenance, folder: Path) -> None:
    note(folder, 1)
    for wanted in (None, 7, {"schema": 1}, {**order(), "files": ["model-2"]}):
        whole = (folder / VERIFIED).read_bytes()
        assert take_over_all(folder, provenance, wanted).skipped == 1
        (folder / VERIFIED).write_bytes(whole)
    assert provenance.load() == {}


def test_a_file_that_is_another_one_by_now_is_not_recorded(
    provenance: Provenance, folder: Path, disk: dict[str, Stat]
) -> None:
    note(folder, 1, 2)
    disk[f"{snapshot()}/model-1"] = Stat(1, 1, 2)
    del disk[f"{snapshot()}/model-2"]
    assert take_over_all(folder, provenance, order()).skipped == 2
    assert provenance.load() == {}


def test_root_follows_no_link_and_waits_for_nobody(
    provenance: Provenance, folder: Path, tmp_path: Path
) -> None:
    note(folder, 1)
    (folder / VERIFIED).rename(tmp_path / "elsewhere")
    (folder / VERIFIED).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProofError, match="move it away"):
        take_over(folder, provenance)
    (folder / VERIFIED).unlink()
    os.mkfifo(folder / VERIFIED)
    with pytest.raises(ProofError, match="no regular file"):
        take_over(folder, provenance)
    assert not provenance.load()


def test_proofs_stay_when_the_record_cannot_be_used(provenance: Provenance, folder: Path) -> None:
    note(folder, 1)
    provenance.path.write_text("{")
    with pytest.raises(ProvenanceError):
        take_over(folder, provenance)
    provenance.path.unlink()
    assert take_over(folder, provenance) == {"checkpoint": ("model-1",)}


def test_a_full_disk_costs_the_proof_and_not_the_job(folder: Path) -> None:
    (folder / VERIFIED).mkdir()
    proofs = Proofs(folder)
    proofs.add(Proof(artefact(), "model-1", held(1)))
    assert proofs.missed == 1
    with pytest.raises(ProofError, match="1 of them could not be noted"):
        proofs.check()
    Proofs(None).add(Proof(artefact(), "model-1", held(1)))


def test_a_proof_that_is_cut_off_by_a_full_disk_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:20]))
    proofs = Proofs(folder)
    proofs.add(Proof(artefact(), "model-1", held(1)))
    assert proofs.missed == 1


WORK = HOME / ".cache/huggingface/tensorfold-dsv41"
SHARDS = tuple(File(f"model-{n}.safetensors", n, "a" * 40, f"{n:064x}") for n in range(1, 4))


def common(kind: str) -> dict[str, Any]:
    return {"schema": 1, "kind": kind, "home": str(HOME), "floor_bytes": 0}


class TestAGraft:
    """Its files count together, or none does."""

    GRAFTED = (SHARDS[0].path,)

    def order(self) -> dict[str, Any]:
        overlay = Manifest("own/overlay", OTHER, (File("o.safetensors", 9, "a" * 40, "9" * 64),))
        return {
            **common("graft"),
            "method": "in_place",
            "manifest": Manifest("own/name", COMMIT, SHARDS).as_dict(),
            "files": [one.path for one in SHARDS],
            "overlay": {"manifest": overlay.as_dict(), "files": ["o.safetensors"]},
            "work": str(WORK),
            "former": "adopted",
        }

    def note(self, folder: Path, *shards: File) -> Artefact:
        artefact = GraftOrder.from_dict(self.order()).artefact(self.GRAFTED)
        for one in shards:
            sha256 = "f" * 64 if one.path in self.GRAFTED else one.sha256
            Proofs(folder).add(Proof(artefact, one.path, held(one.size, sha256=sha256)))
        return artefact

    def test_it_takes_the_place_of_what_was_recorded(
        self, provenance: Provenance, folder: Path
    ) -> None:
        provenance.record(artefact(1, 2))
        self.note(folder, *SHARDS)
        assert set(take_over(folder, provenance, self.order())) == {"checkpoint"}
        (found,) = provenance.load().values()
        assert found.origin is Origin.GRAFTED and found.folder.startswith(str(WORK))
        assert set(found.files) == {one.path for one in SHARDS}
        assert found.files[SHARDS[0].path].sha256 == "f" * 64
        assert found.details == {
            "overlay": OTHER, "grafted": list(self.GRAFTED), "former": "adopted",
        }  # fmt: skip

    def test_half_of_it_changes_nothing(self, provenance: Provenance, folder: Path) -> None:
        before = artefact(1, 2)
        provenance.record(before)
        self.note(folder, *SHARDS[:2])
        taken = take_over_all(folder, provenance, self.order())
        assert (taken.files, taken.incomplete, taken.skipped) == ({}, 2, 0)
        assert provenance.load() == {"checkpoint": before}

    def test_a_shard_that_is_not_grafted_must_be_the_hub_s(
        self, provenance: Provenance, folder: Path
    ) -> None:
        artefact = self.note(folder, *SHARDS[:2])
        wrong = held(SHARDS[2].size, sha256="e" * 64)
        Proofs(folder).add(Proof(artefact, SHARDS[2].path, wrong))
        taken = take_over_all(folder, provenance, self.order())
        assert (taken.incomplete, taken.skipped) == (2, 1)


class TestARankFile:
    PATH = "rank1of2-" + "a" * 20 + ".bin"

    def artefact(self, overlay: str | None = None, **changes: Any) -> Artefact:
        usual = Artefact(
            layout.rank_name(1, overlay),
            "rank_file",
            "own/name",
            COMMIT,
            Origin.CUT,
            10.0,
            str(layout.rank_files(WORK, COMMIT, overlay)),
            {},
            {"overlay": overlay, "index_sha256": "d" * 64},
        )
        return replace(usual, **changes)

    def order(self, *wrong: str) -> dict[str, Any]:
        one = self.artefact()
        return {
            **common("shard"),
            "rank": 1,
            "model": snapshot(),
            "artefact": {
                "name": one.name, "repo": one.repo, "commit": one.commit, "folder": one.folder,
                "details": {"overlay": None},
            },
            "image": "engine:test",
            "command": ["cut", "{model}", "{out}", "{rank}"],
            "memory_bytes": 1,
            "expected_bytes": 0,
            "wrong": list(wrong),
        }  # fmt: skip

    def note(self, folder: Path) -> Held:
        proven = held(5, how="read")
        Proofs(folder).add(Proof(self.artefact(), self.PATH, proven))
        return proven

    def test_one_is_recorded_and_no_other_stays_beside_it(
        self, provenance: Provenance, folder: Path
    ) -> None:
        other = self.PATH.replace("a" * 20, "b" * 20)
        provenance.record(self.artefact(files={other: held(7)}))
        proven = self.note(folder)
        take_over(folder, provenance, self.order(other), clock=lambda: 99.0)
        assert provenance.load() == {"rank1": self.artefact(at=99.0, files={self.PATH: proven})}

    def test_one_from_other_weights_keeps_its_entry_under_a_name_of_its_own(
        self, provenance: Provenance, folder: Path
    ) -> None:
        """As earlier releases recorded it: by its rank alone."""
        grafted = self.artefact(OTHER, name="rank1", files={"old.bin": held(7)})
        provenance.record(grafted)
        proven = self.note(folder)
        take_over(folder, provenance, self.order(), clock=lambda: 99.0)
        name = f"rank1-ablit-{OTHER[:8]}"
        assert provenance.load() == {
            "rank1": self.artefact(at=99.0, files={self.PATH: proven}),
            name: replace(grafted, name=name),
        }

    def drop(self) -> dict[str, Any]:
        order = self.order()
        return {
            **common("drop"),
            "artefact": order["artefact"],
            "file": {"path": self.PATH, "size": 5, "sha256": "c" * 64},
        }

    def test_one_that_was_dropped_leaves_the_record(
        self, provenance: Provenance, folder: Path
    ) -> None:
        beside = self.artefact(OTHER, files={self.PATH: held(5)})
        provenance.record(self.artefact(files={self.PATH: held(5)}))
        provenance.record(beside)
        taken = take_over_all(folder, provenance, self.drop())
        assert taken.gone == {"rank1": (self.PATH,)}
        assert provenance.load() == {beside.name: beside}
        assert take_over_all(folder, provenance, self.drop()).gone == {}

    def test_one_that_is_still_there_stays(
        self, provenance: Provenance, folder: Path, disk: dict[str, Stat]
    ) -> None:
        one = self.artefact(files={self.PATH: held(5)})
        provenance.record(one)
        disk[f"{one.folder}/{self.PATH}"] = held(5).stat
        assert take_over_all(folder, provenance, self.drop()).gone == {}
        assert provenance.load() == {"rank1": one}


class TestPruning:
    def order(self) -> dict[str, Any]:
        return {
            **common("prune"),
            "manifest": Manifest("own/name", COMMIT, SHARDS).as_dict(),
            "files": [one.path for one in SHARDS[:2]],
            "artefact": "checkpoint",
            "repo": "own/name",
            "commit": COMMIT,
            "folders": [snapshot()],
            "work": str(WORK),
            "overlay": None,
        }

    def test_only_what_is_really_gone_leaves_the_record(
        self, provenance: Provenance, folder: Path, disk: dict[str, Stat]
    ) -> None:
        files = {one.path: held(one.size) for one in SHARDS}
        provenance.record(artefact(files=files))
        disk[f"{snapshot()}/{SHARDS[1].path}"] = held(2).stat
        taken = take_over_all(folder, provenance, self.order())
        assert taken.gone == {"checkpoint": (SHARDS[0].path,)} and not taken.files
        # The third one is not there either, but nobody ordered that.
        assert set(provenance.load()["checkpoint"].files) == {one.path for one in SHARDS[1:]}

    def test_a_folder_that_is_not_there_says_nothing(
        self, provenance: Provenance, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that is not mounted must not cost the record of all that lies on it."""
        provenance.record(artefact(1))
        monkeypatch.setattr(record_module, "_is_mounted", lambda place: False)
        assert take_over_all(folder, provenance, self.order()).gone == {}
        assert provenance.load() == {"checkpoint": artefact(1)}

    def test_another_job_lets_nothing_go(self, provenance: Provenance, folder: Path) -> None:
        provenance.record(artefact(1))
        for wanted in (None, order(), {**self.order(), "kind": "verify"}):
            assert take_over_all(folder, provenance, wanted).gone == {}
        assert provenance.load() == {"checkpoint": artefact(1)}


class TestTheLastStep:
    """`spark-pair weights record JOB`, which systemd calls."""

    @pytest.fixture
    def var(self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(paths, "VAR", tmp_path)
        return tmp_path

    def ran(self, folder: Path, result: JobResult) -> None:
        write_request(folder, Request("run-1", 1.0, "boot", ("/tool",)))
        write_result(folder, "run-1", result)

    def test_it_records(self, var: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        note(folder, 1, 2, 10)
        result = JobResult(True, "there", 0, 5.0)
        self.ran(folder, result)
        jsonfile.write(kept_order(folder.parent, "download"), order())
        assert cli.main(["weights", "record", "download"]) == 0
        told, skipped = capsys.readouterr().out.splitlines()
        assert told == "recorded: checkpoint, 2 files"
        assert skipped.startswith("spark-pair: 1 of the proofs")
        assert set(Provenance().load()["checkpoint"].files) == {"model-1", "model-2"}
        assert read_result(folder, "run-1") == result

    def test_it_says_what_left_the_record_and_what_is_not_enough(
        self, var: Path, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Provenance().record(artefact(files={one.path: held(one.size) for one in SHARDS}))
        jsonfile.write(kept_order(folder.parent, "download"), TestPruning().order())
        assert cli.main(["weights", "record", "download"]) == 0
        told = capsys.readouterr().out.splitlines()
        assert told == ["out of the record: checkpoint, 2 files that were deleted"]
        graft = TestAGraft()
        graft.note(folder, SHARDS[0])
        jsonfile.write(kept_order(folder.parent, "download"), graft.order())
        assert cli.main(["weights", "record", "download"]) == 0
        (told_,) = capsys.readouterr().out.splitlines()
        assert "1 of the files that count together" in told_

    def test_a_job_whose_work_cannot_be_recorded_is_not_done(self, var: Path, folder: Path) -> None:
        note(folder, 1)
        self.ran(folder, JobResult(True, "there", 0, 5.0, data={"fetched": 7}))
        (var / "provenance.json").write_text("{")
        assert cli.main(["weights", "record", "download"]) == 1
        result = read_result(folder, "run-1")
        assert result is not None and not result.ok and result.exit == 1
        assert result.message.startswith("there; what it has proven could not be recorded: ")
        assert "damaged" in result.message and result.data == {"fetched": 7}

    def test_only_a_job_is_named(self, var: Path) -> None:
        assert cli.main(["weights", "record", "../jobs"]) == 2


def file(path: str) -> File:
    return File(path, 3, "a" * 40, "b" * 64)


class TestKeptLists:
    REPO = "own/name"

    @pytest.fixture
    def kept(self, tmp_path: Path) -> Kept:
        return Kept(tmp_path / "manifests")

    @pytest.fixture
    def cache(self, tmp_path: Path) -> Cache:
        return Cache(tmp_path / "hub")

    def manifest(self, commit: str = COMMIT, *paths_: str) -> Manifest:
        return Manifest(self.REPO, commit, tuple(map(file, paths_ or ("model-1",))))

    def a_cache_s(self, *paths_: str) -> Manifest:
        return replace(self.manifest(COMMIT, *paths_), told_by="cache")

    def test_a_list_is_kept_once_and_found_by_the_beginning_of_its_commit(self, kept: Kept) -> None:
        assert of_hub(kept, self.REPO, COMMIT) is None
        assert kept.keep(self.manifest())
        assert not kept.keep(self.manifest(COMMIT, "other"))
        assert [path.name for path in kept.folder.iterdir()] == [f"own--name@{COMMIT}.json"]
        for revision in (COMMIT, COMMIT[:8]):
            assert of_hub(kept, self.REPO, revision) == self.manifest()
        assert of_hub(kept, self.REPO, OTHER[:8]) is None
        assert of_hub(kept, "own/nam", COMMIT) is None

    def test_a_kept_list_says_who_told_it(self, kept: Kept) -> None:
        path = kept.path(self.REPO, COMMIT)
        for manifest in (self.a_cache_s(), self.manifest()):
            assert kept.keep(manifest)
            data = json.loads(path.read_text())
            assert data["source"] == manifest.told_by
        del data["source"]  # as earlier versions wrote it
        path.write_text(json.dumps(data))
        (found,) = kept.find(self.REPO, COMMIT)
        assert found.told_by == "hub"

    def test_only_the_hub_s_word_is_for_good(self, kept: Kept, cache: Cache) -> None:
        assert kept.keep(self.a_cache_s("short"))
        assert of_hub(kept, self.REPO, COMMIT) is None
        assert of_caches(kept, cache, self.REPO, COMMIT) == self.a_cache_s("short")
        assert kept.keep(self.manifest())
        assert of_hub(kept, self.REPO, COMMIT) == self.manifest()
        assert not kept.keep(self.a_cache_s("short"))
        assert of_hub(kept, self.REPO, COMMIT) == self.manifest()

    def test_one_cache_s_list_gives_way_to_another(self, kept: Kept, cache: Cache) -> None:
        assert kept.keep(self.a_cache_s("short"))
        assert not kept.keep(self.a_cache_s("short"))
        cache.write_tree(self.manifest(COMMIT, "mended"))
        assert of_caches(kept, cache, self.REPO, COMMIT) == self.a_cache_s("mended")
        assert kept.keep(self.a_cache_s("mended"))

    def test_the_list_of_the_cache_is_told_apart(self, kept: Kept, cache: Cache) -> None:
        cache.write_tree(self.manifest())
        cache.write_tree(self.manifest(OTHER))
        found = of_caches(kept, cache, self.REPO, COMMIT[:8])
        assert found == self.manifest() and found.told_by == "cache"
        assert of_hub(kept, self.REPO, COMMIT[:8]) is None
        kept.keep(self.manifest(COMMIT, "ours"))
        assert of_hub(kept, self.REPO, COMMIT[:8]) == self.manifest(COMMIT, "ours")

    def test_no_two_repositories_share_a_name(self, tmp_path: Path) -> None:
        kept = Kept(tmp_path / "manifests")
        for repo in ("a/b--c", "a--b/c", "a-/b", "a/b"):
            assert kept.keep(Manifest(repo, COMMIT, (file("model-1"),)))
        assert len(list(kept.folder.iterdir())) == 4

    def test_a_beginning_of_two_commits_names_neither(self, kept: Kept, cache: Cache) -> None:
        twin = COMMIT[:-1] + "0"
        cache.write_tree(self.manifest())
        cache.write_tree(self.manifest(twin))
        assert of_caches(kept, cache, self.REPO, COMMIT[:8]) is None
        kept.keep(self.manifest(twin))
        assert of_hub(kept, self.REPO, COMMIT[:8]) == self.manifest(twin)
        kept.keep(self.manifest())
        assert of_hub(kept, self.REPO, COMMIT[:8]) is None
        assert of_hub(kept, self.REPO, COMMIT) == self.manifest()

    def test_two_that_the_hub_told_are_not_decided_by_a_cache(
        self, kept: Kept, cache: Cache
    ) -> None:
        cache.write_tree(self.manifest())
        for commit in (COMMIT[:-1] + "0", COMMIT[:-1] + "1"):
            kept.keep(self.manifest(commit))
        assert of_caches(kept, cache, self.REPO, COMMIT[:8]) is None

    @pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', '{"schema": 2, "files": []}'])
    def test_a_damaged_list_is_none(self, kept: Kept, cache: Cache, text: str) -> None:
        for folder, name in (
            (kept.folder, f"own--name@{COMMIT}.json"),
            (cache.folder(self.REPO) / "trees", f"{COMMIT}.json"),
        ):
            folder.mkdir(parents=True)
            (folder / name).write_text(text)
        assert of_hub(kept, self.REPO, COMMIT) is None
        assert of_caches(kept, cache, self.REPO, COMMIT) is None
        assert kept.keep(self.manifest())

    def test_lists_are_taken_from_any_order(self) -> None:
        one, two = self.manifest(), self.manifest(OTHER)
        assert list(ordered({"manifest": one.as_dict()})) == [one]
        (cached,) = ordered({"manifest": self.a_cache_s().as_dict()})
        assert cached.told_by == "cache"
        sources = [{"manifest": one.as_dict()}, {"manifest": two.as_dict()}, {}]
        assert list(ordered({"sources": sources})) == [one, two]
        lists = [two.as_dict()]
        assert list(ordered({"sources": sources[:1], "lists": lists})) == [one, two]
        assert not list(ordered({}))
        with pytest.raises(ManifestError):
            list(ordered({"manifest": {}}))
