"""Running a switch for real: the lock, the request, the journal, resuming what was cut off.

`spark-pair switch` leaves a request and starts `spark-pair-switch.service`; the unit's process
takes the lock and does the work. If it dies, systemd starts it again, and it finds the open journal
instead of a request. So neither the shell nor the controller that asked is needed any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import generation as generations
from .. import jsonfile, paths
from .. import state as states
from ..description import NONE, ROLES, Command, Generation, PairDescription, Role, Server
from ..engine_planned import Declared
from ..errors import BusyError, Exit, NodeError, SparkPairError
from ..follow import STUCK
from ..journal import Event, Journal, Record, open_record, read, trim
from ..links import flip
from ..node import LocalNode, Node, PeerNode, run_as_user
from ..probe import read_key
from ..running import form, generation_of
from ..state import PairState
from ..system import Result, run
from ..verdict import State, Verdict, presence
from .machine import TOUCHED, Outcome, Phase, after, resume_at
from .throttle import restarts
from .work import Work
from .world import BOOTED, Job, Side, World


class RealWorld:
    """The pair itself, seen from the head. `dry` lets nothing be written."""

    def __init__(self, description: PairDescription, job_id: str, *, dry: bool = False) -> None:
        self.description = description
        self.nodes: Mapping[Role, Node] = {
            "head": LocalNode(description, "head"),
            "worker": PeerNode(description),
        }
        self.dry = dry
        self.job_id = job_id
        self.journal = Journal(paths.JOURNAL)

    def now(self) -> float:
        # The boot clock also runs while a machine sleeps, and nobody can set it.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def run_command(self, command: Command, generation: Generation | None) -> Result:
        folder = generation.path if generation else ""
        argv = [word.replace("{generation}", folder) for word in command.argv]
        host = self.description.hosts[command.host]
        return run_as_user(host, argv, command.timeout)

    def current(self, server: Server) -> str | None:
        found = generation_of(server)
        return found.hash if found else None

    def form(self, server: Server, generation: Generation | None) -> Server:
        return form(server, generation)

    def flip(self, generation: Generation) -> None:
        flip(Path(generation.current), Path(generation.path))

    def generation_problem(self, generation: Generation) -> str | None:
        host = self.description.hosts["head"]
        launch = Path(generation.path) / generations.LAUNCH
        if not os.access(launch, os.X_OK):
            return f"{launch} is missing on {host.name}: prepare it first with --tags service"
        changed = generations.changed(Path(generation.path), host.user)
        if changed.only_strays:
            return f"{host.name}: {generations.strays(Path(generation.path), changed)}"
        if changed:
            return (
                f"{generation.path} on {host.name} was changed after it was made "
                f"({', '.join(changed.files)}), and no longer is what its name says: declare the "
                "edit, remove that folder while no server runs from it, then run --tags service"
            )
        return None

    def only_strays(self, generation: Generation) -> bool:
        host = self.description.hosts["head"]
        return generations.changed(Path(generation.path), host.user).only_strays

    def declared(self, generation: Generation) -> Declared | None:
        folder = Path(generation.path)
        manifest: Any = jsonfile.read(folder / generations.MANIFEST)
        found = Declared.read(manifest, generations.local_sh(folder))
        if found is None or not isinstance(manifest.get("server"), str):
            return found
        # The recipe may hand the key on in words of its own, and it is in none of the settings.
        with suppress(OSError, UnicodeError):
            key = read_key(paths.key_file(manifest["server"]))
            return found.hiding("tensorfold_service_api_key", key)
        return found

    def kit_problem(self, generation: Generation) -> str | None:
        # The tool is called again and again during a switch, and only this looks into an image.
        from ..image.served import kit_problem  # noqa: PLC0415

        return kit_problem(Path(generation.path))

    def aborted(self) -> bool:
        return paths.ABORT.exists()

    def record(self, event: Event) -> None:
        if not self.dry:
            self.journal.append({"id": self.job_id, **event})

    def reserve(self) -> None:
        self.journal.reserve()

    def past_the_point(self) -> None:
        self.journal.essential = False

    def save(self, state: PairState) -> None:
        if self.dry:
            return
        try:
            states.save(state)
        except OSError:
            if self.journal.essential:
                raise

    def key_problem(self, server: Server) -> str | None:
        if server.api.key_file is None or server.api.host != self.description.me:
            return None
        try:
            read_key(Path(server.api.key_file))
        except (OSError, UnicodeError) as error:
            return (
                f"the API key of {server.name} cannot be used on "
                f"{self.description.host_name(server.api.host)} ({error}): --tags service writes "
                "it again"
            )
        return None

    def restarts(self, server: str, window: float) -> int:
        return restarts(read(paths.JOURNAL), server, window, now=time.time(), but=self.job_id)

    def why_failed(self, unit: str, role: Role) -> str:
        if role != self.description.me:
            return ""
        shown = run(
            ["systemctl", "show", "--property", "InvocationID", "--value", "--", unit], timeout=10
        )
        # This start's words only: the newest lines of the unit may be an older start's.
        start = f"_SYSTEMD_INVOCATION_ID={shown.out.strip()}"
        log = run(
            ["journalctl", "--lines", "200", "--output", "cat", "--no-pager", start], timeout=15
        )
        lines = [line.strip() for line in log.out.splitlines() if "ERROR" in line]
        return lines[-1] if lines else ""


_TAKEN_WITHIN = 30.0
"""Seconds in which the unit takes a request: it may first wait for the lock, or be restarting."""


def new_id() -> str:
    """A switch's id: UTC time first, so that ids sort as the switches happened."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + uuid.uuid4().hex[:6]


