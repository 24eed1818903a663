"""From the variables of two hosts to the description of their pair.

Pure functions over mappings (on the controller: Ansible's hostvars). Everything about a peer comes
from its inventory variables, never from facts, so that a run with one host down still knows it.
Errors are one sentence: the variable, its value, the host.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from . import description, engine_settings, paths
from .description import NONE, Role
from .errors import DescriptionError
from .weights.manifest import ManifestError, Source

_SECRET = (
    "model_server_api_keys",
    "tensorfold_service_secret_settings",
    "tensorfold_service_engines",
    "hf_download_environment",
)
"""Variables whose value no message shows."""

HostVariables = Mapping[str, Mapping[str, Any]]

INVENTORY_NAMES = ("pair_role", "pair_peer", "spark_user", "spark_home", "cx7_network_rails")
"""Variables of a host that only its inventory can give."""

_SERVER = "model_server_"
_POLICY = tuple(item.name for item in fields(description.Policy))
_PAIR_WIDE = (
    f"{_SERVER}catalog",
    f"{_SERVER}extra",
    f"{_SERVER}wanted",
    f"{_SERVER}fallback",
    *(f"{_SERVER}{name}" for name in _POLICY),
)


def pair_of(host: str, variables: HostVariables) -> dict[Role, str]:
    """Names of both hosts of the pair that `host` belongs to, by role.

    Raises DescriptionError when the inventory does not make a pair of them.
    """
    role = _role(host, variables)
    peer = value_of(host, variables, "pair_peer")
    if not isinstance(peer, str) or not peer:
        raise DescriptionError(
            f"pair_peer is not set for {host}: name the other machine of its pair there"
        )
    if peer == host:
        raise DescriptionError(f"pair_peer of {host} is {peer} itself: name the other machine")
    if peer not in variables:
        near = difflib.get_close_matches(peer, list(variables), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DescriptionError(
            f"pair_peer of {host} is {peer!r}, which is not in the inventory{hint}"
        )
    back = value_of(peer, variables, "pair_peer")
    if back != host:
        raise DescriptionError(
            f"pair_peer of {host} is {peer}, but pair_peer of {peer} is {shown(back)}: "
            "the two machines of a pair must name each other"
        )
    peer_role = _role(peer, variables)
    if peer_role == role:
        raise DescriptionError(
            f"{host} and {peer} both have pair_role {role}: a pair is one head and one worker"
        )
    return {"head": host, "worker": peer} if role == "head" else {"head": peer, "worker": host}


def description_of(host: str, variables: HostVariables) -> dict[str, Any]:
    """Build the content of `/etc/spark-pair/pair.json` for one host, checked."""
    pair = pair_of(host, variables)
    head, worker = pair["head"], pair["worker"]
    _agree(head, worker, variables)
    made = {engine.name: engine for engine in engines_of(head, variables)}
    keys = api_keys_of(head, variables)
    catalog = catalog_of(head, variables)
    for name in (*made, *keys):
        if name not in catalog:
            source = f"{engine_settings.PREFIX}engines" if name in made else f"{_SERVER}api_keys"
            raise DescriptionError(
                f"{source} names {name!r}, which is not in {_SERVER}catalog "
                f"(there: {', '.join(catalog)})"
            )
    servers = {
        name: _server(
            name,
            entry,
            made.get(name),
            name in keys,
            _weights(head, variables, made[name]) if name in made else {},
        )
        for name, entry in catalog.items()
    }
    wanted, fallback = (_choice(head, variables, key, servers) for key in ("wanted", "fallback"))
    result = {
        "schema": description.SCHEMA,
        "pair": f"{head}+{worker}",
        "me": "head" if host == head else "worker",
        "hosts": {role: _host(name, variables) for role, name in sorted(pair.items())},
        "wanted": wanted,
        "fallback": fallback,
        "policy": {name: _number(head, variables, name) for name in _POLICY},
        "servers": servers,
    }
    try:
        description.parse(result)
    except DescriptionError as error:
        raise DescriptionError(f"{_in_variables(str(error))} (pair {head}+{worker})") from error
    return result


def api_keys_of(host: str, variables: HostVariables) -> dict[str, str]:
    """API keys of this host's pair by server: those that were given, and those of the engines.

    For the files that hold them, and for nothing else.
    """
    head = pair_of(host, variables)["head"]
    found: dict[str, str] = {}
    for name, key in mapping_of(head, variables, f"{_SERVER}api_keys").items():
        if not isinstance(key, str) or not key.strip() or "\n" in key:
            raise DescriptionError(
                f"{_SERVER}api_keys.{name} must be one line of text (host {head}; its value is not "
                "shown): set it, or remove the entry"
            )
        found[str(name)] = str(key)
    for name, entry, values in _engine_entries(head, variables):
        try:
            key = engine_settings.api_key(name, entry, values)
        except engine_settings.EngineSettingsError as error:
            raise DescriptionError(f"{error} (host {head})") from error
        if found.get(name, key) != key:
            means = "is another key than the engine's" if key else "is set, but its API is open"
            raise DescriptionError(
                f"{_SERVER}api_keys.{name} {means}: remove it, since the key of an engine is "
                f"{engine_settings.PREFIX}api_key, and the switch uses that one (host {head})"
            )
        if key:
            found[name] = key
    return found


def _engine_entries(
    head: str, variables: HostVariables
) -> list[tuple[str, Mapping[str, Any], dict[str, Any]]]:
    """Name and content of each engine entry, with the variables that it may override."""
    names = [engine_settings.variable_of(key) for key in engine_settings.ENTRY_KEYS]
    values = {name: value_of(head, variables, name) for name in names}
    entries = mapping_of(head, variables, f"{engine_settings.PREFIX}engines")
    for name, entry in entries.items():
        if not isinstance(entry, Mapping):
            raise DescriptionError(
                f"{engine_settings.PREFIX}engines.{name} must be a mapping (host {head})"
            )
    return [(str(name), entry, values) for name, entry in entries.items()]


def engines_of(host: str, variables: HostVariables) -> list[engine_settings.Engine]:
    """The engine entries of this host's pair, checked. They are written to the head."""
    pair = pair_of(host, variables)
    head, worker = pair["head"], pair["worker"]
    catalog = catalog_of(head, variables)
    rails = addresses(worker, variables)[1:]
    place = engine_settings.Place(
        *account_of(head, variables),
        *account_of(worker, variables),
        peer_rail=rails[0] if rails else None,
    )
    found = []
    for name, entry, values in _engine_entries(head, variables):
        timeout = catalog.get(name, {}).get("ready_timeout", description.Server.ready_timeout)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
            raise DescriptionError(
                f"{_SERVER}catalog.{name}.ready_timeout is {shown(timeout)}, but must be a "
                f"number above 0 (host {head})"
            )
        try:
            found.append(
                engine_settings.build_engine(
                    name, entry, values, place=place, ready_timeout=int(timeout)
                )
            )
        except DescriptionError as error:
            raise DescriptionError(f"{error} (host {head})") from error
    _one_key_a_file(head, variables, found)
    return found


