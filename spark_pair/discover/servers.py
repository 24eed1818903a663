"""Model servers of this host: units that run or revive one, GPU containers, ports that answer.

Nothing of a command line is passed on but which word gave it away: it may hold a key.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..inspected import restart_policy, uses_gpu
from ..system import Runner
from .reading import Unread, inside, names, text

WORDS = ("vllm", "sglang", "tensorfold", "llama", "qwen", "deepseek", "dsv41", "trtllm")
"""A unit that uses one of these in its name, description or command has to do with a model."""

KEEPER_WORDS = ("watchdog", "metrics", "monitor", "health", "keepalive", "guard", "canary")

_OURS = "spark-pair-"
_SECONDS = 15.0
_CONTAINER = re.compile(r"\b(docker|podman)\b[^\n]*\b(run|compose|start)\b", re.I)
_SERVES = re.compile(r"\bserve\b|--gpus\b")
# A script may speak of a model for many reasons; these start a server.
_LAUNCHES = re.compile(
    r"\b(vllm|sglang|tensorfold)\S*\s+serve\b|-m\s+(vllm|sglang)\b|\b(llama-server|trtllm-serve)\b"
)
_STARTS = re.compile(r"systemctl\b[^\n;]*\b(start|restart|try-restart|reload-or-restart)\b")
_PORT = re.compile(
    r"(?<![\w-])--port[= ]+(\d+)|\bPORT=(\d+)|https?://[^\s/:]+:(\d+)"
    r"|(?<!\S)(?:-p|--publish)[= ]+(?:[\d.]+:)?(\d+):\d+"
)
"""Ports of HTTP that a command names; those of a rendezvous are called otherwise."""
_UNIT_NAME = re.compile(r"[\w:.\\@-]+\.\w+")
_USER_FOLDERS = (
    ".config/systemd/user",
    ".local/share/systemd/user",
    ".config/containers/systemd",
)
_ASKS = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\]):(\d+)")
_PROPERTIES = (
    "Id,Description,ExecStart,LoadState,ActiveState,UnitFileState,FragmentPath,Triggers,TriggeredBy"
    ",User,Type"
)

Ask = Callable[[int], tuple[int, bytes] | None]
"""Status and body of GET /v1/models on a port of loopback; None without an answer."""


@dataclass(frozen=True)
class Known:
    """What the catalogue of servers names: its units and the ports of their APIs."""

    units: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


NOTHING_KNOWN = Known()


@dataclass(frozen=True)
class Unit:
    """A systemd unit. `scope` is "system" or "user:ACCOUNT"; `script` the text it executes."""

    name: str
    scope: str
    description: str = ""
    command: str = ""
    script: str = ""
    active: str = "unknown"
    enabled: str = "unknown"
    kind: str = ""
    user: str = ""
    triggers: tuple[str, ...] = ()
    triggered_by: tuple[str, ...] = ()
    why: str = field(default="", compare=False)

    @property
    def stem(self) -> str:
        """Its name without the suffix."""
        return self.name.rpartition(".")[0]

    @property
    def text(self) -> str:
        """All that it executes."""
        return f"{self.command}\n{self.script}"


def look(
    root: Path,
    runner: Runner,
    accounts: Sequence[Mapping[str, Any]],
    unread: Unread,
    *,
    ask: Ask | None = None,
    known: Known = NOTHING_KNOWN,
) -> dict[str, Any]:
    """Everything on this host that serves a model or brings such a server back.

    Of the ports that listen only those are asked that something names a server's; `not_asked` are
    the others.
    """
    units = system_units(root, runner, unread, known.units)
    for account in accounts:
        units += user_units(root, runner, account, unread)
    containers, published = _containers(root, runner, unread)
    listening = _listening(root, unread)
    likely = {*_WELL_KNOWN, *known.ports, *_named_ports(units, known.units), *published}
    answering = _answering(listening & likely, ask or ask_models)
    ports = {server["port"] for server in answering}
    return {
        "units": classified(units, ports, known.units),
        "containers": containers,
        "answering": answering,
        "not_asked": sorted(listening - likely),
    }


def _named_ports(units: Sequence[Unit], known: Collection[str]) -> set[int]:
    """Ports that the units of servers and of what looks after them name."""
    found = {(row["scope"], row["unit"]) for row in classified(units, known=known)}
    return {
        port for unit in units if (unit.scope, unit.name) in found for port in _ports_in(unit.text)
    }


def _ports_in(said: str) -> set[int]:
    return {int(port) for found in _PORT.finditer(said) for port in found.groups() if port}


def system_units(
    root: Path, runner: Runner, unread: Unread, known: Collection[str] = ()
) -> list[Unit]:
    """Services and timers that the system manager knows, and those of `known` that it finds."""
    found, why = _listed(["systemctl"], runner)
    if why:
        unread["system units"] = why
        return []
    # An instance that was never started is in no list; asked for by its name it is there.
    found |= {name for name in known if _UNIT_NAME.fullmatch(name)}
    return _shown(["systemctl"], sorted(found), "system", root=root, runner=runner, unread=unread)


def _listed(systemctl: Sequence[str], runner: Runner) -> tuple[set[str], str]:
    """Names of the services and timers that a manager lists, or why they cannot be told."""
    found: set[str] = set()
    for verb in (["list-unit-files"], ["list-units", "--all"]):
        listed = runner(
            [*systemctl, *verb, "--type=service,timer", "--plain", "--no-legend", "--no-pager"],
            _SECONDS,
        )
        if not listed.ok:
            return set(), f"systemctl: {listed.last_words()}"
        found |= {line.split()[0] for line in listed.out.splitlines() if line.strip()}
    return {name for name in found if "@." not in name}, ""


def user_units(
    root: Path, runner: Runner, account: Mapping[str, Any], unread: Unread
) -> list[Unit]:
    """Services and timers in an account's own folders, and those its manager knows if it runs."""
    name = str(account["name"])
    folders = [inside(root, f"{account['home']}/{folder}") for folder in _USER_FOLDERS]
    files: dict[str, Path] = {}
    for folder in folders:
        for one in names(folder):
            if one.endswith((".service", ".timer", ".container")) and "@." not in one:
                files.setdefault(one.replace(".container", ".service"), folder / one)
    runtime = f"/run/user/{account['uid']}"
    active = "inactive"
    if inside(root, runtime).is_dir():
        as_account = ["runuser", "-u", name, "--", "env", f"XDG_RUNTIME_DIR={runtime}"]
        systemctl = [*as_account, "systemctl", "--user"]
        listed, why = _listed(systemctl, runner)
        wanted, scope = sorted({*listed, *files}), f"user:{name}"
        if why:
            unread[f"units of {name}"] = why
        elif shown := _shown(systemctl, wanted, scope, root=root, runner=runner, unread=unread):
            return shown
        active = "unknown"
    links = {link for one in folders for wants in names(one) for link in names(one / wants)}
    return [
        _from_file(files[one], one, name, root, active=active, enabled=one in links)
        for one in sorted(files)
    ]


