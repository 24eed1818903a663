"""What the measurements of a pair are taken for: one story a fault, and what holds for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from preflight_host import GIB, MOUNTS, PAIR, Pair, healthy_pair

from spark_pair import ansible_words
from spark_pair.description import Role
from spark_pair.findings import Finding, Grade
from spark_pair.preflight import collect, judge, parse
from spark_pair.preflight.checks import HostCheck, PairCheck
from spark_pair.preflight.rails import RAILS
from spark_pair.system import Result

HIKARI = "/system.slice/hikari-head.service"
CATALOGUE = {check.id: check for check in judge.CATALOGUE}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return healthy_pair(tmp_path)


def hikari_serves(pair: Pair) -> None:
    """Both parts of the incumbent run, and it holds memory, GPU and port of the worker."""
    pair.head.units["hikari-worker.service"] = "active"
    pair.worker.units["hikari-head.service"] = "active"
    for host in (pair.head, pair.worker):
        host.memory["MemAvailable"] = 19 * GIB
    pair.worker.process(4711, "python3", 3 * GIB, HIKARI)
    pair.worker.answers["--query-compute-apps"] = Result(0, "4711, /usr/bin/python3\n", "")
    pair.worker.answers["ss "] = listener(8000, "python3", 4711)
    pair.worker.facts["models"] = models("hikari", 8000, "Qwen", ["Qwen"])


def listener(port: int, name: str, pid: int) -> Result:
    return Result(
        0, f'LISTEN 0 2048 0.0.0.0:{port} 0.0.0.0:* users:(("{name}",pid={pid},fd=9))\n', ""
    )


def models(server: str, port: int, expected: str, ids: list[str] | None) -> dict[str, Any]:
    found = {"port": port, "expected": expected, "kind": "answered", "status": 200, "why": ""}
    return {server: {**found, "ids": ids}}


def bad(findings: dict[str, Finding]) -> dict[str, Grade]:
    return {one.id: one.grade for one in findings.values() if one.grade is not Grade.OK}


def only_bad(pair: Pair, name: str, grade: Grade) -> Finding:
    """The finding of that id, which must be the only one that is not well."""
    found = pair.judge()
    assert bad(found) == {name: grade}, [found[name] for name in bad(found)]
    return found[name]


def test_a_healthy_pair_passes_every_check(pair: Pair) -> None:
    found = pair.judge()
    assert bad(found) == {}, [found[name] for name in bad(found)]
    for one in found.values():
        hosts = {PAIR[role] for role in CATALOGUE[one.id].roles}
        assert set(one.measured) == hosts and all(one.measured.values()), one
        assert not one.hint


def test_a_serving_incumbent_explains_memory_gpu_and_port(pair: Pair) -> None:
    hikari_serves(pair)
    found = pair.judge()
    assert bad(found) == {}
    assert found["memory"].measured["spark-b"] == "19.0 of 121.7 GiB (hikari)"
    assert found["gpu_processes"].measured["spark-b"] == "1 (hikari)"
    assert found["ports"].measured == {"spark-a": "8888 free", "spark-b": "8000 hikari"}
    assert found["served_name"].measured == {"spark-a": "none answers", "spark-b": "Qwen"}


@pytest.mark.fault(2)
def test_memory_held_by_a_stranger_is_named_beside_a_serving_incumbent(pair: Pair) -> None:
    hikari_serves(pair)
    pair.head.process(99, "ollama", 20 * GIB, "/system.slice/ollama.service")
    found = only_bad(pair, "memory", Grade.FAIL)
    assert "spark-a: deepseek needs 112 GiB" in found.hint
    assert "ollama (pid 99) of ollama.service holds 20.0 GiB" in found.hint
    assert "spark-b" not in found.hint


@pytest.mark.fault(2)
def test_memory_that_processes_share_counts_once(pair: Pair) -> None:
    hikari_serves(pair)
    for pid in (99, 100, 101, 102):
        pair.head.process(pid, "postgres", 0, "/system.slice/postgresql.service")
        pair.head.write(f"proc/{pid}/status", f"RssAnon:\t9 kB\nRssShmem:\t{4 * GIB} kB\n")
        pair.head.write(
            f"proc/{pid}/smaps_rollup",
            f"Rss: {4 * GIB} kB\nPss: {GIB} kB\nPss_Anon: 9 kB\nPss_Shmem: {GIB - 9} kB\n",
        )
    assert pair.judge()["memory"].grade is Grade.OK, "4 GiB and not 16"
    held = pair.head.measure()["measured"]["processes"]
    assert [one["kib"] for one in held] == [GIB] * 4
    pair.head.write("proc/99/smaps_rollup", "Rss: 1 kB\n")
    assert pair.head.measure()["measured"]["processes"][0]["kib"] == 4 * GIB + 9


@pytest.mark.fault(2)
def test_memory_that_nobody_holds_is_the_drivers(pair: Pair) -> None:
    pair.worker.memory["MemAvailable"] = 60 * GIB
    found = only_bad(pair, "memory", Grade.FAIL)
    assert "no known server holds the rest" in found.hint and "reboot" in found.hint


@pytest.mark.fault(2)
def test_a_machine_that_is_too_small_is_said_to_be(pair: Pair) -> None:
    pair.head.memory.update(MemTotal=100 * GIB, MemAvailable=99 * GIB)
    assert "100.0 GiB in all" in only_bad(pair, "memory", Grade.FAIL).hint


@pytest.mark.fault(2)
def test_a_stranger_on_the_gpu_is_named(pair: Pair) -> None:
    pair.head.write("proc/55/cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n")
    pair.head.answers["--query-compute-apps"] = Result(0, "55, /opt/comfy/bin/python\n", "")
    assert "python (pid 55)" in only_bad(pair, "gpu_processes", Grade.WARN).hint


def test_a_command_line_of_a_gpu_process_does_not_travel(pair: Pair) -> None:
    pair.head.write("proc/55/cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n")
    said = "55, /usr/bin/python3 serve.py --api-key sk-secret/1\n56, [Not Found]\n"
    pair.head.answers["--query-compute-apps"] = Result(0, said, "")
    measured = pair.head.measure()["measured"]
    assert "sk-secret" not in str(measured) and "/1" not in str(measured["gpu_processes"])
    assert [one["name"] for one in measured["gpu_processes"]] == ["python3", ""]
    pair.head.write("proc/55/comm", "VLLM::Worker\n")
    assert "VLLM::Worker (pid 55)" in pair.judge()["gpu_processes"].hint


def test_ranks_that_died_explain_nothing_though_their_unit_is_active(pair: Pair) -> None:
    pair.head.units["deepseek.service"] = "active"
    pair.head.memory["MemAvailable"] = 19 * GIB
    only_bad(pair, "memory", Grade.FAIL)
    pair.head.container("ds")
    assert pair.judge()["memory"].measured["spark-a"] == "19.0 of 121.7 GiB (deepseek)"


@pytest.mark.fault(3)
def test_a_kernel_that_counts_more_free_cma_than_there_is(pair: Pair) -> None:
    pair.worker.memory.update(CmaTotal=0, CmaFree=26 * GIB)
    found = only_bad(pair, "kernel_cma", Grade.FAIL)
    assert "spark-b: " in found.hint and "spark-a" not in found.hint
    assert "kho=off" in found.hint and "6.17" in found.hint


@pytest.mark.fault(9)
@pytest.mark.parametrize("name", ["clocks.max.sm", "clocks.applications.graphics"])
def test_clock_settings_must_agree(pair: Pair, name: str) -> None:
    pair.worker.gpu[name] = "[N/A]"
    assert "[N/A] on spark-b" in only_bad(pair, "clocks", Grade.FAIL).hint
    pair.head.gpu[name] = "[N/A]"
    assert pair.judge()["clocks"].grade is Grade.OK
    pair.head.gpu[name], pair.worker.gpu[name] = "2418", "2100"
    hint = only_bad(pair, "clocks", Grade.FAIL).hint
    assert "slower machine" in hint
    for step in ("nvidia-smi -rgc", "-rac", "reboot", "firmware", "preflight_accept: [clocks]"):
        assert step in hint
    assert "-lgc" not in hint, "it changes neither value"


@pytest.mark.fault(9)
@pytest.mark.parametrize(
    ("used", "clock", "grade"),
    [
        ("96", "1980", Grade.WARN),
        ("96", "2300", Grade.OK),
        ("40", "1980", Grade.OK),
        ("96", "[N/A]", Grade.OK),
    ],
)
def test_equal_settings_that_do_not_hold_under_load(
    pair: Pair, used: str, clock: str, grade: Grade
) -> None:
    pair.worker.gpu.update({"utilization.gpu": used, "clocks.sm": clock})
    found = pair.judge()["clocks"]
    assert found.grade is grade
    if grade is Grade.WARN:
        assert "1980 MHz on spark-b" in found.hint and "confirm under load" in found.hint


@pytest.mark.fault(9)
@pytest.mark.parametrize(
    ("said", "grade"),
    [("[Unknown Error]", Grade.UNKNOWN), ("[GPU requires reset]", Grade.FAIL)],
)
def test_a_gpu_that_answers_with_an_error_does_not_agree_with_its_like(
    pair: Pair, said: str, grade: Grade
) -> None:
    for host in (pair.head, pair.worker):
        host.gpu.update({"clocks.max.sm": said, "utilization.gpu": said})
    found = pair.judge()
    assert found["clocks"].grade is grade and said in found["clocks"].hint
    assert "spark-a and spark-b" in found["clocks"].hint
    assert found["gpu_power"].grade is Grade.UNKNOWN and said in found["gpu_power"].hint


def test_what_nvidia_smi_says_instead_of_values_is_the_reason(pair: Pair) -> None:
    pair.head.answers["--query-gpu"] = Result(15, "Unable to determine the device handle\n", "")
    found = pair.judge()
    for name in ("clocks", "gpu_power"):
        assert found[name].grade is Grade.UNKNOWN
        assert "Unable to determine the device handle" in found[name].hint


@pytest.mark.fault(9)
def test_a_busy_gpu_that_is_slow_and_cold_has_latched(pair: Pair) -> None:
    pair.head.gpu["utilization.gpu"] = "60"
    pair.worker.gpu.update({"clocks.sm": "507", "power.draw": "22.4", "utilization.gpu": "97"})
    found = pair.judge()["gpu_power"]
    assert found.grade is Grade.FAIL
    assert found.hint.index("ask it for a completion first") < found.hint.index("power cable")
    assert "30 to 60 seconds" in found.hint and "spark-a" not in found.hint


@pytest.mark.fault(9)
@pytest.mark.parametrize(
    ("state", "grade"),
    [
        ({"utilization.gpu": "3", "clocks.sm": "208", "power.draw": "5.1"}, Grade.UNKNOWN),
        ({"clocks.sm": "1200", "power.draw": "60"}, Grade.OK),
        ({"clocks.sm": "2400", "power.draw": "20"}, Grade.OK),
        ({"power.draw": "[N/A]"}, Grade.UNKNOWN),
    ],
)
def test_what_is_no_latch(pair: Pair, state: dict[str, str], grade: Grade) -> None:
    pair.head.gpu.update(state)
    assert pair.judge()["gpu_power"].grade is grade


@pytest.mark.fault(11)
def test_a_missing_toolkit_stops_and_an_unregistered_runtime_warns(pair: Pair) -> None:
    info = Result(0, '{"ServerVersion": "29", "Runtimes": {"runc": {}}}', "")
    pair.head.answers["docker info"] = info
    assert "runtime stage registers it" in only_bad(pair, "nvidia_runtime", Grade.WARN).hint
    (pair.head.root / "usr/bin/nvidia-ctk").unlink()
    found = pair.judge()["nvidia_toolkit"]
    assert found.grade is Grade.FAIL and "nvidia-ctk is not there" in found.hint


@pytest.mark.fault(11)
def test_a_docker_that_the_account_may_not_use_warns(pair: Pair) -> None:
    pair.worker.answers["docker info"] = Result(1, "", "permission denied on /var/run/docker.sock")
    found = pair.judge()
    assert bad(found) == {"docker": Grade.WARN, "nvidia_runtime": Grade.UNKNOWN}
    assert "permission denied" in found["docker"].hint


def test_a_machine_without_docker_is_no_reason_to_stop(pair: Pair) -> None:
    (pair.head.root / "usr/bin/docker").unlink()
    found = pair.judge()
    assert bad(found) == {"docker": Grade.WARN, "nvidia_runtime": Grade.UNKNOWN}
    assert "runtime stage installs it" in found["docker"].hint


@pytest.mark.fault(13)
def test_foreign_gpu_containers_that_docker_restarts(pair: Pair) -> None:
    pair.head.container("old-engine", policy="unless-stopped", running=False)
    pair.head.container("web", policy="always", gpu=False)
    pair.head.container("once", policy="no")
    found = only_bad(pair, "restart_policies", Grade.WARN)
    assert "docker update --restart no old-engine'" in found.hint


@pytest.mark.fault(13)
def test_ranks_of_known_servers_are_the_switchs_business(pair: Pair) -> None:
    pair.head.container("ds", policy="unless-stopped")
    assert pair.judge()["restart_policies"].grade is Grade.OK


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    ("environment", "gpu"),
    [
        ([], False),
        (["NVIDIA_VISIBLE_DEVICES="], False),
        (["NVIDIA_VISIBLE_DEVICES=void"], False),
        (["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=none"], False),
        (["NVIDIA_VISIBLE_DEVICES=all"], True),
        (None, False),
    ],
)
def test_a_container_of_the_nvidia_runtime_has_the_gpu_only_if_it_asks(
    pair: Pair, environment: list[str] | None, gpu: bool
) -> None:
    pair.head.container("web", policy="always", gpu=False)
    (one,) = pair.head.containers
    one["HostConfig"]["Runtime"] = "nvidia"
    one["Config"] = {"Env": environment}
    assert (pair.judge()["restart_policies"].grade is Grade.WARN) is gpu


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("daemon", "grade"),
    [("earlyoom", Grade.FAIL), ("dgx-anti-oom", Grade.FAIL), ("systemd-oomd", Grade.WARN)],
)
def test_daemons_that_kill_the_engine(pair: Pair, daemon: str, grade: Grade) -> None:
    pair.worker.units[f"{daemon}.service"] = "active"
    pair.worker.managed_oom["system.slice"] = "kill"
    found = only_bad(pair, "oom_daemons", grade)
    assert found.measured == {"spark-a": "none active", "spark-b": daemon}
    assert f"disable --now {daemon}" in found.hint


@pytest.mark.fault(15)
def test_systemd_oomd_that_may_end_sessions_only_is_no_concern(pair: Pair) -> None:
    pair.worker.units["systemd-oomd.service"] = "active"
    found = pair.judge()["oom_daemons"]
    assert found.grade is Grade.OK and found.measured["spark-b"] == "systemd-oomd, sessions only"
    pair.worker.managed_oom["-.slice"] = "kill"
    hint = only_bad(pair, "oom_daemons", Grade.WARN).hint
    assert "systemctl set-property -- -.slice ManagedOOMSwap=auto" in hint
    pair.worker.answers["ManagedOOMSwap"] = Result(0, "Id=-.slice\n\nId=system.slice\n", "")
    assert "is not known" in only_bad(pair, "oom_daemons", Grade.WARN).hint


@pytest.mark.fault(19)
def test_a_boot_that_ended_without_a_shutdown(pair: Pair) -> None:
    lines = "2026-11-28T03:14:15+0000 spark kernel: mlx5_core 0000:01:00.0: temperature ok\n"
    pair.head.answers["journalctl"] = Result(0, lines, "")
    found = only_bad(pair, "unclean_boot", Grade.WARN)
    assert "stops at 2026-11-28T03:14:15+0000" in found.hint


@pytest.mark.fault(21)
def test_management_over_the_air_is_said(pair: Pair) -> None:
    pair.head.facts["rails"]["management"].update(interface="wlP9s9", wireless=True)
    found = pair.judge()["management_path"]
    assert found.grade is not Grade.OK and "spark-a" in found.hint


def late_rails(pair: Pair, why: str = "no answer within 6 s") -> dict[str, Finding]:
    """The worker answers and its rails alone could not be read."""
    seen = {role: host.look() for role, host in pair.hosts().items()}
    worker = seen["worker"]
    measured = {**(worker.measured or {}), "rails": None}
    seen["worker"] = judge.Seen("one", "/home/one", measured=measured, unread={"rails": why})
    return Pair.findings(seen)


def test_rails_that_could_not_be_read_keep_their_reason(pair: Pair) -> None:
    found = late_rails(pair)
    assert found["rails_mtu"].grade is Grade.UNKNOWN
    assert "The rails of spark-b could not be read: no answer within 6 s" in found["rails_mtu"].hint
    assert "was not seen" not in " ".join(one.hint for one in found.values())
    assert found["rails_link"].measured["spark-b"] == "unknown"


@pytest.mark.fault(16)
def test_a_peer_that_answers_is_no_excuse_for_a_dead_link(pair: Pair) -> None:
    rail = pair.head.facts["rails"]["interfaces"]["enp1s0f0np0"]
    rail.update(carrier=False, rdma_state="DOWN")
    found = late_rails(pair)
    assert found["rails_link"].grade is found["rails_rdma"].grade is Grade.FAIL
    assert "put the QSFP cable firmly" in found["rails_link"].hint
    assert pair.judge(only="head")["rails_link"].grade is Grade.UNKNOWN, "it may be off"


@pytest.mark.fault(30)
def test_a_module_that_is_older_than_its_library(pair: Pair) -> None:
    words = "Failed to initialize NVML: Driver/library version mismatch"
    pair.worker.answers["nvidia-smi"] = Result(18, words, "")
    found = pair.judge()
    assert found["driver_module"].grade is Grade.FAIL and "reboot" in found["driver_module"].hint
    assert "spark-a" not in found["driver_module"].hint
    # What else nvidia-smi would have told is not known; nothing else fails because of it.
    assert {name for name, grade in bad(found).items() if grade is not Grade.UNKNOWN} == {
        "driver_module"
    }


@pytest.mark.fault(30)
def test_an_update_that_waits_for_its_reboot(pair: Pair) -> None:
    library = pair.head.root / "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.126.09"
    library.rename(library.with_name("libnvidia-ml.so.580.142"))
    found = only_bad(pair, "driver_module", Grade.FAIL)
    assert "580.126.09" in found.hint and "580.142" in found.hint
    library.with_name("libnvidia-ml.so.580.142").unlink()
    assert pair.judge()["driver_module"].grade is Grade.OK, "nvidia-smi tells it, too"


@pytest.mark.fault(30)
def test_a_library_that_an_update_left_behind_does_not_count(pair: Pair) -> None:
    folder = pair.head.root / "usr/lib/aarch64-linux-gnu"
    (folder / "libnvidia-ml.so.580.142").write_text("")
    link = folder / "libnvidia-ml.so.1"
    link.symlink_to("libnvidia-ml.so.580.142")
    found = only_bad(pair, "driver_module", Grade.FAIL)
    assert "the installed user space is 580.142: reboot" in found.hint
    link.unlink()
    link.symlink_to("libnvidia-ml.so.580.126.09")
    assert pair.judge()["driver_module"].grade is Grade.OK


@pytest.mark.fault(30)
def test_machines_that_were_updated_one_after_the_other(pair: Pair) -> None:
    pair.head.write("proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n")
    pair.head.write("etc/dgx-release", 'DGX_OTA_VERSION="7.6.0"\n')
    pair.head.write("sys/class/dmi/id/bios_version", "5.36_0ACUM024\n")
    pair.head.facts["rails"]["interfaces"]["enp1s0f0np0"]["firmware"] = "28.46.1000"
    found = pair.judge()
    assert bad(found) == dict.fromkeys(("kernel", "dgx_os", "firmware", "bios"), Grade.WARN)
    assert "spark-a has 7.0.0-1019-nvidia, spark-b has 6.17.0-1032-nvidia" in found["kernel"].hint


@pytest.mark.fault(30)
def test_two_drivers_are_refused(pair: Pair) -> None:
    version = (pair.head.root / "proc/driver/nvidia/version").read_text()
    pair.head.write("proc/driver/nvidia/version", version.replace("580.126.09", "580.142"))
    pair.head.write("usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.142", "")
    only_bad(pair, "driver", Grade.FAIL)


@pytest.mark.fault(36)
def test_a_foreign_listener_is_named(pair: Pair) -> None:
    pair.head.write("proc/808/cgroup", "0::/system.slice/jupyter.service\n")
    pair.head.answers["ss "] = listener(8888, "jupyter-lab", 808)
    found = only_bad(pair, "ports", Grade.FAIL)
    assert "port 8888 of deepseek is held by" in found.hint
    assert "jupyter-lab (pid 808) of jupyter.service" in found.hint
    assert found.measured["spark-a"] == "8888 jupyter-lab"


def more_ports(pair: Pair) -> None:
    """A rendezvous port of the head's rank and one of the worker's, beside the API's."""

    def change(data: dict[str, Any]) -> None:
        data["servers"]["deepseek"]["ports"] += [
            {"host": "head", "port": 29501},
            {"host": "worker", "port": 29502},
        ]

    pair.change = change


