"""A program is run to its end, and nothing that it leaves behind is waited for without end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_pair.image import program
from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobStoppedError


def said_by(script: str) -> tuple[program.Ended, list[str]]:
    lines: list[str] = []
    return program.run(["bash", "-c", script], Reporter(), line=lines.append), lines


def test_lines_come_whole_whatever_ends_them() -> None:
    ended, lines = said_by(
        r"printf 'one\rtwo\r\n\ncaf\303'; sleep 0.05; printf '\251\nlast'; exit 3"
    )
    assert lines == ["one", "two", "café", "last"]
    assert (ended.code, ended.last_lines) == (3, ("one", "two", "café", "last"))


def test_the_log_holds_all_of_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        program.run(["bash", "-c", "echo one; printf last"], Reporter(), log=log)
    assert (tmp_path / "log").read_text() == "one\nlast"


class TestSomethingThatTakesThePipeAlong:
    """In a session of its own, so that ending the program's group does not end it."""

    @pytest.fixture
    def child(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        monkeypatch.setattr(program, "_KILL_SECONDS", 0.1)
        pid = tmp_path / "pid"
        yield pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)

    def left(self, child: Path, what: str) -> str:
        return (
            f"setsid bash -c 'echo $$ >{child}.new; mv {child}.new {child}; {what}' & "
            f"until [ -e {child} ]; do sleep 0.01; done"
        )

    def lives(self, child: Path) -> bool:
        stat = Path(f"/proc/{child.read_text().strip()}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"

    @pytest.mark.parametrize(
        "what", ["sleep 20", "for i in {1..2000}; do echo more; sleep 0.01; done"]
    )
    def test_is_not_waited_for(self, child: Path, what: str) -> None:
        ended, lines = said_by(f"{self.left(child, what)}; echo done")
        assert ended.ok and "done" in lines
        assert self.lives(child)

    def test_does_not_hold_a_stop_up(self, child: Path) -> None:
        reporter = Reporter()

        def watch() -> None:
            if child.exists():
                reporter.stop_asked.set()

        script = f"{self.left(child, 'sleep 20')}; sleep 60"
        with pytest.raises(JobStoppedError):
            program.run(["bash", "-c", script], reporter, watch=watch)
        assert self.lives(child)
