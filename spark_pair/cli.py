"""The command `spark-pair`: what an operator, a play, a unit and the peer call."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import follow, jsonfile, paths, report
from . import state as states
from .description import NONE, ROLES, PairDescription, Role, load
from .errors import (
    BusyError,
    DescriptionError,
    Exit,
    NodeError,
    SparkPairError,
    UnreachableError,
)
from .hostview import View, observe, to_json
from .journal import open_record
from .node import LocalNode, PeerNode, release
from .plan_text import switch_lines
from .switch import run as switching
from .switch.machine import FINISHING, STILL_SERVING, UNTOUCHED, Outcome, Phase
from .system import run
from .verdict import State

_LOADED_WHEN_ASKED = {
    "pool": (".pool_command", "how many requests of a size fit at once"),
    "jobs": (".jobs.commands", "the long work of this host: downloads and the like"),
    "weights": (".weights.commands", "what this host holds of the weights"),
    "image": (".image.commands", "the engines' images on this host"),
}
"""Command -> its module and what it is for. A switch and the peer call this program again and
again, so it imports these only for whoever asks for them."""

_POLL_SECONDS = 0.3
_SILENT_POLLS = 20

_ASK_AGAIN_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser(arguments).parse_args(arguments)
    try:
        return int(options.run(options, arguments))
    except SparkPairError as error:
        print(f"spark-pair: {error}", file=sys.stderr)
        return int(error.exit)
    except PermissionError as error:
        print(f"spark-pair: {error}. Run it as root (sudo spark-pair …)", file=sys.stderr)
        return int(Exit.BAD_INPUT)
    except KeyboardInterrupt:
        print("\nspark-pair: stopped watching; the switch itself goes on", file=sys.stderr)
        return 130


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark-pair",
        description="Moves a pair of machines between model servers.",
        epilog="Exit codes: 0 done or nothing to do, 2 bad input, 10 refused and untouched, "
        "11 gave up and the old one serves, 20 failed and the former serves again, "
        "30 nobody serves, 75 another switch is running.",
    )
    parser.add_argument("--version", action="version", version=f"spark-pair {release()}")
    parser.add_argument("--description", type=Path, default=paths.DESCRIPTION,
                        help=argparse.SUPPRESS)  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_commands(commands)
    for name, (module, words) in _LOADED_WHEN_ASKED.items():
        command = commands.add_parser(name, help=words)
        if name in arguments:
            importlib.import_module(module, __package__).add_verbs(command)
    node = commands.add_parser("node", help="what the peer may ask of this host")
    _add_node_verbs(node.add_subparsers(required=True, metavar="VERB"))
    return parser


def _add_commands(commands: Any) -> None:
    switch = commands.add_parser("switch", help="make NAME the server of the pair")
    _switch_options(switch)
    switch.set_defaults(run=_on_head(_switch))

    one = commands.add_parser("follow", help="what happened in switch ID since event N")
    _follow_options(one)
    one.set_defaults(run=_on_head(_follow))

    one = commands.add_parser("abort", help="back out of the running switch")
    _acting_options(one)
    one.set_defaults(run=_on_head(_abort))

    one = commands.add_parser("resume", help="finish a switch that was cut off")
    _resume_options(one)
    one.set_defaults(run=_resume)

    one = commands.add_parser("probe", help="ask NAME for one real completion")
    one.add_argument("name")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_probe)

    one = commands.add_parser("status", help="who serves, and what is worth noticing")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_status)

    one = commands.add_parser("history", help="past switches with the time of each phase")
    _history_options(one)
    one.set_defaults(run=_on_head(_history))

    one = commands.add_parser("run-switch", help="for spark-pair-switch.service only")
    one.set_defaults(run=_run_switch)


def _switch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help=f"a server of the pair, or {NONE}")
    _acting_options(parser)
    parser.add_argument("--reason", default="by hand")
    whoever = f"{os.environ.get('SUDO_USER', 'root')} on {socket.gethostname()}"
    parser.add_argument("--asked-by", default=whoever)
    parser.add_argument(
        "--drain",
        choices=("keep", "stop"),
        default="keep",
        help="at the drain's deadline: keep the old server, or stop it anyway",
    )
    parser.add_argument("--hold", action="store_true",
                        help="afterwards a plain site.yml stays away from cut-over")  # fmt: skip
    parser.add_argument("--respect-hold", action="store_true", help="do nothing while held")
    parser.add_argument("--no-follow", action="store_true", help="start it and return")


def _follow_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--json", action="store_true")


def _resume_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--boot", action="store_true", help="a machine of the pair was booted")
    _acting_options(parser)


def _acting_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would happen")
    parser.add_argument("--json", action="store_true")


def _history_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--count", type=int, default=10)
    parser.add_argument("--json", action="store_true")


def _add_node_verbs(verbs: Any) -> None:
    for name, action in (("hello", _node_hello), ("observe", _node_observe)):
        verbs.add_parser(name).set_defaults(run=action)
    for name, action in (
        ("load", _node_load),
        ("probe", _node_probe),
        ("without-key", _node_without_key),
        ("images", _node_images),
        ("image-contents", _node_image_contents),
        ("weights", _node_weights),
        ("context", _node_context),
        ("rank", _node_rank),
    ):
        one = verbs.add_parser(name)
        one.add_argument("name")
        one.set_defaults(run=action)
    one = verbs.add_parser("filesystems")
    one.add_argument("paths", nargs="+")
    one.set_defaults(run=_node_filesystems)
    unit = verbs.add_parser("unit")
    unit.add_argument("verb", choices=("start", "stop", "restart"))
    unit.add_argument("unit")
    unit.add_argument("--timeout", type=float, default=120)
    unit.set_defaults(run=_node_unit)
    rank = verbs.add_parser("remove-rank")
    rank.add_argument("container")
    rank.set_defaults(run=_node_remove_rank)
    # What the worker forwards to the head; there it runs as if typed by hand.
    one = verbs.add_parser("switch")
    _switch_options(one)
    one.set_defaults(run=_only_on_head(_switch))
    one = verbs.add_parser("follow")
    _follow_options(one)
    one.set_defaults(run=_only_on_head(_follow))
    one = verbs.add_parser("abort")
    _acting_options(one)
    one.set_defaults(run=_only_on_head(_abort))
    one = verbs.add_parser("resume")
    _resume_options(one)
    one.set_defaults(run=_only_on_head(_resume))
    one = verbs.add_parser("history")
    _history_options(one)
    one.set_defaults(run=_only_on_head(_history))
    verbs.add_parser("head-state").set_defaults(run=_only_on_head(_node_head_state))


Handler = Callable[[argparse.Namespace, list[str]], int]


def _on_head(handler: Handler) -> Handler:
    """Run here on the head; on the worker, pass the very words on to the head."""

    def run(options: argparse.Namespace, arguments: list[str]) -> int:
        description = load(options.description)
        if description.me == "head":
            return handler(options, arguments)
        if "--json" not in arguments:
            print(f"(on {description.host_name('head')})", flush=True)
        words = list(arguments)
        if hasattr(options, "asked_by") and "--asked-by" not in words:
            words += ["--asked-by", options.asked_by]
        return PeerNode(description).stream(words)

    return run


def _only_on_head(handler: Handler) -> Handler:
    """Refuse on the worker, so that two wrong descriptions cannot forward in a circle."""

    def run(options: argparse.Namespace, arguments: list[str]) -> int:
        if load(options.description).me != "head":
            raise DescriptionError(f"this host is the worker; ask the head: {' '.join(arguments)}")
        return handler(options, arguments)

    return run


# ---- commands -----------------------------------------------------------------------------


def _switch(options: argparse.Namespace, _: list[str]) -> int:
    description = load(options.description)
    if options.name != NONE:
        description.server(options.name)
    if options.dry_run:
        return _dry_run(description, options)
    state = states.load()
    if options.respect_hold and state.hold:
        message = f"held since a {state.hold.get('by')}: {state.hold.get('reason')}. "
        if state.serving is None and options.name != NONE:
            message += "NO MODEL SERVER ANSWERS: run 'spark-pair resume' or --tags cutover"
            return _answer(
                options, state="done", exit=int(Exit.NOBODY), changed=False, message=message
            )
        message += "Run --tags cutover to clear it"
        return _answer(options, state="done", exit=0, changed=False, held=True, message=message)
    request = switching.make_request(
        options.name,
        asked_by=options.asked_by,
        reason=options.reason,
        drain=options.drain,
        hold=options.hold,
    )
    switching.submit(request)
    if options.no_follow:
        message = f"switch to {options.name} started"
        return _answer(
            options, id=request["id"], state="running", exit=None, changed=None, message=message
        )
    return _watch(request["id"], quiet=options.json)


def _answer(options: argparse.Namespace, **answer: Any) -> int:
    print(json.dumps(answer) if options.json else answer["message"])
    return int(answer["exit"] or 0)


def _watch(switch_id: str, *, quiet: bool, after: int = 0) -> int:
    """Print the journal's lines until the switch ends; Ctrl-C only stops the watching."""
    seen = after
    silent = 0
    while True:
        # Asking systemd at every poll would cost more than the switch itself.
        going = silent % _SILENT_POLLS != _SILENT_POLLS - 1 or _still_going(switch_id)
        told = follow.progress(paths.JOURNAL, switch_id, seen, running=going)
        silent = silent + 1 if told["next"] == seen else 0
        seen = told["next"]
        if not quiet:
            for line in told["lines"]:
                print(line, flush=True)
        if told["state"] == "done":
            if quiet:
                print(json.dumps(told))
            return int(told["exit"])
        if told["state"] == "lost":
            print(
                f"spark-pair: switch {switch_id} has no process any more; run 'spark-pair resume'",
                file=sys.stderr,
            )
            return int(Exit.NOBODY)
        time.sleep(_POLL_SECONDS)


