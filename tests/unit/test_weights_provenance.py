"""What a host holds: recorded without loss, checked every day, proven by reading."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from spark_pair import jsonfile
from spark_pair.weights import provenance as provenance_module
from spark_pair.weights.provenance import (
    Artefact,
    Held,
    Origin,
    Provenance,
    ProvenanceError,
    Stat,
    Trouble,
    everyday,
)
from spark_pair.weights.verify import BLOCK_BYTES, Disk, measure, verify

COMMIT = "45ee5d0f" * 5
BIG, SMALL = "shards/model 1.safetensors", "config.json"
CONTENT = {BIG: b"weights" * 1000, SMALL: b"{}\n"}


@dataclass(frozen=True)
class Described:
    size: int
    git_sha1: str
    sha256: str | None


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324


def held(data: bytes, stat: Stat, *, small: bool = False) -> Held:
    return Held(
        size=stat.size,
        mtime_ns=stat.mtime_ns,
        inode=stat.inode,
        verified_at=100.0,
        how="written",
        sha256="" if small else hashlib.sha256(data).hexdigest(),
        git_sha1=git_sha1(data) if small else "",
    )


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    folder = tmp_path / "snapshot"
    (folder / "shards").mkdir(parents=True)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path, data in CONTENT.items():
        blob = blobs / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (folder / path).symlink_to(os.path.relpath(blob, (folder / path).parent))
    return Disk(folder)


def stat_of(disk: Disk, path: str) -> Stat:
    found = disk.stat(path)
    assert found is not None
    return found


@pytest.fixture
def record(disk: Disk) -> Artefact:
    return artefact(
        folder=str(disk.folder),
        files={
            BIG: held(CONTENT[BIG], stat_of(disk, BIG)),
            SMALL: held(CONTENT[SMALL], stat_of(disk, SMALL), small=True),
        },
    )


def artefact(name: str = "checkpoint", **more: Any) -> Artefact:
    known: dict[str, Any] = {
        "kind": "repository",
        "repo": "owner/weights",
        "commit": COMMIT,
        "origin": Origin.DOWNLOADED,
        "at": 100.0,
        "folder": "/srv/weights",
        "files": {"a": held(b"a", Stat(1, 2, 3))},
    }
    return Artefact(name, **{**known, **more})


def real(disk: Disk, path: str = BIG) -> Path:
    return (disk.folder / path).resolve()


def change_quietly(path: Path) -> None:
    """One byte, same size, same inode, same time: what rot, or rsync --inplace, leaves."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as stream:
        stream.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_ino == before.st_ino


