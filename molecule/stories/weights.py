"""The Hub of the simulated world, a pair without weights, and jobs on it."""

import contextlib
import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulated_pair.naming import Machine
from simulated_pair.outer import write_atomically

from .machines import HEAD, PAIR, WORKER, exit_code_of, on, pair_command
from .waiting import wait_for

CHECKPOINT = "Mia-AiLab/DeepSeek-V4.1-Flash-1017-EXL3-EAQ-v1-2.9-bpw"
ENGRAM = "deepseek-ai/DeepSeek-V4.1-Flash-1017"
OVERLAY = "drowzeys/keys-DeepSeek-V4.1-Flash-1017-Abliterated"

_STATE = PAIR.head.state
_LOG = _STATE / "hub.jsonl"
_DISK = _STATE / "small-disk.img"
CACHE = f"{PAIR.head.home}/.cache/huggingface"
_RECORDS = "/var/lib/spark-pair/{provenance.json,manifests,jobs}"

# Of the shape that the Hub gives out, so that a leak can be searched for.
TOKEN = "hf_TermsAcceptedInTheSimulatedWorld000"  # noqa: S105 - opens nothing
STRANGER = "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0"


@contextlib.contextmanager
def hub(
    size: int, *, xet: bool = True, overlay_dtypes_differ: bool = False, seconds: float = 180
) -> Iterator[None]:
    """A Hub with `size` bytes of weights that knows both accounts; `seconds` to make the bytes.

    `overlay_dtypes_differ` gives the overlay other types than the checkpoint's.
    """
    accounts = _STATE / "accounts.json"
    known = {
        TOKEN: {"name": "accepted", "accepted": [OVERLAY]},
        STRANGER: {"name": "stranger"},
    }
    write_atomically(accounts, json.dumps(known), 0o600)
    try:
        how = ["--xet"] if xet else []
        how += ["--overlay-dtypes-differ"] if overlay_dtypes_differ else []
        how += ["--size", str(size), "--accounts", str(accounts)]
        pair_command("hub", "start", *how, seconds=seconds)
        yield
    finally:
        accounts.unlink()
        pair_command("hub", "stop")


def slow_down(bytes_per_second: float | None) -> None:
    """Let the Hub's content come slowly from the next request on; None: as fast as it can."""
    faults = _STATE / "faults" / "hub.json"
    if bytes_per_second is None:
        faults.unlink(missing_ok=True)
        return
    slow = {"what": "slow", "on": "store", "bytes_per_second": bytes_per_second}
    write_atomically(faults, json.dumps({"faults": [slow]}))


def asked() -> list[Mapping[str, Any]]:
    """Every request that the Hub has answered, or given up, since it was started."""
    return [json.loads(line) for line in _LOG.read_text().splitlines()] if _LOG.exists() else []


