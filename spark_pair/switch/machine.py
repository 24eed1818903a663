"""The switch's state machine: phases, outcomes, and where each outcome leads.

This table *is* the machine; the phases' work is in `work.py`. It is small enough to be explored
exhaustively: from every phase, under every outcome, an end is reachable, and no path from a
stopped server leads anywhere but to a verified server, to an empty pair that was asked for, or to
exit 30 with the remaining step in words.
"""

from __future__ import annotations

from enum import StrEnum

from ..errors import Exit


class Phase(StrEnum):
    """What the switch is doing."""

    OBSERVE = "observe"
    REFUSE = "refuse"
    DRAIN = "drain"
    ARM = "arm"
    KEEPERS = "keepers"
    STOP = "stop"
    RELEASE = "release"
    START = "start"
    VERIFY = "verify"
    RESTORE = "restore"
    COMMIT = "commit"
    BACK_OUT = "back_out"
    RECOVER = "recover"
    CLEAN = "clean"


class Outcome(StrEnum):
    """How a phase ended."""

    OK = "ok"
    NOTHING = "nothing"
    """There is nothing to do (observe), or no server is wanted (start)."""
    REFUSED = "refused"
    GAVE_UP = "gave_up"
    """The drain's deadline passed, or the operator aborted while the old server still runs."""
    FAILED = "failed"
    AGAIN = "again"
    """This attempt to recover failed; another candidate is left."""


TRANSITIONS: dict[tuple[Phase, Outcome], Phase | Exit] = {
    (Phase.OBSERVE, Outcome.OK): Phase.REFUSE,
    (Phase.OBSERVE, Outcome.NOTHING): Exit.DONE,
    (Phase.OBSERVE, Outcome.REFUSED): Exit.REFUSED,
    (Phase.OBSERVE, Outcome.GAVE_UP): Exit.GAVE_UP,
    (Phase.OBSERVE, Outcome.FAILED): Exit.REFUSED,
    (Phase.REFUSE, Outcome.OK): Phase.DRAIN,
    (Phase.REFUSE, Outcome.REFUSED): Exit.REFUSED,
    (Phase.REFUSE, Outcome.GAVE_UP): Exit.GAVE_UP,
    (Phase.REFUSE, Outcome.FAILED): Exit.REFUSED,
    (Phase.DRAIN, Outcome.OK): Phase.ARM,
    (Phase.DRAIN, Outcome.GAVE_UP): Exit.GAVE_UP,
    (Phase.DRAIN, Outcome.FAILED): Exit.GAVE_UP,
    (Phase.ARM, Outcome.OK): Phase.KEEPERS,
    (Phase.ARM, Outcome.GAVE_UP): Exit.GAVE_UP,
    (Phase.ARM, Outcome.FAILED): Exit.REFUSED,
    (Phase.KEEPERS, Outcome.OK): Phase.STOP,
    (Phase.KEEPERS, Outcome.GAVE_UP): Phase.BACK_OUT,
    (Phase.KEEPERS, Outcome.FAILED): Phase.BACK_OUT,
    (Phase.BACK_OUT, Outcome.OK): Exit.GAVE_UP,
    (Phase.BACK_OUT, Outcome.FAILED): Phase.RECOVER,
    (Phase.STOP, Outcome.OK): Phase.RELEASE,
    (Phase.STOP, Outcome.FAILED): Phase.RECOVER,
    (Phase.RELEASE, Outcome.OK): Phase.START,
    (Phase.RELEASE, Outcome.FAILED): Phase.RECOVER,
    (Phase.START, Outcome.OK): Phase.VERIFY,
    (Phase.START, Outcome.NOTHING): Phase.COMMIT,
    (Phase.START, Outcome.FAILED): Phase.RECOVER,
    (Phase.VERIFY, Outcome.OK): Phase.RESTORE,
    (Phase.VERIFY, Outcome.FAILED): Phase.RECOVER,
    # A keeper that does not come back is reported, but the new server was verified: it stays.
    (Phase.RESTORE, Outcome.OK): Phase.COMMIT,
    (Phase.RESTORE, Outcome.FAILED): Phase.COMMIT,
    (Phase.COMMIT, Outcome.OK): Exit.DONE,
    (Phase.COMMIT, Outcome.FAILED): Exit.DONE,
    (Phase.RECOVER, Outcome.OK): Exit.RECOVERED,
    (Phase.RECOVER, Outcome.AGAIN): Phase.RECOVER,
    (Phase.RECOVER, Outcome.FAILED): Phase.CLEAN,
    (Phase.CLEAN, Outcome.OK): Exit.NOBODY,
    (Phase.CLEAN, Outcome.FAILED): Exit.NOBODY,
}

UNTOUCHED = frozenset({Phase.OBSERVE, Phase.REFUSE, Phase.DRAIN})
"""Phases in which nothing on the pair has been changed yet."""

TOUCHED = frozenset({Phase.STOP, Phase.RELEASE, Phase.START, Phase.VERIFY, Phase.RECOVER})
"""Phases whose beginning means that the pair may have been changed."""

STILL_SERVING = frozenset({Phase.ARM, Phase.KEEPERS, Phase.BACK_OUT})
"""Phases in which the old server still runs, perhaps without its keepers."""

FINISHING = frozenset({Phase.RESTORE, Phase.COMMIT})
"""Phases after the new server was verified."""


def after(phase: Phase, outcome: Outcome) -> Phase | Exit:
    """Where `outcome` of `phase` leads. A pair that is not in the table is a bug: fail safe.

    A surprise before the stop must not touch anything; a surprise after it must bring a server
    back.
    """
    known = TRANSITIONS.get((phase, outcome))
    if known is not None:
        return known
    if phase in UNTOUCHED:
        return Exit.REFUSED
    if phase in STILL_SERVING and phase is not Phase.BACK_OUT:
        return Phase.BACK_OUT
    if phase in FINISHING:
        return Exit.DONE
    if phase is Phase.CLEAN:
        return Exit.NOBODY
    return Phase.CLEAN if phase is Phase.RECOVER else Phase.RECOVER


def resume_at(last: Phase | None) -> Phase | Exit:
    """Where a switch that was cut off in `last` goes on.

    STOP..VERIFY are not repeated blindly: RESTORE is entered only if the target is found serving
    (the caller asks), else RECOVER.
    """
    if last is None or last in UNTOUCHED:
        return Exit.REFUSED
    if last in STILL_SERVING:
        return Phase.BACK_OUT
    if last in FINISHING:
        return Phase.RESTORE
    return Phase.RECOVER
