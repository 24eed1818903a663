"""The two ends of the pair, as the switch sees them: this host, and the peer over ssh.

Everything that is done to a host is one of the few verbs below, each safe to repeat. The peer runs
the same verbs through `sudo -n spark-pair node …`; nothing else is allowed to it by that line.
"""

from __future__ import annotations

import gzip
import json
import os
import pwd
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from . import filesystems, hostview
from .description import ROLES, Host, PairDescription, Role, Server, other
from .errors import NodeError, SparkPairError, UnreachableError
from .metrics import Load, load_from_dict
from .paths import RUN, TOOL
from .probe import ProbeResult, fetch_load, probe, result_from_dict, without_key
from .system import Result, run

SSH_UNREACHABLE = 255


class Node(Protocol):
    """One host of the pair. Methods raise UnreachableError or NodeError, each with a sentence."""

    role: Role

    def hello(self) -> dict[str, Any]:
        """Release of the tool there."""

    def observe(self) -> hostview.View:
        """The host's view, without any completion asked."""

    def load(self, server: Server) -> Load:
        """The server's load, asked on this host."""

    def probe(self, server: Server) -> ProbeResult:
        """One real completion, asked on this host."""

    def without_key(self, server: Server) -> str:
        """How the server answers whoever sends no key, asked on this host; "" where it refuses."""

    def stop_unit(self, unit: str, timeout: float) -> None:
        """Stop a unit and wait for it; never disables anything."""

    def start_unit(self, unit: str, *, restart: bool) -> None:
        """Start (or restart) a unit without waiting for it."""

    def remove_rank(self, container: str) -> None:
        """Last resort: keep the container's log, then remove it."""

    def missing_images(self, server: Server) -> list[str]:
        """Images of the server that this host's Docker lacks."""

    def image_contents(self, server: Server) -> dict[str, str]:
        """What the server's images on this host consist of, by name; without those not there."""

    def weight_problems(self, server: Server) -> list[str]:
        """Why this host's weights are not what the server is to be started with."""

    def context(self, server: Server) -> int | None:
        """Context that the server's rank on this host reported in its ready line."""

    def rank(self, server: Server) -> hostview.View:
        """How the container of the server's rank on this host was made; see hostview.rank."""

    def filesystems(self, paths: Sequence[str]) -> dict[str, str | None]:
        """Kind of the file system that each folder of this host lies on; see filesystems.kinds."""


