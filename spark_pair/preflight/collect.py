"""Raw measurements of one host, as plain data, all taken at once.

Runs on the host, reads only, needs nothing installed. What cannot be read is None and has its
reason in `unread`; nothing is judged here. Python of the host may be older than the tool's own:
what is used here must still run there, so that the check of the version can say so.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..system import Result, run
from . import parse

Runner = Callable[[Sequence[str], float], Result]
Values = dict[str, Any]

DEADLINE = 6.0
"""Seconds after which a measurement that has not ended counts as unread."""

COMMAND_SECONDS = 5.0
HUB_SECONDS = 5.0
CONNECT_SECONDS = 3

OOM_DAEMONS = ("earlyoom", "nohang", "nohang-desktop", "dgx-anti-oom", "systemd-oomd")

SERVERS_SLICES = ("-.slice", "system.slice")
"""Where services and containers run, as systemd-oomd sees them."""

NETWORK_FILESYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "beegfs", "gpfs"),
        *("glusterfs", "fuse.glusterfs", "fuse.ceph", "fuse.sshfs", "fuse.rclone"),
    }
)

_LARGE_KIB = 256 * 1024
"""Anonymous memory from which a process is worth naming."""


class UnreadError(Exception):
    """A measurement could not be taken; its text is the reason."""


@dataclass(frozen=True)
class Asked:
    """What is to be measured.

    `peer` is {user, addresses, port}, empty when the peer is not in this run. `description` is that
    of the pair, empty when the variables make none. `rails` are interfaces, `rail_peers` the peer's
    address on each. `controller_time` in seconds since the epoch, 0 when it is not known.
    """

    user: str
    home: str
    is_head: bool = False
    management: str = ""
    peer: Mapping[str, Any] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
    rails: Sequence[str] = ()
    rail_peers: Mapping[str, str] = field(default_factory=dict)
    hub_url: str = ""
    controller_time: float = 0.0


def _run(argv: Sequence[str], timeout: float) -> Result:
    return run(argv, timeout=timeout)


def measure(
    asked: Asked, *, runner: Runner = _run, root: Path = Path("/"), deadline: float = DEADLINE
) -> Values:
    """Take every measurement; {"measured": {name: value or None}, "unread": {name: why}}."""
    host = _Host(asked, runner, root)
    measured: Values = dict.fromkeys(name for names, _ in PROBES for name in names)
    unread: dict[str, str] = {}
    threads = []
    for names, probe in PROBES:
        thread = threading.Thread(
            target=_take, args=(names, probe, host, measured, unread), daemon=True
        )
        thread.start()
        threads.append((names, thread))
    until = time.monotonic() + deadline
    for _, thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for names, thread in threads:
        if thread.is_alive():
            unread.update(dict.fromkeys(names, f"no answer within {deadline:g} s"))
    # Copies, and None wherever a reason stands: a thread that is late may still write.
    reasons = dict(unread)
    return {
        "measured": {
            name: None if name in reasons else value for name, value in list(measured.items())
        },
        "unread": reasons,
    }


def _take(
    names: Sequence[str], probe: Probe, host: _Host, measured: Values, unread: dict[str, str]
) -> None:
    try:
        found = probe(host)
    except UnreadError as error:
        unread.update(dict.fromkeys(names, str(error)))
    except Exception as error:  # whatever it is, it is one measurement's and not the others'
        unread.update(dict.fromkeys(names, f"{type(error).__name__}: {error}"))
    else:
        for name, value in (found if len(names) > 1 else {names[0]: found}).items():
            if isinstance(value, UnreadError):
                unread[name] = str(value)
            else:
                measured[name] = value


class _Host:
    """This host, as far as the probes see it."""

    def __init__(self, asked: Asked, runner: Runner, root: Path) -> None:
        self.asked = asked
        self.root = root
        self.run = runner

    def text(self, path: str) -> str:
        """Content of a file, or UnreadError."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            raise UnreadError(f"{path} does not exist") from None
        except OSError as error:
            raise UnreadError(f"{path}: {error.strerror or error}") from None

    def asked_of(self, *argv: str, seconds: float = COMMAND_SECONDS) -> Result:
        """Outcome of a program; UnreadError when it is missing or did not end."""
        done = self.run(argv, seconds)
        if done.code in (126, 127):
            raise UnreadError(f"{argv[0]} is not there")
        if done.code == 124:
            raise UnreadError(f"{argv[0]}: {done.last_words(1)}")
        return done

    def said(self, *argv: str, seconds: float = COMMAND_SECONDS) -> str:
        """Output of a program that ended well, or UnreadError with its words."""
        done = self.asked_of(*argv, seconds=seconds)
        if not done.ok:
            raise UnreadError(f"{argv[0]}: {done.last_words(1)}")
        return done.out

    def as_user(self, *argv: str, seconds: float = COMMAND_SECONDS) -> Result:
        """The same as the servers' account, in a new session of it."""
        # runuser keeps root's HOME, and with it root's settings of ssh, Docker and git.
        home = f"HOME={self.asked.home}"
        return self.run(["runuser", "-u", self.asked.user, "--", "env", home, *argv], seconds)

    def program(self, *candidates: str) -> str | None:
        """The first of some absolute paths that is an executable file."""
        for path in candidates:
            here = self.root / path.lstrip("/")
            if here.is_file() and os.access(here, os.X_OK):
                return path
        return None

    def name(self, pid: int) -> str:
        """Name of a process, without its command line; "" when it has gone."""
        try:
            return self.text(f"/proc/{pid}/comm").strip()
        except UnreadError:
            return ""

    def owner(self, pid: int) -> dict[str, str]:
        """Unit or container of a process; {} when it has gone or has none."""
        try:
            return parse.owner(self.text(f"/proc/{pid}/cgroup"))
        except UnreadError:
            return {}


