"""Two machines as discovery finds them: views of both, a tree of files and a runner of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_pair.description import Role
from spark_pair.system import Result

RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
SECOND_PORT = ("enp1s0f1np1", "enP2p1s0f1np1")
NAMES: dict[Role, str] = {"head": "spark-a", "worker": "spark-b"}
COMMIT = "c0ffee" + "0" * 34


def interface(name: str, *addresses: str, carrier: bool | None = True) -> dict[str, Any]:
    function = int(name[name.index("f") + 1])
    domain = 2 if "P2" in name else 0
    return {
        "name": name,
        "carrier": carrier,
        "phys_port": f"p{function}",
        "switch": "ab12",
        "pci": f"{domain:04x}:01:00.{function}",
        "rdma": f"roce{name.removeprefix('en').removesuffix(f'np{function}')}",
        "port": f"p{function} of ab12",
        "order": [domain, name],
        "addresses": list(addresses),
    }


def unit(
    name: str, part: str = "server", why: str = "its name says qwen", **over: Any
) -> dict[str, Any]:
    found = {"unit": name, "scope": "system", "part": part, "why": why}
    return {**found, "active": "active", "enabled": "enabled", "user": "", "timers": [], **over}


def account(name: str, home: str = "", **over: Any) -> dict[str, Any]:
    found = {"name": name, "uid": 1000, "home": home or f"/home/{name}", "models": []}
    return {**found, "checkout": None, **over}


def checkout(home: str, **over: Any) -> dict[str, Any]:
    found = {"path": f"{home}/dsv41", "link": False, "commit": COMMIT, "changed": 0, "problem": ""}
    url = "git@github.com:MiaAI-Lab/DeepSeek-v4.1-Flash-1017-2x-DGX-Sparks.git"
    return {**found, "url": url, **over}


def view(hostname: str, **over: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "hostname": hostname,
        "login": "ann",
        "accounts": [account("ann")],
        "interfaces": [interface(name) for name in RAILS],
        "management": {
            "interface": "enP7s7",
            "address": "192.0.2.11",
            "wireless": False,
            "how": "carries the address that was given",
        },
        "networks": ["192.0.2.0/24"],
        "units": [],
        "containers": [],
        "answering": [],
        "not_asked": [],
        "unread": {},
    }
    return {**found, **over}


def crossed_pair() -> dict[Role, dict[str, Any]]:
    """The pair of the account: Hikari's API on DeepSeek's worker, the recipe on the head."""
    model = {"name": "some/weights", "bytes": 196 << 30, "broken_links": 0}
    return {
        "head": view(
            "spark-a",
            accounts=[
                account("ann", checkout=checkout("/home/ann")),
                account("bob", models=[model]),
            ],
            interfaces=[
                interface(RAILS[0], "198.51.100.11/25"),
                interface(RAILS[1], "198.51.100.139/25"),
            ],
            units=[unit("qwen38fn-miaai-worker.service")],
        ),
        "worker": view(
            "spark-b",
            accounts=[account("ann"), account("bob", "/srv/bob", models=[model])],
            interfaces=[
                interface(RAILS[0], "198.51.100.12/25"),
                interface(RAILS[1], "198.51.100.140/25"),
            ],
            units=[
                unit("qwen38fn-miaai-head.service"),
                unit("qwen38fn-miaai-head-watchdog.timer", "keeper", "starts x.service"),
            ],
            answering=[{"port": 8000, "models": ["Hikari-Next"], "words": "Hikari-Next"}],
        ),
    }


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


class FakeRunner:
    """Answers by the beginning of the command line; an unknown program is not found."""

    def __init__(self, answers: Mapping[str, str | Result]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], seconds: float) -> Result:
        line = " ".join(argv)
        self.asked.append(line)
        for beginning, answer in self._answers.items():
            if line.startswith(beginning):
                return answer if isinstance(answer, Result) else Result(0, answer, "")
        return Result(127, "", f"{argv[0]}: not found")


def addresses(*found: str) -> str:
    """What `ip -json address show dev X` prints, as iproute2 6.1 does: without the device."""
    info = [
        {"family": "inet", "local": one.partition("/")[0], "prefixlen": int(one.partition("/")[2])}
        for one in found
    ]
    return json.dumps([{}, {"addr_info": [*info, {"family": "inet6", "local": "fe80::1"}]}])
