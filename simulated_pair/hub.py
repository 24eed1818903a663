"""The Hub of the simulated world: a service on the head that both machines download from.

It runs only when it is asked for. What it serves follows from the size alone, is made here on the
outer machine (which alone has the Xet client) and stays in the head's folder for the next time.
"""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from simulated_pair.naming import CHECKOUT, Machine, Pair
from simulated_pair.outer import PairError, Podman, last_words, say, write_atomically

UNIT = "simulated-hub.service"
STANDIN = CHECKOUT / "simulated_pair" / "standins" / "hub"
VENV_PYTHON = CHECKOUT / ".venv" / "bin" / "python"
SIZE = 8 << 20
READY_SECONDS = 30.0

# The outer machine's proxy, if it has one, does not know the pair's addresses.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Wanted:
    """What the Hub is to serve: `size` bytes in all, how fast, to which accounts."""

    size: int = SIZE
    xet: bool = False
    bytes_per_second: float | None = None
    accounts: Path | None = None
    overlay_dtypes_differ: bool = False
    """Whether the overlay has other types than the checkpoint."""

    @property
    def content(self) -> str:
        """Name of the folder with what it serves."""
        return f"{self.size}{'-dtypes-differ' if self.overlay_dtypes_differ else ''}"

    @property
    def options(self) -> list[str]:
        """Those of the program that decide what the content is."""
        differ = ["--overlay-dtypes-differ"] if self.overlay_dtypes_differ else []
        return ["--size", str(self.size), *(["--xet"] if self.xet else []), *differ]


def start(pair: Pair, wanted: Wanted, podman: Podman) -> None:
    """Serve what is wanted, in place of what is served now; PairError if it does not answer."""
    stop(pair, podman)
    place = pair.head.state / "hub"
    place.mkdir(parents=True, exist_ok=True)
    make_content(place / wanted.content, wanted)
    words = [f"--directory /srv/simulation/hub/{wanted.content}", *wanted.options]
    if wanted.bytes_per_second:
        words.append(f"--bytes-per-second {wanted.bytes_per_second:g}")
    if wanted.accounts:
        write_atomically(place / "accounts.json", read_accounts(wanted.accounts), 0o600)
        words.append("--accounts /srv/simulation/hub/accounts.json")
    write_atomically(_options(pair.head), f'SIMULATED_HUB_OPTIONS="{" ".join(words)}"\n')
    if podman.run("exec", pair.head.container, "systemctl", "start", UNIT, check=False).returncode:
        raise PairError(f"{pair.head.name} does not run, so there is no Hub on it: start the pair")
    _wait(pair)
    say("hub", f"serves {wanted.size:,} bytes{' by Xet' if wanted.xet else ''} at {pair.hub_url}")


def stop(pair: Pair, podman: Podman) -> None:
    """Stop it and forget what it was asked; what it serves stays for the next time."""
    podman.run("exec", pair.head.container, "systemctl", "stop", UNIT, check=False)
    forget(pair)


def forget(pair: Pair) -> None:
    """Remove the options, the accounts and the log of a Hub that was stopped."""
    head = pair.head
    for path in (_options(head), head.state / "hub.jsonl", head.state / "hub" / "accounts.json"):
        path.unlink(missing_ok=True)


def make_content(folder: Path, wanted: Wanted) -> None:
    """Make what is served, unless it is there; PairError with the program's words."""
    python = VENV_PYTHON if wanted.xet else Path(shutil.which("python3") or "python3")
    if wanted.xet and not python.exists():
        raise PairError("the Xet store is made with this checkout's .venv; run: make setup")
    command = [str(python), "-m", "hub_standin", "--directory", str(folder), "--make-only"]
    command += wanted.options
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(STANDIN), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise PairError(f"what the Hub serves could not be made: {last_words(done.stderr)}")


def read_accounts(path: Path) -> str:
    """Return the text of a file of accounts; PairError unless it holds a JSON object."""
    try:
        text = path.read_text(encoding="utf-8")
        if not isinstance(json.loads(text), dict):
            raise TypeError("no JSON object")
    except (OSError, ValueError, TypeError) as error:
        raise PairError(f"{path} does not describe the Hub's accounts: {error}") from error
    return text


def _options(head: Machine) -> Path:
    return head.state / "hub.env"


def _wait(pair: Pair) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            with _direct.open(f"{pair.hub_url}/control/requests", timeout=2) as reply:
                reply.read()
            return
        except (OSError, urllib.error.URLError) as error:
            if time.monotonic() > until:
                raise PairError(
                    f"the Hub does not answer at {pair.hub_url}: {error}; look at: "
                    f"simulated_pair/pair.py exec {pair.head.name} journalctl -u {UNIT}"
                ) from error
        time.sleep(0.1)
