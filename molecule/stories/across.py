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
from .plays import Played
from .waiting import wait_for

_ENGINE = CHECKOUT / "simulated_pair" / "standins" / "engine" / "bin"
_RECORD = "/var/lib/spark-pair/provenance.json"
_SIDECAR = "exl3_wo_b_l10_35_mia29.safetensors"


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
    folder = str(Path(ranks(HEAD, "-ablit-")).parent)
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
        on(
            host,
            f"ip link set {interface} up; "
            f"ip -brief address show dev {interface} | grep -qF ' {address}/' "
            f"|| ip address add {address}/24 dev {interface}",
        )


def daemons(host: str) -> list[str]:
    """Processes of rsync on a machine."""
    return on(host, "pgrep -a rsync || true").splitlines()


def _repository(host: str, repo: str) -> str:
    cache = f"{machine(host).home}/.cache/huggingface/hub"
    return f"{cache}/models--{repo.replace('/', '--')}"


def staged(host: str, repo: str) -> int:
    """Bytes that wait beside a repository for the rest of their files, or to be proven."""
    folder = f"{_repository(host, repo)}/.spark-pair"
    return int(on(host, f"du -sb {folder} 2>/dev/null || echo 0").split()[0])


def final(host: str, repo: str) -> set[str]:
    """Hashes under which a repository's files lie at their place."""
    names = on(host, f"ls {_repository(host, repo)}/blobs 2>/dev/null || true").split()
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