@pytest.mark.fault(17)
@pytest.mark.fault(36)
def test_a_stale_rank_on_a_port_that_is_not_the_apis(pair: Pair) -> None:
    more_ports(pair)
    pair.worker.write("proc/909/cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n")
    pair.worker.answers["ss "] = listener(29502, "python3", 909)
    found = only_bad(pair, "ports", Grade.FAIL)
    assert "port 29502 of deepseek is held by python3 (pid 909)" in found.hint
    assert found.measured["spark-a"] == "8888 free, 29501 free"
    assert found.measured["spark-b"] == "8000 free, 29502 python3"
    assert "model_server_extra" in found.hint


@pytest.mark.fault(17)
def test_two_servers_may_share_a_port(pair: Pair) -> None:
    def change(data: dict[str, Any]) -> None:
        data["servers"]["hikari"]["ports"].append({"host": "head", "port": 8888})

    pair.change = change
    pair.head.units["hikari-worker.service"] = "active"
    pair.head.process(12, "python3", GIB, "/system.slice/hikari-worker.service")
    pair.head.answers["ss "] = listener(8888, "python3", 12)
    assert pair.judge()["ports"].measured["spark-a"] == "8888 hikari"


@pytest.mark.fault(36)
def test_a_listener_that_cannot_be_named_is_a_stranger(pair: Pair) -> None:
    pair.head.answers["ss "] = Result(0, "LISTEN 0 5 *:8888 *:*\n", "")
    only_bad(pair, "ports", Grade.FAIL)


