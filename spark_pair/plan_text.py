"""What a switch would do, phase by phase, in words. Pure: needs the description only."""

from __future__ import annotations

from collections.abc import Collection

from .description import NONE, PairDescription, Server


def switch_lines(
    description: PairDescription,
    target: str,
    *,
    running: Collection[str] | None = None,
    drain: str = "keep",
) -> list[str]:
    """One or more lines a phase, naming hosts and units.

    `running` are the servers known to run; None means that nobody has looked (a bare pair), and
    every other server is then named as one that would be stopped if it runs.
    """
    policy = description.policy
    named = [server for server in description.servers.values() if server.name != target]
    stopping = [server for server in named if running is None or server.name in running]
    if running is not None and target in running:
        stopping.append(description.server(target))
    condition = " (if it runs)" if running is None else ""
    lines = [
        f"observe  both machines: {_both(description)}",
        f"refuse   unless every check of {target} passes while the old server still serves",
    ]
    limit = policy.drain_deadline if drain == "keep" else policy.drain_deadline_operator
    end = "give up" if drain == "keep" else "stop anyway"
    for server in stopping:
        lines.append(
            f"drain    {server.name}{condition}: 0 running and 0 waiting for "
            f"{policy.quiet_period:g} s in a row; after {limit:g} s {end}"
        )
    lines.append(f"arm      journal and its disk room on {description.host_name('head')}")
    for server in description.servers.values():
        for keeper in server.keepers:
            lines.append(
                f"keepers  stop {keeper.unit} on {description.host_name(keeper.host)} (if active)"
            )
    for server in stopping:
        lines += _stop_lines(description, server, condition)
    if target == NONE:
        lines.append("start    nothing: no model server is wanted")
    else:
        lines += _start_lines(description, description.server(target))
    lines.append(f"commit   {target}")
    if description.fallback != NONE:
        again = " again" if target == description.fallback else ""
        lines.append(f"(failure after stop: the former server, else {description.fallback}{again})")
    return lines


def _both(description: PairDescription) -> str:
    return f"{description.host_name('head')} (head), {description.host_name('worker')} (worker)"


def _stop_lines(description: PairDescription, server: Server, condition: str) -> list[str]:
    lines = [
        f"stop     {unit.unit} on {description.host_name(unit.host)}{condition}; never disabled"
        for unit in reversed(server.units)
    ]
    lines += [
        f"stop     verify: no container {rank.container} on {description.host_name(rank.host)}"
        for rank in server.ranks
    ]
    lines += [
        f"stop     verify: port {port.port} free on {description.host_name(port.host)}"
        for port in server.ports
    ]
    return lines


def _start_lines(description: PairDescription, server: Server) -> list[str]:
    lines = []
    if server.memory_gate_gib is not None:
        lines.append(f"release  wait for {server.memory_gate_gib:g} GiB available on both machines")
    if server.generation:
        lines.append(f"start    {server.generation.current} -> {server.generation.path}")
    lines += [
        f"start    {unit.unit} on {description.host_name(unit.host)}" for unit in server.units
    ]
    lines.append(
        f"verify   a completion from {server.api.model} on "
        f"{description.host_name(server.api.host)}:{server.api.port}"
    )
    if server.context:
        lines.append(f"verify   a context of {server.context.expect}")
    lines += [
        f"restore  {keeper.unit} on {description.host_name(keeper.host)} (if it was active)"
        for keeper in server.keepers
        if keeper.restore == "as_found"
    ]
    return lines
