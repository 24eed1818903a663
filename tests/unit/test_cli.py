"""The command: exit codes, sentences, JSON shapes, and what the worker hands to the head."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_pair import FakePair, description_data

from spark_pair import cli, jsonfile, paths
from spark_pair import state as states
from spark_pair.errors import BusyError, NodeError, UnreachableError
from spark_pair.journal import Journal, read
from spark_pair.probe import ProbeResult
from spark_pair.state import PairState
from spark_pair.switch import run as switching
from spark_pair.switch.machine import Outcome
from spark_pair.switch.world import Job
from spark_pair.system import Result
from spark_pair.verdict import State, Verdict


class Host:
    """One installed host in a directory, with everything around the command replaced."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = monkeypatch
        self.submitted: list[dict[str, Any]] = []
        self.state = PairState()
        self.pair = FakePair()
        self.systemctl: list[str] = []
        self.active = "inactive"
        for name in ("RUN", "LOCK", "REQUEST", "ABORT", "JOURNAL", "STATE", "DESCRIPTION"):
            monkeypatch.setattr(paths, name, folder / name.lower())
        monkeypatch.setattr(states, "load", lambda: self.state)
        monkeypatch.setattr(switching, "submit", self.submitted.append)
        monkeypatch.setattr(cli, "run", self._run)
        monkeypatch.setattr(cli, "_POLL_SECONDS", 0)
        self.installed_as("head")

    def _run(self, argv: Sequence[str], *, timeout: float) -> Result:
        self.systemctl.append(" ".join(argv))
        return Result(0, self.active + "\n", "")

    def installed_as(self, me: str) -> None:
        paths.DESCRIPTION.write_text(json.dumps({**description_data(), "me": me}))

    def journal(self, *events: dict[str, Any]) -> None:
        journal = Journal(paths.JOURNAL)
        for event in events:
            journal.append(event)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


Capture = pytest.CaptureFixture[str]

BEGIN = {"event": "begin", "id": "s1", "target": "deepseek", "asked_by": "ann", "reason": "x"}
END = {"event": "end", "id": "s1", "exit": 11, "message": "hikari still serves", "changed": False}


class TestSwitch:
    def test_accepted_and_not_followed(self, host: Host, capsys: Capture) -> None:
        words = ["switch", "deepseek", "--no-follow", "--json", "--asked-by", "ann"]
        assert cli.main([*words, "--reason", "a test"]) == 0
        (request,) = host.submitted
        assert (request["target"], request["asked_by"], request["reason"]) == (
            "deepseek",
            "ann",
            "a test",
        )
        assert (request["drain"], request["hold"]) == ("keep", False)
        assert json.loads(capsys.readouterr().out) == {
            "id": request["id"],
            "state": "running",
            "exit": None,
            "changed": None,
            "message": "switch to deepseek started",
        }

    def test_an_operators_rollback(self, host: Host) -> None:
        cli.main(["switch", "hikari", "--drain", "stop", "--hold", "--no-follow"])
        assert (host.submitted[0]["drain"], host.submitted[0]["hold"]) == ("stop", True)

    def test_none_is_a_target(self, host: Host) -> None:
        assert cli.main(["switch", "none", "--no-follow"]) == 0
        assert host.submitted[0]["target"] == "none"

    def test_an_unknown_server(self, host: Host, capsys: Capture) -> None:
        assert cli.main(["switch", "hikary", "--no-follow"]) == 2
        assert capsys.readouterr().err == (
            "spark-pair: there is no model server named 'hikary'; this pair knows hikari, "
            "deepseek, none\n"
        )
        assert host.submitted == []

    def test_another_switch_runs(self, host: Host, capsys: Capture) -> None:
        def busy(_: dict[str, Any]) -> None:
            raise BusyError("a switch to hikari has been running")

        host.patch.setattr(switching, "submit", busy)
        assert cli.main(["switch", "deepseek"]) == 75
        assert "a switch to hikari has been running" in capsys.readouterr().err

    def test_a_hold_is_respected_when_asked_to(self, host: Host, capsys: Capture) -> None:
        host.state.set_hold("rollback", "it was slow")
        host.state.serving = {"server": "hikari"}
        assert cli.main(["switch", "deepseek", "--respect-hold", "--no-follow", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["state"], answer["exit"], answer["changed"]) == ("done", 0, False)
        assert "held since a rollback: it was slow" in answer["message"]
        assert host.submitted == []

    def test_a_hold_while_nobody_serves_is_no_success(self, host: Host, capsys: Capture) -> None:
        host.state.set_hold("recovery", "both failed")
        assert cli.main(["switch", "deepseek", "--respect-hold", "--no-follow", "--json"]) == 30
        assert "NO MODEL SERVER ANSWERS" in json.loads(capsys.readouterr().out)["message"]
        assert host.submitted == []

    def test_and_otherwise_not(self, host: Host) -> None:
        host.state.set_hold("rollback", "it was slow")
        cli.main(["switch", "deepseek", "--no-follow"])
        assert len(host.submitted) == 1

    def test_as_another_user(self, host: Host, capsys: Capture) -> None:
        def forbidden(_: dict[str, Any]) -> None:
            raise PermissionError(13, "Permission denied", "/run/spark-pair")

        host.patch.setattr(switching, "submit", forbidden)
        assert cli.main(["switch", "deepseek"]) == 2
        assert "Run it as root (sudo spark-pair" in capsys.readouterr().err

    def test_a_host_that_is_not_set_up(self, host: Host, capsys: Capture) -> None:
        paths.DESCRIPTION.unlink()
        assert cli.main(["switch", "deepseek"]) == 2
        assert "this host is not set up yet" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["swich", "hikari"],
            ["switch"],
            ["switch", "hikari", "--drain", "x"],
            ["node"],
            ["node", "reboot"],
            ["node", "unit", "disable", "deepseek.service"],
        ],
    )
    def test_words_it_does_not_know(self, host: Host, words: list[str]) -> None:
        with pytest.raises(SystemExit) as raised:
            cli.main(words)
        assert raised.value.code == 2