@pytest.mark.fault(36)
def test_a_container_counts_as_the_servers_only_while_its_unit_is_active(pair: Pair) -> None:
    pair.worker.container("qwen", id="ab" * 32)
    pair.worker.write("proc/77/cgroup", f"0::/system.slice/docker-{'ab' * 32}.scope\n")
    pair.worker.answers["ss "] = listener(8000, "vllm", 77)
    assert "vllm (pid 77) of qwen" in only_bad(pair, "ports", Grade.FAIL).hint
    pair.worker.units["hikari-head.service"] = "active"
    assert pair.judge()["ports"].grade is Grade.OK


@pytest.mark.fault(36)
def test_dockers_proxy_listens_for_the_active_unit_only(pair: Pair) -> None:
    pair.worker.write("proc/78/cgroup", "0::/system.slice/docker.service\n")
    pair.worker.answers["ss "] = listener(8000, "docker-proxy", 78)
    only_bad(pair, "ports", Grade.FAIL)
    pair.worker.units["hikari-head.service"] = "active"
    assert pair.judge()["ports"].grade is Grade.OK


@pytest.mark.fault(36)
def test_an_answer_under_another_models_name(pair: Pair) -> None:
    hikari_serves(pair)
    pair.worker.facts["models"] = models("hikari", 8000, "Qwen", ["Llama"])
    found = only_bad(pair, "served_name", Grade.FAIL)
    assert "answers as Llama, not as Qwen" in found.hint
    pair.worker.facts["models"]["hikari"].update(ids=None, status=401)
    assert "HTTP 401" in only_bad(pair, "served_name", Grade.UNKNOWN).hint


