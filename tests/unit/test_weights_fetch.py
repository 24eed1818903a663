"""Downloads that survive what happens to downloads, against a stand-in Hub on loopback."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hub_server
import pytest
from hub_server import STRANGER_TOKEN, TOKEN, noise_repository

from spark_pair.weights import fetch as fetch_module
from spark_pair.weights.cache import STAGING, Cache
from spark_pair.weights.fetch import Outcome, Patience, Result, fetch
from spark_pair.weights.hub import Hub
from spark_pair.weights.manifest import Manifest
from spark_pair.weights.pace import Limiter, Reading
from spark_pair.weights.parts import Part

ROOT = Path(__file__).resolve().parents[2]
REPO, GATED = "own/open", "own/gated"
BIG, MIDDLE, SMALL = "big.safetensors", "b c/-middle.safetensors", "d/small.json"
MIB = 1 << 20
SIZES = {BIG: 24 * MIB + 17, MIDDLE: 5 * MIB, SMALL: 3000, "empty": 0, "README.md": 400}
QUICK = Patience(stall_seconds=20, tries=4, progress_bytes=MIB, wait_factor=0.01)

Way = str
"""How large files come: "http", or "xet" from the content store."""


@pytest.fixture(scope="module", params=["http", "xet"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[hub_server.Hub]:
    repositories = [noise_repository(REPO, SIZES), noise_repository(GATED, SIZES, gated=True)]
    folder = tmp_path_factory.mktemp(f"hub-{request.param}")
    with hub_server.Hub(folder, repositories, xet=request.param == "xet") as running:
        yield running


@pytest.fixture
def server(served: hub_server.Hub) -> hub_server.Hub:
    served.fault()
    served.forget_requests()
    return served


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "hub")


def by_xet(server: hub_server.Hub) -> bool:
    return server.file(REPO, BIG).xet_hash is not None


def content_kind(server: hub_server.Hub) -> str:
    """The kind of request that brings a large file's bytes."""
    return "xorb" if by_xet(server) else "content"


def manifest_of(server: hub_server.Hub, repo: str = REPO, token: str | None = TOKEN) -> Manifest:
    return Hub(server.url, token).manifest(repo, server.state.held[repo].wanted.commit)


def run(server: hub_server.Hub, cache: Cache, repo: str = REPO, **more: Any) -> Result:
    token = more.pop("token", TOKEN)
    manifest = manifest_of(server, repo)
    files = [manifest.file(path) for path in more.pop("paths", SIZES)]
    hub = Hub(server.url, token, sleep=lambda seconds: None)
    return fetch(hub, cache, manifest, files, **{"patience": QUICK, **more})


def outcome(result: Result, path: str) -> Outcome:
    return next(one for one in result.outcomes if one.file.path == path)


def parts_in(cache: Cache) -> list[Path]:
    return sorted(cache.root.glob(f"models--*/{STAGING}/*.part"))


def all_right(server: hub_server.Hub, cache: Cache, repo: str = REPO) -> None:
    """Every file is in place and right, and nothing else lies about."""
    manifest = manifest_of(server, repo)
    for file in manifest.files:
        entry = cache.snapshot(repo, manifest.commit) / file.path
        assert entry.read_bytes() == server.content(repo, file.path), file.path
    assert not list(cache.staging(repo).iterdir())
    assert (cache.folder(repo) / "refs" / f"pinned-{manifest.commit[:8]}").is_file()
    assert (cache.folder(repo) / "trees" / f"{manifest.commit}.json").is_file()


def nothing_wrong(server: hub_server.Hub, cache: Cache, repo: str = REPO) -> None:
    """What is in place is right; nobody is told that the commit is complete."""
    manifest = manifest_of(server, repo)
    for file in manifest.files:
        entry = cache.snapshot(repo, manifest.commit) / file.path
        if entry.exists():
            assert entry.read_bytes() == server.content(repo, file.path), file.path
    assert not (cache.folder(repo) / "refs").exists()


