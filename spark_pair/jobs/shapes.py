"""What is known about a job, as it lies in its folder and as it is told.

A job is one long piece of work on one host: a download, a transfer, a graft, a cut, a build. It
runs as the unit `spark-pair-job-<name>.service`, so that neither the controller nor ssh can end it,
and its folder `/var/lib/spark-pair/jobs/<name>/` holds:

  request.json   what was asked for (written by whoever starts it)
  order.json     the details of it, for work that needs more than a line of arguments; root keeps
                 the same in /var/lib/spark-pair/orders/<name>.json, since the folder is the job's
  progress.json  how far it is (written by the job, at most once a second)
  verified.jsonl what it has proven so far and is not recorded yet (written by the job)
  result.json    how it ended (written by the job, or by systemd's last step when it could not)

Request, progress and result carry the id of one run, so that what an earlier run has left is never
taken for news.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from .. import jsonfile
from ..errors import DescriptionError, Exit, SparkPairError

SCHEMA = 1
REQUEST = "request.json"
ORDER = "order.json"
ORDERS = "orders"
"""Folder beside that of the jobs, with root's own copies of their orders."""
VERIFIED = "verified.jsonl"
PROGRESS = "progress.json"
RESULT = "result.json"

LIMITS = frozenset({"limit_bytes_per_second", "workers", "streams", "floor_bytes"})
"""Keys of an order that say how fast it goes, or how far, and not what is to be done."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class JobError(SparkPairError):
    """A job could not be started, stopped or found; nothing was touched."""

    exit = Exit.REFUSED


class JobStoppedError(SparkPairError):
    """The job was asked to stop and did, keeping what it has; for the job's own code to raise."""

    exit = Exit.GAVE_UP


class JobFailedError(SparkPairError):
    """The job ended without what it was for; `data` is handed to whoever started it."""

    def __init__(self, words: str, data: Mapping[str, Any]) -> None:
        super().__init__(words)
        self.data = data


def check_name(name: str) -> str:
    """The name itself; DescriptionError when it cannot name a job."""
    if not _NAME.fullmatch(name):
        raise DescriptionError(
            f"{name!r} cannot name a job: use lower-case letters, digits and hyphens, at most 63, "
            "and no hyphen first"
        )
    return name


def unit_of(name: str) -> str:
    """The unit that carries the job."""
    return f"spark-pair-job-{check_name(name)}.service"


@dataclass(frozen=True)
class Request:
    """What was asked for. Secrets are here by name only."""

    id: str
    at: float
    """Epoch seconds of the start."""
    boot: str
    """The boot of the machine in which it was started."""
    argv: tuple[str, ...]
    words: str = ""
    """What the job does, for people: "download checkpoint"."""
    user: str = ""
    """Account that it runs as; empty for root."""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    """Working directory; empty for systemd's choice."""
    secrets: tuple[str, ...] = ()
    caps: Mapping[str, int] = field(default_factory=dict)
    order: str = ""
    """What tells one order from another; empty without one."""
    record: bool = False
    """Whether what it proves is recorded at its end."""

    def same_work(self, other: Request) -> bool:
        """Whether both ask for the same, however they are called, capped or let in."""
        return self._work() == other._work()

    def _work(self) -> tuple[object, ...]:
        return (
            self.argv, self.user, self.environment, self.folder, self.order, self.record,
        )  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """How far a job is, in bytes."""

    done: int
    total: int | None
    """None when nobody knows how much there is."""
    rate: float | None
    """Bytes per second of the last half minute; None before there is any."""
    left_seconds: float | None
    step: str
    at: float
    """Epoch seconds when this was true."""


@dataclass(frozen=True)
class JobResult:
    """How a run of a job ended."""

    ok: bool
    message: str
    exit: int
    """Exit code of its program; 128 and above for a signal, as a shell would tell it."""
    at: float
    stopped: bool = False
    """Ended because somebody asked it to."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the job hands to whoever started it: what it has verified, for instance."""


