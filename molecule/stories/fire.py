"""Striking a switch in the middle of a phase, and judging what became of the pair.

A case says who serves at first, in which phase of the switch to the other server what strikes, and
what must be true in the end. The switch's process stands still while the fault strikes, so every
fault strikes in the phase that the case names, or the case fails.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulated_pair.naming import CHECKOUT
from simulated_pair.outer import write_atomically
from spark_pair.errors import Exit

from . import tool
from .machines import (
    HEAD,
    HOSTS,
    assert_never_two_servers,
    clear_faults,
    exit_code_of,
    machine,
    on,
    on_both,
    start_on,
)
from .plays import Controller
from .servers import (
    HIKARI_TIMERS,
    HIKARI_UNITS,
    RANK,
    Reply,
    back_to_hikari,
    completion,
    generates,
)
from .waiting import wait_for

BOUND = 25.0
"""Seconds from the strike to the answering server. A case that needs more says why."""

_PATIENCE = os.environ.get("STORIES_PATIENCE", "")
"""What the bounds are multiplied with; by default it follows from how busy this machine is."""

NO_SWITCH = ""
"""The phase of a case that strikes while no switch runs."""

RECORDS = CHECKOUT / "docs" / "switch_faults"
"""What the table in docs/faults.md is made of: how each case ended when it was told last."""

_FOLDER = "fire"
_DESCRIPTION = "/etc/spark-pair/pair.json"
_HOLDER = Path(__file__).with_name("hold_switch.py")
_OTHER = {"hikari": "deepseek", "deepseek": "hikari"}

Act = Callable[[], None]


def patience(seconds: float) -> float:
    """How long to wait for what takes so many seconds at most on a machine of its own."""
    if _PATIENCE:
        return seconds * float(_PATIENCE)
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(20.0, max(4.0, 2 * busy))


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Case:
    """One fault in one phase, and how it must end."""

    phase: str
    fault: str
    strike: Act
    serves: str
    """Who answers in the end; "" where nobody can until the cause is mended."""
    exit: int | None
    """The exit code of the switch; None where no switch runs."""
    says: tuple[str, ...] = ()
    """Words of the last line."""
    before: str = "hikari"
    """Who serves at first; the switch is to the other one."""
    options: str = ""
    """More words for the command that asks for the switch."""
    prepare: Act = nothing
    """What comes before the switch: a fault that has to be there earlier, or leads to a phase."""
    earlier: tuple[tuple[str, Act], ...] = ()
    """What strikes in earlier phases, to get to this one."""
    then: Act = nothing
    """What happens while the switch goes on after the strike."""
    mend: Act = nothing
    """Takes the fault away again; with nobody serving, before the last line's command."""
    mend_first: bool = False
    """Whether the fault hides from outside what is judged, so that it is mended before that."""
    finished_by: str = "hikari"
    """Who serves after the last line's command, if the switch ended with 30."""
    asker_ends: bool = True
    """Whether whoever asked for the switch hears its end: not if the head lost its power."""
    by_play: bool = False
    """Whether a play asks for the switch, and not the command on the head that it runs."""
    asked: int | None = None
    """The exit code of the command that asked, where it is not that of the switch."""
    booted: tuple[str, ...] = ()
    """Machines that are switched off and on again."""
    off: tuple[str, ...] = ()
    """Those of them that stay off until the fault is mended."""
    bound: float = BOUND
    why: str = ""
    """Why the bound is larger than usual."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of the pair description that hold for this case: "servers.deepseek.ready_timeout"."""

    @property
    def name(self) -> str:
        """Its name among all cases."""
        return f"{self.phase or 'no switch'}: {self.fault}, {self.before} serves"


# ---- the switch ---------------------------------------------------------------------------------

