"""Starting, finding and stopping jobs: the side of whoever wants the work done.

Starting is the same as attaching: when the job runs already, nothing is started. So a play that
was cut off is run again, and a second one does no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import jsonfile, paths
from ..errors import BusyError, DescriptionError, NodeError
from ..system import Runner, run_plainly
from .inside import FOLDER, RUN, ending
from .shapes import (
    ORDER,
    PROGRESS,
    REQUEST,
    RESULT,
    VERIFIED,
    JobError,
    JobResult,
    JobState,
    JobView,
    Request,
    check_name,
    covers,
    kept_order,
    order_digest,
    read_progress,
    read_request,
    read_result,
    unit_of,
    write_order,
    write_request,
    write_result,
)

_ACTIVE = frozenset({"active", "activating", "reloading", "deactivating"})
_HOW_ENDED = {"1": "exited", "2": "killed", "3": "dumped"}
"""CLD_EXITED, CLD_KILLED, CLD_DUMPED, as `systemctl show` prints ExecMainCode."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WEIGHTS = range(1, 10_001)
_MIN_MEMORY = 64 * 2**20
"""A program of Python alone needs about half of this; less could only be a mistaken unit."""
_STOP_SECONDS = 60
_START_SECONDS = 60
_ASK_SECONDS = 20
_LOCK_SECONDS = 90
_LOOKS = 3
# When memory runs out on a machine whose server fills it, the job is what goes.
_OOM_SCORE = 500


@dataclass(frozen=True)
class Caps:
    """What a job may take from a machine that serves meanwhile; None leaves a limit out."""

    memory_max: int | None = None
    """Bytes, page cache included."""
    io_weight: int | None = None
    """1 to 10000, against 100 of everything else."""
    cpu_weight: int | None = None
    """1 to 10000, against 100 of everything else."""

    def as_dict(self) -> dict[str, int]:
        """The limits that are set."""
        known = {
            "memory_max": self.memory_max,
            "io_weight": self.io_weight,
            "cpu_weight": self.cpu_weight,
        }
        return {name: value for name, value in known.items() if value is not None}

    def properties(self) -> list[str]:
        """The same as properties of a unit; DescriptionError for one that makes no sense."""
        names = {"memory_max": "MemoryMax", "io_weight": "IOWeight", "cpu_weight": "CPUWeight"}
        for name, value in self.as_dict().items():
            if name == "memory_max" and value < _MIN_MEMORY:
                raise DescriptionError(f"memory_max is {value} bytes: give at least {_MIN_MEMORY}")
            if name != "memory_max" and value not in _WEIGHTS:
                raise DescriptionError(f"{name} is {value}: a weight is 1 to 10000")
        return [f"{names[name]}={value}" for name, value in self.as_dict().items()]


NO_CAPS = Caps()


@dataclass(frozen=True)
class Started:
    """What `start` found or made."""

    view: JobView
    attached: bool
    """It ran already."""
    same: bool
    """What runs is what was asked for; false when attached to something else of that name."""


