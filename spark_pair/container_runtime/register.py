"""Have the running Docker know the NVIDIA runtime, without ending what runs on it.

What is to be done follows from what the daemon and its file say now, never from what an earlier
run did: a run that was interrupted between file and reload is finished by the next one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import daemon_json
from .daemon_json import PROGRAM, RUNTIME, Place, RefusedError
from .docker import DEFAULT_FILE, Host, Info, Pair, Unit, flag_value, without_passwords

TOOLKIT_PACKAGE = "nvidia-container-toolkit"
TOOLKIT = (PROGRAM, "nvidia-container-runtime-hook", "nvidia-ctk")
VALIDATE_SECONDS = 60.0


class Step(enum.Enum):
    """What brings the runtime into the running daemon."""

    NOTHING = "nothing"
    RELOAD = "reload"
    """The file already asks for it; the daemon has not read that."""
    MERGE = "merge"


@dataclass(frozen=True)
class Outcome:
    """What was done, or in check mode would be done. `diff` shows the file's runtimes only."""

    step: Step
    did: tuple[str, ...] = ()
    diff: Mapping[str, str] = field(default_factory=dict)
    restart: str = ""
    """Why Docker has yet to be restarted, or ""."""

    @property
    def changed(self) -> bool:
        """Whether anything had to be done."""
        return self.step is not Step.NOTHING


def step_for(info: Info, config: Mapping[str, Any]) -> Step:
    """What is to be done, from what the daemon and its file say."""
    if info.has_nvidia:
        return Step.NOTHING
    return Step.RELOAD if daemon_json.has_runtime(config) else Step.MERGE


def require_toolkit(host: Host) -> None:
    """RefusedError unless the NVIDIA Container Toolkit is whole."""
    missing = [name for name in TOOLKIT if host.program(name) is None]
    if missing:
        raise RefusedError(
            f"The NVIDIA Container Toolkit is not on {host.name}, or not whole "
            f"({', '.join(missing)} missing): containers would get no GPU. Run 'sudo apt-get "
            f"install {TOOLKIT_PACKAGE}' there (DGX OS has it in its own package sources), then "
            "--tags runtime again."
        )


def register(
    host: Host, info: Info, unit: Unit, *, pair: Pair | None, allow_restart: bool, check: bool
) -> Outcome:
    """Have the daemon know the runtime; RefusedError with what stands in the way.

    Docker is restarted only once it is known how the `pair` is; without that, the outcome asks for
    the restart.
    """
    if info.has_nvidia:
        _require_program(host, info)
        return Outcome(Step.NOTHING)
    flags = host.daemon_flags(unit)
    if flag_value(flags, "add-runtime") is not None:
        raise RefusedError(
            f"Docker on {host.name} gets its runtimes as flags (--add-runtime in its unit), which "
            "excludes runtimes in its file. Add "
            f"'--add-runtime {RUNTIME}={PROGRAM}' to those flags, or move them all into "
            f"{DEFAULT_FILE}."
        )
    file = flag_value(flags, "config-file") or DEFAULT_FILE
    place = Place(host.root / file.lstrip("/"))
    old, config = _read(host, place, file)
    outcome = _outcome(step_for(info, config), config, file)
    if not check:
        before = place.raw()
        if outcome.step is Step.MERGE:
            text = daemon_json.render(daemon_json.merged(config), old or "")
            place.replace(text, lambda beside: _validate(host, beside, file))
        try:
            reason = _take_effect(host, place, file, pair, allow_restart=allow_restart)
        except RefusedError as error:
            error.changed = place.raw() != before
            raise
        if reason:
            did = outcome.did if outcome.step is Step.MERGE else ()
            outcome = replace(outcome, did=did, restart=reason)
    return outcome


def _read(host: Host, place: Place, file: str) -> tuple[str | None, dict[str, Any]]:
    try:
        old = place.read()
        config = daemon_json.parse(old or "")
        if trouble := daemon_json.conflict(config, lambda name: host.program(name) is not None):
            raise RefusedError(trouble)
    except RefusedError as error:
        raise RefusedError(
            f"The NVIDIA runtime cannot be added to {file} on {host.name}, which was left as it "
            f"is: {error}. Correct that there, then run --tags runtime again."
        ) from error
    return old, config


def _outcome(step: Step, config: Mapping[str, Any], file: str) -> Outcome:
    if step is Step.RELOAD:
        return Outcome(step, (f"have Docker read {file} again, which asks for the runtime",))
    return Outcome(
        step,
        (f"add the NVIDIA runtime to {file} and have Docker read it again",),
        {
            "before_header": f"{file} (runtimes only)",
            "after_header": f"{file} (runtimes only)",
            "before": daemon_json.runtimes_part(config),
            "after": daemon_json.runtimes_part(daemon_json.merged(config)),
        },
    )


def _validate(host: Host, beside: Path, file: str) -> None:
    daemon = host.program("dockerd")
    if daemon is None:
        return
    asked = host.run([daemon, "--validate", f"--config-file={beside}"], VALIDATE_SECONDS)
    # Before Docker 23 the daemon could not be asked.
    if not asked.ok and "unknown flag: --validate" not in asked.err:
        said = without_passwords(asked.last_words(1)).replace(str(beside), file)
        raise RefusedError(
            f"Docker on {host.name} would not accept {file} with the NVIDIA runtime added, so the "
            f"file was left as it is: {said}"
        )


def _take_effect(
    host: Host, place: Place, file: str, pair: Pair | None, *, allow_restart: bool
) -> str:
    """Reload, then restart; why a restart is needed when `pair` does not say whether it may be."""
    info, known = host.reload()
    if known:
        return ""
    if info is None:
        raise RefusedError(
            f"Docker on {host.name} stopped answering while it read {file}: look at "
            "'journalctl -u docker' there."
        )
    reason = f"it did not take the NVIDIA runtime from {file} while running"
    if pair is None:
        return reason
    left = f"The entry stays in {file}, and whatever restarts Docker next has it read that. "
    if host.restart(info, reason, pair, allowed=allow_restart, left=left):
        return ""
    if host.info()[0] is not None:
        raise RefusedError(
            f"Docker on {host.name} was restarted and still does not know the NVIDIA runtime that "
            f"{file} asks for: see whether its unit names another file ('systemctl cat docker')."
        )
    words = f"Docker on {host.name} does not come up; look at 'journalctl -u docker' there"
    if place.put_back():
        host.run(["systemctl", "reset-failed", "docker.service"], VALIDATE_SECONDS)
        host.run(["systemctl", "restart", "docker.service"], VALIDATE_SECONDS)
        words += f". {file} is what it was before, and Docker was started with that"
    raise RefusedError(f"{words}.")


def _require_program(host: Host, info: Info) -> None:
    program = info.runtimes[RUNTIME]
    if program is not None and host.program(program) is None:
        raise RefusedError(
            f"Docker on {host.name} knows a runtime '{RUNTIME}', but its program {program} is not "
            f"there. Correct runtimes.{RUNTIME} in {DEFAULT_FILE}, then reload Docker."
        )
