"""Changes the rails of one host under a dead man's switch.

One file without any import of ours: it is copied to a host that has no tool yet, and it must still
run there at the next boot, whatever has become of the controller. Verbs:

  apply PLAN             keep what is there, arm the restore, write, activate, read back
  confirm ID             the rails are proven: disarm
  restore [ID]           put everything back as it was
  restore --unconfirmed  the same, only when nobody has confirmed (the timer's verb)
  restore --boot         the same while the machine boots: before a renderer runs, only the files

Each verb may be repeated. Only the rails are ever activated, never the whole network: the way by
which the operator came stays up.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BASE = "/var/lib/spark-pair/network"
JOB = f"{BASE}/job.py"
STATE = f"{BASE}/state.json"
ENDED = f"{BASE}/state-restored.json"
"""The state after a restore, written before a change: a full disk can still rename it."""
LOCK = f"{BASE}/lock"
REPORTS = "/var/lib/spark-pair/jobs/network"
TIMER = "spark-pair-job-network-restore"
BOOT_UNIT = "spark-pair-network-restore.service"
SWITCH_UNIT = "spark-pair-switch.service"
SWITCH_LOCK = "/run/spark-pair/switch.lock"
_UNITS = "/etc/systemd/system"
_BOOT_FILE = f"{_UNITS}/{BOOT_UNIT}"
_BOOT_LINK = f"{_UNITS}/multi-user.target.wants/{BOOT_UNIT}"
_BESIDE = ".spark-pair-new"
"""Ends the name of a file that is being written; netplan reads only what ends in .yaml."""
_BEFORE = ".spark-pair-before"
"""Ends the name under which an original stays beside its place, so that renaming brings it back."""
_KEPT_CHANGES = 5

_LOCK_SECONDS = 240
_READ_BACK_SECONDS = 20
_SETTLE_SECONDS = 12
_QUIET_LOOKS = 4
_PAUSE = 0.5
_TRY_AGAIN_SECONDS = 10
_TRIES_AN_HOUR = 60

_BOOT_TEXT = """\
# Written by spark-pair while a change of the rails waits for its proof; removed when it is proven.
[Unit]
Description=Put the rails back as they were, unless their change was confirmed
# Before anything brings the rails up with what nobody has confirmed.
DefaultDependencies=no
After=local-fs.target
Before=network-pre.target shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target
RequiresMountsFor=/var/lib/spark-pair /etc/netplan
ConditionPathExists={job}
StartLimitIntervalSec=1h
StartLimitBurst={tries}

[Service]
Type=oneshot
ExecStart={python} -I {job} restore --boot
TimeoutStartSec=400
Restart=on-failure
RestartSec={pause}

[Install]
WantedBy=multi-user.target
"""


class Said(NamedTuple):
    """What a program left behind."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The end of what it said, on one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return " / ".join(lines[-3:]) or f"exit code {self.code}, no output"


class JobError(Exception):
    """The job cannot go on; the message says why, for the person who reads it."""


class RefusedError(JobError):
    """Nothing was touched."""


def run(argv: Sequence[str], timeout: float) -> Said:
    """Run a program to its end or to `timeout` seconds; never raises for its failure."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Said(124, "", f"{argv[0]}: no end after {timeout:g} s")
    except OSError as error:
        return Said(127, "", f"{argv[0]}: {error.strerror or error}")
    return Said(done.returncode, done.stdout, done.stderr)


def digest(data: bytes | None) -> str | None:
    """SHA-256 of a file's content, None for a file that is not there."""
    return None if data is None else hashlib.sha256(data).hexdigest()