@pytest.mark.fault(37)
def test_hf_is_looked_for_at_its_places(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (pair.head.root / "opt/spark-pair/current/venv/bin/hf").unlink()
    assert "no hf" in only_bad(pair, "head_tools", Grade.WARN).hint
    pair.head.write("home/one/.local/bin/hf", "", executable=True)
    assert pair.judge()["head_tools"].grade is Grade.OK


@pytest.mark.fault(47)
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_caches_belong_on_local_disks(pair: Pair, kind: str) -> None:
    line = f"30 21 0:50 / /home/one/.cache rw - {kind} nas:/cache rw\n"
    pair.worker.write("proc/self/mountinfo", MOUNTS + line)
    found = only_bad(pair, "disk_models", Grade.FAIL)
    assert found.measured["spark-b"] == kind and "/home/one/.cache)" in found.hint


def test_little_room_is_said(pair: Pair) -> None:
    disks = pair.head.measure()["measured"]["disks"]
    disks["docker"]["free"] = 3 << 30
    pair.head.facts["disks"] = disks
    found = only_bad(pair, "disk_docker", Grade.WARN)
    assert found.measured["spark-a"] == "3 GiB free (ext4), the image: 23 GiB"


def test_what_the_files_take_is_shown_beside_the_free_space(pair: Pair) -> None:
    cells = pair.judge()["disk_models"].measured
    assert cells["spark-a"].endswith("(ext4), all files: 484 GiB")
    assert cells["spark-b"].endswith("(ext4), all files: 289 GiB")


def test_equal_machine_ids(pair: Pair) -> None:
    pair.worker.write("etc/machine-id", "head\n")
    hint = only_bad(pair, "machine_id", Grade.FAIL).hint
    assert "rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup" in hint
    assert "DHCP may then give it another address" in hint


def test_clocks_that_are_apart(pair: Pair) -> None:
    pair.head.facts["clock_offset"] = -65.0
    assert "65 s apart" in only_bad(pair, "time_skew", Grade.WARN).hint
    pair.worker.facts["clock_offset"] = -65.3
    assert pair.judge()["time_skew"].grade is Grade.OK, "both agree, the controller is wrong"


def test_a_clock_that_nobody_keeps(pair: Pair) -> None:
    pair.head.answers["timedatectl"] = Result(0, "no\n", "")
    only_bad(pair, "ntp", Grade.WARN)


def test_swap_in_use(pair: Pair) -> None:
    pair.head.memory.update(SwapTotal=16 * GIB, SwapFree=16 * GIB)
    assert pair.judge()["swap"].grade is Grade.OK
    pair.head.memory.update(SwapFree=14 * GIB)
    only_bad(pair, "swap", Grade.WARN)


def test_another_architecture(pair: Pair) -> None:
    pair.head.facts["architecture"] = "x86_64"
    only_bad(pair, "architecture", Grade.FAIL)


@pytest.mark.parametrize(
    ("said", "grade"),
    [("", Grade.FAIL), ("GPU 0: NVIDIA H100 (UUID: GPU-2)\n", Grade.WARN)],
)
def test_another_gpu_or_none(pair: Pair, said: str, grade: Grade) -> None:
    pair.head.answers["nvidia-smi -L"] = Result(0, said, "")
    only_bad(pair, "gpu", grade)


@pytest.mark.parametrize(
    "said",
    [
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running.",
    ],
)
def test_a_driver_that_finds_no_gpu_is_no_unknown(pair: Pair, said: str) -> None:
    pair.head.answers["nvidia-smi"] = Result(9, f"{said}\n", "")
    found = pair.judge()["gpu"]
    assert found.grade is Grade.FAIL and found.measured["spark-a"] == "none"
    assert said[:30] in found.hint and "dmesg" in found.hint


def test_nvidia_smi_that_hangs_or_is_not_there_is_unknown(pair: Pair) -> None:
    for code in (124, 127):
        pair.head.answers["nvidia-smi"] = Result(code, "", "no end after 5 s")
        assert pair.judge()["gpu"].grade is Grade.UNKNOWN


def test_closed_ways_to_the_peer(pair: Pair) -> None:
    denied = Result(255, "", "two@192.168.177.12: Permission denied (publickey).\n")
    pair.head.answers["two@192.168.177.12"] = denied
    found = only_bad(pair, "ssh_mesh", Grade.WARN)
    assert found.measured == {"spark-a": "1 of 2 ways", "spark-b": "2 of 2 ways"}
    assert "at 192.168.177.12" in found.hint and "service stage makes the keys" in found.hint


def test_a_missing_line_for_the_peers_switch(pair: Pair) -> None:
    pair.head.answers["sudo"] = Result(0, "User one is not allowed to run sudo on a.\n", "")
    only_bad(pair, "sudo_line", Grade.WARN)


def test_a_hub_that_is_out_of_reach(pair: Pair) -> None:
    hub = {"url": "https://huggingface.co", "answers": False, "said": "timed out"}
    pair.head.facts["hub"] = hub
    assert "proxies" in only_bad(pair, "hub", Grade.WARN).hint


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"python": [3, 9]}, "python"),
        ({"euid": 1000}, "sudo"),
        ({"account": {"uid": 0, "home": "/root", "is_home": True, "home_exists": True}}, "account"),
        ({"account": {"uid": 7, "home": "/x", "is_home": False, "home_exists": True}}, "home"),
        ({"account": {"uid": 7, "home": "/x", "is_home": True, "home_exists": False}}, "home"),
    ],
)
def test_what_everything_else_needs(pair: Pair, facts: dict[str, Any], name: str) -> None:
    pair.head.facts.update(facts)
    only_bad(pair, name, Grade.FAIL)


