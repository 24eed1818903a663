"""Whether weights may be worked on while a model server runs, and how gently. Pure.

A server without ranks of the engine leaves room beside it, so work goes on within limits. One with
ranks fills the memory of both machines: a download there is refused unless the operator allows it.
What cannot be told counts as running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..description import PairDescription, Role
from ..hostview import View
from ..jobs.units import Caps
from ..verdict import State, presence
from .budget import GIB

READING = Caps(memory_max=2 * GIB, io_weight=20, cpu_weight=20)
"""For whatever reads all the weights again, always: a pass over 400 GB shall neither push a
server's files out of the page cache nor be felt by it, and beside nobody it costs nothing."""


@dataclass(frozen=True)
class Decision:
    """What follows from who serves."""

    refused: str = ""
    """Why nothing may be started now; empty when it may."""
    capped: bool = False
    """Whether the work keeps within limits."""
    words: str = ""
    """Who serves, for people; empty when nobody does."""


def decide(
    description: PairDescription | None,
    views: Mapping[Role, View | None],
    switching: Sequence[str],
    *,
    allowed: bool,
) -> Decision:
    """`switching` are words about a switch at work, `allowed` is the operator's own decision."""
    if said := beside_a_switch(switching):
        return Decision(said)
    if description is None:
        running = heavy = ["which servers run is not known"]
    else:
        running, heavy = _running(description, views)
    words = "; ".join(running)
    if heavy and not allowed:
        return Decision(
            f"No work on the weights beside a server that fills the memory: {'; '.join(heavy)}. "
            "Switch to the other server or to none (--tags rollback, --tags stop_incumbent), or "
            "accept the risk with weights_allow_while_serving=true. Nothing was started"
        )
    return Decision(capped=bool(running), words=words)


def beside_a_switch(switching: Sequence[str]) -> str:
    """Why nothing may be started while a switch is at work; "" when none is."""
    if not switching:
        return ""
    return (
        f"A switch is at work ({'; '.join(switching)}), and nothing else may load the machines "
        "meanwhile. Run again when it has ended; 'spark-pair status' on either machine tells"
    )


def _running(
    description: PairDescription, views: Mapping[Role, View | None]
) -> tuple[list[str], list[str]]:
    """What may be at work in words, and which of that consists of ranks."""
    running, heavy = [], []
    for name, server in sorted(description.servers.items()):
        found = presence(server, views, description)
        if found.state is State.DOWN:
            continue
        words = f"{name} runs" if found.state is State.UP else f"{name} is {found}"
        running.append(words)
        if server.ranks:
            heavy.append(words)
    return running, heavy