_ASK = """
set -euo pipefail
rm -rf /srv/simulation/FOLDER && mkdir /srv/simulation/FOLDER
rm -f /var/lib/spark-pair/journal.jsonl
setsid --fork python3 -I /srv/simulation/hold_switch.py /srv/simulation/FOLDER PHASES \
    </dev/null >/srv/simulation/FOLDER/log 2>&1
until [ -e /srv/simulation/FOLDER/watching ]; do sleep 0.01; done
[ -z "TARGET" ] || exec spark-pair switch TARGET --asked-by story OPTIONS 2>&1
"""


class Switch:
    """A switch that an operator has asked for on the head, and that is held in phases."""

    def __init__(self, target: str, phases: Sequence[str], options: str) -> None:
        self._folder = machine(HEAD).state / _FOLDER
        (machine(HEAD).state / _HOLDER.name).write_bytes(_HOLDER.read_bytes())
        script = _ASK.replace("FOLDER", _FOLDER).replace("PHASES", " ".join(phases))
        script = script.replace("TARGET", target).replace("OPTIONS", options)
        for old in self._folder.glob("*"):
            old.unlink()
        self._process = start_on(HEAD, script)

    def wait_until_held(self, number: int, phase: str, seconds: float) -> None:
        """Wait until it stands still in its phase number `number`; AssertionError if it cannot."""
        told = self._folder / f"told-{number}"

        def heard() -> str | None:
            return told.read_text() if told.exists() else None

        state = wait_for(f"the switch stands still in {phase}", heard, seconds, every=0.01)
        assert state == "held", (
            f"it could not strike: {phase} was over or never came\n{self.said()}"
        )

    def go_on(self, number: int) -> None:
        """Let it go on."""
        (self._folder / f"go-{number}").touch()

    def said(self) -> str:
        """What the operator has read; ends the waiting, not the switch."""
        self._process.terminate()
        return self._process.communicate()[0]

    def finish(self, seconds: float) -> tuple[int, str]:
        """Wait until the operator's command ends; its exit code and what it has printed."""
        try:
            said, _ = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over within {seconds:g} s:\n{self.said()}") from None
        return self._process.returncode, said

    def close(self) -> None:
        """Let nothing stand still for ever."""
        for number in range(3):
            if self._folder.exists():
                self.go_on(number)
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


# ---- what must be true in the end ---------------------------------------------------------------

_LOOK = r"""
echo "active $(systemctl list-units --plain --no-legend --state=active 'qwen38fn-*' |
    awk '{print $1}' | tr '\n' ' ')"
echo "ranks $(docker ps --all --format '{{.Names}}' | tr '\n' ' ')"
find /etc/systemd/system -path '*qwen38fn-*' -printf 'file %p %y %m %l\n' \
    -type f -exec sha256sum {} + | sort
"""

_SETTLED = r"""
told() { systemctl show --property "$2" --value "$1"; }
echo "$(told spark-pair-switch.service ActiveState) $(told spark-pair-resume.service ActiveState)" \
    "$(told spark-pair-resume.service ExecMainExitTimestampMonotonic)" \
    "$([ ! -e /run/spark-pair/request.json ] || echo asked)"
tail -n 1 /var/lib/spark-pair/journal.jsonl 2>/dev/null || true
"""


@dataclass(frozen=True)
class Look:
    """One machine: active units of Hikari, containers, and what Hikari's unit files are like."""

    active: frozenset[str]
    ranks: frozenset[str]
    files: tuple[str, ...]


def _look(hosts: Sequence[str] = HOSTS) -> dict[str, Look]:
    def look(host: str) -> Look:
        active, ranks, *files = on(host, _LOOK).splitlines()
        return Look(frozenset(active.split()[1:]), frozenset(ranks.split()[1:]), tuple(files))

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(hosts, pool.map(look, hosts), strict=True))


def _settled(case: Case, off: Sequence[str] = ()) -> bool:
    """Whether nothing is at work any more on the machines that are on, also after a boot."""
    for host in HOSTS:
        if host in off:
            continue
        lines = on(host, _SETTLED, check=False).splitlines()
        if not lines or len(words := lines[0].split()) < 3:
            return False
        switch, resume, resumed, *asked = words
        if asked or switch not in ("inactive", "failed") or resume in ("activating", "reloading"):
            return False
        if host in case.booted and resumed == "0":
            return False
        if host == HEAD and len(lines) > 1 and json.loads(lines[1])["event"] not in tool.ENDS:
            return False
    return True


