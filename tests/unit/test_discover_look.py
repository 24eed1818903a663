"""What discovery reads on one machine: trees of files and recorded answers stand in for it."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from discovery import COMMIT, RAILS, SECOND_PORT, FakeRunner, addresses, write
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.discover import accounts, look, network, servers
from spark_pair.discover.reading import Unread
from spark_pair.discover.servers import Unit, classified
from spark_pair.system import Result

PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\n"
    "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "spark:x:1000:1000::/home/spark:/bin/bash\n"
    "lab:x:1001:1001::/srv/lab:/bin/zsh\n"
    "gone:x:1002:1002::/home/gone:/bin/bash\n"
    "web:x:1003:1003::/home/web:/usr/sbin/nologin\n"
)


def cx7(root: Path, name: str, **files: str) -> None:
    """One interface of /sys with its PCI function behind it."""
    function = name[name.index("f") + 1]
    pci = f"{'0002' if 'P2' in name else '0000'}:01:00.{function}"
    device = root / "sys/devices" / pci
    write(device, {"vendor": "0x15b3\n", f"infiniband/roce-{name}/x": ""})
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    write(folder, {"carrier": "1\n", **files})


def looked(root: Path, runner: FakeRunner, address: str = "192.0.2.11") -> tuple[Any, Unread]:
    unread: Unread = {}
    return network.look(root, runner, address, unread), unread


ROUTES = json.dumps(
    [
        {"dst": "default", "gateway": "192.0.2.1", "dev": "enP7s7", "metric": 100},
        {"dst": "192.0.2.0/24", "dev": "enP7s7", "prefsrc": "192.0.2.11"},
        {"dst": "198.51.100.0/25", "dev": RAILS[0], "prefsrc": "198.51.100.11"},
    ]
)


def network_runner(**more: str | Result) -> FakeRunner:
    return FakeRunner(
        {
            **more,
            f"ip -json address show dev {RAILS[0]}": addresses("198.51.100.11/25"),
            "ip -json address show dev": addresses(),
            "ip -json -4 route": ROUTES,
        }
    )


def test_twins_are_found_by_socket_and_the_management_interface_is_no_part(tmp_path: Path) -> None:
    for name in (*RAILS, *SECOND_PORT):
        cx7(tmp_path, name, phys_port_name=f"p{name[-1]}", phys_switch_id="ab12")
    write(tmp_path, {"sys/class/net/enP7s7/carrier": "1", "sys/class/net/lo/carrier": "1"})
    found, unread = looked(tmp_path, network_runner())
    assert [(one["name"], one["port"]) for one in found["interfaces"]] == [
        (RAILS[0], "p0 of ab12"),
        (RAILS[1], "p0 of ab12"),
        (SECOND_PORT[0], "p1 of ab12"),
        (SECOND_PORT[1], "p1 of ab12"),
    ]
    assert found["interfaces"][0]["rdma"] == f"roce-{RAILS[0]}"
    assert found["interfaces"][0]["addresses"] == ["198.51.100.11/25"]
    assert found["management"] == {
        "interface": "enP7s7",
        "address": "192.0.2.11",
        "wireless": False,
        "how": "carries the address that was given",
    }
    assert found["networks"] == ["192.0.2.0/24", "198.51.100.0/25"]
    assert unread == {}


def test_twins_without_a_word_from_the_driver_share_the_number_of_their_function(
    tmp_path: Path,
) -> None:
    cx7(tmp_path, RAILS[0], phys_port_name="p0", phys_switch_id="ab12")
    cx7(tmp_path, RAILS[1])  # it says nothing, so nothing that its twin says decides
    cx7(tmp_path, "renamed_f1", phys_port_name="p1", phys_switch_id="ab12")
    found, _ = looked(tmp_path, network_runner())
    ports = {one["name"]: one["port"] for one in found["interfaces"]}
    assert ports[RAILS[0]] == ports[RAILS[1]] == "function 0"
    assert ports["renamed_f1"] == "function 1"


def test_without_a_device_the_name_tells(tmp_path: Path) -> None:
    for name in (*RAILS, "enP7s7", "enp3s0f0np0"):
        write(tmp_path, {f"sys/class/net/{name}/carrier": "1"})
    found, _ = looked(tmp_path, network_runner())
    assert [one["name"] for one in found["interfaces"]] == list(RAILS)
    # With a device that is somebody else's the name is not asked.
    write(tmp_path, {f"sys/class/net/{RAILS[0]}/device/vendor": "0x8086"})
    found, _ = looked(tmp_path, network_runner())
    assert [one["name"] for one in found["interfaces"]] == [RAILS[1]]


@pytest.mark.fault(45)
def test_every_question_names_its_device_and_no_neighbour_is_asked(tmp_path: Path) -> None:
    cx7(tmp_path, RAILS[0])
    runner = network_runner()
    found, unread = looked(tmp_path, runner)
    # The recorded answers have no "ifname" and begin with an empty entry.
    assert found["interfaces"][0]["addresses"] == ["198.51.100.11/25"] and not unread
    asked = [line for line in runner.asked if line.startswith("ip")]
    assert all(" dev " in line or " route " in line for line in asked)
    assert not any("neigh" in line for line in asked)


def test_an_unreadable_answer_is_said_and_is_no_empty_interface(tmp_path: Path) -> None:
    cx7(tmp_path, RAILS[0])
    runner = FakeRunner({"ip -json address": 'Object "dev" is unknown', "ip": Result(1, "", "no")})
    _, unread = looked(tmp_path, runner)
    assert set(unread) == {f"addresses of {RAILS[0]}", "routes"}


def test_a_carrier_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    cx7(tmp_path, RAILS[0], carrier="")
    assert looked(tmp_path, network_runner())[0]["interfaces"][0]["carrier"] is None


def test_a_name_that_was_given_leads_to_the_default_route(tmp_path: Path) -> None:
    write(tmp_path, {"sys/class/net/enP7s7/wireless/x": ""})
    found, _ = looked(tmp_path, network_runner(), "spark-a.local")
    assert found["management"]["interface"] == "enP7s7"
    assert found["management"]["address"] == "192.0.2.11"
    assert found["management"]["wireless"] is True
    assert found["management"]["how"] == "has the default route"


# --- accounts and model data


def git(root: Path, home: str, head: str, **files: str) -> None:
    config = '[remote "origin"]\n\turl = https://me:secret@example.org/x/recipe.git\n'
    write(root / f"{home}/dsv41/.git", {"HEAD": head, "config": config, **files})


def found_accounts(root: Path, runner: FakeRunner, login: str = "spark") -> tuple[Any, Unread]:
    unread: Unread = {}
    return accounts.look(root, runner, login, unread), unread


def test_accounts_with_a_home_are_found_with_their_models(tmp_path: Path) -> None:
    hub = "home/spark/.cache/huggingface/hub"
    write(
        tmp_path, {f"{hub}/models--deep--seek/blobs/a": "x" * 10, "srv/lab/x": "", "home/web/x": ""}
    )
    blobs = tmp_path / hub / "models--deep--seek/blobs"
    (blobs / "shared").symlink_to("a")
    (blobs / "broken").symlink_to("nowhere")
    (tmp_path / hub / ".locks").mkdir()
    found, unread = found_accounts(tmp_path, FakeRunner({"getent passwd": PASSWD}))
    assert [(one["name"], one["home"]) for one in found] == [
        ("lab", "/srv/lab"),
        ("spark", "/home/spark"),
    ]
    assert found[1]["models"] == [{"name": "deep/seek", "bytes": 20, "broken_links": 1}]
    assert not unread


@pytest.mark.parametrize(
    "said", ["HF_HOME=/data/hf\n", 'PATH="/bin"\nexport HF_HUB_CACHE="/data/hf/hub"\n']
)
def test_model_data_elsewhere_counts_for_its_owner(tmp_path: Path, said: str) -> None:
    write(tmp_path, {"etc/environment": said, "data/hf/hub/models--x--y/blobs/a": "x" * 10})
    write(tmp_path, {"home/me/x": "", "home/you/x": ""})
    me = os.getuid()
    passwd = f"me:x:{me}:1::/home/me:/bin/sh\nyou:x:{me + 1000}:1::/home/you:/bin/sh\n"
    found, _ = found_accounts(tmp_path, FakeRunner({"getent passwd": passwd}), "me")
    assert {one["name"]: [model["name"] for model in one["models"]] for one in found} == {
        "me": ["x/y"],
        "you": [],
    }


def test_a_login_that_only_a_directory_service_knows_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"home/far/x": ""})
    runner = FakeRunner(
        {"getent passwd far": "far:x:200000:1::/home/far:/bin/bash\n", "getent passwd": PASSWD}
    )
    found, _ = found_accounts(tmp_path, runner, "far")
    assert [one["name"] for one in found] == ["far"]


@pytest.mark.parametrize("packed", [False, True])
def test_the_recipes_commit_is_read_from_the_checkout(tmp_path: Path, packed: bool) -> None:
    where = (
        {"packed-refs": f"# pack\n{COMMIT} refs/heads/main\n"}
        if packed
        else {"refs/heads/main": f"{COMMIT}\n"}
    )
    git(tmp_path, "home/spark", "ref: refs/heads/main\n", **where)
    runner = FakeRunner({"getent passwd": PASSWD, "runuser": " M start.sh\n M stop.sh\n"})
    found, _ = found_accounts(tmp_path, runner)
    checkout = found[0]["checkout"]
    assert checkout["commit"] == COMMIT
    assert checkout["url"] == "https://example.org/x/recipe.git"  # without name and password
    assert checkout["changed"] == 2
    # As its owner, and without writing into it.
    assert any(
        line.startswith("runuser -u spark -- git --no-optional-locks") for line in runner.asked
    )


def test_a_checkout_that_is_none_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"home/spark/dsv41/start.sh": "", "srv/lab/x": ""})
    (tmp_path / "srv/lab/dsv41").symlink_to("nowhere")
    found, _ = found_accounts(tmp_path, FakeRunner({"getent passwd": PASSWD}))
    assert found[0]["checkout"]["problem"] == "a link that leads nowhere yet"
    assert found[1]["checkout"]["problem"] == "not a git checkout"
    assert found[1]["checkout"]["commit"] is None


def test_a_detached_head_is_a_commit_and_an_unreadable_one_is_not(tmp_path: Path) -> None:
    git(tmp_path, "home/spark", COMMIT)
    git(tmp_path, "srv/lab", "ref: refs/heads/gone")
    found, _ = found_accounts(tmp_path, FakeRunner({"getent passwd": PASSWD}))
    assert found[1]["checkout"]["commit"] == COMMIT
    assert found[1]["checkout"]["changed"] is None  # git could not be asked
    assert found[0]["checkout"]["commit"] is None and found[0]["checkout"]["problem"]


# --- units


def parts(*units: Unit, ports: tuple[int, ...] = ()) -> dict[str, str]:
    return {row["unit"]: row["part"] for row in classified(units, ports)}


HEAD = Unit("qwen38fn-miaai-head.service", "system", command="/opt/q/launch.sh head")
TIMER = Unit(
    "qwen38fn-miaai-head-watchdog.timer",
    "system",
    triggers=("qwen38fn-miaai-head-watchdog.service",),
)
WATCHDOG = Unit(
    "qwen38fn-miaai-head-watchdog.service",
    "system",
    script="#!/bin/bash\nsystemctl start --no-block qwen38fn-miaai-head.service",
)


def test_a_server_its_watchdog_and_the_timer_are_told_apart() -> None:
    found = parts(HEAD, WATCHDOG, TIMER, Unit("cron.service", "system"))
    assert found == {HEAD.name: "server", WATCHDOG.name: "keeper", TIMER.name: "keeper"}


@pytest.mark.parametrize(
    ("unit", "part"),
    [
        (Unit("a.service", "system", command="/usr/bin/python3 -m vllm.entrypoints"), "server"),
        (Unit("a.service", "system", description="SGLang router"), "server"),
        (Unit("a.service", "system", command="/usr/bin/docker run --gpus all img"), "server"),
        (Unit("a.service", "system", script="#!/bin/sh\nexec docker run img serve x"), "server"),
        (Unit("a.service", "system", script="#!/bin/sh\nsystemctl start b\nvllm serve"), "server"),
        (Unit("a.service", "system", script="#!/bin/sh\necho about tensorfold and qwen"), None),
        (Unit("a.service", "system", command="/usr/bin/docker run nginx"), None),
        (Unit("spark-pair-resume.service", "system", description="deepseek"), None),
        (Unit("ssh.service", "system", command="/usr/sbin/sshd -D"), None),
    ],
)
def test_what_makes_a_unit_a_server(unit: Unit, part: str | None) -> None:
    # That it starts something else, which is no model server, does not make it a watchdog.
    assert parts(unit, Unit("b.service", "system")).get(unit.name) == part


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    "keeper",
    [
        Unit("cheer.service", "system", command="/bin/systemctl restart qwen38fn-miaai-head"),
        Unit("look.timer", "system", triggers=(HEAD.name,)),
        Unit("poke.service", "system", command="/usr/bin/curl http://127.0.0.1:8000/v1/models"),
        Unit("qwen38fn-miaai-collect.timer", "system"),
    ],
    ids=lambda unit: unit.name,
)
def test_what_revives_a_server_is_found_whatever_it_is_called(keeper: Unit) -> None:
    assert parts(HEAD, keeper, ports=(8000,)) == {HEAD.name: "server", keeper.name: "keeper"}


def test_a_unit_of_the_catalogue_is_a_server_whatever_it_is_called(tmp_path: Path) -> None:
    shown = (
        "Id=chat@1.service\nExecStart={ argv[]=/opt/chat ; x }\n\n"
        "Id=cheer.service\nExecStart={ argv[]=/bin/systemctl start chat@1 ; x }\n\n"
        "Id=gone.service\nLoadState=not-found\n"
    )
    runner = FakeRunner({"systemctl list-unit": "chat@.service x\n", "systemctl show": shown})
    known = servers.Known(units=("chat@1.service", "gone.service", "no unit; at all"))
    found = servers.look(tmp_path, runner, [], {}, ask=lambda port: None, known=known)
    assert [(row["unit"], row["part"], row["why"]) for row in found["units"]] == [
        ("chat@1.service", "server", "the catalogue names it"),
        ("cheer.service", "keeper", "starts chat@1.service"),
    ]
    (asked,) = (line for line in runner.asked if line.startswith("systemctl show"))
    assert asked.endswith(" -- chat@1.service gone.service")


def test_a_timer_of_a_keeper_is_a_keeper_too() -> None:
    keeper = Unit("cheer.service", "system", command="/bin/systemctl start qwen38fn-miaai-head")
    timer = Unit("nightly.timer", "system", triggers=("cheer.service",))
    assert parts(HEAD, keeper, timer)["nightly.timer"] == "keeper"


@given(st.lists(st.sampled_from([HEAD, WATCHDOG, TIMER]), unique=True), st.randoms())
def test_the_order_of_units_does_not_matter(units: list[Unit], random: Any) -> None:
    shuffled = list(units)
    random.shuffle(shuffled)
    assert classified(units) == classified(shuffled)


SHOWN = """\
Id=vllm.service
Description=a server
ExecStart={ path=/opt/run.sh ; argv[]=/opt/run.sh --api-key hush ; ignore_errors=no ; pid=0 }
ActiveState=active
UnitFileState=enabled
FragmentPath=/etc/systemd/system/vllm.service
User=spark
Type=simple

