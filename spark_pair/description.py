"""The pair description: which two hosts, which model servers, which patience.

`parse` turns the JSON of `/etc/spark-pair/pair.json` (or the same mapping built on the controller)
into frozen dataclasses, and refuses what it does not understand with one sentence that names the
key and the value. Standard library only: the controller's filter plugin, the module that observes
a bare host and the switch all use this file.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from .errors import DescriptionError

SCHEMA = 1
NONE = "none"
"""The server name that stands for "no server": a legal fallback and a legal target."""

Role = Literal["head", "worker"]
ROLES: tuple[Role, Role] = ("head", "worker")

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_UNIT = re.compile(r"[A-Za-z0-9:_.@-]+\.(service|timer|socket|path|target)")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_USER = re.compile(r"[a-z_][a-z0-9_.-]*\$?")
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")
_HASH = re.compile(r"[0-9a-f]{12}")
_REVISION = re.compile(r"[0-9a-f]{7,40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def other(role: Role) -> Role:
    """Return the role of the peer."""
    return "worker" if role == "head" else "head"


@dataclass(frozen=True)
class Host:
    """One machine of the pair. `addresses` are tried in order: management, rail 0, rail 1."""

    name: str
    user: str
    home: str
    addresses: tuple[str, ...]
    port: int = 22
    rails: tuple[str, ...] = ()
    """Interfaces of the rails, where the inventory names them."""


@dataclass(frozen=True)
class Policy:
    """How patient the switch is. All in seconds, but for `restart_limit` (a count)."""

    quiet_period: float = 60
    sample_interval: float = 1
    drain_deadline: float = 3600
    drain_deadline_operator: float = 600
    dead_after: float = 180
    prefill_allowance: float = 300
    long_request_allowance: float = 900
    stop_timeout: float = 180
    release_timeout: float = 180
    resume_wait: float = 1800
    restart_limit: int = 2
    restart_window: float = 3600
    peer_timeout: float = 15


@dataclass(frozen=True)
class Api:
    """Where a server answers: asked from the host it runs on, over loopback."""

    host: Role
    port: int
    model: str
    scheme: str = "http"
    key_file: str | None = None


@dataclass(frozen=True)
class Metrics:
    """Names of the gauges and counters; `progress` are counters that move when work is done."""

    running: str
    waiting: str
    path: str = "/metrics"
    progress: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unit:
    """A systemd unit on one host."""

    host: Role
    unit: str


@dataclass(frozen=True)
class Keeper:
    """A unit that revives a server: stopped first, brought back last (or never)."""

    host: Role
    unit: str
    restore: str = "as_found"


@dataclass(frozen=True)
class Rank:
    """One rank's container."""

    host: Role
    container: str


@dataclass(frozen=True)
class Port:
    """A TCP port that must be free when the server is stopped."""

    host: Role
    port: int


@dataclass(frozen=True)
class Command:
    """A command run as the host's `user`; `{generation}` in argv is the generation's path."""

    host: Role
    argv: tuple[str, ...]
    timeout: float = 180


@dataclass(frozen=True)
class Commands:
    """The recipe's own scripts, where a server has them."""

    dry_run: Command | None = None
    stop: Command | None = None


@dataclass(frozen=True)
class Context:
    """The context length the server must report in its ready line."""

    expect: int
    source: str = "log"


@dataclass(frozen=True)
class Probe:
    """One real request that must yield text."""

    body: Mapping[str, Any]
    timeout: float = 60
    accept: tuple[str, ...] = ("content",)


@dataclass(frozen=True)
class Generation:
    """A prepared configuration; `current` is the link that the switch flips to `path`."""

    hash: str
    path: str
    current: str


@dataclass(frozen=True)
class Files:
    """Files by a pattern over their paths, `*` crosses `/`; at least `count` must match."""

    pattern: str
    count: int


@dataclass(frozen=True)
class Weights:
    """What a server's weights must be made from: commits, or their beginnings."""

    checkpoint: str
    overlay: str | None = None
    """None for stock weights."""
    engram: str | None = None
    """Of the Engram tables; None when they are not asked about."""
    engram_files: tuple[Files, ...] = ()
    """What of them must be there."""