class Judge:
    """Knows what Hikari's units were like at first, and judges the pair after each case."""

    def __init__(self) -> None:
        self._files = {host: look.files for host, look in _look().items()}
        assert all(self._files.values()), self._files

    def judge(self, serves: str, off: Sequence[str] = (), *, keepers: bool = True) -> None:
        """The invariants: one server that really answers, never two, nothing of Hikari lost.

        `keepers` tells whether those of Hikari must be back when it serves.
        """
        units = (*HIKARI_UNITS, *(HIKARI_TIMERS if keepers else ()))
        with ThreadPoolExecutor() as pool:
            replies = {name: pool.submit(_ask, name, name == serves) for name in _OTHER}
            looks = _look([host for host in HOSTS if host not in off])
        answering = [name for name, reply in replies.items() if reply.result() is None]
        told = {name: str(reply.result()) for name, reply in replies.items()}
        assert answering == ([serves] if serves else []), f"who answers: {told}"
        assert_never_two_servers()
        for host, look in looks.items():
            assert look.files == self._files[host], f"Hikari's units on {host}: {look.files}"
            ranks = {RANK} if serves == "deepseek" else set()
            assert look.ranks == ranks, f"containers on {host}: {set(look.ranks)}"
            belong = {name for place, name in units if place == host}
            assert look.active & belong == (belong if serves == "hikari" else set()), look.active
        for line in on(HEAD, f"cat {tool.JOURNAL} 2>/dev/null || true").splitlines():
            assert isinstance(json.loads(line), dict), f"the journal is not readable: {line!r}"


def _ask(server: str, patiently: bool) -> Reply | None:
    """None if a server answers in its own name, else what came instead."""
    if generates(server, 5):
        return None
    if patiently and generates(server, 10):
        return None
    return completion(server, 2)


# ---- one case -----------------------------------------------------------------------------------


@contextmanager
def described(settings: Mapping[str, Any], kept: str = f"{_DESCRIPTION}.case") -> Iterator[None]:
    """Have values in both machines' pair description meanwhile; the former one is kept beside."""
    if not settings:
        yield
        return
    script = _DESCRIBE.replace("SETTINGS", repr(dict(settings))).replace("PATH", _DESCRIPTION)
    # One that is still kept was left by a story that was killed.
    on_both(
        f"[ ! -e {kept} ] || mv -f {kept} {_DESCRIPTION}\ncp -p {_DESCRIPTION} {kept}\n{script}"
    )
    try:
        yield
    finally:
        on_both(f"mv -f {kept} {_DESCRIPTION}")


_DESCRIBE = """
python3 -I - <<'END'
import json, pathlib
path = pathlib.Path("PATH")
pair = json.loads(path.read_text())
for name, value in SETTINGS.items():
    *places, last = name.split(".")
    table = pair
    for place in places:
        table = table[place]
    assert last in table, name
    table[last] = value
path.write_text(json.dumps(pair))
END
"""


@contextmanager
def in_a_hurry() -> Iterator[None]:
    """Have a short quiet period: requests in flight are other stories' matter."""
    on_both(f"rm -f {_DESCRIPTION}.case")
    with described({"policy.quiet_period": 0.5}, f"{_DESCRIPTION}.kept"):
        yield


def begin_with(server: str) -> None:
    """Have a server serve, the cheapest way that works."""
    if generates(server):
        return
    code, said = exit_code_of(HEAD, f"spark-pair switch {server} --drain stop", seconds=240)
    if code != 0:
        back_to_hikari()
        if server != "hikari":
            code, said = exit_code_of(HEAD, f"spark-pair switch {server}", seconds=240)
            assert code == 0, said
    assert generates(server), f"{server} does not serve at first: {said}"


