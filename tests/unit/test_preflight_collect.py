"""Taking measurements: all at once, each with a deadline, and one's failure is its own."""

from __future__ import annotations

import functools
import getpass
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from fake_pair import description_data
from hypothesis import given
from hypothesis import strategies as st
from loopback import Asked, loopback, send
from preflight_host import MOUNTS, healthy

from spark_pair.preflight import collect, parse
from spark_pair.system import Result

ROOT = Path(__file__).resolve().parents[2]


def on_this_host(user: str, home: str) -> dict[str, object]:
    found = collect.measure(
        collect.Asked(user=user, home=home), runner=lambda *_: Result(127, "", "")
    )
    account: dict[str, object] = found["measured"]["account"]
    return account


def test_the_account_and_its_home(tmp_path: Path) -> None:
    user = getpass.getuser()
    assert on_this_host("nobody-has-this", "/x")["uid"] is None
    found = on_this_host(user, str(tmp_path))
    assert found["is_home"] is False and found["home_exists"] is True
    assert on_this_host(user, str(found["home"]))["is_home"] is True


def test_a_host_without_anything_is_all_reasons_and_no_error(tmp_path: Path) -> None:
    found = collect.measure(
        collect.Asked(user="one", home="/home/one"),
        runner=lambda argv, _: Result(127, "", f"{argv[0]}: not found"),
        root=tmp_path,
    )
    for name in ("gpu_list", "gpu", "nvml", "units", "meminfo", "disks", "kernel", "sudo_line"):
        assert found["measured"][name] is None
        assert found["unread"][name]
    assert found["unread"]["gpu_list"] == "nvidia-smi is not there"
    assert found["unread"]["meminfo"] == "/proc/meminfo does not exist"
    assert set(found["unread"]) <= set(found["measured"])


def test_every_value_is_there_or_has_a_reason(tmp_path: Path) -> None:
    for role in ("head", "worker"):
        host = healthy(tmp_path / role, role)
        host.facts = {}
        found = host.measure()
        for name, value in found["measured"].items():
            assert (value is None) == (name in found["unread"]), name


def test_a_program_that_hangs_costs_only_its_own_measurement(tmp_path: Path) -> None:
    host = healthy(tmp_path, "head")
    gate = threading.Event()

    def run(argv: Sequence[str], timeout: float) -> Result:
        if argv[0] == "timedatectl":
            gate.wait(30)
        return host.run(argv, timeout)

    asked = collect.Asked(user="one", home="/home/one", description=description_data())
    host.measure()  # writes the files
    began = time.monotonic()
    found = collect.measure(asked, runner=run, root=host.root, deadline=0.5)
    assert time.monotonic() - began < 20
    gate.set()
    assert found["measured"]["clock_synchronized"] is None
    assert found["unread"]["clock_synchronized"] == "no answer within 0.5 s"
    assert found["measured"]["gpu_list"] == ["GPU 0: NVIDIA GB10"]


def test_a_field_that_nvidia_smi_does_not_know_costs_only_itself(tmp_path: Path) -> None:
    host = healthy(tmp_path, "head")
    rejected = ["clocks.applications.graphics", "pstate"]

    def run(argv: Sequence[str], timeout: float) -> Result:
        words = " ".join(argv)
        if "--query-gpu" not in words:
            return host.run(argv, timeout)
        fields = words.partition("--query-gpu=")[2].split()[0].split(",")
        bad = next((name for name in rejected if name in fields), None)
        if bad:
            return Result(2, f'Field "{bad}" is not a valid field to query.\n', "")
        return Result(0, ", ".join(host.gpu[name] for name in fields) + "\n", "")

    host.measure()  # writes the files
    gpu = collect.measure(collect.Asked("one", "/home/one"), runner=run, root=host.root)[
        "measured"
    ]["gpu"]
    assert gpu["clocks.max.sm"] == "3003" and gpu["driver_version"] == "580.126.09"
    assert gpu["clocks.applications.graphics"] == gpu["pstate"] == "[N/A]"
    assert gpu["rejected"]["pstate"] == 'Field "pstate" is not a valid field to query.'


def test_the_rails_are_looked_at_within_the_deadline_and_without_their_renderer(
    tmp_path: Path,
) -> None:
    host = healthy(tmp_path, "head")
    seen: list[tuple[str, float]] = []

    def run(argv: Sequence[str], timeout: float) -> Result:
        seen.append((" ".join(argv), timeout))
        return host.run(argv, timeout)

    asked = collect.Asked(user="one", home="/home/one", rails=["enp1s0f0np0"], management="x")
    found = collect.measure(asked, runner=run, root=host.root)
    assert found["measured"]["rails"]["renderer"] is None
    assert any(words.startswith("ip ") for words, _ in seen)
    assert not [words for words, _ in seen if "nmcli" in words or "is-active" in words]
    assert max(seconds for _, seconds in seen) <= collect.COMMAND_SECONDS < collect.DEADLINE