class LocalNode:
    """This host; needs root."""

    def __init__(self, description: PairDescription, role: Role | None = None) -> None:
        self.description = description
        self.role: Role = role or description.me

    def hello(self) -> dict[str, Any]:
        return {"release": release()}

    def observe(self) -> hostview.View:
        return hostview.observe(self.description, self.role)

    def load(self, server: Server) -> Load:
        return fetch_load(server)

    def probe(self, server: Server) -> ProbeResult:
        return probe(server)

    def without_key(self, server: Server) -> str:
        return without_key(server)

    def stop_unit(self, unit: str, timeout: float) -> None:
        self._systemctl(["stop", "--", unit], timeout, f"{unit} did not stop")
        # A unit that ended badly stays "failed", which would refuse its next start by rate limit.
        run(["systemctl", "reset-failed", "--", unit], timeout=10)

    def start_unit(self, unit: str, *, restart: bool) -> None:
        run(["systemctl", "reset-failed", "--", unit], timeout=10)
        verb = "restart" if restart else "start"
        self._systemctl([verb, "--no-block", "--", unit], 20, f"{unit} could not be started")

    def remove_rank(self, container: str) -> None:
        home = Path(self.description.hosts[self.role].home)
        folder = home / ".cache/dsv41-tensorfold/logs"
        logs = run(["docker", "logs", "--timestamps", container], timeout=120)
        if logs.ok:
            try:
                _keep_log(folder, container, logs.out + logs.err, self.description.hosts[self.role])
            except OSError as error:
                # Bringing a server back never depends on the disk.
                print(f"the log of {container} cannot be kept: {error}", file=sys.stderr)
        gone = run(["docker", "rm", "--force", "--", container], timeout=60)
        if not gone.ok and "No such container" not in gone.err:
            raise NodeError(
                f"container {container} on {self._name} cannot be removed: {gone.last_words()}"
            )

    def missing_images(self, server: Server) -> list[str]:
        missing = []
        for image in server.images if server.ranks_on(self.role) else ():
            if not run(["docker", "image", "inspect", image], timeout=30).ok:
                missing.append(image)
        return missing

    def image_contents(self, server: Server) -> dict[str, str]:
        # The tool is called again and again during a switch, and only this asks about content.
        from .image.identity import ImageError, inspect  # noqa: PLC0415

        images = server.images if server.ranks_on(self.role) else ()
        try:
            found = {image: inspect(image) for image in images}
        except ImageError as error:
            raise NodeError(f"{self._name}: {error}") from error
        return {name: one.identity for name, one in found.items() if one}

    def weight_problems(self, server: Server) -> list[str]:
        if server.weights is None or not server.ranks_on(self.role):
            return []
        # The tool is called again and again during a switch, and only this asks about weights.
        from .weights import served  # noqa: PLC0415
        from .weights.provenance import Provenance  # noqa: PLC0415

        try:
            record = Provenance().load()
        except (SparkPairError, OSError) as error:
            return [f"the record of its weights cannot be read: {error}"]
        # The recipe starts rank 0 on the head and rank 1 on the worker.
        home = Path(self.description.hosts[self.role].home)
        return served.problems(server.weights, ROLES.index(self.role), record, home)

    def context(self, server: Server) -> int | None:
        names = server.ranks_on(self.role)
        return hostview.ready_context(names[0]) if names else None

    def rank(self, server: Server) -> hostview.View:
        names = server.ranks_on(self.role)
        return hostview.rank(names[0]) if names else {}

    def filesystems(self, paths: Sequence[str]) -> dict[str, str | None]:
        return filesystems.kinds(paths)

    @property
    def _name(self) -> str:
        return self.description.host_name(self.role)

    def _systemctl(self, words: list[str], timeout: float, failed: str) -> None:
        done = run(["systemctl", *words], timeout=timeout)
        if not done.ok:
            raise NodeError(f"{failed} on {self._name}: {done.last_words()}")


def as_user(host: Host, argv: Sequence[str]) -> list[str]:
    """The words that run a program as the host's user; when already that user, just the program."""
    if pwd.getpwuid(os.geteuid()).pw_name == host.user:
        return list(argv)
    return ["runuser", "-u", host.user, "--", *argv]


def run_as_user(host: Host, argv: Sequence[str], timeout: float) -> Result:
    """Run a program as the host's user."""
    return run(as_user(host, argv), timeout=timeout)