def _one_key_a_file(
    head: str, variables: HostVariables, engines: Iterable[engine_settings.Engine]
) -> None:
    """Refuse two engines that would write different keys to one file, where the last one wins."""
    keys = {
        name: engine_settings.api_key(name, entry, values)
        for name, entry, values in _engine_entries(head, variables)
    }
    first: dict[str, str] = {}
    for engine in engines:
        if engine.api_key_path is None:
            continue
        other = first.setdefault(engine.api_key_path, engine.name)
        if keys[other] != keys[engine.name]:
            prefix = engine_settings.PREFIX
            raise DescriptionError(
                f"the engines {other} and {engine.name} have different keys (their values are not "
                f"shown) and one file for them, {engine.api_key_path}: give one of them another "
                f"{prefix}api_key_path or {prefix}state_dir in its entry of {prefix}engines, or "
                f"both the same key (host {head})"
            )


def misspelt(
    names: Iterable[str], known: Iterable[str], prefixes: Iterable[str]
) -> list[tuple[str, str | None]]:
    """Variables that carry a role's prefix but that no role knows, each with the nearest known.

    A misspelt variable would otherwise be ignored in silence and the default used.
    """
    known = {*known, *INVENTORY_NAMES}
    prefixes = tuple(prefixes)
    found: list[tuple[str, str | None]] = []
    for name in sorted(set(names) - known):
        if name.startswith(prefixes):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            found.append((name, near[0] if near else None))
        elif name.startswith(("pair_", "spark_", "cx7_")):
            near = difflib.get_close_matches(name, INVENTORY_NAMES, n=1, cutoff=0.85)
            if near:
                found.append((name, near[0]))
    return found