def test_everything_comes_once_and_stays(server: hub_server.Hub, cache: Cache) -> None:
    readings: list[Reading] = []
    result = run(server, cache, progress=readings.append)
    assert result.whole and not result.problems
    assert {one.state for one in result.outcomes} == {"fetched"}
    assert result.fetched == sum(SIZES.values()) == readings[-1].done == readings[-1].total
    all_right(server, cache)
    assert [one.path for one in result.outcomes if one.path and not one.path.is_symlink()] == []

    server.forget_requests()
    again = run(server, cache, progress=readings.append)
    assert {one.state for one in again.outcomes} == {"present"} and again.fetched == 0
    assert readings[-1].done == readings[-1].total
    assert server.bytes_served(REPO) == 0


def test_the_content_store_is_used_where_there_is_one(server: hub_server.Hub, cache: Cache) -> None:
    run(server, cache, paths=[BIG])
    kinds = {request.kind for request in server.requests if request.path == BIG}
    assert ("content" in kinds) is not by_xet(server)


Fault = dict[str, Any]
PASSING: dict[str, list[Fault]] = {
    "drop": [{"what": "drop", "at": 9 * MIB, "times": 1}],
    "two drops": [{"what": "drop", "at": at, "times": 1} for at in (5 * MIB, 20 * MIB)],
    "reset": [{"what": "reset", "at": 9 * MIB, "times": 1}],
    "reset at once": [{"what": "reset", "at": 0, "times": 1}],
    "503": [{"what": "status", "status": 503, "times": 2}],
    "500": [{"what": "status", "status": 500, "times": 1}],
    "429": [{"what": "status", "status": 429, "retry_after": 1, "times": 1}],
    "corrupt byte": [{"what": "corrupt", "at": 9 * MIB, "times": 1}],
    "truncated": [{"what": "truncate", "at": 9 * MIB, "times": 1}],
}
HTTP_ONLY: dict[str, list[Fault]] = {
    "no ranges": [
        {"what": "drop", "at": 9 * MIB, "times": 1},
        {"what": "ignore_range", "times": 1},
    ],
}


@pytest.mark.parametrize("name", [*PASSING, *HTTP_ONLY])
def test_a_fault_that_passes_costs_little_and_nothing_else(
    server: hub_server.Hub, cache: Cache, name: str
) -> None:
    if by_xet(server) and name in HTTP_ONLY:
        pytest.skip("the content store has no such answer")
    faults = [
        {"on": content_kind(server), "files": "*" if by_xet(server) else BIG, **fault}
        for fault in (PASSING | HTTP_ONLY)[name]
    ]
    server.fault(*faults)
    result = run(server, cache)
    assert result.whole, result.problems
    all_right(server, cache)
    again = name in ("corrupt byte", "no ranges")
    assert outcome(result, BIG).fetched <= SIZES[BIG] * (2 if again else 1)


def test_only_the_rest_is_asked_for_after_a_drop(server: hub_server.Hub, cache: Cache) -> None:
    if by_xet(server):
        pytest.skip("the content store's client asks as it likes")
    server.fault({"what": "drop", "on": "content", "files": BIG, "at": 20 * MIB, "times": 1})
    assert run(server, cache, paths=[BIG]).whole
    assert server.bytes_served(REPO, BIG) <= SIZES[BIG] + 2 * MIB


@pytest.mark.parametrize("fault", ["corrupt", "truncate", "status", "size"])
def test_a_fault_that_stays_leaves_nothing_wrong(
    server: hub_server.Hub, cache: Cache, fault: str
) -> None:
    if fault == "size" and by_xet(server):
        pytest.skip("the content store has no such answer")
    # Without a way around: all that brings bytes of the big file has the fault.
    stays = {"what": fault, "at": 9 * MIB, "size": 24 * MIB}
    server.fault({**stays, "files": BIG, "on": "content"}, {**stays, "on": "xorb"})
    result = run(server, cache)
    assert not result.whole and outcome(result, BIG).state == "failed"
    words = outcome(result, BIG).words
    assert BIG in words and words in result.problems and words.endswith(".")
    assert outcome(result, SMALL).whole
    nothing_wrong(server, cache)
    if fault == "corrupt":
        assert "came twice" in words and not parts_in(cache)

    server.fault()
    assert run(server, cache).whole
    all_right(server, cache)


