"""The life of each rank: load, meet the other, serve or follow, end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from standin.service import close, listen
from standin.simulation import Fault, Faults, Ledger

from tensorfold_standin import link, rank_cache
from tensorfold_standin.keys import Keys
from tensorfold_standin.options import (
    FollowOptions,
    ServeOptions,
    StartError,
    check_kernels,
    link_address,
    parse_follow,
    parse_serve,
)
from tensorfold_standin.server import Engine, EngineHandler

LOAD_SECONDS = 0.5
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived."""


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _watch_signals() -> None:
    # As the first process of a container nothing but a handler of its own ends a program.
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)


def _load(rank: int, fault: Fault, directory: str, kit: Path) -> float:
    """Check this rank's file and kernels, and pretend to load; seconds taken.

    Raises :class:`rank_cache.RankCacheError`, or :class:`StartError` without a directory.
    """
    began = time.monotonic()
    if not directory:
        raise StartError("set TF_DS_RANK_CACHE to the lane's per-rank weight files")
    rank_cache.load(Path(directory), rank)
    time.sleep(LOAD_SECONDS)
    check_kernels(kit)
    if fault.mode == "exit_while_loading" and fault.rank == rank:
        raise StartError("the stand-in was asked to fail while loading")
    return time.monotonic() - began


def _die_later(ledger: Ledger, seconds: float) -> None:
    """End this process abruptly but noted, as a crash does."""

    def die() -> NoReturn:
        print("[stand-in] asked to exit after the server was ready", file=sys.stderr, flush=True)
        ledger.note("stop")
        os._exit(1)

    timer = threading.Timer(seconds, die)
    timer.daemon = True
    timer.start()


def _serve(options: ServeOptions, ledger: Ledger) -> None:
    faults = Faults("engine")
    fault = faults.current()
    keys = Keys(options.api_keys, options.api_key_file)
    master, link_port = link_address()
    kit = Path(os.environ.get("TF_DS_KIT") or "/kit")
    loaded = _load(0, fault, os.environ.get("TF_DS_RANK_CACHE", ""), kit)
    leader = link.wait_for_follower(master, link_port)
    context = options.context // 2 if fault.mode == "smaller_context" else options.context
    engine = Engine(options, context, leader, faults, keys)
    try:
        listener = listen(engine, EngineHandler, options.host, options.port)
    except OSError as error:
        raise link.LinkError(
            f"BindFailed: {options.host}:{options.port}: {error.strerror}"
        ) from error
    if options.host not in LOOPBACK and not keys.required:
        print(
            "[tensorfold] warning: non-loopback server has no API key; requests are open",
            flush=True,
        )
    print(
        f"[tensorfold] serving {options.name} at http://{options.host}:{options.port}/v1 "
        f"(sampling: temperature {options.temperature}, top_p {options.top_p}, "
        f"top_k {options.top_k}; drafts: on; context: {context}; loaded in {loaded:.1f}s)",
        flush=True,
    )
    leader.tell(serving=True)
    if fault.mode == "exit_after_ready" and fault.rank == 0:
        _die_later(ledger, fault.seconds)
    try:
        threading.Event().wait()
    except Terminated:
        close(engine, listener)
        leader.end()


def _follow(options: FollowOptions, ledger: Ledger) -> None:
    fault = Faults("engine").current()
    loaded = _load(1, fault, options.cache_dir, options.kit)
    peer = link.connect(options.head, options.link_port)
    report = {
        "rank": 1,
        "loaded_s": round(loaded, 1),
        "pool": options.pool,
        "drafts": True,
        "arena_used": 0,
    }
    print(json.dumps(report), flush=True)

    def on_serving() -> None:
        if fault.mode == "exit_after_ready" and fault.rank == 1:
            _die_later(ledger, fault.seconds)

    link.follow(peer, on_serving)


def serve_main(arguments: list[str]) -> int:
    """``tensorfold serve …`` or ``tensorfold check-arguments …``; the exit code.

    ``check-arguments`` parses what ``serve`` would and ends; a launcher uses it to find a typo
    before it stops anything.
    """
    if not arguments or arguments[0] not in ("serve", "check-arguments"):
        print("usage: tensorfold serve MODEL_DIR [options]", file=sys.stderr)
        return 2
    try:
        options = parse_serve(arguments[1:])
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments[0] == "check-arguments":
        return 0
    _watch_signals()
    ledger = Ledger("deepseek", "rank0")
    ledger.note("start")
    try:
        _serve(options, ledger)
    except Terminated:
        pass
    except (StartError, link.LinkError, rank_cache.RankCacheError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        ledger.note("stop")
    return 0


def follow_main(arguments: list[str]) -> int:
    """``tf-dsv41-lanes …``; the exit code."""
    options = parse_follow(arguments)
    _watch_signals()
    ledger = Ledger("deepseek", "rank1")
    ledger.note("start")
    try:
        _follow(options, ledger)
    except Terminated:
        return 0
    except link.LinkError as error:
        name = "connect" if str(error) == "ConnectFailed" else "follow"
        print(json.dumps({"rank": 1, name: str(error)}), flush=True)
        return 1
    except (StartError, rank_cache.RankCacheError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        ledger.note("stop")
    print(json.dumps({"rank": 1, "followed": True}), flush=True)
    return 0