def drive(world: World, work: Work, job: Job, phase: Phase | Exit) -> Exit:
    """Run phases from `phase` on until the machine ends; each is journalled before its work."""
    while isinstance(phase, Phase):
        try:
            phase = after(phase, _journalled(world, work, job, phase))
        except OSError as error:
            # Only the journal raises here, and only while nothing has been touched.
            job.message = f"the journal cannot be written: {error}; nothing was touched"
            world.past_the_point()
            phase = Exit.REFUSED
    ended = "end" if phase is not Exit.NOBODY else STUCK
    world.record(
        {"event": ended, "exit": int(phase), "message": job.message, "changed": job.changed}
    )
    return phase


def _journalled(world: World, work: Work, job: Job, phase: Phase) -> Outcome:
    world.record({"event": "phase", "phase": str(phase)})
    started = world.now()
    outcome = work.run(phase)
    world.record(
        {
            "event": "outcome",
            "phase": str(phase),
            "outcome": str(outcome),
            "seconds": round(world.now() - started, 3),
            "message": job.message,
        }
    )
    return outcome


# ---- requests -----------------------------------------------------------------------------


def make_request(
    target: str, *, asked_by: str, reason: str, drain: str, hold: bool
) -> dict[str, Any]:
    """The request that `spark-pair switch` leaves for the unit."""
    return {
        "id": new_id(),
        "kind": "switch",
        "target": target,
        "asked_by": asked_by,
        "reason": reason,
        "drain": drain,
        "hold": hold,
    }


def submit(request: dict[str, Any]) -> None:
    """Leave the request and start the unit; BusyError when a switch runs or is about to."""
    try:
        # A boot found the pair as it is: its server must come up with a full disk, too.
        if request["kind"] != "boot":
            Journal(paths.JOURNAL).reserve()
    except OSError as error:
        raise NodeError(
            f"no disk room for the journal: {error}. Nothing was touched; free some space first"
        ) from error
    paths.RUN.mkdir(parents=True, exist_ok=True)
    with locked(wait=1.0):
        waiting = jsonfile.read(paths.REQUEST)
        if waiting is not None and time.time() - paths.REQUEST.stat().st_mtime < 10:
            raise BusyError(f"another switch (to {waiting.get('target')}) was asked for just now")
        paths.ABORT.unlink(missing_ok=True)
        jsonfile.write(paths.REQUEST, request, mode=0o600)
    _start_unit(request["id"])