class TestWatch:
    def submits(self, host: Host, *events: dict[str, Any]) -> None:
        """The unit writes its story as soon as it is asked."""

        def write(request: dict[str, Any]) -> None:
            host.journal(*({**event, "id": request["id"]} for event in events))

        host.patch.setattr(switching, "submit", write)

    @pytest.mark.parametrize("code", [0, 10, 11, 20])
    def test_the_switchs_end_is_the_exit_code(self, host: Host, capsys: Capture, code: int) -> None:
        self.submits(host, BEGIN, {**END, "exit": code})
        assert cli.main(["switch", "deepseek"]) == code
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].endswith("switch to deepseek asked for by ann")
        assert lines[1].endswith("hikari still serves")

    def test_nobody_serves(self, host: Host) -> None:
        stuck = {"event": "stuck", "exit": 30, "message": "NO MODEL SERVER RUNS", "changed": True}
        self.submits(host, BEGIN, stuck)
        assert cli.main(["switch", "deepseek"]) == 30

    def test_as_json_only_the_end(self, host: Host, capsys: Capture) -> None:
        self.submits(host, BEGIN, END)
        assert cli.main(["switch", "deepseek", "--json"]) == 11
        told = json.loads(capsys.readouterr().out)
        assert (told["state"], told["exit"], told["changed"]) == ("done", 11, False)

    def test_a_process_that_died_for_good(self, host: Host, capsys: Capture) -> None:
        self.submits(host, BEGIN, {**BEGIN, "event": "armed"})
        assert cli.main(["switch", "deepseek"]) == 30
        assert "has no process any more; run 'spark-pair resume'" in capsys.readouterr().err
        assert len(host.systemctl) == 1  # systemd is not asked at every look

    def test_a_process_that_systemd_is_about_to_restart(self, host: Host) -> None:
        host.active = "activating"
        self.submits(host, BEGIN)
        host.patch.setattr(cli, "_SILENT_POLLS", 2)
        naps: list[float] = []

        def nap(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 9:
                host.journal({**END, "id": read(paths.JOURNAL)[0]["id"]})

        host.patch.setattr(time, "sleep", nap)
        assert cli.main(["switch", "deepseek"]) == 11

    def test_ctrl_c_only_ends_the_watching(self, host: Host, capsys: Capture) -> None:
        self.submits(host, BEGIN)

        def interrupt(_: float) -> None:
            raise KeyboardInterrupt

        host.patch.setattr(time, "sleep", interrupt)
        assert cli.main(["switch", "deepseek"]) == 130
        assert "the switch itself goes on" in capsys.readouterr().err


class TestDryRun:
    def answer(self, host: Host, outcome: Outcome, message: str = "") -> None:
        verdicts = {
            "hikari": Verdict(State.SERVING, ""),
            "deepseek": Verdict(State.DOWN, ""),
        }

        def dry_run(_: Any, target: str, drain: str, say: Any) -> tuple[Outcome, Job]:
            say("hikari is serving")
            job = Job("s1", target, "dry run", "dry run", drain, verdicts=verdicts)
            job.message = message
            return outcome, job

        host.patch.setattr(switching, "dry_run", dry_run)

    def told(self, capsys: Capture) -> dict[str, Any]:
        return dict(json.loads(capsys.readouterr().out))

    def test_what_would_happen(self, host: Host, capsys: Capture) -> None:
        self.answer(host, Outcome.OK)
        assert cli.main(["switch", "deepseek", "--dry-run", "--json"]) == 0
        told = self.told(capsys)
        assert (told["exit"], told["changed"]) == (0, True)
        assert told["message"] == "would switch to deepseek"
        assert told["verdicts"] == {"hikari": "serving", "deepseek": "down"}
        assert told["lines"][0] == "now      hikari is serving"
        assert "stop     hikari-head.service on b; never disabled" in told["lines"]
        assert host.submitted == []

    def test_in_words(self, host: Host, capsys: Capture) -> None:
        self.answer(host, Outcome.OK)
        assert cli.main(["switch", "deepseek", "--dry-run"]) == 0
        assert capsys.readouterr().out.endswith("would switch to deepseek\n")

    def test_nothing_to_do(self, host: Host, capsys: Capture) -> None:
        self.answer(host, Outcome.NOTHING, "deepseek serves; nothing to do")
        assert cli.main(["switch", "deepseek", "--dry-run", "--json"]) == 0
        told = self.told(capsys)
        assert (told["changed"], told["message"]) == (False, "deepseek serves; nothing to do")
        assert told["lines"] == ["now      hikari is serving"]

    @pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.FAILED])
    def test_a_refusal(self, host: Host, capsys: Capture, outcome: Outcome) -> None:
        self.answer(host, outcome, "image:1 is missing on b")
        assert cli.main(["switch", "deepseek", "--dry-run", "--json"]) == 10
        told = self.told(capsys)
        assert (told["exit"], told["changed"]) == (10, False)
        assert told["message"] == "image:1 is missing on b"

    def test_under_a_hold(self, host: Host, capsys: Capture) -> None:
        self.answer(host, Outcome.OK)
        host.state.set_hold("recovery", "it broke")
        assert cli.main(["switch", "deepseek", "--dry-run", "--respect-hold", "--json"]) == 0
        told = self.told(capsys)
        assert told["changed"] is False
        assert told["lines"] == ["held     since a recovery: it broke"]


