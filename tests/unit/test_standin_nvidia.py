"""NVIDIA's tools and perftest as the stand-ins play them."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

NVIDIA = Path(__file__).resolve().parents[2] / "simulated_pair" / "standins" / "nvidia"
IPV4_GID = "0000:0000:0000:0000:0000:ffff:7f00:0001"


class Machine:
    """One machine's faults and /sys below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / "faults").mkdir(parents=True)
        port = root / "sys/class/infiniband/rocep1s0f0/ports/1"
        for folder in ("gids", "gid_attrs/types"):
            (port / folder).mkdir(parents=True)
        for index, kind in ((2, "IB/RoCE v1"), (3, "RoCE v2")):
            (port / "gids" / str(index)).write_text(IPV4_GID + "\n")
            (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")

    def fault(self, component: str, **fault: object) -> None:
        (self._root / "faults" / f"{component}.json").write_text(json.dumps(fault))

    def start(self, tool: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-I", str(NVIDIA / tool), *words],
            env={
                "PATH": os.environ["PATH"],
                "STANDIN_SIMULATION_ROOT": str(self._root),
                "STANDIN_SYS_ROOT": str(self._root / "sys"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, tool: str, *words: str, text: str = "") -> tuple[int, str, str]:
        process = self.start(tool, *words)
        out, err = process.communicate(text, timeout=20)
        return process.returncode, out, err


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "one")


class TestNvidiaSmi:
    QUERY = "--query-gpu=driver_version,clocks.applications.graphics,power.draw"

    def test_says_the_usual_figures(self, machine: Machine) -> None:
        code, out, _ = machine.run("nvidia-smi", self.QUERY, "--format=csv,noheader")
        assert (code, out.split(", ")[:2]) == (0, ["580.95.05", "2418 MHz"])

    def test_any_field_can_differ(self, machine: Machine) -> None:
        fault = {"clocks.applications.graphics": "2100", "power.draw": 16.5}
        machine.fault("nvidia", **fault)
        _, out, _ = machine.run("nvidia-smi", self.QUERY, "--format=csv,noheader")
        assert out.strip() == "580.95.05, 2100 MHz, 16.5 W"

    def test_what_is_not_available_has_no_unit(self, machine: Machine) -> None:
        machine.fault("nvidia", **{"power.draw": "[N/A]"})
        _, out, _ = machine.run("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader")
        assert out.strip() == "[N/A]"

    @pytest.mark.parametrize("words", [["-L"], [QUERY], []])
    def test_a_driver_that_does_not_fit_fails_every_call(
        self, machine: Machine, words: list[str]
    ) -> None:
        said = "Failed to initialize NVML: Driver/library version mismatch"
        machine.fault("nvidia", fail=said)
        assert machine.run("nvidia-smi", *words)[:2] == (18, f"{said}\n")


class TestHook:
    def _state(self, tmp_path: Path) -> tuple[str, Path]:
        bundle, root = tmp_path / "bundle", tmp_path / "merged"
        bundle.mkdir()
        root.mkdir()
        (bundle / "config.json").write_text(json.dumps({"root": {"path": str(root)}}))
        return json.dumps({"ociVersion": "1.2.0", "bundle": str(bundle)}), root

    def test_a_driver_that_does_not_answer_keeps_a_container_from_starting(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        state, root = self._state(tmp_path)
        machine.fault("nvidia", fail="Failed to initialize NVML: Driver/library version mismatch")
        code, _, err = machine.run("nvidia-container-runtime-hook", "prestart", text=state)
        assert code == 1 and "driver/library version mismatch" in err
        assert list(root.iterdir()) == []

    def test_other_stages_are_none_of_its_business(self, machine: Machine) -> None:
        assert machine.run("nvidia-container-runtime-hook", "poststop") == (0, "", "")


class TestIbWriteBw:
    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Machine, Machine]:
        return Machine(tmp_path / "server"), Machine(tmp_path / "client")

    @pytest.fixture
    def port(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return str(probe.getsockname()[1])

    def _measure(
        self, pair: tuple[Machine, Machine], port: str, index: int = 3
    ) -> list[tuple[int, list[list[str]]]]:
        """Exit code and rows of figures of the server and of the client."""
        words = ("-d", "rocep1s0f0", "-p", port, "-D", "2", "-F", "--report_gbits")
        server = pair[0].start("ib_write_bw", *words, "-x", "3")
        ended = []
        try:
            for _ in range(100):
                client = pair[1].run("ib_write_bw", *words, "-x", str(index), "127.0.0.1")
                if "Couldn't connect" not in client[2]:
                    break
                time.sleep(0.05)
            out, _ = server.communicate(timeout=20)
            ended = [(server.returncode, out), (client[0], client[1])]
        finally:
            server.kill()
        for _, text in ended:
            assert "BW average[Gb/sec]" in text
        return [
            (code, [line.split() for line in text.splitlines() if line.startswith(" 65536")])
            for code, text in ended
        ]

    def test_both_ends_say_the_same_figure(self, pair: tuple[Machine, Machine], port: str) -> None:
        for code, rows in self._measure(pair, port):
            assert code == 0 and [row[3] for row in rows] == ["92.60"]

    def test_the_slower_end_decides(self, pair: tuple[Machine, Machine], port: str) -> None:
        pair[1].fault("rdma", gbps=13)
        for _, rows in self._measure(pair, port):
            assert [row[3] for row in rows] == ["13.00"]

    @pytest.mark.parametrize("index", [2, 7], ids=["RoCE v1", "none"])
    def test_a_wrong_gid_index_gives_no_row_and_no_error(
        self, pair: tuple[Machine, Machine], port: str, index: int
    ) -> None:
        assert self._measure(pair, port, index) == [(0, []), (0, [])]

    def test_nobody_listens(self, machine: Machine, port: str) -> None:
        words = ("-d", "rocep1s0f0", "-x", "3", "-p", port, "127.0.0.1")
        code, _, err = machine.run("ib_write_bw", *words)
        assert code == 1 and "Couldn't connect" in err

    def test_a_device_that_is_not_there(self, machine: Machine, port: str) -> None:
        code, _, err = machine.run("ib_write_bw", "-d", "rocep9s0f0", "-x", "3", "-p", port)
        assert code == 1 and "rocep9s0f0 not found" in err