def _dry_run(description: PairDescription, options: argparse.Namespace) -> int:
    notes: list[str] = []
    outcome, job = switching.dry_run(description, options.name, options.drain, notes.append)
    running = {name for name, item in job.verdicts.items() if item.state is not State.DOWN}
    lines = [f"now      {note}" for note in notes]
    code = Exit.DONE
    if outcome is Outcome.OK:
        lines += switch_lines(description, options.name, running=running, drain=options.drain)
        job.message = f"would switch to {options.name}"
    elif outcome is not Outcome.NOTHING:
        code = Exit.REFUSED
    held = states.load().hold
    if held and options.respect_hold and outcome is Outcome.OK:
        lines = [f"held     since a {held.get('by')}: {held.get('reason')}"]
        job.message = "held: nothing would be done"
    if options.json:
        answer = {
            "exit": int(code),
            "message": job.message,
            "lines": lines,
            "changed": outcome is Outcome.OK and not (held and options.respect_hold),
            "verdicts": {name: str(item.state) for name, item in job.verdicts.items()},
        }
        print(json.dumps(answer))
    else:
        print("\n".join([*lines, job.message]))
    return int(code)


def _follow(options: argparse.Namespace, _: list[str]) -> int:
    told = follow.progress(
        paths.JOURNAL, options.id, options.after, running=_still_going(options.id)
    )
    print(json.dumps(told) if options.json else "\n".join(told["lines"]))
    return 0