@dataclass(frozen=True)
class Server:
    """A model server of the pair."""

    name: str
    api: Api
    probe: Probe
    units: tuple[Unit, ...]
    metrics: Metrics | None = None
    keepers: tuple[Keeper, ...] = ()
    ranks: tuple[Rank, ...] = ()
    images: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    commands: Commands = field(default_factory=Commands)
    context: Context | None = None
    memory_gate_gib: float | None = None
    ready_timeout: float = 1800
    unit_stop_timeout: float = 120
    generation: Generation | None = None
    weights: Weights | None = None
    """None where it is not asked what the machines hold."""
    accept_dry_run: str | None = None
    """sha256 of the one output of the dry run that is accepted although it is not understood."""
    expect_drafts: bool = False
    """Whether a start without draft tokens is a failed one."""

    def units_on(self, role: Role) -> list[str]:
        """Names of this server's units on one host."""
        return [unit.unit for unit in self.units if unit.host == role]

    def ranks_on(self, role: Role) -> list[str]:
        """Names of this server's containers on one host."""
        return [rank.container for rank in self.ranks if rank.host == role]

    def ports_on(self, role: Role) -> list[int]:
        """Ports that this server listens on at one host."""
        return [port.port for port in self.ports if port.host == role]


@dataclass(frozen=True)
class PairDescription:
    """Everything the switch needs to know, without today's variables or secrets."""

    pair: str
    me: Role
    hosts: Mapping[Role, Host]
    wanted: str
    fallback: str
    policy: Policy
    servers: Mapping[str, Server]

    def server(self, name: str) -> Server:
        """Return the server of that name; raises DescriptionError naming the known ones."""
        try:
            return self.servers[name]
        except KeyError:
            known = ", ".join([*self.servers, NONE])
            raise DescriptionError(
                f"there is no model server named {name!r}; this pair knows {known}"
            ) from None

    def host_name(self, role: Role) -> str:
        """Name of the machine that plays `role`."""
        return self.hosts[role].name

    def all_units(self) -> set[str]:
        """Every unit the tool may start or stop anywhere."""
        named: set[str] = set()
        for server in self.servers.values():
            named |= {unit.unit for unit in server.units}
            named |= {keeper.unit for keeper in server.keepers}
        return named


