"""What strikes a switch, and how it is mended again. Each function does one thing to a machine."""

import json
from functools import partial
from typing import Any

from simulated_pair.machines import set_fault

from .fire import Act
from .machines import HEAD, WORKER, exit_code_of, machine, on, pair_command
from .servers import generates
from .tool import SWITCH_UNIT
from .waiting import wait_for

_UNITS = "/etc/systemd/system"


def both(*acts: Act) -> Act:
    """One after the other."""

    def all_of_them() -> None:
        for act in acts:
            act()

    return all_of_them


def script(host: str, words: str) -> Act:
    """Run a bash script on a machine as root."""
    return lambda: void(on(host, words))


def void(_: object) -> None:
    """Take a result that nobody wants."""


# ---- the tool and whoever uses it ---------------------------------------------------------------

kill_the_tool = script(HEAD, f"systemctl kill --kill-whom main --signal KILL {SWITCH_UNIT}")
abort = script(HEAD, "spark-pair abort")


def refused_as_busy(command: str) -> Act:
    """Another command at the same time: it must be told who is at work."""

    def ask() -> None:
        code, said = exit_code_of(HEAD, command)
        assert code == 75 and "running" in said, said

    return ask


_SMALL_DISK = """
cp -a PLACE /run/fire-disk
mount -t tmpfs -o size=SIZE tmpfs PLACE
chown --reference=/run/fire-disk PLACE && chmod --reference=/run/fire-disk PLACE
cp -a /run/fire-disk/. PLACE/
rm -rf /run/fire-disk
"""
_FILL = "dd if=/dev/zero of=PLACE/filler bs=4k 2>/dev/null || true; [ -s PLACE/filler ]"
# State and journal are taken along: the next case goes on from them.
_WHOLE_DISK = """
if mountpoint --quiet PLACE; then
    rm -f PLACE/filler
    rm -rf /run/fire-disk && mkdir /run/fire-disk
    for name in state.json journal.jsonl current; do
        [ ! -e PLACE/$name ] || cp -a PLACE/$name /run/fire-disk/
    done
    umount --lazy PLACE
    cp -a /run/fire-disk/. PLACE/
    rm -rf /run/fire-disk
fi
"""


def small_disk(host: str, place: str) -> Act:
    """Give a folder a disk of its own that can be filled: 16 MiB with all that is in it."""
    return script(
        host, f"mkdir -p {place}\n" + _SMALL_DISK.replace("PLACE", place).replace("SIZE", "16m")
    )


def fill_disk(host: str, place: str) -> Act:
    """Fill the disk of `small_disk` to the last byte."""
    return script(host, _FILL.replace("PLACE", place))


def whole_disk(host: str, place: str) -> Act:
    """Give the folder its old disk back, with the tool's state as it is now."""
    return script(host, _WHOLE_DISK.replace("PLACE", place))


# The kernel's clock is that of the machine that simulates: it jumps for the tool only.
_CLOCK = """
drop_in=/run/systemd/system/UNIT.d
mkdir -p /srv/simulation/clock $drop_in
rm -f /srv/simulation/clock/offset
cat >/srv/simulation/clock/sitecustomize.py <<'END'
import time
_time = time.time
def _jumped():
    try:
        with open("/srv/simulation/clock/offset") as offset:
            return _time() + float(offset.read())
    except (OSError, ValueError):
        return _time()
time.time = _jumped
END
printf '[Service]\\nEnvironment=PYTHONPATH=/srv/simulation/clock\\n' >$drop_in/clock.conf
systemctl daemon-reload
""".replace("UNIT", SWITCH_UNIT)
own_clock = script(HEAD, _CLOCK)
common_clock = script(
    HEAD,
    f"rm -rf /srv/simulation/clock /run/systemd/system/{SWITCH_UNIT}.d && systemctl daemon-reload",
)


def clock_jumps(seconds: int) -> Act:
    """Let the wall clock that the tool sees jump; it must be running on `own_clock`."""
    return script(HEAD, f"echo {seconds} >/srv/simulation/clock/offset")


# ---- the machines --------------------------------------------------------------------------------

kill_ssh_master = script(
    HEAD,
    "for socket in /run/spark-pair/ssh/*; do "
    "pid=$(ssh -S $socket -O check x 2>&1 | grep -o 'pid=[0-9]*' | cut -d= -f2); "
    "[ -z $pid ] || kill -KILL $pid && killed=1; done; [ -n $killed ]",
)


