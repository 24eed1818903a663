"""A transfer between the two machines against what people use, and against what bounds it.

Measured on the simulated pair in one run, all ways taking turns; the ratios mean something, the
seconds belong to this machine. Prints tables in Markdown; nothing is asserted.

usage: simulated_pair/start && .venv/bin/python benchmarks/transfer.py [--gb N] [--rounds N]
       [--streams N] [--only memory|disk]

rsync       `rsync -a` of the repository's folder over ssh with default settings; nothing is hashed
daemon, ssh ours, whole: the offer, both rails, sha256 of everything on the receiver, in place
bare        what ours is made of: a plain daemon's files over both rails, nothing is proven
sha256      what ours is made of: the proof, of the source where it lies, one after the other
cp          a copy of the same on one machine, without any line
iperf3      one rail, nothing else
memory      both sides are in memory
disk        both sides are on the disk, and what was written has reached it at the end
processor   seconds of it a GB that both machines took, whatever else this machine does meanwhile
wire        bytes in both directions that rsync counts, in parts of the payload
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "molecule")]

from stories.machines import HEAD, PAIR, WORKER, machine, on  # noqa: E402 - needs the path above

GB = 10**9
FILES = 12
REPO, COMMIT = "benchmark/weights", "1bae0e1088993b9b82de08f59de5be5a34e42170"
FOLDER = "models--benchmark--weights"
CODE = "/opt/spark-pair-benchmark"
PLACES = {"memory": "/run/spark-pair-benchmark", "disk": "/var/tmp/spark-pair-benchmark"}  # noqa: S108
KEY = f"{CODE}/key"
TRUST = f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={CODE}/known_hosts"
SECONDS = 1800

OFFER = f"""
import sys
sys.path.insert(0, {CODE!r})
from spark_pair.weights.offer import offer
sys.exit(offer())
"""

# On the head: a cache of random bytes, no two blocks of 16 MB alike, and what it holds.
FILL = f"""
import hashlib, json, os, sys
from pathlib import Path
sys.path.insert(0, {CODE!r})
from spark_pair.weights.cache import Cache
from spark_pair.weights.manifest import File, Manifest
home, size, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cache = Cache.of_account(home)
block = bytearray(os.urandom(16 << 20))
files = []
for number in range(count):
    staged = cache.make_staging({REPO!r}) / "new.part"
    digest, left = hashlib.sha256(), size // count
    with staged.open("wb") as stream:
        while left:
            block[:16] = os.urandom(16)
            piece = memoryview(block)[:left]
            stream.write(piece)
            digest.update(piece)
            left -= len(piece)
    name = f"model-{{number:05d}}.safetensors"
    file = File(name, size // count, "0" * 40, digest.hexdigest())
    cache.place({REPO!r}, {COMMIT!r}, file, staged)
    files.append(file)
print(json.dumps(Manifest({REPO!r}, {COMMIT!r}, tuple(files)).as_dict()))
"""

# On the worker: the job's program, with a key of this benchmark's own.
RECEIVE = f"""
import json, shlex, sys, threading, time
from pathlib import Path
sys.path.insert(0, {CODE!r})
from spark_pair.jobs.inside import Reporter
from spark_pair.weights import peer_offer, rsync_streams, transfer_job
from spark_pair.weights.provenance import Provenance
from spark_pair.weights.record import Proofs
from spark_pair.weights.transfer_order import read_order
order = json.load(open(sys.argv[1]))
options = peer_offer.ssh_options
def with_key(peer):
    return ["-i", {KEY!r}, *{TRUST!r}.split(), *options(peer)]
peer_offer.ssh_options = rsync_streams.ssh_options = with_key
def command(peer, address):
    words = "python3 -I -c " + shlex.quote({OFFER!r})
    return ["ssh", *with_key(peer), f"{{peer.user}}@{{address}}", words]
began = time.monotonic()
words, data = transfer_job.run(read_order(order), Reporter(), Proofs(None),
    Provenance(Path({CODE!r}) / "provenance.json"), command=command)
print(json.dumps({{"seconds": time.monotonic() - began, **data}}))
"""


# On the head: the sha256 of every blob, as the job computes it.
PROVE = """
import hashlib, sys
from pathlib import Path
for path in Path(sys.argv[1]).rglob("blobs/*"):
    with path.open("rb", buffering=0) as stream:
        hashlib.file_digest(stream, "sha256")
"""
BARE_PORT = 8740
BARE = f"""use chroot = no
reverse lookup = no
pid file = {CODE}/rsyncd.pid
[blobs]
path = %s/there/.cache/huggingface/hub/{FOLDER}/blobs
"""


@dataclass(frozen=True)
class Took:
    """One copy of everything."""

    seconds: float
    processor: float
    """Seconds of both machines."""
    wire: float = 0.0
    """Of the payload."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--only", choices=sorted(PLACES))
    options = parser.parse_args()
    places = [options.only] if options.only else list(PLACES)
    install()
    try:
        rail = iperf3()
        print(f"\niperf3 over one rail: {rail:.0f} MB/s\n")
        for place in places:
            measure(place, int(options.gb * GB), options.rounds, options.streams)
    finally:
        clean()
    return 0