def load(path: Path) -> PairDescription:
    """Read and parse a description file; raises DescriptionError with the path in it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DescriptionError(
            f"{path} does not exist: this host is not set up yet. Run the playbook site.yml first."
        ) from None
    except (OSError, ValueError) as error:
        raise DescriptionError(f"{path} cannot be read: {error}") from error
    return parse(data)


def parse(data: object) -> PairDescription:
    """Check and convert a description; raises DescriptionError on the first thing wrong."""
    top = _Table("the pair description", data)
    schema = top.integer("schema", minimum=1)
    if schema != SCHEMA:
        raise DescriptionError(
            f"the pair description has schema {schema}, this tool reads schema {SCHEMA}: "
            "install the tool and the description from the same checkout (--tags tools,service)"
        )
    top.only("schema", "pair", "me", "hosts", "wanted", "fallback", "policy", "servers")
    hosts_table = top.table("hosts")
    hosts_table.only(*ROLES)
    hosts = {role: _host(hosts_table.table(role)) for role in ROLES}
    if hosts["head"].name == hosts["worker"].name:
        raise DescriptionError(f"head and worker are both named {hosts['head'].name!r}")
    servers_table = top.table("servers")
    servers = {name: _server(name, servers_table.table(name)) for name in servers_table.names()}
    if not servers:
        raise DescriptionError("servers is empty: the pair description names no model server")
    known = [*servers, NONE]
    return PairDescription(
        pair=top.text("pair"),
        me=top.role("me"),
        hosts=hosts,
        wanted=top.choice("wanted", known),
        fallback=top.choice("fallback", known),
        policy=_policy(top.table("policy")),
        servers=servers,
    )


def _host(table: _Table) -> Host:
    table.only("name", "user", "home", "port", "addresses", "rails")
    addresses = tuple(table.texts("addresses", _ADDRESS))
    if not addresses:
        raise DescriptionError(f"{table.where} has no addresses: the peer could never be asked")
    return Host(
        name=table.text("name"),
        user=table.text("user", _USER),
        home=table.absolute("home"),
        addresses=addresses,
        rails=tuple(table.texts("rails", _INTERFACE)),
        port=table.integer("port", minimum=1, maximum=65535, default=22),
    )


def _policy(table: _Table) -> Policy:
    names = [item.name for item in fields(Policy)]
    table.only(*names)
    values = {
        name: table.number(name, above=0, default=cast(float, getattr(Policy, name)))
        for name in names
        if name != "restart_limit"
    }
    limit = table.integer("restart_limit", minimum=1, default=Policy.restart_limit)
    return Policy(restart_limit=limit, **values)


def _server(name: str, table: _Table) -> Server:
    if not _NAME.fullmatch(name) or name == NONE:
        raise DescriptionError(
            f"{name!r} cannot be the name of a model server: use lower-case letters, digits, "
            f"'-' and '_', and not {NONE!r}"
        )
    table.only(*(item.name for item in fields(Server) if item.name != "name"))
    units = tuple(
        Unit(row.role("host"), row.text("unit", _UNIT))
        for row in table.tables("units", ("host", "unit"))
    )
    if not units:
        raise DescriptionError(f"{table.where} has no units: the switch could not start it")
    return Server(
        name=name,
        api=_api(table.table("api")),
        probe=_probe(table.table("probe")),
        units=units,
        metrics=_metrics(table.table("metrics")) if table.given("metrics") else None,
        keepers=tuple(
            Keeper(
                row.role("host"),
                row.text("unit", _UNIT),
                row.choice("restore", ["as_found", "never"], "as_found"),
            )
            for row in table.tables("keepers", ("host", "unit", "restore"))
        ),
        ranks=tuple(
            Rank(row.role("host"), row.text("container", _CONTAINER))
            for row in table.tables("ranks", ("host", "container"))
        ),
        images=tuple(table.texts("images")),
        ports=tuple(
            Port(row.role("host"), row.integer("port", minimum=1, maximum=65535))
            for row in table.tables("ports", ("host", "port"))
        ),
        commands=_commands(table.table("commands")) if table.given("commands") else Commands(),
        context=_context(table.table("context")) if table.given("context") else None,
        memory_gate_gib=(
            table.number("memory_gate_gib", above=0) if table.given("memory_gate_gib") else None
        ),
        ready_timeout=table.number("ready_timeout", above=0, default=1800),
        unit_stop_timeout=table.number("unit_stop_timeout", above=0, default=120),
        generation=_generation(table.table("generation")) if table.given("generation") else None,
        weights=_weights(table.table("weights")) if table.given("weights") else None,
        accept_dry_run=(
            table.text("accept_dry_run", _SHA256) if table.given("accept_dry_run") else None
        ),
        expect_drafts=table.flag("expect_drafts"),
    )


def _api(table: _Table) -> Api:
    table.only("host", "port", "model", "scheme", "key_file")
    return Api(
        host=table.role("host"),
        port=table.integer("port", minimum=1, maximum=65535),
        model=table.text("model"),
        scheme=table.choice("scheme", ["http", "https"], "http"),
        key_file=table.absolute("key_file") if table.given("key_file") else None,
    )


def _metrics(table: _Table) -> Metrics:
    table.only("path", "running", "waiting", "progress")
    path = table.text("path") if table.given("path") else "/metrics"
    if not path.startswith("/"):
        raise DescriptionError(f"{table.where}.path must start with '/', not {path!r}")
    return Metrics(
        running=table.text("running"),
        waiting=table.text("waiting"),
        path=path,
        progress=tuple(table.texts("progress")),
    )


def _probe(table: _Table) -> Probe:
    table.only("body", "timeout", "accept")
    body = table.table("body")
    messages = body.values.get("messages")
    if not isinstance(messages, list) or not messages:
        raise DescriptionError(f"{body.where}.messages must be a list with at least one message")
    accept = tuple(table.texts("accept")) or ("content",)
    return Probe(
        body=dict(body.values),
        timeout=table.number("timeout", above=0, default=60),
        accept=accept,
    )


def _commands(table: _Table) -> Commands:
    table.only("dry_run", "stop")

    def command(key: str) -> Command | None:
        if not table.given(key):
            return None
        row = table.table(key)
        row.only("host", "argv", "timeout")
        if row.role("host") != "head":
            raise DescriptionError(
                f"{row.where}.host must be head: the switch runs there, and starts this by itself"
            )
        argv = tuple(row.texts("argv"))
        if not argv:
            raise DescriptionError(f"{row.where}.argv must name a program")
        return Command(row.role("host"), argv, row.number("timeout", above=0, default=180))

    return Commands(dry_run=command("dry_run"), stop=command("stop"))


def _context(table: _Table) -> Context:
    table.only("expect", "source")
    return Context(
        table.integer("expect", minimum=1),
        table.choice("source", ["log"], "log"),
    )


def _generation(table: _Table) -> Generation:
    table.only("hash", "path", "current")
    return Generation(table.text("hash", _HASH), table.absolute("path"), table.absolute("current"))


def _weights(table: _Table) -> Weights:
    table.only("checkpoint", "overlay", "engram", "engram_files")
    overlay, engram = (
        table.text(key, _REVISION) if table.given(key) else None for key in ("overlay", "engram")
    )
    files = tuple(
        Files(row.text("pattern"), row.integer("count", minimum=1))
        for row in table.tables("engram_files", ("pattern", "count"))
    )
    return Weights(table.text("checkpoint", _REVISION), overlay, engram, files)


class _Table:
    """A mapping with its place in the description, so that errors can name it."""

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise DescriptionError(f"{where} must be a mapping, not {_show(values)}")
        self.where = where
        self.values: Mapping[str, Any] = values

    def names(self) -> list[str]:
        return [str(key) for key in self.values]

    def given(self, key: str) -> bool:
        return self.values.get(key) is not None

    def only(self, *known: str) -> None:
        for key in self.names():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
                raise DescriptionError(f"{self.where} has an unknown key {key!r}{hint}")

    def _need(self, key: str) -> Any:
        if not self.given(key):
            raise DescriptionError(f"{self.where} lacks {key!r}")
        return self.values[key]

    def _name(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where != "the pair description" else key

    def table(self, key: str) -> _Table:
        return _Table(self._name(key), self._need(key))

    def tables(self, key: str, known: Sequence[str]) -> list[_Table]:
        rows = []
        for index, value in enumerate(self._list(key)):
            row = _Table(f"{self._name(key)}[{index}]", value)
            row.only(*known)
            rows.append(row)
        return rows

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        return self._check_text(self._name(key), self._need(key), pattern)

    def texts(self, key: str, pattern: re.Pattern[str] | None = None) -> list[str]:
        return [
            self._check_text(f"{self._name(key)}[{index}]", value, pattern)
            for index, value in enumerate(self._list(key))
        ]

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise DescriptionError(f"{self._name(key)} must be a list, not {_show(value)}")
        return list(value)

    @staticmethod
    def _check_text(where: str, value: object, pattern: re.Pattern[str] | None) -> str:
        if not isinstance(value, str) or not value.strip() or "\n" in value:
            raise DescriptionError(f"{where} must be one line of text, not {_show(value)}")
        if pattern and not pattern.fullmatch(value):
            raise DescriptionError(
                f"{where} cannot be {_show(value)}: it must match {pattern.pattern}"
            )
        return str(value)

    def absolute(self, key: str) -> str:
        value = self.text(key)
        if not value.startswith("/") or ".." in value.split("/"):
            raise DescriptionError(
                f"{self._name(key)} must be an absolute path (no '~', no '..'), not {_show(value)}"
            )
        return value

    def role(self, key: str) -> Role:
        return cast(Role, self.choice(key, ROLES))

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        if default is not None and not self.given(key):
            return default
        value = self._need(key)
        if value not in known:
            raise DescriptionError(
                f"{self._name(key)} is {_show(value)}, but must be one of {', '.join(known)}"
            )
        return str(value)

    def integer(
        self, key: str, *, minimum: int, maximum: int | None = None, default: int | None = None
    ) -> int:
        if default is not None and not self.given(key):
            return default
        value = self._need(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise DescriptionError(f"{self._name(key)} must be a whole number, not {_show(value)}")
        if value < minimum or (maximum is not None and value > maximum):
            limits = f"{minimum} to {maximum}" if maximum is not None else f"{minimum} or more"
            raise DescriptionError(f"{self._name(key)} is {value}, but must be {limits}")
        return int(value)

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise DescriptionError(f"{self._name(key)} must be true or false, not {_show(value)}")
        return value is True

    def number(self, key: str, *, above: float, default: float | None = None) -> float:
        if default is not None and not self.given(key):
            return default
        value = self._need(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DescriptionError(f"{self._name(key)} must be a number, not {_show(value)}")
        if not above < value < float("inf"):
            raise DescriptionError(f"{self._name(key)} is {value}, but must be more than {above}")
        return value


def _show(value: object) -> str:
    return f"{value!r}"[:80]
