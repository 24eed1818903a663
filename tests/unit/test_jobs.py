"""Jobs: started once, found again, stopped, and told apart when they end."""

from __future__ import annotations

import getpass
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_systemd import FakeSystemd

from spark_pair import cli, paths
from spark_pair.errors import BusyError, DescriptionError, NodeError
from spark_pair.jobs import commands, inside, wanted
from spark_pair.jobs.inside import Reporter, carry_out, ending, record_end, secret
from spark_pair.jobs.shapes import (
    JobError,
    JobFailedError,
    JobResult,
    JobState,
    JobStoppedError,
    Progress,
    read_progress,
    read_request,
    read_result,
    unit_of,
    write_progress,
    write_result,
)
from spark_pair.jobs.units import Caps, Jobs
from spark_pair.system import Result

UNIT = "spark-pair-job-download.service"
PROGRAM = ["/opt/tool", "fetch", "checkpoint"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def systemd() -> FakeSystemd:
    return FakeSystemd()


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    path = tmp_path / "boot_id"
    path.write_text("first\n")
    return path


@pytest.fixture
def jobs(tmp_path: Path, systemd: FakeSystemd, boot: Path) -> Jobs:
    return Jobs(
        base=tmp_path / "jobs",
        private=tmp_path / "run",
        runner=systemd,
        sleep=lambda _: None,
        recorder="/opt/release/spark-pair",
        boot_file=boot,
    )


def state(jobs: Jobs, name: str = "download") -> JobState:
    return jobs.look(name).state


class TestNames:
    @pytest.mark.parametrize("name", ["download", "transfer-rail0", "7", "a" * 63])
    def test_good(self, name: str) -> None:
        assert unit_of(name) == f"spark-pair-job-{name}.service"

    @pytest.mark.parametrize(
        "name", ["", "Down", "a b", "../x", "-x", "a_b", "a.b", "a" * 64, "a\n"]
    )
    def test_bad(self, jobs: Jobs, systemd: FakeSystemd, name: str) -> None:
        with pytest.raises(DescriptionError, match="cannot name a job"):
            jobs.start(name, PROGRAM)
        with pytest.raises(DescriptionError):
            jobs.look(name)
        assert not systemd.asked


class TestStart:
    def test_a_new_job_runs_with_what_it_was_given(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        started = jobs.start(
            "download",
            [*PROGRAM, "a $HOME ${X} 100%"],
            words="download checkpoint",
            user=getpass.getuser(),
            folder="/srv",
            environment={"LANG": "C"},
            caps=Caps(memory_max=2**31, io_weight=20, cpu_weight=30),
        )
        assert not started.attached and started.same
        assert started.view.state is JobState.RUNNING
        unit = systemd.units[UNIT]
        assert unit.argv == [*PROGRAM, "a $HOME ${X} 100%"]
        assert unit.service_type == "exec"
        expected = {
            "User": getpass.getuser(),
            "WorkingDirectory": "/srv",
            "MemoryMax": str(2**31),
            "IOWeight": "20",
            "CPUWeight": "30",
            "ExecStopPost": "-/opt/release/spark-pair jobs ended",
        }
        assert {key: unit.properties[key] for key in expected} == {
            key: [value] for key, value in expected.items()
        }
        request = read_request(tmp_path / "jobs/download")
        assert request is not None and started.view.request == request
        assert unit.environment == {
            "LANG": "C",
            inside.FOLDER: str(tmp_path / "jobs/download"),
            inside.RUN: request.id,
        }
        assert request.caps == {"memory_max": 2**31, "io_weight": 20, "cpu_weight": 30}

    def test_nothing_is_limited_unasked(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        jobs.start("download", PROGRAM)
        limits = {"User", "WorkingDirectory", "MemoryMax", "IOWeight", "CPUWeight"}
        assert not limits & set(systemd.units[UNIT].properties)

    def test_the_account_of_the_job_can_reach_its_folder(self, jobs: Jobs, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            jobs.start("download", PROGRAM)
        finally:
            os.umask(before)
        made = ("jobs", "jobs/download", "jobs/download/request.json", "run", "run/download.lock")
        modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in made}
        assert modes == {
            "jobs": 0o755,
            "jobs/download": 0o755,
            "jobs/download/request.json": 0o644,
            "run": 0o755,
            "run/download.lock": 0o644,
        }

    FILES: Mapping[str, Any] = (
        {"schema": 1, "source": "checkpoint", "home": "/home/a", "endpoint": "https://hub",
         "manifest": {"repo": "own/name", "commit": "a" * 40, "files": []}, "workers": 4,
         "files": ["a", "b", "c"]}
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("change", "same"),
        [
            ({"files": ["c", "a"]}, True),
            ({"files": ["b"], "workers": 1, "floor_bytes": 7}, True),
            ({"files": ["b", "d"]}, False),
            ({"files": ["b"], "source": "engram"}, False),
            ({"files": ["b"], "endpoint": "https://mirror"}, False),
            ({"files": ["b"], "home": "/home/b"}, False),
            ({"files": ["b"], "manifest": {"repo": "own/name", "commit": "b" * 40}}, False),
            ({"files": ["b"], "manifest": {"repo": "own/name", "commit": "a" * 40}}, True),
        ],
    )
    def test_a_job_that_does_more_than_is_asked_for_is_the_same(
        self, jobs: Jobs, change: dict[str, Any], same: bool
    ) -> None:
        jobs.start("download", PROGRAM, order=self.FILES)
        again = jobs.start("download", PROGRAM, order={**self.FILES, **change})
        assert again.attached and again.same is same
        assert not jobs.start("download", ["/else"], order={**self.FILES, **change}).same

    def test_root_keeps_the_order_where_the_account_cannot_write(
        self, jobs: Jobs, systemd: FakeSystemd
    ) -> None:
        kept = jobs.base.parent / "orders/download.json"
        jobs.start("download", PROGRAM, order=self.FILES, user=getpass.getuser())
        assert json.loads(kept.read_text()) == self.FILES
        jobs.stop("download")
        jobs.start("download", PROGRAM)
        assert not kept.exists()

    def test_a_running_job_is_attached_to(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        first = jobs.start("download", PROGRAM)
        again = jobs.start("download", PROGRAM, words="other words", caps=Caps(io_weight=1))
        assert again.attached and again.same
        assert again.view.request == first.view.request
        assert sum(words[0] == "systemd-run" for words in systemd.asked) == 1

    def test_other_work_under_the_same_name_is_told(self, jobs: Jobs) -> None:
        jobs.start("download", PROGRAM)
        again = jobs.start("download", ["/opt/tool", "fetch", "engram"])
        assert again.attached and not again.same

    def test_after_its_end_it_starts_anew(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        first = jobs.start("download", PROGRAM).view
        systemd.end(UNIT)
        assert state(jobs) is JobState.DONE
        second = jobs.start("download", PROGRAM)
        assert not second.attached
        assert second.view.state is JobState.RUNNING and second.view.result is None
        assert first.request and second.view.request
        assert first.request.id != second.view.request.id

    def test_a_failed_unit_does_not_stand_in_the_way(
        self, jobs: Jobs, systemd: FakeSystemd
    ) -> None:
        jobs.start("download", PROGRAM)
        systemd.end(UNIT, status="3", result="exit-code")
        assert systemd.units[UNIT].state == "failed"
        assert not jobs.start("download", PROGRAM).attached
        assert state(jobs) is JobState.RUNNING

    def test_a_start_that_systemd_refuses(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        systemd.refuses_start = "Failed to find executable /opt/tool: No such file"
        with pytest.raises(JobError, match="download could not be started: Failed to find"):
            jobs.start("download", PROGRAM)
        view = jobs.look("download")
        assert view.state is JobState.FAILED and "could not be started" in view.message

    def test_a_start_that_was_only_slow_to_be_told(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        def slow(argv: Any, timeout: float) -> Any:
            done = systemd(argv, timeout)
            return type(done)(124, "", "no end after 60 s") if argv[0] == "systemd-run" else done

        jobs.runner = slow
        assert jobs.start("download", PROGRAM).view.state is JobState.RUNNING

    def test_while_it_is_being_started_it_is_not_lost(
        self, jobs: Jobs, systemd: FakeSystemd
    ) -> None:
        seen: list[JobState] = []
        systemd.before_start = lambda: seen.append(state(jobs))
        jobs.start("download", PROGRAM)
        assert seen == [JobState.RUNNING]

    def test_two_do_not_start_it_at_once(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        def another() -> None:
            with pytest.raises(BusyError, match="download"):
                jobs.start("download", PROGRAM)

        systemd.before_start = another
        jobs.start("download", PROGRAM)
        assert sum(words[0] == "systemd-run" for words in systemd.asked) == 1

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"argv": []}, "absolute path"),
            ({"argv": ["tool"]}, "absolute path"),
            ({"user": "no-such-account"}, "no account no-such-account"),
            ({"environment": {"A=B": "c"}}, "'A=B'"),
            ({"caps": Caps(memory_max=2)}, "memory_max is 2 bytes"),
            ({"caps": Caps(io_weight=0)}, "io_weight is 0"),
            ({"caps": Caps(cpu_weight=10_001)}, "cpu_weight is 10001"),
            ({"secrets": {"hub-token": " "}}, "hub-token is empty"),
            ({"secrets": {"Hub": "x"}}, "'Hub'"),
        ],
    )
    def test_bad_input_starts_nothing(
        self, jobs: Jobs, systemd: FakeSystemd, more: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(DescriptionError, match=words):
            jobs.start("download", **{"argv": PROGRAM, **more})
        assert not systemd.units and not jobs.names()


def test_a_stop_waits_for_the_last_steps_and_names_sudo(
    jobs: Jobs, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.start("download", PROGRAM, record=True)
    given: list[float] = []

    def refuse(argv: list[str], seconds: float) -> Result:
        if "stop" not in argv:
            return systemd(argv, seconds)
        given.append(seconds)
        return Result(1, "", "Access denied")

    monkeypatch.setattr(jobs, "runner", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(JobError, match="Access denied; only root may: sudo spark-pair jobs stop"):
        jobs.stop("download")
    assert given[0] > 3 * 60


def test_an_accident_tells_no_keys(capsys: pytest.CaptureFixture[str]) -> None:
    def body(_: Reporter) -> tuple[str, Mapping[str, Any]]:
        raise ValueError("https://store.test/x?Signature=zz failed")

    assert carry_out(body, Reporter()) == 1
    told = capsys.readouterr()
    assert "store.test/x?…" in told.err and "Signature" not in told.err + told.out


class TestAFolderOfSomebodyElse:
    """The account may put there what it likes, and root looks."""

    @pytest.mark.parametrize("name", ["request.json", "progress.json", "result.json"])
    def test_nothing_is_waited_for_or_followed(self, jobs: Jobs, tmp_path: Path, name: str) -> None:
        jobs.start("download", PROGRAM)
        path = tmp_path / "jobs/download" / name
        for make in (
            os.mkfifo,
            lambda path: path.symlink_to("/dev/zero"),
            Path.mkdir,
            lambda path: path.write_bytes(b"[" * 100_000),
            lambda path: path.write_text('{"schema": 1, "id": "x", "at": Infinity, "exit": 1e999}'),
        ):
            if path.is_dir():
                path.rmdir()
            path.unlink(missing_ok=True)
            make(path)
            assert jobs.look("download").state is JobState.RUNNING


class TestOrder:
    ORDER: Mapping[str, Any] = {"schema": 1, "files": ["a"], "workers": 4, "floor_bytes": 1}

    def test_the_program_finds_it_in_its_folder(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        jobs.start("download", PROGRAM, order=self.ORDER)
        folder = Path(systemd.units[UNIT].environment[inside.FOLDER])
        assert json.loads((folder / "order.json").read_text()) == self.ORDER
        systemd.end(UNIT)
        jobs.start("download", PROGRAM)
        assert not (folder / "order.json").exists()

    def test_another_order_is_other_work_and_other_limits_are_not(
        self, jobs: Jobs, tmp_path: Path
    ) -> None:
        jobs.start("download", PROGRAM, order=self.ORDER)
        limits = {"limit_bytes_per_second": 7, "workers": 1, "floor_bytes": 2}
        assert jobs.start("download", PROGRAM, order={**self.ORDER, **limits}).same
        assert not jobs.start("download", PROGRAM, order={**self.ORDER, "files": ["b"]}).same
        assert not jobs.start("download", PROGRAM).same
        # An order that is only attached to changes nothing for the program that runs.
        assert json.loads((tmp_path / "jobs/download/order.json").read_text()) == self.ORDER

    def test_root_records_at_the_end_what_was_proven(
        self, jobs: Jobs, systemd: FakeSystemd
    ) -> None:
        jobs.start("download", PROGRAM, record=True)
        assert systemd.units[UNIT].properties["ExecStopPost"] == [
            "-/opt/release/spark-pair jobs ended",
            "-+/opt/release/spark-pair weights record download",
        ]

    def test_what_a_run_proved_that_a_boot_cut_off_is_recorded_before_the_next(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        proofs = tmp_path / "jobs/download/verified.jsonl"
        proofs.parent.mkdir(parents=True)
        proofs.write_text("{}\n")
        jobs.start("download", PROGRAM, record=True)
        recorded = ["/opt/release/spark-pair", "weights", "record", "download"]
        asked = [words for words in systemd.asked if words[0] != "systemctl"]
        assert asked[0] == recorded and asked[1][0] == "systemd-run"
        # It failed here, and nothing is lost by that.
        assert proofs.read_text() == "{}\n"

    def test_nothing_is_recorded_unasked(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        jobs.start("download", PROGRAM, record=True)
        systemd.end(UNIT)
        (tmp_path / "jobs/download/verified.jsonl").write_text("{}\n")
        jobs.start("download", PROGRAM)
        assert {words[0] for words in systemd.asked} == {"systemctl", "systemd-run"}


class TestSecrets:
    TOKEN = "hf_" + "Abc123" * 5

    def everything(self, folder: Path) -> str:
        return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())

    def test_the_program_gets_it_and_nobody_else(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        view = jobs.start("download", PROGRAM, secrets={"hub-token": self.TOKEN}).view
        assert systemd.units[UNIT].secrets == {"hub-token": self.TOKEN}
        assert self.TOKEN not in self.everything(tmp_path)
        assert self.TOKEN not in json.dumps(systemd.asked)
        assert self.TOKEN not in json.dumps(view.as_dict())
        assert view.request and view.request.secrets == ("hub-token",)

    def test_it_is_gone_when_the_start_fails(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        systemd.refuses_start = "no"
        with pytest.raises(JobError):
            jobs.start("download", PROGRAM, secrets={"hub-token": self.TOKEN})
        assert self.TOKEN not in self.everything(tmp_path)

    def test_one_left_by_a_start_that_was_killed_is_replaced(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        left = tmp_path / "run/download/hub-token"
        left.parent.mkdir(parents=True, mode=0o700)
        left.write_text("old")
        jobs.start("download", PROGRAM, secrets={"hub-token": self.TOKEN})
        assert systemd.units[UNIT].secrets == {"hub-token": self.TOKEN}
        assert not left.exists()

    @pytest.mark.parametrize("place", ["argv", "environment", "words", "order"])
    def test_it_may_stand_nowhere_else(self, jobs: Jobs, systemd: FakeSystemd, place: str) -> None:
        places: dict[str, dict[str, Any]] = {
            "argv": {"argv": [*PROGRAM, f"--token={self.TOKEN}"]},
            "environment": {"argv": PROGRAM, "environment": {"HF_TOKEN": self.TOKEN}},
            "words": {"argv": PROGRAM, "words": f"with {self.TOKEN}"},
            "order": {"argv": PROGRAM, "order": {"deep": [{"token": self.TOKEN}]}},
        }
        more = places[place]
        with pytest.raises(DescriptionError, match="everybody can read it") as raised:
            jobs.start("download", secrets={"hub-token": f"{self.TOKEN}\n"}, **more)
        assert self.TOKEN not in str(raised.value)
        assert not systemd.asked

    def test_how_the_program_reads_it(self, tmp_path: Path) -> None:
        (tmp_path / "hub-token").write_text(f"{self.TOKEN}\n")
        environment = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
        assert secret("hub-token", environment) == self.TOKEN
        assert secret("other", environment) is None
        assert secret("hub-token", {}) is None

    def test_one_that_was_promised_and_is_not_there(self, tmp_path: Path) -> None:
        environment = {"CREDENTIALS_DIRECTORY": str(tmp_path / "gone")}
        with pytest.raises(JobError, match="not handed over"):
            secret("hub-token", environment)


class TestLook:
    def test_absent(self, jobs: Jobs) -> None:
        assert state(jobs) is JobState.ABSENT

    def test_running_with_its_progress(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        jobs.start("download", PROGRAM)
        reporter = Reporter.from_environment(systemd.units[UNIT].environment)
        reporter.step("download checkpoint", total=100, done=10)
        view = jobs.look("download")
        assert view.progress and (view.progress.done, view.progress.total) == (10, 100)
        assert view.words == "download checkpoint"

    @pytest.mark.parametrize("activity", ["activating", "deactivating", "reloading"])
    def test_between_states_it_runs(self, jobs: Jobs, systemd: FakeSystemd, activity: str) -> None:
        jobs.start("download", PROGRAM)
        systemd.units[UNIT].state = activity
        assert state(jobs) is JobState.RUNNING

    def test_what_an_earlier_run_left_is_no_news(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path
    ) -> None:
        jobs.start("download", PROGRAM)
        folder = tmp_path / "jobs/download"
        write_progress(folder, "earlier", Progress(1, 2, None, None, "old", 0.0))
        write_result(folder, "earlier", JobResult(True, "old", 0, 0.0))
        assert jobs.look("download").progress is None
        systemd.end(UNIT, recorded=False)
        assert state(jobs) is JobState.LOST

    @pytest.mark.parametrize(
        ("death", "words"),
        [
            ({"how": "exited", "status": "3", "result": "exit-code"}, "ended with exit code 3"),
            ({"how": "killed", "status": "KILL", "result": "signal"}, "was killed (SIGKILL)"),
            ({"how": "killed", "status": "KILL", "result": "oom-kill"}, "memory was used up"),
            ({"how": "killed", "status": "KILL", "result": "timeout"}, "was killed"),
            ({"how": "dumped", "status": "SEGV", "result": "core-dump"}, "was killed (SIGSEGV)"),
        ],
    )
    @pytest.mark.parametrize("recorded", [True, False])
    def test_deaths(
        self,
        jobs: Jobs,
        systemd: FakeSystemd,
        death: dict[str, str],
        words: str,
        *,
        recorded: bool,
    ) -> None:
        jobs.start("download", PROGRAM)
        systemd.end(
            UNIT,
            how=death["how"],
            status=death["status"],
            result=death["result"],
            recorded=recorded,  # else as on a full disk: systemd's own memory has to do
        )
        view = jobs.look("download")
        assert view.state is JobState.FAILED
        assert words in view.message

    def test_what_the_program_said_is_kept(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        jobs.start("download", PROGRAM)
        folder, run = (systemd.units[UNIT].environment[key] for key in (inside.FOLDER, inside.RUN))
        write_result(Path(folder), run, JobResult(False, "the hub refused the token", 10, 1.0))
        systemd.end(UNIT, status="10", result="exit-code")
        assert jobs.look("download").message == "the hub refused the token"

    def test_a_program_that_dies_after_saying_done_has_failed(
        self, jobs: Jobs, systemd: FakeSystemd
    ) -> None:
        jobs.start("download", PROGRAM)
        folder, run = (systemd.units[UNIT].environment[key] for key in (inside.FOLDER, inside.RUN))
        write_result(Path(folder), run, JobResult(True, "all there", 0, 1.0))
        systemd.end(UNIT, how="killed", status="SEGV", result="core-dump")
        assert state(jobs) is JobState.FAILED

    def test_lost_by_a_boot(self, jobs: Jobs, systemd: FakeSystemd, boot: Path) -> None:
        jobs.start("download", PROGRAM)
        systemd.units.clear()
        assert "left no result" in jobs.look("download").message
        boot.write_text("second\n")
        view = jobs.look("download")
        assert view.state is JobState.LOST and "was booted" in view.message

    def test_started_anew_between_two_looks_at_it(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        jobs.start("download", PROGRAM)
        systemd.end(UNIT)

        def restart() -> None:
            systemd.after_show = lambda: None
            jobs.start("download", PROGRAM)

        systemd.after_show = restart
        assert state(jobs) is JobState.RUNNING

    def test_a_damaged_request(self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path) -> None:
        jobs.start("download", PROGRAM)
        (tmp_path / "jobs/download/request.json").write_text('{"schema": 1, "id": ')
        assert state(jobs) is JobState.RUNNING
        systemd.end(UNIT)
        assert state(jobs) is JobState.ABSENT

    def test_a_systemd_that_does_not_answer_is_no_end(
        self, jobs: Jobs, systemd: FakeSystemd
    ) -> None:
        jobs.start("download", PROGRAM)
        systemd.silent = True
        with pytest.raises(NodeError, match="Failed to connect to bus"):
            jobs.look("download")

    def test_the_list_has_only_jobs(self, jobs: Jobs, tmp_path: Path) -> None:
        jobs.start("download", PROGRAM)
        jobs.start("cut-rank1", PROGRAM)
        other = tmp_path / "jobs/network"
        other.mkdir()
        (other / "result.json").write_text("{}")
        assert jobs.names() == ["cut-rank1", "download"]
        assert [view.name for view in jobs.all()] == ["cut-rank1", "download"]


class TestStop:
    def test_a_running_job(self, jobs: Jobs) -> None:
        jobs.start("download", PROGRAM)
        view, ran = jobs.stop("download")
        assert ran and view.state is JobState.FAILED
        assert view.result and view.result.stopped and view.message == "was stopped"

    def test_an_ended_job(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        jobs.start("download", PROGRAM)
        systemd.end(UNIT)
        view, ran = jobs.stop("download")
        assert not ran and view.state is JobState.DONE

    def test_an_unknown_job(self, jobs: Jobs) -> None:
        jobs.start("download", PROGRAM)
        with pytest.raises(JobError, match="no job donwload on this host; known: download"):
            jobs.stop("donwload")

    def test_refused(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        jobs.start("download", PROGRAM)
        systemd.refuses_stop = "Interactive authentication required."
        with pytest.raises(JobError, match="Interactive authentication"):
            jobs.stop("download")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestWanted:
    """What a play wants of a job, and what it is told."""

    WANTED: Mapping[str, Any] = {
        "name": "download",
        "argv": [sys.executable, "fetch"],
        "words": "download checkpoint",
        "user": "",
        "environment": {"https_proxy": "http://proxy.example:3128"},
        "secrets": {},
        "caps": {"io_weight": 20, "memory_max": None},
        "order": {"schema": 1},
        "refused": "",
        "record": True,
    }

    def test_started_then_attached_to(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        first = wanted.started(jobs, self.WANTED, check=False)
        assert first["changed"] and not first["attached"] and first["same"]
        assert first["view"]["state"] == "running" and "line" in first["view"]
        unit = systemd.units[UNIT]
        assert unit.properties["IOWeight"] == ["20"]
        assert unit.environment["https_proxy"] == "http://proxy.example:3128"
        again = wanted.started(jobs, {**self.WANTED, "order": {"schema": 2}}, check=False)
        assert not again["changed"] and again["attached"] and not again["same"]

    def test_check_mode_says_which_and_does_nothing(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        told = wanted.started(jobs, {**self.WANTED, "argv": ["/no/such/tool"]}, check=True)
        assert told["changed"] and told["message"] == "would start job download"
        assert not systemd.units
        wanted.started(jobs, self.WANTED, check=False)
        told = wanted.started(jobs, self.WANTED, check=True)
        assert not told["changed"] and told["attached"]

    @pytest.mark.parametrize("check", [False, True])
    def test_what_may_not_start_now_is_attached_to_when_it_runs(
        self, jobs: Jobs, systemd: FakeSystemd, check: bool
    ) -> None:
        asked = {**self.WANTED, "refused": "deepseek runs"}
        with pytest.raises(JobError, match="deepseek runs"):
            wanted.started(jobs, asked, check=check)
        assert not systemd.units
        wanted.started(jobs, self.WANTED, check=False)
        assert wanted.started(jobs, asked, check=check)["attached"]

    def test_an_older_tool_is_refused_before_anything_is_started(
        self, jobs: Jobs, systemd: FakeSystemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paths, "TOOL", sys.executable)
        usual = systemd.__call__

        def with_tool(argv: Sequence[str], timeout: float) -> Result:
            if argv[0] == sys.executable:
                return Result(2, "", "spark-pair: error: invalid choice: 'jobs'")
            return usual(argv, timeout)

        monkeypatch.setattr(jobs, "runner", with_tool)
        with pytest.raises(JobError, match="--tags tools"):
            wanted.started(jobs, self.WANTED, check=False)
        assert not systemd.units

    def test_another_token_is_no_other_work(self, jobs: Jobs) -> None:
        wanted.started(jobs, self.WANTED, check=False)
        known = {**self.WANTED, "secrets": {"hf-token": "hf_x"}}
        assert wanted.started(jobs, known, check=False)["same"]

    def test_without_the_tool(self, jobs: Jobs, systemd: FakeSystemd) -> None:
        with pytest.raises(JobError, match="--tags tools"):
            wanted.started(jobs, {**self.WANTED, "argv": ["/no/such/tool"]}, check=False)
        assert not systemd.asked


class TestReporter:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def reporter(self, tmp_path: Path, clock: Clock) -> Reporter:
        return Reporter(tmp_path, "r1", clock=clock, ticks=clock)

    def test_speed_and_time_left(self, reporter: Reporter, tmp_path: Path, clock: Clock) -> None:
        reporter.step("fetch", total=10_000, done=5_000)
        for _ in range(10):
            clock.now += 1
            reporter.advance(100)
        told = read_progress(tmp_path, "r1")
        assert told == Progress(6_000, 10_000, 100.0, 40.0, "fetch", 1010.0)

    def test_only_the_last_half_minute_counts(self, reporter: Reporter, clock: Clock) -> None:
        reporter.step("fetch", total=10**6)
        for speed in [1000] * 60 + [10] * 40:
            clock.now += 1
            reporter.advance(speed)
        assert reporter.progress().rate == pytest.approx(10.0)

    def test_a_new_step_starts_its_own_speed(self, reporter: Reporter, clock: Clock) -> None:
        reporter.step("fetch")
        clock.now += 10
        reporter.advance(1000)
        reporter.step("verify", total=50)
        clock.now += 1
        reporter.advance(5)
        told = reporter.progress()
        assert (told.step, told.rate, told.left_seconds) == ("verify", 5.0, 9.0)

    def test_a_program_that_knows_its_own_speed(
        self, reporter: Reporter, tmp_path: Path, clock: Clock
    ) -> None:
        reporter.step("download", total=1000)
        clock.now += 2
        reporter.show("download: checking", 1000, 400, 60.0)
        told = read_progress(tmp_path, "r1")
        assert told and (told.done, told.total, told.rate, told.left_seconds) == (400, 1000, 60, 10)
        assert told.step == "download: checking"
        reporter.step("verify", total=1000, done=400)
        clock.now += 2
        reporter.advance(200)
        told = read_progress(tmp_path, "r1")
        assert told and told.rate == 100

    def test_written_at_most_once_a_second(
        self, reporter: Reporter, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[float] = []
        monkeypatch.setattr(inside, "write_progress", lambda *_: written.append(clock.now))
        reporter.step("fetch", total=1000)
        for _ in range(100):
            clock.now += 0.125
            reporter.advance(1)
        assert len(written) == 13
        assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(written))

    def test_a_full_disk_does_not_disturb_the_work(
        self, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(inside, "write_progress", full)
        reporter.step("fetch")
        reporter.advance(1)

    def test_a_line_never_waits_for_the_disk(
        self, reporter: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flushed: list[int] = []
        monkeypatch.setattr(os, "fsync", flushed.append)
        reporter.step("fetch")
        assert read_progress(tmp_path, "r1") and not flushed
        reporter.finish(JobResult(True, "all there", 0, 5.0))
        assert flushed

    def test_the_last_state_is_written_at_the_end(self, reporter: Reporter, tmp_path: Path) -> None:
        reporter.step("fetch", total=10)
        reporter.advance(10)
        reporter.finish(JobResult(True, "all there", 0, 5.0))
        told = read_progress(tmp_path, "r1")
        assert told and told.done == 10
        assert read_result(tmp_path, "r1") == JobResult(True, "all there", 0, 5.0)

    def test_by_hand_nothing_is_written(self, tmp_path: Path) -> None:
        reporter = Reporter.from_environment({})
        reporter.step("fetch")
        assert carry_out(lambda _: ("done", {}), reporter) == 0
        assert not list(tmp_path.iterdir())


class TestCarryOut:
    def run(self, folder: Path, body: inside.Body) -> tuple[int, JobResult]:
        code = carry_out(body, Reporter(folder, "r1"))
        result = read_result(folder, "r1")
        assert result is not None
        return code, result

    def test_done(self, tmp_path: Path) -> None:
        code, result = self.run(tmp_path, lambda _: ("39 files", {"files": 39}))
        assert code == 0 and result.ok
        assert (result.message, result.data) == ("39 files", {"files": 39})

    def test_a_sentence_of_ours(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def body(_: Reporter) -> Any:
            raise NodeError("the hub does not answer")

        code, result = self.run(tmp_path, body)
        assert code == 10 and not result.ok and not result.stopped
        assert result.message == "the hub does not answer"
        assert capsys.readouterr().err == "the hub does not answer\n"

    def test_a_failure_hands_over_what_there_is(self, tmp_path: Path) -> None:
        def body(_: Reporter) -> Any:
            raise JobFailedError("two files differ", {"differences": [1, 2]})

        code, result = self.run(tmp_path, body)
        assert code == 1 and not result.ok and result.message == "two files differ"
        assert result.data == {"differences": [1, 2]}

    def test_a_fault_of_ours(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def body(_: Reporter) -> Any:
            raise KeyError("files")

        code, result = self.run(tmp_path, body)
        assert code == 1 and result.message == "failed unexpectedly: KeyError: 'files'"
        assert "Traceback" in capsys.readouterr().err

    def test_stopped(self, tmp_path: Path) -> None:
        def body(reporter: Reporter) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            assert reporter.stopping()
            reporter.check()

        before = signal.getsignal(signal.SIGTERM)
        code, result = self.run(tmp_path, body)
        assert code == JobStoppedError.exit and result.stopped and "is kept" in result.message
        assert signal.getsignal(signal.SIGTERM) == before

    def test_a_full_disk_at_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(inside, "write_result", full)
        assert carry_out(lambda _: ("done", {}), Reporter(tmp_path, "r1")) == 0
        assert "No space left" in capsys.readouterr().err

    def test_a_real_process(self, tmp_path: Path) -> None:
        program = (
            "import sys, time\n"
            "from spark_pair.jobs.inside import carry_out, secret\n"
            "def body(reporter):\n"
            "    reporter.step('wait', total=10, done=3)\n"
            "    print(len(secret('hub-token')), flush=True)\n"
            "    for _ in range(6000):\n"
            "        reporter.check()\n"
            "        time.sleep(0.01)\n"
            "sys.exit(carry_out(body))\n"
        )
        (tmp_path / "hub-token").write_text("hf_12345")
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CREDENTIALS_DIRECTORY": str(tmp_path),
            inside.FOLDER: str(tmp_path),
            inside.RUN: "r1",
        }
        with subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout and process.stdout.readline() == "8\n"
            told = read_progress(tmp_path, "r1")
            assert told and (told.done, told.total, told.step) == (3, 10, "wait")
            process.terminate()
            assert process.wait(60) == JobStoppedError.exit
        result = read_result(tmp_path, "r1")
        assert result and result.stopped


class TestEnding:
    @pytest.mark.parametrize(
        ("words", "code", "stopped"),
        [
            (("success", "exited", "0"), 0, False),
            (("exit-code", "exited", "7"), 7, False),
            (("signal", "killed", "KILL"), 137, False),
            (("signal", "killed", "9"), 137, False),
            (("success", "killed", "TERM"), 143, True),
            (("timeout", "killed", "KILL"), 137, True),
            (("oom-kill", "killed", "KILL"), 137, False),
            (("resources", "", ""), 1, False),
        ],
    )
    def test_codes(self, words: tuple[str, str, str], code: int, stopped: bool) -> None:
        result = ending(*words, at=5.0)
        assert (result.exit, result.stopped, result.ok) == (code, stopped, code == 0)

    def test_outside_of_a_job_nothing_is_recorded(self) -> None:
        assert record_end({"SERVICE_RESULT": "success"}) is None


class TestCommand:
    @pytest.fixture(autouse=True)
    def _host(
        self, tmp_path: Path, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        monkeypatch.setattr(paths, "VAR", tmp_path / "var")
        monkeypatch.setattr(paths, "RUN", tmp_path / "run")
        monkeypatch.setattr(commands, "Jobs", lambda: Jobs(runner=systemd))
        self.sleeps: list[Callable[[], None]] = []

        def sleep(_: float) -> None:
            self.sleeps.pop(0)()

        monkeypatch.setattr(time, "sleep", sleep)
        yield
        assert not self.sleeps

    def test_none_yet(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["jobs"]) == 0
        assert capsys.readouterr().out == "no job was ever started on this host\n"
        assert cli.main(["jobs", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []

    def test_list(self, systemd: FakeSystemd, capsys: pytest.CaptureFixture[str]) -> None:
        Jobs(runner=systemd).start("download", PROGRAM, words="download checkpoint")
        assert cli.main(["jobs"]) == 0
        assert capsys.readouterr().out == "download  running  download checkpoint  running\n"
        assert cli.main(["jobs", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told[0]["state"] == "running"
        assert told[0]["line"] == "download checkpoint  running"

    @pytest.mark.parametrize(
        "words", [["--json", "stop", "download"], ["stop", "download", "--json"]]
    )
    def test_stop(
        self, systemd: FakeSystemd, capsys: pytest.CaptureFixture[str], words: list[str]
    ) -> None:
        Jobs(runner=systemd).start("download", PROGRAM)
        assert cli.main(["jobs", *words]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["changed"] and told["result"]["stopped"]
        assert cli.main(["jobs", "stop", "download"]) == 0
        assert "nothing to stop" in capsys.readouterr().out
        assert cli.main(["jobs", "stop", "upload"]) == 10
        assert "known: download" in capsys.readouterr().err

    def test_look(self, systemd: FakeSystemd, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["jobs", "look", "download", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "absent"
        Jobs(runner=systemd).start("download", PROGRAM, words="download checkpoint")
        assert cli.main(["jobs", "look", "download", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], told["line"]) == ("running", "download checkpoint  running")
        assert cli.main(["jobs", "look", "download"]) == 0
        assert capsys.readouterr().out == "download checkpoint  running\n"

    def test_follow_to_the_end(
        self, systemd: FakeSystemd, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Jobs(runner=systemd).start("download", PROGRAM, words="download checkpoint")
        self.sleeps = [lambda: None, lambda: systemd.end(UNIT)]
        assert cli.main(["jobs", "follow", "download"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "download checkpoint  running",
            "download checkpoint  done: done",
        ]
        assert cli.main(["jobs", "follow", "download", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "done"

    def test_follow_a_failure(
        self, systemd: FakeSystemd, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Jobs(runner=systemd).start("download", PROGRAM)
        self.sleeps = [lambda: systemd.end(UNIT, status="3", result="exit-code")]
        assert cli.main(["jobs", "follow", "download"]) == 1
        assert "failed: ended with exit code 3" in capsys.readouterr().out

    def test_follow_on_a_terminal(
        self,
        systemd: FakeSystemd,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        Jobs(runner=systemd).start("download", PROGRAM)
        self.sleeps = [lambda: None, lambda: systemd.end(UNIT)]
        assert cli.main(["jobs", "follow", "download"]) == 0
        line = "download  running"
        blank = " " * len(line)
        assert capsys.readouterr().out == f"\r{line}\r{line}\r{blank}\rdownload  done: done\n"

    def test_ctrl_c_leaves_the_job_alone(
        self, systemd: FakeSystemd, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        Jobs(runner=systemd).start("download", PROGRAM)
        self.sleeps = [interrupt]
        assert cli.main(["jobs", "follow", "download"]) == 130
        assert "job download goes on" in capsys.readouterr().err
        assert systemd.units[UNIT].state == "active"

    def test_the_last_step_of_a_unit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for key, value in {
            inside.FOLDER: str(tmp_path),
            inside.RUN: "r1",
            "SERVICE_RESULT": "exit-code",
            "EXIT_CODE": "exited",
            "EXIT_STATUS": "3",
        }.items():
            monkeypatch.setenv(key, value)
        assert cli.main(["jobs", "ended"]) == 0
        result = read_result(tmp_path, "r1")
        assert result and result.exit == 3


def test_the_unit_calls_the_tool_of_its_own_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "releases/abc/spark-pair"
    tool.parent.mkdir(parents=True)
    tool.touch()
    (tmp_path / "spark-pair").symlink_to(tool)
    monkeypatch.setattr(paths, "TOOL", str(tmp_path / "spark-pair"))
    assert Jobs().recorder == str(tool)