def measure(place: str, size: int, rounds: int, streams: int) -> None:
    """One table."""
    folder = PLACES[place]
    if place == "memory":
        for host in (HEAD, WORKER):
            room = size // FILES * FILES * 2 + (64 << 20)  # cp has both sides on one machine
            on(host, f"mkdir -p {folder}; mount -t tmpfs -o size={room} tmpfs {folder}; "
                     f"chown {machine(host).user} {folder}")  # fmt: skip
    else:
        for host in (HEAD, WORKER):
            on(host, f"mkdir -p {folder}; chown {machine(host).user} {folder}")
    try:
        manifest = json.loads(
            as_user(HEAD, f"python3 -I -c {shlex.quote(FILL)} {folder}/there {size} {FILES}")
        )
        payload = sum(file["size"] for file in manifest["files"])
        ways: dict[str, Callable[[], Took]] = {
            "rsync": lambda: timed(lambda: plain_rsync(folder)),
            "daemon": lambda: ours(folder, manifest, "daemon", streams),
            "ssh": lambda: ours(folder, manifest, "ssh", streams),
            "bare": lambda: bare(folder),
            "sha256": lambda: timed(lambda: prove(folder)),
            "cp": lambda: timed(lambda: copy(folder)),
        }
        found: dict[str, list[Took]] = {name: [] for name in ways}
        for number in range(rounds):
            # In turns, and each begins once.
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for name in order:
                forget(folder)
                found[name].append(ways[name]())
                for host in (HEAD, WORKER):
                    on(host, f"rm -rf {folder}/here")
        print(table(place, found, payload, rounds), flush=True)
    finally:
        for host in (HEAD, WORKER):
            on(host, f"umount {folder}; rm -rf {folder}", check=False)


def table(place: str, found: dict[str, list[Took]], payload: int, rounds: int) -> str:
    """What came of one place, in Markdown."""
    base = statistics.median(one.seconds for one in found["rsync"])
    lines = [
        f"{payload / GB:.2f} GB in {FILES} files, {place} to {place}, median of {rounds}:",
        "",
        "| way | MB/s | against rsync -a | processor a GB | wire |",
        "|---|---|---|---|---|",
    ]
    for name, took in found.items():
        seconds = statistics.median(one.seconds for one in took)
        processor = statistics.median(one.processor for one in took) / payload * GB
        wire = f"{max(one.wire for one in took):.4f}" if took[0].wire else ""
        lines.append(
            f"| {name} | {payload / seconds / 1e6:.0f} | {base / seconds:.2f} | {processor:.2f} s "
            f"| {wire} |"
        )
    return "\n".join([*lines, ""])


# ---- the ways -----------------------------------------------------------------------------------


def plain_rsync(folder: str) -> None:
    """What people use."""
    source = f"{PAIR.head.user}@{PAIR.head.addresses[1]}:{folder}/there/.cache/huggingface/hub/"
    shell = shlex.quote(f"ssh -i {KEY} {TRUST}")
    as_user(
        WORKER,
        f"mkdir -p {folder}/here && rsync -a -e {shell} {source}{FOLDER} {folder}/here/ "
        f"&& sync -f {folder}/here",
    )


def ours(folder: str, manifest: dict[str, Any], transport: str, streams: int) -> Took:
    """A transfer as the job makes it."""
    head, worker = PAIR.head, PAIR.worker
    files = [file["path"] for file in manifest["files"]]
    order = {
        "schema": 1,
        "kind": "transfer",
        "source": "weights",
        "home": f"{folder}/here",
        "manifest": manifest,
        "files": files,
        "peer": {
            "name": head.name,
            "user": head.user,
            "home": f"{folder}/there",
            "addresses": list(head.addresses),
            "port": 22,
        },
        "rails": [
            {"here": worker.addresses[rail], "peer": head.addresses[rail]} for rail in (1, 2)
        ],
        "transport": transport,
        "ports": [8730, 8739],
        "streams": streams,
        "limit_bytes_per_second": None,
        "floor_bytes": 0,
    }
    (PAIR.worker.state / "order.json").write_text(json.dumps(order))
    said: list[str] = []
    took = timed(
        lambda: said.append(
            as_user(
                WORKER,
                f"python3 -I -c {shlex.quote(RECEIVE)} /srv/simulation/order.json "
                f"&& sync -f {folder}/here",
            )
        )
    )
    data = json.loads(said[0])
    return Took(took.seconds, took.processor, data["wire_bytes"] / data["payload_bytes"])


