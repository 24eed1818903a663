"""The job that changes a host's rails, on a temporary root with a host that is played."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_pair import paths
from spark_pair.rails import job
from spark_pair.rails.job import Files, Job, JobError, RefusedError, Said

FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
TARGET, OLD = "/etc/netplan/40-cx7.yaml", "/etc/netplan/cx7-netplan.yaml"
OTHER = "/etc/netplan/01-network-manager-all.yaml"
NEW_TEXT = yaml.safe_dump(
    {
        "network": {
            "ethernets": {
                FIRST: {"addresses": ["192.168.177.11/24"], "mtu": 9000},
                SECOND: {"addresses": ["192.168.178.11/24"], "mtu": 9000},
            }
        }
    }
)
OLD_TEXT = f"# by hand\nnetwork: {{ethernets: {{{FIRST}: {{addresses: [10.0.0.1/24]}}}}}}\n"


class PowerCutError(BaseException):
    """Everything ends here, without a word."""


class Countdown:
    """Raises after a number of steps."""

    def __init__(self, steps: int | None) -> None:
        self.left = steps
        self.taken = 0

    def __call__(self) -> None:
        self.taken += 1
        if self.left is not None:
            if self.left == 0:
                raise PowerCutError
            self.left -= 1


class BrittleFiles(Files):
    """Files that can lose their power before and after each change."""

    def __init__(self, root: Path, step: Callable[[], None]) -> None:
        super().__init__(root)
        self.step = step

    def write(
        self, name: str, data: bytes, mode: int, owner: tuple[int, int] | None = None
    ) -> None:
        self.step()
        beside = self.at(f"{name}.spark-pair-new")
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data[: len(data) // 2])
        self.step()
        super().write(name, data, mode, None)
        self.step()

    def remove(self, name: str) -> None:
        self.step()
        super().remove(name)
        self.step()

    def link(self, name: str, target: str) -> None:
        self.step()
        super().link(name, target)
        self.step()

    def set_aside(self, name: str) -> None:
        self.step()
        super().set_aside(name)
        self.step()

    def rename(self, old: str, new: str) -> None:
        self.step()
        super().rename(old, new)
        self.step()


class FullDisk(Files):
    """Files on a disk that is full after a number of new files; names can still be moved."""

    def __init__(self, root: Path, room: int | None) -> None:
        super().__init__(root)
        self.room = room
        self.taken = 0

    def _take(self) -> None:
        self.taken += 1
        if self.room is not None and self.taken > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(
        self, name: str, data: bytes, mode: int, owner: tuple[int, int] | None = None
    ) -> None:
        self._take()
        super().write(name, data, mode, None)

    def link(self, name: str, target: str) -> None:
        self._take()
        super().link(name, target)

    def set_aside(self, name: str) -> None:
        self._take()
        super().set_aside(name)


class Machine:
    """A host with a kernel that has addresses, a renderer that reads files, and timers."""

    def __init__(self, root: Path, renderer: str = "networkd") -> None:
        self.root = root
        self.renderer = renderer
        self.addresses: dict[str, list[str]] = {FIRST: [], SECOND: []}
        self.mtu = {FIRST: 1500, SECOND: 1500}
        self.timers: set[str] = set()
        self.said: list[str] = []
        self.deaf: set[str] = set()
        """Programs that fail."""
        self.computing = ""
        self.switching = "inactive"
        self.now = 1000.0
        (root / "etc/netplan").mkdir(parents=True)
        (root / "etc/systemd/system").mkdir(parents=True)

    def configured(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted((self.root / "etc/netplan").glob("*.yaml")):
            data = yaml.safe_load(path.read_text()) or {}
            found.update((data.get("network") or {}).get("ethernets") or {})
        return found

    def activate(self, name: str) -> None:
        body = self.configured().get(name)
        if body is not None:
            self.addresses[name] = list(body.get("addresses", []))
            self.mtu[name] = body.get("mtu", self.mtu[name])

    def boot(self) -> None:
        """First udev, which sets the MTU of netplan's .link files; what is armed; the renderer."""
        self.timers.clear()
        for name in self.addresses:
            self.addresses[name] = []
            self.mtu[name] = self.configured().get(name, {}).get("mtu", 1500)
        link = self.root / "etc/systemd/system/multi-user.target.wants" / job.BOOT_UNIT
        if link.is_symlink():
            renderer, self.renderer, self.said = self.renderer, "", []
            with contextlib.suppress(JobError):
                self.job().restore(unconfirmed_only=True, booting=True)
            self.renderer = renderer
            assert not [
                said for said in self.said if said.startswith(("ip address", "nmcli", "networkctl"))
            ]
        for name in self.addresses:
            self.activate(name)

    def run(self, argv: Sequence[str], timeout: float) -> Said:
        words = " ".join(argv)
        self.said.append(words)
        if any(words.startswith(one) for one in self.deaf):
            return Said(1, "", "it will not")
        match list(argv):
            case ["ip", "-json", "address", "show", "dev", name]:
                return Said(0, self.shown(name), "")
            case ["ip", "address", "add", address, "dev", name]:
                self.addresses[name].append(address)
            case ["ip", "address", "del", address, "dev", name]:
                self.addresses[name].remove(address)
            case ["ip", "link", "set", "dev", name, "mtu", value]:
                self.mtu[name] = int(value)
            case ["networkctl", "reconfigure", name] if self.renderer == "networkd":
                self.activate(name)
            case ["nmcli", "--wait", _, "connection", "up", profile]:
                self.activate(profile.removeprefix("netplan-"))
            case ["systemd-run", *_]:
                self.timers.add(job.TIMER)
            case ["systemctl", "stop", timer, *_]:
                self.timers.discard(timer.removesuffix(".timer"))
            case ["systemctl", "is-active", job.SWITCH_UNIT]:
                return Said(0 if self.switching == "active" else 3, f"{self.switching}\n", "")
            case ["nvidia-smi", *_]:
                return Said(0, self.computing, "")
            case ["systemctl", "is-active", "--quiet", unit]:
                mine = {"networkd": "systemd-networkd", "NetworkManager": "NetworkManager"}
                return Said(0 if unit == f"{mine.get(self.renderer)}.service" else 3, "", "")
        return Said(0, "", "")

    def shown(self, name: str) -> str:
        found = [ipaddress.ip_interface(address) for address in self.addresses[name]]
        return json.dumps(
            [
                {},  # some versions of iproute2 print these
                {
                    "ifname": name,
                    "flags": ["UP"],
                    "mtu": self.mtu[name],
                    "addr_info": [
                        {
                            "family": "inet" if one.version == 4 else "inet6",
                            "local": str(one.ip),
                            "prefixlen": one.network.prefixlen,
                        }
                        for one in found
                    ],
                },
            ]
        )

    def job(self, cut: Countdown | None = None, *, files: Files | None = None) -> Job:
        step = cut or Countdown(None)

        def runner(argv: Sequence[str], timeout: float) -> Said:
            step()
            said = self.run(argv, timeout)
            step()
            return said

        def sleep(seconds: float) -> None:
            self.now += seconds

        return Job(
            files=files or BrittleFiles(self.root, step),
            runner=runner,
            clock=lambda: self.now,
            sleep=sleep,
            python="/usr/bin/python3",
        )

    def what_is_there(self) -> dict[str, Any]:
        """All that a restore must bring back."""
        folder = self.root / "etc"
        files = {
            str(path.relative_to(self.root)): (
                path.read_bytes(),
                path.lstat().st_mode,
                path.lstat().st_uid,
            )
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        return {
            "files": files,
            "addresses": {name: sorted(found) for name, found in self.addresses.items()},
            "mtu": dict(self.mtu),
            "timers": set(self.timers),
        }


def plan_for(machine: Machine, **changes: Any) -> dict[str, Any]:
    files = Files(machine.root)
    return {
        "id": "one",
        "confirm_seconds": 120,
        "renderer": machine.renderer,
        "interfaces": {
            FIRST: {"address": "192.168.177.11/24", "mtu": 9000},
            SECOND: {"address": "192.168.178.11/24", "mtu": 9000},
        },
        "writes": [{"path": TARGET, "content": NEW_TEXT, "mode": 0o600}],
        "removes": [OLD],
        "expect": {name: job.digest(files.read(name)) for name in (TARGET, OLD)},
        **changes,
    }


@pytest.fixture(params=["networkd", "NetworkManager"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    """A host with one rail configured in an old file and an address that nobody configured."""
    host = Machine(tmp_path, request.param)
    old = host.root / OLD.lstrip("/")
    old.write_text(OLD_TEXT)
    old.chmod(0o644)
    (host.root / OTHER.lstrip("/")).write_text("network: {renderer: NetworkManager}\n")
    host.addresses = {FIRST: ["10.0.0.1/24"], SECOND: ["10.9.9.9/24"]}
    return host


def is_new(machine: Machine) -> bool:
    return (
        machine.addresses == {FIRST: ["192.168.177.11/24"], SECOND: ["192.168.178.11/24"]}
        and machine.mtu == {FIRST: 9000, SECOND: 9000}
        and (machine.root / TARGET.lstrip("/")).read_text() == NEW_TEXT
        and not (machine.root / OLD.lstrip("/")).exists()
    )


def is_armed(machine: Machine) -> bool:
    link = machine.root / "etc/systemd/system/multi-user.target.wants" / job.BOOT_UNIT
    return job.TIMER in machine.timers and link.is_symlink()


def test_applied_and_confirmed(machine: Machine) -> None:
    told = machine.job().apply(plan_for(machine))
    assert told["ok"] and told["phase"] == "armed"
    assert is_new(machine) and is_armed(machine)
    assert (machine.root / TARGET.lstrip("/")).stat().st_mode & 0o777 == 0o600
    assert machine.job().confirm("one")["phase"] == "confirmed"
    assert is_new(machine) and not is_armed(machine)
    assert not list((machine.root / "etc/systemd/system").rglob("*restore*"))
    # The bytes of the file that gave way are kept, and the timer that fires late does no harm.
    kept = machine.root / f"var/lib/spark-pair/network/kept/one{OLD}"
    assert kept.read_text() == OLD_TEXT
    machine.job().restore(unconfirmed_only=True)
    assert is_new(machine)


def test_nothing_but_the_rails_is_ever_activated(machine: Machine) -> None:
    machine.job().apply(plan_for(machine))
    machine.job().restore()
    touching = [
        words
        for words in machine.said
        if words.startswith(("netplan", "networkctl", "nmcli"))
        and words not in ("netplan generate", "networkctl reload", "nmcli connection reload")
    ]
    assert touching
    assert all(FIRST in words or SECOND in words for words in touching), touching
    assert "netplan apply" not in machine.said


def test_a_restore_brings_back_every_byte(machine: Machine) -> None:
    before = machine.what_is_there()
    machine.job().apply(plan_for(machine))
    assert machine.what_is_there() != before
    told = machine.job().restore()
    assert told["phase"] == "restored" and told["left"] == []
    assert machine.what_is_there() == before
    again = machine.job().restore()
    assert again["ok"] and machine.what_is_there() == before


def test_a_restore_of_something_that_never_was_does_nothing(machine: Machine) -> None:
    before = machine.what_is_there()
    assert machine.job().restore()["ok"]
    assert machine.job().restore(unconfirmed_only=True)["ok"]
    assert machine.what_is_there() == before


def test_a_file_that_was_edited_since_is_left(machine: Machine) -> None:
    machine.job().apply(plan_for(machine))
    mine = "network: {}  # the operator's own\n"
    (machine.root / TARGET.lstrip("/")).write_text(mine)
    told = machine.job().restore(unconfirmed_only=True)
    assert told["left"] == [TARGET] and TARGET in told["message"]
    assert (machine.root / TARGET.lstrip("/")).read_text() == mine
    assert (machine.root / OLD.lstrip("/")).read_text() == OLD_TEXT
    assert not is_armed(machine)


def test_a_file_that_somebody_made_in_place_of_a_removed_one_is_left(machine: Machine) -> None:
    machine.job().apply(plan_for(machine))
    (machine.root / OLD.lstrip("/")).write_text("network: {}\n")
    assert machine.job().restore()["left"] == [OLD]
    assert (machine.root / OLD.lstrip("/")).read_text() == "network: {}\n"


def test_too_late_to_confirm(machine: Machine) -> None:
    machine.job().apply(plan_for(machine))
    machine.job().restore(unconfirmed_only=True)
    before = machine.what_is_there()
    with pytest.raises(RefusedError, match="too late"):
        machine.job().confirm("one")
    assert machine.what_is_there() == before
    with pytest.raises(RefusedError, match="no such change"):
        machine.job().confirm("another")


def test_a_confirmed_change_can_be_put_back_when_asked_for_by_name(machine: Machine) -> None:
    before = machine.what_is_there()
    machine.job().apply(plan_for(machine))
    machine.job().confirm("one")
    machine.job().restore(identity="another")
    assert is_new(machine)
    machine.job().restore(identity="one")
    assert machine.what_is_there() == before


def test_apply_and_confirm_may_be_repeated(machine: Machine) -> None:
    plan = plan_for(machine)
    machine.job().apply(plan)
    assert machine.job().apply(plan)["ok"]
    machine.job().confirm("one")
    assert machine.job().confirm("one")["ok"]
    assert is_new(machine)


def test_another_change_waits_for_the_first(machine: Machine) -> None:
    machine.job().apply(plan_for(machine))
    with pytest.raises(RefusedError, match="not confirmed"):
        machine.job().apply(plan_for(machine, id="two"))
    # Whoever gave up the second change must not disarm the first.
    machine.job().restore(identity="two")
    assert is_new(machine) and is_armed(machine)


def test_a_file_changed_since_the_plan_was_made_is_not_touched(machine: Machine) -> None:
    plan = plan_for(machine)
    (machine.root / OLD.lstrip("/")).write_text("network: {}\n")
    before = machine.what_is_there()
    with pytest.raises(RefusedError, match="somebody else"):
        machine.job().apply(plan)
    assert machine.what_is_there() == before


@pytest.mark.parametrize("program", ["netplan generate", "networkctl reload", "nmcli --wait"])
def test_a_failing_program_has_everything_put_back(tmp_path: Path, program: str) -> None:
    renderer = "NetworkManager" if program.startswith("nmcli") else "networkd"
    machine = Machine(tmp_path, renderer)
    machine.addresses[FIRST] = ["10.9.9.9/24"]
    before = machine.what_is_there()
    machine.deaf.add(program)
    with pytest.raises(JobError, match=r"it will not; everything was put back"):
        machine.job().apply(plan_for(machine, removes=[]))
    assert machine.what_is_there() == before


def test_without_its_timer_nothing_begins(machine: Machine) -> None:
    before = machine.what_is_there()
    machine.deaf.add("systemd-run")
    with pytest.raises(RefusedError, match="timer"):
        machine.job().apply(plan_for(machine))
    assert machine.what_is_there() == before


@pytest.mark.fault(10)
def test_an_address_that_does_not_come_is_not_believed(machine: Machine) -> None:
    """ "Active with no address": another profile has kept the port."""
    before = machine.what_is_there()
    activate = machine.activate
    machine.activate = lambda name: activate(name) if name == FIRST else None  # type: ignore[method-assign]
    with pytest.raises(JobError, match=rf"{SECOND} has 10.9.9.9/24, not 192.168.178.11/24"):
        machine.job().apply(plan_for(machine))
    assert machine.what_is_there() == before


@pytest.mark.fault(10)
def test_a_stray_address_is_taken_off(machine: Machine) -> None:
    activate = machine.activate

    def with_leftover(name: str) -> None:
        activate(name)
        machine.addresses[name].append("169.254.7.7/16")

    machine.activate = with_leftover  # type: ignore[method-assign]
    machine.job().apply(plan_for(machine))
    assert is_new(machine)


def cuts(tmp_path: Path, work: Callable[[Machine, Job], None]) -> int:
    """How many places there are at which the power can go while `work` is done."""
    machine = prepared(tmp_path / "rehearsal")
    counter = Countdown(None)
    work(machine, machine.job(counter))
    return counter.taken


def prepared(root: Path) -> Machine:
    root.mkdir(parents=True)
    host = Machine(root)
    (root / OLD.lstrip("/")).write_text(OLD_TEXT)
    (root / TARGET.lstrip("/")).write_text("network: {}\n# was here\n")
    host.addresses[FIRST] = ["10.0.0.1/24"]
    return host


def after_the_cut(machine: Machine, how: str) -> None:
    """The machine boots, or only the process has died and the timer fires in its time."""
    if how == "boot":
        machine.boot()
    elif job.TIMER in machine.timers:
        machine.timers.discard(job.TIMER)
        machine.job().restore(unconfirmed_only=True)


@pytest.mark.parametrize("how", ["boot", "timer"])
@pytest.mark.fault(10)
def test_a_cut_anywhere_in_apply_ends_as_it_was(tmp_path: Path, how: str) -> None:
    def work(machine: Machine, worker: Job) -> None:
        worker.apply(plan_for(machine))

    places = cuts(tmp_path, work)
    assert places > 50
    for place in range(places + 1):
        machine = prepared(tmp_path / f"{how}-{place}")
        before = machine.what_is_there()
        if place < places:
            with pytest.raises(PowerCutError):
                work(machine, machine.job(Countdown(place)))
        else:
            work(machine, machine.job())
        after_the_cut(machine, how)
        assert netplan_of(machine.what_is_there()) == netplan_of(before), place
        assert machine.what_is_there()["addresses"] == before["addresses"], place
        assert machine.what_is_there()["mtu"] == before["mtu"], place
        # Only what has reached the disk by its own name counts for netplan.
        begun = (machine.root / job.STATE.lstrip("/")).exists()
        if begun:
            assert not list((machine.root / "etc/netplan").glob("*spark-pair*")), place
            assert not is_armed(machine), place


def netplan_of(there: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: found
        for name, found in there["files"].items()
        if name.startswith("etc/netplan/") and name.endswith(".yaml")
    }


def test_a_cut_anywhere_in_restore_is_made_up_for_at_boot(tmp_path: Path) -> None:
    def work(machine: Machine, worker: Job) -> None:
        machine.job().apply(plan_for(machine))
        worker.restore(unconfirmed_only=True)

    places = cuts(tmp_path, work)
    assert places > 20
    for place in range(places):
        machine = prepared(tmp_path / f"{place}")
        before = machine.what_is_there()
        with pytest.raises(PowerCutError):
            work(machine, machine.job(Countdown(place)))
        after_the_cut(machine, "boot")
        assert netplan_of(machine.what_is_there()) == netplan_of(before), place
        assert machine.what_is_there()["addresses"] == before["addresses"], place


def test_a_cut_anywhere_in_confirm_ends_all_old_or_all_new(tmp_path: Path) -> None:
    def work(machine: Machine, worker: Job) -> None:
        machine.job().apply(plan_for(machine))
        worker.confirm("one")

    ends = set()
    for place in range(cuts(tmp_path, work)):
        machine = prepared(tmp_path / f"{place}")
        before = machine.what_is_there()
        with pytest.raises(PowerCutError):
            work(machine, machine.job(Countdown(place)))
        after_the_cut(machine, "boot")
        new = is_new(machine)
        assert new or netplan_of(machine.what_is_there()) == netplan_of(before), place
        assert not is_armed(machine)
        ends.add(new)
    assert ends == {True, False}


def full_after(machine: Machine, room: int | None) -> FullDisk:
    return FullDisk(machine.root, room)


def test_a_disk_that_fills_up_anywhere_in_apply_ends_as_it_was(tmp_path: Path) -> None:
    machine = prepared(tmp_path / "rehearsal")
    counter = full_after(machine, None)
    machine.job(files=counter).apply(plan_for(machine))
    ends = set()
    for room in range(counter.taken + 1):
        machine = prepared(tmp_path / f"{room}")
        before = machine.what_is_there()
        worker = machine.job(files=full_after(machine, room))
        try:
            worker.apply(plan_for(machine))
        except JobError as error:
            ends.add(type(error))
        else:
            # Full only now: the restore of the timer has no room at all.
            assert is_armed(machine)
            machine.job(files=full_after(machine, 0)).restore(unconfirmed_only=True)
        assert machine.what_is_there() == before, room
        # With room again, nothing is in the way of the next change.
        machine.job().apply(plan_for(machine, id="two"))
        assert is_new(machine)
    assert ends == {JobError, RefusedError}


def test_a_file_that_cannot_be_put_back_is_tried_again(machine: Machine) -> None:
    """The addresses come back at once, the file as soon as there is room."""
    before = machine.what_is_there()
    machine.job().apply(plan_for(machine))
    aside = machine.root / f"{OLD.lstrip('/')}.spark-pair-before"
    aside.unlink()  # so that the bytes have to be written
    with pytest.raises(JobError, match=rf"{OLD} .No space left on device. could not be put back"):
        machine.job(files=full_after(machine, 0)).restore(unconfirmed_only=True)
    assert machine.what_is_there()["addresses"] == before["addresses"]
    assert machine.what_is_there()["mtu"] == before["mtu"]
    assert not (machine.root / TARGET.lstrip("/")).exists()
    assert is_armed(machine)
    machine.job().restore(unconfirmed_only=True)
    assert machine.what_is_there() == before


def test_a_restore_that_fails_is_run_again_by_systemd(machine: Machine) -> None:
    machine.job().apply(plan_for(machine))
    (timer,) = [words for words in machine.said if words.startswith("systemd-run")]
    assert "--property=Restart=on-failure" in timer and "StartLimitBurst=" in timer
    unit = (machine.root / "etc/systemd/system" / job.BOOT_UNIT).read_text()
    assert "Restart=on-failure" in unit and "StartLimitBurst=" in unit


@pytest.mark.fault(10)
def test_a_boot_never_brings_up_what_nobody_has_confirmed(machine: Machine) -> None:
    """Nothing is activated twice: the renderer starts after the files are back."""
    machine.addresses[SECOND] = []
    before = machine.what_is_there()
    machine.job().apply(plan_for(machine))
    unit = (machine.root / "etc/systemd/system" / job.BOOT_UNIT).read_text()
    for words in ("Before=network-pre.target", "Wants=network-pre.target", "restore --boot"):
        assert words in unit
    assert "DefaultDependencies=no" in unit and "After=local-fs.target" in unit
    machine.boot()
    assert machine.what_is_there() == before


def test_a_restore_of_the_boot_that_comes_late_mends_the_rails(machine: Machine) -> None:
    before = machine.what_is_there()
    machine.job().apply(plan_for(machine))
    assert job.act(machine.job(), ["restore", "--boot"])["phase"] == "restored"
    assert machine.what_is_there() == before


@pytest.mark.parametrize("state", ["active", "activating"])
def test_no_change_in_the_middle_of_a_switch(machine: Machine, state: str) -> None:
    before = machine.what_is_there()
    machine.switching = state
    with pytest.raises(RefusedError, match="a switch of servers is at work"):
        machine.job().apply(plan_for(machine, allow_disruption=True))
    machine.switching = "inactive"
    lock = machine.root / job.SWITCH_LOCK.lstrip("/")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(RefusedError, match="a switch of servers is at work"):
            machine.job().apply(plan_for(machine))
    assert machine.what_is_there() == before
    machine.job().apply(plan_for(machine))
    with lock.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_began_to_compute_meanwhile_keeps_its_rails(machine: Machine) -> None:
    before = machine.what_is_there()
    machine.computing = "4711, python3\n"
    with pytest.raises(RefusedError, match="process 4711, python3 has begun"):
        machine.job().apply(plan_for(machine))
    machine.deaf.add("nvidia-smi")
    with pytest.raises(RefusedError, match="cannot be listed: it will not"):
        machine.job().apply(plan_for(machine))
    assert machine.what_is_there() == before
    machine.job().apply(plan_for(machine, allow_disruption=True))
    assert is_new(machine)


def test_a_static_ipv6_address_comes_back(machine: Machine) -> None:
    machine.addresses[SECOND].append("2001:db8::7/64")
    before = machine.what_is_there()
    machine.job().apply(plan_for(machine))
    machine.job().restore()
    assert machine.what_is_there() == before


def test_an_ipv6_address_is_no_stray(machine: Machine) -> None:
    activate = machine.activate

    def with_ipv6(name: str) -> None:
        activate(name)
        machine.addresses[name] += ["fe80::1/64", "2001:db8::7/64"]

    machine.activate = with_ipv6  # type: ignore[method-assign]
    machine.job().apply(plan_for(machine))
    assert "2001:db8::7/64" in machine.addresses[FIRST]


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}"])
def test_a_damaged_state_is_told_in_words(machine: Machine, damage: str) -> None:
    before = machine.what_is_there()
    machine.job().apply(plan_for(machine))
    state = machine.root / job.STATE.lstrip("/")
    state.write_text(damage)
    told = job.act(machine.job(), ["confirm", "one"])
    assert not told["ok"] and "state.json" in told["message"] and "damaged" in told["message"]
    # What was written beside it is enough to put everything back.
    assert job.act(machine.job(), ["restore", "--unconfirmed"])["ok"]
    assert machine.what_is_there() == before
    state.write_text(damage)
    told = job.act(machine.job(), ["restore"])
    assert not told["ok"] and "remove" in told["message"] and not is_armed(machine)
    with pytest.raises(RefusedError, match="damaged"):
        machine.job().apply(plan_for(machine))
    assert machine.what_is_there() == before


def test_a_verb_says_whether_it_changed_anything(machine: Machine) -> None:
    def changed(*words: str) -> bool:
        return bool(job.act(machine.job(), words)["changed"])

    plan = machine.root / "plan.json"
    plan.write_text(json.dumps(plan_for(machine)))
    assert not changed("restore", "one")
    assert not changed("nonsense")
    machine.computing = "1, x\n"
    assert not changed("apply", str(plan))
    machine.computing = ""
    assert changed("apply", str(plan))
    assert not changed("apply", str(plan))
    assert changed("confirm", "one")
    assert not changed("confirm", "one")
    assert not changed("restore", "--unconfirmed")
    assert changed("restore", "one")
    assert not changed("restore", "one")
    assert not changed("confirm", "one")
    machine.deaf.add("netplan generate")
    plan.write_text(json.dumps(plan_for(machine, id="two")))
    assert changed("apply", str(plan))  # and put back


def test_a_verbs_own_words_are_found_at_the_end_of_what_it_printed() -> None:
    assert job.told_by('noise\n{"verb": "confirm", "ok": true}\n') == {
        "verb": "confirm",
        "ok": True,
    }
    for nothing in ("", "Killed\n", "[1]\n", '{"verb": "conf'):
        assert job.told_by(nothing) is None


def test_the_newest_originals_are_kept(machine: Machine) -> None:
    for number in range(8):
        plan = plan_for(machine, id=f"2026-{number}")
        machine.job().apply(plan)
        machine.job().confirm(plan["id"])
        (machine.root / OLD.lstrip("/")).write_text(OLD_TEXT)
    kept = machine.root / job.BASE.lstrip("/") / "kept"
    assert sorted(path.name for path in kept.iterdir()) == [f"2026-{n}" for n in range(3, 8)]


def test_one_job_at_a_time(tmp_path: Path) -> None:
    with job.locked(tmp_path / "lock", 1), pytest.raises(RefusedError, match="at work"):  # noqa: SIM117
        with job.locked(tmp_path / "lock", 0):
            pass


def test_the_file_runs_alone(tmp_path: Path) -> None:
    """It is copied to a host that has nothing of ours."""
    copy = tmp_path / "job.py"
    copy.write_bytes(Path(job.__file__).read_bytes())
    code = (
        "import runpy, sys; sys.argv = ['job.py']; "
        f"module = runpy.run_path({str(copy)!r}); "
        "print(module['act'](module['Job'](), ['nonsense'])['refused'])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_the_job_looks_for_the_switch_where_the_tool_has_it() -> None:
    # It imports nothing of ours, so it has to repeat these names.
    assert paths.SWITCH_UNIT == job.SWITCH_UNIT
    assert str(paths.LOCK) == job.SWITCH_LOCK