def _still_going(switch_id: str) -> bool:
    """Whether a process works on the switch, or is about to: systemd restarts a dead one."""
    waiting = jsonfile.read(paths.REQUEST)
    if (waiting and waiting.get("id") == switch_id) or switching.is_running():
        return True
    shown = run(["systemctl", "show", "--property", "ActiveState", "--value", paths.SWITCH_UNIT],
                timeout=10)  # fmt: skip
    return shown.out.strip() in ("active", "activating", "reloading", "deactivating")


def _abort(options: argparse.Namespace, _: list[str]) -> int:
    if not switching.is_running():
        return _answer(options, exit=0, aborting=None, message="no switch runs; nothing to abort")
    opened = open_record(paths.JOURNAL)
    phase = opened.last_phase if opened else None
    message = f"the switch is in {phase or 'its beginning'}: {_after_abort(phase)}"
    if options.dry_run:
        message = f"would abort; {message}"
    else:
        paths.ABORT.touch()
        message = f"asked to abort; {message}"
    return _answer(options, exit=0, aborting=opened.id if opened else None, message=message)


def _after_abort(phase: str | None) -> str:
    """What comes of an abort in a phase."""
    if phase is None or phase in UNTOUCHED | STILL_SERVING:
        return "nothing was stopped yet, it backs out"
    if phase in FINISHING:
        return "the new server is verified already and stays"
    if phase in (Phase.RECOVER, Phase.CLEAN):
        return "a server is being brought back already"
    return "the former server is brought back"


