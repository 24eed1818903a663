"""Putting an overlay into a checkpoint in place, and taking it out again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from graft_host import (
    COMMIT,
    CONFIG,
    INDEX,
    OVERLAY_COMMIT,
    README,
    REPO,
    SHARDS,
    SIDECAR,
    TOUCHED,
    GraftHost,
    digest,
    overlay_tensors,
    part,
)

from simulated_pair.standins.hub.hub_standin.content import Tensor
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError
from spark_pair.weights import graft_disk, graft_job, graft_state
from spark_pair.weights.cache import Cache
from spark_pair.weights.graft_plan import GraftError
from spark_pair.weights.graft_state import Phase
from spark_pair.weights.provenance import Origin, everyday
from spark_pair.weights.verify import Disk

NOBODY = 65534
LAYOUTS = ("classic", "shared")


@pytest.fixture(params=LAYOUTS)
def host(tmp_path: Path, request: pytest.FixtureRequest) -> GraftHost:
    return GraftHost(tmp_path, layout=request.param)


class TestGraft:
    def test_the_folder_holds_the_checkpoint_with_the_overlay(self, host: GraftHost) -> None:
        words, data = host.run()
        content = host.grafted_content()
        assert {path: content[path] for path in SHARDS} == host.expected()
        assert content[INDEX] == host.manifest.file(INDEX).sha256
        assert (host.folder / README).read_text() == "# Stand-in\n"
        assert "in 2 shards of the checkpoint: 6 tensors" in words
        assert data["overwritten"] == sum(tensor.size for tensor in overlay_tensors())

    def test_touched_shards_leave_the_cache_and_the_rest_stays(self, host: GraftHost) -> None:
        before = host.tree()
        host.run()
        for path in TOUCHED:
            assert not host.entry(path).is_symlink() and not host.blob(path).is_symlink()
            assert stat.S_ISREG((host.folder / path).lstat().st_mode)
            assert (host.folder / path).stat().st_mode & 0o777 == 0o644
        gone = set(before) - set(host.tree())
        assert all(any(host.manifest.file(path).etag in one or path in one for path in TOUCHED)
                   for one in gone)  # fmt: skip
        hub = {name: held for name, held in host.tree().items() if name.startswith("hub")}
        assert hub.items() <= before.items()

    def test_untouched_shards_are_links_that_hold_in_a_container(
        self, host: GraftHost, tmp_path: Path
    ) -> None:
        host.run()
        link = host.folder / SHARDS[2]
        assert link.is_symlink() and not link.readlink().is_absolute()
        # What a container sees that has the account's folder under another name.
        host.hf.rename(tmp_path / "hf")
        moved = tmp_path / "hf" / link.relative_to(host.hf)
        assert digest(moved) == host.manifest.file(SHARDS[2]).sha256

    def test_small_files_are_copies_that_anybody_may_change(self, host: GraftHost) -> None:
        host.run()
        for path in (INDEX, CONFIG, README):
            found = (host.folder / path).lstat()
            assert stat.S_ISREG(found.st_mode) and found.st_mode & 0o777 == 0o644

    def test_the_record_says_what_is_there_and_where_it_came_from(self, host: GraftHost) -> None:
        record = host.graft()
        assert (record.origin, record.folder) == (Origin.GRAFTED, str(host.folder))
        assert record.details == {
            "overlay": OVERLAY_COMMIT,
            "grafted": list(TOUCHED),
            "former": "downloaded",
        }
        assert set(record.files) == {file.path for file in host.manifest.files}
        assert {path: record.files[path].sha256 for path in SHARDS} == host.expected()
        assert not everyday(record, Disk(record.folder).stat)

    def test_the_state_says_that_it_is_done_and_where_the_shards_are(self, host: GraftHost) -> None:
        host.run()
        state = graft_state.read(host.derived)
        assert state is not None and state.phase is Phase.GRAFTED
        assert state.there(host.derived) == {
            path: host.manifest.file(path).size for path in TOUCHED
        }
        assert graft_state.undo_bytes(host.derived) > sum(one.size for one in overlay_tensors())
        assert graft_state.read_all(host.work) == {host.derived.name: state}
        assert not (host.derived / graft_state.STAGING).exists()

    def test_rank_files_in_the_folder_stay(self, host: GraftHost) -> None:
        kept = host.folder / "rank-cache/rank0of2-0123456789abcdef0123.bin"
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"rank")
        host.graft()
        assert kept.read_bytes() == b"rank"
        host.undo()
        assert kept.read_bytes() == b"rank"
        # And what a server reads beside it, if that is wanted again; never a shard of it.
        left = {
            str(one.relative_to(host.folder)) for one in host.folder.rglob("*") if one.is_file()
        }
        assert left == {INDEX, CONFIG, README, str(kept.relative_to(host.folder))}
        small = (INDEX, CONFIG, README)
        assert all(digest(host.folder / path) == digest_of(host, path) for path in small)

    def test_without_rank_files_nothing_stays(self, host: GraftHost) -> None:
        host.graft()
        host.undo()
        assert not host.folder.exists()

    def test_a_second_run_writes_and_reads_nothing(
        self, host: GraftHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.graft()
        before = host.tree()
        for name in ("write_at", "move"):
            monkeypatch.setattr(graft_disk, name, _must_not)
        words, data = host.run()
        assert "already, nothing was written" in words and not data["read"]
        assert host.tree() == before

    def test_without_a_record_it_is_proven_by_reading(self, host: GraftHost) -> None:
        host.run()
        (host.job / "verified.jsonl").unlink()
        host.provenance.forget("checkpoint")
        before = host.tree()
        assert host.graft().origin is Origin.GRAFTED
        assert host.tree() == before

    def test_bytes_written_are_twice_the_overlay(
        self, host: GraftHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = 0
        really = graft_disk.write_at

        def count(handle: int, data: bytes, offset: int) -> None:
            nonlocal written
            written += len(data)
            really(handle, data, offset)

        monkeypatch.setattr(graft_disk, "write_at", count)
        host.run()
        small = sum(host.manifest.file(path).size for path in (INDEX, CONFIG, README))
        heads = 2 * 400
        assert written <= 2 * sum(one.size for one in overlay_tensors()) + small + heads

    def test_several_threads_do_the_same(self, host: GraftHost) -> None:
        host.run(threads=3)
        content = host.grafted_content()
        assert {path: content[path] for path in SHARDS} == host.expected()


class TestUndo:
    def test_everything_is_as_it_was(self, host: GraftHost) -> None:
        before = {path: digest(host.entry(path)) for path in SHARDS}
        files = {name for name in host.tree() if "blobs/" not in name}
        host.graft()
        record = host.undo()
        assert {path: digest(host.entry(path)) for path in SHARDS} == before
        assert {name for name in host.tree() if "blobs/" not in name} == files
        assert not host.derived.exists()
        assert (record.origin, record.folder) == (
            Origin.DOWNLOADED,
            str(host.cache.snapshot(REPO, COMMIT)),
        )
        assert not record.details and not everyday(record, Disk(record.folder).stat)

    def test_on_again_gives_the_same_bytes(self, host: GraftHost) -> None:
        first = host.graft()
        host.undo()
        second = host.graft()
        assert {path: held.sha256 for path, held in first.files.items()} == {
            path: held.sha256 for path, held in second.files.items()
        }

    def test_a_second_run_writes_nothing(self, host: GraftHost) -> None:
        host.graft()
        record = host.undo()
        before = host.tree()
        words, _ = host.run("undo_graft")
        assert "is not in the checkpoint, nothing was written" in words
        assert host.tree() == before
        host.take_over("undo_graft")
        assert host.provenance.load()["checkpoint"].files == record.files

    def test_the_overlay_itself_need_not_be_there(self, host: GraftHost) -> None:
        host.graft()
        Path(
            os.path.realpath(host.cache.snapshot("own/overlay", OVERLAY_COMMIT) / SIDECAR)
        ).unlink()
        record = host.undo(overlay={"commit": OVERLAY_COMMIT}, former="adopted")
        assert record.origin is Origin.ADOPTED

    def test_what_was_damaged_meanwhile_is_not_taken_for_the_hubs(self, host: GraftHost) -> None:
        host.graft()
        _flip(host.folder / SHARDS[0], -1)
        with pytest.raises(JobFailedError, match="was damaged before: it was removed"):
            host.run("undo_graft")
        assert not host.entry(SHARDS[0]).exists()
        # The other one is put back by the next run, whose order leaves the lost one to a download.
        files = [file.path for file in host.manifest.files if file.path != SHARDS[0]]
        host.run("undo_graft", files=files)
        assert digest(host.entry(SHARDS[1])) == host.manifest.file(SHARDS[1]).sha256

    def test_without_what_undoes_it_nothing_is_touched(self, host: GraftHost) -> None:
        host.graft()
        (host.derived / "undo" / SHARDS[1]).unlink()
        before = host.tree()
        with pytest.raises(GraftError, match="which would undo that, is gone"):
            host.run("undo_graft")
        assert host.tree() == before


class TestRefused:
    """Nothing is touched then."""

    def refused(self, host: GraftHost, match: str, **more: Any) -> None:
        before = host.tree()
        with pytest.raises(GraftError, match=match):
            host.run(**more)
        assert host.tree() == before and not host.derived.exists()

    def test_another_number_of_tensors(self, host: GraftHost) -> None:
        self.refused(host, "has 6 tensors, not 104", tensors=104)
        host.run(tensors=0)

    def test_other_types_name_the_other_method(self, tmp_path: Path) -> None:
        others = [*part(1, "o", dtype="F16"), *part(2, "o", rows=30), *part(3, "o")]
        host = GraftHost(tmp_path, overlay=others)
        self.refused(
            host,
            "2 of the overlay's 6 tensors .* layers.1.*trellis is F16 .* instead of I16 .*"
            "ablit_graft_method: recipe",
        )

    def test_a_tensor_that_the_checkpoint_has_not(self, tmp_path: Path) -> None:
        overlay = [*overlay_tensors()[1:], Tensor("layers.9.x", "I16", (2,))]
        host = GraftHost(tmp_path, overlay=overlay)
        self.refused(host, "has no layers.9.x: this overlay was made for another checkpoint")

    def test_a_shard_that_is_not_there(self, host: GraftHost) -> None:
        host.payload(SHARDS[2]).unlink()
        self.refused(host, f"{SHARDS[2]} of the checkpoint cannot be found: run --tags download")

    @pytest.mark.parametrize("path", [SHARDS[0], SHARDS[2], CONFIG])
    def test_a_file_that_is_not_the_hubs(self, host: GraftHost, path: str) -> None:
        _flip(host.payload(path), -1)
        self.refused(host, "is not what the Hub has: nothing was grafted")

    def test_an_overlay_that_is_not_the_hubs(self, host: GraftHost) -> None:
        _flip(host.cache.snapshot("own/overlay", OVERLAY_COMMIT) / SIDECAR, -1)
        self.refused(host, "is not what the Hub has")

    def test_a_full_disk(self, host: GraftHost) -> None:
        before = host.tree()
        with pytest.raises(JobFailedError, match="make room"):
            host.run(floor_bytes=1 << 60)
        assert host.tree() == before

    @pytest.mark.parametrize("path", [SHARDS[0], SHARDS[2], CONFIG])
    def test_what_somebody_else_put_there(self, host: GraftHost, path: str) -> None:
        other = host.folder / path
        other.parent.mkdir(parents=True)
        other.write_bytes(b"mine")
        before = host.tree()
        with pytest.raises(GraftError, match=r"is there and .*: move it away"):
            host.run()
        assert host.tree() == before

    def test_another_run(self, host: GraftHost) -> None:
        with (
            graft_job._alone(host.derived, True),
            pytest.raises(GraftError, match="another process"),
        ):
            host.run()


class TestOthersBytes:
    def test_a_blob_with_a_second_name_is_copied(self, host: GraftHost, tmp_path: Path) -> None:
        other = tmp_path / "mine"
        os.link(host.payload(SHARDS[0]), other)
        wanted = digest(other)
        _, data = host.run()
        assert digest(other) == wanted and data["copied"] == other.stat().st_size
        assert digest(host.entry(SHARDS[0])) == wanted
        assert digest(host.folder / SHARDS[0]) == host.expected()[SHARDS[0]]

    def test_a_copied_one_is_put_back_from_wherever_a_kill_came(
        self, host: GraftHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.link(host.payload(SHARDS[0]), tmp_path / "mine")
        died, at = True, 0
        while died:
            assert at < 200
            at += 1
            host.graft()
            died = _in_steps(host, monkeypatch, "undo_graft", at)
            host.undo()
            assert digest(host.entry(SHARDS[0])) == host.manifest.file(SHARDS[0]).sha256

    def test_without_its_note_it_is_undone_by_what_was_kept(self, host: GraftHost) -> None:
        host.graft()
        (host.derived / "graft.json").unlink()
        record = host.undo()
        assert record.origin is Origin.DOWNLOADED
        for path in SHARDS:
            assert digest(host.entry(path)) == host.manifest.file(path).sha256

    def test_a_commit_that_has_it_too_keeps_it(self, host: GraftHost) -> None:
        file = host.manifest.file(SHARDS[0])
        other = host.cache.link(REPO, "9" * 40, file)
        host.graft()
        assert digest(other) == file.sha256
        host.undo()
        assert digest(other) == digest(host.entry(SHARDS[0])) == file.sha256

    def test_a_payload_that_another_repository_uses_stays(self, tmp_path: Path) -> None:
        host = GraftHost(tmp_path, layout="shared")
        payload = host.payload(SHARDS[0])
        blob = host.cache.root / "models--own--other/blobs/x"
        blob.parent.mkdir(parents=True)
        blob.symlink_to(os.path.relpath(payload, blob.parent))
        with payload.with_name(f"{payload.name}.refs").open("a") as stream:
            stream.write(f"{blob.relative_to(host.cache.root)}\n")
        wanted = digest(payload)
        host.run()
        assert digest(payload) == wanted
        assert payload.stat().st_mode & 0o777 == 0o444
        # One that nobody else uses leaves the store, with its list.
        assert not list((host.cache.root / "blobs").glob(f"*/{host.manifest.file(SHARDS[1]).etag}*"
                                                         ".refs"))  # fmt: skip

    def test_a_copy_in_the_snapshot_leaves_it_too(self, host: GraftHost) -> None:
        """As tools that follow links leave it: a file where a link should be."""
        entry = host.entry(SHARDS[0])
        data = entry.read_bytes()
        host.payload(SHARDS[0]).unlink()
        host.blob(SHARDS[0]).unlink(missing_ok=True)
        entry.unlink()
        entry.write_bytes(data)
        record = host.graft()
        assert record.files[SHARDS[0]].sha256 == host.expected()[SHARDS[0]]
        assert not entry.exists()
        host.undo()
        assert entry.is_symlink() and entry.read_bytes() == data

    def test_on_another_file_system_it_is_copied_and_leaves_the_first(
        self, host: GraftHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _two_devices(host, monkeypatch)
        _, data = host.run()
        assert data["copied"] == sum(host.manifest.file(path).size for path in TOUCHED)
        assert not any(host.entry(path).exists() for path in TOUCHED)
        host.take_over()
        host.undo()
        assert all(digest(host.entry(path)) == host.manifest.file(path).sha256 for path in TOUCHED)


class _Killed(BaseException):
    """The process ends here."""


_STEPS = ("make", "move", "remove", "link", "write_at", "remove_empty")


def _dying(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], bool]:
    """Let the process end in the middle of its step number `at`; whether it got that far."""
    count = 0

    def wrap(name: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def step(*words: Any) -> Any:
            nonlocal count
            count += 1
            if count == at and name == "write_at":
                handle, data, offset = words
                really(handle, data[: len(data) // 2], offset)
            if count == at and name == "move":
                words[1].parent.mkdir(parents=True, exist_ok=True)
                words[0].rename(words[1])
            if count >= at:
                raise _Killed
            return really(*words)

        return step

    for name in _STEPS:
        monkeypatch.setattr(graft_disk, name, wrap(name, getattr(graft_disk, name)))
    for name in ("place", "link"):
        monkeypatch.setattr(Cache, name, wrap(name, getattr(Cache, name)))
    return lambda: count >= at


def _in_steps(host: GraftHost, monkeypatch: pytest.MonkeyPatch, kind: str, at: int) -> bool:
    with monkeypatch.context() as patched:
        died = _dying(patched, at)
        with contextlib.suppress(_Killed):
            host.run(kind)
        return died()


class TestKilled:
    """At every step, in the middle of what is written."""

    @pytest.fixture(autouse=True)
    def fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a process has written survives its end without being flushed."""
        monkeypatch.setattr(os, "fsync", lambda _: None)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_graft_that_was_killed_is_finished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
    ) -> None:
        at = 0
        while True:
            at += 1
            host = GraftHost(tmp_path / str(at), layout=layout)
            died = _in_steps(host, monkeypatch, "graft", at)
            _check_nothing_half_done(host)
            record = host.graft()
            assert {path: record.files[path].sha256 for path in SHARDS} == host.expected()
            assert not everyday(record, Disk(record.folder).stat)
            assert not (host.derived / graft_state.STAGING).exists()
            if not died:
                break
        assert at > 20

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_graft_that_was_killed_can_be_undone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
    ) -> None:
        at, died = 0, True
        while died:
            at += 1
            host = GraftHost(tmp_path / str(at), layout=layout)
            died = _in_steps(host, monkeypatch, "graft", at)
            record = host.undo()
            assert not everyday(record, Disk(record.folder).stat), at
            assert all(
                digest(host.entry(file.path)) == digest_of(host, file.path)
                for file in host.manifest.files
            )
            assert not host.derived.exists()

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_an_undo_that_was_killed_is_finished_or_taken_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
    ) -> None:
        at, died = 0, True
        while died:
            at += 1
            for then in ("graft", "undo_graft"):
                host = GraftHost(tmp_path / f"{at}-{then}", layout=layout)
                host.graft()
                died = _in_steps(host, monkeypatch, "undo_graft", at)
                _check_nothing_half_done(host)
                if then == "graft":
                    record = host.graft()
                    assert {path: record.files[path].sha256 for path in SHARDS} == host.expected()
                else:
                    record = host.undo()
                    assert all(
                        digest(host.entry(path)) == host.manifest.file(path).sha256
                        for path in SHARDS
                    )
                    assert not host.derived.exists()
                assert not everyday(record, Disk(record.folder).stat), (at, then)

    def test_a_real_kill(self, tmp_path: Path) -> None:
        """Of a process of its own, at any moment; what it left is finished here."""
        shards = {
            SHARDS[0]: [*part(1, "stock", rows=200_000), Tensor("a", "I16", (4_000_000,))],
            SHARDS[1]: [*part(2, "stock", rows=200_000), Tensor("b", "I16", (4_000_000,))],
            SHARDS[2]: [*part(3, "stock", rows=200_000), Tensor("c", "I16", (4_000_000,))],
        }
        overlay = [one for layer in (1, 2, 3) for one in part(layer, "overlay", rows=200_000)]
        host = GraftHost(tmp_path, stock=shards, overlay=overlay)
        wanted = {path: host.manifest.file(path).sha256 for path in SHARDS}
        grafted = None
        for wait in (0.0, 0.01, 0.02, 0.04, 0.07):
            _killed_after(host, wait)
            record = host.graft()
            hashes = {path: record.files[path].sha256 for path in SHARDS}
            assert grafted in (None, hashes)
            grafted = hashes
            host.undo()
            assert {path: digest(host.entry(path)) for path in SHARDS} == wanted