class JobState(StrEnum):
    """What can be said about a job."""

    ABSENT = "absent"
    """Never started on this host."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    """Neither running nor ended: the machine was booted, or the disk refused the result."""


@dataclass(frozen=True)
class JobView:
    """A job as one look found it."""

    name: str
    state: JobState
    message: str = ""
    """How it ended, in words; empty while it runs."""
    request: Request | None = None
    progress: Progress | None = None
    result: JobResult | None = None

    @property
    def words(self) -> str:
        """What the job is about at the moment."""
        step = self.progress.step if self.progress else ""
        return step or (self.request.words if self.request else "") or self.name

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


# ---- the files --------------------------------------------------------------------------------


def write_request(folder: Path, request: Request) -> None:
    """Replace the request; OSError when the disk refuses."""
    jsonfile.write(folder / REQUEST, {"schema": SCHEMA, **asdict(request)})


def write_order(folder: Path, order: Mapping[str, Any]) -> None:
    """Replace the order; OSError when the disk refuses."""
    jsonfile.write(folder / ORDER, order)


def order_digest(order: Mapping[str, Any] | None) -> str:
    """The same for two orders of the same work, whatever their limits; empty for none."""
    if order is None:
        return ""
    work = {key: value for key, value in order.items() if key not in LIMITS}
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def kept_order(jobs: Path, name: str) -> Path:
    """Root's own copy of the order of a job, whose folder below `jobs` belongs to its account."""
    return jobs.parent / ORDERS / f"{check_name(name)}.json"


def covers(running: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether carrying out `running` does all that `wanted` asks for.

    A job may have begun with files that are recorded by now: who asks again asks for fewer.
    """
    if not {"files", "manifest"} <= set(wanted):
        return False
    return _of_one_commit(running) == _of_one_commit(wanted) and (
        set(wanted["files"]) <= set(running.get("files", ()))
    )


def _of_one_commit(order: Mapping[str, Any]) -> dict[str, Any]:
    """What must be alike, whatever the files and the limits."""
    rest = {key: value for key, value in order.items() if key not in LIMITS | {"files"}}
    manifest = rest.get("manifest")
    if isinstance(manifest, Mapping):
        rest["manifest"] = (manifest.get("repo"), manifest.get("commit"))
    return rest


def write_progress(folder: Path, run: str, progress: Progress) -> None:
    """Replace the progress of run `run`. Not flushed: losing it costs one line on a screen."""
    data = {"schema": SCHEMA, "id": run, **asdict(progress)}
    jsonfile.write(folder / PROGRESS, data, flush=False)


def write_result(folder: Path, run: str, result: JobResult) -> None:
    """Replace the result of run `run`."""
    jsonfile.write(folder / RESULT, {"schema": SCHEMA, "id": run, **asdict(result)})


def read_request(folder: Path) -> Request | None:
    """The request; None when there is none that can be understood."""
    data = _read(folder / REQUEST)
    try:
        return Request(
            id=str(data["id"]),
            at=float(data["at"]),
            boot=str(data["boot"]),
            argv=tuple(str(word) for word in data["argv"]),
            words=str(data["words"]),
            user=str(data["user"]),
            environment={str(key): str(value) for key, value in data["environment"].items()},
            folder=str(data["folder"]),
            secrets=tuple(str(name) for name in data["secrets"]),
            caps={str(key): int(value) for key, value in data["caps"].items()},
            order=str(data.get("order", "")),
            record=bool(data.get("record", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def read_progress(folder: Path, run: str) -> Progress | None:
    """The progress of run `run`; None when there is none, or it is another run's."""
    data = _read(folder / PROGRESS)
    try:
        if data["id"] != run:
            return None
        return Progress(
            done=int(data["done"]),
            total=None if data["total"] is None else int(data["total"]),
            rate=None if data["rate"] is None else float(data["rate"]),
            left_seconds=None if data["left_seconds"] is None else float(data["left_seconds"]),
            step=str(data["step"]),
            at=float(data["at"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_result(folder: Path, run: str) -> JobResult | None:
    """The result of run `run`; None when there is none, or it is another run's."""
    data = _read(folder / RESULT)
    try:
        if data["id"] != run:
            return None
        return JobResult(
            ok=bool(data["ok"]),
            message=str(data["message"]),
            exit=int(data["exit"]),
            at=float(data["at"]),
            stopped=bool(data["stopped"]),
            data=dict(data["data"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _read(path: Path) -> dict[str, Any]:
    # The folder is the account's, and root reads here too.
    data = jsonfile.read_guarded(path)
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}