Id=qwen-elsewhere.service
Description=qwen-elsewhere.service
LoadState=not-found
ActiveState=inactive

Id=cron.service
Description=Regular background program processing daemon
ExecStart={ path=/usr/sbin/cron ; argv[]=/usr/sbin/cron -f ; ignore_errors=no }
ActiveState=active
"""


def test_units_of_the_system_are_read_and_no_command_line_is_passed_on(tmp_path: Path) -> None:
    runner = FakeRunner(
        {
            "systemctl list-unit-files": "vllm.service enabled enabled\ngetty@.service static -\n",
            "systemctl list-units": "cron.service loaded active running x\n",
            "systemctl show": SHOWN,
            "docker ps": "",
        }
    )
    unread: Unread = {}
    found = servers.look(tmp_path, runner, [], unread, ask=lambda port: None)
    assert [(row["unit"], row["user"], row["enabled"]) for row in found["units"]] == [
        ("vllm.service", "spark", "enabled")
    ]
    assert "hush" not in json.dumps(found)
    show = next(line for line in runner.asked if line.startswith("systemctl show"))
    assert "getty@" not in show and "cron.service vllm.service" in show


def test_units_of_an_account_are_found_without_its_manager(tmp_path: Path) -> None:
    folder = "home/spark/.config/systemd/user"
    write(
        tmp_path,
        {
            f"{folder}/llm.service": "[Service]\nExecStart=/opt/run.sh\n[Install]\n",
            f"{folder}/llm.timer": "[Timer]\nOnBootSec=1\n",
            f"{folder}/note.service": "[Service]\nExecStart=/bin/true\n",
            f"{folder}/default.target.wants/llm.service": "",
            "opt/run.sh": "#!/bin/sh\nexec docker run --gpus all x vllm serve y\n",
        },
    )
    account = {"name": "spark", "uid": 1000, "home": "/home/spark"}
    found = servers.user_units(tmp_path, FakeRunner({}), account, {})
    rows = {row["unit"]: row for row in classified(found)}
    assert set(rows) == {"llm.service", "llm.timer"}
    assert rows["llm.service"]["scope"] == "user:spark"
    assert rows["llm.service"]["enabled"] == "enabled"
    assert rows["llm.service"]["active"] == "inactive"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (".local/share/systemd/user/llm.service", "[Service]\nExecStart=/usr/bin/vllm serve x\n"),
        (".config/containers/systemd/llm.container", "[Container]\nImage=docker.io/vllm:1\n"),
        (
            ".config/containers/systemd/llm.container",
            "[Container]\nImage=img\nPodmanArgs=--gpus all\n",
        ),
    ],
)
def test_units_of_an_account_lie_in_more_than_one_folder(
    tmp_path: Path, path: str, content: str
) -> None:
    write(tmp_path, {f"home/spark/{path}": content})
    account = {"name": "spark", "uid": 1000, "home": "/home/spark"}
    found = classified(servers.user_units(tmp_path, FakeRunner({}), account, {}))
    assert [(row["unit"], row["scope"], row["part"]) for row in found] == [
        ("llm.service", "user:spark", "server")
    ]


def test_a_unit_that_only_the_running_manager_knows_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"run/user/1000/bus": "", "home/spark/x": ""})
    account = {"name": "spark", "uid": 1000, "home": "/home/spark"}
    asks = "runuser -u spark -- env XDG_RUNTIME_DIR=/run/user/1000 systemctl --user"
    runner = FakeRunner(
        {
            f"{asks} list-unit-files": "a@.service static -\n",
            f"{asks} list-units": "run-u7.service loaded active running vllm\n",
            f"{asks} show": "Id=run-u7.service\nDescription=vllm\nActiveState=active\n",
        }
    )
    found = servers.user_units(tmp_path, runner, account, {})
    assert [(one.name, one.active) for one in found] == [("run-u7.service", "active")]
    unread: Unread = {}
    assert servers.user_units(tmp_path, FakeRunner({}), account, unread) == []
    assert "units of spark" in unread


def test_units_of_an_account_are_asked_of_its_manager(tmp_path: Path) -> None:
    write(tmp_path, {"home/spark/.config/systemd/user/llm.service": "", "run/user/1000/bus": ""})
    account = {"name": "spark", "uid": 1000, "home": "/home/spark"}
    asks = "runuser -u spark -- env XDG_RUNTIME_DIR=/run/user/1000 systemctl --user"
    lists = {f"{asks} list-unit": ""}
    shown = {f"{asks} show": "Id=llm.service\nDescription=vllm\nActiveState=active\n"}
    found = servers.user_units(tmp_path, FakeRunner({**lists, **shown}), account, {})
    assert [(one.scope, one.active) for one in found] == [("user:spark", "active")]
    unread: Unread = {}
    silent = servers.user_units(tmp_path, FakeRunner(lists), account, unread)
    assert [(one.name, one.active) for one in silent] == [("llm.service", "unknown")]
    assert "state of units (user:spark)" in unread


# --- containers and ports


def container(name: str, **over: Any) -> dict[str, Any]:
    host = {"RestartPolicy": {"Name": "unless-stopped"}, **over}
    return {
        "Name": f"/{name}",
        # Where nvidia is Docker's default runtime, only this tells who asked for a GPU.
        "Config": {"Image": "an/image:1", "Env": ["NVIDIA_VISIBLE_DEVICES=all"]},
        "State": {"Status": "running"},
        "HostConfig": host,
    }


def test_gpu_containers_are_found_with_their_restart_policy(tmp_path: Path) -> None:
    gpu = container("llm", DeviceRequests=[{"Capabilities": [["gpu"]]}])
    old = container("old", Runtime="nvidia", RestartPolicy={"Name": ""})
    cdi = container("app", DeviceRequests=[{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}])
    inspected = json.dumps([gpu, old, cdi, container("web"), container("my-vllm")])
    runner = FakeRunner({"docker ps": "a\nb\nc\nd\ne\n", "docker inspect": inspected})
    found = servers.look(tmp_path, runner, [], {}, ask=lambda port: None)["containers"]
    assert [(row["name"], row["restart"], row["gpu"]) for row in found] == [
        ("app", "unless-stopped", True),
        ("llm", "unless-stopped", True),
        ("my-vllm", "unless-stopped", False),
        ("old", "no", True),
    ]


@pytest.mark.parametrize(
    "answers",
    [
        {"docker ps": Result(1, "", "permission denied while trying to connect")},
        {"docker ps": "a\n", "docker inspect": "no JSON"},
    ],
)
def test_a_docker_that_cannot_be_asked_is_unknown(
    tmp_path: Path, answers: dict[str, str | Result]
) -> None:
    unread: Unread = {}
    found = servers.look(tmp_path, FakeRunner(answers), [], unread, ask=lambda port: None)
    assert found["containers"] == []
    assert unread["containers"].startswith("docker")
    assert "system units" in unread and "listening ports (tcp)" in unread


def test_a_host_without_docker_has_no_containers_and_that_is_no_unread(tmp_path: Path) -> None:
    unread: Unread = {}
    found = servers.look(tmp_path, FakeRunner({}), [], unread, ask=lambda port: None)
    assert found["containers"] == [] and "containers" not in unread
    # Something listens where Docker does, so that it is there and only its client was not found.
    write(tmp_path, {"run/docker.sock": ""})
    servers.look(tmp_path, FakeRunner({}), [], unread, ask=lambda port: None)
    assert unread["containers"] == "docker: docker: not found"


TCP = """\
  sl  local_address rem_address   st tx_queue
   0: 00000000:1F40 00000000:0000 0A 00000000
   1: 0100007F:22B8 00000000:0000 0A 00000000
   2: 0B0200C0:1F90 00000000:0000 0A 00000000
   3: 00000000:0016 00000000:0000 0A 00000000
   4: 0100007F:9999 0100007F:1F40 01 00000000
