"""`spark-pair pool`: how many requests of a size fit at once."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import jsonfile, running
from .description import load
from .errors import DescriptionError
from .pool import Pool, words


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """Options and action of the command."""
    parser.add_argument("--prompt", type=_count, required=True, help="tokens of the prompt")
    parser.add_argument("--max-tokens", type=_count, required=True, help="budget of the reply")
    said = "default: as the wanted server runs, or will run"
    parser.add_argument("--context", type=_count, help=f"tokens of the pool ({said})")
    parser.add_argument("--parallel", type=_count, help=f"lanes ({said})")
    parser.add_argument("--rows", type=_count, help=f"rows of a decode round ({said})")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=_pool)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _pool(options: argparse.Namespace, _: list[str]) -> int:
    given = {"context": options.context, "parallel": options.parallel, "rows": options.rows}
    known: dict[str, int] = {}
    if None in given.values():
        known = _of_the_wanted_server(options.description)
    numbers = known | {name: value for name, value in given.items() if value is not None}
    for name in ("context", "parallel"):
        if name not in numbers:
            raise DescriptionError(
                f"this host does not know the {name} of an engine: give --{name}. The head knows "
                "it once the service stage has run"
            )
    pool = Pool(**numbers)
    if options.json:
        answer = {
            **asdict(pool),
            "takes": pool.takes(options.prompt, options.max_tokens),
            "at_once": pool.at_once(options.prompt, options.max_tokens),
        }
        print(json.dumps(answer))
    else:
        print(words(pool, options.prompt, options.max_tokens))
    return 0


def _of_the_wanted_server(path: Path) -> dict[str, int]:
    """What the generation of the wanted server says, the one that runs before the one that waits;
    {} where nothing does."""
    try:
        description = load(path)
    except DescriptionError:
        return {}
    server = description.servers.get(description.wanted)
    made = server.generation if server else None
    if server is None or made is None:
        return {}
    generation = running.generation_of(server) or made
    manifest: Any = jsonfile.read(Path(generation.path) / "generation.json")
    serves = manifest.get("serves") if isinstance(manifest, dict) else None
    if not isinstance(serves, dict):
        return {}
    names = {"context": "context", "parallel": "parallel", "rows": "round_rows"}
    return {
        name: serves[key]
        for name, key in names.items()
        if isinstance(serves.get(key), int) and serves[key] > 0
    }
