"""The one proof that containers get the GPU: one that asks for it and names it.

A registered runtime proves nothing: an image of another machine type, a toolkit in a mode that this
machine does not bear, or a driver newer than its module all show only here.
"""

from __future__ import annotations

import enum
import platform
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..system import TIMED_OUT, Result
from .daemon_json import RefusedError
from .docker import ASK_SECONDS, Host, Pair, without_passwords

NAME = "spark-pair-gpu-proof"
"""How the names of the containers begin: each run has one of its own."""
LABEL = "spark-pair.gpu-proof.until"
"""Label of the containers: when one of them is nobody's any more, in seconds since the epoch."""
GRACE = 600.0
"""Seconds beyond its time after which a container can only be left of a run that was killed."""
BEFORE_TOOLKIT = "it was started before the NVIDIA Container Toolkit was installed"
PULL_SECONDS = 600.0
_ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
"""The kernel's names of machine types -> Docker's."""
_SHOWN_IMAGES = 8


class Trouble(enum.Enum):
    """Why a container did not show a GPU."""

    FOREIGN_IMAGE = "foreign image"
    EXEC_FORMAT = "exec format error"
    NO_DRIVER_KNOWN = "no device driver"
    MODULE_MISMATCH = "module mismatch"
    NO_COMMAND = "no command"
    LATE = "late"
    NO_GPU = "no GPU"
    OTHER = "other"


@dataclass(frozen=True)
class Wanted:
    """What is run: an image, the command in it, and how many seconds it may take."""

    image: str
    command: tuple[str, ...]
    timeout: float
    expect: str
    """Regular expression; a line of the output that it finds something in names the GPU."""

    def gpu_in(self, said: str) -> str | None:
        """The line that names the GPU."""
        lines = (line.strip() for line in said.splitlines())
        return next((line for line in lines if re.search(self.expect, line)), None)


@dataclass(frozen=True)
class Proof:
    """What the container said, and whether its image had to be pulled for that."""

    said: str
    pulled: bool = False
    restarted: bool = False
    restart: str = ""
    """Why Docker must be restarted before a container can show the GPU, or ""."""


def argv(wanted: Wanted, name: str, until: float) -> list[str]:
    """The container's command line.

    The command replaces the image's entry point, which in an engine's image would start a server.
    """
    program, *arguments = wanted.command
    return [
        *("docker", "run", "--rm", "--name", name, "--label", f"{LABEL}={until:.0f}"),
        *("--pull", "never", "--gpus", "all"),
        *("--network", "none", "--entrypoint", program, wanted.image, *arguments),
    ]


def trouble(ran: Result, wanted: Wanted, image_machine: str, machine: str) -> Trouble | None:
    """What a finished container tells; None when it named a GPU.

    `image_machine` is the image's machine type as Docker calls it, `machine` the kernel's name.
    """
    said = f"{ran.err}\n{ran.out}".lower()
    if ran.ok:
        return Trouble.NO_GPU if wanted.gpu_in(ran.out) is None else None
    if ran.code == TIMED_OUT:
        return Trouble.LATE
    if "exec format error" in said:
        own = image_machine in ("", _ARCHITECTURES.get(machine, machine))
        return Trouble.EXEC_FORMAT if own else Trouble.FOREIGN_IMAGE
    if "could not select device driver" in said or "unresolvable cdi devices" in said:
        return Trouble.NO_DRIVER_KNOWN
    if "driver/library version mismatch" in said:
        return Trouble.MODULE_MISMATCH
    if "executable file not found" in said or "no such file or directory" in said:
        return Trouble.NO_COMMAND
    return Trouble.OTHER


def hint(found: Trouble, wanted: Wanted, image_machine: str) -> str:
    """What a trouble means and what to do about it."""
    return {
        Trouble.FOREIGN_IMAGE: (
            f"The image is made for {image_machine}: set container_runtime_proof_image to one for "
            "this machine."
        ),
        Trouble.EXEC_FORMAT: (
            "The image is made for this machine, so the NVIDIA runtime hands it over wrongly: put "
            "the runtime into legacy mode (sudo nvidia-ctk config --in-place --set "
            "nvidia-container-runtime.mode=legacy), then run --tags runtime again."
        ),
        Trouble.NO_DRIVER_KNOWN: (
            "Docker looks for the NVIDIA Container Toolkit when it starts, and did not find it: "
            "see 'which nvidia-container-runtime-hook' and 'journalctl -u docker' there."
        ),
        Trouble.MODULE_MISMATCH: (
            "The loaded kernel module and the driver's libraries are of different versions: reboot "
            "the machine."
        ),
        Trouble.NO_COMMAND: (
            f"{wanted.command[0]} is not in the container: the NVIDIA runtime did not put the "
            "driver's tools in, or container_runtime_proof_command names something else."
        ),
        Trouble.LATE: (
            f"It did not end within container_runtime_proof_timeout ({wanted.timeout:g} s) and was "
            "removed: look for a GPU that hangs ('nvidia-smi' on the machine, 'dmesg')."
        ),
        Trouble.NO_GPU: (
            "The container ran, and no line of it names a GPU (container_runtime_proof_expect: "
            f"{wanted.expect}): see what 'nvidia-smi -L' says there."
        ),
        Trouble.OTHER: "See whether 'nvidia-smi -L' works on the machine itself.",
    }[found]