def test_an_error_nobody_thought_of_is_one_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = healthy(tmp_path, "head")

    def broken(_: str) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(parse, "may_use_node_verbs", broken)
    found = host.measure()
    assert found["unread"]["sudo_line"] == "RuntimeError: surprise"
    assert found["measured"]["units"] is not None


def test_a_network_file_system_is_not_asked_for_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = healthy(tmp_path, "head")
    nfs = "30 21 0:50 / /home/one/.cache rw - nfs4 nas:/cache rw\n"
    host.write("proc/self/mountinfo", MOUNTS + nfs)
    asked_for: list[str] = []

    def near(path: Path) -> Path:
        asked_for.append(str(path))
        return Path("/")

    monkeypatch.setattr(collect, "_nearest", near)
    disks = host.measure()["measured"]["disks"]
    assert disks["models"]["free"] is None and disks["models"]["type"] == "nfs4"
    assert disks["docker"]["free"] > 0
    assert "/home/one/.cache/huggingface" not in asked_for


def test_dockers_own_place_for_its_data_is_used(tmp_path: Path) -> None:
    host = healthy(tmp_path, "head")
    host.write("etc/docker/daemon.json", '{"data-root": "/srv/docker"}')
    assert host.measure()["measured"]["disks"]["docker"]["path"] == "/srv/docker"


def test_the_machine_id_itself_does_not_travel(tmp_path: Path) -> None:
    host = healthy(tmp_path, "head")
    host.write("etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    assert "0123456789abcdef0123" not in str(host.measure())


def test_the_peer_is_asked_as_the_servers_account_and_nothing_is_remembered(tmp_path: Path) -> None:
    host = healthy(tmp_path, "head")
    seen: list[list[str]] = []

    def run(argv: Sequence[str], timeout: float) -> Result:
        seen.append(list(argv))
        return host.run(argv, timeout)

    asked = collect.Asked(
        user="one",
        home="/home/one",
        peer={"user": "two", "addresses": ["192.0.2.2"], "port": "2222"},
    )
    collect.measure(asked, runner=run, root=host.root)
    (ssh,) = [argv for argv in seen if "ssh" in argv]
    assert ssh[:4] == ["runuser", "-u", "one", "--"] and "two@192.0.2.2" in ssh
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "2222"):
        assert option in ssh
    # A connection that is open already proves nothing of the way.
    assert "ControlMaster=no" in ssh and "ControlPath=none" in ssh


def test_the_servers_account_has_its_own_home(tmp_path: Path) -> None:
    host = healthy(tmp_path, "head")
    seen: list[list[str]] = []

    def run(argv: Sequence[str], timeout: float) -> Result:
        seen.append(list(argv))
        return host.run(argv, timeout)

    host.measure()  # writes the files
    collect.measure(collect.Asked("one", "/home/one"), runner=run, root=host.root)
    asked_as_user = [argv for argv in seen if argv[0] == "runuser"]
    assert asked_as_user
    for argv in asked_as_user:
        assert argv[3:6] == ["--", "env", "HOME=/home/one"]


def _empty(status: int, _: Asked, handler: BaseHTTPRequestHandler) -> None:
    send(handler, "", status)


def hub(url: str, *, is_head: bool = True) -> tuple[object, str]:
    found = collect.measure(
        collect.Asked(user="one", home="/home/one", is_head=is_head, hub_url=url),
        runner=lambda *_: Result(127, "", ""),
        root=Path("/nonexistent"),
    )
    return found["measured"]["hub"], str(found["unread"].get("hub", ""))


def test_the_hub_is_asked_by_the_head_only_and_only_when_it_has_an_address() -> None:
    assert hub("") == (None, "not asked: preflight_hub_url is empty")
    assert hub("https://192.0.2.1", is_head=False) == (None, "not asked: only the head downloads")
    assert "must begin with https://" in hub("ftp://192.0.2.1")[1]


def test_whatever_the_hub_answers_it_is_in_reach_and_credentials_stay_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for status, answers in ((200, True), (404, True), (502, False)):
        with loopback(functools.partial(_empty, status)) as server:
            found, _ = hub(f"http://127.0.0.1:{server.port}")
        said = f"HTTP {status}"
        assert found == {"url": "http://127.0.0.1", "answers": answers, "said": said}
    found, _ = hub("http://user:secret@127.0.0.1:9")
    assert isinstance(found, dict) and found["answers"] is False
    assert "secret" not in str(found)


