"""What programs and files of a host say, as plain data. Pure.

Every function returns None for text that it does not understand: the caller makes *unknown* of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..inspected import restart_policy, uses_gpu

GPU_FIELDS = (
    "driver_version",
    "clocks.max.sm",
    "clocks.applications.graphics",
    "clocks.sm",
    "utilization.gpu",
    "power.draw",
    "pstate",
)
"""Fields of `nvidia-smi --query-gpu`, in the order in which they are asked for."""

NOT_AVAILABLE = "[N/A]"


_LISTENER = re.compile(r"^LISTEN\s+\d+\s+\d+\s+\S*:(?P<port>\d+)\s")
_PROCESS = re.compile(r'\("(?P<name>[^"]*)",pid=(?P<pid>\d+)')
_CONTAINER = re.compile(r"(?:docker[-/]|/docker/|libpod-)(?P<id>[0-9a-f]{12,64})")
_UNIT = re.compile(r"/(?P<unit>[^/]+\.service)(?:/|$)")
_REJECTED = re.compile(r'Field "(?P<field>[^"]+)" is not a valid field')
_MODULE = re.compile(r"Kernel Module\b.*?\s(?P<version>\d+\.\d+(?:\.\d+)?)\s")
_NODE_VERBS = re.compile(r"NOPASSWD:(?:(?! PASSWD:).)*(?:/spark-pair node\b|\bALL\s*$)")

# What the first process, the journal and the kernel say at the end of an orderly shutdown. A user's
# own systemd reaches its shutdown.target whenever somebody logs out.
_ORDERLY = re.compile(
    r"^\S+ \S+ (?:"
    r"systemd\[1\]: .*(?:Reached target (?:shutdown|poweroff|reboot)\.target"
    r"|System (?:Power Off|Reboot|Shutdown)|Shutting down\.)"
    r"|systemd-journald\[\d+\]: Journal stopped"
    r"|systemd-shutdow[n]?\[1\]: "
    r"|kernel: (?:\[[^]]*\] )?reboot: )"
)


def meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in kB."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0])
    return found


def assignments(text: str) -> dict[str, str]:
    """Lines of KEY=value, as in os-release; quotes are taken off."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def gpu_state(text: str, fields: Sequence[str] = GPU_FIELDS) -> dict[str, str] | None:
    """First row of nvidia-smi's answer about `fields` (csv, noheader, nounits)."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(fields):
            # Newer drivers write N/A without brackets.
            cells = [NOT_AVAILABLE if "N/A" in cell else cell for cell in cells]
            return dict(zip(fields, cells))  # noqa: B905 - equal by the test above
    return None


def rejected_field(text: str) -> str | None:
    """The field of which nvidia-smi says that it cannot be asked for."""
    found = _REJECTED.search(text)
    return found["field"] if found else None


def gpu_processes(text: str) -> list[tuple[int, str]]:
    """Process id and name of each row of `--query-compute-apps=pid,process_name`."""
    rows = (line.partition(",") for line in text.splitlines())
    return [(int(pid.strip()), _program(name)) for pid, _, name in rows if pid.strip().isdecimal()]


def _program(words: str) -> str:
    """Name of a program without its folder and arguments: those may hold a key."""
    first = (words.split() or [""])[0]
    return "" if first.startswith("[") else first.rpartition("/")[2]


def loaded_driver(text: str) -> str | None:
    """Version in /proc/driver/nvidia/version."""
    found = _MODULE.search(text)
    return found["version"] if found else None


def listeners(text: str, ports: Iterable[int]) -> dict[str, list[tuple[int, str]]]:
    """Processes (id, name) that listen on each of `ports`, from `ss -Hltnp`; by port as text.

    A listener whose process ss could not name is (0, "").
    """
    found: dict[str, list[tuple[int, str]]] = {str(port): [] for port in ports}
    for line in text.splitlines():
        match = _LISTENER.match(line)
        if match and match["port"] in found:
            who = [(int(one["pid"]), one["name"]) for one in _PROCESS.finditer(line)]
            held = found[match["port"]]
            held += [one for one in who or [(0, "")] if one not in held]
    return found


def owner(cgroup: str) -> dict[str, str]:
    """Which container or unit a process belongs to, from /proc/<pid>/cgroup; {} for neither."""
    if match := _CONTAINER.search(cgroup):
        return {"container": match["id"][:12]}
    units: list[str] = _UNIT.findall(cgroup)
    return {"unit": units[-1]} if units else {}


def containers(text: str) -> list[dict[str, Any]] | None:
    """What matters of `docker container inspect`: name, id, running, restart policy, GPU."""
    try:
        return [_container(one) for one in json.loads(text)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _container(inspected: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": inspected["Name"].lstrip("/"),
        "id": inspected["Id"][:12],
        "running": bool(inspected["State"]["Running"]),
        "policy": restart_policy(inspected),
        "gpu": uses_gpu(inspected),
    }


def docker_info(text: str) -> dict[str, Any] | None:
    """Server version and runtimes of `docker info`; None when no server answered."""
    try:
        info = json.loads(text)
        version = info["ServerVersion"]
        runtimes = sorted(info.get("Runtimes") or {})
    except (ValueError, KeyError, TypeError):
        return None
    return {"version": str(version), "runtimes": runtimes} if version else None


def may_use_node_verbs(text: str) -> bool:
    """Whether `sudo -l` lists the tool's node verbs (or everything) without a password."""
    return any(_NODE_VERBS.search(line) for line in text.splitlines())


def mounts(text: str) -> list[tuple[str, str]]:
    """Mount point and file system type of each line of /proc/self/mountinfo, in order."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if separator and len(fields) > 4 and after.split():
            found.append((fields[4].replace("\\040", " "), after.split()[0]))
    return found


def mount_of(path: str, table: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Mount point and type of the file system that `path` lies on; the last mount wins."""
    best: tuple[str, str] | None = None
    for point, kind in table:
        inside = point in ("/", path) or path.startswith(f"{point}/")
        if inside and (best is None or len(point) >= len(best[0])):
            best = (point, kind)
    return best


def model_ids(text: str) -> list[str] | None:
    """Names that an answer of /v1/models lists."""
    try:
        return [str(model["id"]) for model in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError):
        return None


def previous_boot(lines: Sequence[str]) -> dict[str, str] | None:
    """How the boot before this one ended, from its last journal lines (`-o short-iso`).

    `ended` is "orderly" or "abrupt": a machine that lost its power or hung leaves no word of a
    shutdown. None when there are no lines.
    """
    said = [line for line in lines if line.strip() and not line.startswith("-- ")]
    if not said:
        return None
    orderly = any(_ORDERLY.match(line) for line in said)
    return {"ended": "orderly" if orderly else "abrupt", "last": said[-1].split()[0]}
