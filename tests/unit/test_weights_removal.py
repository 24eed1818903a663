"""Deleting shards and rank files: the bytes really go, and only those that were meant."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_pair.errors import DescriptionError
from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError
from spark_pair.weights import graft_state, layout, shared_store
from spark_pair.weights.cache import Cache
from spark_pair.weights.graft_state import GraftState, Phase
from spark_pair.weights.manifest import File, Manifest
from spark_pair.weights.provenance import Artefact, Held, Origin, Provenance, stat_of
from spark_pair.weights.record import Proofs
from spark_pair.weights.removal import Removal
from spark_pair.weights.removal_job import drop, prune
from spark_pair.weights.remove_order import DropOrder, PruneOrder

REPO = "own/model"
COMMIT, OVERLAY, OTHER = "45ee5d0f" + "a" * 32, "0bdc2036" + "b" * 32, "c" * 40
SHARDS = tuple(f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3))
KEPT = "model-00004-of-00004.safetensors"
SMALL = "config.json"
RANK_NAME = f"rank0of2-{'1' * 20}.bin"


def content(path: str) -> bytes:
    return path.encode() * 3000


def described(path: str) -> File:
    data = content(path)
    return File(path, len(data), "0" * 40, hashlib.sha256(data).hexdigest())


MANIFEST = Manifest(REPO, COMMIT, tuple(map(described, (*SHARDS, KEPT, SMALL))))


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def link(path: Path, target: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
    return path


class Host:
    """A head with a checkpoint in its cache and both rank files cut."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.cache = Cache.of_account(self.home)
        self.work = self.home / ".cache/huggingface/tensorfold-dsv41"
        self.provenance = Provenance(root / "var/provenance.json")
        self.reporter = Reporter()
        self.proofs = Proofs(None)
        self.snapshot = self.cache.snapshot(REPO, COMMIT)
        self.blobs = self.cache.folder(REPO) / "blobs"
        self.ranks = layout.rank_files(self.work, COMMIT, None)

    def classic(self, *paths: str, commit: str = COMMIT) -> None:
        for path in paths:
            blob = self.blobs / described(path).etag
            if not blob.exists():
                put(blob, content(path))
            link(self.cache.snapshot(REPO, commit) / path, blob)

    def shared(self, *paths: str) -> list[Path]:
        """As the hub's client lays them out; the payloads."""
        store = self.cache.root / "blobs"
        put(store / ".huggingface-shared-blobs", b"1\n")
        payloads = []
        for path in paths:
            name = hashlib.sha256(b"xet" + path.encode()).hexdigest()
            payload = put(store / name[:2] / name, content(path))
            payload.chmod(0o444)
            blob = link(self.blobs / described(path).etag, payload)
            link(self.snapshot / path, blob)
            self.refer(payload, blob)
            payloads.append(payload)
        return payloads

    def refer(self, payload: Path, blob: Path) -> None:
        refs = payload.with_name(payload.name + ".refs")
        before = refs.read_text() if refs.exists() else ""
        refs.write_text(f"{before}{blob.relative_to(self.cache.root)}\n")

    def record_rank(self, overlay: str | None = None, rank: int = 0) -> Path:
        folder = layout.rank_files(self.work, COMMIT, overlay)
        path = put(folder / RANK_NAME.replace("rank0", f"rank{rank}"), b"rank" * 100)
        self.record(layout.rank_name(rank, overlay), "rank_file", folder, [path.name], overlay)
        return path

    def record(
        self, name: str, kind: str, folder: Path, paths: list[str], overlay: str | None = None
    ) -> None:
        files = {}
        for path in paths:
            found = stat_of(folder / path)
            assert found is not None
            digest = hashlib.sha256((folder / path).read_bytes()).hexdigest()
            files[path] = Held(found.size, found.mtime_ns, found.inode, 1.0, "read", digest)
        origin = Origin.CUT if kind == "rank_file" else Origin.DOWNLOADED
        details = {"overlay": overlay}
        self.provenance.record(
            Artefact(name, kind, REPO, COMMIT, origin, 1.0, str(folder), files, details)
        )

    def order(self, overlay: str | None = None, **changes: Any) -> dict[str, Any]:
        folders = [str(self.snapshot)]
        if overlay:
            folders.insert(0, str(layout.grafted(self.work, COMMIT, overlay)))
        return {
            "schema": 1,
            "kind": "prune",
            "home": str(self.home),
            "floor_bytes": 0,
            "manifest": MANIFEST.as_dict(),
            "files": list(SHARDS),
            "artefact": "checkpoint",
            "repo": REPO,
            "commit": COMMIT,
            "folders": folders,
            "work": str(self.work),
            "overlay": overlay,
            **changes,
        }

    def prune(self, overlay: str | None = None) -> tuple[str, Any]:
        order = PruneOrder.from_dict(self.order(overlay))
        return prune(order, self.reporter, self.proofs, self.provenance)

    def left(self) -> set[str]:
        """Every name below the home, but for folders."""
        return {
            str(path.relative_to(self.home))
            for path in self.home.rglob("*")
            if path.is_symlink() or path.is_file()
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.record_rank()
    return made


TOTAL = sum(described(path).size for path in SHARDS)


class TestPrune:
    def test_blobs_and_links_go_and_the_rest_stays(self, host: Host) -> None:
        host.classic(*SHARDS, KEPT, SMALL)
        before = host.left()
        words, data = host.prune()
        gone = before - host.left()
        blobs = {described(path).etag for path in SHARDS}
        assert {Path(name).name for name in gone} == {*SHARDS, *blobs}
        assert data["deleted_bytes"] == TOTAL and data["shards"] == 3
        assert words.startswith("deleted 3 shards, ") and "stay" not in words
        assert (host.snapshot / KEPT).read_bytes() == content(KEPT)
        assert (host.snapshot / SMALL).exists()

    def test_again_there_is_nothing_to_do(self, host: Host) -> None:
        host.classic(*SHARDS, KEPT)
        host.prune()
        words, data = host.prune()
        assert (words, data["deleted_bytes"]) == ("the shards are gone already", 0)

    def test_a_payload_of_the_shared_store_is_freed(self, host: Host) -> None:
        payloads = host.shared(*SHARDS)
        _, data = host.prune()
        assert not any(path.exists() for path in payloads)
        assert not any(path.with_name(path.name + ".refs").exists() for path in payloads)
        assert data["deleted_bytes"] == TOTAL and not data["kept"]
        assert not list(host.snapshot.iterdir()) and not list(host.blobs.iterdir())

    def test_a_payload_that_another_repository_uses_stays(self, host: Host) -> None:
        payloads = host.shared(*SHARDS)
        other = link(host.cache.folder("else/where") / "blobs" / ("0" * 64), payloads[0])
        host.refer(payloads[0], other)
        words, data = host.prune()
        assert [path.exists() for path in payloads] == [True, False, False]
        assert data["kept"] == {str(payloads[0]): "is used by models--else--where, too"}
        assert data["deleted_bytes"] == TOTAL - described(SHARDS[0]).size
        assert "stay on the disk" in words and "models--else--where" in words
        assert other.read_bytes() == content(SHARDS[0])
        assert not (host.snapshot / SHARDS[0]).is_symlink()

    def test_a_user_that_is_no_longer_there_is_none(self, host: Host) -> None:
        payloads = host.shared(*SHARDS)
        host.refer(payloads[0], host.cache.folder("else/where") / "blobs" / "gone")
        host.prune()
        assert not payloads[0].exists()

    @pytest.mark.parametrize("spoilt", ["missing", "unreadable"])
    def test_without_the_list_of_its_users_a_payload_stays(self, host: Host, spoilt: str) -> None:
        payload = host.shared(*SHARDS)[0]
        refs = payload.with_name(payload.name + ".refs")
        refs.unlink() if spoilt == "missing" else refs.write_bytes(b"\xff\xfe")
        _, data = host.prune()
        assert payload.exists() and "without a list" in data["kept"][str(payload)]

    def test_a_payload_that_somebody_holds_is_not_taken(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        payload = host.shared(*SHARDS)[0]
        held = shared_store.held
        monkeypatch.setattr(shared_store, "held", lambda path: held(path, 0.1))
        with held(payload), pytest.raises(JobFailedError, match="held by another process"):
            host.prune()
        assert payload.exists()
        host.prune()
        assert not payload.exists()

    def test_a_blob_of_another_commit_stays(self, host: Host) -> None:
        host.classic(*SHARDS)
        host.classic(SHARDS[1], commit=OTHER)
        _, data = host.prune()
        assert (host.cache.snapshot(REPO, OTHER) / SHARDS[1]).read_bytes() == content(SHARDS[1])
        assert list(data["kept"].values()) == [f"is used by the commit {OTHER[:8]} of it, too"]
        assert not list(host.snapshot.iterdir())

    def test_a_shared_payload_of_another_commit_stays(self, host: Host) -> None:
        host.shared(*SHARDS)
        entry = host.cache.snapshot(REPO, OTHER) / SHARDS[1]
        link(entry, host.blobs / described(SHARDS[1]).etag)
        host.prune()
        assert entry.read_bytes() == content(SHARDS[1])

    def test_a_blob_that_another_derived_checkpoint_uses_stays(self, host: Host) -> None:
        host.classic(*SHARDS)
        entry = layout.grafted(host.work, COMMIT, OVERLAY) / SHARDS[2]
        link(entry, host.snapshot / SHARDS[2])
        entry.unlink()
        link(entry, host.blobs / described(SHARDS[2]).etag)
        _, data = host.prune()
        assert entry.read_bytes() == content(SHARDS[2])
        assert len(data["kept"]) == 1

    def test_a_plain_file_that_another_commit_uses_stays(self, host: Host) -> None:
        put(host.snapshot / SHARDS[0], content(SHARDS[0]))
        entry = link(host.cache.snapshot(REPO, OTHER) / SHARDS[0], host.snapshot / SHARDS[0])
        _, data = host.prune()
        assert entry.read_bytes() == content(SHARDS[0])
        assert list(data["kept"]) == [str(host.snapshot / SHARDS[0])]

    def test_what_a_download_of_a_shard_has_left_goes_too(self, host: Host) -> None:
        host.classic(*SHARDS)
        part = put(host.cache.staging(REPO) / f"{described(SHARDS[0]).etag}.part", b"half")
        other = put(host.cache.staging(REPO) / f"{'e' * 64}.part", b"half")
        host.prune()
        assert not part.exists() and other.exists()

    def test_copies_in_the_snapshot_go_too(self, host: Host) -> None:
        for path in SHARDS:
            put(host.blobs / described(path).etag, content(path))
            put(host.snapshot / path, content(path))
        _, data = host.prune()
        assert data["deleted_bytes"] == 2 * TOTAL
        assert not list(host.blobs.iterdir())

    def test_what_a_link_outside_leads_to_stays(self, host: Host, tmp_path: Path) -> None:
        elsewhere = put(tmp_path / "disk" / "shard", content(SHARDS[0]))
        link(host.snapshot / SHARDS[0], elsewhere)
        words, data = host.prune()
        assert elsewhere.exists() and not (host.snapshot / SHARDS[0]).is_symlink()
        assert list(data["kept"]) == [str(elsewhere)] and "lies outside" in words

    def test_hard_links_keep_the_bytes_and_it_says_so(self, host: Host, tmp_path: Path) -> None:
        host.classic(*SHARDS)
        os.link(host.blobs / described(SHARDS[0]).etag, tmp_path / "other")
        words, data = host.prune()
        assert len(data["linked"]) == 1 and "hard links" in words
        assert (tmp_path / "other").exists()

    def test_a_cache_that_is_a_link_to_another_disk(self, host: Host, tmp_path: Path) -> None:
        host.classic(*SHARDS, KEPT)
        hub = host.cache.root
        hub.rename(tmp_path / "large")
        hub.symlink_to(tmp_path / "large")
        _, data = host.prune()
        assert data["deleted_bytes"] == TOTAL and not data["kept"]
        assert (host.snapshot / KEPT).exists()

    def test_links_that_lead_nowhere_are_swept(self, host: Host) -> None:
        host.classic(*SHARDS)
        for path in SHARDS:
            (host.blobs / described(path).etag).unlink()
        _, data = host.prune()
        assert data["deleted_bytes"] == 0 and not list(host.snapshot.iterdir())


class TestPruneOfGrafted:
    @pytest.fixture
    def grafted(self, host: Host) -> Path:
        """Two shards grafted in place, the rest links into the cache."""
        host.record_rank(OVERLAY)
        host.classic(*SHARDS[2:], KEPT, SMALL)
        folder = layout.grafted(host.work, COMMIT, OVERLAY)
        for path in SHARDS[:2]:
            put(folder / path, b"X" + content(path)[1:])
            put(folder.parent / graft_state.UNDO / path, b"undo")
        for path in (SHARDS[2], KEPT):
            link(folder / path, host.blobs / described(path).etag)
        put(folder / SMALL, content(SMALL))
        shards = {
            path: graft_state.Shard(described(path).size, str(described(path).sha256))
            for path in SHARDS[:2]
        }
        state = GraftState(REPO, COMMIT, OVERLAY, "in_place", Phase.GRAFTED, shards)
        graft_state.write(folder.parent, state)
        return folder

    def test_shards_and_what_undoes_them_go(self, host: Host, grafted: Path) -> None:
        _, data = host.prune(OVERLAY)
        assert data["deleted_bytes"] == TOTAL
        assert {one.name for one in grafted.iterdir()} == {KEPT, SMALL, "rank-cache"}
        assert (grafted / KEPT).read_bytes() == content(KEPT)
        assert {one.name for one in grafted.parent.iterdir()} == {"checkpoint"}
        assert (grafted / "rank-cache" / RANK_NAME).exists()

    def test_what_undoes_a_shard_that_stays_stays(self, host: Host, grafted: Path) -> None:
        order = PruneOrder.from_dict(host.order(OVERLAY, files=[SHARDS[0], SHARDS[2]]))
        prune(order, host.reporter, host.proofs, host.provenance)
        assert graft_state.read(grafted.parent) is not None
        assert [one.name for one in (grafted.parent / "undo").iterdir()] == [SHARDS[1]]

    def test_a_recorded_shard_of_another_size_is_known(self, host: Host, grafted: Path) -> None:
        put(grafted / SHARDS[0], b"rewritten with another header")
        paths = [*SHARDS, KEPT, SMALL]
        host.record("checkpoint", "repository", grafted, paths, OVERLAY)
        host.prune(OVERLAY)
        assert not (grafted / SHARDS[0]).exists()

    def test_the_stock_rank_file_says_nothing_about_it(self, host: Host, grafted: Path) -> None:
        host.provenance.forget(layout.rank_name(0, OVERLAY))
        with pytest.raises(JobFailedError, match="no file of rank 0 of this checkpoint"):
            host.prune(OVERLAY)
        assert (grafted / SHARDS[0]).exists()


class TestPruneIsRefused:
    def test_without_a_recorded_rank_file(self, host: Host) -> None:
        host.provenance.forget("rank0")
        host.classic(*SHARDS)
        before = host.left()
        with pytest.raises(
            JobFailedError, match="no file of rank 0 of this checkpoint is recorded"
        ):
            host.prune()
        assert host.left() == before

    def test_with_rank_1_alone(self, host: Host) -> None:
        """It is cut first, and rank 0 may still be lacking."""
        first = host.provenance.load()["rank0"]
        host.provenance.forget("rank0")
        host.provenance.record(replace(first, name="rank1"))
        host.classic(*SHARDS)
        before = host.left()
        with pytest.raises(JobFailedError, match="no file of rank 0"):
            host.prune()
        assert host.left() == before

    def test_when_the_rank_file_was_touched_since(self, host: Host) -> None:
        host.classic(*SHARDS)
        put(host.ranks / RANK_NAME, b"rank" * 99)
        before = host.left()
        with pytest.raises(JobFailedError, match="the shards may be needed to cut it again"):
            host.prune()
        assert host.left() == before

    def test_when_one_of_the_files_is_not_what_was_ordered(self, host: Host) -> None:
        host.classic(*SHARDS)
        put(host.blobs / described(SHARDS[2]).etag, b"short")
        before = host.left()
        with pytest.raises(JobFailedError, match="has 5 bytes instead of"):
            host.prune()
        assert host.left() == before

    def test_when_the_account_may_not_delete(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.classic(*SHARDS)

        def refused(path: Path, missing_ok: bool = False) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "unlink", refused)
        with pytest.raises(JobFailedError, match="belongs to another account"):
            host.prune()


@pytest.mark.parametrize("layout_name", ["classic", "shared"])
def test_killed_anywhere_the_next_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout_name: str
) -> None:
    """Every unlink is the last one of some run, and never is a byte left without a name."""
    unlink = Path.unlink

    class Killed(BaseException):
        pass

    def kill_after(count: int) -> Iterator[None]:
        left = [count]

        def dying(path: Path, missing_ok: bool = False) -> None:
            there = os.path.lexists(path)
            if there and left[0] == 0:
                raise Killed
            left[0] -= there
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", dying)
        yield
        monkeypatch.setattr(Path, "unlink", unlink)

    for count in range(100):
        host = Host(tmp_path / str(count))
        host.record_rank()
        getattr(host, layout_name)(*SHARDS)
        killing = kill_after(count)
        next(killing)
        try:
            host.prune()
            died = False
        except Killed:
            died = True
        next(killing, None)
        names = [path.name for path in host.snapshot.iterdir()]
        bytes_left = [path for path in host.cache.root.rglob("*") if path.is_file()]
        payloads = [one for one in bytes_left if one.stat().st_size > 1000]
        assert len({path.resolve() for path in payloads}) <= len(names)
        host.prune()
        assert not list(host.snapshot.iterdir()) and not list(host.blobs.iterdir())
        assert not [one for one in host.cache.root.rglob("*") if one.stat().st_size > 10_000
                    and one.is_file()]  # fmt: skip
        if not died:
            assert count > 5
            return
    raise AssertionError("it never came to its end")


def test_a_stop_keeps_the_rest(host: Host) -> None:
    host.classic(*SHARDS)
    removed = []
    remove = Removal.remove

    def stopping(self: Removal, target: Any) -> None:
        removed.append(target.file.path)
        remove(self, target)
        host.reporter.stop_asked.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Removal, "remove", stopping)
        with pytest.raises(JobStoppedError):
            host.prune()
    assert len(removed) == 1 and (host.snapshot / SHARDS[1]).exists()
    host.reporter.stop_asked = threading.Event()
    _, data = host.prune()
    assert data["shards"] == 2


