"""Transfers as the job's program runs them: over what it takes for ssh, and killed at any time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from two_caches import BIG, MIB, OFFER, REPO, ROOT, SECOND, SMALL, TwoCaches

KILLS = 6
WAIT_SECONDS = 60.0

# What ssh's options say is noted; what it was to run there runs here.
SSH = f"""#!/bin/bash
echo "$@" >> "$SSH_LOG"
while [ $# -gt 0 ]; do
    case "$1" in -[opcbl]) shift 2 ;; *) break ;; esac
done
shift
if [ "$*" = "/usr/local/bin/spark-pair weights offer" ]; then
    exec {sys.executable} -I -c "$OFFER"
fi
exec bash -c "$*"
"""

PROGRAM = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from spark_pair.jobs.inside import Reporter, carry_out
from spark_pair.weights import transfer, transfer_job
from spark_pair.weights.provenance import Provenance
from spark_pair.weights.record import Proofs
from spark_pair.weights.transfer_order import read_order
transfer.SMALL_BYTES = 1000
folder = Path(sys.argv[1])
order = read_order(json.loads((folder / "order.json").read_text()))
provenance = Provenance(folder.parent / "provenance.json")
work = lambda reporter: transfer_job.run(order, reporter, Proofs(folder), provenance)
sys.exit(carry_out(work, Reporter(folder, "r1")))
"""


class Job:
    """The program of a transfer, with a stand-in for ssh."""

    def __init__(self, pair: TwoCaches) -> None:
        self.pair = pair
        self.log = pair.root / "ssh.log"
        programs = pair.root / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(SSH)
        (programs / "ssh").chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SSH_LOG": str(self.log),
            "OFFER": OFFER,
        }

    def start(self, **changes: Any) -> subprocess.Popen[str]:
        (self.pair.folder / "order.json").write_text(json.dumps(self.pair.order(**changes)))
        return subprocess.Popen(
            [sys.executable, "-I", "-c", PROGRAM, str(self.pair.folder)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, **changes: Any) -> dict[str, Any]:
        """Run it to its end; the data of its result."""
        done = self.start(**changes)
        said, _ = done.communicate(timeout=WAIT_SECONDS)
        assert done.returncode == 0, said
        data: dict[str, Any] = json.loads((self.pair.folder / "result.json").read_text())["data"]
        return data

    def left(self) -> list[str]:
        """Processes that still have to do with it."""
        mine = str(self.pair.root).encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
                around = (path.parent / "environ").read_bytes()
            except OSError:
                continue
            if int(path.parent.name) != os.getpid() and mine in words + around and words:
                found.append(words.replace(b"\0", b" ").decode("utf-8", "replace")[:100])
        return found

    def gone(self) -> None:
        """Wait until nothing of a killed job is left; it takes moments."""
        deadline = time.monotonic() + WAIT_SECONDS
        while found := self.left():
            assert time.monotonic() < deadline, found
            time.sleep(0.02)


@pytest.fixture
def pair(tmp_path: Path) -> TwoCaches:
    pair = TwoCaches(tmp_path)
    pair.fill("shared")
    return pair


@pytest.fixture
def job(pair: TwoCaches) -> Job:
    return Job(pair)


def there(pair: TwoCaches) -> int:
    """Bytes of big files that are here, in place or not."""
    folder = pair.cache.folder(REPO)
    found = [*folder.glob("blobs/*"), *folder.glob(".spark-pair/*.part")]
    return sum(one.stat().st_size for one in found if len(one.stem) == 64)


@pytest.mark.parametrize("transport", ["daemon", "ssh"])
def test_over_either_transport(pair: TwoCaches, job: Job, transport: str) -> None:
    data = job.finish(transport=transport)
    pair.right()
    assert data["payload_bytes"] == pair.total
    assert all(one["bytes"] >= len(pair.contents[SECOND]) for one in data["rails"])
    assert data["wire_bytes"] < 1.01 * pair.total
    called = job.log.read_text().splitlines()
    assert called[0].endswith("operator@192.0.2.11 /usr/local/bin/spark-pair weights offer")
    assert all("BatchMode=yes" in line for line in called)
    payload = called[1:]
    assert bool(payload) == (transport == "ssh")
    for line in payload:
        assert line.startswith("-c aes128-gcm@openssh.com -b ")
    if payload:
        assert {line.split()[3] for line in payload} == {rail["here"] for rail in pair.rails}
    job.gone()


@pytest.mark.parametrize("transport", ["daemon", "ssh"])
def test_killed_again_and_again_nothing_is_lost(pair: TwoCaches, job: Job, transport: str) -> None:
    chance = random.Random(7)  # noqa: S311 - the same moments each time
    slowly = {"transport": transport, "limit_bytes_per_second": 3 * MIB, "streams": 2}
    for number in range(KILLS):
        running = job.start(**slowly)
        wanted = (number + chance.uniform(0.2, 0.9)) / KILLS * (len(pair.contents[BIG]) * 1.5)
        deadline = time.monotonic() + WAIT_SECONDS
        while there(pair) < wanted and running.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.kill()
        running.communicate()
        job.gone()
        pair.nothing_wrong()
    kept = there(pair)
    assert kept > MIB
    data = job.finish(transport=transport)
    pair.right()
    assert data["payload_bytes"] <= pair.total - kept
    assert job.finish(transport=transport)["payload_bytes"] == 0


def test_stopped_it_says_so_and_keeps_what_it_has(pair: TwoCaches, job: Job) -> None:
    running = job.start(limit_bytes_per_second=MIB)
    deadline = time.monotonic() + WAIT_SECONDS
    while there(pair) < MIB:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=WAIT_SECONDS)
    assert running.returncode == 11 and "was stopped; what it has is kept" in said
    job.gone()
    kept = there(pair)
    assert job.finish()["payload_bytes"] <= pair.total - kept
    pair.right()