def failure(host: str, wanted: Wanted, ran: Result, found: Trouble, image_machine: str) -> str:
    """The whole sentence about a proof that failed."""
    said = without_passwords(ran.last_words(1))
    return (
        f"A container of {wanted.image} on {host} does not show the GPU ({said}). "
        f"{hint(found, wanted, image_machine)}"
    )


def image_machine(host: Host, image: str) -> str | None:
    """Machine type that an image on this host is made for, or None when it is not there."""
    asked = host.run(
        ["docker", "image", "inspect", "--format", "{{.Architecture}}", image], ASK_SECONDS
    )
    return asked.out.strip() if asked.ok else None


def intention(wanted: Wanted, *, pull: bool) -> str:
    """What a run that only looks says instead of running the container."""
    first = f"pull {wanted.image} and " if pull else ""
    command = " ".join(wanted.command)
    return f"would {first}run '{command}' in a container of {wanted.image} with the GPU"


def prove(host: Host, wanted: Wanted, *, pair: Pair | None, allow_restart: bool) -> Proof:
    """Run the container, and leave none behind; RefusedError when it shows no GPU.

    A Docker that was started before the toolkit was installed is restarted, if that ends nothing.
    While it is not known how the `pair` is, the result only asks for that.
    """
    _remove_stale(host)
    made_for = image_machine(host, wanted.image)
    pulled = made_for is None
    if made_for is None:
        _pull(host, wanted.image)
        made_for = image_machine(host, wanted.image) or ""
    ran, found = _run(host, wanted, made_for)
    restarted = found is Trouble.NO_DRIVER_KNOWN
    if restarted:
        if pair is None:
            return Proof("", pulled, restart=BEFORE_TOOLKIT)
        _restart(host, wanted, pair, allow_restart=allow_restart)
        ran, found = _run(host, wanted, made_for)
    if found is not None:
        raise RefusedError(failure(host.name, wanted, ran, found, made_for))
    return Proof(wanted.gpu_in(ran.out) or "", pulled, restarted)


def _run(host: Host, wanted: Wanted, made_for: str) -> tuple[Result, Trouble | None]:
    name = f"{NAME}-{secrets.token_hex(4)}"
    ran = host.run(argv(wanted, name, time.time() + wanted.timeout + GRACE), wanted.timeout)
    found = trouble(ran, wanted, made_for, platform.machine())
    if found is not None:
        _remove(host, name)
    return ran, found


def _remove(host: Host, *names: str) -> None:
    host.run(["docker", "rm", "--force", "--volumes", *names], ASK_SECONDS)


def stale(listed: str, now: float) -> list[str]:
    """Containers whose time is over, of lines with a name and the value of `LABEL`."""
    rows = [line.split("\t") for line in listed.splitlines()]
    return [row[0] for row in rows if len(row) == 2 and row[1].isdecimal() and int(row[1]) < now]


def _remove_stale(host: Host) -> None:
    shown = f'{{{{.Names}}}}\t{{{{.Label "{LABEL}"}}}}'
    words = ["docker", "ps", "--all", "--filter", f"label={LABEL}", "--format", shown]
    left = stale(host.run(words, ASK_SECONDS).out, time.time())
    if left:
        _remove(host, *left)


def _restart(host: Host, wanted: Wanted, pair: Pair, *, allow_restart: bool) -> None:
    info, why = host.info()
    if info is None:
        raise RefusedError(f"Docker on {host.name} stopped answering: {why}.")
    if not host.restart(info, BEFORE_TOOLKIT, pair, allowed=allow_restart):
        raise RefusedError(
            f"Docker on {host.name} was restarted for {wanted.image} to get its GPU and did not "
            "come back with the NVIDIA runtime: look at 'journalctl -u docker' there."
        )


def _pull(host: Host, image: str) -> None:
    done = host.run(["docker", "pull", "--quiet", image], PULL_SECONDS)
    if done.ok:
        return
    there = _images(host)
    advice = (
        f"set container_runtime_proof_image to an image that is there: {', '.join(there)}"
        if there
        else "bring one there with 'docker load' and name it in container_runtime_proof_image"
    )
    raise RefusedError(
        f"{image}, in which the GPU is to be shown, is not on {host.name} and cannot be pulled "
        f"({without_passwords(done.last_words(1))}). Without a way to the registry {advice}."
    )


def _images(host: Host) -> Sequence[str]:
    asked = host.run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"], ASK_SECONDS)
    return [name for name in asked.out.split() if "<none>" not in name][:_SHOWN_IMAGES]