Probe = Callable[[_Host], Any]


def _interpreter(_: _Host) -> list[int]:
    return list(sys.version_info[:2])


def _effective_user(_: _Host) -> int:
    return os.geteuid()


def _account(host: _Host) -> Values:
    try:
        found = pwd.getpwnam(host.asked.user)
    except KeyError:
        return {"uid": None, "home": "", "is_home": False, "home_exists": False}
    wanted = host.asked.home
    return {
        "uid": found.pw_uid,
        "home": found.pw_dir,
        "is_home": os.path.realpath(found.pw_dir) == os.path.realpath(wanted),
        "home_exists": Path(wanted).is_dir(),
    }


def _architecture(_: _Host) -> str:
    return os.uname().machine


def _kernel(host: _Host) -> str:
    return host.text("/proc/sys/kernel/osrelease").strip()


def _os_release(host: _Host) -> dict[str, str]:
    found = parse.assignments(host.text("/etc/os-release"))
    return {key: found.get(key, "") for key in ("PRETTY_NAME", "VERSION_ID")}


def _dgx_release(host: _Host) -> dict[str, str]:
    found = parse.assignments(host.text("/etc/dgx-release"))
    return {
        "built": found.get("DGX_SWBUILD_VERSION", ""),
        "updated": found.get("DGX_OTA_VERSION", ""),
    }


def _machine_id(host: _Host) -> str:
    """A hash of it: the id itself is not to be spread."""
    found = host.text("/etc/machine-id").strip()
    if not found:
        raise UnreadError("/etc/machine-id is empty")
    return hashlib.sha256(found.encode()).hexdigest()[:12]


def _bios_version(host: _Host) -> str:
    return host.text("/sys/class/dmi/id/bios_version").strip()


def _meminfo(host: _Host) -> dict[str, int]:
    return parse.meminfo(host.text("/proc/meminfo"))


