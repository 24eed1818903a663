"""Hikari's stand-in keeps the contract that the rest of the project is tested against."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STANDINS = Path(__file__).resolve().parents[2] / "simulated_pair" / "standins"
LABELS = 'engine="0",model_name="Qwen3.8-Flash-Next"'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Hikari:
    """Head and worker on loopback."""

    def __init__(self, directory: Path) -> None:
        self.simulation = directory / "simulation"
        (self.simulation / "faults").mkdir(parents=True)
        self.port = free_port()
        self.environment = {
            "PATH": os.environ["PATH"],
            "STANDIN_SIMULATION_ROOT": str(self.simulation),
            "QWEN38FN_API_PORT": str(self.port),
            "QWEN38FN_MASTER_PORT": str(free_port()),
            "PYTHONPATH": str(STANDINS / "common"),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, part: str) -> subprocess.Popen[bytes]:
        program = STANDINS / "hikari" / "qwen38fn" / "hikari.py"
        process = subprocess.Popen([sys.executable, str(program), part], env=self.environment)
        self.processes[part] = process
        return process

    def fault(self, **fault: object) -> None:
        place = self.simulation / "faults" / "hikari.json"
        fresh = place.with_suffix(".new")
        fresh.write_text(json.dumps(fault))
        fresh.replace(place)

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=5) as reply:
            return str(reply.read().decode())

    def chat(self, text: str = "hello", *, timeout: float = 10, **body: object) -> Any:
        data = {"messages": [{"role": "user", "content": text}], "max_tokens": 60, **body}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions", data=json.dumps(data).encode()
        )
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.load(reply)

    def listens(self, within: float) -> bool:
        end = time.monotonic() + within
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                self.get("/v1/models")
                return True
            time.sleep(0.05)
        return False

    def serve(self) -> None:
        self.start("worker")
        self.start("head")
        assert self.listens(10)

    def until_metric(self, line: str) -> None:
        end = time.monotonic() + 5
        while line not in self.get("/metrics").splitlines():
            assert time.monotonic() < end, self.get("/metrics")
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(timeout=10)


@pytest.fixture
def hikari(tmp_path: Path) -> Iterator[Hikari]:
    hikari = Hikari(tmp_path)
    yield hikari
    hikari.end()


def test_thinks_unless_told_not_to(hikari: Hikari) -> None:
    hikari.serve()
    message = hikari.chat(max_tokens=5)["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"] == ""
    plain = hikari.chat(chat_template_kwargs={"enable_thinking": False})
    assert plain["model"] == "Qwen3.8-Flash-Next"
    assert plain["choices"][0]["message"]["content"]
    metrics = hikari.get("/metrics").splitlines()
    assert f"vllm:num_requests_running{{{LABELS}}} 0.0" in metrics
    assert any(
        line.startswith('vllm:request_success_total{engine="0",finished_reason="stop"')
        for line in metrics
    )


def test_head_waits_for_the_worker_and_is_mute_without_it(hikari: Hikari) -> None:
    hikari.start("head")
    assert not hikari.listens(1.5)
    worker = hikari.start("worker")
    assert hikari.listens(5)
    worker.terminate()
    assert worker.wait(timeout=5) == 0
    hikari.start("worker")
    time.sleep(0.5)
    assert hikari.get("/v1/models")
    with pytest.raises(TimeoutError):
        hikari.chat(timeout=0.7)


def test_six_sequences_at_once(hikari: Hikari) -> None:
    hikari.serve()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        long = [pool.submit(hikari.chat, f"[[long]] {n}", max_tokens=30) for n in range(8)]
        hikari.until_metric(f"vllm:num_requests_waiting{{{LABELS}}} 2.0")
        assert f"vllm:num_requests_running{{{LABELS}}} 6.0" in hikari.get("/metrics")
        assert all(reply.result(timeout=20)["usage"]["completion_tokens"] == 30 for reply in long)
    hikari.until_metric(f"vllm:generation_tokens_total{{{LABELS}}} 240.0")


def test_faults(hikari: Hikari) -> None:
    hikari.fault(mode="fail_to_start")
    assert hikari.start("head").wait(timeout=10) == 1
    hikari.fault(mode="slow_start", seconds=1.5)
    hikari.start("worker")
    hikari.start("head")
    assert not hikari.listens(2)
    assert hikari.listens(5)
    hikari.fault(busy=3)
    assert f"vllm:num_requests_running{{{LABELS}}} 3.0" in hikari.get("/metrics")
    hikari.fault(mode="no_metrics")
    assert "num_requests" not in hikari.get("/metrics")
    assert "generation_tokens_total" in hikari.get("/metrics")
    hikari.fault(mode="empty")
    message = hikari.chat()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "")
    hikari.fault(mode="dead")
    with pytest.raises(TimeoutError):
        hikari.chat(timeout=0.5)
    assert hikari.get("/v1/models")


def test_ends_within_its_time_and_notes_both_ends(hikari: Hikari) -> None:
    hikari.serve()
    for part in ("head", "worker"):
        hikari.processes[part].terminate()
        assert hikari.processes[part].wait(timeout=5) == 0
    lines = (hikari.simulation / "ledger.jsonl").read_text().splitlines()
    events = sorted((entry["part"], entry["event"]) for entry in map(json.loads, lines))
    assert events == [
        ("head", "start"),
        ("head", "stop"),
        ("worker", "start"),
        ("worker", "stop"),
    ]
    hikari.fault(mode="ignore_sigterm")
    noted = hikari.simulation / "ledger.jsonl"
    before = len(noted.read_text().splitlines())
    stubborn = hikari.start("worker")
    end = time.monotonic() + 10
    while len(noted.read_text().splitlines()) == before and time.monotonic() < end:
        time.sleep(0.05)
    stubborn.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        stubborn.wait(timeout=0.7)
