"""What goes from one machine to the other, and what is made of the checkpoint."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulated_pair.naming import CHECKOUT, RAIL_INTERFACES

from . import weights
from .machines import HEAD, HOSTS, PAIR, machine, on
from .plays import Play, Played, play, start_play
from .servers import assert_hikari_alone
from .waiting import wait_for

MIB = 1 << 20
# Half of it is the checkpoint's, the other half the Engram tables': two files that are too large to
# travel with others, so that each comes over a rail of its own.
SIZE = 80 * MIB
DISK_MIB = 400
ENGRAM_JOB = "transfer-engram-worker"
ABLIT = {"ablit_graft_enabled": True, "weights_hub_token": weights.TOKEN}

_SMALL = {
    "weights_disk_floor_gib": 0.02,
    "weights_expected_bytes": {"rank_file": 22 * MIB, "image": 0, "rewritten": 30 * MIB},
}

_ENGINE = CHECKOUT / "simulated_pair" / "standins" / "engine" / "bin"
_RECORD = "/var/lib/spark-pair/provenance.json"
_SIDECAR = "exl3_wo_b_l10_35_mia29.safetensors"


# ---- runs ---------------------------------------------------------------------------------------


def start(tags: str | None, **more: Any) -> Play:
    """Start site.yml with what small weights on small disks need, and `more` variables."""
    return start_play(tags, extra_vars={**_SMALL, **more})


def run(tags: str | None, *, check: bool = False, **more: Any) -> Played:
    """The same to its end."""
    return play(tags, extra_vars={**_SMALL, **more}, check=check)


def slowly(megabytes_per_second: float) -> dict[str, Any]:
    """The variable that keeps a transfer beside Hikari to that rate."""
    limits = {"memory_gib": 4, "io_weight": 20, "cpu_weight": 20}
    return {"hf_transfer_while_serving": {"megabytes_per_second": megabytes_per_second, **limits}}


def back_by_hand() -> None:
    """From DeepSeek to Hikari by the tool's own command: unlike a rollback it sets no hold."""
    on(HEAD, "spark-pair switch hikari", seconds=180)
    assert_hikari_alone()


def served_from(variant: str = "") -> None:
    """Both ranks must have been told the folder with this in its name, or one without any."""
    for host in HOSTS:
        told = json.loads(on(host, "docker inspect dsv41-tensorfold"))[0]["Config"]["Env"]
        (folder,) = (line for line in told if line.startswith("TF_DS_RANK_CACHE="))
        assert ("-ablit-" in folder) == bool(variant), folder


# ---- rank files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CutByHand:
    """SHA-256 of both rank files by their rank."""

    stock: Mapping[int, str]
    grafted: Mapping[int, str]


def cut_by_hand(folder: Path) -> CutByHand:
    """What the Hub serves, grafted and cut on this machine by the stand-ins' programs alone."""
    stock, grafted = weights.served(weights.CHECKPOINT), folder / "grafted"
    sidecar = weights.served(weights.OVERLAY) / _SIDECAR
    _engine("apply-overlay", "--src", stock, "--wo-b", sidecar, "--dst", grafted)
    return CutByHand(_cut(stock, folder / "stock-ranks"), _cut(grafted, folder / "grafted-ranks"))