class TestFollow:
    def told(self, capsys: Capture, *words: str) -> dict[str, Any]:
        assert cli.main(["follow", "s1", "--json", *words]) == 0
        return dict(json.loads(capsys.readouterr().out))

    def test_the_shape(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN, END)
        told = self.told(capsys, "--after", "1")
        assert list(told) == ["id", "state", "exit", "changed", "message", "next", "lines"]
        assert (told["id"], told["state"], told["exit"], told["next"]) == ("s1", "done", 11, 2)
        assert len(told["lines"]) == 1

    def test_lost(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN, {**BEGIN, "event": "armed"})
        assert self.told(capsys)["state"] == "lost"

    @pytest.mark.parametrize("active", ["active", "activating", "deactivating"])
    def test_running_as_the_unit_says(self, host: Host, capsys: Capture, active: str) -> None:
        host.active = active
        assert self.told(capsys)["state"] == "running"

    def test_running_while_the_lock_is_held(self, host: Host, capsys: Capture) -> None:
        with switching.locked():
            assert self.told(capsys)["state"] == "running"

    def test_running_while_the_request_waits(self, host: Host, capsys: Capture) -> None:
        jsonfile.write(paths.REQUEST, {"id": "s1"})
        assert self.told(capsys)["state"] == "running"
        jsonfile.write(paths.REQUEST, {"id": "s2"})
        assert self.told(capsys)["state"] == "lost"

    def test_in_words(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN, END)
        cli.main(["follow", "s1"])
        assert capsys.readouterr().out.count("\n") == 2