class TestEveryday:
    def told(self, record: Artefact, disk: Disk) -> list[tuple[str, Trouble]]:
        return [(one.path, one.trouble) for one in everyday(record, disk.stat)]

    def test_as_recorded(self, record: Artefact, disk: Disk) -> None:
        assert everyday(record, disk.stat) == []

    def test_nothing_is_read(self, record: Artefact, disk: Disk) -> None:
        times = {path: (disk.folder / path).stat().st_atime_ns for path in CONTENT}
        everyday(record, disk.stat)
        assert times == {path: (disk.folder / path).stat().st_atime_ns for path in CONTENT}

    def test_a_blob_that_is_away(self, record: Artefact, disk: Disk) -> None:
        real(disk).unlink()  # the link stays, and leads nowhere
        assert self.told(record, disk) == [(BIG, Trouble.MISSING)]

    def test_another_size(self, record: Artefact, disk: Disk) -> None:
        with real(disk).open("ab") as stream:
            stream.write(b"x")
        assert self.told(record, disk) == [(BIG, Trouble.SIZE)]
        assert str(everyday(record, disk.stat)[0]) == (
            "checkpoint: shards/model 1.safetensors has 7001 bytes instead of 7000"
        )

    def test_written_to_with_the_same_size(self, record: Artefact, disk: Disk) -> None:
        before = real(disk).stat()
        with real(disk).open("r+b") as stream:
            stream.write(b"X")
        os.utime(real(disk), ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert self.told(record, disk) == [(BIG, Trouble.CHANGED)]

    def test_replaced_with_the_same_size_and_time(self, record: Artefact, disk: Disk) -> None:
        before = real(disk).stat()
        beside = real(disk).with_name("new")
        beside.write_bytes(b"X" * before.st_size)
        os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
        beside.replace(real(disk))
        assert self.told(record, disk) == [(BIG, Trouble.CHANGED)]

    def test_what_is_wanted_against_what_is_recorded(self, record: Artefact, disk: Disk) -> None:
        big, small = CONTENT[BIG], CONTENT[SMALL]
        right = {
            BIG: Described(len(big), "0" * 40, hashlib.sha256(big).hexdigest()),
            SMALL: Described(len(small), git_sha1(small), None),
        }
        assert everyday(record, disk.stat, right) == []
        # The blob id of a big file is that of its pointer, and says nothing about the content.
        wrong = [
            {BIG: replace(right[BIG], sha256="0" * 64, git_sha1=git_sha1(big))},
            {BIG: replace(right[BIG], size=1)},
            {SMALL: replace(right[SMALL], git_sha1="0" * 40)},
            {"other": right[BIG]},
        ]
        for change in wrong:
            found = everyday(record, disk.stat, {**right, **change})
            assert [(one.path, one.trouble) for one in found] == [
                (next(iter(change)), Trouble.RECORD)
            ]


class TestVerify:
    @pytest.mark.parametrize("threads", [1, 2, 4])
    def test_everything_right(self, record: Artefact, disk: Disk, threads: int) -> None:
        read: list[int] = []
        done = verify(record, disk, threads=threads, progress=read.append, clock=lambda: 200.0)
        assert done.ok and done.read_bytes == sum(read) == record.total
        assert {one.verified_at for one in done.after.files.values()} == {200.0}

    @pytest.mark.fault(32)
    @pytest.mark.parametrize("path", [BIG, SMALL])
    def test_a_quiet_change_is_found_and_remembered(
        self, record: Artefact, disk: Disk, path: str
    ) -> None:
        change_quietly(real(disk, path))
        assert everyday(record, disk.stat) == []
        done = verify(record, disk, clock=lambda: 200.0)
        assert [(one.path, one.trouble) for one in done.differences] == [(path, Trouble.CONTENT)]
        assert "right size and the wrong content" in str(done.differences[0])
        assert not done.ok and done.after.files[path].failed_at == 200.0
        found = everyday(done.after, disk.stat)
        assert [(one.path, one.trouble) for one in found] == [(path, Trouble.CONTENT)]

    @pytest.mark.fault(32)
    def test_a_file_that_was_written_to_and_is_wrong_is_called_wrong(
        self, record: Artefact, disk: Disk
    ) -> None:
        real(disk).write_bytes(bytes(len(CONTENT[BIG])))
        after = verify(record, disk).after
        assert after.files[BIG].stat == stat_of(disk, BIG)
        for _ in range(2):  # as it is, and touched once more
            (found,) = everyday(after, disk.stat)
            assert (found.path, found.trouble) == (BIG, Trouble.CONTENT)
            os.utime(real(disk), ns=(1, 1))

    def test_a_repaired_file_is_right_again(self, record: Artefact, disk: Disk) -> None:
        change_quietly(real(disk))
        marked = verify(record, disk).after
        change_quietly(real(disk))  # the same bit once more
        done = verify(marked, disk)
        assert done.ok and everyday(done.after, disk.stat) == []

    def test_a_touched_file_is_right_again(self, record: Artefact, disk: Disk) -> None:
        os.utime(real(disk), ns=(1, 1))
        done = verify(record, disk)
        assert done.ok and everyday(done.after, disk.stat) == []

    def test_a_file_of_another_size_is_not_read(self, record: Artefact, disk: Disk) -> None:
        with real(disk).open("ab") as stream:
            stream.write(b"x")
        done = verify(record, disk)
        assert [one.trouble for one in done.differences] == [Trouble.SIZE]
        assert done.read_bytes == len(CONTENT[SMALL])
        assert done.after.files[BIG] == record.files[BIG]

    def test_missing_and_unreadable(self, record: Artefact, disk: Disk) -> None:
        class Sick(Disk):
            def blocks(self, path: str) -> Iterator[memoryview]:
                raise OSError(5, "Input/output error")

        real(disk).unlink()
        done = verify(record, Sick(disk.folder))
        assert [(one.path, one.trouble) for one in done.differences] == [
            (SMALL, Trouble.UNREADABLE),
            (BIG, Trouble.MISSING),
        ]
        assert "Input/output error" in str(done.differences[0])
        assert done.after == record

    def test_a_file_that_changes_meanwhile(self, record: Artefact, disk: Disk) -> None:
        class Busy(Disk):
            def blocks(self, path: str) -> Iterator[memoryview]:
                yield from super().blocks(path)
                os.utime(real(self, path), ns=(1, 1))

        done = verify(record, Busy(disk.folder))
        assert {one.trouble for one in done.differences} == {Trouble.UNSTEADY}
        assert done.after == record

    def test_stopped_in_between(self, disk: Disk, record: Artefact) -> None:
        seen: list[int] = []

        def stop() -> bool:
            return len(seen) >= 1

        done = verify(record, disk, threads=1, progress=seen.append, stop=stop)
        assert done.unread == (SMALL, BIG) and not done.ok and not done.differences
        assert done.after == record

    def test_several_at_once(self, record: Artefact, disk: Disk) -> None:
        # Each waits for the other: one after the other would never end.
        meeting = threading.Barrier(2, timeout=30)

        class Meeting(Disk):
            def blocks(self, path: str) -> Iterator[memoryview]:
                meeting.wait()
                return super().blocks(path)

        assert verify(record, Meeting(disk.folder), threads=2).ok

    @pytest.mark.parametrize("threads", [0, 5])
    def test_a_number_of_threads_that_makes_no_sense(
        self, record: Artefact, disk: Disk, threads: int
    ) -> None:
        with pytest.raises(ValueError, match="threads"):
            verify(record, disk, threads=threads)

    def test_more_than_a_block(self, tmp_path: Path) -> None:
        data = os.urandom(1024) * (BLOCK_BYTES // 1024) + b"end"
        (tmp_path / "big").write_bytes(data)
        done = measure(["big"], Disk(tmp_path), how="read")
        assert done.files["big"].sha256 == hashlib.sha256(data).hexdigest()


class TestMeasure:
    def test_what_was_never_recorded(self, disk: Disk, record: Artefact) -> None:
        done = measure([BIG, SMALL, "none"], disk, how="adopted", clock=lambda: 200.0)
        big = held(CONTENT[BIG], stat_of(disk, BIG))
        assert done.files[BIG] == replace(big, verified_at=200.0, how="adopted")
        assert done.files[SMALL].sha256 == hashlib.sha256(CONTENT[SMALL]).hexdigest()
        assert done.troubles == (("none", Trouble.MISSING, "is not there"),)
        assert everyday(replace(record, files=done.files), disk.stat) == []


class TestRecord:
    @pytest.fixture
    def kept(self, tmp_path: Path) -> Provenance:
        return Provenance(tmp_path / "provenance.json")

    def test_none_yet(self, kept: Provenance) -> None:
        assert kept.load() == {}
        assert not kept.forget("checkpoint")
        assert not kept.path.exists()

    def test_there_and_back(self, kept: Provenance, record: Artefact) -> None:
        full = replace(record, details={"overlay": COMMIT})
        kept.record(full)
        assert kept.load() == {"checkpoint": full}
        data = json.loads(kept.path.read_text())
        assert data["schema"] == 1
        assert set(data["artefacts"]["checkpoint"]["files"][SMALL]) == {
            "size", "mtime_ns", "inode", "verified_at", "how", "git_sha1",
        }  # fmt: skip

    def test_the_same_again_writes_nothing(self, kept: Provenance) -> None:
        kept.record(artefact())
        before = kept.path.stat().st_ino
        kept.record(artefact())
        assert kept.path.stat().st_ino == before

    def test_forget(self, kept: Provenance) -> None:
        kept.record(artefact("checkpoint"))
        kept.record(artefact("engram"))
        assert kept.forget("checkpoint")
        assert set(kept.load()) == {"engram"}

    @settings(max_examples=30, deadline=None)
    @given(
        changes=some.lists(some.tuples(some.sampled_from("abc"), some.integers(0, 5)), max_size=8)
    )
    def test_one_never_costs_another(
        self, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]]
    ) -> None:
        kept = Provenance(tmp_path_factory.mktemp("var") / "provenance.json")
        expected: dict[str, Artefact] = {}
        for name, at in changes:
            if at == 0:
                assert kept.forget(name) is (expected.pop(name, None) is not None)
            else:
                expected[name] = artefact(name, at=float(at))
                kept.record(expected[name])
            assert kept.load() == expected

    def test_an_entry_of_a_newer_release_survives(self, kept: Provenance) -> None:
        newer = {"kind": "kit", "moons": 2}
        jsonfile.write(kept.path, {"schema": 1, "artefacts": {"kit": newer}})
        kept.record(artefact())
        assert json.loads(kept.path.read_text())["artefacts"]["kit"] == newer
        with pytest.raises(ProvenanceError, match="recorded about kit cannot be understood"):
            kept.load()

    def test_many_writers(self, kept: Provenance) -> None:
        names = [f"artefact{number}" for number in range(8)]
        threads = [threading.Thread(target=kept.record, args=(artefact(n),)) for n in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(kept.load()) == names

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{"schema": 2, "artefacts": {}}', "schema 2"),
            ('{"schema": 1, "artef', "damaged"),
            ('{"schema": 1}', "damaged"),
            ('{"artefacts": {}}', "damaged"),
            ("[]", "damaged"),
            ("", "damaged"),
        ],
    )
    def test_what_cannot_be_read_is_refused_and_left(
        self, kept: Provenance, text: str, words: str
    ) -> None:
        kept.path.write_text(text)
        calls: list[Callable[[], object]] = [
            kept.load,
            lambda: kept.record(artefact()),
            lambda: kept.forget("checkpoint"),
        ]
        for call in calls:
            with pytest.raises(ProvenanceError, match=words):
                call()
        assert kept.path.read_text() == text

    def test_a_full_disk_costs_nothing(
        self, kept: Provenance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept.record(artefact())

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space"):
                kept.record(artefact("engram"))
        assert set(kept.load()) == {"checkpoint"}
        kept.record(artefact("engram"))
        assert set(kept.load()) == {"checkpoint", "engram"}

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"name": ""}, "no name"),
            ({"commit": "45ee5d0f"}, "not the full one"),
            ({"folder": "weights"}, "no absolute path"),
            ({"files": {}}, "no files"),
            ({"files": {"a": replace(held(b"a", Stat(1, 2, 3)), sha256="")}}, "without the hash"),
        ],
    )
    def test_what_proves_nothing_is_not_recorded(
        self, kept: Provenance, change: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ProvenanceError, match=words):
            kept.record(replace(artefact(), **change))
        assert not kept.path.exists()