def test_a_list_with_a_wrong_size_leaves_nothing_wrong(
    server: hub_server.Hub, cache: Cache
) -> None:
    for size in (SIZES[BIG] - 1, SIZES[BIG] + 1):
        server.fault({"what": "size", "on": "tree", "files": BIG, "size": size})
        manifest = manifest_of(server)
        server.fault()
        hub = Hub(server.url, sleep=lambda seconds: None)
        result = fetch(hub, cache, manifest, [manifest.file(BIG)], patience=QUICK)
        assert outcome(result, BIG).state == "failed"
        nothing_wrong(server, cache)


def test_plain_http_helps_out_where_the_content_store_fails(
    server: hub_server.Hub, cache: Cache
) -> None:
    if not by_xet(server):
        pytest.skip("there is no content store")
    server.fault({"what": "status", "on": "xorb", "status": 503})
    assert run(server, cache, paths=[BIG]).whole
    assert server.bytes_served(REPO, BIG) >= SIZES[BIG]


def test_a_connection_without_bytes_is_made_anew(server: hub_server.Hub, cache: Cache) -> None:
    server.fault(
        {"what": "hang", "on": content_kind(server), "at": 9 * MIB, "seconds": 6, "times": 1}
    )
    result = run(server, cache, paths=[BIG], patience=replace(QUICK, stall_seconds=1.0))
    assert result.whole, result.problems
    assert outcome(result, BIG).fetched <= SIZES[BIG]


def test_a_file_that_is_missing_fails_alone(server: hub_server.Hub, cache: Cache) -> None:
    manifest = manifest_of(server)
    server.fault({"what": "missing", "files": SMALL, "on": "content"})
    hub = Hub(server.url, None, sleep=lambda seconds: None)
    result = fetch(hub, cache, manifest, manifest.files, patience=QUICK)
    assert outcome(result, SMALL).state == "failed" and SMALL in outcome(result, SMALL).words
    assert sum(one.whole for one in result.outcomes) == len(SIZES) - 1
    nothing_wrong(server, cache)


@pytest.mark.parametrize(
    ("token", "words"), [(None, "logged in"), (STRANGER_TOKEN, "accept the terms")]
)
def test_without_access_it_ends_at_once(
    server: hub_server.Hub, cache: Cache, token: str | None, words: str
) -> None:
    result = run(server, cache, GATED, token=token, workers=1)
    assert words in result.words
    assert not any(one.whole for one in result.outcomes if one.file.size)
    asked = [request for request in server.requests if request.repository == GATED]
    assert sum(request.kind in ("content", "token") for request in asked) == 1
    assert token is None or not any(token in words for words in result.problems)


def test_with_access_a_gated_repository_comes(server: hub_server.Hub, cache: Cache) -> None:
    assert run(server, cache, GATED).whole
    all_right(server, cache, GATED)
    if not by_xet(server):
        assert not any(request.token for request in server.requests if request.store)


def stop_after(count: int) -> tuple[threading.Event, Callable[[Reading], None]]:
    stop = threading.Event()

    def progress(reading: Reading) -> None:
        if reading.fetched >= count:
            stop.set()

    return stop, progress


def slowed(server: hub_server.Hub, bytes_per_second: float) -> None:
    for kind in ("content", "xorb"):
        server.fault({"what": "slow", "on": kind, "bytes_per_second": bytes_per_second})
        if kind == content_kind(server):
            return


def test_told_to_stop_it_keeps_what_it_has(server: hub_server.Hub, cache: Cache) -> None:
    slowed(server, 12 * MIB)
    stop, progress = stop_after(6 * MIB)
    first = run(server, cache, stop=stop, progress=progress)
    assert not first.whole and outcome(first, BIG).state == "stopped"
    nothing_wrong(server, cache)
    assert parts_in(cache)
    server.fault()
    second = run(server, cache)
    assert second.whole
    all_right(server, cache)
    assert first.fetched + second.fetched == sum(SIZES.values())