def _from_file(
    path: Path, unit: str, account: str, root: Path, *, active: str, enabled: bool
) -> Unit:
    """A unit of an account whose manager does not run, or cannot be asked."""
    values: dict[str, list[str]] = {}
    for line in (text(path) or "").replace("\\\n", " ").splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values.setdefault(key.strip(), []).append(value.strip())
    command = "\n".join(values.get("ExecStart", []))
    if path.suffix == ".container":  # systemd makes a service of it that runs podman
        words = [word for key in ("PodmanArgs", "Image", "Exec") for word in values.get(key, [])]
        command = " ".join(["podman run", *words])
    return Unit(
        name=unit,
        scope=f"user:{account}",
        description=" ".join(values.get("Description", [])),
        command=command,
        script=_script(root, command),
        active=active,
        enabled="enabled" if enabled else "disabled",
        kind=" ".join(values.get("Type", [])),
        triggers=tuple(
            values.get("Unit", [path.stem + ".service"] if path.suffix == ".timer" else [])
        ),
    )


def _shown(
    systemctl: Sequence[str],
    wanted: Sequence[str],
    scope: str,
    *,
    root: Path,
    runner: Runner,
    unread: Unread,
) -> list[Unit]:
    if not wanted:
        return []
    shown = runner(
        [*systemctl, "show", "--no-pager", f"--property={_PROPERTIES}", "--", *wanted], _SECONDS
    )
    if not shown.ok:
        unread[f"state of units ({scope})"] = f"systemctl show: {shown.last_words()}"
        return []
    # A unit that another one only mentions, as in After=, is listed although it is not there.
    return [
        _unit(block, scope, root)
        for block in shown.out.split("\n\n")
        if "Id=" in block and "LoadState=not-found" not in block
    ]