def addresses(host: str, variables: HostVariables) -> list[str]:
    """Where the peer finds this host: the management address first, then its rails."""
    found = [str(value_of(host, variables, "ansible_host") or host)]
    for index, rail in enumerate(_list(host, variables, "cx7_network_rails")):
        where = f"cx7_network_rails[{index}]"
        if not isinstance(rail, Mapping) or not isinstance(rail.get("address"), str):
            raise DescriptionError(
                f"{where} of {host} must be a mapping with interface and address"
            )
        try:
            found.append(str(ipaddress.ip_interface(rail["address"]).ip))
        except ValueError:
            raise DescriptionError(
                f"{where}.address of {host} is {rail['address']!r}, but must be an address with "
                "its prefix length, such as 192.168.177.11/24"
            ) from None
    return found


def rail_interfaces(host: str, variables: HostVariables) -> list[str]:
    """Interfaces of a host's rails; [] where one of them is not named."""
    found = [rail.get("interface") for rail in _list(host, variables, "cx7_network_rails")]
    return [name for name in found if isinstance(name, str)] if all(found) else []


def _server(
    name: str,
    entry: Mapping[str, Any],
    engine: engine_settings.Engine | None,
    has_key: bool,
    weights: Mapping[str, Any],
) -> dict[str, Any]:
    """One server of the catalogue, completed by its engine where it has one."""
    server = dict(entry)
    api = server.get("api")
    if has_key and isinstance(api, Mapping):
        server["api"] = api = {**api, "key_file": str(paths.key_file(name))}
    if engine is None:
        return server
    if isinstance(api, Mapping):
        server["api"] = {"port": engine.port, "model": engine.model, **api}
        host = api.get("host")
        server.setdefault("ports", [{"host": host, "port": server["api"]["port"]}])
    # More than the unit's own TimeoutStopSec: systemd ends a slow stop script, not we.
    server.setdefault("unit_stop_timeout", 210)
    server.setdefault("units", [{"host": "head", "unit": engine.unit}])
    server.setdefault("images", [engine.image] if engine.image else [])
    server.setdefault("context", {"expect": engine.context, "source": "log"})
    server.setdefault(
        "commands",
        {
            "dry_run": {
                "host": "head",
                "argv": ["{generation}/launch", "DRY_RUN=1", "start.sh"],
                "timeout": 120,
            },
            "stop": {"host": "head", "argv": ["{generation}/launch", "stop.sh"], "timeout": 180},
        },
    )
    server.setdefault("accept_dry_run", engine.accept_dry_run)
    server.setdefault("expect_drafts", engine.expect_drafts)
    server["generation"] = {"hash": engine.hash, "path": engine.path, "current": engine.current}
    if server.get("ranks") and weights:
        server.setdefault("weights", weights)
    return server


def _weights(head: str, variables: HostVariables, engine: engine_settings.Engine) -> dict[str, Any]:
    """What an engine's rank files are to be cut from; {} where no checkpoint is among the sources.

    ABLIT decides which ones the recipe starts with, and it follows from ablit_graft_enabled.
    """
    checkpoint = _source(head, variables, "checkpoint")
    overlay = _source(head, variables, "overlay") if engine.settings["ABLIT"] == "1" else None
    if checkpoint is None or (overlay is None and engine.settings["ABLIT"] == "1"):
        return {}
    engram = _source(head, variables, "engram")
    if engram is not None and set(engram.hosts) != set(description.ROLES):
        engram = None
    return {
        "checkpoint": checkpoint.revision,
        "overlay": overlay.revision if overlay else None,
        "engram": engram.revision if engram else None,
        "engram_files": [
            {"pattern": one.pattern, "count": one.count or 1}
            for one in (engram.files if engram else ())
        ],
    }


def _source(head: str, variables: HostVariables, name: str) -> Source | None:
    """A source of the weights; None when there is none of that name, or it is left out."""
    merged = merge(
        mapping_of(head, variables, "weights_sources"),
        mapping_of(head, variables, "weights_sources_extra"),
    )
    entry = plain(merged.get(name))
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise DescriptionError(f"weights_sources.{name} must be a mapping (host {head})")
    try:
        source = Source.from_dict({**entry, "name": name})
    except ManifestError as error:
        raise DescriptionError(
            f"weights_sources.{name}: {str(error).rstrip('.')} (host {head})"
        ) from error
    return source if source.enabled else None


def _host(host: str, variables: HostVariables) -> dict[str, Any]:
    user, home = account_of(host, variables)
    port = value_of(host, variables, "ansible_port")
    return {
        "name": host,
        "user": user,
        "home": home,
        "port": 22 if port is None else _whole(port),
        "addresses": addresses(host, variables),
        "rails": rail_interfaces(host, variables),
    }


