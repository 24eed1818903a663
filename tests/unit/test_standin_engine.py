"""The engine's stand-in keeps the contract that the rest of the project is tested against."""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STANDINS = Path(__file__).resolve().parents[2] / "simulated_pair" / "standins"
MODEL = "DeepSeek-V4.1-Flash-1017"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Pair:
    """Both ranks on loopback, with a directory of their own for faults, ledger and rank files."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "engine"
        self.program.mkdir()
        for part in ("bin", "tensorfold_standin"):
            shutil.copytree(STANDINS / "engine" / part, self.program / part)
        shutil.copytree(STANDINS / "common" / "standin", self.program / "standin")
        self.simulation = directory / "simulation"
        (self.simulation / "faults").mkdir(parents=True)
        self.port = free_port()
        self.link_port = free_port()
        self.ranks = directory / "rank-cache"
        self.environment = {
            "PATH": os.environ["PATH"],
            "STANDIN_SIMULATION_ROOT": str(self.simulation),
            "TF_TP_WORLD": "2",
            "TF_TP_MASTER": "127.0.0.1",
            "TF_TP_PORT": str(self.link_port),
            "TF_DS_RANK_CACHE": str(self.ranks),
        }
        self.processes: list[subprocess.Popen[str]] = []
        self.log = directory / "rank0.log"

    def run(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(self.program / "bin" / name), *arguments],
                env=self.environment,
                stdout=log if name == "tensorfold" else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.processes.append(process)
        return process

    def rank0(self, *more: str, context: int = 262144, lanes: int = 8) -> subprocess.Popen[str]:
        return self.run(
            *("tensorfold", "serve", "/model", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--name", MODEL, "--context", str(context), "--parallel", str(lanes)),
            *("--no-thinking", *more),
        )

    def rank1(self, kit: Path = Path("/kit")) -> subprocess.Popen[str]:
        return self.run(
            *("tf-dsv41-lanes", "/model", str(self.ranks), "1", "2", "127.0.0.1"),
            *(str(self.link_port), str(kit), "--pool", "262144"),
        )

    def fault(self, **fault: object) -> None:
        place = self.simulation / "faults" / "engine.json"
        fresh = place.with_suffix(".new")
        fresh.write_text(json.dumps(fault))
        fresh.replace(place)

    def ledger(self) -> list[tuple[str, str]]:
        lines = (self.simulation / "ledger.jsonl").read_text().splitlines()
        return [(entry["part"], entry["event"]) for entry in map(json.loads, lines)]

    def open(
        self, path: str, body: dict[str, Any] | None = None, *, timeout: float = 10, key: str = ""
    ) -> tuple[int, str]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def chat(self, text: str = "hello", *, timeout: float = 10, **body: object) -> Any:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 40, **body}
        _, answer = self.open("/v1/chat/completions", body, timeout=timeout)
        return json.loads(answer)

    def metric(self, name: str) -> float | None:
        for line in self.open("/metrics")[1].splitlines():
            if line.startswith(f"tensorfold:{name} "):
                return float(line.split()[1])
        return None

    def wait(self, within: float = 10) -> None:
        end = time.monotonic() + within
        while True:
            with contextlib.suppress(OSError):
                self.open("/health", timeout=1)
                return
            if time.monotonic() > end:
                pytest.fail(f"rank 0 did not listen: {self.log.read_text()}")
            time.sleep(0.05)

    def until(self, name: str, value: float, within: float = 5) -> None:
        end = time.monotonic() + within
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.05)

    def serve(self, *more: str, context: int = 262144, lanes: int = 8) -> None:
        self.rank1()
        self.rank0(*more, context=context, lanes=lanes)
        self.wait()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(timeout=10)
            if process.stdout:
                process.stdout.close()


@pytest.fixture(scope="session")
def rank_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both rank files of a tiny checkpoint."""
    folder = tmp_path_factory.mktemp("rank-files")
    write_safetensors(folder / "a.safetensors", {"w": ("I16", [4, 2], bytes(range(16)))})
    tool = STANDINS / "engine" / "bin" / "tf-dsv41-rank-cache"
    for rank in "01":
        words = [sys.executable, "-I", *map(str, (tool, folder, folder / "ranks")), rank, "2"]
        subprocess.run(words, check=True, capture_output=True)
    return folder / "ranks"