def test_a_missing_account_is_named_once(pair: Pair) -> None:
    nobody = {"uid": None, "home": "", "is_home": False, "home_exists": False}
    pair.head.facts["account"] = nobody
    found = pair.judge()
    assert bad(found) == {"account": Grade.FAIL, "home": Grade.UNKNOWN}
    assert found["account"].hint == "spark-a: there is no account 'one': correct spark_user"


def test_wrong_variables_are_one_finding(pair: Pair) -> None:
    found = pair.judge("first is wrong", "second is wrong")
    assert bad(found) == {"variables": Grade.FAIL}
    assert found["variables"].hint == "first is wrong; second is wrong"


def test_an_accepted_name_that_is_no_check_is_refused_with_the_nearest() -> None:
    assert judge.unknown_names(["architecture", "rails_ssh", "rails_bandwidth"]) == []
    (said,) = judge.unknown_names(["architectur"])
    assert "'architectur'" in said and "did you mean architecture?" in said


# What holds for every check.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[Role, judge.Seen]:
    """Everything that was seen of a healthy pair, for tests that only drop from it."""
    pair = healthy_pair(tmp_path_factory.mktemp("pair"))
    return {role: host.look() for role, host in pair.hosts().items()}


def measurements() -> list[str]:
    return [name for names, _ in collect.PROBES for name in names]


