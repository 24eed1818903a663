"""What one host looks like, from fixtures of /proc and of program output."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_pair import describe
from loopback import completion, loopback, send

from spark_pair import hostview
from spark_pair.description import PairDescription
from spark_pair.probe import Answer
from spark_pair.system import Result

MEMINFO = """MemTotal:       127535104 kB
MemFree:         1024000 kB
MemAvailable:   117440512 kB
Buffers:             100 kB
HugePages_Total:       0
"""
TCP = """  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:22B8 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 1 1
   2: 0100007F:1F41 0100007F:D431 06 00000000:00000000 00:00000000 00000000     0        0 1 1
"""
TCP6 = """  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0
"""
UNITS = """InvocationID=5ca1ab1e
Id=hikari-worker.service
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
Result=success

LoadState=not-found
Id=watchdog.timer
ActiveState=inactive
SubState=dead
UnitFileState=
Result=success
"""
READY = "12:00:01 serving DeepSeek at http://0.0.0.0:8888 (ranks: 2, context: {}, lanes: 8)"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with the parts of /proc that are read."""
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "proc/net/tcp", TCP)
    write(tmp_path, "proc/net/tcp6", TCP6)
    write(tmp_path, "proc/sys/kernel/random/boot_id", "b00t\n")
    write(tmp_path, "proc/1/stat", stat(77))
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def stat(started: int, command: str = "systemd") -> str:
    return f"1 ({command}) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {started} 23 24\n"


def saying(**programs: Result) -> Callable[[Sequence[str], float], Result]:
    """A runner that answers by the first words of a command, joined by "_"."""

    def run(argv: Sequence[str], _: float) -> Result:
        words = "_".join(argv[:2])
        return programs.get(words, Result(127, "", "not found"))

    return run


class TestBootIdentity:
    def test_names_the_boot_and_pid_1(self, root: Path) -> None:
        assert hostview.boot_identity(root) == "b00t:77"

    def test_differs_when_only_pid_1_was_started_anew(self, root: Path) -> None:
        before = hostview.boot_identity(root)
        write(root, "proc/1/stat", stat(78))
        assert hostview.boot_identity(root) != before

    def test_a_command_name_with_blanks_and_brackets(self, root: Path) -> None:
        write(root, "proc/1/stat", stat(77, "sy (st) emd) S 9"))
        assert hostview.boot_identity(root) == "b00t:77"

    def test_of_this_machine(self) -> None:
        assert hostview.boot_identity() == hostview.boot_identity()


class TestMemory:
    def test_page_cache_counts_as_available(self, root: Path) -> None:
        assert hostview.memory(root) == {"total_gib": 121.63, "available_gib": 112.0}

    @pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB"])
    def test_unreadable_is_unknown(self, root: Path, text: str) -> None:
        write(root, "proc/meminfo", text)
        assert hostview.memory(root) is None

    def test_missing_is_unknown(self, tmp_path: Path) -> None:
        assert hostview.memory(tmp_path) is None


class TestPorts:
    def test_only_listeners_count_on_both_families(self, root: Path) -> None:
        assert hostview.ports([8001, 8000, 22, 8888], root) == {
            "22": True,
            "8000": True,
            "8001": False,
            "8888": False,
        }

    def test_a_host_without_ipv6(self, root: Path) -> None:
        (root / "proc/net/tcp6").unlink()
        assert hostview.ports([22, 8000], root) == {"22": False, "8000": True}

    def test_unreadable_is_unknown_and_not_free(self, tmp_path: Path) -> None:
        assert hostview.ports([22], tmp_path) is None


