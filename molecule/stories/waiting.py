"""Waiting for something, never for ever."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(
    what: str, ask: Callable[[], Found | None], seconds: float, every: float = 0.2
) -> Found:
    """Ask until the answer is neither None nor False, and return it.

    `seconds` bounds the wait, `every` is the pause between two questions. AssertionError says
    `what` did not happen.
    """
    until = time.monotonic() + seconds
    while True:
        found = ask()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < until, f"{what}: not within {seconds:g} s"
        time.sleep(every)