def bare(folder: str) -> Took:
    """The bytes alone: half of the files over each rail, an rsync for each as ours has them."""
    conf, blobs = f"{CODE}/rsyncd.conf", f"{folder}/there/.cache/huggingface/hub/{FOLDER}/blobs"
    text = shlex.quote(BARE % folder)
    as_user(HEAD, f"printf %s {text} > {conf} && rsync --daemon --port={BARE_PORT} --config={conf}")
    words = "rsync --inplace --whole-file --checksum-choice=none"
    names = as_user(HEAD, f"ls {blobs}").split()
    streams = [
        "; ".join(
            f"{words} rsync://{PAIR.head.addresses[rail]}:{BARE_PORT}/blobs/{name} {folder}/here/"
            for name in names[rail - 1 :: 2]
        )
        for rail in (1, 2)
    ]
    script = f"mkdir {folder}/here; ({streams[0]}) & ({streams[1]}); wait; sync -f {folder}/here"
    try:
        return timed(lambda: as_user(WORKER, script))
    finally:
        as_user(HEAD, f"kill $(cat {CODE}/rsyncd.pid)")


def prove(folder: str) -> None:
    """The sha256 of everything."""
    as_user(HEAD, f"python3 -I -c {shlex.quote(PROVE)} {folder}/there")


def copy(folder: str) -> None:
    """A copy on one machine, which no line slows down."""
    as_user(HEAD, f"cp -a {folder}/there {folder}/here && sync -f {folder}/here")


def iperf3() -> float:
    """MB/s over one rail."""
    address = PAIR.head.addresses[1]
    on(HEAD, f"iperf3 --server --one-off --daemon --bind {address}")
    time.sleep(0.5)
    said = json.loads(on(WORKER, f"iperf3 --client {address} --time 5 --reverse --json"))
    return float(said["end"]["sum_received"]["bits_per_second"]) / 8e6


# ---- around them --------------------------------------------------------------------------------


def timed(work: Callable[[], object]) -> Took:
    """How long something takes, and what it costs both machines."""
    before, began = processor(), time.monotonic()
    work()
    return Took(time.monotonic() - began, processor() - before)


def processor() -> float:
    """Seconds that both machines have had of the processor."""
    words = [on(host, "head -n 1 /sys/fs/cgroup/cpu.stat") for host in (HEAD, WORKER)]
    return sum(int(one.split()[1]) for one in words) / 1e6


def forget(folder: str) -> None:
    """Take the source out of the page cache; memory stays as it is."""
    drop = "dd if={} iflag=nocache count=0 status=none"
    on(HEAD, f"sync -f {folder}; find {folder}/there -type f -exec {drop} ';'", seconds=SECONDS)


def as_user(host: str, script: str) -> str:
    """Run a script as the machine's account."""
    command = f"runuser -u {machine(host).user} -- bash -c {shlex.quote(script)}"
    said: str = on(host, command, seconds=SECONDS)
    return said


def install() -> None:
    """The package on both machines, and a way by ssh from the worker to the head."""
    for host in (HEAD, WORKER):
        on(host, f"rm -rf {CODE}; mkdir -p {CODE}; chown {machine(host).user} {CODE}")
        packed = machine(host).state / "code.tar"
        pack = ["tar", "-C", str(ROOT), "--exclude=__pycache__", "-cf", str(packed), "spark_pair"]
        subprocess.run(pack, check=True)
        as_user(host, f"tar -C {CODE} -xf /srv/simulation/{packed.name}")
        packed.unlink()
    as_user(WORKER, f"ssh-keygen -q -t ed25519 -N '' -C {Path(CODE).name} -f {KEY}")
    key = on(WORKER, f"cat {KEY}.pub").strip()
    as_user(HEAD, f"mkdir -p -m 700 ~/.ssh && echo {shlex.quote(key)} >> ~/.ssh/authorized_keys && "
                  "chmod 600 ~/.ssh/authorized_keys")  # fmt: skip


def clean() -> None:
    """Leave the pair as it was."""
    (PAIR.worker.state / "order.json").unlink(missing_ok=True)
    on(HEAD, f"sed -i '/{Path(CODE).name}/d' {PAIR.head.home}/.ssh/authorized_keys", check=False)
    for host in (HEAD, WORKER):
        on(host, f"rm -rf {CODE}", check=False)


if __name__ == "__main__":
    sys.exit(main())
