"""Command lines and environment of the two ranks."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

MAX_LANES = 8
DEFAULT_LINK_PORT = 29620
STOCK_ROWS = 16
WIDE_PARTS = ("linear", "experts")


class StartError(Exception):
    """The engine refuses to start; the text says why."""


@dataclass(frozen=True)
class ServeOptions:
    """What rank 0 was told. ``context`` and ``max_tokens`` are tokens."""

    model_dir: Path
    host: str
    port: int
    name: str
    context: int
    parallel: int
    thinking: bool
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    api_keys: tuple[str, ...]
    api_key_file: Path | None
    metrics_open: bool


@dataclass(frozen=True)
class FollowOptions:
    """What rank 1 was told. ``pool`` must be rank 0's context; nobody compares them."""

    model_dir: Path
    cache_dir: str
    kit: Path
    head: str
    link_port: int
    pool: int


def parse_serve(arguments: list[str]) -> ServeOptions:
    """Parse ``tensorfold serve`` arguments. Raises ``SystemExit`` (2) for unknown ones."""
    parser = argparse.ArgumentParser(prog="tensorfold serve", allow_abbrev=False)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--name", default="DeepSeek-V4.1-Flash-1017")
    parser.add_argument("--context", type=int, default=1048576)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--thinking", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--max-tokens", type=int, default=32768)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--backend", choices=["cuda"], default="cuda")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--api-key-file", type=Path)
    parser.add_argument("--metrics-open", action="store_true")
    parsed = parser.parse_args(arguments)
    if not 1 <= parsed.parallel <= MAX_LANES:
        raise StartError(f"BadStreams: this engine serves {MAX_LANES} streams at once: --parallel")
    given = [parsed.api_key, os.environ.get("TENSORFOLD_API_KEY", "")]
    keys = tuple(key.strip() for text in given for key in text.split(",") if key.strip())
    return ServeOptions(
        model_dir=parsed.model_dir,
        host=parsed.host,
        port=parsed.port,
        name=parsed.name,
        context=parsed.context,
        parallel=parsed.parallel,
        thinking=parsed.thinking,
        max_tokens=parsed.max_tokens,
        temperature=parsed.temperature,
        top_p=parsed.top_p,
        top_k=parsed.top_k,
        api_keys=keys,
        api_key_file=parsed.api_key_file,
        metrics_open=parsed.metrics_open,
    )


def parse_follow(arguments: list[str]) -> FollowOptions:
    """Parse ``tf-dsv41-lanes`` arguments. Raises ``SystemExit`` (2) for unknown ones."""
    parser = argparse.ArgumentParser(prog="tf-dsv41-lanes", allow_abbrev=False)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("cache_dir")
    parser.add_argument("rank", type=int, choices=[1])
    parser.add_argument("world", type=int, choices=[2])
    parser.add_argument("head")
    parser.add_argument("link_port", type=int)
    parser.add_argument("kit")
    parser.add_argument("--engram")
    parser.add_argument("--token-map")
    parser.add_argument("--pool", type=int, default=1048576)
    parser.add_argument("--rdma")
    for switch in ("--graphs", "--side", "--prefetch", "--aio"):
        parser.add_argument(switch, type=int, choices=[0, 1], default=1)
    parsed = parser.parse_args(arguments)
    return FollowOptions(
        model_dir=parsed.model_dir,
        cache_dir=parsed.cache_dir,
        kit=Path(parsed.kit),
        head=parsed.head,
        link_port=parsed.link_port,
        pool=parsed.pool,
    )


def link_address() -> tuple[str, int]:
    """Rank 0's own fabric address and port from ``TF_TP_*``. Raises :class:`StartError`."""
    if os.environ.get("TF_TP_WORLD") != "2":
        raise StartError("this model runs tensor parallel over two GPUs: set TF_TP_WORLD=2")
    master = os.environ.get("TF_TP_MASTER", "")
    if not master:
        raise StartError("set TF_TP_MASTER to rank 0's fabric address (rank 1 connects to it)")
    return master, int(os.environ.get("TF_TP_PORT") or DEFAULT_LINK_PORT)


def round_rows() -> int:
    """Rows of one decode round, from ``TF_DS_ROUND_ROWS``."""
    text = os.environ.get("TF_DS_ROUND_ROWS", "")
    return int(text) if text.isdecimal() else STOCK_ROWS


def check_kernels(kit: Path) -> None:
    """Capture the graphs of a round: more rows than the stock ones need kernels from `kit`.

    Raises :class:`StartError`. Their content does not matter here, as nothing runs them.
    """
    rows = round_rows()
    if rows <= STOCK_ROWS:
        return
    for part in WIDE_PARTS:
        if not (kit / f"wide/rows-{rows}-{part}.cubin").is_file():
            raise StartError(
                f"NoKernelImages: CUDA graph capture failed: no {part} kernel for a round of "
                f"{rows} rows in {kit}"
            )
