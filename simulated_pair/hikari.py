"""The pair's starting point: Hikari serves, proven by a generation, and nothing else runs."""

from simulated_pair import hub, ledger, machines, record, serving
from simulated_pair.naming import Machine, Pair
from simulated_pair.outer import PairError, Podman, on_each, say

# Hikari's roles are crossed: its worker runs on the pair's head, its head and API on the pair's
# worker.
WORKER_UNIT = "qwen38fn-miaai-worker.service"
HEAD_UNIT = "qwen38fn-miaai-head.service"
TIMERS = ("qwen38fn-miaai-head-watchdog.timer", "qwen38fn-miaai-metrics.timer")

# Seconds Hikari gets to answer: when it should already, after a machine's boot, after its start.
PROMPTLY, BOOTED, LOADING = 2.0, 4.0, 60.0


def unit_of(pair: Pair, machine: Machine) -> str:
    """Return the Hikari unit that belongs on a machine."""
    return WORKER_UNIT if machine is pair.head else HEAD_UNIT


def ensure_hikari(pair: Pair, podman: Podman) -> None:
    """Let Hikari serve unless something else holds the pair; PairError if it does not answer.

    Two servers at once is what must never happen, so a rank or a running switch on either machine
    is left alone.
    """
    for machine in pair.machines:
        other = podman.run(
            *("exec", machine.container, "sh", "-c"),
            "docker ps --quiet; systemctl is-active spark-pair-switch.service | grep -x active",
            check=False,
        ).stdout.split()
        if other:
            say(
                "pair",
                "DeepSeek or a switch holds it: left alone; to start over: simulated_pair/reset",
            )
            return
    serve(pair, podman, BOOTED)


def serve(pair: Pair, podman: Podman, patience: float) -> None:
    """Let Hikari serve: started where it is down, restarted where it is stuck; its timers last.

    A Hikari whose units run has `patience` seconds to answer.
    """
    running = dict.fromkeys((m.name for m in pair.machines), "")

    def work(machine: Machine) -> None:
        unit = unit_of(pair, machine)
        running[machine.name] = podman.run(
            *("exec", machine.container, "sh", "-c"),
            f"systemctl is-active {unit}; systemctl start --no-block {unit}",
            check=True,
        ).stdout.strip()

    on_each(pair.machines, work)
    ready = all(state == "active" for state in running.values())
    if not ready:
        say("hikari", "starting")
    model = serving.wait_until_it_generates(
        pair.worker, serving.HIKARI_PORT, patience if ready else LOADING
    )
    if model is None or not serving.is_idle(pair.worker, serving.HIKARI_PORT, PROMPTLY):
        say("hikari", "is stuck or holds requests nobody waits for: restarting")
        on_each(pair.machines, lambda machine: _restart(machine, unit_of(pair, machine), podman))
        model = serving.wait_until_it_generates(pair.worker, serving.HIKARI_PORT, LOADING)
    if model is None:
        raise PairError(
            f"Hikari does not generate at http://{pair.worker.management}:{serving.HIKARI_PORT} "
            f"within {LOADING:.0f} s; look at: simulated_pair/pair.py exec {pair.worker.name} "
            f"journalctl -u {HEAD_UNIT}"
        )
    _systemctl(pair.worker, podman, "start", *TIMERS)
    say("hikari", f"generates as {model} at http://{pair.worker.management}:{serving.HIKARI_PORT}")


def _restart(machine: Machine, unit: str, podman: Podman) -> None:
    # What is stuck may ignore a polite end for as long as the unit allows it.
    words = f"systemctl kill --signal KILL {unit} 2>/dev/null; systemctl restart {unit}"
    podman.run("exec", machine.container, "sh", "-c", words)


def _systemctl(machine: Machine, podman: Podman, verb: str, *units: str) -> None:
    podman.run("exec", machine.container, "systemctl", verb, *units)


def reset_pair(pair: Pair, podman: Podman, *, bare: bool, weights: str = "found") -> None:
    """Bring the pair back to where `start` left it; with `bare` its configuration too.

    `weights` counts with `bare` and until the next one: "found" by hand and on no record,
    "recorded" in addition, "empty".
    """
    archive = record.archive()
    for machine in pair.machines:
        for fault in (machine.state / "faults").glob("*"):
            fault.unlink(missing_ok=True)
    up = machines.running(pair, podman)
    down = [machine for machine in pair.machines if not up[machine.name]]
    if down:
        machines.boot(pair, down, podman)

    def clear(machine: Machine) -> None:
        (machine.state / "record.zip").write_bytes(archive)
        words = [
            f"{network.interface}={address}/24={'' if network.internal else network.gateway}"
            for network, address in zip(pair.networks, machine.addresses, strict=True)
        ]
        podman.script(
            machine.container,
            machines.INSIDE / "reset",
            *(machine.home, machine.role, "bare" if bare else "keep", weights, *words),
            subject=machine.name,
        )

    say(
        "pair", "ending whatever runs, faults and memory cleared" + (", bare again" if bare else "")
    )
    on_each(pair.machines, clear)
    hub.forget(pair)
    for machine in pair.machines:
        _shorten_ledger(machine)
    if down:
        # A half of Hikari that stayed up does not find together with the other one again.
        on_each(pair.machines, lambda machine: _restart(machine, unit_of(pair, machine), podman))
        serve(pair, podman, LOADING)
    else:
        serve(pair, podman, PROMPTLY)


def _shorten_ledger(machine: Machine) -> None:
    """Empty a machine's ledger, but for a Hikari that still runs, so that its end finds its start.

    Ranks have all been ended by now, even if the memory daemon has not noted it yet. The file
    itself stays: the stand-ins append to it.
    """
    path = machine.state / "ledger.jsonl"
    running = ledger.still_running(ledger.parse(path.read_text()))
    path.write_text("".join(event.line() for event in running if event.server == "hikari"))