def _processes(host: _Host) -> list[Values]:
    """Processes that hold much memory which is not a file's: the driver's share is in none."""
    found: list[Values] = []
    for entry in (host.root / "proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = parse.meminfo((entry / "status").read_text(errors="replace"))
            held = status.get("RssAnon", 0) + status.get("RssShmem", 0)
            if held >= _LARGE_KIB:
                pid = int(entry.name)
                found.append(
                    {
                        "pid": pid,
                        "name": host.name(pid),
                        "kib": _share(entry, held),
                        "owner": host.owner(pid),
                    }
                )
        except OSError:
            continue  # it has ended meanwhile
    return sorted(found, key=lambda one: -int(one["kib"]))[:20]


def _share(process: Path, held: int) -> int:
    """KiB of a process when each page that several share is divided among them."""
    try:
        shares = parse.meminfo((process / "smaps_rollup").read_text(errors="replace"))
        return shares["Pss_Anon"] + shares["Pss_Shmem"]
    except (OSError, KeyError):
        return held


_NO_GPU = ("no devices were found", "couldn't communicate with the nvidia driver")
"""Words with which nvidia-smi fails where there is nothing to list; other failures tell nothing."""


def _gpu_list(host: _Host) -> list[str]:
    done = host.asked_of("nvidia-smi", "-L")
    if done.ok:
        lines = done.out.splitlines()
        return [line.partition(" (UUID")[0] for line in lines if line.startswith("GPU ")]
    if any(words in _words(done).lower() for words in _NO_GPU):
        return []
    raise UnreadError(f"nvidia-smi: {done.last_words(1)}")


def _words(done: Result) -> str:
    """All that a program said: nvidia-smi reports its errors on standard output."""
    return " ".join(f"{done.out} {done.err}".split())[:200]


def _gpu_query(host: _Host) -> Values:
    """State of the GPU, and what nvidia-smi said instead of telling it.

    A field that this driver does not know is asked for no more and counts as not available, with
    the driver's words in `rejected`.
    """
    fields, rejected = list(parse.GPU_FIELDS), dict[str, str]()
    for _ in parse.GPU_FIELDS:
        done = host.asked_of(
            "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"
        )
        unknown = None if done.ok else parse.rejected_field(_words(done))
        if unknown not in fields:
            break
        fields.remove(unknown)
        rejected[unknown] = _words(done)
    if not done.ok:
        said = _words(done) or f"exit code {done.code}"
        return {"gpu": UnreadError(f"nvidia-smi: {said}"), "nvml": said}
    state = parse.gpu_state(done.out, fields)
    if state is None:
        return {"gpu": UnreadError(f"nvidia-smi said {_words(done)[:80]!r}"), "nvml": ""}
    missing = dict.fromkeys(rejected, parse.NOT_AVAILABLE)
    return {"gpu": {**state, **missing, "rejected": rejected}, "nvml": ""}


def _gpu_processes(host: _Host) -> list[Values]:
    said = host.said("nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader")
    return [
        {"pid": pid, "name": host.name(pid) or name, "owner": host.owner(pid)}
        for pid, name in parse.gpu_processes(said)
    ]


def _driver_loaded(host: _Host) -> str:
    found = parse.loaded_driver(host.text("/proc/driver/nvidia/version"))
    if found is None:
        raise UnreadError("/proc/driver/nvidia/version does not name a version")
    return found


def _driver_library(host: _Host) -> list[str]:
    """Versions of the driver's user space that are installed, from its library's file names.

    What programs load is where libnvidia-ml.so.1 points; a former version's file may still lie
    beside it.
    """
    folders = list((host.root / "usr/lib").glob("*-linux-gnu"))
    loaded = [os.path.realpath(folder / "libnvidia-ml.so.1") for folder in folders]
    files = [str(path) for folder in folders for path in folder.glob("libnvidia-ml.so.*.*")]
    for paths in (loaded, files):
        versions = {Path(path).name.partition(".so.")[2] for path in paths if Path(path).exists()}
        if found := sorted(version for version in versions if "." in version):
            return found
    raise UnreadError("no libnvidia-ml.so with a version below /usr/lib")


def _clock_offset(host: _Host) -> float:
    """Seconds by which this clock is ahead of the controller's, plus the way here."""
    if not host.asked.controller_time:
        raise UnreadError("the controller's time was not given")
    return round(time.time() - host.asked.controller_time, 2)


def _clock_synchronized(host: _Host) -> bool:
    said = host.said("timedatectl", "show", "--property", "NTPSynchronized", "--value").strip()
    if said not in ("yes", "no"):
        raise UnreadError(f"timedatectl said {said!r}")
    return said == "yes"


def _units(host: _Host) -> dict[str, str]:
    """Active state of the units that matter; "not-found" for one that does not exist."""
    servers = host.asked.description.get("servers", {}).values()
    role = _role(host)
    known = {unit["unit"] for one in servers for unit in one["units"] if unit["host"] == role}
    names = sorted({*known, *(f"{name}.service" for name in OOM_DAEMONS)})
    said = host.said("systemctl", "show", "--property", "Id,LoadState,ActiveState", "--", *names)
    found = {}
    for block in said.strip().split("\n\n"):
        values = parse.assignments(block)
        missing = values.get("LoadState") == "not-found"
        found[values.get("Id", "")] = "not-found" if missing else values.get("ActiveState", "")
    # A name that is another unit's alias is answered under that one's.
    return {name: found.get(name, "not-found") for name in names}


def _managed_oom(host: _Host) -> list[str]:
    """Slices of the servers in which systemd-oomd may kill; users' sessions are none of them."""
    properties = ("ManagedOOMSwap", "ManagedOOMMemoryPressure")
    wanted = ",".join(("Id", *properties))
    said = host.said("systemctl", "show", "--property", wanted, "--", *SERVERS_SLICES)
    found = [parse.assignments(block) for block in said.strip().split("\n\n")]
    if not all(name in values for values in found for name in properties):
        raise UnreadError("systemctl does not tell what systemd-oomd manages")
    return [
        values.get("Id", "") for values in found if "kill" in (values[name] for name in properties)
    ]


def _docker_client(host: _Host) -> str:
    return host.program("/usr/bin/docker", "/usr/local/bin/docker", "/snap/bin/docker") or ""


def _docker(host: _Host) -> Values:
    """What Docker says to the servers' account; `why` is empty when it may use it."""
    if not _docker_client(host):
        return {"version": "", "runtimes": [], "why": "there is no docker command"}
    done = host.as_user("docker", "info", "--format", "{{json .}}")
    info = parse.docker_info(done.out) if done.ok else None
    why = "" if info else done.last_words(1)
    return {"version": "", "runtimes": [], **(info or {}), "why": why}


def _containers(host: _Host) -> list[Values]:
    if not _docker_client(host):
        return []
    ids = host.said("docker", "ps", "--all", "--quiet").split()
    if not ids:
        return []
    # One that is removed in between makes docker fail and still tell about the others.
    done = host.asked_of("docker", "container", "inspect", *ids)
    found = parse.containers(done.out)
    if found is None:
        raise UnreadError(f"docker container inspect: {done.last_words(1)}")
    return found


def _toolkit(host: _Host) -> dict[str, str | None]:
    return {
        name: host.program(f"/usr/bin/{name}", f"/usr/local/bin/{name}")
        for name in ("nvidia-ctk", "nvidia-container-runtime")
    }


def _disks(host: _Host) -> dict[str, Values]:
    """File system of each place that fills up; a network file system is not asked for its size."""
    table = parse.mounts(host.text("/proc/self/mountinfo"))
    places = {
        "models": f"{host.asked.home}/.cache/huggingface",
        "docker": _docker_root(host),
        "spark-pair": "/var/lib/spark-pair",
    }
    found = {}
    for name, path in places.items():
        real = os.path.realpath(path)
        mount = parse.mount_of(real, table)
        if mount is None:
            raise UnreadError(f"no mount holds {path}")
        point, kind = mount
        free = None
        if kind not in NETWORK_FILESYSTEMS:
            there = os.statvfs(_nearest(Path(real)))
            free = there.f_bavail * there.f_frsize
        found[name] = {"path": path, "mount": point, "type": kind, "free": free}
    return found


def _nearest(path: Path) -> Path:
    """The path itself or the nearest directory above it that exists."""
    return next((one for one in (path, *path.parents) if one.exists()), Path("/"))


def _docker_root(host: _Host) -> str:
    try:
        settings = json.loads(host.text("/etc/docker/daemon.json"))
        return str(settings.get("data-root") or "/var/lib/docker")
    except (UnreadError, ValueError, AttributeError):
        return "/var/lib/docker"


def _role(host: _Host) -> str:
    return "head" if host.asked.is_head else "worker"


def _servers(host: _Host) -> list[Any]:
    """Known servers, in the form in which they run now."""
    from ..description import parse as parsed  # noqa: PLC0415 - needs a newer Python than this file
    from ..running import as_running  # noqa: PLC0415

    if not host.asked.description:
        raise UnreadError("the variables make no pair description")
    return [as_running(one) for one in parsed(host.asked.description).servers.values()]


def _listeners(host: _Host) -> dict[str, Values]:
    """Port of this host that known servers use, as text -> whose it may be and who listens.

    A rank's port counts like the API's: what a former rank still holds keeps the next one out.
    """
    owners: dict[int, list[str]] = {}
    for server in _servers(host):
        ports = [server.api.port] if server.api.host == _role(host) else []
        for port in dict.fromkeys([*ports, *server.ports_on(_role(host))]):
            owners.setdefault(port, []).append(server.name)
    held = parse.listeners(host.said("ss", "-Hltnp"), owners)
    return {
        str(port): {
            "servers": names,
            "held": [
                {"pid": pid, "name": program, "owner": host.owner(pid)}
                for pid, program in held[str(port)]
            ],
        }
        for port, names in owners.items()
    }


def _models(host: _Host) -> dict[str, Values]:
    """What each known server's port lists under /v1/models; "refused": nobody listens."""
    from ..probe import request  # noqa: PLC0415

    found = {}
    for server in _servers(host):
        if server.api.host != _role(host):
            continue
        answer = request(server, "GET", "/v1/models", COMMAND_SECONDS - 2)
        found[server.name] = {
            "port": server.api.port,
            "expected": server.api.model,
            "kind": answer.kind,
            "status": answer.status,
            "ids": parse.model_ids(answer.body) if answer.status == 200 else None,
            "why": answer.why,
        }
    return found


def _ssh(host: _Host) -> dict[str, str]:
    """Address of the peer -> why the servers' account does not get there; "" when it does."""
    peer = host.asked.peer
    if not peer:
        raise UnreadError("the peer does not take part in this run")
    said = dict.fromkeys(peer["addresses"], f"no answer within {COMMAND_SECONDS:g} s")

    def attempt(address: str) -> None:
        done = host.as_user(
            "ssh",
            *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "UpdateHostKeys=no"),
            *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
            *("-o", f"ConnectTimeout={CONNECT_SECONDS}", "-p", str(peer["port"])),
            *(f"{peer['user']}@{address}", "true"),
        )
        said[address] = "" if done.ok else done.last_words(1)

    threads = [
        threading.Thread(target=attempt, args=(address,), daemon=True) for address in list(said)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(COMMAND_SECONDS)
    return dict(said)


def _sudo_line(host: _Host) -> bool:
    """Whether the peer's switch, which comes as this account, may use the tool here."""
    done = host.asked_of("sudo", "-n", "-l", "-U", host.asked.user)
    return parse.may_use_node_verbs(done.out)


def _tools(host: _Host) -> dict[str, str | None]:
    home = host.asked.home
    return {
        "git": host.program("/usr/bin/git", "/usr/local/bin/git"),
        "python3": host.program("/usr/bin/python3"),
        "hf": host.program(
            "/opt/spark-pair/current/venv/bin/hf",
            *(f"{home}/{place}/hf" for place in (".local/bin", "venv/bin", ".venv/bin", "hf/bin")),
            *("/usr/local/bin/hf", "/usr/bin/hf"),
        )
        or shutil.which("hf"),
    }


def _hub(host: _Host) -> Values:
    """Whether the Hub answers, through the environment's proxies; a proxy's own error is none."""
    url = host.asked.hub_url
    if not url:
        raise UnreadError("not asked: preflight_hub_url is empty")
    if not host.asked.is_head:
        raise UnreadError("not asked: only the head downloads")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise UnreadError(f"preflight_hub_url is {url!r}, but must begin with https://")
    shown = f"{parts.scheme}://{parts.hostname}"
    try:
        # The body is left unread: that there is an answer is enough.
        with urllib.request.urlopen(url, timeout=HUB_SECONDS) as reply:  # noqa: S310 - see above
            return {"url": shown, "answers": True, "said": f"HTTP {reply.status}"}
    except urllib.error.HTTPError as error:
        return {"url": shown, "answers": error.code < 500, "said": f"HTTP {error.code}"}
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return {"url": shown, "answers": False, "said": str(reason)[:160]}


def _previous_boot(host: _Host) -> dict[str, str]:
    done = host.asked_of(
        *("journalctl", "--boot", "-1", "--lines", "40", "--output", "short-iso", "--no-pager"),
        "--quiet",
    )
    found = parse.previous_boot(done.out.splitlines()) if done.ok else None
    if found is None:
        words = done.last_words(1) if done.err.strip() else "the journal holds no earlier boot"
        raise UnreadError(words)
    return found


def _rails(host: _Host) -> Values:
    from ..rails.look import look  # noqa: PLC0415 - needs a newer Python than this file

    asked = host.asked
    until = time.monotonic() + COMMAND_SECONDS

    def in_time(argv: Sequence[str], timeout: float) -> Result:
        # One program that hangs must not cost all that the others said.
        return host.run(argv, min(timeout, max(0.1, until - time.monotonic())))

    return look(
        list(asked.rails),
        asked.management,
        asked.rail_peers if asked.peer else {},
        runner=in_time,
        root=host.root,
        renderer=False,
    )


# The slowest first. A probe of one name returns its value, one of several a value for each name;
# an UnreadError in a value's place is why there is none.
PROBES: tuple[tuple[tuple[str, ...], Probe], ...] = (
    (("clock_offset",), _clock_offset),
    (("hub",), _hub),
    (("ssh",), _ssh),
    (("rails",), _rails),
    (("docker",), _docker),
    (("containers",), _containers),
    (("gpu", "nvml"), _gpu_query),
    (("gpu_list",), _gpu_list),
    (("gpu_processes",), _gpu_processes),
    (("models",), _models),
    (("listeners",), _listeners),
    (("units",), _units),
    (("managed_oom",), _managed_oom),
    (("sudo_line",), _sudo_line),
    (("previous_boot",), _previous_boot),
    (("clock_synchronized",), _clock_synchronized),
    (("processes",), _processes),
    (("disks",), _disks),
    (("python",), _interpreter),
    (("euid",), _effective_user),
    (("account",), _account),
    (("architecture",), _architecture),
    (("kernel",), _kernel),
    (("os_release",), _os_release),
    (("dgx_release",), _dgx_release),
    (("machine_id",), _machine_id),
    (("bios_version",), _bios_version),
    (("meminfo",), _meminfo),
    (("driver_loaded",), _driver_loaded),
    (("driver_library",), _driver_library),
    (("docker_client",), _docker_client),
    (("toolkit",), _toolkit),
    (("tools",), _tools),
)