class TestAbort:
    def test_without_a_switch(self, host: Host, capsys: Capture) -> None:
        assert cli.main(["abort"]) == 0
        assert "nothing to abort" in capsys.readouterr().out
        assert not paths.ABORT.exists()

    def test_of_a_running_one(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN, {"event": "phase", "phase": "drain", "id": "s1"})
        with switching.locked():
            assert cli.main(["abort", "--dry-run"]) == 0
            assert not paths.ABORT.exists()
            assert "is in drain" in capsys.readouterr().out
            assert cli.main(["abort", "--json"]) == 0
        assert paths.ABORT.exists()
        assert json.loads(capsys.readouterr().out)["aborting"] == "s1"

    @pytest.mark.parametrize(
        ("phase", "words"),
        [
            ("keepers", "it backs out"),
            ("verify", "the former server is brought back"),
            ("restore", "the new server is verified already and stays"),
            ("commit", "the new server is verified already and stays"),
            ("recover", "a server is being brought back already"),
        ],
    )
    def test_says_what_comes_of_it(
        self, phase: str, words: str, host: Host, capsys: Capture
    ) -> None:
        host.journal(BEGIN, {"event": "phase", "phase": phase, "id": "s1"})
        with switching.locked():
            assert cli.main(["abort"]) == 0
        assert words in capsys.readouterr().out


class TestResume:
    def test_nothing_is_open(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN, END)
        assert cli.main(["resume"]) == 0
        assert "nothing to resume" in capsys.readouterr().out
        assert host.systemctl == []

    def test_while_it_still_runs(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN)
        with switching.locked():
            assert cli.main(["resume"]) == 75
        assert "the switch s1 is still running" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("phase", "words"),
        [("keepers", "would go on with back_out"), ("drain", "would end"),
         ("start", "would go on with recover")],
    )  # fmt: skip
    def test_what_it_would_do(self, host: Host, capsys: Capture, phase: str, words: str) -> None:
        host.journal(BEGIN, {"event": "phase", "phase": phase, "id": "s1"})
        assert cli.main(["resume", "--dry-run"]) == 0
        assert words in capsys.readouterr().out
        assert host.systemctl == []

    def test_one_that_got_stuck_tries_to_recover(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN, {**END, "event": "stuck", "exit": 30})
        cli.main(["resume", "--dry-run"])
        assert "would go on with recover" in capsys.readouterr().out

    def test_after_a_boot_a_running_switch_is_waited_for(self, host: Host, capsys: Capture) -> None:
        """It may have been over the phase in which it would have noticed."""
        submit, busy = switching.submit, [True, True, False]

        def ask(request: dict[str, Any]) -> None:
            if busy.pop(0):
                raise BusyError("a switch to deepseek")
            submit(request)

        host.patch.setattr(switching, "submit", ask)
        host.patch.setattr(time, "sleep", lambda _: None)
        assert cli.main(["resume", "--boot"]) == 0
        assert busy == []
        assert [request["kind"] for request in host.submitted] == ["boot"]
        assert "waiting until the switch that runs has ended" in capsys.readouterr().out

    def test_after_a_boot_of_the_worker_it_is_told_at_once(self, host: Host) -> None:
        def busy(_: Any) -> None:
            raise BusyError("a switch to deepseek")

        host.patch.setattr(switching, "submit", busy)
        assert cli.main(["node", "resume", "--boot"]) == 75

    def test_the_unit_is_started_and_watched(self, host: Host) -> None:
        host.journal(BEGIN)

        def start(argv: Sequence[str], *, timeout: float) -> Result:
            host.systemctl.append(" ".join(argv))
            if "start" in argv:
                host.journal({**END, "exit": 20})
            return Result(0, "", "")

        host.patch.setattr(cli, "run", start)
        assert cli.main(["resume"]) == 20
        assert host.systemctl[-1] == "systemctl start --no-block spark-pair-switch.service"

    def test_after_a_boot(self, host: Host) -> None:
        assert cli.main(["resume", "--boot"]) == 0
        (request,) = host.submitted
        assert (request["kind"], request["target"], request["asked_by"]) == (
            "boot",
            "hikari",
            "boot",
        )


class Peer:
    """Stands in for the way to the other host."""

    role = "worker"
    answer: Any = Result(0, "", "")
    calls: list[list[str]]

    def __init__(self, _: Any) -> None:
        pass

    def call(self, words: Sequence[str], timeout: float) -> Result:
        self.calls.append(list(words))
        answer = self.answer
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Result)
        return answer

    def stream(self, words: Sequence[str]) -> int:
        done = self.call(words, 0)
        sys.stdout.write(done.out)
        sys.stderr.write(done.err)
        return done.code


