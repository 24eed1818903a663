"""What a host holds, as a look finds it and the plan understands it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_pair.system import Result
from spark_pair.weights import graft_state
from spark_pair.weights import seen as reading
from spark_pair.weights.cache import Cache
from spark_pair.weights.graft_state import GraftState, Phase, Shard
from spark_pair.weights.holdings import RankFile, Wanted
from spark_pair.weights.kept import Kept
from spark_pair.weights.look import Seen, look
from spark_pair.weights.manifest import File, Manifest, Selector, Source
from spark_pair.weights.provenance import Artefact, Held, Origin, Provenance, stat_of
from spark_pair.weights.rank_file import MAGIC
from spark_pair.weights.verify import Disk, verify

REPO, COMMIT, OVERLAY = "own/checkpoint", "45ee5d0f" * 5, "0bdc2036" * 5
CONTENT = {
    "config.json": b"{}\n",
    "model-1.safetensors": b"first" * 999,
    "sub/model-2.safetensors": b"second" * 999,
}


def described(path: str, content: bytes) -> File:
    sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324
    large = path.endswith(".safetensors")
    return File(path, len(content), sha1, hashlib.sha256(content).hexdigest() if large else None)


MANIFEST = Manifest(REPO, COMMIT, tuple(described(*item) for item in CONTENT.items()))
WANTED = Wanted.of(Source("checkpoint", REPO, COMMIT[:8], (Selector("*"),), ("head",)), MANIFEST)


def write_rank_file(folder: Path, rank: int) -> Path:
    """A whole rank file, named as the engine's tool names it."""
    index = json.dumps([["weight", "uint8", [64], 0, 64]]).encode()
    end = (64).to_bytes(8, "little") + MAGIC
    path = folder / f"rank{rank}of2-{hashlib.sha256(index).hexdigest()[:20]}.bin"
    path.write_bytes(bytes([rank]) * 64 + index + end)
    return path