_PROGRAM = """
import json, sys
from pathlib import Path
from spark_pair.jobs.inside import Reporter
from spark_pair.weights.graft_job import run
from spark_pair.weights.graft_order import GraftOrder
from spark_pair.weights.provenance import Provenance
from spark_pair.weights.record import Proofs
order = GraftOrder.from_dict(json.load(sys.stdin))
print("begin", flush=True)
run(order, Reporter(), Proofs(None), Provenance(Path(sys.argv[1])), threads=2)
"""


def _killed_after(host: GraftHost, wait: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(host.provenance.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(host.order()))
        process.stdin.close()
        assert process.stdout.readline() == "begin\n"
        end = time.monotonic() + 30
        while graft_state.read(host.derived) is None and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)


class TestStopped:
    def test_a_stop_is_heard_and_the_next_run_finishes(self, host: GraftHost) -> None:
        host.reporter.stop_asked.set()
        with pytest.raises(JobStoppedError):
            host.run()
        host.reporter.stop_asked.clear()
        assert {path: host.graft().files[path].sha256 for path in SHARDS} == host.expected()


class TestDamaged:
    def test_a_shard_that_rots_is_found_by_the_reading(
        self, host: GraftHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record vouches for it, and its last byte is another one all the same."""
        really = graft_disk.move

        def move(path: Path, target: Path) -> None:
            if target.name == SHARDS[1] and target.parent.name == graft_state.STAGING:
                path.chmod(0o644)
                _flip(path, -1)
            really(path, target)

        monkeypatch.setattr(graft_disk, "move", move)
        with pytest.raises(JobFailedError, match="also where the overlay is not"):
            host.run()
        state = graft_state.read(host.derived)
        assert state is not None and state.unfinished
        assert SHARDS[1] not in state.there(host.derived)
        assert not (host.folder / SHARDS[1]).exists()

    def test_bytes_that_do_not_arrive_are_found(
        self, host: GraftHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        really = graft_disk.write_at

        def write(handle: int, data: bytes, offset: int) -> None:
            name = str(Path(f"/proc/self/fd/{handle}").readlink())
            if not (name.endswith(SHARDS[0]) and "/.grafting/" in name):
                really(handle, data, offset)

        with monkeypatch.context() as patched:
            patched.setattr(graft_disk, "write_at", write)
            with pytest.raises(JobFailedError, match="cannot be read back as written"):
                host.run()
        assert {path: host.graft().files[path].sha256 for path in SHARDS} == host.expected()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another account")
class TestPermissions:
    @pytest.fixture
    def host(self) -> Iterator[GraftHost]:
        """Of an ordinary account; pytest's own folders let nobody else in."""
        with tempfile.TemporaryDirectory(prefix="spark-pair-") as name:
            root = Path(name)
            root.chmod(0o755)
            host = GraftHost(root)
            for place, _, names in os.walk(root):
                for one in (".", *names):
                    os.chown(Path(place, one), NOBODY, NOBODY, follow_symlinks=False)
            yield host

    def test_an_ordinary_account_grafts_read_only_blobs(self, host: GraftHost) -> None:
        assert host.payload(SHARDS[0]).stat().st_mode & 0o777 == 0o444
        _as_nobody(host.run)
        assert {path: host.grafted_content()[path] for path in SHARDS} == host.expected()
        _as_nobody(lambda: host.run("undo_graft"))
        assert digest(host.entry(SHARDS[0])) == host.manifest.file(SHARDS[0]).sha256

    def test_one_that_a_kill_left_read_only_is_gone_on_with(
        self, host: GraftHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for at in range(1, 16):
            _as_nobody(partial(_in_steps, host, monkeypatch, "graft", at))
        staged = host.derived / ".grafting" / SHARDS[0]
        if staged.exists():
            staged.chmod(0o444)
        _as_nobody(host.run)
        assert {path: host.grafted_content()[path] for path in SHARDS} == host.expected()

    def test_a_shard_of_another_account_is_refused(self, host: GraftHost) -> None:
        os.chown(host.payload(SHARDS[1]), 0, 0)
        before = host.tree()
        with pytest.raises(AssertionError, match=f"another account .*sudo chown {NOBODY}"):
            _as_nobody(host.run)
        assert host.tree() == before


def _as_nobody(work: Callable[[], object]) -> None:
    """Do it as an ordinary account; AssertionError with the words of what it raised."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
        except BaseException as error:
            os.write(sink, repr(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as stream:
        words = stream.read().decode()
    os.waitpid(child, 0)
    assert not words, words


def _check_nothing_half_done(host: GraftHost) -> None:
    """Under its final name a shard carries the whole overlay; in the cache it has its own hash."""
    expected = host.expected()
    for path in SHARDS:
        final, blob = host.folder / path, host.blob(path)
        if final.is_file() and not final.is_symlink():
            assert digest(final) == expected[path]
        if blob.exists():
            assert digest(blob) == host.manifest.file(path).sha256


def digest_of(host: GraftHost, path: str) -> str:
    """sha256 of a file of the checkpoint, by a cache of its own."""
    file = host.manifest.file(path)
    return file.sha256 or digest(Cache(host.cache.root).blob(REPO, file))


def _two_devices(host: GraftHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work folder seems to lie on a disk of its own; renaming across is refused."""

    def device(path: Path) -> int:
        return 1 if path.is_relative_to(host.work) else 2

    really = graft_disk.move

    def move(path: Path, target: Path) -> None:
        assert device(path) == device(target)
        really(path, target)

    monkeypatch.setattr(graft_disk, "device", device)
    monkeypatch.setattr(graft_disk, "move", move)


def _must_not(*_: Any) -> None:
    raise AssertionError("nothing is to be done")


def _flip(path: Path, at: int) -> None:
    """Change one byte, as a failing disk does."""
    before, mode = path.stat(), path.stat().st_mode
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    with path.open("r+b") as stream:
        stream.write(data)
    path.chmod(mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
