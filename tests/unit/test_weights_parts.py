"""Unfinished files: what of them is believed after a kill, a crash, a bad byte."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_pair.weights import parts
from spark_pair.weights.manifest import File
from spark_pair.weights.parts import Part, PartBusyError

BOOT = "boot-1"
CONTENT = random.Random(1).randbytes(100_000)  # noqa: S311 - the same each time
FILE = File("a.bin", len(CONTENT), "c" * 40, hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def _small_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FLUSH_BYTES", 5_000)
    monkeypatch.setattr(parts, "MARK_BYTES", 20_000)
    monkeypatch.setattr(parts, "READ_BYTES", 7_000)


def write(part: Part, upto: int, step: int = 3_000) -> None:
    while part.offset < upto:
        part.write(CONTENT[part.offset : min(part.offset + step, upto)])


def left(folder: Path, upto: int, boot: str = BOOT) -> Path:
    """A part that an earlier process left."""
    with Part(folder, FILE, boot) as part:
        part.recheck()
        write(part, upto)
        return part.path


def marks(folder: Path) -> list[int]:
    state = json.loads((folder / f"{FILE.etag}.json").read_text())
    return [mark[0] for mark in state["marks"]]


def believed(folder: Path, boot: str = BOOT) -> int:
    """How far a new process goes on from; what it then finishes must be right."""
    with Part(folder, FILE, boot) as part:
        part.recheck()
        offset = part.offset
        assert part.path.read_bytes() == CONTENT[:offset]
        write(part, FILE.size)
        part.settle()
        assert part.right()
    return offset


def test_a_whole_file_is_proven(tmp_path: Path) -> None:
    with Part(tmp_path, FILE, BOOT) as part:
        part.recheck()
        assert not part.complete and not part.right()
        write(part, FILE.size)
        assert part.complete and part.right()
        part.settle()
        assert part.path.read_bytes() == CONTENT
        part.discard()
    assert not list(tmp_path.iterdir())


def test_a_wrong_byte_is_seen_at_the_end(tmp_path: Path) -> None:
    with Part(tmp_path, FILE, BOOT) as part:
        part.recheck()
        write(part, 50_000)
        part.write(b"\0" * 50_000)
        assert part.complete and not part.right()
        part.restart()
        assert part.offset == 0 and part.path.stat().st_size == 0
        write(part, FILE.size)
        assert part.right()


def test_bytes_beyond_the_size_are_dropped(tmp_path: Path) -> None:
    with Part(tmp_path, FILE, BOOT) as part:
        part.recheck()
        part.write(CONTENT + b"more")
        assert part.right() and part.path.stat().st_size == FILE.size


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None
)
@given(st.lists(st.integers(0, FILE.size), max_size=5), st.integers(2_000, 40_000))
def test_after_any_kills_all_bytes_are_believed(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], step: int
) -> None:
    folder = tmp_path_factory.mktemp("part")
    reached = 0
    for stop in stops:
        with Part(folder, FILE, BOOT) as part:
            part.recheck()
            assert part.offset == reached
            write(part, stop, step)
            reached = part.offset
    assert believed(folder) == reached


@pytest.mark.parametrize(("upto", "kept"), [(19_000, 0), (40_000, 24_000), (94_000, 72_000)])
def test_after_a_crash_only_what_a_mark_covers_is_believed(
    tmp_path: Path, upto: int, kept: int
) -> None:
    path = left(tmp_path, upto)
    assert [mark for mark in marks(tmp_path) if mark <= upto][-1:] == ([kept] if kept else [])
    with path.open("r+b") as stream:  # the end never came to the disk
        stream.seek(kept)
        stream.write(b"\0" * (upto - kept))
    assert believed(tmp_path, "boot-2") == kept


@pytest.mark.parametrize("boot", [BOOT, "boot-2"])
def test_a_bad_byte_costs_what_came_since_the_mark_before(tmp_path: Path, boot: str) -> None:
    path = left(tmp_path, 94_000)
    assert marks(tmp_path) == [24_000, 48_000, 72_000]
    with path.open("r+b") as stream:
        stream.seek(50_000)
        stream.write(bytes([CONTENT[50_000] ^ 1]))
    assert believed(tmp_path, boot) == 48_000


@pytest.mark.parametrize(
    "state",
    [
        None,
        "",
        "[]",
        "{}",
        '{"schema": 2, "size": 100000, "boot": "boot-1", "marks": []}',
        '{"schema": 1, "size": 99999, "boot": "boot-1", "marks": []}',
    ],
)
def test_without_a_state_that_is_understood_nothing_is_believed(
    tmp_path: Path, state: str | None
) -> None:
    left(tmp_path, 50_000)
    path = tmp_path / f"{FILE.etag}.json"
    path.unlink() if state is None else path.write_text(state)
    assert believed(tmp_path) == 0


@pytest.mark.parametrize("bad", [[[1, 2, 3]], ["x"], [[-5, "x"]], [[24_000, "x"], [5, "y"]], [[]]])
def test_marks_that_make_no_sense_do_no_harm(tmp_path: Path, bad: list[Any]) -> None:
    left(tmp_path, 50_000)
    path = tmp_path / f"{FILE.etag}.json"
    state = json.loads(path.read_text()) | {"marks": bad}
    path.write_text(json.dumps(state))
    believed(tmp_path)


def test_where_the_boot_has_no_name_only_marks_count(tmp_path: Path) -> None:
    left(tmp_path, 50_000, "")
    assert believed(tmp_path, "") == 48_000


def test_a_part_longer_than_its_file_is_not_believed(tmp_path: Path) -> None:
    path = left(tmp_path, FILE.size)
    with path.open("ab") as stream:
        stream.write(b"more")
    assert believed(tmp_path) == 0


def test_a_full_disk_keeps_what_was_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def half(handle: int, data: Any, offset: int) -> int:
        if offset + len(data) > 51_000:
            if len(data) <= 500:
                raise OSError(errno.ENOSPC, "full")
            return real(handle, data[:500], offset)
        return real(handle, data, offset)

    with Part(tmp_path, FILE, BOOT) as part:
        part.recheck()
        monkeypatch.setattr(os, "pwrite", half)
        with pytest.raises(OSError, match="full"):
            write(part, FILE.size)
        monkeypatch.undo()
        assert part.path.stat().st_size == part.offset == 51_000
        write(part, FILE.size)
        assert part.right()


def test_an_interrupted_recheck_loses_nothing(tmp_path: Path) -> None:
    left(tmp_path, 95_000)

    def stop(offset: int) -> None:
        if offset > 30_000:
            raise KeyboardInterrupt

    with Part(tmp_path, FILE, BOOT) as part, pytest.raises(KeyboardInterrupt):
        part.recheck(stop)
    assert believed(tmp_path) == 95_000


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        Part(tmp_path, FILE, BOOT),
        pytest.raises(PartBusyError, match=r"a\.bin is being fetched by another process"),
    ):
        Part(tmp_path, FILE, BOOT)
    Part(tmp_path, FILE, BOOT).close()


def test_a_file_put_in_its_place_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process finishes the file between our opening and our locking it."""
    blob = tmp_path / "blob"
    left(tmp_path, FILE.size)
    flock = fcntl.flock

    def late(handle: int, how: int) -> None:
        if not blob.exists():
            (tmp_path / f"{FILE.etag}.part").rename(blob)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with Part(tmp_path, FILE, BOOT) as part:
        part.recheck()
        part.write(b"other")
    assert blob.read_bytes() == CONTENT


def test_a_link_in_place_of_a_part_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (tmp_path / f"{FILE.etag}.part").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        Part(tmp_path, FILE, BOOT)
    assert victim.read_text() == "keep"


def test_this_machine_has_a_name_for_its_boot() -> None:
    assert len(parts.boot_id()) == 36 and parts.boot_id() == parts.boot_id()