def content_of(requests: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of content that went out in these requests, by file."""
    sent: dict[str, int] = {}
    for request in requests:
        if request["kind"] in ("content", "xorb") and request["status"] in (200, 206):
            path = str(request["path"])
            sent[path] = sent.get(path, 0) + int(request["sent"])
    return sent


def served(repo: str) -> Path:
    """The folder with the files of a repository that the Hub serves."""
    options = (_STATE / "hub.env").read_text()
    size = options.partition("/hub/")[2].split()[0]
    return _STATE / "hub" / size / repo.replace("/", "--") / "files"


def true_hashes(repo: str) -> dict[str, str]:
    """SHA-256 of every file of a repository, from the bytes that the Hub serves."""
    folder = served(repo)
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextlib.contextmanager
def no_weights(mib: int) -> Iterator[str]:
    """A pair without weights and records, each machine's on a file system of `mib` MiB.

    The worker's is memory of limited size, the head's a file as a disk, if the outer machine lends
    a loop device for it; its kind is told. What the pair had is hidden below, and the records come
    back with the next reset.
    """
    with _DISK.open("wb") as image:
        image.truncate(mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(_DISK)], check=True)
    kind = "ext4"
    try:
        if exit_code_of(HEAD, f"mount -o loop /srv/simulation/{_DISK.name} {CACHE}")[0] != 0:
            kind = "tmpfs"
            on(HEAD, f"mount -t tmpfs -o size={mib}m none {CACHE}")
        on(WORKER, f"mount -t tmpfs -o size={mib}m none {_cache_of(PAIR.worker)}")
        for one in PAIR.machines:
            cache = _cache_of(one)
            on(one.name, f"chown {one.user}: {cache}; rm -rf {cache}/lost+found {_RECORDS}")
        yield kind
    finally:
        for one in PAIR.machines:
            cache = _cache_of(one)
            on(one.name, f"! mountpoint -q {cache} || umount -l {cache}; rm -rf {_RECORDS}")
        _DISK.unlink()
        pair_command("reset")


def _cache_of(one: Machine) -> str:
    return f"{one.home}/.cache/huggingface"


def run_of(name: str) -> str:
    """The id of the run of a job that has told its progress last; "" before there is any."""
    return str(_progress(name).get("id", ""))


def done_of(name: str, other_than: str = "") -> int:
    """Bytes that a run of a job has got; 0 while the newest is still `other_than`."""
    told = _progress(name)
    return 0 if told.get("id") == other_than else int(told.get("done", 0))


def _progress(name: str) -> Mapping[str, Any]:
    text = on(HEAD, f"cat /var/lib/spark-pair/jobs/{name}/progress.json 2>/dev/null || echo {{}}")
    told: Mapping[str, Any] = json.loads(text)
    return told


def wait_for_bytes(name: str, count: int, other_than: str = "", seconds: float = 120) -> int:
    """Wait until a run of a job has got so many bytes; how many it has got.

    A run fetches what the ones before have not finished, and counts that alone.
    """
    words = f"{name} has {count:,} bytes"
    return wait_for(
        words, lambda: n if (n := done_of(name, other_than)) >= count else None, seconds
    )


def provenance(host: str = HEAD) -> Mapping[str, Any]:
    """What a machine has on record, by artefact."""
    told = json.loads(exit_code_of(host, "spark-pair weights --json")[1])
    artefacts: Mapping[str, Any] = told["artefacts"]
    return artefacts


def free_bytes() -> int:
    """Free space where the head's weights lie."""
    return int(on(HEAD, f"df --output=avail --block-size=1 {CACHE} | tail -1"))


def snapshot(repo: str, host: str = HEAD) -> str:
    """The only snapshot of a repository in a machine's cache."""
    hub = f"{_cache_of(PAIR.machine(host))}/hub"
    return on(host, f"ls -d {hub}/models--{repo.replace('/', '--')}/snapshots/*").strip()


def hashes(repo: str, host: str = HEAD) -> dict[str, str]:
    """SHA-256 of every file of a repository's snapshot on a machine."""
    folder = snapshot(repo, host)
    lines = on(host, f"cd {folder} && find . ! -type d -print0 | xargs -0 sha256sum")
    return {
        path.removeprefix("./"): digest
        for digest, path in (line.split(maxsplit=1) for line in lines.splitlines())
    }


# Reads the needles from a file, so that neither this program nor its arguments hold one.
_WATCH = r"""
import pathlib, time
needles = pathlib.Path("/srv/simulation/needles").read_bytes().split()
seen, known = pathlib.Path("/srv/simulation/needles.seen"), set()
while pathlib.Path("/srv/simulation/needles").exists():
    places = pathlib.Path("/proc").glob("[0-9]*")
    for place in (process / name for process in places for name in ("cmdline", "environ")):
        try:
            words = place.read_bytes()
        except OSError:
            continue
        if any(needle in words for needle in needles) and place not in known:
            known.add(place)
            with seen.open("ab") as file:
                file.write(b"%s: %s\n" % (str(place).encode(), words.replace(b"\0", b" ")))
    time.sleep(0.02)
"""

_PLACES = (
    "/etc /home /opt /root /run /srv/sparkle /tmp /usr/local /var/lib/spark-pair /var/log /var/tmp"
)
_SEARCH = rf"""
for place in {_PLACES}; do
    [ ! -e $place ] || grep --recursive --devices=skip --files-with-matches --text --fixed-strings \
        --exclude-dir=standins --file /srv/simulation/needles $place 2>/dev/null || true
done
journalctl --no-pager --output export |
    grep --text --fixed-strings --file /srv/simulation/needles || true
cat /srv/simulation/needles.seen 2>/dev/null || true
"""


@contextlib.contextmanager
def leaks_of(*needles: str) -> Iterator[list[str]]:
    """While inside, arguments and environments of all processes on both machines are watched.

    On leaving, journals and files are searched for the needles too; the list then holds every
    place with one, best none.
    """
    found: list[str] = []
    for one in PAIR.machines:
        write_atomically(one.state / "needles", "\n".join(needles) + "\n")
        (one.state / "needles.seen").unlink(missing_ok=True)
        write_atomically(one.state / "watch.py", _WATCH)
        on(one.name, "systemd-run --quiet --collect python3 -I /srv/simulation/watch.py")
    try:
        yield found
        for one in PAIR.machines:
            found += [f"{one.name}: {line}" for line in on(one.name, _SEARCH).splitlines()]
    finally:
        for one in PAIR.machines:
            for name in ("needles", "needles.seen", "watch.py"):
                (one.state / name).unlink(missing_ok=True)


def files_with(folder: Path, *needles: str) -> list[str]:
    """Files below a folder of the controller that hold one of the needles."""
    if not folder.is_dir():
        return []
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(needle.encode() in path.read_bytes() for needle in needles)
    ]
