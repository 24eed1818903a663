"""Files from the peer's cache into this one: each once, proven, in whatever state both are."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download
from two_caches import (
    BIG,
    COMMIT,
    DEEP,
    MIB,
    OTHER_COMMIT,
    REPO,
    SECOND,
    SMALL,
    Layout,
    TwoCaches,
    described,
    fill,
)

from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError
from spark_pair.weights import rsync_streams, transfer
from spark_pair.weights.cache import CacheError
from spark_pair.weights.parts import Part, PartBusyError
from spark_pair.weights.provenance import Origin

RSYNC = shutil.which("rsync") or "rsync"
Mutate = Callable[[], object]


@pytest.fixture(autouse=True)
def _small_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SMALL_BYTES", 1000)


@pytest.fixture
def pair(tmp_path: Path) -> TwoCaches:
    return TwoCaches(tmp_path)


@pytest.fixture
def before_rsync(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mutate], None]:
    """Something that happens between the offer and the first byte."""
    real = rsync_streams.run

    def arrange(mutate: Mutate) -> None:
        lock = threading.Lock()
        left = [mutate]

        def run(*words: Any) -> Any:
            with lock:
                while left:
                    left.pop()()
            return real(*words)

        monkeypatch.setattr(transfer, "run", run)

    return arrange


@pytest.fixture
def own_rsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A script in place of rsync, for both ends; "$REAL" is the real one."""

    def arrange(script: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "rsync"
        program.write_text(f"#!/bin/bash\nREAL={RSYNC}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return arrange


def bytes_below(folder: Path) -> int:
    """Of all regular files, each once."""
    found = [path.lstat() for path in folder.rglob("*")]
    return sum({one.st_ino: one.st_size for one in found if stat.S_ISREG(one.st_mode)}.values())


def failing(pair: TwoCaches, **changes: Any) -> JobFailedError:
    with pytest.raises(JobFailedError) as caught:
        pair.transfer(**changes)
    pair.nothing_wrong()
    return caught.value


class TestFromAnyLayout:
    @pytest.mark.parametrize("layout", ["classic", "shared", "plain"])
    def test_it_becomes_the_classic_one(self, pair: TwoCaches, layout: Layout) -> None:
        pair.fill(layout)
        words, data = pair.transfer()
        assert words == (
            "4 files of engram (5.2 MB) are there and proven, 5.2 MB came from spark-1 over 2 rails"
        )
        pair.right()
        assert data["payload_bytes"] == pair.total == sum(one["bytes"] for one in data["rails"])
        assert set(data["files"].values()) == {"sent"}
        # Of five megabytes; what an rsync costs weighs less the bigger the files are.
        assert pair.total < data["wire_bytes"] < 1.01 * pair.total
        record = pair.record()
        assert (record.origin, record.kind) == (Origin.TRANSFERRED, "repository")
        assert {held.how for held in record.files.values()} == {"written"}

    def test_the_second_run_sends_and_reads_nothing(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.transfer()
        pair.record()
        shutil.rmtree(pair.there)
        read = {path: pair.path(path).stat().st_atime_ns for path in pair.contents}
        words, data = pair.transfer()
        assert words.endswith("are there and proven, nothing came from spark-1")
        assert (data["payload_bytes"], data["wire_bytes"], pair.offers) == (0, 0, 1)
        assert set(data["files"].values()) == {"present"}
        assert read == {path: pair.path(path).stat().st_atime_ns for path in pair.contents}
        pair.right()

    @pytest.mark.fault(14)
    def test_the_hubs_client_accepts_it_offline(self, pair: TwoCaches) -> None:
        pair.fill("shared")
        pair.transfer()
        for revision in (COMMIT, f"pinned-{COMMIT[:8]}"):
            folder = snapshot_download(
                REPO, revision=revision, cache_dir=pair.cache.root, local_files_only=True
            )
            for path, data in pair.contents.items():
                assert (Path(folder) / path).read_bytes() == data

    def test_nothing_else_comes_along(self, pair: TwoCaches) -> None:
        pair.fill("shared")
        secret = pair.lender.root.parent / "token"
        secret.write_text("hf_secret")
        strangers = {
            "refs/main": b"x" * 40,
            f"blobs/{'e' * 64}.0a1b2c3d.incomplete": b"half",
            f".no_exist/{COMMIT}/x": b"",
        }
        for path, data in strangers.items():
            place = pair.lender.folder(REPO) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        other = described("old.safetensors", b"old" * 5000)
        fill(pair.lender, OTHER_COMMIT, other, b"old" * 5000, "classic")
        pair.transfer()
        found = {
            str(path.relative_to(pair.here)) for path in pair.here.rglob("*") if not path.is_dir()
        }
        repo = ".cache/huggingface/hub/models--own--engram"
        files = [pair.file(path) for path in pair.contents]
        assert found == {
            f"{repo}/refs/pinned-{COMMIT[:8]}",
            f"{repo}/trees/{COMMIT}.json",
            *(f"{repo}/blobs/{file.etag}" for file in files),
            *(f"{repo}/snapshots/{COMMIT}/{file.path}" for file in files),
        }

    def test_absolute_links_of_the_source_are_followed(self, pair: TwoCaches) -> None:
        pair.fill()
        for path in pair.contents:
            entry = pair.path(path, pair.lender)
            target = entry.resolve()
            entry.unlink()
            entry.symlink_to(target)
        pair.transfer()
        pair.right()

    def test_a_dangling_link_of_the_source_is_named_and_nothing_comes(
        self, pair: TwoCaches
    ) -> None:
        pair.fill("shared")
        pair.path(SECOND, pair.lender).resolve().unlink()
        error = failing(pair)
        assert f"spark-1 does not have the files as ordered: {SECOND} is a link to nothing" in str(
            error
        )
        assert not any(pair.cache.snapshot(REPO, COMMIT).rglob("*"))

    @pytest.mark.parametrize("layout", ["classic", "plain"])
    def test_odd_names_are_names(self, tmp_path: Path, layout: Layout) -> None:
        names = ["-rf.safetensors", "a b*[c]?.safetensors", "#x;y.json", "-/--help", "ü\\n.json"]
        pair = TwoCaches(tmp_path, dict.fromkeys(names, 2000))
        pair.fill(layout)
        pair.transfer()
        pair.right()

    def test_a_line_end_in_a_name_is_refused(self, tmp_path: Path) -> None:
        pair = TwoCaches(tmp_path, {"a\nb.json": 100})
        pair.fill("plain")
        assert "with a line end in it, no name works" in str(failing(pair))

    def test_files_of_one_content_come_once(self, pair: TwoCaches) -> None:
        twin = "twin.safetensors"
        pair.contents[twin] = pair.contents[BIG]
        pair.fill()
        _, data = pair.transfer()
        pair.right()
        assert data["payload_bytes"] == pair.total - len(pair.contents[twin])
        assert sorted(pair.record().files) == sorted(pair.contents)


class TestWhatIsThereAlready:
    def test_a_copy_that_followed_links_becomes_the_blob(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.fill("plain", cache=pair.cache)
        _, data = pair.transfer()
        assert (data["payload_bytes"], pair.offers) == (0, 0)
        pair.right()
        marks = bytes_below(pair.cache.folder(REPO)) - pair.total
        assert 0 < marks < 2000  # the list of files and the ref: nothing is there twice
        assert {held.how for held in pair.record().files.values()} == {"read"}

    def test_a_copy_that_is_wrong_is_replaced(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.fill("plain", cache=pair.cache)
        pair.path(BIG).write_bytes(b"x" * len(pair.contents[BIG]))
        _, data = pair.transfer()
        assert data["payload_bytes"] == len(pair.contents[BIG])
        pair.right()

    @pytest.mark.parametrize("layout", ["classic", "shared", "plain"])
    def test_same_size_and_time_do_not_make_it_right(self, pair: TwoCaches, layout: Layout) -> None:
        pair.fill()
        pair.fill(layout, cache=pair.cache)
        here, there = pair.path(BIG).resolve(), pair.path(BIG, pair.lender).resolve()
        data = bytearray(pair.contents[BIG])
        data[MIB] ^= 1
        here.chmod(0o644)
        here.write_bytes(data)
        os.utime(here, ns=(there.stat().st_atime_ns, there.stat().st_mtime_ns))
        _, told = pair.transfer()
        assert told["payload_bytes"] == len(data)
        for path, right in pair.contents.items():
            assert pair.path(path).read_bytes() == right

    def test_a_short_blob_under_the_final_name_is_replaced(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.fill(cache=pair.cache)
        blob = pair.path(BIG).resolve()
        blob.write_bytes(pair.contents[BIG][:MIB])
        _, data = pair.transfer()
        assert data["payload_bytes"] == len(pair.contents[BIG])
        pair.right()

    @pytest.mark.parametrize("target", ["../../nowhere", "/nonexistent/blob"])
    def test_a_link_to_nothing_is_replaced(self, pair: TwoCaches, target: str) -> None:
        pair.fill()
        entry = pair.path(BIG)
        entry.parent.mkdir(parents=True)
        entry.symlink_to(target)
        pair.transfer()
        pair.right()

    def test_what_another_revision_brought_is_not_sent_again(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.fill(cache=pair.cache, commit=OTHER_COMMIT, paths=[BIG])
        inode = pair.cache.blob(REPO, pair.file(BIG)).stat().st_ino
        _, data = pair.transfer()
        assert data["payload_bytes"] == pair.total - len(pair.contents[BIG])
        pair.right()
        assert pair.path(BIG).stat().st_ino == inode
        old = pair.cache.snapshot(REPO, OTHER_COMMIT) / BIG
        assert old.read_bytes() == pair.contents[BIG]

    def test_a_store_shared_by_repositories_is_used_as_it_is(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.fill("shared", cache=pair.cache)
        _, data = pair.transfer()
        assert data["payload_bytes"] == 0
        assert pair.path(BIG).resolve().parent.parent.name == "blobs"

    @pytest.mark.fault(24)
    def test_a_destination_of_another_account_is_told(
        self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair.fill()
        real = Path.mkdir

        def mkdir(path: Path, *words: Any, **more: Any) -> None:
            if path.is_relative_to(pair.here):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            real(path, *words, **more)

        monkeypatch.setattr(Path, "mkdir", mkdir)
        with pytest.raises(CacheError, match="give it to the account that downloads"):
            pair.transfer()

    def test_blobs_of_another_account_are_told(
        self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair.fill()
        real = Path.replace

        def replace(path: Path, target: Path) -> Path:
            if target.parent.name == "blobs":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
            return real(path, target)

        monkeypatch.setattr(Path, "replace", replace)
        assert "give it to the account that downloads" in str(failing(pair))


class TestTheSourceChanges:
    def test_one_that_is_short_before_is_named(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.path(BIG, pair.lender).resolve().write_bytes(b"short")
        error = failing(pair)
        assert f"{BIG} has 5 bytes instead of {3 * MIB}" in str(error)

    def test_one_that_is_wrong_is_sent_twice_and_named(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.path(BIG, pair.lender).resolve().write_bytes(b"x" * 3 * MIB)
        error = failing(pair)
        assert f"{BIG} came twice with content that is not the expected one" in str(error)
        assert not pair.path(BIG).exists() and pair.path(SECOND).exists()
        assert error.data["files"][BIG] == "failed" and error.data["files"][SECOND] == "sent"
        assert error.data["payload_bytes"] == pair.total + 3 * MIB
        assert not (pair.cache.folder(REPO) / "trees").exists()
        assert not (pair.cache.folder(REPO) / "refs").exists()

    def test_a_small_one_that_is_wrong_is_named(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.path(DEEP, pair.lender).resolve().write_bytes(b"x" * 300)
        error = failing(pair)
        assert f"{DEEP} came twice" in str(error)
        assert pair.path(SMALL).exists() and not pair.path(DEEP).exists()

    @pytest.mark.parametrize("name", [BIG, SMALL])
    def test_one_that_is_removed_meanwhile_is_named(
        self, pair: TwoCaches, before_rsync: Callable[[Mutate], None], name: str
    ) -> None:
        pair.fill()
        before_rsync(pair.path(name, pair.lender).resolve().unlink)
        error = failing(pair)
        assert name in str(error) and "No such file" in str(error)
        assert not pair.path(name).exists()

    def test_one_that_grows_meanwhile_is_named(
        self, pair: TwoCaches, before_rsync: Callable[[Mutate], None]
    ) -> None:
        pair.fill()

        def grow() -> None:
            with pair.path(BIG, pair.lender).resolve().open("ab") as stream:
                stream.write(b"more" * 1000)

        before_rsync(grow)
        error = failing(pair)
        assert f"{BIG} has" in str(error) and "somebody writes to it there" in str(error)
        assert not pair.path(BIG).exists()

    def test_one_that_shrinks_meanwhile_is_named(
        self, pair: TwoCaches, before_rsync: Callable[[Mutate], None]
    ) -> None:
        pair.fill()
        before_rsync(lambda: os.truncate(pair.path(BIG, pair.lender).resolve(), MIB))
        error = failing(pair)
        assert f"{BIG} has {MIB} bytes instead of {3 * MIB} on spark-1 now" in str(error)

    def test_a_link_in_place_of_it_is_not_followed(
        self, pair: TwoCaches, before_rsync: Callable[[Mutate], None], tmp_path: Path
    ) -> None:
        pair.fill()
        secret = tmp_path / "secret"
        secret.write_bytes(pair.contents[BIG])
        payload = pair.path(BIG, pair.lender).resolve()

        def swap() -> None:
            payload.unlink()
            payload.symlink_to(secret)

        before_rsync(swap)
        failing(pair)
        assert not pair.path(BIG).exists()


class TestTheDisk:
    def test_without_room_nothing_comes(
        self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair.fill()
        monkeypatch.setattr(transfer, "_free", lambda folder: 6_000_000)
        error = failing(pair, floor_bytes=1_000_000)
        assert "5.2 MB have to come and 6.0 MB are free" in str(error)
        assert "of which 1.0 MB stay free" in str(error)
        assert (error.data["wire_bytes"], pair.offers) == (0, 0)

    def test_what_is_there_of_a_file_is_credited(
        self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair.fill()
        part = pair.cache.make_staging(REPO) / f"{pair.file(BIG).etag}.part"
        part.write_bytes(pair.contents[BIG][: 2 * MIB])
        monkeypatch.setattr(transfer, "_free", lambda folder: 4_500_000)
        pair.transfer(floor_bytes=1_000_000)
        pair.right()

    def test_at_the_floor_it_ends(self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch) -> None:
        pair.fill()
        free = iter([10_000_000, 10_000_000])
        monkeypatch.setattr(transfer, "_free", lambda folder: next(free, 900_000))
        error = failing(pair, floor_bytes=1_000_000, limit_bytes_per_second=1_000_000)
        assert "has less than 1.0 MB free: make room and run it again" in str(error)
        monkeypatch.undo()
        pair.transfer()
        pair.right()

    def test_a_full_disk_is_told(self, pair: TwoCaches, own_rsync: Callable[[str], None]) -> None:
        own_rsync(
            'case "$*" in *--daemon*) exec $REAL "$@";; esac\n'
            "echo 'rsync: write failed on \"x\": No space left on device (28)' >&2; exit 11"
        )
        pair.fill()
        error = failing(pair)
        assert "is full: make room and run it again" in str(error)


class TestLines:
    def test_one_that_dies_leaves_the_rest_to_the_other(
        self, pair: TwoCaches, own_rsync: Callable[[str], None]
    ) -> None:
        first = pair.rails[0]["here"]
        own_rsync(
            f'case "$*" in *--address={first}*) timeout 0.3 $REAL "$@"; exit 30;; esac\n'
            'exec $REAL "$@"'
        )
        pair.fill()
        _, data = pair.transfer(limit_bytes_per_second=8_000_000)
        pair.right()
        assert data["rails"][1]["bytes"] >= data["rails"][0]["bytes"]
        # It went on where the dead line had stopped.
        assert data["payload_bytes"] <= pair.total + 2 * 300

    def test_one_that_brings_nothing_any_more_is_left(
        self, pair: TwoCaches, own_rsync: Callable[[str], None]
    ) -> None:
        """A cable that is pulled ends no connection."""
        first = pair.rails[0]["here"]
        own_rsync(f'case "$*" in *--address={first}*) exec sleep 60;; esac\nexec $REAL "$@"')
        pair.fill()
        _, data = pair.transfer()
        pair.right()
        assert data["rails"][0]["bytes"] == 0

    def test_one_that_is_not_there_is_left_alone(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.rails[0] = {"here": "192.0.2.1", "peer": "192.0.2.2"}
        _, data = pair.transfer()
        pair.right()
        assert data["rails"][0]["bytes"] == 0

    def test_without_any_nothing_comes(self, pair: TwoCaches) -> None:
        pair.fill()
        pair.rails[:] = [{"here": f"192.0.2.{n}", "peer": f"192.0.2.{n + 10}"} for n in (1, 2)]
        error = failing(pair)
        assert "no rail can be served: 192.0.2.11: Cannot assign requested address" in str(error)

    def test_two_dead_ones_end_it_in_words(
        self, pair: TwoCaches, own_rsync: Callable[[str], None]
    ) -> None:
        own_rsync(
            'case "$*" in *--daemon*) exec $REAL "$@";; esac\n'
            "echo 'rsync: failed to connect: No route to host (113)' >&2; exit 10"
        )
        pair.fill()
        error = failing(pair)
        here = pair.rails[0]["here"]
        assert f"No rail carries anything any more ({here} to " in str(error)
        assert "No route to host" in str(error) and "--tags preflight" in str(error)
        assert len(error.data["problems"]) == 1

    def test_without_rsync_it_says_so(
        self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        pair.fill()
        for name in ("setpriv", "bash"):
            (tmp_path / name).symlink_to(str(shutil.which(name)))
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "rsync is not installed there; run --tags tools" in str(failing(pair))

    def test_one_transfer_at_a_time(self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch) -> None:
        pair.fill()
        monkeypatch.setattr(transfer, "LOCK_SECONDS", 0.2)
        with (
            transfer._Lock(pair.cache.make_staging(REPO)),
            pytest.raises(PartBusyError, match="another transfer writes to"),
        ):
            pair.transfer()


class TestGoingOn:
    def test_a_part_is_finished(self, pair: TwoCaches) -> None:
        pair.fill()
        with Part(pair.cache.make_staging(REPO), pair.file(BIG)) as part:
            part.write(pair.contents[BIG][: 2 * MIB])
            part._write_state()
        _, data = pair.transfer()
        assert data["payload_bytes"] == pair.total - 2 * MIB
        pair.right()

    def test_only_a_part_is_added_to(
        self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, added = rsync_streams.run, []

        def run(argv: list[str], *words: Any) -> Any:
            added.append((Path(argv[-1]).name, "--append" in argv))
            return real(argv, *words)

        monkeypatch.setattr(transfer, "run", run)
        pair.fill()
        with Part(pair.cache.make_staging(REPO), pair.file(BIG)) as part:
            part.write(pair.contents[BIG][: 2 * MIB])
            part._write_state()
        pair.transfer()
        assert [name for name, more in added if more] == [part.path.name]
        assert len(added) > 1
        pair.right()

    def test_a_part_that_is_wrong_costs_one_more_try(self, pair: TwoCaches) -> None:
        pair.fill()
        with Part(pair.cache.make_staging(REPO), pair.file(BIG)) as part:
            part.write(b"x" * 2 * MIB)
            part._write_state()
        _, data = pair.transfer()
        assert data["payload_bytes"] == pair.total + MIB
        pair.right()

    def test_a_stop_keeps_what_there_is(self, pair: TwoCaches) -> None:
        pair.fill()
        reporter = pair.reporter()

        def stop_in_the_middle() -> None:
            deadline = time.monotonic() + 60
            while bytes_below(pair.here) < MIB and time.monotonic() < deadline:
                time.sleep(0.02)
            reporter.stop_asked.set()

        threading.Thread(target=stop_in_the_middle).start()
        with pytest.raises(JobStoppedError):
            pair.transfer(reporter, limit_bytes_per_second=2_000_000)
        pair.nothing_wrong()
        came = bytes_below(pair.here)
        assert came
        _, data = pair.transfer()
        assert data["payload_bytes"] < pair.total
        pair.right()


class TestRailsAreUsed:
    def test_both_carry_big_files(self, pair: TwoCaches) -> None:
        pair.fill()
        _, data = pair.transfer()
        assert all(one["bytes"] >= len(pair.contents[SECOND]) for one in data["rails"])


@pytest.mark.parametrize(("processors", "streams"), [(1, 2), (2, 2), (3, 3), (20, 3)])
def test_no_more_streams_than_processors_but_both_rails(
    pair: TwoCaches, monkeypatch: pytest.MonkeyPatch, processors: int, streams: int
) -> None:
    started = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, count: int, name: str) -> None:
            started.append((name, count))
            super().__init__(count, name)

    monkeypatch.setattr(transfer, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    pair.fill()
    pair.transfer(streams=3)
    assert dict(started)["transfer"] == streams


def test_progress_is_shown(pair: TwoCaches, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.fill()
    shown: list[tuple[int, int]] = []
    monkeypatch.setattr(
        Reporter, "show", lambda self, words, total, done, rate: shown.append((total, done))
    )
    pair.transfer(limit_bytes_per_second=8_000_000)
    assert {total for total, _ in shown} == {pair.total}
    dones = [done for _, done in shown]
    assert dones == sorted(dones) and dones[-1] == pair.total
    assert any(0 < done < pair.total for done in dones)