@pytest.fixture
def pair(tmp_path: Path, rank_files: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    shutil.copytree(rank_files, pair.ranks)
    yield pair
    pair.end()


def test_serves_and_ends_cleanly(pair: Pair) -> None:
    pair.serve()
    expected = (
        f"[tensorfold] serving {MODEL} at http://127.0.0.1:{pair.port}/v1 (sampling: temperature "
        "1.0, top_p 0.95, top_k 20; drafts: on; context: 262144; loaded in "
    )
    assert expected in pair.log.read_text()
    assert json.loads(pair.open("/v1/models")[1])["data"][0]["id"] == MODEL
    first, second, other = pair.chat(), pair.chat(), pair.chat(seed=2)
    text = first["choices"][0]["message"]["content"]
    assert text == second["choices"][0]["message"]["content"]
    assert text != other["choices"][0]["message"]["content"]
    assert first["usage"]["completion_tokens"] == len(text.split())
    assert first["choices"][0]["finish_reason"] == "stop"
    assert pair.chat("count", max_tokens=5)["choices"][0]["finish_reason"] == "length"
    assert pair.metric("num_requests_running") == 0
    rank1, rank0 = pair.processes
    rank0.send_signal(signal.SIGTERM)
    assert rank0.wait(timeout=5) == 0
    assert rank1.wait(timeout=5) == 0
    assert rank1.stdout is not None
    assert '{"rank": 1, "followed": true}' in rank1.stdout.read()
    assert sorted(pair.ledger()) == [
        ("rank0", "start"),
        ("rank0", "stop"),
        ("rank1", "start"),
        ("rank1", "stop"),
    ]
    assert "tokens=5" in pair.log.read_text()


def test_rank_0_waits_for_rank_1_without_http_and_ends_on_request(pair: Pair) -> None:
    rank0 = pair.rank0()
    time.sleep(1.2)
    with pytest.raises(OSError):
        pair.open("/health", timeout=1)
    assert rank0.poll() is None
    rank0.send_signal(signal.SIGTERM)
    assert rank0.wait(timeout=5) == 0


def test_lost_rank_1_leaves_rank_0_up_and_mute(pair: Pair) -> None:
    pair.serve()
    pair.processes[0].kill()
    time.sleep(0.3)
    assert pair.open("/v1/models")[0] == 200
    with pytest.raises(TimeoutError):
        pair.chat(timeout=0.7)
    assert pair.open("/health")[0] == 200
    assert pair.metric("num_requests_running") == 1


def test_lost_rank_0_ends_rank_1(pair: Pair) -> None:
    pair.serve()
    rank1, rank0 = pair.processes
    rank0.kill()
    assert rank1.wait(timeout=5) == 1
    assert rank1.stdout is not None
    assert '{"rank": 1, "follow": "PeerDown"}' in rank1.stdout.read()


def test_frozen_rank_1_stalls_until_it_goes_on(pair: Pair) -> None:
    pair.serve()
    pair.processes[0].send_signal(signal.SIGSTOP)
    time.sleep(1.3)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        reply = pool.submit(pair.chat)
        time.sleep(0.5)
        assert not reply.done()
        pair.processes[0].send_signal(signal.SIGCONT)
        assert reply.result(timeout=5)["choices"][0]["message"]["content"]


def test_stream_begins_with_the_role_before_any_token(pair: Pair) -> None:
    pair.serve()
    pair.fault(mode="slow_prefill", seconds=1)
    request = urllib.request.Request(
        f"http://127.0.0.1:{pair.port}/v1/chat/completions",
        data=json.dumps(
            {
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 4,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode(),
    )
    began = time.monotonic()
    events: list[tuple[float, str]] = []
    with urllib.request.urlopen(request, timeout=10) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                events.append((time.monotonic() - began, line[6:].decode().strip()))
    assert json.loads(events[0][1])["choices"][0]["delta"] == {"role": "assistant"}
    assert events[0][0] < 0.8
    assert events[1][0] >= 1.0
    assert json.loads(events[1][1])["choices"][0]["delta"]["content"]
    assert json.loads(events[-3][1])["choices"][0]["finish_reason"] == "length"
    usage = json.loads(events[-2][1])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert events[-1][1] == "[DONE]"


def test_refusals(pair: Pair) -> None:
    pair.serve()
    overflow = "This server's maximum context length is 262144 tokens"
    for change, status, message in (
        ({"response_format": {"type": "json_object"}}, 400, "structured output"),
        ({"guided_json": {}}, 400, "structured output"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"top_k": 57, "temperature": 1}, 500, "TooManyCandidates"),
        ({"max_tokens": 262144}, 400, overflow),
        ({"messages": "hello"}, 400, "messages must be a list"),
    ):
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **change}
        got, answer = pair.open("/v1/chat/completions", body)
        assert got == status
        assert json.loads(answer)["error"]["message"].startswith(message)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 262144}
    _, plain = pair.open("/v1/chat/completions", body)
    assert json.loads(plain)["error"]["code"] == "context_length_exceeded"
    # A streaming caller gets the same refusal inside a stream of status 200.
    got, streamed = pair.open("/v1/chat/completions", {**body, "stream": True})
    assert got == 200
    assert overflow in streamed
    assert streamed.endswith("data: [DONE]\n\n")