class TestPruneOrder:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"kind": "drop"}, "is of kind 'drop', not prune"),
            ({"schema": 2}, "run --tags tools"),
            ({"files": []}, "has no files"),
            ({"files": [SMALL]}, "is no shard and stays"),
            ({"files": ["other.safetensors"]}, "other.safetensors"),
            ({"commit": OTHER}, "of another commit"),
            ({"folders": ["/home"]}, "holds no shards"),
            ({"folders": ["relative"]}, "no absolute path"),
            ({"folders": ["/work/../etc"]}, "no absolute path"),
            ({"overlay": "0bdc2036"}, "no whole commit"),
            ({"work": ""}, "no absolute path"),
            ({"more": 1}, "unknown keys: more"),
        ],
    )
    def test_is_refused(self, host: Host, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(DescriptionError, match=words):
            PruneOrder.from_dict(host.order(**changes))

    def test_what_leaves_the_record(self, host: Host) -> None:
        order = PruneOrder.from_dict(host.order())
        assert order.gone == {"checkpoint": frozenset(SHARDS)} and not order.whole

    def test_nothing_but_a_mapping(self) -> None:
        with pytest.raises(DescriptionError, match="is not a mapping"):
            PruneOrder.from_dict([])


class TestDrop:
    @pytest.fixture
    def rank(self, host: Host) -> Path:
        return host.record_rank(OVERLAY, rank=1)

    def order(self, path: Path, **changes: Any) -> dict[str, Any]:
        data = b"rank" * 100
        return {
            "schema": 1,
            "kind": "drop",
            "home": "/home/somebody",
            "floor_bytes": 0,
            "artefact": {
                "name": layout.rank_name(1, OVERLAY),
                "repo": REPO,
                "commit": COMMIT,
                "folder": str(path.parent),
                "details": {"overlay": OVERLAY},
            },
            "file": {
                "path": path.name,
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            },
            **changes,
        }

    def drop(self, host: Host, order: dict[str, Any]) -> tuple[str, Any]:
        return drop(DropOrder.from_dict(order), host.reporter, host.proofs, host.provenance)

    def test_the_recorded_file_goes_and_no_other(self, host: Host, rank: Path) -> None:
        words, data = self.drop(host, self.order(rank))
        assert not rank.exists() and (host.ranks / RANK_NAME).exists()
        assert data == {"deleted_bytes": 400}
        assert words == "deleted rank1-ablit-0bdc2036 (45ee5d0f with the overlay 0bdc2036), 400 B"

    def test_again_there_is_nothing_to_do(self, host: Host, rank: Path) -> None:
        self.drop(host, self.order(rank))
        host.provenance.forget(layout.rank_name(1, OVERLAY))
        words, _ = self.drop(host, self.order(rank))
        assert words.endswith("is gone already")

    def test_not_when_no_record_speaks_of_it(self, host: Host, rank: Path) -> None:
        host.provenance.forget(layout.rank_name(1, OVERLAY))
        with pytest.raises(JobFailedError, match="no record speaks of it"):
            self.drop(host, self.order(rank))
        assert rank.exists()

    def test_not_when_the_other_host_has_another(self, host: Host, rank: Path) -> None:
        order = self.order(rank, file={"path": rank.name, "size": 400, "sha256": "0" * 64})
        with pytest.raises(JobFailedError, match="with another content than the other host has"):
            self.drop(host, order)
        assert rank.exists()

    def test_not_when_it_was_touched_since(self, host: Host, rank: Path) -> None:
        os.utime(rank, ns=(1, 1))
        with pytest.raises(JobFailedError, match="was written to since it was verified"):
            self.drop(host, self.order(rank))
        assert rank.exists()

    def test_not_through_a_link(self, host: Host, rank: Path, tmp_path: Path) -> None:
        rank.rename(tmp_path / "elsewhere.bin")
        rank.symlink_to(tmp_path / "elsewhere.bin")
        with pytest.raises(JobFailedError, match="it is a link"):
            self.drop(host, self.order(rank))
        assert (tmp_path / "elsewhere.bin").exists()

    @pytest.mark.parametrize(
        ("file", "words"),
        [
            ({"path": "../x", "size": 1, "sha256": "0" * 64}, "no name of a file"),
            ({"path": "config.json", "size": 1, "sha256": "0" * 64}, "no name of a rank file"),
            ({"path": RANK_NAME, "size": 1, "sha256": "zz"}, "'zz' for sha256"),
            ({"path": RANK_NAME, "size": True, "sha256": "0" * 64}, "True for size"),
            ({"path": RANK_NAME}, "not described by"),
        ],
    )
    def test_an_order_is_refused(self, rank: Path, file: dict[str, Any], words: str) -> None:
        with pytest.raises(DescriptionError, match=words):
            DropOrder.from_dict(self.order(rank, file=file))

    def test_what_leaves_the_record(self, rank: Path) -> None:
        order = DropOrder.from_dict(self.order(rank))
        assert order.gone == {"rank1-ablit-0bdc2036": frozenset({rank.name})}