class Jobs:
    """The jobs of this host. Starting and stopping need root; looking does not."""

    def __init__(
        self,
        *,
        base: Path | None = None,
        private: Path | None = None,
        runner: Runner = run_plainly,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        recorder: str | None = None,
        boot_file: Path = Path("/proc/sys/kernel/random/boot_id"),
    ) -> None:
        """`recorder` is the tool that the unit calls at its end; usually the installed one."""
        self.base = base or paths.VAR / "jobs"
        self.private = private or paths.RUN / "jobs"
        self.runner = runner
        self.clock = clock
        self.sleep = sleep
        # By its resolved path, so that the release that started a job also ends it.
        self.recorder = recorder or str(Path(paths.TOOL).resolve())
        self.boot_file = boot_file

    # ---- starting

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        words: str = "",
        user: str = "",
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        caps: Caps = NO_CAPS,
        order: Mapping[str, Any] | None = None,
        record: bool = False,
    ) -> Started:
        """Start the job, or attach to it when it runs.

        The program finds `order` as order.json in its folder. With `record` root records at its
        end, however that comes, what the program has proven until then (`spark-pair weights
        record`); what a run has proven that was cut off by a boot is recorded before the next.

        `secrets` (name: content) reach the program as files that `inside.secret` reads; on disk
        they are only in memory-backed /run, 0600, for the moment of the start. Raises
        DescriptionError for input that makes no sense, JobError when systemd does not start it,
        BusyError when somebody else is starting it for too long.
        """
        request = Request(
            id=self._new_id(),
            at=self.clock(),
            boot=self._boot(),
            argv=tuple(argv),
            words=words,
            user=user,
            environment=dict(environment or {}),
            folder=folder,
            secrets=tuple(sorted(secrets or {})),
            caps=caps.as_dict(),
            order=order_digest(order),
            record=record,
        )
        _check(name, request, secrets or {}, order)
        command = self._command(name, request, caps)
        with self._alone(name):
            if self._unit(name)["ActiveState"] in _ACTIVE:
                return self._attached(name, request, order)
            self._prepare(name, request, order)
            with self._handed_over(name, secrets or {}):
                done = self.runner(command, _START_SECONDS)
            # systemd-run may have been too slow to say that it has worked.
            if not done.ok and self._unit(name)["ActiveState"] not in _ACTIVE:
                self._failed_to_start(name, request, done.last_words())
        return Started(self.look(name), attached=False, same=True)

    def _new_id(self) -> str:
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.clock()))
        return f"{moment}-{uuid.uuid4().hex[:6]}"

    def _attached(self, name: str, wanted: Request, order: Mapping[str, Any] | None) -> Started:
        running = read_request(self.base / name)
        if running is not None and running.order != wanted.order and order is not None:
            known = jsonfile.read(kept_order(self.base, name))
            # The copy may be of another run: then it is no order of what runs.
            if (
                isinstance(known, dict)
                and order_digest(known) == running.order
                and covers(known, order)
            ):
                wanted = replace(wanted, order=running.order)
        same = running is not None and running.same_work(wanted)
        return Started(self.look(name), attached=True, same=same)

    def _command(self, name: str, request: Request, caps: Caps) -> list[str]:
        # Without the minus a last step that fails would make a failure of a job that is done; with
        # the plus it is root's, who alone may write the record.
        last = [f"-{self.recorder} jobs ended"]
        if request.record:
            last.append(f"-+{self.recorder} weights record {name}")
        properties = [
            *([f"User={request.user}"] if request.user else []),
            *([f"WorkingDirectory={request.folder}"] if request.folder else []),
            *caps.properties(),
            f"OOMScoreAdjust={_OOM_SCORE}",
            f"TimeoutStopSec={_STOP_SECONDS}",
            *(f"ExecStopPost={step}" for step in last),
            *(f"LoadCredential={key}:{self.private / name / key}" for key in request.secrets),
        ]
        told = {**request.environment, FOLDER: str(self.base / name), RUN: request.id}
        return [
            "systemd-run", "--quiet",
            f"--unit={unit_of(name)}",
            f"--description={request.words or name} (spark-pair job {name})",
            # It returns once the program runs, so its secrets have been read by then.
            "--service-type=exec",
            *(f"--property={line}" for line in properties),
            *(f"--setenv={key}={value}" for key, value in told.items()),
            "--",
            request.argv[0],
            # systemd would put its own environment in place of $NAME.
            *(word.replace("$", "$$") for word in request.argv[1:]),
        ]  # fmt: skip

    def _prepare(self, name: str, request: Request, order: Mapping[str, Any] | None) -> None:
        # A unit that failed stays loaded, and systemd-run refuses a name that is taken.
        self.runner(["systemctl", "reset-failed", "--", unit_of(name)], _ASK_SECONDS)
        folder = self.base / name
        _open_folder(folder)
        if request.user:
            # The job replaces its files by renaming, for which the folder has to be its own.
            owner = _account(request.user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        if request.record and (folder / VERIFIED).exists():
            # When that fails, the end of this run tries again.
            self.runner([self.recorder, "weights", "record", name], _START_SECONDS)
        # Not before what an earlier run has left was recorded by its own order.
        kept_order(self.base, name).unlink(missing_ok=True)
        for old in (PROGRESS, RESULT, ORDER):
            (folder / old).unlink(missing_ok=True)
        if order is not None:
            write_order(folder, order)
            _open_folder(kept_order(self.base, name).parent)
            jsonfile.write(kept_order(self.base, name), order)
        write_request(folder, request)

    def _failed_to_start(self, name: str, request: Request, why: str) -> None:
        message = f"could not be started: {why}"
        with contextlib.suppress(OSError):
            result = JobResult(False, message, 1, self.clock())
            write_result(self.base / name, request.id, result)
        raise JobError(f"job {name} {message}")

    # ---- looking

    def look(self, name: str) -> JobView:
        """The job as it is now; NodeError when systemd cannot be asked.

        The unit is asked before the files are read: a unit that is gone has left its result.
        """
        folder = self.base / check_name(name)
        for _ in range(_LOOKS):
            request = read_request(folder)
            unit = self._unit(name)
            # Started anew between the two: they would belong to different runs.
            if read_request(folder) == request:
                break
        running = unit["ActiveState"] in _ACTIVE
        if request is None:
            return JobView(name, JobState.RUNNING if running else JobState.ABSENT)
        progress = read_progress(folder, request.id)
        if running:
            return JobView(name, JobState.RUNNING, "", request, progress)
        result = read_result(folder, request.id)
        if result is None and unit["ActiveState"] == "failed":
            result = self._from_unit(unit)
        if result is not None:
            state = JobState.DONE if result.ok else JobState.FAILED
            return JobView(name, state, result.message, request, progress, result)
        if self._is_starting(name):
            return JobView(name, JobState.RUNNING, "", request)
        return JobView(name, JobState.LOST, self._lost_words(request), request, progress)

    def names(self) -> list[str]:
        """Every job that was ever started here, and that has not been removed."""
        return sorted(path.parent.name for path in self.base.glob(f"*/{REQUEST}"))

    def all(self) -> list[JobView]:
        """All of them, by name."""
        return [self.look(name) for name in self.names()]

    def _from_unit(self, unit: Mapping[str, str]) -> JobResult:
        how = _HOW_ENDED.get(unit["ExecMainCode"], "")
        return ending(unit["Result"], how, unit["ExecMainStatus"], self.clock())

    def _lost_words(self, request: Request) -> str:
        why = "its process is gone and left no result, as after a power cut or on a full disk"
        if request.boot != self._boot():
            why = "the machine was booted before it ended"
        return f"{why}; start it again, it goes on from what is finished"

    def _unit(self, name: str) -> dict[str, str]:
        unit = unit_of(name)
        wanted = ("ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
        asked = ["systemctl", "show", f"--property={','.join(wanted)}", "--", unit]
        done = self.runner(asked, _ASK_SECONDS)
        told = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
        if not done.ok or "ActiveState" not in told:
            raise NodeError(f"systemd does not tell about {unit}: {done.last_words()}")
        return {key: told.get(key, "") for key in wanted}

    # ---- stopping

    def stop(self, name: str) -> tuple[JobView, bool]:
        """Stop the job and wait for its end; the view afterwards, and whether it ran before.

        What it has finished and the beginnings of the rest stay where they are. Raises JobError
        when there is no such job or systemd does not stop it.
        """
        view = self.look(name)
        if view.state is JobState.ABSENT:
            known = ", ".join(self.names()) or "none"
            raise JobError(f"there is no job {name} on this host; known: {known}")
        if view.state is not JobState.RUNNING:
            return view, False
        words = ["systemctl", "--no-ask-password", "stop", "--", unit_of(name)]
        # So long systemd gives the program, and then each of its last steps.
        steps = 3 if view.request and view.request.record else 2
        done = self.runner(words, steps * _STOP_SECONDS + 30)
        if not done.ok:
            hint = f"; only root may: sudo spark-pair jobs stop {name}" if os.geteuid() else ""
            raise JobError(f"job {name} could not be stopped: {done.last_words()}{hint}")
        return self.look(name), True

    # ---- one at a time, and secrets

    def _boot(self) -> str:
        try:
            return self.boot_file.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def _lock_file(self, name: str) -> Path:
        return self.private / f"{name}.lock"

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Nobody else starts this job meanwhile."""
        _open_folder(self.private)
        handle = os.open(self._lock_file(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            os.fchmod(handle, 0o644)
            for _ in range(_LOCK_SECONDS * 10):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self.sleep(0.1)
            else:
                raise BusyError(f"somebody else has been starting job {name} for a long time")
            yield
        finally:
            os.close(handle)

    def _is_starting(self, name: str) -> bool:
        """Whether somebody is just about to start it."""
        try:
            handle = os.open(self._lock_file(name), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    @contextlib.contextmanager
    def _handed_over(self, name: str, secrets: Mapping[str, str]) -> Iterator[None]:
        """The secrets lie where systemd reads them, and nowhere afterwards."""
        folder = self.private / name
        try:
            for key, value in secrets.items():
                folder.mkdir(mode=0o700, exist_ok=True)
                # One that a start which was killed has left behind.
                (folder / key).unlink(missing_ok=True)
                handle = os.open(folder / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(value)
            yield
        finally:
            for key in secrets:
                (folder / key).unlink(missing_ok=True)


def _check(
    name: str, request: Request, secrets: Mapping[str, str], order: Mapping[str, Any] | None
) -> None:
    check_name(name)
    if not request.argv or not request.argv[0].startswith("/"):
        raise DescriptionError(f"job {name}: name its program by an absolute path")
    if request.user:
        _account(request.user)
    for key in request.environment:
        if not _VARIABLE.fullmatch(key):
            raise DescriptionError(f"job {name}: {key!r} cannot name an environment variable")
    seen = (
        *request.argv, *request.environment.values(), request.words, request.folder,
        json.dumps(order),
    )  # fmt: skip
    for key, value in secrets.items():
        check_name(key)
        if not value.strip():
            raise DescriptionError(f"job {name}: the secret {key} is empty; leave it out instead")
        # Both can be read by every account of the machine.
        if any(value.strip() in text for text in seen):
            raise DescriptionError(
                f"job {name}: the secret {key} stands in its arguments, environment or order, "
                "where everybody can read it; let the program read it from its file"
            )


def _open_folder(folder: Path) -> None:
    """A folder that every account may look into, however strict the umask of whoever starts."""
    for made in (folder.parent, folder):
        if not made.is_dir():
            made.mkdir(parents=True, exist_ok=True)
            made.chmod(0o755)


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise DescriptionError(f"there is no account {user} on this host") from None