@pytest.fixture
def peer(host: Host) -> type[Peer]:
    """This host is the worker; what it hands to the head ends here."""
    host.installed_as("worker")
    made = type("Made", (Peer,), {"calls": [], "role": "head"})
    host.patch.setattr(cli, "PeerNode", made)
    return made


class TestOnTheWorker:
    @pytest.mark.parametrize(
        "words",
        [
            ["switch", "hikari", "--reason", "two words", "--hold"],
            ["switch", "deepseek", "--dry-run", "--json"],
            ["follow", "s1", "--after", "3", "--json"],
            ["abort"],
            ["history", "-n", "3"],
            ["resume"],
            ["resume", "--boot"],
        ],
    )
    def test_the_very_words_go_to_the_head(
        self, peer: type[Peer], capsys: Capture, words: list[str]
    ) -> None:
        peer.answer = Result(20, "from the head\n", "and an error\n")
        assert cli.main(words) == 20
        (call,) = peer.calls
        assert call[: len(words)] == words
        if words[0] == "switch" and "--asked-by" not in words:
            assert call[-2:] == ["--asked-by", f"root on {socket.gethostname()}"]
        said = capsys.readouterr()
        assert said.out.endswith("from the head\n")
        assert said.err == "and an error\n"
        if "--json" in words:
            assert said.out == "from the head\n"  # nothing else may stand beside JSON

    def test_it_says_where_it_ran(self, peer: type[Peer], capsys: Capture) -> None:
        cli.main(["abort"])
        assert capsys.readouterr().out == "(on a)\n"

    def test_a_head_that_is_away(self, peer: type[Peer], capsys: Capture) -> None:
        peer.answer = UnreachableError("a cannot be reached from b over ssh")
        assert cli.main(["switch", "hikari"]) == 10
        assert "a cannot be reached from b" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "words",
        [
            ["switch", "hikari"],
            ["follow", "s1"],
            ["abort"],
            ["resume", "--boot"],
            ["history"],
            ["head-state"],
        ],
    )
    def test_what_comes_from_the_other_host_is_not_sent_back(
        self, peer: type[Peer], capsys: Capture, words: list[str]
    ) -> None:
        assert cli.main(["node", *words]) == 2
        assert "this host is the worker; ask the head" in capsys.readouterr().err
        assert peer.calls == []

    def test_the_switch_itself_never_runs_here(self, host: Host, capsys: Capture) -> None:
        host.installed_as("worker")
        assert cli.main(["run-switch"]) == 2
        assert "the switch runs on the head only" in capsys.readouterr().err

    def test_after_a_boot_the_head_is_waited_for(self, host: Host, peer: type[Peer]) -> None:
        naps: list[float] = []
        host.patch.setattr(time, "sleep", naps.append)
        away = UnreachableError("a cannot be reached")
        peer.answer = [away, away, Result(0, "", "")]
        assert cli.main(["resume", "--boot"]) == 0
        assert len(peer.calls) == 3
        assert len(naps) == 2

    def test_after_a_boot_a_switch_that_runs_there_is_waited_for(
        self, host: Host, peer: type[Peer]
    ) -> None:
        host.patch.setattr(time, "sleep", lambda _: None)
        peer.answer = [Result(75, "", "a switch runs\n"), Result(0, "", "")]
        assert cli.main(["resume", "--boot"]) == 0
        assert len(peer.calls) == 2

    def test_but_not_for_ever(self, host: Host, peer: type[Peer]) -> None:
        clock = iter([0.0, 30.0, 61.0])
        host.patch.setattr(time, "sleep", lambda _: None)
        host.patch.setattr(time, "monotonic", lambda: next(clock))
        peer.answer = UnreachableError("a cannot be reached")
        assert cli.main(["resume", "--boot"]) == 10
        assert len(peer.calls) == 2


class TestOnTheHead:
    def test_forwarded_words_run_as_if_typed_there(self, host: Host) -> None:
        words = ["node", "switch", "hikari", "--reason", "two words", "--no-follow"]
        assert cli.main(words) == 0
        assert host.submitted[0]["reason"] == "two words"

    def test_run_switch(self, host: Host, capsys: Capture) -> None:
        def run_unit(_: Any, say: Any) -> int:
            say("a line")
            return 11

        host.patch.setattr(switching, "run_unit", run_unit)
        assert cli.main(["run-switch"]) == 11
        assert capsys.readouterr().out == "a line\n"