def _resume(options: argparse.Namespace, arguments: list[str]) -> int:
    description = load(options.description)
    if description.me == "worker":
        if options.boot:
            return _forward_until_heard(description, arguments)
        return PeerNode(description).stream(arguments)
    if options.boot:
        return _resume_after_boot(description, wait=arguments[0] != "node")
    opened = open_record(paths.JOURNAL)
    if opened is None:
        return _answer(options, exit=0, id=None, message="no switch is open; nothing to resume")
    if switching.is_running():
        raise BusyError(f"the switch {opened.id} is still running; nothing to resume")
    if options.dry_run:
        at = switching.resume_point(opened)
        goes_on = "would end" if isinstance(at, Exit) else f"would go on with {at}"
        message = f"the switch to {opened.begin['target']} was cut off in {opened.last_phase}; "
        return _answer(options, exit=0, id=opened.id, message=message + goes_on)
    run(["systemctl", "reset-failed", paths.SWITCH_UNIT], timeout=10)
    run(["systemctl", "start", "--no-block", paths.SWITCH_UNIT], timeout=20)
    return _watch(opened.id, quiet=options.json, after=len(opened.events))


def _resume_after_boot(description: PairDescription, *, wait: bool) -> int:
    """Ask for what a boot needs, once no switch runs: one that runs may not have noticed it.

    Without `wait` whoever asks over ssh asks again himself.
    """
    request = {
        "id": switching.new_id(),
        "kind": "boot",
        "target": description.fallback,
        "asked_by": "boot",
        "reason": "a machine of the pair was booted",
    }
    deadline = time.monotonic() + _longest_switch(description)
    while True:
        try:
            switching.submit(request)
        except BusyError as error:
            if not wait or time.monotonic() >= deadline:
                raise
            print(f"waiting until the switch that runs has ended: {error}", flush=True)
            time.sleep(_ASK_AGAIN_SECONDS)
        else:
            return 0


def _longest_switch(description: PairDescription) -> float:
    """Seconds after which a switch that still runs is no reason to wait any longer."""
    policy = description.policy
    return max(policy.drain_deadline, policy.drain_deadline_operator) + 2 * policy.resume_wait


def _forward_until_heard(description: PairDescription, arguments: list[str]) -> int:
    """After a boot the head may be away, or busy with a switch: try on, then end loudly."""
    began = time.monotonic()
    words = [word for word in arguments if word != "node"]
    while True:
        try:
            done = PeerNode(description).call(words, timeout=120)
        except UnreachableError as error:
            if time.monotonic() >= began + description.policy.resume_wait:
                raise
            print(f"spark-pair: {error}; trying again", file=sys.stderr)
        else:
            sys.stdout.write(done.out)
            sys.stderr.write(done.err)
            if done.code != Exit.BUSY or time.monotonic() >= began + _longest_switch(description):
                return done.code
        time.sleep(_ASK_AGAIN_SECONDS)


def _probe(options: argparse.Namespace, _: list[str]) -> int:
    description = load(options.description)
    server = description.server(options.name)
    here = server.api.host == description.me
    node = LocalNode(description) if here else PeerNode(description)
    result = node.probe(server)
    if options.json:
        print(json.dumps(result.as_dict()))
    elif result.ok:
        print(f"{server.name} generates: {result.text!r} in {result.seconds:.1f} s")
    else:
        print(f"{server.name} does not generate: {result.why} ({result.load.words()})")
    return 0 if result.ok else 1