def test_a_connection_that_ends_is_made_anew(pair: TwoCaches, job: Job) -> None:
    running = job.start(limit_bytes_per_second=2 * MIB)
    deadline = time.monotonic() + WAIT_SECONDS
    ended = False
    while not ended:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        if there(pair) < MIB:
            continue
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                words = path.with_name("cmdline").read_bytes()
            except OSError:
                continue
            if parent == running.pid and b"weights.offer import offer" in words:
                os.kill(int(path.parent.name), signal.SIGKILL)
                ended = True
    said, _ = running.communicate(timeout=WAIT_SECONDS)
    assert running.returncode == 0, said
    pair.right()
    calls = job.log.read_text().splitlines()
    assert len(calls) == 2
    data = json.loads((pair.folder / "result.json").read_text())["data"]
    assert data["payload_bytes"] <= pair.total + len(pair.contents[SMALL]) + 300


def test_the_secret_is_nowhere(pair: TwoCaches, job: Job) -> None:
    """Neither in what is said nor in what is left."""
    job.environment["OFFER"] = OFFER.replace(
        "sys.exit",
        "import os, spark_pair.weights.offer as o\n"
        "spool = o._write_spool\n"
        "def note(folder, request, files):\n"
        f"    open({str(pair.root / 'noted')!r}, 'w').write(request.secret)\n"
        "    spool(folder, request, files)\n"
        "o._write_spool = note\nsys.exit",
    )
    running = job.start(limit_bytes_per_second=4 * MIB)
    noted = pair.root / "noted"
    seen = 0
    while running.poll() is None:
        if noted.exists() and (known := noted.read_bytes()):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    assert known not in path.read_bytes()
                    seen += 1
                except OSError:
                    continue
        time.sleep(0.05)
    assert running.stdout
    said = running.stdout.read()
    word = noted.read_text()
    assert seen and running.returncode == 0 and word not in said + job.log.read_text()
    for path in pair.root.rglob("*"):
        if path.is_file() and path != noted:
            assert word.encode() not in path.read_bytes(), path