class Local:
    """Stands in for this host's own end."""

    acts: list[str]
    result = ProbeResult("ok", "", 1.5, "hello")

    def __init__(self, description: Any) -> None:
        self.description = description
        self.role = description.me

    def hello(self) -> dict[str, Any]:
        return {"release": "r1"}

    def probe(self, _: Any) -> ProbeResult:
        return self.result

    def stop_unit(self, unit: str, timeout: float) -> None:
        self.acts.append(f"stop {unit} {timeout:g}")

    def start_unit(self, unit: str, *, restart: bool) -> None:
        self.acts.append(f"{'restart' if restart else 'start'} {unit}")

    def remove_rank(self, container: str) -> None:
        self.acts.append(f"remove {container}")

    def rank(self, server: Any) -> dict[str, Any]:
        return {"inspected": server.name}

    def filesystems(self, paths: Sequence[str]) -> dict[str, str | None]:
        return dict.fromkeys(paths, "ext4")

    def without_key(self, server: Any) -> str:
        return "HTTP 200"

    def weight_problems(self, server: Any) -> list[str]:
        return [f"{server.name} has none"]


@pytest.fixture
def local(host: Host) -> type[Local]:
    made = type("Made", (Local,), {"acts": []})
    host.patch.setattr(cli, "LocalNode", made)
    return made


