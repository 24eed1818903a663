"""Serves the account's three repositories until it is stopped.

Stands for https://huggingface.co and its store of large files. Cannot show: a content network's
speed and its failures nobody asked for, private repositories, uploads.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from . import weights
from .hub import Hub
from .state import Account


def _accounts(path: Path | None) -> dict[str, Account]:
    """The accounts of a file ``{TOKEN: {"name": …, "accepted": [REPOSITORY…]}}``."""
    if path is None:
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    return {
        token: Account(
            entry["name"], tuple(entry.get("accepted", ())), entry.get("gated_right", True)
        )
        for token, entry in data.items()
    }


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulated-hub", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True, help="content, kept between runs")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any; it is printed")
    parser.add_argument("--store-port", type=int, default=0)
    parser.add_argument("--size", type=int, default=8 << 20, help="bytes of all weights together")
    parser.add_argument("--overlay-dtypes-differ", action="store_true")
    parser.add_argument("--page", type=int, default=1000, help="files a page of a listing")
    parser.add_argument("--bytes-per-second", type=float, default=0.0, help="of all content")
    parser.add_argument("--xet", action="store_true", help="also by Xet")
    parser.add_argument("--accounts", type=Path)
    parser.add_argument("--faults", type=Path, help='{"faults": […]}, read when it was replaced')
    parser.add_argument("--log", type=Path, help="one JSON object a request")
    parser.add_argument("--make-only", action="store_true", help="make the content and leave")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """0, or 2 for arguments that cannot be used."""
    options = _parse(arguments)
    try:
        hub = Hub(
            options.directory,
            weights.account(options.size, stock_dtypes=not options.overlay_dtypes_differ),
            accounts=_accounts(options.accounts),
            address=options.address,
            port=options.port,
            store_port=options.store_port,
            page=options.page,
            bytes_per_second=options.bytes_per_second,
            faults_file=options.faults,
            log_file=options.log,
        )
        if options.xet:
            hub.use_xet()
    except (OSError, ValueError, KeyError) as error:
        print(f"simulated-hub: {error}", file=sys.stderr)
        return 2
    except ImportError:
        print(
            "simulated-hub: hf_xet is not installed here, so the Xet store cannot be filled; "
            "fill it with --xet --make-only where it is",
            file=sys.stderr,
        )
        return 2
    if options.make_only:
        hub.close()
        return 0
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    hub.start()
    print(f"simulated-hub: serving at {hub.url}", flush=True)
    stopped.wait()
    hub.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
