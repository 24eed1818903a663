"""The cache of one account, in both layouts, as the hub's own client sees it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
from hub_server import Hub, noise_repository
from huggingface_hub import snapshot_download
from huggingface_hub.errors import IncompleteSnapshotError

from spark_pair.weights.cache import Cache, CacheError
from spark_pair.weights.manifest import File, Manifest

REPO = "owner/name"
COMMIT, OTHER = "1bae0e1088993b9b82de08f59de5be5a34e42170", "2" * 40
SMALL, LARGE = b"small\n", b"large" * 1000


def small(path: str = "a.json", content: bytes = SMALL) -> File:
    name = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return File(path, len(content), name)


def large(path: str = "deep/er/b.bin", content: bytes = LARGE) -> File:
    return File(path, len(content), "c" * 40, hashlib.sha256(content).hexdigest(), "d" * 64)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "hub", tmp_path / "xet")


def staged(cache: Cache, file: File, content: bytes) -> Path:
    path = cache.make_staging(REPO) / f"{file.etag}.part"
    path.write_bytes(content)
    return path


def put(cache: Cache, file: File, content: bytes, commit: str = COMMIT) -> Path:
    return cache.place(REPO, commit, file, staged(cache, file, content))


@pytest.mark.parametrize(
    ("environment", "hub", "xet"),
    [
        ({}, "/home/me/.cache/huggingface/hub", "/home/me/.cache/huggingface/xet"),
        ({"HF_HOME": "/data/hf"}, "/data/hf/hub", "/data/hf/xet"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub", "/x/huggingface/xet"),
        ({"HF_HOME": "/data/hf", "XDG_CACHE_HOME": "/x"}, "/data/hf/hub", "/data/hf/xet"),
        ({"HF_HUB_CACHE": "/c"}, "/c", "/home/me/.cache/huggingface/xet"),
        ({"HUGGINGFACE_HUB_CACHE": "/o"}, "/o", "/home/me/.cache/huggingface/xet"),
        ({"HF_HUB_CACHE": "/c", "HUGGINGFACE_HUB_CACHE": "/o"}, "/c", None),
        ({"HF_HUB_CACHE": "~/c", "HF_XET_CACHE": "/z"}, "/home/me/c", "/z"),
        ({"HF_HOME": "${D}/hf", "D": "/data"}, "/data/hf/hub", None),
        ({"HF_HOME": ""}, "/home/me/.cache/huggingface/hub", None),
    ],
)
def test_the_place_follows_the_clients_rules(
    environment: dict[str, str], hub: str, xet: str | None
) -> None:
    found = Cache.of_account(Path("/home/me"), environment)
    assert found.root == Path(hub)
    assert xet is None or found.xet == Path(xet)


def test_a_placed_file_is_found_in_the_classic_layout(cache: Cache) -> None:
    for file, content in ((small(), SMALL), (large(), LARGE)):
        entry = put(cache, file, content)
        assert entry == cache.snapshot(REPO, COMMIT) / file.path
        assert entry.read_bytes() == content
        blob = cache.blob(REPO, file)
        assert not blob.is_symlink() and stat.S_IMODE(blob.stat().st_mode) == 0o644
        assert not entry.readlink().is_absolute()
        found = cache.locate(REPO, COMMIT, file)
        assert found is not None
        assert (found.path, found.layout, found.linked) == (blob.resolve(), "classic", True)
    assert not list(cache.staging(REPO).iterdir())
    assert not list(cache.root.rglob(".spark-pair.*"))


def test_the_folder_can_be_moved(cache: Cache, tmp_path: Path) -> None:
    put(cache, large(), LARGE)
    cache.root.rename(tmp_path / "elsewhere")
    found = Cache(tmp_path / "elsewhere").locate(REPO, COMMIT, large())
    assert found is not None and found.linked


def test_a_blob_of_another_revision_is_found_and_linked(cache: Cache) -> None:
    put(cache, large(), LARGE, OTHER)
    found = cache.locate(REPO, COMMIT, large())
    assert found is not None and not found.linked
    assert cache.link(REPO, COMMIT, large()).read_bytes() == LARGE
    again = cache.locate(REPO, COMMIT, large())
    assert again is not None and again.linked
    assert cache.link(REPO, COMMIT, large()).is_symlink()


@pytest.mark.parametrize("content", [None, b"", LARGE[:-1], LARGE + b"x"])
def test_a_file_of_another_size_is_not_there(cache: Cache, content: bytes | None) -> None:
    blob = cache.blob(REPO, large())
    blob.parent.mkdir(parents=True)
    if content is not None:
        blob.write_bytes(content)
    cache.link(REPO, COMMIT, large())
    assert cache.locate(REPO, COMMIT, large()) is None


def test_a_dangling_link_and_a_loop_are_nothing(cache: Cache) -> None:
    file = large("a")
    cache.snapshot(REPO, COMMIT).mkdir(parents=True)
    entry = cache.snapshot(REPO, COMMIT) / "a"
    entry.symlink_to("a")
    assert cache.locate(REPO, COMMIT, file) is None
    entry.unlink()
    entry.symlink_to("/nowhere/b")
    assert cache.locate(REPO, COMMIT, file) is None
    assert put(cache, file, LARGE).read_bytes() == LARGE


def test_the_shared_store_is_read_and_left_alone(tmp_path: Path) -> None:
    repository = noise_repository(REPO, {"a.json": 20, "b.safetensors": 300_000})
    with Hub(tmp_path / "server", [repository], xet=True) as hub:
        snapshot_download(
            REPO, endpoint=hub.url, cache_dir=tmp_path / "hub", revision=repository.commit
        )
        told, content = hub.file(REPO, "b.safetensors"), hub.content(REPO, "b.safetensors")
    cache = Cache(tmp_path / "hub")
    file = File(told.path, told.size, told.git_sha1, told.sha256, told.xet_hash)
    found = cache.locate(REPO, repository.commit, file)
    assert found is not None
    assert (found.layout, found.linked) == ("shared", True)
    assert found.path.parent.parent == (tmp_path / "hub" / "blobs").resolve()
    assert found.path.read_bytes() == content

    put(cache, file, content, repository.commit)
    assert found.path.read_bytes() == content, "the payload is everybody's"
    own = cache.locate(REPO, repository.commit, file)
    assert own is not None and own.layout == "classic" and own.path.stat().st_mode & 0o200


def test_a_file_copied_into_the_snapshot_is_read(cache: Cache) -> None:
    entry = cache.snapshot(REPO, COMMIT) / "deep" / "er" / "b.bin"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(LARGE)
    found = cache.locate(REPO, COMMIT, large())
    assert found is not None and (found.layout, found.path) == ("plain", entry.resolve())


@pytest.mark.parametrize("wrong", ["file", "absolute link", "link to another"])
def test_a_wrong_entry_is_replaced(cache: Cache, wrong: str) -> None:
    entry = cache.snapshot(REPO, COMMIT) / "deep" / "er" / "b.bin"
    entry.parent.mkdir(parents=True)
    other = cache.root / "other"
    other.write_bytes(b"keep")
    if wrong == "file":
        entry.write_bytes(b"old")
    else:
        entry.symlink_to(other if wrong == "absolute link" else "../x")
    assert put(cache, large(), LARGE).read_bytes() == LARGE
    assert other.read_bytes() == b"keep"


def test_a_folder_in_the_way_is_named_and_kept(cache: Cache) -> None:
    entry = cache.snapshot(REPO, COMMIT) / "a.json"
    (entry / "inside").mkdir(parents=True)
    with pytest.raises(CacheError, match="move it away"):
        put(cache, small(), SMALL)
    assert (entry / "inside").is_dir()


def test_a_staged_file_of_another_size_stays_out(cache: Cache) -> None:
    with pytest.raises(CacheError, match="another size"):
        put(cache, small(), SMALL + b"x")
    assert cache.locate(REPO, COMMIT, small()) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_leaves_everything_to_the_account(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1234, 1235)
    cache = Cache.of_account(home)
    put(cache, large(), LARGE)
    cache.write_tree(Manifest(REPO, COMMIT, (large(),)))
    cache.write_ref(REPO, COMMIT)
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in home.rglob("*")}
    assert owners == {(1234, 1235)}


def test_the_ref_has_no_line_end_and_is_written_once(cache: Cache) -> None:
    path = cache.write_ref(REPO, COMMIT)
    assert path == cache.folder(REPO) / "refs" / f"pinned-{COMMIT[:8]}"
    assert path.read_bytes() == COMMIT.encode()
    before = path.stat().st_ino
    assert cache.write_ref(REPO, COMMIT).stat().st_ino == before
    path.write_text(COMMIT + "\n")
    assert cache.write_ref(REPO, COMMIT).read_bytes() == COMMIT.encode()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_hubs_client_accepts_it_offline(cache: Cache) -> None:
    files = (small(), large(), large("c.bin", b"other"))
    put(cache, files[0], SMALL)
    put(cache, files[1], LARGE)
    cache.write_tree(Manifest(REPO, COMMIT, files))
    cache.write_ref(REPO, COMMIT)
    revision = f"pinned-{COMMIT[:8]}"

    def offline(patterns: list[str] | None = None) -> Path:
        return Path(
            snapshot_download(
                REPO,
                revision=revision,
                cache_dir=cache.root,
                local_files_only=True,
                allow_patterns=patterns,
            )
        )

    with pytest.raises(IncompleteSnapshotError):  # it knows from the list what is missing
        offline()
    folder = offline(["a.json", "deep/*"])
    assert (folder / "deep/er/b.bin").read_bytes() == LARGE
    tree = json.loads((cache.folder(REPO) / "trees" / f"{COMMIT}.json").read_text())
    assert tree["files"]["deep/er/b.bin"]["lfs_size"] == len(LARGE)
    assert "lfs_size" not in tree["files"]["a.json"]


@pytest.mark.fault(23)
def test_leftovers_are_counted_and_kept(cache: Cache, tmp_path: Path) -> None:
    assert (cache.leftovers().incomplete, cache.leftovers().xet, cache.leftovers().parts) == (
        0,
        0,
        0,
    )
    put(cache, large(), LARGE)
    blobs = cache.folder(REPO) / "blobs"
    (blobs / f"{'e' * 64}.0a1b2c3d.incomplete").write_bytes(b"x" * 10_000)
    (tmp_path / "xet" / "deep").mkdir(parents=True)
    (tmp_path / "xet" / "deep" / "chunk").write_bytes(b"x" * 5000)
    staged(cache, small(), b"x" * 6000)
    (cache.staging(REPO) / f"{small().etag}.json").write_text("{}")
    found = cache.leftovers()
    assert (found.incomplete, found.xet, found.parts) == (10_000, 5000, 6000)
    assert cache.partial(REPO, small()) == 6000
    assert cache.partial(REPO, large()) == 0
    assert len(list(blobs.iterdir())) == 2