def _unit(block: str, scope: str, root: Path) -> Unit:
    values: dict[str, list[str]] = {}
    for line in block.strip().splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value)

    def one(key: str) -> str:
        return values.get(key, [""])[0]

    commands = [
        found[1].strip()
        for value in values.get("ExecStart", [])
        for found in re.finditer(r"argv\[\]=(.*?) ; ", value)
    ]
    command = "\n".join(commands)
    # What the distribution installed is no launcher of a model server.
    packaged = one("FragmentPath").startswith(("/usr/lib/", "/lib/"))
    return Unit(
        name=one("Id"),
        scope=scope,
        description=one("Description"),
        command=command,
        script="" if packaged else _script(root, command),
        active=one("ActiveState"),
        enabled=one("UnitFileState") or "not enabled",
        kind=one("Type"),
        user=one("User"),
        triggers=tuple(one("Triggers").split()),
        triggered_by=tuple(one("TriggeredBy").split()),
    )


def _script(root: Path, command: str) -> str:
    """Text of the scripts that a command names, for what they start and ask; 64 KiB of each."""
    found = []
    for word in re.findall(r"/[^\s;'\"]+", command)[:4]:
        path = inside(root, word)
        said = text(path) if path.is_file() else None
        if said and said.startswith("#!"):
            found.append(said)
    return "\n".join(found)