def _status(options: argparse.Namespace, _: list[str]) -> int:
    description = load(options.description)
    views: dict[Role, View | None] = {
        description.me: observe(description, description.me, ask=True)
    }
    peer = PeerNode(description)
    state: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    try:
        views[peer.role] = _peer_view(description, peer)
        told = _head_state() if description.me == "head" else _ask_head_state(peer)
        state, last = told["state"], told["last_switch"]
    except SparkPairError:
        views.setdefault(peer.role, None)
        if description.me == "head":
            told = _head_state()
            state, last = told["state"], told["last_switch"]
    if options.json:
        known = report.facts(description, views, state, last)
        print(json.dumps({**known, "views": {role: views.get(role) for role in ROLES}}))
    else:
        print(report.pair_table(description, views, state, last))
    return 0


def _peer_view(description: PairDescription, peer: PeerNode) -> View:
    view = peer.observe()
    for name, api in view.get("apis", {}).items():
        if api.get("models_status") is not None:
            with contextlib.suppress(NodeError):  # the rest of the view is still worth showing
                api["probe"] = peer.probe(description.server(name)).as_dict()
    return view


def _head_state() -> dict[str, Any]:
    rows = follow.history(paths.JOURNAL, 1)
    return {"state": jsonfile.read(paths.STATE), "last_switch": rows[-1] if rows else None}


def _ask_head_state(peer: PeerNode) -> dict[str, Any]:
    try:
        told = json.loads(peer.call(["head-state"], 20).out)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        told = {}
    return {"state": told.get("state"), "last_switch": told.get("last_switch")}


def _history(options: argparse.Namespace, _: list[str]) -> int:
    rows = follow.history(paths.JOURNAL, options.count)
    print(json.dumps(rows) if options.json else follow.history_text(rows))
    return 0


def _run_switch(options: argparse.Namespace, _: list[str]) -> int:
    description = load(options.description)
    if description.me != "head":
        raise DescriptionError("the switch runs on the head only")
    return switching.run_unit(description, lambda text: print(text, flush=True))


# ---- node verbs ---------------------------------------------------------------------------


def _print(data: dict[str, Any]) -> int:
    print(to_json(data))
    return 0


def _node(options: argparse.Namespace) -> LocalNode:
    return LocalNode(load(options.description))


def _node_hello(options: argparse.Namespace, _: list[str]) -> int:
    return _print(_node(options).hello())


def _node_observe(options: argparse.Namespace, _: list[str]) -> int:
    return _print(_node(options).observe())


def _node_load(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print(node.load(node.description.server(options.name)).as_dict())


def _node_probe(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print(node.probe(node.description.server(options.name)).as_dict())


def _node_without_key(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print({"answer": node.without_key(node.description.server(options.name))})


def _node_images(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print({"missing": node.missing_images(node.description.server(options.name))})


def _node_image_contents(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print({"contents": node.image_contents(node.description.server(options.name))})


def _node_weights(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print({"problems": node.weight_problems(node.description.server(options.name))})


def _node_context(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print({"context": node.context(node.description.server(options.name))})


def _node_rank(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    return _print(node.rank(node.description.server(options.name)))


def _node_filesystems(options: argparse.Namespace, _: list[str]) -> int:
    return _print(_node(options).filesystems(options.paths))


def _node_unit(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    if options.unit not in node.description.all_units():
        raise DescriptionError(f"{options.unit} is no unit of this pair's model servers")
    if options.verb == "stop":
        node.stop_unit(options.unit, options.timeout)
    else:
        node.start_unit(options.unit, restart=options.verb == "restart")
    return _print({"done": True})


def _node_remove_rank(options: argparse.Namespace, _: list[str]) -> int:
    node = _node(options)
    known = {rank.container for server in node.description.servers.values()
             for rank in server.ranks if rank.host == node.role}  # fmt: skip
    if options.container not in known:
        raise DescriptionError(f"{options.container} is no rank of this pair's model servers")
    node.remove_rank(options.container)
    return _print({"done": True})


def _node_head_state(options: argparse.Namespace, _: list[str]) -> int:
    return _print(_head_state())


if __name__ == "__main__":
    sys.exit(main())
