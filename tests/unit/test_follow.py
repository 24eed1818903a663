"""A switch's story as people and plays read it: lines, the end, the history."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_pair.follow import history, history_text, line_of, progress, summary
from spark_pair.journal import Event, Record

NOON = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def event(kind: str, switch: str = "s1", **more: Any) -> Event:
    return {"event": kind, "id": switch, "time": NOON, **more}


BEGIN = event("begin", target="deepseek", asked_by="ann", reason="a test")
STORY = [
    BEGIN,
    event("phase", phase="back_out"),
    event("note", text="hikari is serving"),
    event("outcome", phase="back_out", outcome="ok", seconds=1.25, message=""),
]
END = event("end", exit=11, message="backed out; hikari serves as before", changed=False)
STUCK = event("stuck", exit=30, message="NO MODEL SERVER RUNS", changed=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def write(path: Path, *events: Event) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in events))


class TestLines:
    @pytest.mark.parametrize(
        ("told", "line"),
        [
            (BEGIN, "22:13:20 switch to deepseek asked for by ann"),
            (event("note", text="hello"), "22:13:20   hello"),
            (
                event("outcome", phase="back_out", outcome="gave_up", seconds=61),
                "22:13:20 back out: gave_up (61.0 s)",
            ),
            (END, "22:13:20 backed out; hikari serves as before"),
            (STUCK, "22:13:20 NO MODEL SERVER RUNS"),
            (event("phase", phase="stop"), None),
            (event("armed", boots={}), None),
            (event("from the future"), None),
        ],
    )
    def test_of(self, told: Event, line: str | None) -> None:
        assert line_of(told) == line


class TestProgress:
    def test_running(self, path: Path) -> None:
        write(path, *STORY)
        assert progress(path, "s1", 0, running=True) == {
            "id": "s1",
            "state": "running",
            "exit": None,
            "changed": None,
            "message": "",
            "next": 4,
            "lines": [
                "22:13:20 switch to deepseek asked for by ann",
                "22:13:20   hikari is serving",
                "22:13:20 back out: ok (1.2 s)",
            ],
        }

    def test_done(self, path: Path) -> None:
        write(path, *STORY, END)
        told = progress(path, "s1", 4, running=True)
        assert told["state"] == "done"
        assert (told["exit"], told["changed"]) == (11, False)
        assert told["message"] == "backed out; hikari serves as before"
        assert told["lines"] == ["22:13:20 backed out; hikari serves as before"]
        assert told["next"] == 5

    def test_lost_without_a_process_and_without_an_end(self, path: Path) -> None:
        write(path, *STORY)
        assert progress(path, "s1", 4, running=False)["state"] == "lost"

    @pytest.mark.parametrize("rows", [[BEGIN], [BEGIN, event("phase", phase="drain")]])
    def test_lost_before_anything_was_touched_is_no_loss(
        self, path: Path, rows: list[Event]
    ) -> None:
        write(path, *rows)
        told = progress(path, "s1", len(rows), running=False)
        assert (told["state"], told["exit"], told["changed"]) == ("done", 10, False)
        assert "before anything was touched" in told["message"]
        write(path, *rows, event("armed"))
        assert progress(path, "s1", len(rows), running=False)["state"] == "lost"

    def test_done_does_not_need_a_process(self, path: Path) -> None:
        write(path, *STORY, END)
        assert progress(path, "s1", 0, running=False)["state"] == "done"

    def test_asked_for_but_not_begun(self, path: Path) -> None:
        assert progress(path, "s1", 0, running=True) == {
            "id": "s1",
            "state": "running",
            "exit": None,
            "changed": None,
            "message": "",
            "next": 0,
            "lines": [],
        }

    def test_stuck_is_an_end_for_who_follows(self, path: Path) -> None:
        write(path, *STORY, STUCK)
        told = progress(path, "s1", 0, running=True)
        assert (told["state"], told["exit"], told["changed"]) == ("done", 30, True)

    def test_a_stuck_switch_that_is_resumed_runs_again(self, path: Path) -> None:
        write(path, *STORY, STUCK, event("note", text="resuming"))
        told = progress(path, "s1", len(STORY), running=True)
        assert told["state"] == "running"
        assert told["exit"] is None
        assert progress(path, "s1", len(STORY), running=False)["state"] == "done"

    def test_an_end_that_was_told_before_is_not_told_again(self, path: Path) -> None:
        write(path, *STORY, STUCK)
        after = len(STORY) + 1
        assert progress(path, "s1", after, running=True)["state"] == "running"
        write(path, *STORY, STUCK, END)
        assert progress(path, "s1", after, running=False)["exit"] == END["exit"]

    def test_each_line_is_told_once(self, path: Path) -> None:
        told: list[str] = []
        seen = 0
        for known in range(1, 6):
            write(path, *[*STORY, END][:known])
            step = progress(path, "s1", seen, running=True)
            told += step["lines"]
            seen = step["next"]
        assert told == progress(path, "s1", 0, running=True)["lines"]

    def test_other_switches_are_not_told(self, path: Path) -> None:
        write(path, {**BEGIN, "id": "s0"}, BEGIN, {**END, "id": "s0"})
        told = progress(path, "s1", 0, running=True)
        assert told["state"] == "running"
        assert told["next"] == 1


class TestHistory:
    def test_a_summary_adds_up_repeated_phases(self) -> None:
        recover = [
            event("outcome", phase="recover", outcome=outcome, seconds=seconds)
            for outcome, seconds in (("again", 10.1), ("ok", 20.2))
        ]
        told = summary(Record("s1", (BEGIN, *recover, {**END, "time": NOON + 60})))
        assert told == {
            "id": "s1",
            "time": NOON,
            "target": "deepseek",
            "asked_by": "ann",
            "reason": "a test",
            "exit": 11,
            "message": "backed out; hikari serves as before",
            "ended_at": NOON + 60,
            "phases": {"recover": 30.3},
            "cut_off": [],
        }

    def test_phases_in_which_the_process_died(self) -> None:
        entered = [event("phase", phase=phase) for phase in ("stop", "start", "recover")]
        done = event("outcome", phase="stop", outcome="ok", seconds=1)
        told = summary(Record("s1", (BEGIN, entered[0], done, entered[1], entered[2])))
        assert told["phases"] == {"stop": 1.0}
        assert told["cut_off"] == ["start", "recover"]
        assert told["message"] == "not ended, in recover"

    @pytest.mark.parametrize("missing", ["target", "time", "reason", "asked_by"])
    def test_a_foreign_line_spoils_no_table(self, path: Path, missing: str) -> None:
        write(path, {key: value for key, value in BEGIN.items() if key != missing}, END)
        assert "exit 11" in history_text(history(path, 10))

    def test_an_open_switch(self) -> None:
        told = summary(Record("s1", (BEGIN,)))
        assert (told["exit"], told["message"], told["ended_at"]) == (None, "not ended", None)

    def test_a_stuck_switch_that_was_resumed_shows_its_end(self) -> None:
        assert summary(Record("s1", (BEGIN, STUCK)))["exit"] == 30
        assert summary(Record("s1", (BEGIN, STUCK, END)))["exit"] == 11

    def test_the_last_ones_oldest_first(self, path: Path) -> None:
        write(path, *({**BEGIN, "id": f"s{number}"} for number in range(5)))
        assert [row["id"] for row in history(path, 2)] == ["s3", "s4"]
        assert len(history(path, 0)) == 5
        assert len(history(path, 99)) == 5

    def test_without_a_journal(self, path: Path) -> None:
        assert history(path, 10) == []
        assert history_text([]) == "no switch yet"

    def test_table(self, path: Path) -> None:
        killed = event("phase", "s2", phase="stop")
        write(path, *STORY, {**END, "time": NOON + 9}, {**BEGIN, "id": "s2", "target": "none"},
              killed)  # fmt: skip
        assert history_text(history(path, 10)).splitlines() == [
            "2023-11-14 22:13:20  -> deepseek     exit 11 gave up     "
            "backed out; hikari serves as before",
            "    by ann; a test; seconds: back_out 1.2, in all 9.0",
            "2023-11-14 22:13:20  -> none         open                not ended, in stop",
            "    by ann; a test; seconds: stop cut off",
        ]

    def test_a_torn_last_line(self, path: Path) -> None:
        write(path, *STORY, END)
        with path.open("a") as stream:
            stream.write('{"event": "begin", "id": "s2", "ti')
        assert [row["exit"] for row in history(path, 10)] == [11]

    def test_what_was_cut_off_the_journal_is_still_told_once(self, path: Path) -> None:
        write(path, *STORY, END)
        older = path.with_name("journal.jsonl.1")
        write(older, {**BEGIN, "id": "s0"}, {**END, "id": "s0"}, *STORY, END)
        assert [row["id"] for row in history(path, 10)] == ["s0", "s1"]
        assert history(path, 10)[1]["phases"] == {"back_out": 1.25}