def test_plain_response_format_unknown_paths_and_methods(pair: Pair) -> None:
    pair.serve()
    assert pair.chat(response_format={"type": "text"})["choices"]
    assert pair.open("/version") == (404, '{"error": {"message": "unknown path /version"}}')
    request = urllib.request.Request(f"http://127.0.0.1:{pair.port}/v1/models", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=5)
    assert refusal.value.code == 501
    assert json.loads(pair.open("/v1/completions", {"prompt": "a", "max_tokens": 2})[1])["usage"]


def test_lanes_and_pool_queue_and_counters_wait_for_the_end(pair: Pair) -> None:
    pair.serve(context=16384, lanes=2)
    pool = concurrent.futures.ThreadPoolExecutor()
    long = [pool.submit(pair.chat, f"[[long]] {n}", max_tokens=30) for n in range(3)]
    pair.until("num_requests_waiting", 1)
    assert pair.metric("num_requests_running") == 2
    assert pair.metric("generation_tokens_total") == 0
    for reply in long:
        assert reply.result(timeout=10)["usage"]["completion_tokens"] == 30
    assert pair.metric("generation_tokens_total") == 90
    # A free lane does not help when the pool is reserved: default budgets fill it.
    holder = pool.submit(pair.chat, "[[long]]", max_tokens=14000)
    pair.until("num_requests_running", 1)
    waiting = pool.submit(pair.chat, "short", max_tokens=3000)
    pair.until("num_requests_waiting", 1)
    assert not waiting.done()
    pair.end()
    for future in (holder, waiting):
        with contextlib.suppress(OSError, ValueError, ConnectionError):
            future.result(timeout=10)
    pool.shutdown()


