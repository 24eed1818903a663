"""What one host of the pair looks like right now, as plain data.

Used by `spark-pair node observe`, by the Ansible module that looks at hosts without the tool, and
by status. Reads only. A thing that cannot be read is None (unknown), never "no".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .description import PairDescription, Role, Server
from .probe import fetch_load, probe, request
from .running import as_running, generation_of
from .system import Runner, run_plainly

View = dict[str, Any]

_UNIT_KEYS = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "Result",
    "InvocationID",
)
_READY = re.compile(r"\bserving \S+ at \S+ \(.*\bcontext: (?P<context>\d+)\b")
_DRAFTS = re.compile(r"\bdrafts: (?P<drafts>on|off)\b")
_KIB_PER_GIB = 1024 * 1024
_LONG, _BRIEFLY = 5.0, 1.0
"""Seconds for an API to answer: a server that is there may be busy, and without one of its parts
only somebody else listens, perhaps for ever without a word. Looks follow each other fast."""


def observe(
    description: PairDescription,
    role: Role,
    *,
    ask: bool = False,
    runner: Runner = run_plainly,
    root: Path = Path("/"),
) -> View:
    """Describe this host; with `ask`, servers whose API lives here are asked for a completion."""
    names = sorted(description.all_units())
    servers = {name: as_running(server) for name, server in description.servers.items()}
    found_units, found_containers = units(names, runner), containers(runner)
    return {
        "host": description.host_name(role),
        "role": role,
        "taken_at": time.time(),
        "boot": boot_identity(root),
        "memory": memory(root),
        "units": found_units,
        "containers": found_containers,
        "ports": ports(
            {
                port.port
                for server in (*servers.values(), *description.servers.values())
                for port in server.ports
            },
            root,
        ),
        "generations": {
            name: found.hash if (found := generation_of(server)) else None
            for name, server in description.servers.items()
            if server.generation
        },
        "apis": {
            name: _api(
                server,
                role,
                ask,
                runner,
                _LONG if is_there(server, role, found_units, found_containers) else _BRIEFLY,
            )
            for name, server in servers.items()
            if server.api.host == role
        },
    }


def boot_identity(root: Path = Path("/")) -> str:
    """Identity of this boot: the kernel's boot id and the start time of PID 1.

    Both, because machines that share a kernel share its boot id.
    """
    boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    stat = (root / "proc/1/stat").read_text()
    started = stat.rpartition(")")[2].split()[19]
    return f"{boot}:{started}"


def memory(root: Path = Path("/")) -> dict[str, float] | None:
    """Total and available memory in GiB; page cache counts as available, as the kernel says."""
    values: dict[str, int] = {}
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            key, _, rest = line.partition(":")
            if rest.split():
                values[key] = int(rest.split()[0])
        return {
            "total_gib": round(values["MemTotal"] / _KIB_PER_GIB, 2),
            "available_gib": round(values["MemAvailable"] / _KIB_PER_GIB, 2),
        }
    except (OSError, KeyError, ValueError):
        return None


def parse_units(text: str) -> dict[str, dict[str, str]]:
    """Parse `systemctl show` of several units: blocks of KEY=value with a blank line between."""
    found: dict[str, dict[str, str]] = {}
    for block in text.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in values:
            found[values["Id"]] = {
                "load": values.get("LoadState", ""),
                "active": values.get("ActiveState", ""),
                "sub": values.get("SubState", ""),
                "enabled": values.get("UnitFileState", ""),
                "result": values.get("Result", ""),
                "invocation": values.get("InvocationID", ""),
            }
    return found


def units(names: Iterable[str], runner: Runner = run_plainly) -> dict[str, dict[str, str]] | None:
    """State of each unit by name; None when systemd could not be asked."""
    wanted = list(names)
    if not wanted:
        return {}
    done = runner(["systemctl", "show", "--property", ",".join(_UNIT_KEYS), "--", *wanted], 15)
    return parse_units(done.out) if done.ok else None


def containers(runner: Runner = run_plainly) -> dict[str, dict[str, str]] | None:
    """Every container by name; {} on a host without Docker, None when Docker does not answer."""
    done = runner(
        [
            "docker", "ps", "--all", "--no-trunc",
            "--format", "{{.Names}}\t{{.State}}\t{{.Image}}\t{{.ID}}",
        ],
        15,
    )  # fmt: skip
    if done.code == 127:
        return {}
    if not done.ok:
        return None
    rows = [line.split("\t") for line in done.out.splitlines() if line.count("\t") == 3]
    return {
        name: {"state": state, "image": image, "id": identity}
        for name, state, image, identity in rows
    }


def ports(wanted: Iterable[int], root: Path = Path("/")) -> dict[str, bool] | None:
    """Which TCP ports have a listener, on whatever address (keys are text for JSON)."""
    listening: set[int] = set()
    read = False
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        try:
            lines = (root / table).read_text().splitlines()[1:]
        except OSError:
            continue
        read = True
        for line in lines:
            parts = line.split()
            if len(parts) > 3 and parts[3] == "0A":
                listening.add(int(parts[1].rpartition(":")[2], 16))
    return {str(port): port in listening for port in sorted(set(wanted))} if read else None


def context_in_log(lines: Iterable[str]) -> int | None:
    """Context length of the *last* ready line; a container that was restarted has several."""
    found: int | None = None
    for line in lines:
        match = _READY.search(line)
        if match:
            found = int(match["context"])
    return found


def ready_context(container: str, runner: Runner = run_plainly) -> int | None:
    """Context that the running container reported when it became ready."""
    lines = log_of(container, runner)
    return context_in_log(lines) if lines is not None else None


def log_of(container: str, runner: Runner = run_plainly) -> list[str] | None:
    """What a container has said since it was last started; None when nobody can say."""
    started = runner(["docker", "inspect", "--format", "{{.State.StartedAt}}", container], 15)
    if not started.ok:
        return None
    logs = runner(["docker", "logs", "--since", started.out.strip(), container], 60)
    return (logs.out + "\n" + logs.err).splitlines() if logs.ok else None


def said_when_ready(lines: Iterable[str]) -> dict[str, Any]:
    """What a rank said of itself when it was ready, the last time that it did.

    {"context": tokens or None, "drafts": bool or None}; rank 0 says it in its line of words, rank 1
    as JSON, where the context is called its pool.
    """
    found: dict[str, Any] = {"context": None, "drafts": None}
    for line in lines:
        if match := _READY.search(line):
            drafts = _DRAFTS.search(line)
            drafting = drafts["drafts"] == "on" if drafts else None
            found = {"context": int(match["context"]), "drafts": drafting}
        elif line.startswith("{"):
            said = _json(line)
            if "rank" in said and isinstance(said.get("pool"), int):
                drafting = said.get("drafts")
                known = drafting if isinstance(drafting, bool) else None
                found = {"context": said["pool"], "drafts": known}
    return found


def _json(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def rank(container: str, runner: Runner = run_plainly) -> View:
    """A rank's container as Docker made it, and what it said when it was ready.

    {"inspected": …, "image_id": what its image's name means now, "image_env": [NAME=value],
    "ready": …}; "inspected" is None when there is no such container, or Docker does not say.
    """
    shown = _inspect("container", container, runner)
    if shown is None:
        return {"inspected": None, "image_id": None, "image_env": [], "ready": {}}
    image = _inspect("image", str((shown.get("Config") or {}).get("Image")), runner) or {}
    return {
        "inspected": {
            key: shown.get(key) for key in ("Name", "Image", "Config", "HostConfig", "Mounts")
        },
        "image_id": image.get("Id"),
        "image_env": (image.get("Config") or {}).get("Env") or [],
        "ready": said_when_ready(log_of(container, runner) or []),
    }


def _inspect(kind: str, name: str, runner: Runner) -> dict[str, Any] | None:
    done = runner(["docker", kind, "inspect", "--", name], 15)
    try:
        found = json.loads(done.out) if done.ok else None
    except ValueError:
        return None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else None


def is_there(
    server: Server,
    role: Role,
    units: Mapping[str, Mapping[str, str]] | None,
    containers: Mapping[str, object] | None,
) -> bool:
    """Whether some part of a server runs on this host, or may run there unseen."""
    if (units is None and server.units_on(role)) or (containers is None and server.ranks_on(role)):
        return True
    return any(name in (containers or {}) for name in server.ranks_on(role)) or any(
        (units or {}).get(name, {}).get("active", "inactive") not in ("inactive", "failed")
        for name in server.units_on(role)
    )


def _api(server: Server, role: Role, ask: bool, runner: Runner, patience: float) -> View:
    models = request(server, "GET", "/v1/models", patience)
    answers = models.kind == "answered"
    view: View = {
        "listens": models.kind != "refused",
        "models_status": models.status if answers else None,
        "load": fetch_load(server).as_dict() if answers else None,
        "context": None,
        "probe": None,
    }
    if answers and server.context and server.ranks_on(role):
        view["context"] = ready_context(server.ranks_on(role)[0], runner)
    if ask and answers:
        view["probe"] = probe(server).as_dict()
    return view


def to_json(view: View) -> str:
    """One line, as it travels from the peer."""
    return json.dumps(view, separators=(",", ":"), sort_keys=True)