"""


@pytest.mark.fault(36)
def test_listening_ports_are_asked_for_their_model_and_others_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"proc/net/tcp": TCP, "proc/net/tcp6": "sl\n"})
    asked: list[int] = []

    def ask(port: int) -> tuple[int, bytes] | None:
        asked.append(port)
        return {8000: (200, b'{"data": [{"id": "one"}, {"id": "two"}]}'), 8888: (404, b"")}[port]

    found = servers.look(tmp_path, FakeRunner({}), [], {}, ask=ask)["answering"]
    assert sorted(asked) == [8000, 8888]  # not ssh, not an address of its own, no connection
    assert found == [{"port": 8000, "models": ["one", "two"], "words": "one, two"}]


def listens(*ports: int) -> str:
    rows = (f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000" for port in ports)
    return "\n".join(["  sl  local_address rem_address   st", *rows, ""])


def asked_ports(
    root: Path, runner: FakeRunner, *ports: int, known: servers.Known = servers.NOTHING_KNOWN
) -> tuple[list[int], list[int]]:
    """Ports that were asked, and those that are only said to listen."""
    write(root, {"proc/net/tcp": listens(*ports)})
    asked: list[int] = []
    found = servers.look(root, runner, [], {}, ask=asked.append, known=known)
    return sorted(asked), found["not_asked"]


def test_only_ports_that_may_be_a_model_servers_are_asked(tmp_path: Path) -> None:
    # A rendezvous of torch, an engine's ZMQ socket: a GET on them may end a server that serves.
    found = asked_ports(
        tmp_path,
        FakeRunner({}),
        29500,
        41234,
        8000,
        11434,
        9123,
        known=servers.Known(ports=(9123,)),
    )
    assert found == ([8000, 9123, 11434], [29500, 41234])


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("vllm serve x --port 9001 --master-port 29500", [9001]),
        ("vllm serve x --port=9001 --dist-init-addr 127.0.0.1:29500", [9001]),
        ("docker run --gpus all -p 9001:29500 img serve", [9001]),
        ("docker run --gpus all --publish 127.0.0.1:9001:29500 -e PORT=7777 img", [7777, 9001]),
        ("vllm serve x # see http://127.0.0.1:9001/v1 and tcp://127.0.0.1:29500", [9001]),
        ("vllm serve x", []),
    ],
)
def test_a_port_that_a_servers_unit_names_is_asked(
    tmp_path: Path, said: str, asked: list[int]
) -> None:
    write(tmp_path, {"opt/run.sh": f"#!/bin/sh\n{said}\n"})
    runner = FakeRunner(
        {
            "systemctl list-unit": "vllm.service enabled enabled\nnginx.service x\n",
            "systemctl show": "Id=vllm.service\nExecStart={ argv[]=/opt/run.sh ; x }\n\n"
            "Id=nginx.service\nExecStart={ argv[]=/usr/sbin/nginx --port 8181 ; x }\n",
        }
    )
    assert asked_ports(tmp_path, runner, 9001, 7777, 29500, 8181)[0] == asked


def test_a_port_of_a_gpu_container_is_asked(tmp_path: Path) -> None:
    published = container("app", Runtime="nvidia", PortBindings={"80/tcp": [{"HostPort": "9001"}]})
    given = container("b", Runtime="nvidia")
    given["Config"]["Cmd"] = ["serve", "--port", "9002"]
    random = container("c", Runtime="nvidia")
    random["NetworkSettings"] = {"Ports": {"80/tcp": [{"HostPort": "32768"}], "81/tcp": None}}
    other = container("web", PortBindings={"80/tcp": [{"HostPort": "9003"}]})
    inspected = json.dumps([published, given, random, other])
    runner = FakeRunner({"docker ps": "a\n", "docker inspect": inspected})
    assert asked_ports(tmp_path, runner, 9001, 9002, 32768, 9003) == ([9001, 9002, 32768], [9003])


def test_a_port_that_drips_does_not_hold_the_look() -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with server.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                for _ in range(100):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        break
                    if ended.wait(0.05):
                        break

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            # Each byte comes well within the time of one receive; only an end to all of it helps.
            assert servers.ask_models(server.getsockname()[1], seconds=0.3) is None
        finally:
            ended.set()
            thread.join(10)


@pytest.mark.parametrize(
    ("status", "body", "models"),
    [(401, b"", []), (200, b"<html>", None), (200, b'{"data": 3}', None), (500, b"", None)],
)
def test_only_a_model_server_counts(
    tmp_path: Path, status: int, body: bytes, models: list[str] | None
) -> None:
    write(tmp_path, {"proc/net/tcp": TCP, "proc/net/tcp6": ""})
    found = servers.look(tmp_path, FakeRunner({}), [], {}, ask=lambda port: (status, body))
    assert [row["models"] for row in found["answering"]] == ([] if models is None else [models] * 2)


def test_a_machine_of_which_nothing_can_be_read_says_so(tmp_path: Path) -> None:
    found = look.look("ann", "192.0.2.11", root=tmp_path, runner=FakeRunner({}), ask=lambda _: None)
    assert set(found["unread"]) >= {"hostname", "interfaces", "routes", "accounts", "system units"}
    assert found["accounts"] == found["interfaces"] == found["units"] == []
    json.dumps(found)