def test_all_files_share_one_limit(
    server: hub_server.Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    counted: list[int] = []

    class Counting(Limiter):
        def __init__(self, bytes_per_second: float | None) -> None:
            super().__init__(bytes_per_second)
            limits.append(bytes_per_second)

        def seconds_for(self, count: int) -> float:
            counted.append(count)
            return super().seconds_for(count)

    monkeypatch.setattr(fetch_module, "Limiter", Counting)
    assert run(server, cache, limit_bytes_per_second=100 * MIB).whole
    assert limits == [100 * MIB]
    assert sum(counted) == sum(SIZES.values())


def test_it_stops_before_the_disk_is_too_full(server: hub_server.Hub, cache: Cache) -> None:
    cache.root.mkdir()
    free = os.statvfs(cache.root)
    floor = free.f_bavail * free.f_frsize * 2
    result = run(server, cache, floor_bytes=floor)
    assert not result.whole and "to stay free" in result.words
    assert result.fetched == 0
    nothing_wrong(server, cache)
    assert run(server, cache, floor_bytes=1).whole
    all_right(server, cache)


def test_a_full_disk_loses_nothing(
    server: hub_server.Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 12 * MIB
    write = os.pwrite

    def pwrite(handle: int, data: Any, offset: int) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(handle, data[: max(1, left)], offset)
        left -= done
        return done

    monkeypatch.setattr(os, "pwrite", pwrite)
    first = run(server, cache, workers=1)
    assert outcome(first, BIG).state == "stopped" and "full" in first.words
    nothing_wrong(server, cache)
    monkeypatch.undo()
    second = run(server, cache)
    assert second.whole
    all_right(server, cache)
    assert second.fetched <= sum(SIZES.values()) - first.fetched


def test_a_wrong_blob_of_the_right_size_is_replaced(server: hub_server.Hub, cache: Cache) -> None:
    run(server, cache)
    manifest = manifest_of(server)
    blob = cache.blob(REPO, manifest.file(BIG))
    blob.chmod(0o444)
    with blob.open("r+b") as stream:
        stream.seek(7 * MIB)
        stream.write(bytes([stream.read(1)[0] ^ 1]))
    result = run(server, cache)
    assert [one.file.path for one in result.outcomes if one.state == "fetched"] == [BIG]
    all_right(server, cache)


def test_a_trusted_file_is_not_read_again(server: hub_server.Hub, cache: Cache) -> None:
    run(server, cache)
    blob = cache.blob(REPO, manifest_of(server).file(BIG))
    with blob.open("r+b") as stream:
        stream.write(b"changed")
    assert run(server, cache, trusted=lambda file, payload: file.path == BIG).fetched == 0
    assert run(server, cache).fetched == SIZES[BIG]


def test_a_blob_of_another_revision_gets_its_link(server: hub_server.Hub, cache: Cache) -> None:
    run(server, cache)
    commit = manifest_of(server).commit
    cache.snapshot(REPO, commit).rename(cache.snapshot(REPO, "f" * 40))
    assert run(server, cache).fetched == 0
    all_right(server, cache)


def test_what_a_kill_between_two_steps_leaves_is_cleared(
    server: hub_server.Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(part: Part) -> None:
        raise OSError("killed")

    monkeypatch.setattr(Part, "forget", killed)
    run(server, cache)
    monkeypatch.undo()
    etag = manifest_of(server).file(BIG).etag
    for name in (f".{etag}.json.x1y2", f"{etag}.123.link"):
        (cache.staging(REPO) / name).touch()
    (cache.snapshot(REPO, manifest_of(server).commit) / BIG).unlink()
    again = run(server, cache)
    assert again.whole and again.fetched == 0
    all_right(server, cache)


def test_files_of_one_content_come_once(cache: Cache, tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        for name in ("a.safetensors", "b.safetensors", "x.json", "y.json"):
            (folder / name).write_bytes(name[-5:].encode() * 40_000)

    alike = hub_server.Repository(REPO, "a" * 40, make, "alike")
    with hub_server.Hub(tmp_path / "server", [alike], xet=True) as server:
        hub = Hub(server.url)
        manifest = hub.manifest(REPO, "a" * 40)
        assert len({file.etag for file in manifest.files}) == 2
        result = fetch(hub, cache, manifest, manifest.files, patience=QUICK)
        assert result.whole, result.problems
        assert result.fetched == manifest.total / 2
        all_right(server, cache)


def test_two_at_once_do_not_write_one_file(server: hub_server.Hub, cache: Cache) -> None:
    file = manifest_of(server).file(BIG)
    with Part(cache.make_staging(REPO), file):
        result = run(server, cache)
    assert "another process" in outcome(result, BIG).words
    assert outcome(result, SMALL).whole
    assert run(server, cache).whole


def test_beyond_a_size_only_the_content_store_will_do(
    server: hub_server.Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "PLAIN_HTTP_AT_MOST", SIZES[BIG] - 1)
    result = run(server, cache)
    if not by_xet(server):
        assert "not in the Hub's content store" in outcome(result, BIG).words
        assert outcome(result, MIDDLE).whole
        return
    assert result.whole
    server.fault({"what": "status", "on": "xorb", "status": 503})
    server.forget_requests()
    result = run(server, Cache(cache.root.parent / "other"), paths=[BIG])
    assert outcome(result, BIG).state == "failed"
    assert server.bytes_served(REPO, BIG) == 0


def test_a_cache_that_cannot_be_written_is_said_once(server: hub_server.Hub, cache: Cache) -> None:
    blobs = cache.folder(REPO)
    blobs.mkdir(parents=True)
    (blobs / "blobs").write_text("in the way")
    result = run(server, cache)
    assert not result.whole
    assert all("blobs" in one.words for one in result.outcomes)


KILLED = """
import sys
from pathlib import Path
from spark_pair.weights.cache import Cache
from spark_pair.weights.fetch import fetch
from spark_pair.weights.hub import Hub
from spark_pair.weights.manifest import Manifest
import json
url, root, manifest = sys.argv[1:]
made = Manifest.from_dict(json.loads(Path(manifest).read_text()))
result = fetch(Hub(url), Cache(Path(root)), made, made.files)
sys.exit(0 if result.whole else 1)
"""


def test_killed_again_and_again_it_comes_to_its_end(
    server: hub_server.Hub, cache: Cache, tmp_path: Path
) -> None:
    chance = random.Random(4)  # noqa: S311 - the same run each time
    manifest = manifest_of(server)
    described = tmp_path / "manifest.json"
    described.write_text(json.dumps(manifest.as_dict()))
    command = [sys.executable, "-c", KILLED, server.url, str(cache.root), str(described)]
    slowed(server, 8 * MIB)
    server.forget_requests()
    kills, there = 0, 0
    for _ in range(6):
        aim = there + chance.randrange(MIB, 4 * MIB)
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            end = time.monotonic() + 60
            while (there := arrived(cache, manifest)) < aim and process.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        nothing_wrong(server, cache)
        there = arrived(cache, manifest)
    assert kills >= 4
    server.fault()
    there = arrived(cache, manifest)
    last = run(server, cache)
    assert last.whole
    all_right(server, cache)
    assert last.fetched <= sum(SIZES.values()) - there, "what was there was fetched again"
    served = server.bytes_served(REPO)
    # Pieces under way are lost, and the store's client fetches a little around each piece.
    assert served <= sum(SIZES.values()) * 1.1 + kills * 6 * MIB
    print(f"{kills} kills, sent {served / sum(SIZES.values()):.3f} times what is there")


def arrived(cache: Cache, manifest: Manifest) -> int:
    """Bytes in place and in parts."""
    return sum(
        file.size if cache.locate(REPO, manifest.commit, file) else cache.partial(REPO, file)
        for file in manifest.files
    )