def _start_unit(request_id: str) -> None:
    """Have the unit take the request; NodeError, and no request left behind, if it does not.

    Asked for again until it is taken: a start that meets the unit while it is just ending does
    nothing, and an order that lies about would be carried out at some later, wrong time.
    """
    # A unit that died too often would refuse the operator's next order by its start limit.
    run(["systemctl", "reset-failed", paths.SWITCH_UNIT], timeout=10)
    said = "it did not take the request"
    deadline = time.monotonic() + _TAKEN_WITHIN
    while time.monotonic() < deadline:
        done = run(["systemctl", "start", "--no-block", paths.SWITCH_UNIT], timeout=20)
        said = said if done.ok else done.last_words()
        for _ in range(20):
            waiting = jsonfile.read(paths.REQUEST)
            if waiting is None or waiting.get("id") != request_id:
                return
            time.sleep(0.1)
    paths.REQUEST.unlink(missing_ok=True)
    raise NodeError(f"{paths.SWITCH_UNIT} could not be started: {said}. Nothing was touched")


@contextmanager
def locked(holder: dict[str, Any] | None = None, wait: float = 0.0) -> Iterator[None]:
    """Hold the switch's lock; BusyError naming its holder when someone else has it."""
    paths.RUN.mkdir(parents=True, exist_ok=True)
    with paths.LOCK.open("a+", encoding="utf-8") as stream:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise BusyError(_who_holds()) from None
                time.sleep(0.05)
        if holder is not None:
            stream.truncate(0)
            stream.write(json.dumps(holder))
            stream.flush()
        try:
            yield
        finally:
            if holder is not None:
                stream.truncate(0)


def _who_holds() -> str:
    known = jsonfile.read(paths.LOCK) or {}
    if not known:
        return "another switch is being started right now"
    since = time.strftime("%H:%M:%S", time.localtime(known.get("since", 0)))
    return (
        f"a switch to {known.get('target')} (id {known.get('id')}, asked for by "
        f"{known.get('asked_by')}) has been running since {since}, process {known.get('pid')}; "
        "follow it with 'spark-pair history', stop it with 'spark-pair abort'"
    )