def grafted_by_hand(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of the checkpoint that the Hub serves, with the overlay and the
    checkpoint's types, made on this machine by the stand-ins' programs alone."""
    grafted = folder / "grafted"
    stock, sidecar = weights.served(weights.CHECKPOINT), weights.served(weights.OVERLAY) / _SIDECAR
    _engine("apply-overlay", "--src", stock, "--wo-b", sidecar, "--dst", grafted)
    program = (
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(_ENGINE.parent)!r})\n"
        "from tensorfold_standin.shards import give_stock_types\n"
        f"give_stock_types(Path({str(stock)!r}), Path({str(grafted)!r}))"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True)
    return {path.name: _sha256(path) for path in grafted.iterdir() if path.is_file()}


def _cut(model: Path, out: Path) -> dict[int, str]:
    for rank in (0, 1):
        _engine("tf-dsv41-rank-cache", model, out, rank, 2)
    return {int(path.name[4]): _sha256(path) for path in out.glob("rank*.bin")}


def _engine(program: str, *words: object) -> None:
    command = [sys.executable, "-I", str(_ENGINE / program), *map(str, words)]
    subprocess.run(command, check=True, capture_output=True)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ranks(host: str, variant: str = "") -> str:
    """The folder of the rank files on a machine; `variant` is part of its name, or none is."""
    work = f"{machine(host).home}/.cache/huggingface/tensorfold-dsv41"
    names = on(host, f"ls -d {work}/*/checkpoint/rank-cache").split()
    (found,) = (name for name in names if ("-ablit-" in name) == bool(variant))
    return found


def rank_hashes(variant: str = "") -> dict[int, str]:
    """SHA-256 of the only rank file on each machine, by its rank."""
    found = {}
    for host in HOSTS:
        (line,) = on(host, f"sha256sum {ranks(host, variant)}/*.bin").splitlines()
        digest, path = line.split(maxsplit=1)
        found[int(Path(path).name[4])] = digest
    return found


# ---- the checkpoint -----------------------------------------------------------------------------


def grafted_hashes() -> dict[str, str]:
    """SHA-256 of every file of the checkpoint that carries the overlay."""
    folder = f"{machine(HEAD).home}/.cache/huggingface/tensorfold-dsv41/*-ablit-*/checkpoint"
    lines = on(HEAD, f"cd {folder} && find -L . -maxdepth 1 -type f -print0 | xargs -0 sha256sum")
    return {
        path.removeprefix("./"): digest
        for digest, path in (line.split(maxsplit=1) for line in lines.splitlines())
    }


def shards_left() -> list[str]:
    """Real files of the head's cache and work folder that are as large as a shard, once each."""
    look = f"find -L {weights.CACHE} -name '*.safetensors' -path '*of-00039*' -type f"
    return sorted(
        set(on(HEAD, f"{look} -printf '%i %p\\n' | sort -u -k1,1 | cut -d' ' -f2").split())
    )


def empty() -> None:
    """Nothing is left of weights and records."""
    for one in PAIR.machines:
        cache = f"{one.home}/.cache/huggingface"
        on(
            one.name,
            f"find {cache} -mindepth 1 -delete; rm -rf /var/lib/spark-pair/manifests {_RECORD}",
        )


def forget(host: str, artefact: str) -> None:
    """Take an artefact out of a machine's record."""
    on(
        host,
        f"jq 'del(.artefacts[\"{artefact}\"])' {_RECORD} >/tmp/record; cat /tmp/record >{_RECORD}",
    )


# ---- on the way ---------------------------------------------------------------------------------


def wait_for_bytes(host: str, job: str, count: int, seconds: float = 120) -> int:
    """Wait until the present run of a job has got so many bytes; how many it has got."""

    def got() -> int | None:
        told = json.loads(on(host, f"spark-pair jobs look {job} --json"))
        done = int((told.get("progress") or {}).get("done", 0))
        return done if told["state"] == "running" and done >= count else None

    return wait_for(f"{job} has {count:,} bytes", got, seconds)


def wait_for_end(host: str, job: str, seconds: float = 240) -> None:
    """Wait until a job does not run any more."""

    def over() -> bool:
        told = json.loads(on(host, f"spark-pair jobs look {job} --json"))
        return bool(told["state"] != "running")

    wait_for(f"{job} has ended", over, seconds)


def result(host: str, job: str) -> Mapping[str, Any]:
    """What the last run of a job has handed over."""
    told = json.loads(on(host, f"spark-pair jobs look {job} --json"))
    data: Mapping[str, Any] = told["result"]["data"]
    return data


@contextmanager
def no_rail(host: str, number: int) -> Iterator[None]:
    """A rail that carries nothing any more, as when somebody has pulled its cable."""
    interface = RAIL_INTERFACES[number]
    on(host, f"ip link set {interface} down")
    try:
        yield
    finally:
        address = machine(host).addresses[1 + number]
        # Its renderer may bring the address back at the same moment.
        on(
            host,
            f"ip link set {interface} up; ip address replace {address}/24 dev {interface}",
        )


def daemons(host: str) -> list[str]:
    """Processes of rsync on a machine."""
    return on(host, "pgrep -a rsync || true").splitlines()


def repository(host: str, repo: str) -> str:
    """A repository's folder in the cache of a machine."""
    cache = f"{machine(host).home}/.cache/huggingface/hub"
    return f"{cache}/models--{repo.replace('/', '--')}"


def staged(host: str, repo: str) -> int:
    """Bytes that wait beside a repository for the rest of their files, or to be proven."""
    folder = f"{repository(host, repo)}/.spark-pair"
    return int(on(host, f"du -sb {folder} 2>/dev/null || echo 0").split()[0])


def final(host: str, repo: str) -> set[str]:
    """Hashes under which a repository's files lie at their place."""
    names = on(host, f"ls {repository(host, repo)}/blobs 2>/dev/null || true").split()
    return {name for name in names if re.fullmatch(r"[0-9a-f]{40,64}", name)}


def proven(host: str, artefact: str) -> set[str]:
    """Hashes of an artefact's files in a machine's record."""
    files = weights.provenance(host).get(artefact, {"files": {}})["files"]
    return {str(held.get("sha256") or held.get("git_sha1")) for held in files.values()}


# ---- what a play said ---------------------------------------------------------------------------


def told(played: Played, words: str) -> bool:
    """Whether a task of a run has these words for its message."""
    return any(words in str(one.result.get("message", "")) for one in played.outcomes)


def jobs(played: Played) -> list[str]:
    """Names of the jobs that a run has started, in order."""
    said = (str(one.result.get("message", "")) for one in played.outcomes)
    return [found[1] for words in said if (found := re.fullmatch(r"job (\S+) started", words))]