class TestUnits:
    def test_blocks_whatever_their_order_of_lines(self) -> None:
        assert hostview.parse_units(UNITS) == {
            "hikari-worker.service": {
                "load": "loaded",
                "active": "active",
                "sub": "running",
                "enabled": "enabled",
                "result": "success",
                "invocation": "5ca1ab1e",
            },
            "watchdog.timer": {
                "load": "not-found",
                "active": "inactive",
                "sub": "dead",
                "enabled": "",
                "result": "success",
                "invocation": "",
            },
        }

    @pytest.mark.parametrize("text", ["", "\n\n\n", "no equals sign\n", "ActiveState=active\n"])
    def test_blocks_without_a_name_are_passed_over(self, text: str) -> None:
        assert hostview.parse_units(text) == {}

    def test_asks_for_all_of_them_at_once(self) -> None:
        asked: list[Sequence[str]] = []

        def run(argv: Sequence[str], _: float) -> Result:
            asked.append(argv)
            return Result(0, UNITS, "")

        assert hostview.units(["a.service", "b.timer"], run) == hostview.parse_units(UNITS)
        assert asked[0][-3:] == ["--", "a.service", "b.timer"]

    def test_no_units_need_no_question(self) -> None:
        assert hostview.units([], saying()) == {}

    def test_systemd_does_not_answer(self) -> None:
        failed = saying(systemctl_show=Result(1, UNITS, "Failed to connect to bus"))
        assert hostview.units(["a.service"], failed) is None


class TestContainers:
    def test_by_name(self) -> None:
        out = "ds\trunning\timage:1\tc0ffee\nold\texited\timage:0\tdecade\n"
        assert hostview.containers(saying(docker_ps=Result(0, out, ""))) == {
            "ds": {"state": "running", "image": "image:1", "id": "c0ffee"},
            "old": {"state": "exited", "image": "image:0", "id": "decade"},
        }

    def test_none_there(self) -> None:
        assert hostview.containers(saying(docker_ps=Result(0, "", ""))) == {}

    def test_without_docker_there_are_none(self) -> None:
        assert hostview.containers(saying()) == {}

    @pytest.mark.parametrize("code", [1, 124, 126])
    def test_a_docker_that_does_not_answer_is_unknown(self, code: int) -> None:
        down = Result(code, "", "Cannot connect to the Docker daemon")
        assert hostview.containers(saying(docker_ps=down)) is None

    def test_torn_lines_are_passed_over(self) -> None:
        found = hostview.containers(saying(docker_ps=Result(0, "ds\trunning\nWARNING: x\n", "")))
        assert found == {}


class TestContext:
    def test_of_the_ready_line(self) -> None:
        assert hostview.context_in_log(["loading", READY.format(262144), "GET /"]) == 262144

    def test_the_last_ready_line_wins(self) -> None:
        lines = [READY.format(262144), "killed", READY.format(131072)]
        assert hostview.context_in_log(lines) == 131072

    @pytest.mark.parametrize(
        "line", ["", "context: 262144", "serving soon (context: 1)", "serving x at y context: 1"]
    )
    def test_other_lines_say_nothing(self, line: str) -> None:
        assert hostview.context_in_log([line]) is None

    def test_only_the_log_since_the_container_was_started_is_read(self) -> None:
        asked: list[Sequence[str]] = []

        def run(argv: Sequence[str], _: float) -> Result:
            asked.append(argv)
            if argv[1] == "inspect":
                return Result(0, "2026-01-02T03:04:05.6Z\n", "")
            return Result(0, "", READY.format(262144))

        assert hostview.ready_context("ds", run) == 262144
        assert asked[1] == ["docker", "logs", "--since", "2026-01-02T03:04:05.6Z", "ds"]

    def test_no_container_no_context(self) -> None:
        gone = saying(docker_inspect=Result(1, "", "No such object"))
        assert hostview.ready_context("ds", gone) is None
        silent = saying(docker_inspect=Result(0, "now", ""), docker_logs=Result(1, "", "gone"))
        assert hostview.ready_context("ds", silent) is None


ENGINE = (
    "[tensorfold] serving DeepSeek at http://0.0.0.0:8888/v1 "
    "(sampling: top_p 0.95; drafts: {}; context: 262144; loaded in 40.1s)"
)
FOLLOWER = '{"rank": 1, "loaded_s": 31.5, "pool": 262144, "drafts": true, "arena_used": 0}'