class Files:
    """Every change of a file that the job makes; a name is its absolute path on the host."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def at(self, name: str) -> Path:
        """The path of `name` below the root."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> bytes | None:
        """Content, or None when there is no such file."""
        try:
            return self.at(name).read_bytes()
        except FileNotFoundError:
            return None

    def owner(self, name: str) -> tuple[int, int, int]:
        """Mode bits, user id and group id."""
        found = self.at(name).stat()
        return found.st_mode & 0o7777, found.st_uid, found.st_gid

    def write(
        self, name: str, data: bytes, mode: int, owner: tuple[int, int] | None = None
    ) -> None:
        """Write beside, flush to disk, rename: the old or the new content, never half of one."""
        path = self.at(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}{_BESIDE}")
        with beside.open("wb") as stream:
            beside.chmod(mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if owner is not None:
            os.chown(beside, *owner)
        beside.replace(path)
        self._flush(path.parent)

    def remove(self, name: str) -> None:
        """Remove a file or link, if it is there."""
        path = self.at(name)
        if path.parent.is_dir():
            path.unlink(missing_ok=True)
            self._flush(path.parent)

    def link(self, name: str, target: str) -> None:
        """Have `name` lead to `target`."""
        path = self.at(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        self._flush(path.parent)

    def clear_beside(self, name: str) -> None:
        """Remove what a write that was cut off has left."""
        self.remove(f"{name}{_BESIDE}")

    def set_aside(self, name: str) -> None:
        """Give a file a second name beside its own, under which it outlives being replaced."""
        path = self.at(name)
        aside = path.with_name(f"{path.name}{_BEFORE}")
        aside.unlink(missing_ok=True)
        os.link(path, aside)
        self._flush(path.parent)

    def rename(self, old: str, new: str) -> None:
        """Put a file in another's place, which needs no space on the disk."""
        self.at(old).replace(self.at(new))
        self._flush(self.at(new).parent)

    @staticmethod
    def _flush(folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Job:
    """The verbs, on one host."""

    def __init__(
        self,
        *,
        files: Files | None = None,
        runner: Callable[[Sequence[str], float], Said] = run,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        python: str = sys.executable,
    ) -> None:
        self.files = files or Files()
        self.runner = runner
        self.clock = clock
        self.sleep = sleep
        self.python = python

    # ---- the verbs

    def apply(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Write and activate; on any failure everything is put back at once.

        `plan` holds: id, confirm_seconds, renderer, interfaces {name: {address, mtu}}, writes
        [{path, content, mode}], removes [path], expect {path: sha256 or null}. Raises
        RefusedError when nothing was touched.
        """
        try:
            state = self.state()
        except JobError as error:
            raise RefusedError(str(error)) from error
        if state and state["phase"] == "armed":
            if state["id"] == plan["id"]:
                return self._told("apply", state, "is applied and waits to be confirmed")
            raise RefusedError(
                "an earlier change of the rails is not confirmed and will be put back by itself"
            )
        with self._no_switch():
            if not plan.get("allow_disruption"):
                self._nobody_computes()
            for name, known in plan["expect"].items():
                if digest(self.files.read(name)) != known:
                    raise RefusedError(f"{name} was changed by somebody else in the meantime")
            return self._change(plan)

    def _change(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        self.progress("arming")
        try:
            state = self._arm(plan)
        except OSError as error:
            self._disarm()
            raise RefusedError(f"the originals could not be kept: {error}") from error
        try:
            self._write(plan, state)
            self._activate(plan)
            self._read_back(plan)
        except (JobError, OSError) as error:
            try:
                self.restore(reason=str(error))
            except (JobError, OSError) as failed:
                raise JobError(f"{error}; {failed}") from error
            raise JobError(f"{error}; everything was put back as it was") from error
        self.progress("waiting to be confirmed")
        return self._told("apply", state, "is applied and waits to be confirmed", changed=True)

    def confirm(self, identity: str) -> dict[str, Any]:
        """Keep the change. Raises RefusedError when it has been put back already."""
        state = self.state()
        if not state or state["id"] != identity:
            raise RefusedError("there is no such change to confirm")
        if state["phase"] == "restored":
            raise RefusedError("it was too late to confirm: the former configuration is back")
        new = state["phase"] == "armed"
        state = {**state, "phase": "confirmed"}
        self._save(state)
        self._disarm(state)
        self._prune(state)
        return self._told("confirm", state, "is confirmed", changed=new)

    def restore(
        self,
        *,
        identity: str = "",
        unconfirmed_only: bool = False,
        booting: bool = False,
        reason: str = "",
    ) -> dict[str, Any]:
        """Put back files, addresses and MTU as they were before `apply`; may be repeated.

        Raises JobError when a file could not be put back, after everything else was: then the
        change stays armed, and the timer's unit tries again.
        """
        try:
            state = self._known_state()
        except JobError:
            self._disarm()
            raise
        if not state:
            self._disarm()
        # Another change, armed perhaps, keeps its timer.
        if not state or (identity and state["id"] != identity):
            return {
                "verb": "restore",
                "ok": True,
                "changed": False,
                "message": "there was nothing to put back",
            }
        if state["phase"] == "restored" or (unconfirmed_only and state["phase"] == "confirmed"):
            self._disarm(state)
            return self._told("restore", state, f"is {state['phase']}, there is nothing to do")
        self.progress("putting everything back")
        left, failed = self._put_back(state)
        self._reactivate(state, booting=booting)
        if failed:
            raise JobError(
                f"{' and '.join(failed)} could not be put back; addresses and MTU are as they "
                "were, but only until a boot. It is tried again; by hand: "
                f"sudo python3 {JOB} restore {state['id']}"
            )
        state = {**state, "phase": "restored", "left": left, "reason": reason}
        self._save_restored(state)
        self._disarm(state)
        words = "is put back as it was"
        if left:
            words += (
                f", except {' and '.join(left)}: edited since, and left as it is. "
                f"What was there before is kept in {state['kept']}"
            )
        return self._told("restore", state, words, changed=True)

    # ---- what may be at work

    @contextlib.contextmanager
    def _no_switch(self) -> Iterator[None]:
        """No switch of servers is at work here, and none begins; else RefusedError.

        Between a stop and a start nothing serves and nothing computes, and yet the rails are about
        to be needed.
        """
        said = self.runner(["systemctl", "is-active", SWITCH_UNIT], 10).out.strip()
        if said in ("active", "activating", "reloading", "deactivating"):
            raise RefusedError(f"a switch of servers is at work here ({SWITCH_UNIT} is {said})")
        path = self.files.at(SWITCH_LOCK)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError("a switch of servers is at work here") from None
            yield

    def _nobody_computes(self) -> None:
        """RefusedError when something computes on the GPU, or when nobody can say."""
        said = self.runner(
            ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"], 30
        )
        if said.code == 127 and not self.files.at("/proc/driver/nvidia").exists():
            return
        if said.code != 0:
            raise RefusedError(f"processes on the GPU cannot be listed: {said.words}")
        rows = [line.strip() for line in said.out.splitlines() if line.strip()]
        if rows:
            raise RefusedError(f"process {' and '.join(rows)} has begun to compute on the GPU")

    # ---- keeping and arming

    def state(self) -> dict[str, Any] | None:
        """What is known about the newest change, None when there was none.

        Raises JobError when it cannot be understood.
        """
        return self._read_state(STATE)

    def _read_state(self, name: str) -> dict[str, Any] | None:
        data = self.files.read(name)
        if data is None:
            return None
        try:
            found = dict(json.loads(data))
            return {**found, "id": found["id"], "phase": found["phase"]}
        except (ValueError, TypeError, KeyError):
            raise JobError(
                f"{name}, which knows the newest change of the rails, is damaged. What was there "
                f"before each change is kept in {BASE}/kept: compare it with /etc/netplan, then "
                f"remove {name}"
            ) from None

    def _known_state(self) -> dict[str, Any] | None:
        """The state, or what was written beside it when the change was armed."""
        try:
            return self.state()
        except JobError:
            spare = self._read_state(ENDED)
            if spare is None:
                raise
            return {**spare, "phase": "armed"}

    def _arm(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the originals, then have the restore wait, then say so: in this order.

        Cut off anywhere in here, nothing of the configuration has been touched, and a restore
        that fires finds nothing to do.
        """
        kept = f"{BASE}/kept/{plan['id']}"
        after: dict[str, bytes | None] = {
            item["path"]: item["content"].encode() for item in plan["writes"]
        }
        after.update(dict.fromkeys(plan["removes"]))
        files = [self._keep(name, kept, data) for name, data in after.items()]
        state = {
            "id": plan["id"],
            "phase": "armed",
            "kept": kept,
            "deadline": self.clock() + plan["confirm_seconds"],
            "files": files,
            "interfaces": dict(plan["interfaces"]),
            "runtime": {
                name: {**self._look(name), "profile": self._profile(name)}
                for name in plan["interfaces"]
            },
        }
        text = _BOOT_TEXT.format(
            python=self.python, job=JOB, pause=_TRY_AGAIN_SECONDS, tries=_TRIES_AN_HOUR
        )
        self.files.write(_BOOT_FILE, text.encode(), 0o644)
        self.files.link(_BOOT_LINK, _BOOT_FILE)
        self.runner(["systemctl", "stop", f"{TIMER}.timer", f"{TIMER}.service"], 20)
        timer = self.runner(
            [
                "systemd-run", "--quiet", "--collect", f"--unit={TIMER}",
                f"--on-active={plan['confirm_seconds']}s", "--timer-property=AccuracySec=200ms",
                "--property=Restart=on-failure", f"--property=RestartSec={_TRY_AGAIN_SECONDS}",
                "--property=StartLimitIntervalSec=1h",
                f"--property=StartLimitBurst={_TRIES_AN_HOUR}",
                "--", self.python, "-I", JOB, "restore", "--unconfirmed",
            ],
            20,
        )  # fmt: skip
        if timer.code != 0:
            self._disarm()
            raise RefusedError(f"the timer of the restore could not be started: {timer.words}")
        ended = {**state, "phase": "restored", "left": [], "reason": "put back on a full disk"}
        self._save(ended, ENDED)
        self._save(state)
        return state

    def _keep(self, name: str, kept: str, after: bytes | None) -> dict[str, Any]:
        before = self.files.read(name)
        found: dict[str, Any] = {"path": name, "before": digest(before), "after": digest(after)}
        if before is not None:
            found["copy"] = f"{kept}{name}"
            found["mode"], found["uid"], found["gid"] = self.files.owner(name)
            self.files.write(found["copy"], before, 0o600)
        return found

    def _disarm(self, state: Mapping[str, Any] | None = None) -> None:
        """Nothing is left to fire, now or at the next boot, nor any second name of an original.

        What cannot be removed does no harm: it fires and finds nothing to do.
        """
        asides = [f"{item['path']}{_BEFORE}" for item in state["files"]] if state else []
        for name in (_BOOT_LINK, _BOOT_FILE, ENDED, *asides):
            with contextlib.suppress(OSError):
                self.files.remove(name)
        self.runner(["systemctl", "stop", f"{TIMER}.timer"], 20)

    def _prune(self, state: Mapping[str, Any]) -> None:
        """Keep the originals of the newest changes only; their names sort by time."""
        folder = self.files.at(f"{BASE}/kept")
        names = sorted(path.name for path in folder.glob("*") if path.name != state["id"])
        for name in names[: -(_KEPT_CHANGES - 1)]:
            shutil.rmtree(folder / name, ignore_errors=True)

    def _save(self, state: Mapping[str, Any], name: str = STATE) -> None:
        self.files.write(name, json.dumps(state, indent=1).encode(), 0o600)

    def _save_restored(self, state: Mapping[str, Any]) -> None:
        """Note the end of a restore, on a full disk by what was written before the change."""
        try:
            self._save(state)
        except OSError:
            spare = self._read_state(ENDED)
            if spare is None or spare["id"] != state["id"]:
                raise
            self.files.rename(ENDED, STATE)

    # ---- changing

    def _write(self, plan: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.progress("writing")
        for item in state["files"]:
            if item["before"] is not None:
                self.files.set_aside(item["path"])
        for item in plan["writes"]:
            owner = (0, 0) if os.geteuid() == 0 else None
            self.files.write(item["path"], item["content"].encode(), item["mode"], owner)
        for name in plan["removes"]:
            self.files.remove(name)

    def _activate(self, plan: Mapping[str, Any]) -> None:
        """Have the renderer take the new configuration, for the rails and nothing else."""
        self.progress("activating")
        self._must(["netplan", "generate"], 60)
        if plan["renderer"] == "NetworkManager":
            self._must(["nmcli", "connection", "reload"], 30)
            for name in plan["interfaces"]:
                self._must(["nmcli", "--wait", "30", "connection", "up", f"netplan-{name}"], 45)
        else:
            self._must(["networkctl", "reload"], 30)
            for name in plan["interfaces"]:
                self._must(["networkctl", "reconfigure", name], 30)

    def _read_back(self, plan: Mapping[str, Any]) -> None:
        """Every rail has its address and nothing else, and its MTU."""
        self.progress("reading back")
        until = self.clock() + _READ_BACK_SECONDS
        while True:
            wrong = [
                words
                for name, wanted in plan["interfaces"].items()
                for words in self._differences(name, wanted)
            ]
            if not wrong:
                return
            if self.clock() >= until:
                raise JobError(f"read back after {_READ_BACK_SECONDS} s: {'; '.join(wrong)}")
            self.sleep(_PAUSE)

    def _differences(self, name: str, wanted: Mapping[str, Any]) -> list[str]:
        found = self._look(name)
        has = [item["address"] for item in found["addresses"] if ":" not in item["address"]]
        wrong = []
        if wanted["address"] not in has:
            wrong.append(f"{name} has {', '.join(has) or 'no address'}, not {wanted['address']}")
        for stray in has:
            # What somebody added by hand or what a profile has left behind.
            if (
                stray not in (wanted["address"], *wanted.get("keeps", ()))
                and wanted["address"] in has
            ):
                self.runner(["ip", "address", "del", stray, "dev", name], 10)
                wrong.append(f"{name} still has {stray} besides its own address")
        if wanted["mtu"] is not None and found["mtu"] != wanted["mtu"]:
            wrong.append(f"{name} has MTU {found['mtu']}, not {wanted['mtu']}")
        return wrong

    # ---- putting back

    def _put_back(self, state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Restore every file that is as we left it.

        Names of those that somebody edited since, and what went wrong with others, in words.
        """
        left, failed = [], []
        for item in state["files"]:
            try:
                if not self._put_back_file(item):
                    left.append(item["path"])
            except OSError as error:
                failed.append(f"{item['path']} ({error.strerror or error})")
        return left, failed

    def _put_back_file(self, item: Mapping[str, Any]) -> bool:
        """Whether a file is as it was; otherwise somebody has edited it, and it is left."""
        name, before = item["path"], item["before"]
        self.files.clear_beside(name)
        present = digest(self.files.read(name))
        if present not in (before, item["after"]):
            return False
        if before is None:
            self.files.remove(name)
        elif digest(self.files.read(f"{name}{_BEFORE}")) == before:
            self.files.rename(f"{name}{_BEFORE}", name)
        elif present != before:
            data = self.files.read(item["copy"])
            if data is None or digest(data) != before:
                return False
            self.files.write(name, data, item["mode"], (item["uid"], item["gid"]))
        return True

    def _reactivate(self, state: Mapping[str, Any], *, booting: bool) -> None:
        """Have whichever renderer is there take the former configuration, then mend the rest.

        Failures are not fatal here: what was never configured has nothing to be activated, and
        addresses and MTU are put back by hand if the renderer does not. While the machine boots,
        the renderers are still to come and find the former files; only udev may have set an MTU.
        """
        self.runner(["netplan", "generate"], 60)
        names = list(state["interfaces"])
        manager = self._active("NetworkManager.service")
        networkd = self._active("systemd-networkd.service")
        if booting and not manager and not networkd:
            for name, was in state["runtime"].items():
                for argv in self._mtu_back(name, was, self._look(name)):
                    self.runner(argv, 10)
            return
        if manager:
            self.runner(["nmcli", "connection", "reload"], 30)
            for name in names:
                profile = state["runtime"][name]["profile"]
                if profile:
                    argv = ["nmcli", "--wait", "10", "connection", "up", "uuid", profile]
                    self.runner(argv, 20)
        if networkd:
            self.runner(["networkctl", "reload"], 30)
            for name in names:
                self.runner(["networkctl", "reconfigure", name], 30)
        self._settle(state)

    def _settle(self, state: Mapping[str, Any]) -> None:
        """Mend addresses and MTU until they stay as they were; a renderer works in its own time."""
        until = self.clock() + _SETTLE_SECONDS
        quiet = 0
        while quiet < _QUIET_LOOKS and self.clock() < until:
            mended = [self._mend(name, was, state) for name, was in state["runtime"].items()]
            quiet = 0 if any(mended) else quiet + 1
            self.sleep(_PAUSE)

    def _mend(self, name: str, was: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Whether something had to be put back on an interface."""
        now = self._look(name)
        has = {item["address"] for item in now["addresses"]}
        had = {item["address"] for item in was["addresses"]}
        ours = state["interfaces"][name]["address"]
        todo = []
        if was["up"] and not now["up"]:
            todo.append(["ip", "link", "set", "dev", name, "up"])
        todo += self._mtu_back(name, was, now)
        if ours in has and ours not in had:
            todo.append(["ip", "address", "del", ours, "dev", name])
        for item in was["addresses"]:
            # Leases and self-given addresses come back by the renderer, or others in their place.
            if item["address"] not in has and not item["passing"]:
                todo.append(["ip", "address", "add", item["address"], "dev", name])
        for argv in todo:
            self.runner(argv, 10)
        return bool(todo)

    @staticmethod
    def _mtu_back(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[list[str]]:
        if was["mtu"] is None or now["mtu"] in (None, was["mtu"]):
            return []
        return [["ip", "link", "set", "dev", name, "mtu", str(was["mtu"])]]

    # ---- small things

    def _look(self, name: str) -> dict[str, Any]:
        """Addresses, MTU and whether it is up, as the kernel says now.

        IPv6 addresses of the link alone are left out: the kernel gives them by itself.
        """
        said = self.runner(["ip", "-json", "address", "show", "dev", name], 10)
        try:
            rows = json.loads(said.out) if said.code == 0 else []
        except ValueError:
            rows = []
        row: dict[str, Any] = next((item for item in rows if item.get("ifname") == name), {})
        return {
            "up": "UP" in row.get("flags", []),
            "mtu": row.get("mtu"),
            "addresses": [
                {
                    "address": f"{item['local']}/{item['prefixlen']}",
                    "passing": bool(item.get("dynamic")) or item["local"].startswith("169.254."),
                }
                for item in row.get("addr_info", [])
                if item.get("family") in ("inet", "inet6") and not item["local"].startswith("fe80:")
            ],
        }

    def _profile(self, name: str) -> str:
        """The profile that NetworkManager has on an interface, by its UUID; "" without one."""
        said = self.runner(["nmcli", "-g", "GENERAL.CON-UUID", "device", "show", name], 10)
        return said.out.strip() if said.code == 0 else ""

    def _active(self, unit: str) -> bool:
        return self.runner(["systemctl", "is-active", "--quiet", unit], 10).code == 0

    def _must(self, argv: Sequence[str], timeout: float) -> None:
        said = self.runner(argv, timeout)
        if said.code != 0:
            raise JobError(f"'{' '.join(argv)}' failed: {said.words}")

    def _told(
        self, verb: str, state: Mapping[str, Any], words: str, *, changed: bool = False
    ) -> dict[str, Any]:
        return {
            "verb": verb,
            "id": state["id"],
            "ok": True,
            "changed": changed,
            "phase": state["phase"],
            "left": state.get("left", []),
            "message": f"the change of the rails {words}",
        }

    def progress(self, step: str) -> None:
        """Say what is being done, for whoever follows."""
        self._report("progress", {"step": step, "at": self.clock()})

    def finished(self, result: Mapping[str, Any]) -> None:
        """Leave the result for whoever follows."""
        self._report("result", {**result, "at": self.clock()})

    def _report(self, name: str, data: Mapping[str, Any]) -> None:
        # A full disk must not keep anything from being put back.
        with contextlib.suppress(OSError):
            self.files.write(f"{REPORTS}/{name}.json", json.dumps(data).encode(), 0o644)


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """One job at a time; raises RefusedError when another one is at work for `seconds`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        until = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise RefusedError(
                        f"another change of the rails is at work since {seconds:g} s"
                    ) from None
                time.sleep(0.2)
        yield


def act(job: Job, words: Sequence[str]) -> dict[str, Any]:
    """Do what the command line says; the result as data, also of a failure."""
    verb = words[0] if words else ""
    try:
        if verb == "apply" and len(words) == 2:
            return job.apply(json.loads(Path(words[1]).read_text(encoding="utf-8")))
        if verb == "confirm" and len(words) == 2:
            return job.confirm(words[1])
        if verb == "restore" and words[1:] == ["--unconfirmed"]:
            return job.restore(unconfirmed_only=True, reason="nobody confirmed it in time")
        if verb == "restore" and words[1:] == ["--boot"]:
            return job.restore(
                unconfirmed_only=True, booting=True, reason="nobody confirmed it before a boot"
            )
        if verb == "restore" and len(words) <= 2:
            return job.restore(identity=words[1] if len(words) == 2 else "", reason="asked for")
    except RefusedError as error:
        return _refused(verb, str(error))
    except (JobError, OSError) as error:
        return {"verb": verb, "ok": False, "changed": True, "message": str(error)}
    return _refused(verb, (__doc__ or "").strip())


def _refused(verb: str, words: str) -> dict[str, Any]:
    return {"verb": verb, "ok": False, "refused": True, "changed": False, "message": words}


def told_by(output: str) -> dict[str, Any] | None:
    """What `main` has printed at the end of a verb; None when it did not come to its end."""
    lines = output.strip().splitlines()
    try:
        return dict(json.loads(lines[-1])) if lines else None
    except (ValueError, TypeError):
        return None


def main(words: Sequence[str]) -> int:
    """Run one verb under the lock."""
    job = Job()
    try:
        with locked(job.files.at(LOCK), _LOCK_SECONDS):
            result = act(job, words)
            job.finished(result)
    except RefusedError as error:
        result = _refused(words[0] if words else "", str(error))
    # Whoever asked may be gone; what was done stays done.
    with contextlib.suppress(OSError):
        print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 10 if result.get("refused") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
