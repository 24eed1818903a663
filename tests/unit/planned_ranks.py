"""A declaration, the dry run that fits it, and the containers that Docker would make of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from spark_pair.engine_dry_run import parse
from spark_pair.engine_planned import Declared

HOMES = {0: "/home/one", 1: "/srv/two"}
ENGRAM = "/srv/two/hf/hub/models--engram/snapshots/1bae0e10"
SETTINGS = {
    "CONTEXT": "262144",
    "PARALLEL": "8",
    "ROUND_ROWS": "32",
    "GRAPHS": "1",
    "PREFILL_INTERLEAVE_MS": "250",
    "THINKING": "0",
    "REASONING_EFFORT": "high",
    "MAX_TOKENS": "32768",
    "HOST": "0.0.0.0",
    "PORT": "8888",
    "SERVED_NAME": "DeepSeek V4.1",
    "IMAGE": "image:1",
    "NFS_VOLUME": "/srv/two/hf",
    "WORKER_ENGRAM_DIR": ENGRAM,
}
SECRET = "a token's $value"
DECLARED = Declared(SETTINGS, {"HF_TOKEN": SECRET})


def environment(**changes: str | None) -> dict[str, str]:
    """Environment of a rank; a change to None leaves a variable out."""
    made: dict[str, str | None] = {
        "HF_HUB_OFFLINE": "1",
        "TF_TP_WORLD": "2",
        "TF_TP_MASTER": "198.51.100.1",
        "TF_RDMA_DEVICES": "rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_IB_GID_INDEX": "3",
        "TF_DS_GRAPHS": "1",
        "TF_DS_ROUND_ROWS": "32",
        "TF_DS_STREAMS": "8",
        "TF_DS_PREFILL_INTERLEAVE_MS": "250",
        "TF_DS_REASONING_EFFORT": "high",
        "TF_DS_HC_SIDE": "1",
        "TF_DS_RANK_CACHE": "/hf/cut",
        "TF_DS_ENGRAM": "/hf/engram",
    }
    return {name: value for name, value in (made | changes).items() if value is not None}


SERVE = (
    "tensorfold serve /hf/model --host 0.0.0.0 --port 8888 --name 'DeepSeek V4.1' "
    "--context 262144 --parallel 8 --no-thinking --max-tokens 32768"
)
FOLLOW = "tf-dsv41-lanes /hf/model /hf/cut 1 2 198.51.100.1 29620 /kit --pool 262144 --graphs 1"


def dry_run(
    *,
    env: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
    image: tuple[str, str] = ("image:1", "image:1"),
    name: str = "ds",
    options: tuple[str, str] = ("-v /home/one/hf:/hf", f"-v /srv/two/hf/:/hf:ro -v {ENGRAM}:/e:ro"),
    argv: tuple[str, str] = (SERVE, FOLLOW),
    rails: int = 2,
) -> str:
    """The output of a dry run; each pair is rank 0's and rank 1's."""
    envs = env or (environment(), environment(TF_DS_ENGRAM="/e"))
    commands = [
        f"docker run -d --name {name} --gpus all --network host "
        + "".join(f"-e {shlex.quote(f'{key}={value}')} " for key, value in envs[rank].items())
        + f"{options[rank]} {image[rank]} {argv[rank]} "
        for rank in (0, 1)
    ]
    return (
        f"[start.sh] Link: 198.51.100.1 (a) <-> 198.51.100.2 (a), RoCE x / x (GID 3 / 3; {rails} "
        "rail(s) -> NCCL_IB_HCA, TF_RDMA_DEVICES)\n"
        f"[dry-run] rank 1 on two@198.51.100.2:\n  mkdir -p $HOME/.cache/x && {commands[1]}\n"
        f"[dry-run] rank 0 here:\n  {commands[0]}\n"
    )


def told(rank: int, output: str | None = None, **changes: Any) -> dict[str, Any]:
    """What a machine's Docker and engine say of a rank that was started as `output` says."""
    planned = parse(output or dry_run(), HOMES).ranks[rank]
    mounts = [
        {
            "Type": "bind",
            "Source": one.source,
            "Destination": one.target,
            "RW": not one.read_only,
        }
        for one in planned.mounts
    ]
    return {
        "inspected": {
            "Name": f"/{planned.container}",
            "Image": "sha256:1",
            "Config": {
                "Image": planned.image,
                "Env": ["PATH=/usr/bin", *(f"{key}={value}" for key, value in planned.env.items())],
                "Cmd": list(planned.argv),
            },
            "HostConfig": {"NetworkMode": "host", "Devices": []},
            "Mounts": mounts,
        },
        "image_id": "sha256:1",
        "image_env": ["PATH=/usr/bin"],
        "ready": {"context": 262144, "drafts": True},
        **changes,
    }
