"""`spark-pair jobs`: the long work of this host."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

from . import words
from .inside import record_end
from .shapes import JobState, JobView
from .units import Jobs

_POLL_SECONDS = 1.0
_POLLS_A_LINE = 15
"""A log file need not have a line for each second of five hours."""
_FAILED = 1
_INTERRUPTED = 130


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """Give the command `jobs` its options and verbs."""
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=_list)
    verbs = parser.add_subparsers(metavar="VERB")

    one = verbs.add_parser("stop", help="stop job NAME; what it has is kept")
    _one_job(one)
    one.set_defaults(run=_stop)

    one = verbs.add_parser("look", help="how job NAME is at this moment")
    _one_job(one)
    one.set_defaults(run=_look)

    one = verbs.add_parser("follow", help="show the live line of job NAME until it ends")
    _one_job(one)
    one.set_defaults(run=_follow)

    # Its last step, called by systemd; the unit's environment says which job.
    verbs.add_parser("ended").set_defaults(run=_ended)


def _one_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")
    # Without a default, which would undo "jobs --json stop".
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS)


def told(view: JobView) -> dict[str, Any]:
    """A job for programs, with the line for people."""
    return {**view.as_dict(), "line": words.line(view)}


def _list(options: argparse.Namespace, _: list[str]) -> int:
    views = Jobs().all()
    print(json.dumps([told(view) for view in views]) if options.json else words.table(views))
    return 0


def _stop(options: argparse.Namespace, _: list[str]) -> int:
    view, ran = Jobs().stop(options.name)
    if options.json:
        print(json.dumps({**told(view), "changed": ran}))
    elif ran:
        print(words.line(view))
    else:
        print(f"job {options.name} does not run, there is nothing to stop ({words.line(view)})")
    return 0


def _look(options: argparse.Namespace, _: list[str]) -> int:
    view = Jobs().look(options.name)
    print(json.dumps(told(view)) if options.json else words.line(view))
    return 0


def _follow(options: argparse.Namespace, _: list[str]) -> int:
    """Until the job ends; Ctrl-C only stops the watching. 0 only for a job that is done."""
    jobs = Jobs()
    screen = _Screen(live=sys.stdout.isatty(), quiet=options.json)
    try:
        view = jobs.look(options.name)
        while view.state is JobState.RUNNING:
            screen.show(words.line(view))
            time.sleep(_POLL_SECONDS)
            view = jobs.look(options.name)
    except KeyboardInterrupt:
        print(f"\nspark-pair: stopped watching; job {options.name} goes on", file=sys.stderr)
        return _INTERRUPTED
    screen.clear()
    print(json.dumps(told(view)) if options.json else words.line(view))
    return 0 if view.state is JobState.DONE else _FAILED


class _Screen:
    """Where the live line goes: one line in place on a terminal, else a new one now and then."""

    def __init__(self, *, live: bool, quiet: bool) -> None:
        self.live = live
        self.quiet = quiet
        self.width = 0
        self.polls = 0

    def show(self, text: str) -> None:
        """Put `text` in the place of what was there."""
        if self.quiet:
            return
        if self.live:
            text = text[: shutil.get_terminal_size().columns - 1]
            print(f"\r{text:<{self.width}}", end="", flush=True)
            self.width = len(text)
        elif self.polls % _POLLS_A_LINE == 0:
            print(text, flush=True)
        self.polls += 1

    def clear(self) -> None:
        """Leave nothing behind."""
        if self.width:
            print(f"\r{'':<{self.width}}\r", end="", flush=True)
            self.width = 0


def _ended(_: argparse.Namespace, __: list[str]) -> int:
    record_end()
    return 0
