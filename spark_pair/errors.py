"""Exit codes and the errors that carry them.

An error here is written for the person at the keyboard: what is wrong, on which host, what it
means, what to do next. One sentence or two.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the tool's exit code promises about the pair."""

    DONE = 0
    BAD_INPUT = 2
    REFUSED = 10
    """Nothing was touched."""
    GAVE_UP = 11
    """The switch backed out; the old server serves."""
    RECOVERED = 20
    """The new server failed; the former one serves again."""
    NOBODY = 30
    """No server answers; the journal says what is left to do."""
    BUSY = 75
    """Another switch holds the lock."""


class SparkPairError(Exception):
    """Base of all errors that end the tool with a sentence instead of a traceback."""

    exit = Exit.BAD_INPUT


class DescriptionError(SparkPairError):
    """The pair description is not usable; the message names the key and its value."""


class BusyError(SparkPairError):
    """Another switch holds the lock; the message says which and since when."""

    exit = Exit.BUSY


class UnreachableError(SparkPairError):
    """The peer could not be asked, so nothing is known about it. Never to be read as "down"."""

    exit = Exit.REFUSED


class NodeError(SparkPairError):
    """A host answered, and what it was asked to do failed there."""

    exit = Exit.REFUSED
