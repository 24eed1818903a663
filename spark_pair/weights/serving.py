"""Whether weights may be worked on while a model server runs, and how gently. Pure.

A server without ranks of the engine leaves room beside it, so work goes on within limits; what
needs a container of its own only where its memory and a reserve are left. A server with ranks fills
the memory of both machines: work there is refused unless the operator allows it. What cannot be
told counts as running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..description import PairDescription, Role
from ..hostview import View
from ..jobs.units import Caps
from ..verdict import State, presence
from .budget import GIB
from .variables import Limits, Settings

UNDO = "undo-"
"""Beginning of the id of a step that takes the overlay out again, which needs no container."""

BUILD = "build-image-head"
"""Id of the step that builds an image: no container of ours, and as much of a load."""

RESERVE_BYTES = 8 * GIB
"""What must stay available beside a server once a container has taken all that it may."""

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


@dataclass(frozen=True)
class Container:
    """What a step runs in, as far as a server beside it may suffer."""

    role: Role
    """Place of its machine in the pair."""
    memory_bytes: int
    """All that it may take."""
    variable: str
    """The setting that says so."""


def container(step: Mapping[str, Any], settings: Settings) -> Container | None:
    """What a step of the plan runs in (`id`, `kind`, `host`); None when that is none."""
    if step["id"] == BUILD:
        return Container(step["host"], settings.build_memory_bytes, "engine_image_build_memory_gib")
    if step["kind"] == "shard":
        return Container(step["host"], settings.cut.memory_bytes, "rank_files_memory_gib")
    grafts = step["kind"] == "graft" and not step["id"].startswith(UNDO)
    if grafts and settings.options.graft == "recipe":
        return Container(step["host"], settings.graft.memory_bytes, "ablit_graft_memory_gib")
    return None


def limits(step: Mapping[str, Any], settings: Settings) -> tuple[str, Limits]:
    """What a step of the plan may take beside a server, with the name of the setting."""
    if step["id"] == BUILD:
        variable = "hf_transfer_while_serving and engine_image_build_memory_gib"
        return variable, replace(settings.transfer.limits, memory_max=settings.build_memory_bytes)
    if step["kind"] == "download":
        return "hf_download_while_serving", settings.limits
    return "hf_transfer_while_serving", settings.transfer.limits


def decide(
    description: PairDescription | None,
    views: Mapping[Role, View | None],
    switching: Sequence[str],
    *,
    allowed: bool,
    container: Container | None = None,
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
            "No work on weights or images beside a server that fills the memory: "
            f"{'; '.join(heavy)}. "
            "Switch to the other server or to none (--tags rollback, --tags stop_incumbent), or "
            "accept the risk with weights_allow_while_serving=true. Nothing was started"
        )
    said = _no_room(container, views.get(container.role), words) if running and container else ""
    return Decision(said) if said else Decision(capped=bool(running), words=words)


def _no_room(container: Container, view: View | None, running: str) -> str:
    """Why a container may not be started beside what runs; "" when there is room for it."""
    memory = view["memory"] if view is not None else None
    need = (container.memory_bytes + RESERVE_BYTES) / GIB
    available = memory["available_gib"] if memory is not None else None
    if available is not None and available >= need:
        return ""
    there = "is not known" if available is None else f"is {available:.1f} GiB"
    return (
        f"What may take up to {container.memory_bytes / GIB:g} GiB ({container.variable}) is not "
        f"started beside a server ({running}) unless {need:g} GiB are available, and on the "
        f"{container.role} that {there}. Stop the server first (--tags stop_incumbent), or lower "
        "the setting. Nothing was started"
    )


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
