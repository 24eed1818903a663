"""Downloads that survive what happens to downloads, against a stand-in Hub on loopback."""

from __future__ import annotations

import errno
import getpass
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
from spark_pair.weights.hub import Hub, HubError
from spark_pair.weights.manifest import Manifest
from spark_pair.weights.pace import Limiter, Reading
from spark_pair.weights.parts import Part

ROOT = Path(__file__).resolve().parents[2]
REPO, GATED = "own/open", "own/gated"
BIG, MIDDLE, SMALL = "big.safetensors", "b c/-middle.safetensors", "d/small.json"
MIB = 1 << 20
SIZES = {BIG: 24 * MIB + 17, MIDDLE: 5 * MIB, SMALL: 3000, "empty": 0, "README.md": 400}
QUICK = Patience(stall_seconds=20, seconds=0, tries=4, progress_bytes=MIB, wait_factor=0.01)

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
    """What is in place is right and named; nobody is told that the commit is complete."""
    manifest = manifest_of(server, repo)
    for file in manifest.files:
        entry = cache.snapshot(repo, manifest.commit) / file.path
        if entry.exists():
            assert entry.read_bytes() == server.content(repo, file.path), file.path
    ref = cache.folder(repo) / "refs" / f"pinned-{manifest.commit[:8]}"
    there = cache.folder(repo).rglob("snapshots/*/**/*")
    assert ref.is_file() is any(path.is_symlink() for path in there)
    assert not (cache.folder(repo) / "trees").exists()


@pytest.mark.fault(23)
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


def test_the_content_store_sends_no_chunk_twice(server: hub_server.Hub, cache: Cache) -> None:
    if not by_xet(server):
        pytest.skip("there is no content store")
    assert run(server, cache, paths=[BIG]).whole
    assert SIZES[BIG] < server.bytes_served(REPO, BIG) < SIZES[BIG] * 1.005