def account_of(host: str, variables: HostVariables) -> tuple[str, str]:
    """The account that runs the servers on a host, and its home."""
    user = value_of(host, variables, "spark_user")
    home = value_of(host, variables, "spark_home")
    if not isinstance(user, str) or not user:
        raise DescriptionError(
            f"spark_user is not set for {host}: name the account that runs the servers there"
        )
    if not isinstance(home, str) or not home.startswith("/") or home == "/":
        raise DescriptionError(
            f"spark_home of {host} is {shown(home)}, but must be the absolute path of its home"
        )
    return user, home.rstrip("/")


def _role(host: str, variables: HostVariables) -> Role:
    role = value_of(host, variables, "pair_role")
    for known in description.ROLES:
        if role == known:
            return known
    raise DescriptionError(
        f"pair_role of {host} is {shown(role)}, but must be head or worker: put the host into the "
        "group spark_head or spark_worker of the inventory"
    )


def catalog_of(head: str, variables: HostVariables) -> dict[str, dict[str, Any]]:
    """The servers of a pair: the catalogue with the operator's corrections merged into it."""
    catalog = mapping_of(head, variables, f"{_SERVER}catalog")
    merged = merge(catalog, mapping_of(head, variables, f"{_SERVER}extra"))
    for name, entry in merged.items():
        if not isinstance(entry, Mapping):
            raise DescriptionError(
                f"{_SERVER}catalog.{name} must be a mapping, not {shown(entry)} (host {head})"
            )
    return {str(name): dict(entry) for name, entry in merged.items()}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings key by key; a list or a plain value replaces what was there."""
    merged = dict(base)
    for key, value in over.items():
        present = merged.get(key)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            merged[key] = merge(present, value)
        else:
            merged[key] = value
    return merged


def _agree(head: str, worker: str, variables: HostVariables) -> None:
    """Refuse variables of the pair as a whole that differ between its hosts."""
    for name in _PAIR_WIDE:
        mine, theirs = value_of(head, variables, name), value_of(worker, variables, name)
        if mine != theirs:
            raise DescriptionError(
                f"{name} is {shown(mine)} for {head} but {shown(theirs)} for {worker}: set it "
                "once for both, in group_vars/spark_pair of the inventory"
            )


def _choice(head: str, variables: HostVariables, key: str, servers: Iterable[str]) -> str:
    name = f"{_SERVER}{key}"
    value = value_of(head, variables, name)
    known = [*servers, NONE]
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DescriptionError(
            f"{name} is {shown(value)}, but must be one of {', '.join(known)}{hint} (host {head})"
        )
    return str(value)


def _number(head: str, variables: HostVariables, key: str) -> float:
    name = f"{_SERVER}{key}"
    raw = value_of(head, variables, name)
    value: Any = raw
    if isinstance(raw, str):  # -e name=2 arrives as text
        try:
            value = float(raw) if "." in raw else int(raw)
        except ValueError:
            value = raw
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        unit = "" if key == "restart_limit" else " of seconds"
        raise DescriptionError(
            f"{name} is {shown(raw)}, but must be a number{unit} above 0 (host {head})"
        )
    return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def mapping_of(host: str, variables: HostVariables, name: str) -> Mapping[str, Any]:
    """A variable that must be a mapping; {} when it is not set."""
    value = value_of(host, variables, name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        words = "what it is now" if name in _SECRET else shown(value)
        raise DescriptionError(f"{name} must be a mapping, not {words} (host {host})")
    return value


def _list(host: str, variables: HostVariables, name: str) -> list[Any]:
    value = value_of(host, variables, name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise DescriptionError(f"{name} must be a list, not {shown(value)} (host {host})")
    return list(value)


def value_of(host: str, variables: HostVariables, name: str) -> Any:
    """A variable of a host; None when it is not set."""
    mine = variables[host]
    if name not in mine:
        return None
    try:
        return mine[name]
    except Exception as error:  # a template that cannot be resolved; the cause differs by caller
        raise DescriptionError(f"{name} of {host} cannot be worked out: {error}") from error


def plain(value: Any) -> Any:
    """Python's own types in place of the template engine's, which are subclasses of them."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _in_variables(message: str) -> str:
    """Speak of the variable that an entry came from, not of the file that is made of it."""
    if message.startswith("servers."):
        return f"{_SERVER}catalog.{message.removeprefix('servers.')}"
    return message


def shown(value: object) -> str:
    """A value as a message names it."""
    return "not set" if value is None else repr(value)[:80]