def is_running() -> bool:
    """Whether some process holds the lock. Looking never makes another look say yes."""
    try:
        with paths.LOCK.open("r", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def run_unit(description: PairDescription, say: Callable[[str], None]) -> Exit:
    """The unit's whole life: take the lock, do what was asked, or finish what was cut off."""
    request = jsonfile.read(paths.REQUEST)
    opened = open_record(paths.JOURNAL)
    name = request or (opened.begin if opened else {})
    holder = {
        "id": name.get("id"),
        "target": name.get("target"),
        "asked_by": name.get("asked_by"),
        "pid": os.getpid(),
        "since": time.time(),
    }
    with locked(holder, wait=10):
        paths.REQUEST.unlink(missing_ok=True)
        if opened is None:
            trim(paths.JOURNAL)
        if request is not None and request.get("kind") == "boot":
            return after_boot(description, request, say)
        # What was cut off is finished first, also when a new order has come meanwhile: its keepers
        # are still stopped. One that got stuck is what the new order is meant to mend.
        stuck = opened is not None and opened.events[-1]["event"] == STUCK
        if opened is not None and not (stuck and request is not None):
            ended = resume(description, say)
            if request is None:
                return ended
        if request is None:
            return Exit.DONE
        job = Job(
            id=request["id"],
            target=request["target"],
            asked_by=request["asked_by"],
            reason=request["reason"],
            drain=request["drain"],
            hold=request["hold"],
        )
        state = states.load()
        if stuck and opened is not None:
            state.owe_keepers_of(opened.id)
        return _begin(RealWorld(description, job.id), job, Phase.OBSERVE, say, state)


def _asked_for(job: Job) -> dict[str, Any]:
    """What was asked, by whom and why, for the journal."""
    return {
        "target": job.target,
        "asked_by": job.asked_by,
        "reason": job.reason,
        "drain": job.drain,
        "hold": job.hold,
    }


def _begin(
    world: RealWorld, job: Job, phase: Phase, say: Callable[[str], None], state: PairState
) -> Exit:
    speak = _speaker(world, say)
    world.record({"event": "begin", **_asked_for(job)})
    return drive(world, Work(world, job, state, speak), job, phase)


def _speaker(world: RealWorld, say: Callable[[str], None]) -> Callable[[str], None]:
    def speak(text: str) -> None:
        say(text)
        world.record({"event": "note", "text": text})

    return speak


def dry_run(
    description: PairDescription, target: str, drain: str, say: Callable[[str], None]
) -> tuple[Outcome, Job]:
    """Observe and check without writing anything; the outcome of the last phase, and the job."""
    job = Job(new_id(), target, "dry run", "dry run", drain, dry=True)
    world = RealWorld(description, job.id, dry=True)
    work = Work(world, job, states.load(), say)
    outcome = work.run(Phase.OBSERVE)
    if outcome is Outcome.OK:
        outcome = work.run(Phase.REFUSE)
    return outcome, job


# ---- finishing what was cut off -----------------------------------------------------------


def job_from(record: Record) -> Job:
    """Rebuild a job from its journal, as far as it got."""
    begin = record.begin
    job = Job(
        id=record.id,
        target=begin["target"],
        asked_by=begin.get("asked_by", ""),
        reason=begin.get("reason", ""),
        drain=begin.get("drain", "keep"),
        hold=bool(begin.get("hold")),
    )
    armed = record.last("armed")
    if armed:
        job.former = Side.from_dict(armed.get("former"))
        job.plan = armed.get("plan")
        job.boots = {role: armed["boots"][role] for role in ROLES if role in armed["boots"]}
        job.verdicts = {
            name: Verdict(State(state), "") for name, state in armed.get("verdicts", {}).items()
        }
    if record.last_outcome:
        job.message = next(
            str(event["message"])
            for event in reversed(record.events)
            if event["event"] == "outcome"
        )
    job.cause = _cause(record)
    job.booted = record.last(BOOTED) is not None
    job.attempts = _attempts(record)
    # The machines were touched from STOP on, also when only the last line of the story is missing.
    job.changed = any(
        event["event"] == "phase" and event["phase"] in TOUCHED for event in record.events
    )
    return job


def _cause(record: Record) -> str:
    """Why a server has to be brought back, once that was begun; "" before.

    Not the newest message: that may say that nobody serves, and a resume then makes it untrue.
    """
    said = ""
    for event in record.events:
        if event.get("phase") == str(Phase.RECOVER):
            return said or "the switch was interrupted"
        if event["event"] == "outcome":
            said = str(event["message"])
    return ""


def _attempts(record: Record) -> int:
    """Attempts to recover that have ended since the switch last got stuck or a machine booted.

    One that was cut off is repeated, but not for ever: from the third time on it counts.
    """
    events = list(record.events)
    anew = [index for index, event in enumerate(events) if event["event"] in (STUCK, BOOTED)]
    since = events[anew[-1] + 1 :] if anew else events
    recovering = [event for event in since if event.get("phase") == str(Phase.RECOVER)]
    entered = sum(1 for event in recovering if event["event"] == "phase")
    ended = sum(1 for event in recovering if event["event"] == "outcome")
    return max(ended, entered - 3)


def resume(description: PairDescription, say: Callable[[str], None]) -> Exit:
    """Go on with the newest switch, which was cut off or got stuck; a no-op when it has ended."""
    record = open_record(paths.JOURNAL)
    if record is None:
        say("no switch is open; nothing to resume")
        return Exit.DONE
    job = job_from(record)
    world = RealWorld(description, job.id)
    world.past_the_point()  # what is left to do must not depend on the disk
    speak = _speaker(world, say)
    speak(f"resuming the switch to {job.target}, cut off in {record.last_phase or 'its beginning'}")
    return go_on(world, Work(world, job, states.load(), speak), job, record)


def go_on(world: World, work: Work, job: Job, record: Record) -> Exit:
    """Continue a switch from its journal: nothing is repeated blindly, no end is written twice."""
    at = resume_point(record)
    job.message = job.message or "the switch was interrupted"
    if at is Exit.REFUSED:
        job.message = "interrupted before anything was touched; nothing to do"
    if isinstance(at, Phase) and at is not Phase.BACK_OUT:
        job.changed = True
        world.past_the_point()
        if job.target == NONE and not _recovering(record):
            at = Phase.STOP  # no server is wanted: to stop what is left is to go on
        elif at is Phase.RESTORE or (at is Phase.RECOVER and not _recovering(record)):
            at = Phase.RESTORE if _target_serves(work, world, job) else Phase.RECOVER
    return drive(world, work, job, at)


def resume_point(record: Record) -> Phase | Exit:
    """Where a cut-off switch goes on, from its journal alone."""
    if record.events[-1]["event"] == STUCK:
        return Phase.RECOVER
    ended = record.last_outcome
    if ended is None:
        at: Phase | Exit | None = Phase(record.last_phase) if record.last_phase else None
    else:
        at = after(Phase(ended[0]), Outcome(ended[1]))
    if isinstance(at, Exit):
        return at
    if at is Phase.ARM and record.last("armed") is None:
        # Nobody wrote down who serves, and nothing is touched before that.
        return Exit.REFUSED
    return resume_at(at)


def _recovering(record: Record) -> bool:
    return any(
        event["event"] == "phase" and event["phase"] in (Phase.RECOVER, Phase.CLEAN)
        for event in record.events
    )


def _target_serves(work: Work, world: World, job: Job) -> bool:
    server = world.description.server(job.target)
    if server.generation and world.current(server) != server.generation.hash:
        return False
    try:
        views = {role: world.nodes[role].observe() for role in ROLES}
    except SparkPairError:
        return False
    if presence(server, views, world.description).state is not State.UP:
        return False
    return work.run(Phase.VERIFY) is Outcome.OK


def _came_up(work: Work, name: str, before: str) -> Exit:
    """A server serves after the boot; another one than before is told, and held as a recovery is.

    Otherwise nobody would read why, and the next plain run would switch back at once.
    """
    if before == name or name != work.description.fallback:
        return Exit.DONE
    cause = f"a machine was booted while {before} served"
    found = work.job.verdicts[name]
    work.job.message = f"{cause}. {name} has come up by itself and is {found}"
    if found.state is State.SERVING:
        work.remember_serving(work.description.server(name))
    work.state.set_hold("recovery", cause)
    work.world.save(work.state)
    work.world.record({"event": "begin", **_asked_for(work.job)})
    work.world.record(
        {"event": "end", "exit": int(Exit.RECOVERED), "message": work.job.message, "changed": True}
    )
    return Exit.RECOVERED


def after_boot(
    description: PairDescription, request: dict[str, Any], say: Callable[[str], None]
) -> Exit:
    """A machine of the pair was booted: what is enabled at boot, the fallback, owns the pair.

    Nothing is done when a server serves anyway (a reboot that both machines went through together,
    with the fallback enabled, ends there by itself).
    """
    target = description.fallback if description.fallback != NONE else description.wanted
    if target == NONE:
        return Exit.DONE
    opened = open_record(paths.JOURNAL)
    job = Job(request["id"], target, request["asked_by"], request["reason"])
    world = RealWorld(description, job.id)
    world.past_the_point()  # what has to be done after a boot must not depend on the disk
    state = states.load()
    if opened is not None:
        state.owe_keepers_of(opened.id)
    served = (state.serving or {}).get("server", target)
    work = Work(world, job, state, say)
    outcome = work.run(Phase.OBSERVE)
    alive = [name for name, item in job.verdicts.items() if item.state is not State.DOWN]
    seen = outcome is not Outcome.FAILED and len(job.verdicts) == len(description.servers)
    if opened is None and seen and len(alive) == 1:
        found = job.verdicts[alive[0]]
        if found.state in (State.SERVING, State.BUSY, State.MISMATCH):
            say(f"{alive[0]} is {found}; nothing to do after the boot")
            return _came_up(work, alive[0], served)
    # One that was proven dead does not come up by itself, and each further question that it never
    # answers keeps a lane, until it looks like one that is busy.
    dead = seen and job.verdicts[target].state is State.DEAD
    waits = opened is None and seen and served == target and not dead
    if waits and not work.hands.others_left(target):
        # Nobody else was or is there: it comes up by itself, for minutes perhaps, and is only
        # waited for.
        server = description.server(target)
        if work.wait_for_fallback(server):
            say(f"{target} serves after the boot")
            return Exit.DONE
        found = work.look.verdict(work.running(server), work.views())
        if found.state not in (State.DEAD, State.PARTIAL, State.DOWN):
            say(f"{target} is {found}; left alone after the boot")
            return Exit.GAVE_UP
    if opened is not None:
        former = RealWorld(description, opened.id)
        former.past_the_point()
        former.record(
            {
                "event": "end",
                "exit": int(Exit.RECOVERED),
                "message": f"a machine was booted meanwhile; {target} takes the pair ({job.id})",
                "changed": True,
            }
        )
    job.former = None
    job.message = job.cause = request["reason"]
    return _begin(world, job, Phase.RECOVER, say, state)