class TestUpdate:
    @pytest.fixture
    def kept(self, tmp_path: Path, record: Artefact) -> Provenance:
        kept = Provenance(tmp_path / "provenance.json")
        kept.record(record)
        return kept

    def test_a_verification_is_noted(self, kept: Provenance, record: Artefact, disk: Disk) -> None:
        change_quietly(real(disk))
        done = verify(record, disk, clock=lambda: 200.0)
        assert kept.update(done.before, done.after) == ()
        assert kept.load()["checkpoint"] == done.after

    def test_a_lock_that_is_held_is_not_waited_for_without_end(
        self, kept: Provenance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept.record(artefact())
        lock = kept.path.with_name(f".{kept.path.name}.lock")
        assert lock.stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(provenance_module, "LOCK_SECONDS", 0.1)
        with lock.open() as held_by_another:
            fcntl.flock(held_by_another, fcntl.LOCK_SH)
            with pytest.raises(ProvenanceError, match="held by another process"):
                kept.record(artefact("engram"))
        assert set(kept.load()) == {"checkpoint"}

    def test_a_file_of_the_hub_among_grafted_shards_ends_the_graft(self, kept: Provenance) -> None:
        one, two, small = (held(data, Stat(1, 2, 3)) for data in (b"a", b"b", b"c"))
        files = {"1.safetensors": one, "2.safetensors": two, "config.json": small}
        kept.record(artefact(origin=Origin.GRAFTED, details={"overlay": "c" * 40}, files=files))
        fetched = replace(one, how="written")
        kept.merge(artefact(files={"1.safetensors": fetched}))
        after = kept.load()["checkpoint"]
        assert (after.origin, after.details) == (Origin.DOWNLOADED, {})
        assert after.files == {"1.safetensors": fetched, "config.json": small}

    def test_an_older_proof_does_not_undo_what_a_verification_found(
        self, kept: Provenance, record: Artefact, disk: Disk
    ) -> None:
        kept.record(record)
        change_quietly(real(disk))
        done = verify(record, disk)
        kept.update(done.before, done.after)
        kept.merge(record)
        assert kept.load()["checkpoint"].files == done.after.files
        proven = replace(record.files[BIG], verified_at=done.after.files[BIG].told_at + 1)
        kept.merge(replace(record, files={BIG: proven}))
        assert kept.load()["checkpoint"].files[BIG] == proven

    def test_what_was_recorded_meanwhile_stays(
        self, kept: Provenance, record: Artefact, disk: Disk
    ) -> None:
        change_quietly(real(disk))
        done = verify(record, disk, clock=lambda: 200.0)
        fetched = replace(record.files[BIG], inode=7, verified_at=150.0)
        kept.record(replace(record, files={**record.files, BIG: fetched}))
        assert kept.update(done.before, done.after) == (BIG,)
        now = kept.load()["checkpoint"].files
        assert now[BIG] == fetched and now[SMALL].verified_at == 200.0

    def test_what_was_forgotten_meanwhile_does_not_come_back(
        self, kept: Provenance, record: Artefact, disk: Disk
    ) -> None:
        done = verify(record, disk)
        kept.forget("checkpoint")
        assert kept.update(done.before, done.after) == (SMALL, BIG)
        assert kept.load() == {}

    def test_a_file_that_was_pruned_meanwhile_does_not_come_back(
        self, kept: Provenance, record: Artefact, disk: Disk
    ) -> None:
        done = verify(record, disk)
        kept.record(replace(record, files={SMALL: record.files[SMALL]}))
        assert kept.update(done.before, done.after) == (BIG,)
        assert set(kept.load()["checkpoint"].files) == {SMALL}