def needed_by(name: str) -> set[str]:
    found = {
        check.id
        for check in judge.CATALOGUE
        if isinstance(check, HostCheck | PairCheck) and name in check.needs
    }
    return found | ({check.id for check in RAILS} if name == "rails" else set())


@pytest.mark.parametrize("role", ["head", "worker"])
@pytest.mark.parametrize("name", measurements())
def test_a_measurement_that_is_missing_never_passes(
    whole: dict[Role, judge.Seen], name: str, role: Role
) -> None:
    seen = whole[role]
    assert seen.measured is not None
    lacking = judge.Seen(
        seen.user, seen.home, measured={**seen.measured, name: None}, unread={name: "no reason"}
    )
    found = Pair.findings({**whole, role: lacking})
    host = PAIR[role]
    for identity in needed_by(name):
        if role not in CATALOGUE[identity].roles:
            continue
        one = found[identity]
        if identity in {check.id for check in RAILS}:
            assert one.grade is not Grade.OK or host not in one.measured, one
            continue
        assert one.grade is Grade.UNKNOWN and "no reason" in one.hint, one
        assert one.measured[host] == "unknown" and host in one.hint
    # The others do not care.
    for identity in set(found) - needed_by(name):
        assert found[identity].grade is Grade.OK, found[identity]


