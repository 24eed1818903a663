"""What a play wants of a job: that it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .. import paths
from ..errors import Exit
from .commands import told
from .shapes import JobError, JobState, JobView
from .units import Caps, Jobs

Answer = dict[str, Any]

_ASK_SECONDS = 20


def answer(view: JobView, message: str, *, changed: bool, **more: bool) -> Answer:
    """What a play is told."""
    return {
        "attached": False,
        "same": True,
        **more,
        "changed": changed,
        "message": message,
        "view": told(view),
    }


def started(jobs: Jobs, wanted: Mapping[str, Any], *, check: bool) -> Answer:
    """Start the job or attach to it; with `check` only say which.

    `refused` says why it may not be started now; one that runs is attached to all the same. Raises
    JobError then, and when its program is not on this host, and what `Jobs.start` raises.
    """
    name = wanted["name"]
    if wanted["refused"] and jobs.look(name).state is not JobState.RUNNING:
        raise JobError(wanted["refused"])
    if check:
        view = jobs.look(name)
        runs = view.state is JobState.RUNNING
        message = _runs_already(name) if runs else f"would start job {name}"
        return answer(view, message, changed=not runs, attached=runs)
    program = wanted["argv"][0]
    if not os.access(program, os.X_OK):
        raise JobError(f"{program} is not on this host: run --tags tools first")
    if program == paths.TOOL:
        _refuse_an_older_tool(jobs, name)
    done = jobs.start(
        name,
        wanted["argv"],
        words=wanted["words"],
        user=wanted["user"],
        environment=wanted["environment"],
        secrets=wanted["secrets"],
        caps=Caps(**wanted["caps"]),
        order=wanted["order"],
        record=wanted["record"],
    )
    message = _runs_already(name) if done.attached else f"job {name} started"
    return answer(
        done.view, message, changed=not done.attached, attached=done.attached, same=done.same
    )


def _refuse_an_older_tool(jobs: Jobs, name: str) -> None:
    """A release from before there were jobs could neither be followed nor tell how it ended."""
    done = jobs.runner([paths.TOOL, "jobs", "look", name, "--json"], _ASK_SECONDS)
    if done.code == Exit.BAD_INPUT:
        raise JobError(
            "the spark-pair tool on this host is older than these playbooks: run --tags tools first"
        )


def _runs_already(name: str) -> str:
    return f"job {name} runs already"
