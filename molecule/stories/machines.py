"""The two simulated machines as the stories see them: commands, faults, power, fingerprints."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from simulated_pair import ledger
from simulated_pair.naming import CHECKOUT, Machine, pair_of
from simulated_pair.outer import Podman

PAIR = pair_of(CHECKOUT)
HEAD, WORKER = PAIR.head.name, PAIR.worker.name
HOSTS = (HEAD, WORKER)

_PODMAN = Podman(PAIR.state)

Fingerprint = Mapping[str, Mapping[str, str]]
"""For each host: path or unit or container -> what is to be equal before and after."""


def machine(host: str) -> Machine:
    """Return the machine called `host`."""
    return PAIR.machine(host)


def in_machine(host: str, script: str) -> list[str]:
    """Return the words that run a bash script on a machine as root."""
    return [*_PODMAN.program, "exec", machine(host).container, "bash", "-c", script]


def start_on(host: str, script: str) -> "subprocess.Popen[str]":
    """Start a bash script on a machine as root; what it prints, errors included, can be read."""
    return subprocess.Popen(
        in_machine(host, script),
        env=_PODMAN.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def on(host: str, script: str, *, check: bool = True, seconds: float = 60) -> str:
    """Run a bash script on a machine as root and return what it printed.

    AssertionError with the script's own words when it fails and `check` is set.
    """
    done = subprocess.run(
        in_machine(host, script),
        env=_PODMAN.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert not check or done.returncode == 0, (
        f"{host}: {script.strip()!r} ended with {done.returncode}: {done.stdout}{done.stderr}"
    )
    return done.stdout


def exit_code_of(host: str, script: str, *, seconds: float = 120) -> tuple[int, str]:
    """Run a bash script on a machine as root; its exit code and everything that it printed."""
    text = on(host, f"({script}) 2>&1; echo $?", seconds=seconds)
    said, _, code = text.rstrip("\n").rpartition("\n")
    return int(code), said


def on_both(script: str) -> dict[str, str]:
    """Run a script on both machines at once."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(HOSTS, pool.map(lambda host: on(host, script), HOSTS), strict=True))


def pair_command(*words: str, seconds: float = 180) -> None:
    """Run one verb of `simulated_pair/pair.py`; AssertionError with its words if it fails."""
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "simulated_pair" / "pair.py"), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"pair.py {' '.join(words)}: {done.stdout}{done.stderr}"


def set_fault(host: str, component: str, **fault: Any) -> None:
    """Ask a stand-in on `host` to misbehave (see simulated_pair/standins/README.md)."""
    pair_command("fault", host, component, json.dumps(fault))


def clear_faults() -> None:
    """Let every stand-in behave again."""
    for host in HOSTS:
        for path in (machine(host).state / "faults").glob("*.json"):
            path.unlink(missing_ok=True)


def assert_never_two_servers() -> None:
    """No machine may ever have held processes of two servers since the last reset."""
    found = []
    for host in HOSTS:
        events = ledger.parse((machine(host).state / "ledger.jsonl").read_text())
        found += [f"{host}: {case}" for case in ledger.overlaps(events)]
    assert not found, f"two servers at once on one machine: {found}"


def server_lives() -> list[tuple[str, ledger.Interval]]:
    """Every life of a server's process since the last reset, with its host, earliest first."""
    lives = [
        (host, life)
        for host in HOSTS
        for life in ledger.intervals(
            ledger.parse((machine(host).state / "ledger.jsonl").read_text())
        )
    ]
    return sorted(lives, key=lambda item: item[1].start)


# What a read-only or refused run must leave as it is. Left out: Ansible's own work directory, and
# what ssh itself writes in the controller's account. Watchdog and collector come and go by
# themselves, so only whether their timers run is noted. Whether a unit is enabled or masked is a
# link below /etc or /run; asking systemd would cost it a third of a second.
_FINGERPRINT = r"""
set -euo pipefail
places=(/etc /run/systemd/system /opt /usr/local /home /root /srv)
[ ! -d /var/lib/spark-pair ] || places+=(/var/lib/spark-pair)
skip=( -path /opt/standins -o -path /srv/simulation -o -name .ansible )
find "${places[@]}" \( "${skip[@]}" \) -prune -o -printf '%p\t%y %m %u:%g %l\n'
find "${places[@]}" \( "${skip[@]}" \) -prune -o -type f -print0 | xargs -0 sha256sum |
    sed -E 's/^(\S+) +(.*)$/content of \2\t\1/'
properties=Id,ActiveState,MainPID,ActiveEnterTimestampMonotonic
systemctl show --property "$properties" docker.service ssh.service 'dsv41-*' 'spark-pair-*' \
    qwen38fn-miaai-{head,worker}.service qwen38fn-miaai-{head-watchdog,metrics}.timer |
    awk -v RS= '{match($0, /Id=[^\n]*/); id = substr($0, RSTART, RLENGTH); gsub(/\n/, " ");
        print "unit " id "\t" $0}'
docker ps --all --no-trunc --format 'container {{.ID}}{{"\t"}}{{.Names}} {{.Image}} {{.State}}'
docker images --no-trunc --format 'image {{.Repository}}:{{.Tag}}{{"\t"}}{{.ID}}'
"""


def fingerprint(hosts: Sequence[str] = HOSTS) -> Fingerprint:
    """What `hosts` look like: files with their hashes, units, containers and images."""

    def look(host: str) -> dict[str, str]:
        lines = on(host, _FINGERPRINT).splitlines()
        return dict(line.split("\t", 1) for line in lines if "\t" in line)

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(hosts, pool.map(look, hosts), strict=True))


def differences(before: Fingerprint, after: Fingerprint) -> list[str]:
    """What differs between two fingerprints, one line each."""
    found = []
    for host, old in before.items():
        new = after[host]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                found.append(f"{host}: {name}: {old.get(name)!r} became {new.get(name)!r}")
    return found


def assert_untouched(before: Fingerprint) -> None:
    """Nothing may differ from `before` on the hosts that it holds."""
    found = differences(before, fingerprint(tuple(before)))
    assert not found, "\n".join(["the machines were touched:", *found[:40]])


def unit(host: str, name: str, *properties: str) -> dict[str, str]:
    """Properties of a systemd unit, as `systemctl show` gives them."""
    text = on(host, f"systemctl show --property {','.join(properties)} {name}")
    return dict(line.split("=", 1) for line in text.splitlines())


def is_active(host: str, name: str) -> bool:
    """Whether a unit is active."""
    return unit(host, name, "ActiveState")["ActiveState"] == "active"


def read(host: str, path: str | Path) -> str:
    """Return a file's text."""
    return on(host, f"cat {path}")
