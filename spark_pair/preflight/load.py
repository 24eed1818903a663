"""Checks of what runs on the machines already: memory, ports, containers, daemons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..description import Server
from . import explain
from .checks import GIB_IN_KIB, Check, HostCheck, Outcome, Sight, fail, gib, ok, unknown, warn
from .collect import NETWORK_FILESYSTEMS, OOM_DAEMONS

SWAP_USED_KIB = GIB_IN_KIB
LITTLE_SPACE = 20 << 30
"""Bytes below which a place is called short; what a download needs its own plan counts."""

MODELS_GIB = {"head": 484, "worker": 289}
"""What checkpoint, Engram tables and rank files take in all, counted byte by byte; what is there
already is part of it. The figures, and those of an overlay, are docs/first-run.md's."""

IMAGE_GIB = 23

# Part of every Ubuntu desktop, and it kills only where a unit asks for it.
_MILD = "systemd-oomd"

_STRANGER_ON_A_PORT = (
    "stop it, give one of the two another port, or, if it is a server of yours, describe it in "
    "model_server_extra"
)

_RESTARTING = ("always", "unless-stopped", "on-failure")


def _memory(sight: Sight) -> Outcome:
    total, available = (sight["meminfo"].get(name) for name in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        return unknown("unknown", "/proc/meminfo has no MemTotal and MemAvailable")
    if sight.description is None:
        return unknown("unknown", "without valid variables it is not known what the server needs")
    words = f"{gib(available)} of {gib(total)} GiB"
    wanted = sight.wanted()
    gate = wanted.memory_gate_gib if wanted else None
    if wanted is None or gate is None:
        return ok(words)
    if total < gate * GIB_IN_KIB:
        return fail(words, f"{gib(total)} GiB in all, and {wanted.name} needs {gate:g} available")
    strangers = [one for one in sight["processes"] if not explain.known(one["owner"], sight)]
    serving = explain.running(sight)
    held = sum(int(one["kib"]) for one in strangers)
    enough = available >= gate * GIB_IN_KIB
    if enough or (serving and total - held >= gate * GIB_IN_KIB):
        return ok(words if enough else f"{words} ({', '.join(serving)})")
    return fail(words, _held_by(sight, strangers, available, f"{wanted.name} needs {gate:g} GiB"))


def _held_by(
    sight: Sight, strangers: Sequence[Mapping[str, Any]], available: int, needs: str
) -> str:
    names = [f"{explain.who(one, sight)} holds {gib(one['kib'])} GiB" for one in strangers[:3]]
    names += [
        f"{explain.who(one, sight)} uses the GPU"
        for one in sight["gpu_processes"] or ()
        if not explain.known(one["owner"], sight)
        and one["pid"] not in {stranger["pid"] for stranger in strangers}
    ][:3]
    if names:
        return (
            f"{needs} and would not find it: {'; '.join(names)}, and no known server does: end it, "
            "or describe it in model_server_extra if it is a server of yours"
        )
    return (
        f"{needs}, {gib(available)} are available and no known server holds the rest: look for "
        "what else uses the GPU (nvidia-smi), and reboot if nothing does, since the driver's "
        "memory is in no process"
    )


def _gpu_processes(sight: Sight) -> Outcome:
    found = sight["gpu_processes"]
    strangers = [one for one in found if not explain.known(one["owner"], sight)]
    if not strangers:
        servers = explain.running(sight)
        return ok(f"{len(found)} ({', '.join(servers)})" if found and servers else str(len(found)))
    return warn(
        explain.who(strangers[0], sight),
        f"{', '.join(explain.who(one, sight) for one in strangers[:3])} on the GPU, of no known "
        "server: it takes memory and time from the one that serves",
    )


def _swap(sight: Sight) -> Outcome:
    total, free = (sight["meminfo"].get(name) for name in ("SwapTotal", "SwapFree"))
    if total is None or free is None:
        return unknown("unknown", "/proc/meminfo has no SwapTotal and SwapFree")
    if not total:
        return ok("none")
    words = f"{gib(total - free)} of {gib(total)} GiB used"
    if total - free >= SWAP_USED_KIB:
        return warn(
            words, "the machine swaps, so memory was short: see what holds it before a switch"
        )
    return ok(words)


def _oom_daemons(sight: Sight) -> Outcome:
    units = sight["units"]
    active = [name for name in OOM_DAEMONS if units.get(f"{name}.service") == "active"]
    if not active:
        return ok("none active")
    words = ", ".join(active)
    if active == [_MILD]:
        return _systemd_oomd(sight["managed_oom"])
    return fail(
        words,
        f"{words} takes a loaded model for an emergency and kills the engine: 'systemctl disable "
        f"--now {' '.join(name for name in active if name != _MILD)}'",
    )


def _systemd_oomd(slices: Sequence[str] | None) -> Outcome:
    if slices is None:
        return warn(
            _MILD,
            "whether systemd-oomd may end the servers is not known: look at 'oomctl', or "
            "'systemctl disable --now systemd-oomd'",
        )
    if not slices:
        return ok(f"{_MILD}, sessions only")
    settings = "; ".join(
        f"systemctl set-property -- {name} ManagedOOMSwap=auto ManagedOOMMemoryPressure=auto"
        for name in slices
    )
    return warn(
        _MILD,
        f"systemd-oomd may end what runs in {' and '.join(slices)}, a loaded model too: "
        f"'{settings}', or 'systemctl disable --now systemd-oomd'",
    )


def _disk(name: str, sight: Sight, need: str = "") -> Outcome:
    place = sight["disks"][name]
    if place["type"] in NETWORK_FILESYSTEMS:
        return fail(
            str(place["type"]),
            f"{place['path']} lies on {place['type']} ({place['mount']}): reads are ten times "
            "slower and shared caches break; put it on a local disk",
        )
    if place["free"] is None:
        return unknown("unknown", f"the free space of {place['path']} could not be read")
    words = f"{place['free'] / (1 << 30):.0f} GiB free ({place['type']}){need}"
    if place["free"] < LITTLE_SPACE:
        return warn(words, f"{place['path']} is short of space ({place['mount']}): make room")
    return ok(words)


def _disk_models(sight: Sight) -> Outcome:
    return _disk("models", sight, f", all files: {MODELS_GIB[sight.role]} GiB")


def _disk_docker(sight: Sight) -> Outcome:
    return _disk("docker", sight, f", the image: {IMAGE_GIB} GiB")


def _disk_state(sight: Sight) -> Outcome:
    return _disk("spark-pair", sight)


def _ports(sight: Sight) -> Outcome:
    if not sight["listeners"]:
        return ok("none here")
    cells, wrong = [], []
    for port, found in sight["listeners"].items():
        servers = [one for one in sight.servers() if one.name in found["servers"]]
        cell, stranger = _port(port, found["held"], servers, sight)
        cells.append(cell)
        if stranger:
            wrong.append(stranger)
    words = ", ".join(cells)
    return fail(words, "; ".join(wrong), _STRANGER_ON_A_PORT) if wrong else ok(words)


def _port(
    port: str, held: Sequence[Mapping[str, Any]], servers: Sequence[Server], sight: Sight
) -> tuple[str, str]:
    """Words about one port, and what is wrong with it."""
    if not held:
        return f"{port} free", ""
    mine = [
        server.name
        for server in servers
        if all(explain.belongs(one["owner"], server, sight) for one in held)
    ]
    if mine:
        return f"{port} {mine[0]}", ""
    strangers = [
        one
        for one in held
        if not any(explain.belongs(one["owner"], server, sight) for server in servers)
    ] or held
    who = ", ".join(explain.who(one, sight) for one in strangers)
    names = " and ".join(server.name for server in servers)
    return (
        f"{port} {strangers[0]['name'] or 'taken'}",
        f"port {port} of {names} is held by {who}",
    )


def _served_name(sight: Sight) -> Outcome:
    names, wrong, unclear = [], [], []
    for server, answer in sight["models"].items():
        expected = answer["expected"]
        if answer["kind"] == "refused":
            continue
        if answer["ids"] is None:
            said = f"HTTP {answer['status']}" if answer["status"] else answer["why"]
            unclear.append(f"port {answer['port']} does not list its models ({said})")
        elif expected in answer["ids"]:
            names.append(str(expected))
        else:
            names += answer["ids"][:1]
            wrong.append(
                f"port {answer['port']} answers as {', '.join(answer['ids']) or 'no model'}, not "
                f"as {expected}: another server holds it, or model_server_extra.{server}.api.model "
                "must be corrected"
            )
    words = ", ".join(names)
    if wrong:
        return fail(words or "no model", "; ".join(wrong))
    if unclear:
        return unknown(words or "?", "; ".join(unclear))
    return ok(words or "none answers")


def _restart_policies(sight: Sight) -> Outcome:
    ranks = {name for server in sight.servers() for name in server.ranks_on(sight.role)}
    found = [
        one
        for one in sight["containers"]
        # What the switch starts and stops itself it also keeps stopped.
        if one["gpu"] and one["policy"] in _RESTARTING and one["name"] not in ranks
    ]
    if not found:
        return ok("none")
    names = " ".join(one["name"] for one in found)
    return warn(
        names,
        f"Docker starts {names} again by itself, onto a GPU that another server may hold by then: "
        f"'docker update --restart no {names}'",
    )


LOAD: tuple[Check, ...] = (
    HostCheck(
        "memory",
        "memory available",
        "The memory that the wanted server needs is there, or a known server that will be stopped "
        "holds it. Held by anybody else it is a failure.",
        guards=(2, 18),
        needs=("meminfo", "processes", "units", "containers"),
        uses=("gpu_processes",),
        judge=_memory,
    ),
    HostCheck(
        "gpu_processes",
        "processes on the GPU",
        "Only known servers use the GPU.",
        guards=(2,),
        needs=("gpu_processes", "units", "containers"),
        judge=_gpu_processes,
    ),
    HostCheck(
        "swap",
        "swap",
        "The machine does not swap (less than 1 GiB).",
        guards=(2,),
        needs=("meminfo",),
        judge=_swap,
    ),
    HostCheck(
        "oom_daemons",
        "out-of-memory daemons",
        f"None of {', '.join(OOM_DAEMONS)} is active; the last one may be where it is set to end "
        "users' sessions only.",
        guards=(15,),
        needs=("units",),
        uses=("managed_oom",),
        judge=_oom_daemons,
    ),
    HostCheck(
        "disk_models",
        "disk of the models",
        "The Hugging Face cache lies on a local disk with room.",
        guards=(47,),
        needs=("disks",),
        judge=_disk_models,
    ),
    HostCheck(
        "disk_docker",
        "disk of Docker",
        "Docker's data lies on a local disk with room.",
        needs=("disks",),
        judge=_disk_docker,
    ),
    HostCheck(
        "disk_state",
        "disk of the switch's journal",
        "`/var/lib/spark-pair` lies on a local disk with room.",
        needs=("disks",),
        judge=_disk_state,
    ),
    HostCheck(
        "ports",
        "ports of the servers",
        "Each port of a known server, the ranks' too, is free or held by that server's own unit or "
        "container.",
        guards=(36, 17),
        needs=("listeners", "units", "containers"),
        judge=_ports,
    ),
    HostCheck(
        "served_name",
        "names they serve under",
        "Whoever answers on a known server's port lists that server's model.",
        guards=(36,),
        needs=("models",),
        judge=_served_name,
    ),
    HostCheck(
        "restart_policies",
        "restarting GPU containers",
        "No container with the GPU is started again by Docker itself, ranks of known servers "
        "apart.",
        guards=(13,),
        needs=("containers",),
        judge=_restart_policies,
    ),
)
