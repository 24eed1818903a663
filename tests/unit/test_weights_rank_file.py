"""Rank files are told by their end: whole, in order, rightly named; the data stays unread."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from simulated_pair.standins.hub.hub_standin import weights
from spark_pair.weights import rank_file
from spark_pair.weights.rank_file import (
    MAGIC,
    WIDTHS,
    Footer,
    RankFileError,
    named_revisions,
    partial_rank_of,
    rank_of,
    read_footer,
)

TOOL = (
    Path(__file__).parents[2]
    / "simulated_pair"
    / "standins"
    / "engine"
    / "bin"
    / "tf-dsv41-rank-cache"
)
ENTRIES = [["a", "bfloat16", [2, 3], 0, 12], ["b.scale", "int32", [], 12, 4]]


def content(entries: Any, data: int, start: int | None = None) -> bytes:
    index = json.dumps(entries).encode()
    where = data if start is None else start
    return b"\x5a" * data + index + where.to_bytes(8, "little") + MAGIC


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(entries: Any = ENTRIES, data: int = 16, start: int | None = None) -> Path:
        path = tmp_path / f"rank0of2-{'0' * 20}.bin"
        path.write_bytes(content(entries, data, start))
        return path

    return make


def test_a_whole_file(write: Callable[..., Path]) -> None:
    path = write()
    index = hashlib.sha256(json.dumps(ENTRIES).encode()).hexdigest()
    assert read_footer(path) == Footer(2, index, 16, path.stat().st_size)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("cut")
    weights.checkpoint(1 << 18).make(folder / "model")
    done = subprocess.run(
        [sys.executable, "-I", TOOL, folder / "model", folder / "ranks", "1", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    return facts, Path(facts["file"])


def test_what_the_engines_tool_cuts(cut: tuple[dict[str, Any], Path]) -> None:
    facts, path = cut
    footer = read_footer(path)
    assert (footer.entries, footer.data_bytes) == (facts["entries"], facts["data_bytes"])
    assert footer.size == facts["data_bytes"] + facts["index_bytes"] + 16
    assert footer.name_problem(path.name) == ""
    assert rank_of(path.name) == 1


def test_a_renamed_file_is_whole_and_tells_that_its_name_is_wrong(
    cut: tuple[dict[str, Any], Path],
) -> None:
    footer = read_footer(cut[1])
    assert footer.index_sha256[:20] in footer.name_problem(f"rank1of2-{'0' * 20}.bin")
    assert "not named" in footer.name_problem("weights.bin")


def test_the_data_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0of2.bin"
    size = 10 * 2**40  # a hole: reading it would take hours
    index = json.dumps([["a", "uint8", [10, 2**39], 0, 5 * 2**40],
                        ["b", "uint8", [10, 2**39], 5 * 2**40, 5 * 2**40]]).encode()  # fmt: skip
    with path.open("wb") as file:
        file.seek(size)
        file.write(index + size.to_bytes(8, "little") + MAGIC)
    assert read_footer(path).data_bytes == size


@pytest.mark.parametrize("left", [0, 1, 15, 16, 40, -1, -8, -17])
def test_a_file_that_is_not_whole(write: Callable[..., Path], left: int) -> None:
    path = write()
    data = path.read_bytes()
    path.write_bytes(data[:left])
    with pytest.raises(RankFileError, match=r"too few|does not end with TFDSRK01"):
        read_footer(path)


@pytest.mark.parametrize(
    ("entries", "data", "words"),
    [
        ([], 0, "cannot be read"),
        ({}, 0, "cannot be read"),
        ([["a", "bfloat16", [2], 0]], 4, "describes no tensor"),
        ([["a", "bfloat16", [True], 0, 2]], 2, "describes no tensor"),
        ([["a", "bfloat16", [-2], 0, -4]], 0, "describes no tensor"),
        ([[1, "bfloat16", [2], 0, 4]], 4, "describes no tensor"),
        ([["a", "complex64", [2], 0, 16]], 16, "a type the engine has not"),
        ([["a", "bfloat16", [2], 0, 5]], 5, "does not give"),
        ([["a", "bfloat16", [2], 4, 4]], 8, "at byte 4 instead of 0"),
        ([["a", "uint8", [2], 0, 2], ["b", "uint8", [2], 1, 2]], 3, "at byte 1 instead of 2"),
        ([["a", "uint8", [2], 0, 2], ["b", "uint8", [2], 4, 2]], 6, "at byte 4 instead of 2"),
        ([["a", "uint8", [2], 0, 2]], 3, "lists 2 bytes of tensors and holds 3"),
        ([["a", "uint8", [2**40], 0, 2]], 2, "describes no tensor"),
    ],
)
def test_a_list_that_cannot_be(
    write: Callable[..., Path], entries: Any, data: int, words: str
) -> None:
    with pytest.raises(RankFileError, match=words):
        read_footer(write(entries, data))


@pytest.mark.parametrize("start", [2**64 - 1, 2**63, 10**6, 17])
def test_a_beginning_of_the_list_that_cannot_be(write: Callable[..., Path], start: int) -> None:
    with pytest.raises(RankFileError, match=r"which cannot be|cannot be read"):
        read_footer(write(start=start))


def test_a_damaged_beginning_does_not_make_us_read_the_tensors(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_file, "_MAX_INDEX_BYTES", 50)
    with pytest.raises(RankFileError, match="which cannot be"):
        read_footer(write(start=0))


tensors = some.lists(
    some.tuples(
        some.text(max_size=8),
        some.sampled_from(sorted(WIDTHS)),
        some.lists(some.integers(0, 5), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


def _laid_out(found: list[tuple[str, str, list[int]]]) -> tuple[list[Any], int]:
    entries: list[Any] = []
    at = 0
    for key, dtype, shape in found:
        size = WIDTHS[dtype]
        for one in shape:
            size *= one
        entries.append([key, dtype, shape, at, size])
        at += size
    return entries, at


@given(tensors)
def test_whatever_is_laid_out_back_to_back_is_whole(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[str, str, list[int]]]
) -> None:
    entries, data = _laid_out(found)
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(content(entries, data))
    footer = read_footer(path)
    assert (footer.entries, footer.data_bytes) == (len(entries), data)


@given(tensors, some.data())
def test_bytes_cut_out_or_put_in_are_noticed(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[tuple[str, str, list[int]]],
    more: some.DataObject,
) -> None:
    entries, data = _laid_out(found)
    whole = content(entries, data)
    at = more.draw(some.integers(0, len(whole)))
    other = more.draw(
        some.one_of(
            some.integers(at + 1, len(whole) + 1).map(lambda end: whole[:at] + whole[end:]),
            some.binary(min_size=1, max_size=20).map(lambda new: whole[:at] + new + whole[at:]),
        ).filter(lambda changed: len(changed) != len(whole))
    )
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(other)
    try:
        footer = read_footer(path)
    except RankFileError:
        return
    # A list that is still right, blanks in it for example, is told from the name.
    index = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    assert footer.index_sha256 != index or footer.data_bytes != data


@given(some.binary(max_size=200))
def test_anything_else_is_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    for text in (data, data + len(data).to_bytes(8, "little") + MAGIC, data + bytes(8) + MAGIC):
        path.write_bytes(text)
        with pytest.raises(RankFileError):
            read_footer(path)


@pytest.mark.parametrize(
    ("name", "rank", "partial"),
    [
        (f"rank0of2-{'0a' * 10}.bin", 0, None),
        (f"rank1of2-{'0a' * 10}.bin", 1, None),
        (f"rank2of2-{'0a' * 10}.bin", None, None),
        (f"rank1of2-{'0a' * 10}.bin.part", None, None),
        (".rank1of2.partial", None, 1),
        ("rank-cache", None, None),
    ],
)
def test_names(name: str, rank: int | None, partial: int | None) -> None:
    assert (rank_of(name), partial_rank_of(name)) == (rank, partial)


@pytest.mark.parametrize(
    ("folder", "revisions"),
    [
        ("tensorfold-dsv41/45ee5d0f/checkpoint/rank-cache", ("45ee5d0f", None)),
        ("tensorfold-dsv41/45ee5d0f-ablit-0bdc2036/checkpoint/rank-cache",
         ("45ee5d0f", "0bdc2036")),
        ("tensorfold-dsv41/45ee5d0f-ablit-/rank-cache", None),
        ("tensorfold-dsv41/rank-cache", None),
    ],
)  # fmt: skip
def test_what_the_folder_says(folder: str, revisions: tuple[str, str | None] | None) -> None:
    assert named_revisions(Path("/home/spark") / folder / "rank0.bin") == revisions