def run(case: Case, judge: Judge) -> dict[str, Any]:
    """Tell one case and judge its end; what the table says of it. The next one may follow."""
    begin_with(case.before)
    with described(case.settings):
        try:
            told = _strike(case)
            if case.mend_first:
                case.mend()
            stuck = case.exit == Exit.NOBODY
            judge.judge(case.serves, () if case.mend_first else case.off, keepers=not stuck)
            if stuck:
                _finish_by_hand(case, told["line"])
                judge.judge(case.finished_by)
        finally:
            case.mend()
            clear_faults()
    return told


def _strike(case: Case) -> dict[str, Any]:
    case.prepare()
    if case.phase == NO_SWITCH:
        on(HEAD, f"rm -f {tool.JOURNAL}")
        struck = time.monotonic()
        case.strike()
        case.then()
        code, said = None, ""
    else:
        code, said, struck = _strike_in_phase(case)
    left = max(1.0, struck + patience(case.bound) - time.monotonic())
    wait_for(
        f"all is over ({case.bound:g} s)",
        lambda: _settled(case, case.off),
        left,
        # A look costs as much as a part of the switch itself.
        every=0.5,
    )
    _note_seconds(case, time.monotonic() - struck)
    return _ending(case, code, said)


class Controllers:
    """The playbook that has asked for the switch, for the cases that strike the controller."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="fire-")
        self._playing: Controller | None = None

    def begin(self) -> None:
        """Start the play that switches, with ssh masters of its own."""
        self._playing = Controller(
            "cutover", environment={"ANSIBLE_SSH_CONTROL_PATH_DIR": self._folder}
        )

    def kill(self) -> None:
        """Kill ansible-playbook and all that it has started."""
        assert self._playing is not None
        assert self._playing.send(signal.SIGKILL) != 0

    def kill_ssh_masters(self) -> None:
        """Kill the connections that all its tasks share; the next one has to make its own."""
        killed = 0
        for socket in Path(self._folder).iterdir():
            words = ["ssh", "-o", f"ControlPath={socket}", "-O", "check", "nobody"]
            said = subprocess.run(words, capture_output=True, text=True, check=False).stderr
            if found := re.search(r"pid=(\d+)", said):
                os.kill(int(found[1]), signal.SIGKILL)
                killed += 1
        assert killed, "the play has no ssh master"

    def finish(self, seconds: float) -> int:
        """Wait for the play; its exit code, -9 for one that was killed."""
        assert self._playing is not None
        return self._playing.wait(seconds)

    def close(self) -> None:
        """Leave nothing behind, whatever failed."""
        if self._playing is not None:
            self._playing.close()
            self._playing = None


CONTROLLER = Controllers()


def _note_seconds(case: Case, seconds: float) -> None:
    """Leave how long it took from the strike to the end for `molecule/run`."""
    if path := os.environ.get("STORIES_SECONDS"):
        with Path(path).open("a") as figures:
            row = {"case": case.name, "seconds": round(seconds, 1), "bound": case.bound}
            figures.write(json.dumps(row) + "\n")


def _strike_in_phase(case: Case) -> tuple[int | None, str, float]:
    steps = (*case.earlier, (case.phase, case.strike))
    target = "" if case.by_play else _OTHER[case.before]
    switch = Switch(target, [phase for phase, _ in steps], case.options)
    try:
        if case.by_play:
            switch.finish(patience(BOUND))
            CONTROLLER.begin()
        for number, (phase, act) in enumerate(steps):
            switch.wait_until_held(number, phase, patience(BOUND))
            struck = time.monotonic()
            act()
            switch.go_on(number)
        case.then()
        if case.by_play:
            assert CONTROLLER.finish(patience(case.bound)) == case.asked
            return None, "", struck
        code, said = switch.finish(patience(case.bound))
        return (code if case.asker_ends else None), said, struck
    finally:
        switch.close()
        CONTROLLER.close()


def _ending(case: Case, code: int | None, said: str) -> dict[str, Any]:
    """Judge the exit code and the last line; the case as the table shows it."""
    events = tool.journal()
    last = events[-1] if events else {}
    line = str(last.get("message", ""))
    told = f"{said}\n{json.dumps(events[-8:], indent=1)}"
    assert last.get("exit") == case.exit, f"exit {last.get('exit')}, not {case.exit}:\n{told}"
    for words in case.says:
        assert words in line, f"{words!r} is not in the last line {line!r}"
    if code is not None:
        assert code == (case.exit if case.asked is None else case.asked), told
        assert line in said, f"the operator did not read the last line:\n{told}"
    return {
        "phase": case.phase,
        "fault": case.fault,
        "before": case.before,
        "serves": case.serves,
        "finished_by": case.finished_by if case.exit == Exit.NOBODY else "",
        "exit": case.exit,
        "line": in_short(line),
        "bound": case.bound,
        "why": case.why,
    }


def _finish_by_hand(case: Case, line: str) -> None:
    """Mend the cause, then run the very command that the last line names, where it says."""
    found = re.search(r"run '(spark-pair [^']+)' on (\S+?)[.;,]?$", line)
    assert found, f"the last line does not say which command finishes it: {line!r}"
    case.mend()
    clear_faults()
    wait_for("nothing is at work", lambda: _settled(case), patience(BOUND))
    code, said = exit_code_of(found[2], found[1], seconds=patience(BOUND))
    assert code in (0, 20), f"{found[1]!r} ended with {code}: {said}"


_VARYING = (
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "ADDRESS"),
    # ssh's own words depend on how far a connection had come.
    (re.compile(r"over ssh \((?:ADDRESS: [^;()]*(?:; )?)+\)"), "over ssh"),
    (re.compile(r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"\bover \d+ s\b"), "over N s"),
    (re.compile(r"\bunchanged for \d+ s\b"), "unchanged for N s"),
    (re.compile(r"\bsince \d\d:\d\d:\d\d\b"), "since TIME"),
    (re.compile(r"\b\d+ probes failed\b"), "N probes failed"),
)


def in_short(line: str) -> str:
    """A last line without what differs between two runs, and not longer than a table bears."""
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line


def _ends_with(case: Case) -> str:
    return case.finished_by if case.exit == Exit.NOBODY else case.serves


def in_order(cases: Sequence[Case]) -> list[Case]:
    """The cases so that most begin with the server with which the one before ended."""
    left, ordered, now = list(cases), [], "hikari"
    while left:
        # First those that come back to where they began: they hinder no other.
        fitting = [one for one in left if one.before == now]
        same = [one for one in fitting if _ends_with(one) == now]
        chosen = (same or fitting or left)[0]
        left.remove(chosen)
        ordered.append(chosen)
        now = _ends_with(chosen)
    return ordered


class Matrix:
    """The cases of one scenario, told one after the other; keeps what the table shows of each."""

    def __init__(self, name: str, cases: Sequence[Case]) -> None:
        self._records = RECORDS / f"{name}.json"
        self._cases = cases
        self._judge = Judge()

    def tell(self, case: Case) -> None:
        """Tell one case; what has become of the pair after a failure is mended for the next one."""
        self._forget(case)
        try:
            told = run(case, self._judge)
        except BaseException:
            back_to_hikari()
            raise
        self._keep(case, told)

    def _forget(self, case: Case) -> None:
        """A case that fails now must not keep the record of an earlier success."""
        known = json.loads(self._records.read_text()) if self._records.exists() else {}
        if known.pop(case.name, None) is not None:
            write_atomically(self._records, json.dumps(known, indent=1) + "\n")

    def _keep(self, case: Case, told: Mapping[str, Any]) -> None:
        """Write the record of a case that has come true, in the order of the cases."""
        known = json.loads(self._records.read_text()) if self._records.exists() else {}
        known[case.name] = told
        names = [one.name for one in self._cases if one.name in known]
        RECORDS.mkdir(exist_ok=True)
        write_atomically(
            self._records, json.dumps({name: known[name] for name in names}, indent=1) + "\n"
        )
