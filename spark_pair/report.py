"""One readable table a pair: who serves, since when, verified by what, what is left to notice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .description import ROLES, PairDescription, Role, Server
from .hostview import View
from .metrics import load_from_dict
from .probe import result_from_dict
from .verdict import State, Verdict, presence


def verdict_of(
    server: Server, views: Mapping[Role, View | None], description: PairDescription
) -> Verdict:
    """Verdict from views alone: one probe at most, so a failed one is said as it is."""
    found = presence(server, views, description)
    if found.state is not State.UP:
        return found
    api = (views.get(server.api.host) or {}).get("apis", {}).get(server.name) or {}
    asked = api.get("probe")
    if not asked:
        return Verdict(State.UP, "all parts run; no completion was asked")
    result = result_from_dict(asked)
    if result.ok:
        return Verdict(State.SERVING, f"a completion took {result.seconds:.1f} s")
    waiting = result.load.waiting
    if result.kind == "timeout" and waiting:
        return Verdict(State.BUSY, f"a completion had to queue ({result.load.words()})")
    if result.kind == "mismatch":
        return Verdict(State.MISMATCH, result.why)
    return Verdict(State.UP, f"but it does not generate: {result.why}")


def facts(
    description: PairDescription,
    views: Mapping[Role, View | None],
    state: Mapping[str, Any] | None,
    last_switch: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The table's content as data (`spark-pair status --json`)."""
    found = {
        name: verdict_of(server, views, description) for name, server in description.servers.items()
    }
    serving = [name for name, item in found.items() if item.state in (State.SERVING, State.BUSY)]
    return {
        "pair": description.pair,
        "wanted": description.wanted,
        "fallback": description.fallback,
        "serving": serving,
        "verdicts": {
            name: {"state": str(item.state), "why": item.why} for name, item in found.items()
        },
        "restart_needed": restart_needed(description, views, found),
        "hold": (state or {}).get("hold"),
        "recorded": (state or {}).get("serving"),
        "last_switch": dict(last_switch) if last_switch else None,
        "unreachable": [description.host_name(role) for role in ROLES if views.get(role) is None],
    }


def restart_needed(
    description: PairDescription,
    views: Mapping[Role, View | None],
    found: Mapping[str, Verdict],
) -> dict[str, dict[str, str | None]]:
    """Servers that run in another generation than the one that is prepared."""
    late: dict[str, dict[str, str | None]] = {}
    for name, server in description.servers.items():
        if server.generation is None or found[name].state in (State.DOWN, State.UNKNOWN):
            continue
        head = views.get("head") or {}
        running = head.get("generations", {}).get(name)
        if head and running != server.generation.hash:
            late[name] = {"running": running, "wanted": server.generation.hash}
    return late


def pair_table(
    description: PairDescription,
    views: Mapping[Role, View | None],
    state: Mapping[str, Any] | None,
    last_switch: Mapping[str, Any] | None,
) -> str:
    """Render the table. `None` for a view is a host that could not be asked."""
    known = facts(description, views, state, last_switch)
    rows: list[tuple[str, str]] = [("pair", description.pair), ("serves", _serves(known))]
    for name, server in description.servers.items():
        rows.append((name, _server_line(description, server, views, known)))
        rows += _rank_rows(description, server, views, known)
    rows += _host_rows(description, views)
    rows.append(("wanted", f"{description.wanted} (fallback {description.fallback})"))
    rows.append(("hold", _hold(known["hold"])))
    for name, late in known["restart_needed"].items():
        rows.append(
            ("restart needed", f"{name} runs generation {late['running']}, "
             f"prepared is {late['wanted']}: --tags cutover")
        )  # fmt: skip
    rows.append(("last switch", _last(last_switch)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _serves(known: Mapping[str, Any]) -> str:
    if not known["serving"]:
        if known["unreachable"]:
            return f"unknown: {' and '.join(known['unreachable'])} cannot be reached"
        return "nobody"
    name = str(known["serving"][0])
    recorded = known["recorded"] or {}
    since = ""
    if recorded.get("server") == name and recorded.get("since"):
        since = f" since {_when(recorded['since'])}"
    verified = known["verdicts"][name]["why"]
    return f"{' AND '.join(known['serving'])}{since}; verified just now: {verified}"


def _server_line(
    description: PairDescription,
    server: Server,
    views: Mapping[Role, View | None],
    known: Mapping[str, Any],
) -> str:
    found = known["verdicts"][server.name]
    words = str(found["state"]) + (f" ({found['why']})" if found["why"] else "")
    if found["state"] in (State.DOWN, State.UNKNOWN):
        return words
    api = (views.get(server.api.host) or {}).get("apis", {}).get(server.name) or {}
    load = load_from_dict(api.get("load"))
    words += f"; port {server.api.port} on {description.host_name(server.api.host)}"
    if server.metrics:
        words += f"; {load.words()}"
    if api.get("context"):
        words += f"; context {api['context']}"
    return words


def _rank_rows(
    description: PairDescription,
    server: Server,
    views: Mapping[Role, View | None],
    known: Mapping[str, Any],
) -> list[tuple[str, str]]:
    if known["verdicts"][server.name]["state"] in (State.DOWN, State.UNKNOWN):
        return []
    rows = []
    for number, rank in enumerate(server.ranks):
        containers = (views.get(rank.host) or {}).get("containers") or {}
        state = containers.get(rank.container, {}).get("state", "absent")
        where = f"{rank.container} on {description.host_name(rank.host)}"
        rows.append((f"- rank {number}", f"{where}: {state}"))
    return rows


def _host_rows(
    description: PairDescription, views: Mapping[Role, View | None]
) -> list[tuple[str, str]]:
    rows = []
    for role in ROLES:
        view = views.get(role)
        if view is None:
            text = "cannot be reached"
        elif view.get("memory") is None:
            text = "memory unknown"
        else:
            memory = view["memory"]
            text = f"{memory['available_gib']:.1f} of {memory['total_gib']:.1f} GiB available"
        rows.append((f"{description.host_name(role)} ({role})", text))
    return rows


def _hold(hold: Mapping[str, Any] | None) -> str:
    if not hold:
        return "none"
    return (
        f"since {_when(hold.get('since'))} by {hold.get('by')}: {hold.get('reason')} "
        "(a plain run stops before cut-over; --tags cutover clears it)"
    )


def _last(last: Mapping[str, Any] | None) -> str:
    if not last:
        return "none"
    ended = "still open" if last["exit"] is None else f"exit {last['exit']}"
    return f"{_when(last['time'])} to {last['target']}: {ended}; {last['message']}"


def _when(stamp: object) -> str:
    if not isinstance(stamp, int | float):
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp))