def test_every_measurement_is_used(whole: dict[Role, judge.Seen]) -> None:
    for name in measurements():
        uses = {
            check.id
            for check in judge.CATALOGUE
            if isinstance(check, HostCheck) and name in check.uses
        }
        assert needed_by(name) | uses, name
    known = set(measurements())
    for check in judge.CATALOGUE:
        if isinstance(check, HostCheck | PairCheck):
            assert check.needs and set(check.needs) <= known, check.id


def test_nothing_at_all_is_never_well() -> None:
    empty = judge.Seen("one", "/home/one", measured={}, unread={})
    for one in Pair.findings({"head": empty, "worker": empty}).values():
        if one.id not in ("reachable", "variables"):
            assert one.grade is not Grade.OK, one
            assert one.hint, one


def test_ids_are_unique_and_every_bad_finding_has_a_hint(pair: Pair) -> None:
    names = [check.id for check in judge.CATALOGUE]
    assert len(names) == len(set(names))
    for check in judge.CATALOGUE:
        assert check.means.endswith("."), check.id
        assert len(check.title) <= 28, "the table would outgrow a terminal"
    nothing = judge.Seen(failure="no answer")
    for one in Pair.findings({"head": nothing, "worker": nothing}).values():
        assert one.grade is Grade.OK or one.hint, one


