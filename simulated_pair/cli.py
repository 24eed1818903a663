"""The verbs of the simulated pair.

Exit codes: 0 done, 1 failed (one line says why), 2 wrong usage; `exec` passes the command's own on.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from simulated_pair import hub, image, ledger, machines, serving
from simulated_pair.hikari import ensure_hikari, reset_pair
from simulated_pair.naming import VARIABLE, Machine, Pair, number_asked_for, pair_of
from simulated_pair.outer import PairError, Podman, on_each, say

HOSTS = ("spark-033f", "spark-5bf0")
COMPONENTS = ("engine", "recipe", "hikari", "memory", "sysfs", "nvidia", "rdma", "hub")


@contextlib.contextmanager
def alone(pair: Pair) -> Iterator[None]:
    """Hold the pair's lock: two commands that make or remove machines must not run at once."""
    pair.state.mkdir(parents=True, exist_ok=True)
    with (pair.state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("pair", "another command is at work on this pair; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(pair: Pair, podman: Podman) -> None:
    """Bring the pair up, from whatever state it is in, until Hikari answers."""
    name = image.ensure(pair, podman)
    try:
        started = machines.ensure_running(pair, name, podman)
    except machines.CannotStartError as error:
        # A killed run can leave addresses reserved for machines that do not exist any more.
        say("pair", f"{error}; removing what is there and making it anew")
        machines.destroy(pair, podman)
        started = machines.ensure_running(pair, name, podman)
    finished = not started and pair.known_hosts.exists()
    if finished and serving.model_that_generates(pair.worker, serving.HIKARI_PORT, 2):
        on_each(pair.machines, lambda machine: machines.wait_for_ssh(pair, machine))
    else:
        machines.prepare(pair, pair.machines, podman)
        ensure_hikari(pair, podman)
    image.forget_older(pair, podman)
    say("pair", "is up: " + ", ".join(f"{m.name} {m.management}" for m in pair.machines))


def stop(pair: Pair, podman: Podman) -> None:
    """Shut both machines down in order; their disks stay."""
    on_each(pair.machines, lambda machine: _shut_down(machine, podman))


def _shut_down(machine: Machine, podman: Podman) -> None:
    say(machine.name, "shutting down")
    podman.run("unpause", machine.container, check=False)
    podman.run("stop", "--ignore", "--time", "20", machine.container)


def destroy(pair: Pair, podman: Podman, with_image: bool) -> None:
    """Remove everything of all pairs of this checkout; the image only if asked."""
    if shutil.which("podman") is None:
        say("pair", "podman is not installed, so there is nothing to remove")
        return
    say("pair", "removing the machines, their disks and networks")
    for one in machines.left_of_any(podman):
        machines.destroy(one, podman)
    if with_image:
        say("image", "removing the images")
        image.remove(pair, podman)


def status(pair: Pair, podman: Podman, as_json: bool) -> None:
    """Print the machines, their addresses and who answers by a real generation."""
    up = machines.running(pair, podman)
    asked = (
        (pair.worker, "hikari", serving.HIKARI_PORT),
        (pair.head, "deepseek", serving.DEEPSEEK_PORT),
    )
    with ThreadPoolExecutor() as pool:
        replies = [
            (server, machine, port, pool.submit(serving.model_that_generates, machine, port, 5))
            for machine, server, port in asked
        ]
    if as_json:
        view = {
            "machines": {
                machine.name: {
                    "running": up[machine.name],
                    "role": machine.role,
                    "user": machine.user,
                    "container": machine.container,
                    "addresses": machine.addresses,
                }
                for machine in pair.machines
            },
            "serving": {server: reply.result() for server, _, _, reply in replies},
        }
        print(json.dumps(view, indent=2))
        return
    for machine in pair.machines:
        state = "up" if up[machine.name] else "down"
        addresses = "  ".join(
            f"{network.interface} {address}"
            for network, address in zip(pair.networks, machine.addresses, strict=True)
        )
        print(f"{machine.name}  {machine.role:<6}  {state:<4}  {machine.user:<7}  {addresses}")
    for server, machine, port, reply in replies:
        model = reply.result()
        words = f"generates as {model}" if model else "does not answer"
        print(f"{server:<8}  http://{machine.management}:{port}  {words}")


def overlap(pair: Pair) -> int:
    """Print every moment at which a machine held two servers; 1 if there was one."""
    found = 0
    for machine in pair.machines:
        try:
            events = ledger.parse((machine.state / "ledger.jsonl").read_text())
        except ledger.LedgerError as error:
            raise PairError(f"{machine.name}: {error}") from error
        except FileNotFoundError as error:
            raise PairError(f"{machine.name} has no ledger: the pair was never started") from error
        for case in ledger.overlaps(events):
            found += 1
            lasted = "until now" if case.seconds is None else f"for {case.seconds:.3f} s"
            print(
                f"{machine.name}: {case.first.server} {case.first.part} and "
                f"{case.second.server} {case.second.part} at once, from {case.start:.3f} {lasted}"
            )
    return 1 if found else 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(
        prog="pair.py", description="The simulated pair of this checkout."
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("image", help="make the machines' image if it is missing or outdated")
    verbs.add_parser("start", help="make and start what is missing, until Hikari answers")
    verbs.add_parser("stop", help="shut both machines down; their disks stay")
    reset = verbs.add_parser("reset", help="back to 'Hikari serves', faults and memory cleared")
    reset.add_argument(
        "--bare", action="store_true", help="also undo whatever a play has configured"
    )
    weights = reset.add_mutually_exclusive_group()
    weights.add_argument(
        "--recorded", dest="weights", action="store_const", const="recorded", default="found",
        help="with --bare: what lies there by hand is on the tool's record, as --tags adopt does",
    )  # fmt: skip
    weights.add_argument(
        "--empty-weights", dest="weights", action="store_const", const="empty",
        help="with --bare: no weights at all, as before the first download",
    )  # fmt: skip
    gone = verbs.add_parser("destroy", help="remove the machines, disks and networks of all pairs")
    gone.add_argument("--image", action="store_true", help="the images too")
    view = verbs.add_parser("status", help="machines, addresses, who answers")
    view.add_argument("--json", action="store_true")
    execute = verbs.add_parser("exec", help="run a command on a machine as root; its exit code")
    execute.add_argument("host", choices=HOSTS)
    execute.add_argument("command", nargs=argparse.REMAINDER)
    for verb, help_text in (
        ("cut-power", "take the power away: nothing is shut down"),
        ("freeze", "let the whole machine hang, connections and all; boot lets it go on"),
        ("boot", "switch the power on and wait for systemd, Docker and sshd"),
    ):
        power = verbs.add_parser(verb, help=help_text)
        power.add_argument("hosts", nargs="+", choices=HOSTS, metavar="HOST")
    link = verbs.add_parser("link", help="pull or plug a cable")
    link.add_argument("host", choices=HOSTS)
    link.add_argument("interface", choices=machines.interfaces(pair_of()))
    link.add_argument("state", choices=("up", "down"))
    fault = verbs.add_parser("fault", help="set a stand-in's fault (a JSON object) or clear it")
    fault.add_argument("host", choices=HOSTS)
    fault.add_argument("component", choices=COMPONENTS)
    fault.add_argument("value", help="a JSON object, or: clear")
    _add_hub(verbs.add_parser("hub", help="the Hub on the head that both machines download from"))
    verbs.add_parser(
        "overlap", help="1 if a machine ever held two servers at once, from its ledger"
    )
    return top


def _add_hub(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="hub_verb", required=True, metavar="VERB")
    begin = verbs.add_parser("start", help="serve, in place of what is served now")
    begin.add_argument("--size", type=int, default=hub.SIZE, help="bytes of all weights together")
    begin.add_argument("--xet", action="store_true", help="large files by Xet as well")
    begin.add_argument("--bytes-per-second", type=float, help="of all content")
    begin.add_argument("--accounts", type=Path, help="a JSON file; see standins/README.md")
    begin.add_argument("--overlay-dtypes-differ", action="store_true", help="from the checkpoint's")
    verbs.add_parser("stop", help="stop serving; the content stays for the next start")


def main(words: list[str] | None = None) -> int:
    """Run one verb."""
    try:
        pair = pair_of()
    except ValueError as error:
        print(f"pair.py: {error}", file=sys.stderr)
        return 2
    asked = parser().parse_args(words)
    podman = Podman(pair.state)
    try:
        if asked.verb == "overlap":
            return overlap(pair)
        if asked.verb != "destroy" and sys.platform != "linux":
            raise PairError("the simulated pair needs Linux: its machines are containers")
        if os.geteuid() != 0:
            become_root()
        podman.configure()
        return _run(asked, pair, podman)
    except PairError as error:
        print(f"pair.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pair.py: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def become_root() -> NoReturn:
    """Start this command again as root by sudo; PairError if there is no sudo."""
    sudo = shutil.which("sudo")
    if sudo is None:
        raise PairError(
            "the simulated pair needs root (its machines run systemd and Docker inside) and there "
            "is no sudo here: run the same command as root"
        )
    # sudo hands no variables on.
    chosen = f"{VARIABLE}={number_asked_for()}"
    words = [sudo, "env", chosen, sys.executable, *sys.argv]
    os.execv(sudo, words)  # noqa: S606 - no shell is the point


def _run(asked: argparse.Namespace, pair: Pair, podman: Podman) -> int:
    if asked.verb == "exec":
        command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
        return _execute(pair.machine(asked.host), command, podman)
    if asked.verb == "status":
        status(pair, podman, asked.json)
    elif asked.verb == "fault":
        value = None if asked.value == "clear" else asked.value
        machines.set_fault(pair.machine(asked.host), asked.component, value)
    elif asked.verb == "link":
        machine = pair.machine(asked.host)
        machines.set_link(pair, machine, asked.interface, asked.state == "up", podman)
    elif asked.verb == "cut-power":
        on_each(_hosts(asked, pair), lambda machine: machines.cut_power(machine, podman))
    elif asked.verb == "freeze":
        on_each(_hosts(asked, pair), lambda machine: machines.freeze(machine, podman))
    else:
        with alone(pair):
            _change(asked, pair, podman)
    return 0


def _change(asked: argparse.Namespace, pair: Pair, podman: Podman) -> None:
    if asked.verb == "image":
        print(image.ensure(pair, podman))
        image.forget_older(pair, podman)
    elif asked.verb == "start":
        start(pair, podman)
    elif asked.verb == "stop":
        stop(pair, podman)
    elif asked.verb == "reset":
        if asked.weights != "found" and not asked.bare:
            raise PairError("--recorded and --empty-weights go with --bare")
        reset_pair(pair, podman, bare=asked.bare, weights=asked.weights)
    elif asked.verb == "destroy":
        destroy(pair, podman, asked.image)
    elif asked.verb == "hub" and asked.hub_verb == "stop":
        hub.stop(pair, podman)
    elif asked.verb == "hub":
        wanted = hub.Wanted(
            asked.size,
            asked.xet,
            asked.bytes_per_second,
            asked.accounts,
            asked.overlay_dtypes_differ,
        )
        hub.start(pair, wanted, podman)
    elif asked.verb == "boot":
        machines.boot(pair, _hosts(asked, pair), podman)


def _hosts(asked: argparse.Namespace, pair: Pair) -> list[Machine]:
    return [pair.machine(name) for name in dict.fromkeys(asked.hosts)]


def _execute(machine: Machine, command: list[str], podman: Podman) -> int:
    if not command:
        raise PairError("exec needs a command after the host's name")
    return subprocess.run(
        [*podman.program, "exec", "--interactive", machine.container, *command],
        env=podman.environment,
        check=False,
    ).returncode
