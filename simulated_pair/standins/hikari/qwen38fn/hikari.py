#!/usr/bin/python3 -I
"""Stand-in for the incumbent server: Qwen3.8-Flash-Next over two machines, called Hikari.

usage: hikari.py head|worker

It follows what a caller and an operator meet: crossed roles over the pair, a head that serves
only once its worker has joined and that goes on answering 200 when the worker died, vLLM's metrics
with labels and its six sequences at once, thinking on unless a request turns it off (the reply is
then in `reasoning_content`). It cannot show text quality, speed, tokenisation, tool calls or GPU
use.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

# Isolated mode leaves the program's own directory out, where the shared package lies.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from standin.lanes import Lanes
from standin.service import Handler, Service, close, listen
from standin.simulation import Fault, Faults, Ledger

MODEL = "Qwen3.8-Flash-Next"
MAX_SEQUENCES = 6
MAX_MODEL_LEN = 131072
LOAD_SECONDS = 1.0
RETRY_SECONDS = 0.25
API_PORT = int(os.environ.get("QWEN38FN_API_PORT", "8000"))
MASTER_PORT = int(os.environ.get("QWEN38FN_MASTER_PORT", "50000"))
PEER = os.environ.get("QWEN38FN_PEER", "127.0.0.1")


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived."""


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


class Hikari(Service):
    """The head's HTTP side."""

    model = MODEL
    owner = "vllm"
    context = MAX_MODEL_LEN

    def __init__(self, faults: Faults) -> None:
        super().__init__(Lanes(MAX_SEQUENCES), faults)
        self.worker_lost = False

    def advances(self) -> bool:
        """A worker that left does not come back to a running head."""
        return not self.worker_lost

    def model_object(self) -> dict[str, Any]:
        """vLLM names the window here."""
        return {**super().model_object(), "root": self.model, "max_model_len": MAX_MODEL_LEN}

    def metrics_text(self, fault: Fault) -> str:
        """Prometheus text; floats with labels."""
        labels = f'engine="0",model_name="{self.model}"'
        running = self.lanes.running + fault.busy
        queue = {"num_requests_running": running, "num_requests_waiting": self.lanes.waiting}
        if fault.mode == "no_metrics":
            queue.clear()
        lines = []
        for name, value in queue.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {float(value)}"]
        with self.lock:
            counters = self.counters
            totals = {
                "prompt_tokens_total": counters.prompt_tokens,
                "generation_tokens_total": counters.generation_tokens,
            }
            finished = dict.fromkeys(("stop", "length", "abort"), 0)
            for reason, count in counters.finished.items():
                finished[reason if reason in finished else "abort"] += count
        for name, value in totals.items():
            lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}{{{labels}}} {float(value)}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, value in finished.items():
            series = f'engine="0",finished_reason="{reason}",model_name="{self.model}"'
            lines.append(f"vllm:request_success_total{{{series}}} {float(value)}")
        return "\n".join(lines) + "\n"


def _keep_alive(peer: socket.socket) -> None:
    """Notice within a few seconds that the other machine lost its power: it says nothing."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


def _wait_for_worker(service: Hikari) -> None:
    """Listen until the worker has joined, then watch it. No timeout, as the real rendezvous."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", MASTER_PORT))
    listener.listen(1)
    with listener:
        peer, _ = listener.accept()
    _keep_alive(peer)

    def watch() -> None:
        try:
            while peer.recv(64):
                pass
        except OSError:
            pass
        service.worker_lost = True
        print("[hikari] the worker is gone", flush=True)

    threading.Thread(target=watch, daemon=True).start()


def head(faults: Faults) -> None:
    """Load, let the worker join, serve until told to stop. Raises ``OSError`` for a taken port."""
    fault = faults.current()
    slow = fault.seconds if fault.mode == "slow_start" else 0.0
    time.sleep(LOAD_SECONDS + slow)
    service = Hikari(faults)
    _wait_for_worker(service)
    listener = listen(service, Handler, "0.0.0.0", API_PORT)
    print(f"[hikari] serving {MODEL} at port {API_PORT}", flush=True)
    try:
        threading.Event().wait()
    except Terminated:
        close(service, listener)


def worker() -> None:
    """Stay connected to the head, whenever there is one."""
    while True:
        try:
            with socket.create_connection((PEER, MASTER_PORT), timeout=2.0) as peer:
                peer.settimeout(None)
                _keep_alive(peer)
                print("[hikari] joined the head", flush=True)
                while peer.recv(64):
                    pass
            print("[hikari] the head is gone", flush=True)
        except OSError:
            pass
        time.sleep(RETRY_SECONDS)


def main(arguments: list[str]) -> int:
    """Run one role; the exit code."""
    if arguments not in (["head"], ["worker"]):
        print("usage: hikari.py head|worker", file=sys.stderr)
        return 2
    part = arguments[0]
    faults = Faults("hikari")
    mode = faults.current().mode
    ignored = mode == "ignore_sigterm"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else _terminate)
    signal.signal(signal.SIGINT, _terminate)
    if mode == "fail_to_start":
        print("[hikari] asked to fail at the start", file=sys.stderr)
        return 1
    ledger = Ledger("hikari", part)
    ledger.note("start")
    try:
        if part == "head":
            head(faults)
        else:
            worker()
    except Terminated:
        pass
    except OSError as error:
        print(f"[hikari] {error}", file=sys.stderr)
        return 1
    finally:
        ledger.note("stop")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
