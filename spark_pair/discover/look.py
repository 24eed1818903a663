"""What one machine is before this repository knows it: accounts, link, servers, model data.

Runs on the machine, as root; standard library only. Reads only, but for one GET /v1/models on each
port of loopback that listens and is a model server's by catalogue, unit, container or custom. What
cannot be read is listed with the reason, never guessed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..system import Runner, run_plainly
from . import accounts, network, servers
from .reading import Unread, text


def look(
    login: str,
    address: str,
    *,
    root: Path = Path("/"),
    runner: Runner = run_plainly,
    ask: servers.Ask | None = None,
    known: servers.Known = servers.NOTHING_KNOWN,
) -> dict[str, Any]:
    """Look at this machine; `login` and `address` are how the controller came here.

    `known` are the servers of the catalogue.

    Returns plain data: hostname, login, accounts, interfaces, management, networks, units,
    containers, answering, not_asked, unread.
    """
    unread: Unread = {}
    name = text(root / "proc/sys/kernel/hostname")
    if not name:
        unread["hostname"] = "/proc/sys/kernel/hostname cannot be read"
    found = accounts.look(root, runner, login, unread)
    return {
        "hostname": (name or "").partition(".")[0],
        "login": login,
        "accounts": found,
        **network.look(root, runner, address, unread),
        **servers.look(root, runner, found, unread, ask=ask, known=known),
        "unread": unread,
    }