class PeerNode:
    """The other host, over its user's ssh: management address first, then each rail."""

    def __init__(self, description: PairDescription) -> None:
        self.description = description
        self.role: Role = other(description.me)
        self._peer = description.hosts[self.role]
        self._me = description.hosts[description.me]
        self._address: str | None = None

    def hello(self) -> dict[str, Any]:
        return self._ask(["hello"], 20)

    def observe(self) -> hostview.View:
        return self._ask(["observe"], 45)

    def load(self, server: Server) -> Load:
        return load_from_dict(self._ask(["load", server.name], 20))

    def probe(self, server: Server) -> ProbeResult:
        # Three tries at most, each with its own deadline on the other side.
        return result_from_dict(self._ask(["probe", server.name], 3 * server.probe.timeout + 40))

    def without_key(self, server: Server) -> str:
        return str(self._ask(["without-key", server.name], 45)["answer"])

    def stop_unit(self, unit: str, timeout: float) -> None:
        self._ask(["unit", "stop", unit, "--timeout", f"{timeout:g}"], timeout + 15)

    def start_unit(self, unit: str, *, restart: bool) -> None:
        self._ask(["unit", "restart" if restart else "start", unit], 40)

    def remove_rank(self, container: str) -> None:
        self._ask(["remove-rank", container], 200)

    def missing_images(self, server: Server) -> list[str]:
        return [str(item) for item in self._ask(["images", server.name], 45)["missing"]]

    def image_contents(self, server: Server) -> dict[str, str]:
        return dict(self._ask(["image-contents", server.name], 90)["contents"])

    def weight_problems(self, server: Server) -> list[str]:
        if server.weights is None:
            return []  # and the tool over there may be one that knows no such question
        return [str(item) for item in self._ask(["weights", server.name], 90)["problems"]]

    def context(self, server: Server) -> int | None:
        value = self._ask(["context", server.name], 90)["context"]
        return int(value) if value is not None else None

    def rank(self, server: Server) -> hostview.View:
        return self._ask(["rank", server.name], 120)

    def filesystems(self, paths: Sequence[str]) -> dict[str, str | None]:
        return self._ask(["filesystems", *paths], 30)

    def call(self, words: Sequence[str], timeout: float) -> Result:
        """Run one verb there and return its raw result; UnreachableError if no address answers."""
        said = []
        for address in self._addresses():
            # ssh hands one string to the shell over there, which splits it into words again.
            order = shlex.join(["sudo", "-n", TOOL, "node", *words])
            done = run_as_user(self._me, [*self._ssh(address), order], timeout)
            if done.code != SSH_UNREACHABLE:
                self._address = address
                return done
            self._address = None
            said.append(f"{address}: {done.last_words(1)}")
        raise UnreachableError(
            f"{self._peer.name} cannot be reached from {self._me.name} over ssh ({'; '.join(said)})"
        )

    def stream(self, words: Sequence[str]) -> int:
        """Run one verb there with its output going straight to this terminal; its exit code.

        For commands that may take half an hour: whoever waits sees the lines as they come. The way
        is tried first, so that the verb itself is never started twice.
        """
        self.hello()
        address = self._addresses()[0]
        order = shlex.join(["sudo", "-n", TOOL, "node", *words])
        argv = as_user(self._me, [*self._ssh(address), order])
        return subprocess.run(argv, check=False, stdin=subprocess.DEVNULL).returncode

    def _addresses(self) -> list[str]:
        known = list(self._peer.addresses)
        if self._address in known:
            known.remove(self._address)
            known.insert(0, self._address)
        return known

    def _ssh(self, address: str) -> list[str]:
        seconds = max(1, round(self.description.policy.peer_timeout))
        return [
            "ssh",
            "-o", "BatchMode=yes",
            "-o", f"ConnectTimeout={seconds}",
            "-o", f"ServerAliveInterval={max(1, seconds // 3)}",
            "-o", "ServerAliveCountMax=3",
            "-o", "ControlMaster=auto",
            "-o", "ControlPersist=60",
            "-o", f"ControlPath={control_folder(self._me)}/%C",
            "-o", "LogLevel=ERROR",
            "-p", str(self._peer.port),
            f"{self._peer.user}@{address}",
        ]  # fmt: skip

    def _ask(self, words: Sequence[str], timeout: float) -> dict[str, Any]:
        done = self.call(words, timeout)
        if not done.ok:
            raise NodeError(
                f"{self._peer.name} could not do 'node {' '.join(words)}': {done.last_words()}"
            )
        try:
            answer = json.loads(done.out)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise NodeError(
                f"{self._peer.name} answered 'node {words[0]}' with something else than JSON: "
                f"{done.out[:120]!r}. Is the same release of the tool installed there?"
            )
        return answer


def control_folder(host: Host) -> Path:
    """Folder of the ssh control sockets: one connection serves the whole switch."""
    folder = RUN / "ssh"
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        owner = pwd.getpwnam(host.user)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        folder.chmod(0o700)
    return folder


def release() -> str:
    """Name of the installed release this process runs from; "source" when run from a checkout."""
    for folder in Path(sys.prefix).parents:
        if folder.name == "releases":
            return Path(sys.prefix).relative_to(folder).parts[0]
    return "source"


def _keep_log(folder: Path, container: str, text: str, host: Host) -> None:
    """Archive a rank's log where stop.sh keeps them; `docker rm` alone would lose it."""
    owner = pwd.getpwnam(host.user)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{container}.log.gz"
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.write(text)
    for made in (path, folder):
        os.chown(made, owner.pw_uid, owner.pw_gid)