class Host:
    """One host below a folder."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.cache = Cache.of_account(self.home)
        self.provenance = Provenance(root / "provenance.json")
        self.kept = Kept(root / "manifests")
        self.ranks = self.home / ".cache/huggingface/tensorfold-dsv41"
        self.docker = Result(0, "sha256:1\n", "")
        self.asked: list[list[str]] = []

    def run(self, argv: Sequence[str], _: float) -> Result:
        self.asked.append(list(argv))
        return self.docker

    def put(self, *names: str) -> None:
        """Files in the cache, in the classic layout."""
        staging = self.cache.make_staging(REPO)
        for name in names:
            (staging / "new").write_bytes(CONTENT[name])
            self.cache.place(REPO, COMMIT, MANIFEST.file(name), staging / "new")

    @property
    def snapshot(self) -> Path:
        return self.cache.snapshot(REPO, COMMIT)

    def held(self, name: str) -> Held:
        stat = stat_of(self.snapshot / name)
        assert stat is not None
        file = MANIFEST.file(name)
        sha256, sha1 = file.sha256 or "", "" if file.sha256 else file.git_sha1
        return Held(stat.size, stat.mtime_ns, stat.inode, 50.0, "read", sha256, sha1)

    def record(self, *names: str) -> Artefact:
        artefact = Artefact(
            "checkpoint",
            "repository",
            REPO,
            COMMIT,
            Origin.DOWNLOADED,
            60.0,
            str(self.snapshot),
            {name: self.held(name) for name in names},
        )
        self.provenance.record(artefact)
        return artefact

    def rank(self, rank: int, *, recorded: bool = False, overlay: str | None = None) -> Path:
        folder = self.ranks / "45ee5d0f/checkpoint/rank-cache"
        folder.mkdir(parents=True, exist_ok=True)
        path = write_rank_file(folder, rank)
        if recorded:
            stat = stat_of(path)
            assert stat is not None
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            held = Held(stat.size, stat.mtime_ns, stat.inode, 50.0, "read", digest)
            self.provenance.record(
                Artefact(
                    f"rank{rank}",
                    "rank_file",
                    REPO,
                    COMMIT,
                    Origin.ADOPTED,
                    60.0,
                    str(folder),
                    {path.name: held},
                    {"overlay": overlay} if overlay else {},
                )
            )
        return path

    def look(self, **asked: Any) -> Seen:
        usual = {
            "home": str(self.home),
            "places": {
                "cache": str(self.cache.root),
                "work": str(self.ranks),
                "ranks": str(self.ranks),
            },
            "repos": [{"repo": REPO, "revision": COMMIT[:8]}],
            "image": "tensorfold:1",
        }
        found = look(
            {**usual, **asked},
            provenance=self.provenance,
            kept=self.kept,
            runner=self.run,
            tool="/bin/sh",
        )
        assert json.loads(json.dumps(found)) == found
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def same_size_same_time(path: Path) -> None:
    """Change a byte behind the file system's back."""
    before = path.stat()
    content = path.read_bytes()
    with path.open("r+b") as stream:
        stream.write(bytes([content[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_bare_host_holds_nothing_and_nothing_fails(host: Host) -> None:
    seen = host.look()
    assert seen["artefacts"] == seen["manifests"] == seen["trees"] == seen["unread"] == {}
    assert seen["cached"] == seen["blobs"] == seen["parts"] == {REPO: {}}
    assert seen["ranks"] == {"folder": str(host.ranks), "files": [], "staged": []}
    assert seen["leftovers"] == {"incomplete": 0, "xet": 0}
    assert seen["image"] is True and seen["tool"] is True
    assert seen["images"] == {"tensorfold:1": True}
    assert seen["grafts"] == [] and seen["ranks"]["staged"] == []
    held = reading.holdings(seen, [WANTED])
    assert held.credit("checkpoint", MANIFEST.files) == 0
    assert held.image and not held.ranks and not held.strangers
    assert reading.problems(seen, "spark-033f") == []


def test_recorded_files_are_held_and_others_are_found(host: Host) -> None:
    host.put(*CONTENT)
    artefact = host.record("config.json", "model-1.safetensors")
    seen = host.look()
    assert set(seen["artefacts"]["checkpoint"]["files"]) == set(artefact.files)
    held = reading.holdings(seen, [WANTED])
    assert held.recorded == {"checkpoint": {name: len(CONTENT[name]) for name in artefact.files}}
    second = "sub/model-2.safetensors"
    assert held.found == {"checkpoint": {second: len(CONTENT[second])}}


def test_a_blob_that_no_snapshot_names_is_found_too(host: Host) -> None:
    host.put("model-1.safetensors")
    (host.snapshot / "model-1.safetensors").unlink()
    held = reading.holdings(host.look(), [WANTED])
    assert set(held.found["checkpoint"]) == {"model-1.safetensors"}


def test_files_of_the_shared_layout_are_found(host: Host) -> None:
    name = "model-1.safetensors"
    blob = host.cache.blob(REPO, MANIFEST.file(name))
    store = host.cache.root / "blobs/ab/payload"
    for folder in (blob.parent, store.parent, host.snapshot):
        folder.mkdir(parents=True)
    store.write_bytes(CONTENT[name])
    blob.symlink_to("../../blobs/ab/payload")
    (host.snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    (host.snapshot / "dangling.safetensors").symlink_to("../../blobs/nothing")
    seen = host.look()
    assert seen["cached"][REPO] == {COMMIT: {name: len(CONTENT[name])}}
    assert set(reading.holdings(seen, [WANTED]).found["checkpoint"]) == {name}


def test_parts_and_what_others_left_are_counted_once(host: Host) -> None:
    first = MANIFEST.file("model-1.safetensors")
    (host.cache.make_staging(REPO) / f"{first.etag}.part").write_bytes(b"x" * 4096)
    blobs = host.cache.folder(REPO) / "blobs"
    blobs.mkdir()
    (blobs / f"{first.etag}.1234abcd.incomplete").write_bytes(b"y" * 8192)
    seen = host.look()
    assert seen["parts"] == {REPO: {first.etag: 4096}}
    assert seen["blobs"] == {REPO: {}}
    held = reading.holdings(seen, [WANTED])
    assert held.parts == {"checkpoint": {first.path: 4096}}
    assert held.leftovers == 8192


def test_a_file_with_holes_is_credited_by_what_is_there(host: Host) -> None:
    content = bytes(range(256)) * 1024
    file = described("big.safetensors", content)
    manifest = Manifest(REPO, COMMIT, (file,))
    path = host.cache.make_staging(REPO) / "new"
    with path.open("wb") as stream:
        stream.write(content[: 64 << 10])
        stream.truncate(len(content))
    host.cache.place(REPO, COMMIT, file, path)
    seen = host.look()
    there = seen["parts"][REPO][file.etag]
    assert (64 << 10) <= there < len(content)
    wanted = Wanted.of(replace(WANTED.source, files=(Selector("big*"),)), manifest)
    held = reading.holdings(seen, [wanted])
    assert held.found == {"checkpoint": {}}
    assert held.credit("checkpoint", [file]) == there


def test_a_written_file_is_not_held_but_found(host: Host) -> None:
    host.put(*CONTENT)
    host.record(*CONTENT)
    os.utime(host.snapshot / "model-1.safetensors", ns=(1, 1))
    seen = host.look()
    assert seen["differences"] == [
        "checkpoint: model-1.safetensors was written to since it was verified"
    ]
    assert set(seen["doubtful"]["checkpoint"]["files"]) == {"model-1.safetensors"}
    held = reading.holdings(seen, [WANTED])
    assert set(held.found["checkpoint"]) == {"model-1.safetensors"}
    assert reading.problems(seen, "spark-033f") == []


def test_a_file_known_to_be_wrong_is_neither_held_nor_found(host: Host) -> None:
    host.put(*CONTENT)
    artefact = host.record(*CONTENT)
    name = "model-1.safetensors"
    same_size_same_time((host.snapshot / name).resolve())
    assert host.look()["differences"] == []
    done = verify(artefact, Disk(artefact.folder))
    host.provenance.update(done.before, done.after)
    seen = host.look()
    assert seen["differences"] == [f"checkpoint: {name} failed its last verification"]
    held = reading.holdings(seen, [WANTED])
    assert set(held.recorded["checkpoint"]) == set(CONTENT) - {name}
    assert held.found == {"checkpoint": {}}


@pytest.mark.fault(32)
def test_a_written_file_that_was_found_wrong_is_not_credited(host: Host) -> None:
    host.put(*CONTENT)
    artefact = host.record(*CONTENT)
    name = "model-1.safetensors"
    (host.snapshot / name).resolve().write_bytes(bytes(len(CONTENT[name])))
    done = verify(artefact, Disk(artefact.folder))
    host.provenance.update(done.before, done.after)
    seen = host.look()
    assert set(seen["wrong"]["checkpoint"]["files"]) == {name} and not seen["doubtful"]
    held = reading.holdings(seen, [WANTED])
    assert held.credit("checkpoint", MANIFEST.files) == MANIFEST.total - len(CONTENT[name])


def test_a_record_that_cannot_be_read_is_told_and_forbids_a_plan(host: Host) -> None:
    host.provenance.path.write_text("{")
    host.put(*CONTENT)
    seen = host.look()
    assert "damaged" in seen["unread"]["record"]
    assert seen["artefacts"] == {} and seen["cached"][REPO]
    (problem,) = reading.problems(seen, "spark-033f")
    assert problem.startswith("spark-033f: ") and "--tags adopt" in problem


class TestManifests:
    def test_what_the_hub_told_and_what_a_cache_holds_are_told_apart(self, host: Host) -> None:
        host.cache.write_tree(MANIFEST)
        assert reading.manifests([host.look()]) == {}
        assert reading.trees([host.look()]) == {REPO: MANIFEST}
        assert reading.trees([host.look()])[REPO].told_by == "cache"
        ours = replace(MANIFEST, files=MANIFEST.files[:1])
        host.kept.keep(ours)
        assert reading.manifests([host.look()]) == {REPO: ours}

    def test_two_hosts_that_disagree_about_a_commit_leave_it_to_the_hub(self) -> None:
        other = Manifest(REPO, COMMIT[:-1] + "0", MANIFEST.files)
        one, two = ({"manifests": {REPO: known.as_dict()}} for known in (MANIFEST, other))
        assert reading.manifests([one, one]) == {REPO: MANIFEST}
        assert reading.manifests([one, two, one]) == {}
        assert reading.manifests([{"manifests": {}}, two]) == {REPO: other}


class TestRankFiles:
    def test_a_recorded_one_is_held(self, host: Host) -> None:
        path = host.rank(0, recorded=True, overlay=OVERLAY)
        seen = host.look()
        (told,) = seen["ranks"]["files"]
        assert told["rank"] == 0 and told["recorded"] and told["problem"] == ""
        assert told["name"] == f"45ee5d0f/checkpoint/rank-cache/{path.name}"
        assert told["footer"]["index_sha256"].startswith(path.name[9:29])
        held = reading.holdings(seen, [WANTED])
        (found,) = held.ranks
        size, digest = path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        where = (str(path.parent), path.name, digest)
        assert found == RankFile(0, size, COMMIT, OVERLAY, "rank0", *where)
        assert not held.strangers

    @pytest.mark.parametrize(
        ("folder", "meant"),
        [
            ("45ee5d0f/checkpoint/rank-cache", True),
            ("45ee5d0f-ablit-0bdc2036/checkpoint/rank-cache", False),
            ("1bae0e10/checkpoint/rank-cache", False),
            ("by hand", True),
            ("45ee5d0f/checkpoint/rank-cache/.cutting", False),
            (".old", False),
        ],
    )
    def test_only_where_the_wanted_one_would_lie_is_one_a_stranger(
        self, host: Host, folder: str, meant: bool
    ) -> None:
        place = host.ranks / folder
        place.mkdir(parents=True)
        write_rank_file(place, 0)
        seen = host.look()
        assert reading.holdings(seen, [WANTED]).strangers == (frozenset({0}) if meant else set())
        assert len(seen["ranks"]["files"]) == ("/." not in f"/{folder}")

    def test_one_without_a_record_is_a_stranger(self, host: Host) -> None:
        host.rank(1)
        held = reading.holdings(host.look(), [WANTED])
        assert not held.ranks and held.strangers == {1}

    def test_what_an_interrupted_cut_or_transfer_has_left_is_told(self, host: Host) -> None:
        for variant in ("45ee5d0f", "45ee5d0f-ablit-0bdc2036"):
            folder = host.ranks / variant / "checkpoint/rank-cache"
            for name, size in ((".cutting-rank0/.rank0of2.partial", 7), (".spark-pair/x.part", 9)):
                path = folder / name
                path.parent.mkdir(parents=True)
                path.write_bytes(b"x" * size * 4096)
        seen = host.look()
        assert not seen["ranks"]["files"] and len(seen["ranks"]["staged"]) == 4
        held = reading.holdings(seen, [WANTED])
        assert held.staged == {0: 7 * 4096, 1: 9 * 4096} and not held.strangers

    def test_a_cut_off_one_tells_why(self, host: Host) -> None:
        path = host.rank(1)
        os.truncate(path, path.stat().st_size - 1)
        (told,) = host.look()["ranks"]["files"]
        assert told["footer"] is None and "TFDSRK01" in told["problem"]

    def test_a_touched_one_is_not_cut_again_but_read_first(self, host: Host) -> None:
        path = host.rank(0, recorded=True)
        os.utime(path, ns=(1, 1))
        seen = host.look()
        held = reading.holdings(seen, [WANTED])
        assert [one.rank for one in held.ranks] == [0] and not held.strangers
        (problem,) = reading.problems(seen, "spark-033f")
        assert "rank0" in problem and "--tags verify" in problem and "--tags adopt" in problem

    def test_one_known_to_be_wrong_is_cut_again_and_no_stranger(self, host: Host) -> None:
        path = host.rank(0, recorded=True)
        same_size_same_time(path)
        record = host.provenance.load()["rank0"]
        host.provenance.update(record, verify(record, Disk(record.folder)).after)
        seen = host.look()
        held = reading.holdings(seen, [WANTED])
        assert not held.ranks and not held.strangers
        assert held.replaced == {0: path.stat().st_size}
        assert reading.problems(seen, "spark-033f") == []

    def test_another_file_in_the_place_of_the_recorded_one_is_a_stranger(self, host: Host) -> None:
        path = host.rank(0, recorded=True)
        path.write_bytes(path.read_bytes() + b"more")
        held = reading.holdings(host.look(), [WANTED])
        assert not held.ranks and held.strangers == {0}


def test_what_another_commit_alone_names_is_told_apart(host: Host) -> None:
    name = "model-1.safetensors"
    host.put(name)
    assert not reading.holdings(host.look(), [WANTED]).elsewhere
    host.cache.link(REPO, "9" * 40, MANIFEST.file(name))
    assert not reading.holdings(host.look(), [WANTED]).elsewhere
    (host.snapshot / name).unlink()
    assert reading.holdings(host.look(), [WANTED]).elsewhere == {name}


class TestGraft:
    """One that is under way, done or being undone."""

    def journal(self, host: Host, phase: Phase, method: str = "in_place") -> Path:
        """Its note, and where its shards lie when they are proven."""
        shards = {
            path: Shard(MANIFEST.file(path).size, str(MANIFEST.file(path).sha256))
            for path in CONTENT
            if path.endswith(".safetensors")
        }
        derived = host.ranks / f"45ee5d0f-ablit-{OVERLAY[:8]}"
        (derived / "checkpoint/sub").mkdir(parents=True)
        graft_state.write(derived, GraftState(REPO, COMMIT, OVERLAY, method, phase, shards))
        return derived

    def move(self, host: Host, derived: Path, path: str) -> None:
        """As a graft does."""
        MANIFEST.file(path)
        real = Path(os.path.realpath(host.snapshot / path))
        real.rename(derived / "checkpoint" / path)
        (host.snapshot / path).unlink()

    def test_its_shards_need_no_download_wherever_they_lie(self, host: Host) -> None:
        host.put(*CONTENT)
        host.record(*CONTENT)
        derived = self.journal(host, Phase.GRAFTING)
        self.move(host, derived, "model-1.safetensors")
        (derived / "undo").mkdir()
        (derived / "undo/model-1.safetensors").write_bytes(b"undo")
        seen = host.look()
        (told,) = seen["grafts"]
        assert told["folder"] == derived.name and told["state"] == "grafting"
        assert told["there"] == {"model-1.safetensors": len(CONTENT["model-1.safetensors"])}
        held = reading.holdings(seen, [WANTED])
        assert held.has("checkpoint", MANIFEST.files)
        assert (held.graft, held.unfinished) == (None, OVERLAY)
        assert (held.work, held.moved) == (4, len(CONTENT["model-1.safetensors"]))

    def test_one_of_another_checkpoint_is_no_matter(self, host: Host) -> None:
        host.put(*CONTENT)
        derived = self.journal(host, Phase.GRAFTING)
        self.move(host, derived, "model-1.safetensors")
        other = replace(MANIFEST, commit="1bae0e10" * 5)
        held = reading.holdings(host.look(), [Wanted.of(WANTED.source, other)])
        assert held.unfinished is None and not held.work

    def test_one_that_has_moved_nothing_yet_has_not_begun(self, host: Host) -> None:
        host.put(*CONTENT)
        host.record(*CONTENT)
        self.journal(host, Phase.GRAFTING)
        held = reading.holdings(host.look(), [WANTED])
        assert held.unfinished is None and held.has("checkpoint", MANIFEST.files)

    @pytest.mark.parametrize("recorded", [True, False])
    def test_a_finished_one_counts_when_it_is_recorded(self, host: Host, recorded: bool) -> None:
        host.put(*CONTENT)
        artefact = host.record(*CONTENT)
        derived = self.journal(host, Phase.GRAFTED)
        folder = derived / "checkpoint"
        moved = [path for path in CONTENT if path.endswith(".safetensors")]
        for path in moved:
            self.move(host, derived, path)
        (folder / "config.json").write_bytes(CONTENT["config.json"])
        if recorded:
            held = {}
            for path in CONTENT:
                stat = stat_of(folder / path)
                assert stat is not None
                held[path] = replace(artefact.files[path], mtime_ns=stat.mtime_ns, inode=stat.inode)
            host.provenance.record(
                replace(
                    artefact, origin=Origin.GRAFTED, folder=str(folder), files=held,
                    details={"overlay": OVERLAY, "grafted": moved, "former": "downloaded"},
                )
            )  # fmt: skip
        found = reading.holdings(host.look(), [WANTED])
        assert found.has("checkpoint", MANIFEST.files)
        assert found.overlaid == OVERLAY and bool(found.graft) is recorded
        assert found.moved == sum(len(CONTENT[path]) for path in moved)

    def test_shards_written_anew_are_no_moved_ones(self, host: Host) -> None:
        host.put(*CONTENT)
        host.record(*CONTENT)
        derived = self.journal(host, Phase.GRAFTING, "recipe")
        (derived / "checkpoint/model-1.safetensors").write_bytes(b"anew")
        held = reading.holdings(host.look(), [WANTED])
        assert (held.work, held.moved, held.unfinished) == (4, 0, OVERLAY)

    def test_a_note_that_is_none_of_ours_is_none(self, host: Host) -> None:
        derived = self.journal(host, Phase.GRAFTING)
        (derived / "graft.json").write_text("[]")
        assert host.look()["grafts"] == []


class TestImage:
    def test_each_that_may_be_needed_is_asked_for_once(self, host: Host) -> None:
        seen = host.look(images=["cutter:1", "tensorfold:1", ""])
        assert seen["images"] == {"tensorfold:1": True, "cutter:1": True}
        assert len(host.asked) == 2

    def test_docker_says_no(self, host: Host) -> None:
        host.docker = Result(1, "", "Error response from daemon: No such image: tensorfold:1")
        assert host.look()["image"] is False

    def test_docker_says_nothing(self, host: Host) -> None:
        host.docker = Result(1, "", "Cannot connect to the Docker daemon")
        seen = host.look()
        assert seen["image"] is None and "Cannot connect" in seen["unread"]["image"]
        assert not reading.holdings(seen, [WANTED]).image

    def test_it_is_not_asked_unasked(self, host: Host) -> None:
        assert host.look(image="")["image"] is None
        assert host.asked == []


class TestFileSystems:
    def test_places_are_followed_to_where_they_lie(self, host: Host, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        host.home.mkdir()
        (host.home / ".cache").symlink_to(disk)
        seen = host.look()
        root = os.path.realpath(disk)
        assert reading.places(seen)["cache"] == f"{root}/huggingface/hub"
        (one,) = reading.filesystems(seen)
        assert Path(root).is_relative_to(one.mount) and one.device
        assert 0 < one.free <= one.total

    def test_every_file_system_once_with_the_mount_on_top(self, host: Host, tmp_path: Path) -> None:
        table = tmp_path / "mountinfo"
        home = Path(os.path.realpath(tmp_path)) / "ho me"
        home.mkdir()
        lines = [
            "1 0 8:1 / / rw - ext4 /dev/root rw",
            f"2 1 8:1 / {home.as_posix().replace(' ', chr(92) + '040')} rw - ext4 /dev/hidden rw",
            f"3 2 0:44 / {home.as_posix().replace(' ', chr(92) + '040')} rw a:1 - tmpfs tmpfs rw",
        ]
        table.write_text("\n".join(lines) + "\n")
        places = {"cache": f"{home}/hub", "work": f"{home}/work", "images": "/var/lib/docker"}
        found = look(
            {"home": str(home), "places": places, "repos": []},
            provenance=host.provenance,
            kept=host.kept,
            runner=host.run,
            mounts=table,
        )["filesystems"]
        assert [(one["mount"], one["device"]) for one in found] == [
            ("/", "/dev/root"),
            (str(home), "0:44"),
        ]
