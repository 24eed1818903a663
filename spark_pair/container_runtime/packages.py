"""Packages that a Docker of the distribution would push off the machine.

docker.io brings the distribution's containerd, which excludes containerd.io: installing one would
remove the other and end its containers, whoever runs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from .daemon_json import RefusedError
from .docker import ASK_SECONDS, Host

RIVALS = ("containerd.io", "docker-ce*", "podman-docker")
"""Patterns of dpkg-query."""
_NOT_THERE = ("not-installed", "config-files")


def parse_installed(text: str) -> list[str]:
    """Packages of `Host`'s query that have files on the machine, half-installed ones included."""
    rows = [line.split() for line in text.splitlines()]
    return sorted({row[1] for row in rows if len(row) == 2 and row[0] not in _NOT_THERE})


def require_room(host: Host) -> None:
    """RefusedError when installing docker.io would remove what somebody else has installed."""
    shown = "${db:Status-Status} ${Package}\n"
    asked = host.run(["dpkg-query", "--show", f"--showformat={shown}", *RIVALS], ASK_SECONDS)
    # 1: nothing is known of at least one of them, which is how it shall be.
    if asked.code not in (0, 1):
        raise RefusedError(
            f"{host.name} has no Docker, and its packages do not tell whether one may be installed "
            f"({asked.last_words(1)}): look at 'dpkg --audit' there."
        )
    if found := parse_installed(asked.out):
        raise RefusedError(_words(host.name, found))


def _words(host: str, found: Sequence[str]) -> str:
    names = ", ".join(found)
    return (
        f"{host} has no docker.service, but {names}, which the distribution's docker.io would "
        "remove together with the containers that it runs. Complete the Docker that they belong to "
        "(sudo apt-get install docker-ce), or remove them when nothing needs them any more, then "
        "run again with --tags runtime."
    )