def stop_sshd(host: str) -> Act:
    """Let nobody new in; connections that are there go on."""
    return script(host, "systemctl stop ssh.service")


def start_sshd(host: str) -> Act:
    """Let everybody in again."""
    return script(host, "systemctl start ssh.service")


def power(verb: str, *hosts: str) -> Act:
    """cut-power, freeze or boot."""
    return lambda: pair_command(verb, *hosts)


def link(host: str, interface: str, state: str) -> Act:
    """Pull or plug a cable."""
    return lambda: pair_command("link", host, interface, state)


def rail_down(host: str, interface: str) -> Act:
    """Pull a rail's cable; returns when the RDMA tools there show it, half a second later."""
    shown = f"ibdev2netdev | grep -q '{interface} (Down)'"
    return both(link(host, interface, "down"), script(host, _until(shown)))


# ---- servers, units, ports -----------------------------------------------------------------------


def fault(host: str, component: str, **values: Any) -> Act:
    """Ask a stand-in to misbehave from now on."""
    return partial(set_fault, machine(host), component, json.dumps(values))


def well(host: str, component: str) -> Act:
    """Let a stand-in behave again."""
    return partial(set_fault, machine(host), component, None)


def hold_memory(host: str, gib: int) -> Act:
    """Somebody else holds memory; returns when the machine shows it."""

    def take() -> None:
        fault(host, "memory", held_gib=gib)()
        words = "awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo"
        before = 119  # of an idle machine
        wait_for("the memory is held", lambda: int(on(host, words)) <= before - gib, 20)

    return take


def mask(host: str, unit: str) -> Act:
    """Mask a unit whose file lies where a mask would: its file is kept beside."""
    return script(
        host,
        f"mv {_UNITS}/{unit} /root/{unit}.kept && ln -s /dev/null {_UNITS}/{unit} "
        "&& systemctl daemon-reload",
    )


def unmask(host: str, unit: str) -> Act:
    """Undo `mask`."""
    return script(
        host,
        f"[ ! -e /root/{unit}.kept ] || mv -f /root/{unit}.kept {_UNITS}/{unit}; "
        "systemctl daemon-reload",
    )


_SQUATTER = "fire-squatter"
_REVIVER = "fire-reviver"


def _until(command: str) -> str:
    return f"for _ in $(seq 200); do {command} && exit; sleep 0.05; done; exit 1"


def squat(host: str, port: int) -> Act:
    """Somebody else listens on a port."""
    listen = f'import socket, time; s = socket.create_server(("0.0.0.0", {port})); time.sleep(600)'
    return script(
        host,
        f"systemd-run --quiet --collect --unit {_SQUATTER} python3 -I -c '{listen}'\n"
        + _until(f"ss -Hltn 'sport = :{port}' | grep -q ."),
    )


def no_squatter(host: str) -> Act:
    """The port is free again."""
    return script(host, f"systemctl stop {_SQUATTER}.service 2>/dev/null || true")


def revive(host: str, unit: str) -> Act:
    """Somebody's keeper that nobody has described starts a unit again and again."""
    loop = f"while :; do systemctl start --no-block {unit}; sleep 0.2; done"
    return script(
        host,
        f"systemd-run --quiet --collect --unit {_REVIVER} bash -c '{loop}'\n"
        + _until(f"systemctl --quiet is-active {unit}"),
    )


def no_reviver(host: str) -> Act:
    """That keeper is gone."""
    return script(host, f"systemctl stop {_REVIVER}.service 2>/dev/null || true")


def kill_rank(host: str) -> Act:
    """One rank's container ends without a word."""
    return script(host, "docker kill dsv41-tensorfold >/dev/null")


def hikari_ignores_sigterm() -> None:
    """Restart Hikari's head as one that does not end when it is told to."""
    fault(WORKER, "hikari", mode="ignore_sigterm")()
    on(WORKER, "systemctl restart qwen38fn-miaai-head.service")
    wait_for("Hikari serves again", lambda: generates("hikari"), 60)


def hikari_is_dead() -> None:
    """Hikari answers 200 and generates nothing."""
    fault(WORKER, "hikari", mode="dead")()