def classified(
    units: Iterable[Unit], ports: Collection[int] = (), known: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Which units run a model server, and which ones bring one back; with what gave them away.

    `ports` answer as a server; a unit of the system that is in `known` is one, whatever it runs.
    """
    every = [unit for unit in units if not unit.name.startswith(_OURS)]
    servers = {
        (unit.scope, unit.name): (unit, why)
        for unit in every
        if (why := _serves(unit, every, known))
    }
    found = [_row(unit, "server", why, every) for unit, why in servers.values()]
    keepers: dict[tuple[str, str], tuple[Unit, str]] = {}
    for unit in every:
        if (unit.scope, unit.name) not in servers and (
            why := _revives(unit, [server for server, _ in servers.values()], ports)
        ):
            keepers[unit.scope, unit.name] = (unit, why)
    for unit in every:
        called = [name for name in unit.triggers if (unit.scope, name) in {**servers, **keepers}]
        if unit.name.endswith(".timer") and called:
            keepers[unit.scope, unit.name] = (unit, f"starts {called[0]}")
    found += [_row(unit, "keeper", why, every) for unit, why in keepers.values()]
    return sorted(found, key=lambda row: (row["part"] != "server", row["scope"], row["unit"]))


def _serves(unit: Unit, every: Sequence[Unit], known: Collection[str]) -> str:
    """Why a unit is taken for a server; empty if it is not."""
    why = _runs_a_model(unit)
    if unit.scope == "system" and unit.name in known:
        return why or "the catalogue names it"
    return why if unit.name.endswith(".service") and not _looks_after(unit, every) else ""


def _row(unit: Unit, part: str, why: str, every: Sequence[Unit]) -> dict[str, Any]:
    return {
        "unit": unit.name,
        "scope": unit.scope,
        "part": part,
        "why": why,
        "active": unit.active,
        "enabled": unit.enabled,
        "user": unit.user,
        "timers": _timers(unit, every),
    }


def _runs_a_model(unit: Unit) -> str:
    """What gives a unit away as having to do with a model server; empty if nothing does."""
    places = (
        ("its name", unit.name),
        ("its description", unit.description),
        ("its command", unit.command),
    )
    for place, said in places:
        for word in WORDS:
            if word in said.lower():
                return f"{place} says {word}"
    if launched := _LAUNCHES.search(unit.script):
        return f"its script says {launched[0]}"
    if _CONTAINER.search(unit.text) and _SERVES.search(unit.text):
        return "it starts a container that serves"
    return ""


def _looks_after(unit: Unit, every: Sequence[Unit]) -> bool:
    """Whether it has to do with a server without being one."""
    others = [other for other in every if other.name != unit.name and _runs_a_model(other)]
    called = _timers(unit, every)
    return (
        # What a timer calls to run for a moment is a check; what it starts to stay is a server.
        (bool(called) and unit.kind == "oneshot")
        or any(word in unit.stem.lower() for word in KEEPER_WORDS)
        or (bool(_STARTS.search(unit.text)) and any(_named(other, unit.text) for other in others))
    )


def _timers(unit: Unit, every: Sequence[Unit]) -> list[str]:
    """Timers that start it."""
    found = {name for name in unit.triggered_by if name.endswith(".timer")}
    for other in every:
        if other.name.endswith(".timer") and unit.name in other.triggers:
            found.add(other.name)
    return sorted(found)


def _named(unit: Unit, said: str) -> bool:
    """Whether a text names a unit, with or without its suffix."""
    return bool(re.search(rf"(?<![\w.-]){re.escape(unit.stem)}(?![\w-])", said))


def _revives(unit: Unit, servers: Sequence[Unit], ports: Collection[int]) -> str:
    """Why a unit that is no server belongs to one; empty if it does not."""
    for server in servers:
        if server.name in unit.triggers:
            return f"starts {server.name}"
        if _named(server, unit.text):
            starts = _STARTS.search(unit.text)
            return f"{'starts' if starts else 'names'} {server.name}"
    asked = [int(port) for port in _ASKS.findall(unit.text)]
    for port in asked:
        if port in ports:
            return f"asks the server on port {port}"
    for server in servers:
        if unit.scope == server.scope and unit.stem.startswith(_family(server.stem)):
            return f"shares its name with {server.name}"
    return ""


def _family(stem: str) -> str:
    """What the names of a server's units have in common: the first two parts."""
    parts = stem.split("-")
    return "-".join(parts[:2]) + "-" if len(parts) > 1 else stem


def _containers(
    root: Path, runner: Runner, unread: Unread
) -> tuple[list[dict[str, Any]], set[int]]:
    """Containers that use the GPU or whose image or name says that they serve, and their ports."""
    listed = runner(["docker", "ps", "--all", "--quiet", "--no-trunc"], _SECONDS)
    if listed.code == _NO_PROGRAM and not (root / "run/docker.sock").exists():
        return [], set()
    if not listed.ok:
        unread["containers"] = f"docker: {listed.last_words()}"
        return [], set()
    wanted = listed.out.split()
    if not wanted:
        return [], set()
    shown = runner(["docker", "inspect", "--type", "container", "--", *wanted], _SECONDS)
    try:
        if not shown.ok:
            raise ValueError(shown.last_words())
        serving = [entry for entry in json.loads(shown.out) if _may_serve(entry)]
        ports = {port for entry in serving for port in _ports_of(entry)}
        rows = [_container(entry) for entry in serving]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        unread["containers"] = f"docker inspect: {error}"
        return [], set()
    return sorted(rows, key=lambda row: str(row["name"])), ports


def _may_serve(entry: Mapping[str, Any]) -> bool:
    said = f"{entry['Name']} {entry['Config'].get('Image', '')}".lower()
    return uses_gpu(entry) or any(word in said for word in WORDS)


def _ports_of(entry: Mapping[str, Any]) -> set[int]:
    """Ports of the host that a container publishes, or that its own command names."""
    published = (
        entry["HostConfig"].get("PortBindings"),
        (entry.get("NetworkSettings") or {}).get("Ports"),
    )
    found = {
        int(binding["HostPort"])
        for table in published
        for bindings in (table or {}).values()
        for binding in bindings or []
        if binding.get("HostPort")
    }
    config = entry["Config"]
    words = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    return found | _ports_in(" ".join(words)) | _ports_in(" ".join(config.get("Env") or []))


def _container(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(entry["Name"]).lstrip("/"),
        "image": str(entry["Config"].get("Image", "")),
        "state": entry["State"]["Status"],
        "restart": restart_policy(entry),
        "gpu": uses_gpu(entry),
    }


_NO_PROGRAM = 127
_FIRST_PORT = 1024
# Usual ports of vLLM, llama.cpp, recipes of TensorFold, Ollama and SGLang. A GET on whatever else
# listens (the rendezvous of torch, sockets of ZMQ and NCCL) could harm the server that serves.
_WELL_KNOWN = (8000, 8001, 8080, 8888, 11434, 30000)
_LISTEN = "0A"
_LOOPBACK = (
    "00000000",
    "0100007F",
    "0" * 32,
    "0" * 16 + "FFFF00000100007F",
)


def _listening(root: Path, unread: Unread) -> set[int]:
    """Unprivileged ports that listen on loopback, on IPv4."""
    ports: set[int] = set()
    for name in ("tcp", "tcp6"):
        table = text(root / "proc/net" / name, 1 << 20)
        if table is None and name == "tcp6" and not (root / "proc/net" / name).exists():
            continue  # a kernel without IPv6
        if table is None:
            unread[f"listening ports ({name})"] = f"/proc/net/{name} cannot be read"
            continue
        for line in table.splitlines()[1:]:
            columns = line.split()
            if len(columns) > 3 and columns[3] == _LISTEN:
                where, _, port = columns[1].partition(":")
                if where in _LOOPBACK and int(port, 16) >= _FIRST_PORT:
                    ports.add(int(port, 16))
    return ports


def _answering(ports: Iterable[int], ask: Ask) -> list[dict[str, Any]]:
    """Those of the ports that answer GET /v1/models as a model server does."""
    asked = sorted(ports)
    with ThreadPoolExecutor(max_workers=8) as pool:
        replies = list(pool.map(ask, asked))
    return [
        row
        for port, reply in zip(asked, replies, strict=True)
        if reply is not None and (row := _server(port, *reply))
    ]


def _server(port: int, status: int, body: bytes) -> dict[str, Any]:
    """A model server's answer, {} for anything else."""
    if status in (401, 403):
        return {"port": port, "models": [], "words": f"asks for a key ({status})"}
    try:
        models = [str(model["id"]) for model in json.loads(body)["data"]] if status == 200 else None
    except (ValueError, KeyError, TypeError):
        models = None
    return {} if models is None else {"port": port, "models": models, "words": ", ".join(models)}


def ask_models(port: int, seconds: float = 4.0) -> tuple[int, bytes] | None:
    """GET /v1/models from loopback, at most 1 MiB of it; None without an answer by then."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    late = threading.Event()
    try:
        connection.connect()
        # The timeout of a socket starts anew with every byte; this ends the whole reply.
        end = threading.Timer(seconds, _hang_up, (connection.sock, late))
        end.start()
        try:
            connection.request("GET", "/v1/models", headers={"Accept": "application/json"})
            reply = connection.getresponse()
            answer = reply.status, reply.read(1 << 20)
        finally:
            end.cancel()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return None if late.is_set() else answer


def _hang_up(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