def test_api_key_file(pair: Pair, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# mine\nhousehold: secret-word\n")
    keys.chmod(0o644)
    refused = pair.rank0("--api-key-file", str(keys))
    assert refused.wait(timeout=10) == 1
    assert "unreadable by other users; use chmod 600" in pair.log.read_text()
    keys.chmod(0o600)
    pair.serve("--api-key-file", str(keys))
    assert pair.open("/health") == (200, '{"status": "ok"}')
    assert pair.open("/v1/models")[0] == 401
    assert pair.open("/metrics")[0] == 401
    assert pair.open("/v1/models", key="secret-word")[0] == 200
    assert "no API key" not in pair.log.read_text()


def test_faults_of_a_running_server(pair: Pair) -> None:
    pair.serve()

    def content() -> str:
        return str(pair.chat()["choices"][0]["message"]["content"])

    assert content()
    pair.fault(mode="empty")
    assert content() == ""
    pair.fault(mode="repeat")
    assert set(content()) == {"!"}
    pair.fault(mode="wrong_model")
    assert pair.chat()["model"] != MODEL
    pair.fault(mode="instant_stop_once")
    assert pair.chat()["usage"]["completion_tokens"] == 1
    assert content()
    pair.fault(mode="instant_stop_always")
    assert [pair.chat()["usage"]["completion_tokens"] for _ in range(2)] == [1, 1]
    pair.fault(mode="error500")
    assert "error" in pair.chat()
    pair.fault(mode="no_metrics")
    assert pair.metric("num_requests_running") is None
    assert pair.metric("generation_tokens_total") is not None
    pair.fault(mode="zombie")
    pair.until("num_requests_running", 1)
    pair.fault(mode="dead")
    with pytest.raises(TimeoutError):
        pair.chat(timeout=0.5)
    assert pair.open("/v1/models")[0] == 200
    pair.fault()
    assert content()
    # What hung stays hung, as in a stuck collective. A request leaves its lane after its reply.
    pair.until("num_requests_running", 1)


def test_fault_after_the_smoke_test(pair: Pair) -> None:
    pair.fault(mode="empty", after_smoke=True)
    pair.serve()
    assert pair.chat()["choices"][0]["message"]["content"]
    assert pair.chat()["choices"][0]["message"]["content"] == ""


def test_faults_of_a_start(pair: Pair) -> None:
    pair.fault(mode="exit_while_loading", rank=0)
    assert pair.rank0().wait(timeout=10) == 1
    pair.fault(mode="smaller_context")
    pair.serve()
    assert "context: 131072;" in pair.log.read_text()
    pair.fault(mode="exit_after_ready", rank=0, seconds=0.2)
    pair.processes[-1].terminate()
    assert pair.processes[-1].wait(timeout=5) == 0
    pair.rank1()
    assert pair.rank0().wait(timeout=10) == 1
    assert pair.ledger().count(("rank0", "stop")) == 3


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header: dict[str, object] = {}
    data = b""
    for key, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_rank_files(pair: Pair, tmp_path: Path) -> None:
    model, cache = tmp_path / "model", tmp_path / "cut"
    model.mkdir()
    write_safetensors(
        model / "a.safetensors",
        {"w": ("I16", [4, 2], bytes(range(16))), "odd": ("F32", [1], b"abcd")},
    )
    for rank in ("0", "1"):
        made = pair.run("tf-dsv41-rank-cache", str(model), str(cache), rank, "2")
        assert made.wait(timeout=10) == 0
    again = pair.run("tf-dsv41-rank-cache", str(model), str(cache), "0", "2")
    assert again.wait(timeout=10) == 1
    assert again.stdout is not None
    assert "already holds rank0of2-" in again.stdout.read()
    (file,) = cache.glob("rank1of2-*.bin")
    data = file.read_bytes()
    assert data[-8:] == b"TFDSRK01"
    index = data[int.from_bytes(data[-16:-8], "little") : -16]
    assert json.loads(index) == [["odd", "float32", [1], 0, 4], ["w", "int16", [2, 2], 4, 8]]
    assert data[:12] == b"abcd" + bytes(range(8, 16))
    assert hashlib.sha256(index).hexdigest()[:20] in file.name


@pytest.mark.parametrize("rank", [0, 1])
def test_without_its_rank_file_no_rank_starts(pair: Pair, rank: int) -> None:
    (whole,) = pair.ranks.glob(f"rank{rank}of2-*.bin")

    def refused(name: str) -> bool:
        process = pair.rank0() if rank == 0 else pair.rank1()
        ended = process.wait(timeout=10) == 1
        said = pair.log.read_text() if rank == 0 else process.stdout and process.stdout.read()
        return ended and f"error: {name}" in str(said)

    second = pair.ranks / f"rank{rank}of2-other.bin"
    shutil.copy(whole, second)
    assert refused("SeveralRankCaches")
    second.unlink()
    whole.write_bytes(whole.read_bytes()[:-1])
    assert refused("BadRankCache")
    whole.unlink()
    assert refused("NoRankCache")
    shutil.rmtree(pair.ranks)
    assert refused("NoRankCache")


def test_rank_0_must_be_told_where_the_rank_files_are(pair: Pair) -> None:
    del pair.environment["TF_DS_RANK_CACHE"]
    assert pair.rank0().wait(timeout=10) == 1
    assert "error: set TF_DS_RANK_CACHE to the lane" in pair.log.read_text()


@pytest.mark.parametrize("rank", [0, 1])
def test_wide_rounds_need_their_kernels_in_the_image(pair: Pair, tmp_path: Path, rank: int) -> None:
    kit = tmp_path / "kit"
    pair.environment |= {"TF_DS_ROUND_ROWS": "32", "TF_DS_KIT": str(kit)}
    (kit / "wide").mkdir(parents=True)
    (kit / "wide/rows-32-linear.cubin").touch()
    process = pair.rank0() if rank == 0 else pair.rank1(kit)
    assert process.wait(timeout=10) == 1
    said = pair.log.read_text() if rank == 0 else process.stdout and process.stdout.read()
    assert "CUDA graph capture failed: no experts kernel for a round of 32 rows" in str(said)