def test_guards_of_the_rails_are_those_of_their_own_judgement(pair: Pair) -> None:
    for one in pair.judge().values():
        assert one.guards == CATALOGUE[one.id].guards, one.id


@pytest.mark.parametrize("role", ["head", "worker"])
def test_one_machine_alone_is_judged_and_what_needs_both_is_unknown(pair: Pair, role: Role) -> None:
    found = pair.judge(only=role)
    assert found["reachable"].grade is Grade.FAIL
    assert "cannot be reached" in found["reachable"].hint
    assert found["memory"].grade is Grade.OK
    assert list(found["memory"].measured) == [PAIR[role]]
    for check in judge.CATALOGUE:
        if isinstance(check, PairCheck):
            one = found[check.id]
            assert one.grade is Grade.UNKNOWN and "not looked at" in one.hint


@pytest.mark.fault(9)
def test_a_host_that_is_unknown_is_not_in_the_sentence_about_one_that_failed(pair: Pair) -> None:
    pair.head.gpu["utilization.gpu"] = "3"
    pair.worker.gpu.update({"clocks.sm": "507", "power.draw": "22.4"})
    one = pair.judge()["gpu_power"]
    assert one.hint.startswith("spark-b: the GPU is in its low-power state")
    assert "spark-a" not in one.hint
    assert "only a load shows" in one.details["hints"]["spark-a"]


def test_a_look_without_root_says_so() -> None:
    lacking = judge.Seen(failure="Missing sudo password")
    found = Pair.findings({"head": lacking, "worker": lacking})
    assert found["reachable"].grade is Grade.OK
    assert found["sudo"].grade is Grade.FAIL
    assert found["sudo"].hint.startswith(
        "spark-a and spark-b: sudo does not work there (Missing sudo password): give the login "
    )


@pytest.mark.parametrize(
    "said",
    [
        "Task failed: Missing sudo password",
        "sudo: a password is required",
        "Timeout (12s) waiting for privilege escalation prompt:",
    ],
)
def test_words_of_a_look_that_lacked_root(said: str) -> None:
    lacking = judge.Seen(failure=said)
    found = Pair.findings({"head": lacking, "worker": lacking})
    assert found["reachable"].grade is Grade.OK and found["sudo"].grade is Grade.FAIL


@pytest.mark.parametrize(
    ("looked", "words"),
    [
        ({"msg": "Missing sudo password"}, "Missing sudo password"),
        (
            {
                "msg": "Module result deserialization failed",
                "module_stderr": "Sorry, user u is not allowed to execute '/bin/sh' as root on a.",
            },
            "Sorry, user u is not allowed to execute '/bin/sh' as root on a.",
        ),
        ({"msg": "no space", "module_stderr": "Traceback"}, "no space"),
        ({}, "no answer"),
    ],
)
def test_why_a_look_came_to_nothing(looked: dict[str, str], words: str) -> None:
    assert ansible_words.why_not(looked) == words


def test_a_look_that_failed_for_another_reason_is_not_sudos_fault(pair: Pair) -> None:
    full = judge.Seen(failure="Failed to create a directory: No space left on device\nmore")
    found = Pair.findings({"head": pair.head.look(), "worker": full})
    one = found["reachable"]
    assert one.grade is Grade.FAIL
    assert one.hint == (
        "spark-b answers, but could not be looked at: Failed to create a directory: No space left "
        "on device"
    )
    assert found["sudo"].grade is Grade.OK and list(found["sudo"].measured) == ["spark-a"]


def test_a_fault_of_one_machine_is_named_there_only(pair: Pair) -> None:
    pair.worker.units["earlyoom.service"] = "active"
    one = pair.judge()["oom_daemons"]
    assert "spark-b: " in one.hint and "spark-a" not in one.hint
    assert one.details["verdicts"] == {"spark-a": "pass", "spark-b": "fail"}


def test_previous_boot_words() -> None:
    end = "2026-11-28T21:03:12+0000 spark "
    for words in (
        "systemd-journald[1]: Journal stopped",
        "systemd-shutdown[1]: Sending SIGTERM to remaining processes...",
        "systemd[1]: Reached target shutdown.target - System Shutdown.",
    ):
        assert parse.previous_boot([end + words]) == {
            "ended": "orderly",
            "last": "2026-11-28T21:03:12+0000",
        }
    assert (parse.previous_boot([f"{end}kernel: reboot: Power down"]) or {})["ended"] == "orderly"
    for words in (
        "sshd[9]: Accepted key",
        "unattended-upgrade[9]: requires reboot: linux-image-6.17",
        "systemd[4100]: Reached target shutdown.target - Shutdown.",
        "sudo[9]: one : COMMAND=/usr/bin/grep 'Journal stopped'",
        "python3[9]: System Reboot",
    ):
        assert (parse.previous_boot([end + words]) or {})["ended"] == "abrupt", words
    assert parse.previous_boot(["-- No entries --", ""]) is None