class TestWhatARankSays:
    @pytest.mark.parametrize(
        ("lines", "context", "drafts"),
        [
            ([ENGINE.format("on")], 262144, True),
            ([ENGINE.format("off")], 262144, False),
            ([READY.format(5)], 5, None),
            (["x", FOLLOWER, '{"rank": 1, "followed": true}'], 262144, True),
            ([FOLLOWER.replace("true", "false")], 262144, False),
            ([FOLLOWER.replace("true", "1")], 262144, None),
            ([FOLLOWER, READY.format(7)], 7, None),
            (["{torn", '{"pool": 5}', "[1]", ""], None, None),
            ([], None, None),
        ],
    )
    def test_when_it_is_ready(
        self, lines: list[str], context: int | None, drafts: bool | None
    ) -> None:
        assert hostview.said_when_ready(lines) == {"context": context, "drafts": drafts}

    def test_and_how_it_was_made(self) -> None:
        made = {"Name": "/ds", "Image": "sha256:1", "Config": {"Image": "image:1"}, "Id": "x"}
        image = {"Id": "sha256:2", "Config": {"Env": ["PATH=/bin"]}}
        answers = {
            ("docker", "container"): Result(0, json.dumps([made]), ""),
            ("docker", "image"): Result(0, json.dumps([image]), ""),
            ("docker", "inspect"): Result(0, "now", ""),
            ("docker", "logs"): Result(0, ENGINE.format("on"), ""),
        }
        told = hostview.rank("ds", lambda argv, _: answers[argv[0], argv[1]])
        assert told["inspected"] == {
            "Name": "/ds",
            "Image": "sha256:1",
            "Config": {"Image": "image:1"},
            "HostConfig": None,
            "Mounts": None,
        }
        assert (told["image_id"], told["image_env"]) == ("sha256:2", ["PATH=/bin"])
        assert told["ready"] == {"context": 262144, "drafts": True}

    @pytest.mark.parametrize("out", ["", "[]", "{}", "[1]", "torn"])
    def test_a_docker_that_does_not_say(self, out: str) -> None:
        assert hostview.rank("ds", lambda *_: Result(0, out, ""))["inspected"] is None


def at_port(port: int, current: Path) -> PairDescription:
    def change(data: dict[str, Any]) -> None:
        data["servers"]["deepseek"]["api"]["port"] = port
        data["servers"]["deepseek"]["generation"]["current"] = str(current)

    return describe(change)


class TestIsThere:
    """Also what is ending, and what nobody could be asked about, counts as being there."""

    @pytest.mark.parametrize(
        ("active", "there"),
        [
            ("active", True),
            ("activating", True),
            ("deactivating", True),
            ("failed", False),
            ("inactive", False),
        ],
    )
    def test_by_its_units(self, active: str, there: bool) -> None:
        hikari = describe().server("hikari")
        units = {name: {"active": active} for name in hikari.units_on("worker")}
        assert hostview.is_there(hikari, "worker", units, {}) is there

    @pytest.mark.parametrize(("names", "there"), [(["ds"], True), (["other"], False), ([], False)])
    def test_by_its_ranks(self, names: list[str], there: bool) -> None:
        deepseek = describe().server("deepseek")
        assert hostview.is_there(deepseek, "head", {}, dict.fromkeys(names)) is there

    @pytest.mark.parametrize(("units", "containers"), [(None, {}), ({}, None)])
    def test_unseen(self, units: None, containers: None) -> None:
        deepseek = describe().server("deepseek")
        assert hostview.is_there(deepseek, "head", units, containers)


