"""Everything between "there is a machine" and "a container may ask for its GPU", but the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import mounts, packages, register, waiting
from .daemon_json import RefusedError
from .docker import UNIT, Host, Pair, Unit


@dataclass(frozen=True)
class Wanted:
    """What the servers need: their account, its home, directories below it."""

    user: str
    home: str
    paths: tuple[str, ...]
    allow_restart: bool
    pair: Pair | None = None
    """How the pair is; Docker is not restarted without that."""


@dataclass(frozen=True)
class Ready:
    """How far this host is.

    `lacks` says what the distribution's tools have to bring first (docker, running, boot, account);
    the runtime is then not looked at. `did` is what was done, or in check mode would be done.
    """

    lacks: tuple[str, ...]
    why: str
    """What Docker said to the account when it did not let it in."""
    version: str | None
    did: tuple[str, ...]
    notes: tuple[str, ...]
    diff: Sequence[dict[str, str]]
    restart: str = ""
    """Why Docker has yet to be restarted, or ""."""


def make_ready(host: Host, wanted: Wanted, *, check: bool) -> Ready:
    """Look, refuse, then mend; RefusedError with one sentence for the operator."""
    who = mounts.account(host, wanted.user, wanted.home)
    # Before Docker is installed: half of what is needed would only look finished.
    register.require_toolkit(host)
    unit = host.unit()
    lacks = _lacks(host, unit)
    if lacks:
        return _unfinished(host, who, wanted, lacks, "", check=check)
    info, why = host.info(wanted.user)
    if info is None:
        if host.info()[0] is None:
            raise RefusedError(
                f"Docker on {host.name} runs but does not answer ({why}): look at 'journalctl -u "
                "docker' there."
            )
        return _unfinished(host, who, wanted, ("account",), why, check=check)
    # Looked at before anything is touched, made after everything that may be refused.
    mounts.mend(host, who, wanted.paths, check=True)
    outcome = register.register(
        host, info, unit, pair=wanted.pair, allow_restart=wanted.allow_restart, check=check
    )
    mended = mounts.mend(host, who, wanted.paths, check=check)
    diff = _prepared(*outcome.did, *mended.did)
    diff += [dict(outcome.diff)] if outcome.diff else []
    did = (*outcome.did, *mended.did)
    return Ready((), "", info.version, did, mended.notes, diff, outcome.restart)


def _unfinished(
    host: Host,
    who: mounts.Account,
    wanted: Wanted,
    lacks: tuple[str, ...],
    why: str,
    *,
    check: bool,
) -> Ready:
    """What comes first; a run that only looks ends here and says what it can of the rest."""
    # Nothing is made yet: who may use the directories can depend on what comes first.
    mended = mounts.mend(host, who, wanted.paths, check=True)
    if not check:
        return Ready(lacks, why, None, (), (), ())
    return Ready(lacks, why, None, mended.did, mended.notes, _prepared(*mended.did))


def _prepared(*did: str) -> list[dict[str, str]]:
    return [{"prepared": f"{words}\n"} for words in did]


def _lacks(host: Host, unit: Unit) -> tuple[str, ...]:
    if unit.load == "masked":
        raise RefusedError(
            f"{UNIT} on {host.name} is masked, so somebody does not want it to run: 'sudo "
            f"systemctl unmask {UNIT}' there if the servers may have it."
        )
    if unit.load != "loaded":
        other = host.program("dockerd") or host.program("/snap/bin/docker")
        if other:
            raise RefusedError(
                f"{host.name} has a Docker ({other}) without {UNIT}: it is not replaced. Install "
                "one that is run by systemd, or remove that one and run --tags runtime again."
            )
        packages.require_room(host)
        return ("docker",)
    if not unit.running:
        waiting.require_none(host)
    found = [] if unit.running else ["running"]
    return (*found, *(["boot"] if unit.file_state == "disabled" else []))