class TestNode:
    def test_hello(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["node", "hello"]) == 0
        assert json.loads(capsys.readouterr().out) == {"release": "r1"}

    def test_weights(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["node", "weights", "deepseek"]) == 0
        assert json.loads(capsys.readouterr().out) == {"problems": ["deepseek has none"]}

    def test_without_a_key(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["node", "without-key", "deepseek"]) == 0
        assert json.loads(capsys.readouterr().out) == {"answer": "HTTP 200"}

    def test_a_rank(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["node", "rank", "deepseek"]) == 0
        assert json.loads(capsys.readouterr().out) == {"inspected": "deepseek"}

    def test_file_systems(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["node", "filesystems", "/a", "/b c"]) == 0
        assert json.loads(capsys.readouterr().out) == {"/a": "ext4", "/b c": "ext4"}

    def test_units_of_the_pair(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["node", "unit", "stop", "watchdog.timer", "--timeout", "7"]) == 0
        assert cli.main(["node", "unit", "start", "deepseek.service"]) == 0
        assert cli.main(["node", "unit", "restart", "deepseek.service"]) == 0
        assert local.acts == [
            "stop watchdog.timer 7",
            "start deepseek.service",
            "restart deepseek.service",
        ]
        assert capsys.readouterr().out.splitlines() == ['{"done":true}'] * 3

    @pytest.mark.parametrize("unit", ["ssh.service", "deepseek", "--now", "*.service"])
    def test_foreign_units_are_refused(
        self, local: type[Local], capsys: Capture, unit: str
    ) -> None:
        assert cli.main(["node", "unit", "stop", "--timeout=5", "--", unit]) == 2
        assert f"{unit} is no unit of this pair's model servers" in capsys.readouterr().err
        assert local.acts == []

    def test_ranks_of_the_pair(self, local: type[Local]) -> None:
        assert cli.main(["node", "remove-rank", "ds"]) == 0
        assert local.acts == ["remove ds"]

    def test_foreign_containers_are_refused(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["node", "remove-rank", "database"]) == 2
        assert "database is no rank" in capsys.readouterr().err
        assert local.acts == []

    @pytest.mark.parametrize(
        "verb", ["load", "probe", "without-key", "images", "weights", "context", "rank"]
    )
    def test_unknown_servers_are_refused(self, host: Host, capsys: Capture, verb: str) -> None:
        assert cli.main(["node", verb, "hikary"]) == 2
        assert "no model server named 'hikary'" in capsys.readouterr().err

    def test_what_fails_here_is_said_there(self, host: Host, local: type[Local]) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise NodeError("it broke")

        host.patch.setattr(local, "stop_unit", fail)
        assert cli.main(["node", "unit", "stop", "deepseek.service"]) == 10

    def test_head_state(self, host: Host, capsys: Capture) -> None:
        host.journal(BEGIN, END)
        jsonfile.write(paths.STATE, {"schema": 1, "hold": None})
        assert cli.main(["node", "head-state"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["state"] == {"schema": 1, "hold": None}
        assert told["last_switch"]["exit"] == 11


class TestProbe:
    def test_it_generates(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["probe", "deepseek"]) == 0
        assert capsys.readouterr().out == "deepseek generates: 'hello' in 1.5 s\n"

    def test_it_does_not(self, host: Host, local: type[Local], capsys: Capture) -> None:
        host.patch.setattr(local, "result", ProbeResult("bad", "no text"))
        assert cli.main(["probe", "deepseek"]) == 1
        assert "does not generate: no text (running unknown" in capsys.readouterr().out

    def test_as_json(self, local: type[Local], capsys: Capture) -> None:
        assert cli.main(["probe", "deepseek", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == "ok"


class TestStatus:
    @pytest.fixture(autouse=True)
    def _views(self, host: Host) -> None:
        pair = host.pair
        pair.start("hikari")
        host.patch.setattr(cli, "observe", lambda _, role, ask: pair.nodes[role].observe())

    def see(self, host: Host, peer_role: str, head_state: Any = "{}") -> None:
        """Let the peer be asked; `head_state` is what the head says when asked for it."""
        node = host.pair.nodes[peer_role]  # type: ignore[index]

        class Made(Peer):
            calls: list[list[str]] = []  # noqa: RUF012
            role = peer_role
            answer = Result(0, head_state, "")
            observe = staticmethod(node.observe)
            probe = staticmethod(node.probe)

        host.patch.setattr(cli, "PeerNode", Made)

    def test_on_the_head(self, host: Host, capsys: Capture) -> None:
        self.see(host, "worker")
        host.journal(BEGIN, END)
        assert cli.main(["status"]) == 0
        said = capsys.readouterr().out
        assert "hikari; verified just now: a completion took 0.1 s" in said
        assert "exit 11; hikari still serves" in said

    def test_as_json(self, host: Host, capsys: Capture) -> None:
        self.see(host, "worker")
        assert cli.main(["status", "--json"]) == 0
        known = json.loads(capsys.readouterr().out)
        assert known["serving"] == ["hikari"]
        assert set(known["views"]) == {"head", "worker"}

    def test_with_the_peer_away(self, host: Host, capsys: Capture) -> None:
        self.see(host, "worker")
        host.journal(BEGIN, END)
        host.pair.away = {"worker"}
        assert cli.main(["status"]) == 0
        said = capsys.readouterr().out
        assert "unknown: b cannot be reached" in said
        assert "exit 11" in said

    def test_on_the_worker_the_head_tells_the_story(self, host: Host, capsys: Capture) -> None:
        host.installed_as("worker")
        story = {"state": {"hold": {"by": "rollback", "reason": "slow"}}, "last_switch": None}
        self.see(host, "head", json.dumps(story))
        host.patch.setattr(cli, "observe", lambda _, role, ask: self.asked(host.pair, role))
        assert cli.main(["status"]) == 0
        said = capsys.readouterr().out
        assert "by rollback: slow" in said
        assert "hikari; verified just now" in said

    @staticmethod
    def asked(pair: FakePair, role: Any) -> dict[str, Any]:
        view = dict(pair.nodes[role].observe())
        view["apis"]["hikari"]["probe"] = ProbeResult("ok", "", 0.1, "x").as_dict()
        return view

    @pytest.mark.parametrize("garbage", ["", "Welcome!", "[]", "null"])
    def test_a_head_that_talks_nonsense_costs_only_its_story(
        self, host: Host, capsys: Capture, garbage: str
    ) -> None:
        host.installed_as("worker")
        self.see(host, "head", garbage)
        assert cli.main(["status", "--json"]) == 0
        known = json.loads(capsys.readouterr().out)
        assert known["last_switch"] is None
        assert known["unreachable"] == []


class TestHistory:
    def test_text_and_json(self, host: Host, capsys: Capture) -> None:
        assert cli.main(["history"]) == 0
        assert capsys.readouterr().out == "no switch yet\n"
        host.journal(BEGIN, END)
        assert cli.main(["history", "--json", "-n", "1"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["id"], row["exit"]) == ("s1", 11)


def test_version_names_the_release(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out.startswith("spark-pair ")