def test_the_measurements_import_nothing_that_an_old_python_lacks() -> None:
    # A host whose Python is too old is told so by these modules, so they must run there.
    code = [
        "import sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        "import spark_pair.preflight.collect",
        "late = ('spark_pair.description', 'spark_pair.findings', 'spark_pair.probe')",
        "assert not [name for name in late if name in sys.modules]",
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "\n".join(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/system.slice/docker-" + "ab" * 32 + ".scope", {"container": "ab" * 6}),
        ("12:memory:/docker/" + "cd" * 32, {"container": "cd" * 6}),
        ("0::/system.slice/hikari.service", {"unit": "hikari.service"}),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service",
            {"unit": "x.service"},
        ),
        ("0::/user.slice/user-1000.slice/session-1.scope", {}),
        ("", {}),
    ],
)
def test_whose_a_process_is(text: str, expected: dict[str, str]) -> None:
    assert parse.owner(text) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("/", "ext4")),
        ("/srv/models/x", ("/srv/models", "xfs")),
        ("/srv/modelsx", ("/", "ext4")),
        ("/srv/models", ("/srv/models", "xfs")),
    ],
)
def test_the_mount_of_a_path(path: str, expected: tuple[str, str]) -> None:
    table = [("/", "rootfs"), ("/", "ext4"), ("/srv/models", "nfs"), ("/srv/models", "xfs")]
    assert parse.mount_of(path, table) == expected


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("    (root) NOPASSWD: /usr/local/bin/spark-pair node *\n", True),
        ("    (ALL : ALL) NOPASSWD: ALL\n", True),
        ("    (ALL : ALL) ALL\n", False),
        ("    (root) NOPASSWD: /usr/bin/apt, PASSWD: ALL\n", False),
        ("    (root) NOPASSWD: /usr/bin/apt\n", False),
        ("User one is not allowed to run sudo on a.\n", False),
    ],
)
def test_lines_of_sudo(text: str, allowed: bool) -> None:
    assert parse.may_use_node_verbs(text) is allowed


def test_listeners_of_asked_ports_only() -> None:
    text = (
        'LISTEN 0 128 [::]:8000 [::]:* users:(("python3",pid=7,fd=3),("python3",pid=8,fd=3))\n'
        'LISTEN 0 128 127.0.0.1:18000 0.0.0.0:* users:(("other",pid=9,fd=3))\n'
        'LISTEN 0 128 0.0.0.0:8000 0.0.0.0:* users:(("python3",pid=7,fd=4))\n'
    )
    assert parse.listeners(text, [8000, 8888]) == {
        "8000": [(7, "python3"), (8, "python3")],
        "8888": [],
    }


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (x)",
        "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.95.05  Wed Sep 17 23:52:19 UTC 2026",
    ],
)
def test_the_loaded_drivers_version(line: str) -> None:
    assert parse.loaded_driver(f"{line}\nGCC version:  gcc version 13.3.0\n") == "580.95.05"
    assert parse.loaded_driver("something else 1.2.3\n") is None


@given(st.text(max_size=300))
def test_no_text_upsets_the_reading_of_it(text: str) -> None:
    for read in (
        parse.meminfo, parse.assignments, parse.gpu_state, parse.gpu_processes,
        parse.loaded_driver, parse.owner, parse.containers, parse.docker_info, parse.mounts,
        parse.may_use_node_verbs, parse.model_ids,
    ):  # fmt: skip
        read(text)
    parse.listeners(text, [8000])
    parse.previous_boot(text.splitlines())


def test_no_secret_of_a_container_or_process_travels(tmp_path: Path) -> None:
    host = healthy(tmp_path, "head")
    host.container("engine")
    host.containers[0]["Config"] = {
        "Env": ["HF_TOKEN=hf_secret"],
        "Cmd": ["--api-key", "hf_secret"],
    }
    host.process(9, "engine", 2**20, "/system.slice/engine.service")
    host.write("proc/9/cmdline", "engine\0--api-key\0hf_secret\0")
    assert "hf_secret" not in str(host.measure())


def test_answers_nobody_understands_are_none() -> None:
    assert parse.gpu_state("one, two\n") is None
    assert parse.docker_info("no json") is None
    assert parse.docker_info('{"ServerVersion": "", "Runtimes": null}') is None
    assert parse.containers('[{"Name": "/x"}]') is None
    assert parse.model_ids('{"data": "x"}') is None