class TestObserve:
    runner = staticmethod(
        saying(
            systemctl_show=Result(0, UNITS, ""),
            docker_ps=Result(0, "ds\trunning\timage:1\tUp\n", ""),
            docker_inspect=Result(0, "now\n", ""),
            docker_logs=Result(0, READY.format(262144), ""),
        )
    )

    def test_a_host_with_a_server(self, root: Path) -> None:
        (root / "current").symlink_to(root / "0123")
        with loopback(lambda _, handler: send(handler, json.dumps(completion()))) as there:
            description = at_port(there.port, root / "current")
            view = hostview.observe(description, "head", runner=self.runner, root=root)
            paths = [asked.path for asked in there.asked]
        assert view["host"] == "a"
        assert view["role"] == "head"
        assert view["boot"] == "b00t:77"
        assert view["memory"]["available_gib"] == 112.0
        assert view["units"]["watchdog.timer"]["load"] == "not-found"
        assert view["containers"]["ds"]["state"] == "running"
        assert view["ports"] == {"8000": True, "8888": False}
        assert view["generations"] == {"deepseek": "0123"}
        assert view["apis"] == {
            "deepseek": {
                "listens": True,
                "models_status": 200,
                "load": {"running": None, "waiting": None, "progress": None},
                "context": 262144,
                "probe": None,
            }
        }
        assert paths == ["/v1/models", "/metrics"]
        assert json.loads(hostview.to_json(view)) == view
        assert "\n" not in hostview.to_json(view)

    def test_asked_for_a_completion(self, root: Path) -> None:
        with loopback(lambda _, handler: send(handler, json.dumps(completion()))) as there:
            description = at_port(there.port, root / "current")
            view = hostview.observe(description, "head", ask=True, runner=self.runner, root=root)
        assert view["apis"]["deepseek"]["probe"]["kind"] == "ok"

    def test_a_server_that_wants_a_key_answers(self, root: Path) -> None:
        with loopback(lambda _, handler: send(handler, "{}", 401)) as there:
            description = at_port(there.port, root / "current")
            view = hostview.observe(description, "head", runner=self.runner, root=root)
        assert view["apis"]["deepseek"]["listens"] is True
        assert view["apis"]["deepseek"]["models_status"] == 401

    def test_nobody_listens(self, root: Path) -> None:
        view = hostview.observe(
            at_port(1, root / "current"), "head", ask=True, runner=self.runner, root=root
        )
        assert view["apis"]["deepseek"] == {
            "listens": False,
            "models_status": None,
            "load": None,
            "context": None,
            "probe": None,
        }
        assert view["generations"] == {"deepseek": None}

    @pytest.mark.parametrize(
        ("containers", "seconds"), [("ds\trunning\timage:1\tx\n", 5.0), ("", 1.0)]
    )
    def test_a_listener_without_a_server_is_not_waited_for(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, containers: str, seconds: float
    ) -> None:
        """It may never say a word, and a switch looks again and again."""
        given = []

        def silent(_: object, __: str, path: str, timeout: float) -> Answer:
            given.append((path, timeout))
            return Answer(0, "", "timeout")

        monkeypatch.setattr(hostview, "request", silent)
        runner = saying(docker_ps=Result(0, containers, ""), systemctl_show=Result(0, "", ""))
        view = hostview.observe(at_port(1, root / "current"), "head", runner=runner, root=root)
        assert given == [("/v1/models", seconds)]
        assert view["apis"]["deepseek"]["listens"] is True

    def test_apis_of_the_other_host_are_not_asked(self, root: Path) -> None:
        def change(data: dict[str, Any]) -> None:
            data["servers"]["hikari"]["api"]["port"] = 1

        view = hostview.observe(describe(change), "worker", runner=self.runner, root=root)
        assert list(view["apis"]) == ["hikari"]

    def test_a_host_that_tells_nothing_but_its_boot(self, root: Path) -> None:
        for name in ("proc/meminfo", "proc/net/tcp", "proc/net/tcp6"):
            (root / name).unlink()
        broken = saying(
            systemctl_show=Result(1, "", "no bus"), docker_ps=Result(1, "", "no daemon")
        )
        view = hostview.observe(at_port(1, root / "current"), "head", runner=broken, root=root)
        unknown = ("memory", "units", "containers", "ports")
        assert [view[name] for name in unknown] == [None] * 4