def test_a_store_that_does_not_tell_where_chunks_begin_is_asked_once(
    server: hub_server.Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(self: Hub, store: str, token: str, xet_hash: str, at: int) -> int:
        asked.append(at)
        raise HubError("answer", "No.")

    monkeypatch.setattr(Hub, "bytes_into_chunk", refuse)
    assert run(server, cache, paths=[BIG]).whole
    assert len(asked) == (1 if by_xet(server) else 0)


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


@pytest.mark.fault(32)
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
        # What was fetched may be right, and the list wrong.
        assert f"/manifests/own--open@{manifest_of(server).commit}.json" in words

    server.fault()
    assert run(server, cache).whole
    all_right(server, cache)


def test_a_login_page_costs_no_byte_of_what_is_there(server: hub_server.Hub, cache: Cache) -> None:
    if by_xet(server):
        pytest.skip("the content store has no such answer")
    slowed(server, 12 * MIB)
    stop, progress = stop_after(6 * MIB)
    first = run(server, cache, paths=[BIG], stop=stop, progress=progress)
    (part,) = parts_in(cache)
    before = part.read_bytes()
    assert first.fetched == len(before) >= 6 * MIB
    for fault in ("login_page", "truncate"):
        server.fault(
            {"what": fault, "on": "content", "files": BIG, "at": 3 * MIB},
            {"what": "ignore_range", "on": "content", "files": BIG},
        )
        words = outcome(run(server, cache, paths=[BIG]), BIG).words
        assert f"stands at {len(before):,} of" in words
        assert ("login page" in words) is (fault == "login_page")
        assert part.read_bytes() == before
    server.fault()
    assert run(server, cache, paths=[BIG]).fetched == SIZES[BIG] - len(before)


def test_a_login_page_is_not_taken_for_a_small_file(server: hub_server.Hub, cache: Cache) -> None:
    server.fault({"what": "login_page", "on": "content", "files": SMALL, "times": 2})
    result = run(server, cache, paths=[SMALL])
    assert result.whole and result.fetched == SIZES[SMALL]


def test_a_server_without_ranges_costs_what_is_there_only_when_it_brought_it_again(
    server: hub_server.Hub, cache: Cache
) -> None:
    if by_xet(server):
        pytest.skip("the content store has no such answer")
    server.fault({"what": "drop", "on": "content", "files": BIG, "at": 12 * MIB, "times": 2})
    run(server, cache, paths=[BIG], patience=replace(QUICK, tries=1, progress_bytes=1 << 40))
    (part,) = parts_in(cache)
    before = part.read_bytes()
    assert len(before) >= 11 * MIB
    server.fault(
        {"what": "ignore_range", "on": "content", "files": BIG},
        {"what": "drop", "on": "content", "files": BIG, "at": 5 * MIB},
    )
    words = outcome(run(server, cache, paths=[BIG]), BIG).words
    assert f"stands at {len(before):,} of" in words and part.read_bytes() == before
    server.fault({"what": "ignore_range", "on": "content", "files": BIG})
    assert run(server, cache, paths=[BIG]).whole
    assert (cache.snapshot(REPO, manifest_of(server).commit) / BIG).read_bytes() == server.content(
        REPO, BIG
    )


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


def test_addresses_that_open_doors_are_not_told(
    server: hub_server.Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_xet(server):
        pytest.skip("there is no content store")

    def refuse(*_: Any) -> bytes:
        raise RuntimeError(
            "status 403 for url (https://store.test/xorb/ab?Signature=zz&Key=yy): no?"
        )

    monkeypatch.setattr(fetch_module._Stored, "_read", refuse)
    server.fault({"what": "status", "on": "content", "status": 503})
    words = outcome(run(server, cache, paths=[BIG], patience=replace(QUICK, tries=2)), BIG).words
    assert "(https://store.test/xorb/ab?…): no?" in words and "Signature" not in words


@pytest.mark.fault(7)
def test_a_connection_without_bytes_is_made_anew(server: hub_server.Hub, cache: Cache) -> None:
    server.fault(
        {"what": "hang", "on": content_kind(server), "at": 9 * MIB, "seconds": 6, "times": 1}
    )
    result = run(server, cache, paths=[BIG], patience=replace(QUICK, stall_seconds=1.0))
    assert result.whole, result.problems
    assert outcome(result, BIG).fetched <= SIZES[BIG]


@pytest.mark.fault(7)
def test_an_outage_is_waited_for_by_time_and_not_by_tries(
    server: hub_server.Hub, cache: Cache
) -> None:
    on = content_kind(server)
    server.fault({"what": "status", "on": on, "status": 503, "files": "*", "times": 14})
    patience = replace(QUICK, seconds=600, tries=2, wait_factor=0.001)
    result = run(server, cache, paths=[BIG, SMALL], patience=patience)
    assert result.whole, result.problems


def test_a_file_that_was_given_up_is_tried_once_more_at_the_end(
    server: hub_server.Hub, cache: Cache
) -> None:
    if by_xet(server):
        pytest.skip("plain HTTP would help out")
    told: list[Outcome] = []
    for times, whole in ((4, True), (8, False)):
        server.fault(
            {"what": "status", "on": "content", "status": 503, "files": MIDDLE, "times": times}
        )
        result = run(server, Cache(cache.root / f"{times}"), settled=told.append)
        assert result.whole is whole
        assert sorted(one.file.path for one in told) == sorted(SIZES)
        assert [one for one in told if one.whole is False] == [
            one for one in result.outcomes if one.whole is False
        ]
        told.clear()


def test_when_nothing_comes_at_all_it_ends_for_all(server: hub_server.Hub, cache: Cache) -> None:
    manifest = manifest_of(server)
    server.fault({"what": "status", "status": 503})
    patience = replace(QUICK, seconds=0.05, tries=2, wait_factor=0.02)
    result = fetch(Hub(server.url, TOKEN), cache, manifest, manifest.files, workers=1,
                   patience=patience)  # fmt: skip
    assert "stands at 0 of" in result.words
    assert [one.state for one in result.outcomes].count("failed") == 1


@pytest.mark.fault(33)
def test_a_file_that_is_missing_fails_alone(server: hub_server.Hub, cache: Cache) -> None:
    manifest = manifest_of(server)
    server.fault({"what": "missing", "files": SMALL, "on": "content"})
    hub = Hub(server.url, None, sleep=lambda seconds: None)
    result = fetch(hub, cache, manifest, manifest.files, patience=QUICK)
    assert outcome(result, SMALL).state == "failed" and SMALL in outcome(result, SMALL).words
    assert sum(one.whole for one in result.outcomes) == len(SIZES) - 1
    nothing_wrong(server, cache)


@pytest.mark.fault(22)
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


@pytest.mark.fault(32)
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


def test_a_wrong_file_is_out_before_its_replacement_comes(
    server: hub_server.Hub, cache: Cache
) -> None:
    run(server, cache)
    manifest = manifest_of(server)
    entry = cache.snapshot(REPO, manifest.commit) / BIG
    entry.write_bytes(bytes(SIZES[BIG]))
    server.fault(
        *({"what": "status", "status": 503, "files": BIG, "on": on} for on in ("content", "xorb"))
    )
    assert not run(server, cache).whole
    assert not os.path.lexists(entry) and not cache.blob(REPO, manifest.file(BIG)).exists()
    server.fault()
    assert run(server, cache).whole
    all_right(server, cache)


def test_a_wrong_copy_in_the_snapshot_costs_not_the_right_blob(
    server: hub_server.Hub, cache: Cache
) -> None:
    run(server, cache)
    entry = cache.snapshot(REPO, manifest_of(server).commit) / BIG
    entry.unlink()
    entry.write_bytes(bytes(SIZES[BIG]))
    assert run(server, cache).fetched == 0
    all_right(server, cache)


def test_a_file_that_cannot_be_read_is_told_with_its_owner(
    server: hub_server.Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(server, cache, paths=[SMALL])
    blob = cache.blob(REPO, manifest_of(server).file(SMALL))
    opened = Path.open

    def refuse(path: Path, *more: Any, **named: Any) -> Any:
        if path.name == blob.name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *more, **named)

    monkeypatch.setattr(Path, "open", refuse)
    words = outcome(run(server, cache, paths=[SMALL]), SMALL).words
    assert "belongs to" in words and f"chown {getpass.getuser()}:" in words and blob.name in words
    monkeypatch.undo()
    assert blob.is_file()


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


@pytest.mark.fault(7)
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


def test_what_is_said_of_a_broken_connection_is_over_with_the_next_one(
    server: hub_server.Hub, cache: Cache
) -> None:
    server.fault({"what": "drop", "on": content_kind(server), "at": 5 * MIB, "times": 1})
    steps: list[str] = []
    result = run(
        server,
        cache,
        paths=[BIG],
        progress=lambda reading: steps.append(reading.step),
        limit_bytes_per_second=20 * MIB,
    )
    assert result.whole
    assert steps[-1] == f"fetching {BIG}"


def test_every_file_is_told_as_soon_as_it_is_there(server: hub_server.Hub, cache: Cache) -> None:
    told: list[tuple[Outcome, bool]] = []
    result = run(
        server,
        cache,
        settled=lambda one: told.append((one, bool(one.path and one.path.is_file()))),
    )
    assert sorted((one for one, _ in told), key=lambda one: one.file.path) == list(result.outcomes)
    assert all(there for _, there in told)
