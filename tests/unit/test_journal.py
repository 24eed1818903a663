"""The journal: readable after any power cut, and never in the way of a recovery."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_pair.journal import Event, Journal, Record, former, open_record, read, records, trim


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var/journal.jsonl"


def written(path: Path, *events: Event) -> Journal:
    journal = Journal(path, clock=lambda: 1.0)
    for event in events:
        journal.append(event)
    return journal


class TestAppend:
    def test_events_come_back_in_order_with_their_time(self, path: Path) -> None:
        written(path, {"event": "begin", "id": "1"}, {"event": "end", "id": "1"})
        assert read(path) == [
            {"event": "begin", "id": "1", "time": 1.0},
            {"event": "end", "id": "1", "time": 1.0},
        ]

    def test_one_line_an_event(self, path: Path) -> None:
        written(path, {"event": "note", "text": "two\nlines \u2028 ü"})
        assert path.read_bytes().count(b"\n") == 1
        assert read(path)[0]["text"] == "two\nlines \u2028 ü"

    def test_nothing_written_yet(self, path: Path) -> None:
        assert read(path) == []

    def test_a_torn_last_line_does_not_take_the_next_event_with_it(self, path: Path) -> None:
        written(path, {"event": "begin"})
        with path.open("ab") as stream:
            stream.write(b'{"event": "pha')
        written(path, {"event": "end"})
        assert [event["event"] for event in read(path)] == ["begin", "end"]

    def test_a_write_that_ends_early_is_finished(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
        written(path, {"event": "begin", "text": "a longer text"})
        assert read(path)[0]["text"] == "a longer text"

    def test_a_disk_that_fills_up_in_the_middle_is_an_error(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = [10]
        write = os.write

        def fill(handle: int, data: bytes) -> int:
            if not left[0]:
                raise OSError(28, "No space left on device")
            done = write(handle, data[: left[0]])
            left[0] -= done
            return done

        monkeypatch.setattr(os, "write", fill)
        with pytest.raises(OSError, match="No space"):
            written(path, {"event": "begin"})
        assert read(path) == []

    def test_before_the_stop_a_failing_write_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "var").write_text("in the way")
        with pytest.raises(OSError, match="exists"):
            written(tmp_path / "var/journal.jsonl", {"event": "begin"})

    def test_after_the_stop_it_is_only_reported(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "var").write_text("in the way")
        journal = Journal(tmp_path / "var/journal.jsonl", essential=False)
        journal.append({"event": "phase", "phase": "start"})
        assert journal.failed_writes == 1
        said = capsys.readouterr().err
        assert "going on without it" in said
        assert '"phase": "start"' in said


class TestReserve:
    def test_room_is_set_aside_without_changing_the_file(self, path: Path) -> None:
        journal = written(path, {"event": "begin"})
        before = path.read_bytes()
        journal.reserve()
        assert path.read_bytes() == before
        assert path.stat().st_blocks * 512 >= 1 << 20
        journal.append({"event": "end"})
        assert len(read(path)) == 2

    def test_in_a_file_that_is_not_there_yet(self, path: Path) -> None:
        Journal(path).reserve()
        assert path.read_bytes() == b""

    def test_a_full_disk_is_an_error(self, path: Path) -> None:
        with pytest.raises(OSError, match="journal"):
            Journal(path).reserve(1 << 61)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00" * 64,
        b"\xff\xfe\x00{}",
        b"null",
        b"[]",
        b'"event"',
        b'{"no": "event"}',
        b'{"event": "begin"',
        b"\xef\xbb\xbf{}",
        b"NaN",
    ],
)
def test_foreign_lines_are_passed_over(path: Path, line: bytes) -> None:
    written(path, {"event": "begin"})
    with path.open("ab") as stream:
        stream.write(line + b"\n")
    written(path, {"event": "end"})
    assert [event["event"] for event in read(path)] == ["begin", "end"]


events = st.lists(
    st.fixed_dictionaries(
        {"event": st.sampled_from(["begin", "phase", "note", "end"])},
        optional={
            "id": st.text(max_size=4),
            "text": st.text(max_size=12),
            "nested": st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        },
    ),
    max_size=6,
)


def in_a_file(data: bytes, act: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(data)
        return act(path)


@given(rows=events, cut=st.integers(min_value=0), tail=st.sampled_from([b"", b"\0", b"\0" * 9]))
def test_any_torn_tail_leaves_exactly_the_whole_lines(
    rows: list[Event], cut: int, tail: bytes
) -> None:
    lines = [json.dumps(row, sort_keys=True).encode() for row in rows]
    data = b"".join(line + b"\n" for line in lines)
    size = cut % (len(data) + 1)
    kept = data[:size]
    whole, end = [], 0
    for row, line in zip(rows, lines, strict=True):
        end += len(line) + 1
        # A line of which only the newline is missing is whole, unless something else stuck to it.
        if size >= end or (size == end - 1 and not tail):
            whole.append(row)
    assert in_a_file(kept + tail, read) == whole

    def go_on(path: Path) -> list[Event]:
        Journal(path, clock=lambda: 1.0).append({"event": "resumed"})
        return read(path)

    assert in_a_file(kept + tail, go_on) == [*whole, {"event": "resumed", "time": 1.0}]


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_no_file_raises(data: bytes) -> None:
    assert isinstance(in_a_file(data, read), list)
    in_a_file(data, open_record)


def story(path: Path, *switches: str, notes: int = 20) -> None:
    for switch in switches:
        rows = [event("note", switch, text="x" * 50)] * notes
        written(path, event("begin", switch), *rows, event("end", switch))


def ids(path: Path) -> list[str]:
    return [record.id for record in records(read(path))]


class TestTrim:
    def test_a_small_journal_stays_as_it_is(self, path: Path) -> None:
        story(path, "1", "2")
        trim(path, above=1 << 20, keep=1)
        assert ids(path) == ["1", "2"]
        assert not former(path).exists()

    def test_whole_switches_are_kept_the_newest_ones(self, path: Path) -> None:
        story(path, *"123456")
        size = path.stat().st_size
        trim(path, above=size - 1, keep=size // 2 + 10)
        assert ids(path) == ["4", "5", "6"]
        assert all(len(record.events) == 22 for record in records(read(path)))
        assert ids(former(path)) == list("123456")
        assert path.stat().st_mode & 0o777 == 0o644

    def test_the_newest_one_is_kept_however_long_it_is(self, path: Path) -> None:
        story(path, "1", "2", notes=100)
        trim(path, above=1, keep=1)
        assert ids(path) == ["2"]

    def test_room_is_set_aside_in_the_new_file_as_well(self, path: Path) -> None:
        story(path, "1", "2")
        trim(path, above=1, keep=1)
        assert path.stat().st_blocks * 512 >= 1 << 20

    def test_a_second_time_replaces_what_was_put_aside(self, path: Path) -> None:
        story(path, "1", "2")
        trim(path, above=1, keep=1)
        story(path, "3")
        trim(path, above=1, keep=1)
        assert ids(path) == ["3"]
        assert ids(former(path)) == ["2", "3"]

    @pytest.mark.parametrize("step", ["reserve", "link", "replace"])
    def test_a_disk_that_refuses_leaves_the_journal(
        self, path: Path, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        story(path, "1", "2")
        before = path.read_bytes()

        def refuse(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        owner = {"reserve": Journal, "link": os, "replace": Path}[step]
        monkeypatch.setattr(owner, step, refuse)
        trim(path, above=1, keep=1)
        assert path.read_bytes() == before
        assert not list(path.parent.glob("*.new"))

    def test_without_a_journal(self, path: Path) -> None:
        trim(path)
        assert not path.exists()

    def test_torn_and_foreign_lines(self, path: Path) -> None:
        story(path, "1", "2")
        with path.open("ab") as stream:
            stream.write(b'\xff"event": "begin"\n{"event": "begin", "id"')
        trim(path, above=1, keep=1)
        assert ids(path) == ["2"]


def test_only_the_lines_of_one_switch_are_read(path: Path) -> None:
    story(path, "one", "two", notes=1)
    with path.open("ab") as stream:
        stream.write(b'{"event": "note", "id": "on')
    assert {row["id"] for row in read(path, "two")} == {"two"}
    assert len(read(path, "two")) == 3


def event(kind: str, switch: str = "1", **more: Any) -> Event:
    return {"event": kind, "id": switch, "time": 1.0, **more}


class TestRecords:
    def test_grouped_by_switch_in_order(self) -> None:
        known = records(
            [event("begin", "1"), event("begin", "2"), event("end", "1"), event("note", "2")]
        )
        assert [(record.id, len(record.events)) for record in known] == [("1", 2), ("2", 2)]
        assert known[0].begin == event("begin", "1")
        assert known[0].ended is not None
        assert known[1].ended is None

    def test_events_without_a_beginning_or_an_id_are_left_out(self) -> None:
        assert records([event("phase", "9"), {"event": "begin"}, event("end", "9")]) == []

    def test_phases_with_their_seconds(self) -> None:
        record = Record(
            "1",
            (
                event("begin"),
                event("phase", phase="drain"),
                event("outcome", phase="drain", outcome="ok", seconds=61),
                event("phase", phase="arm"),
            ),
        )
        assert record.phases() == [("drain", "ok", 61.0)]
        assert record.last_phase == "arm"
        assert record.last_outcome is None  # arm was entered and has not ended

    def test_the_last_outcome_when_nothing_was_entered_since(self) -> None:
        record = Record(
            "1",
            (
                event("begin"),
                event("phase", phase="drain"),
                event("outcome", phase="drain", outcome="ok", seconds=61),
                event("note", text="x"),
            ),
        )
        assert record.last_outcome == ("drain", "ok")

    def test_of_a_beginning_only(self) -> None:
        record = Record("1", (event("begin"),))
        assert record.last_phase is None
        assert record.last_outcome is None

    def test_only_the_newest_switch_can_be_open(self, path: Path) -> None:
        assert open_record(path) is None
        written(path, event("begin", "1"), event("begin", "2"), event("phase", "2", phase="arm"))
        opened = open_record(path)
        assert opened is not None
        assert opened.id == "2"
        written(path, event("end", "2"))
        assert open_record(path) is None
