"""Lanes and a shared pool of positions, with one first-come-first-served queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Lanes:
    """Admits at most ``lanes`` requests at once and at most ``positions`` reserved positions."""

    def __init__(self, lanes: int, positions: int | None = None) -> None:
        self._lanes = lanes
        self._positions = positions
        self._free = positions
        self._running = 0
        self._queue: deque[object] = deque()
        self._change = threading.Condition()

    @property
    def running(self) -> int:
        """Requests that hold a lane."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait for a lane or for room in the pool."""
        return len(self._queue)

    @property
    def used_share(self) -> float:
        """Share of the pool that is reserved, 0 to 1."""
        if not self._positions or self._free is None:
            return 0.0
        return 1.0 - self._free / self._positions

    def _fits(self, reservation: int) -> bool:
        return self._running < self._lanes and (self._free is None or reservation <= self._free)

    def enter(self, reservation: int, given_up: Callable[[], bool]) -> bool:
        """Wait for a turn. False when ``given_up`` (asked about five times a second) said so."""
        ticket = object()
        with self._change:
            self._queue.append(ticket)
            while not (self._queue[0] is ticket and self._fits(reservation)):
                self._change.wait(0.2)
                if given_up():
                    self._queue.remove(ticket)
                    self._change.notify_all()
                    return False
            self._queue.popleft()
            self._running += 1
            if self._free is not None:
                self._free -= reservation
            self._change.notify_all()
        return True

    def leave(self, reservation: int) -> None:
        """Give the lane and the reserved positions back."""
        with self._change:
            self._running -= 1
            if self._free is not None:
                self._free += reservation
            self._change.notify_all()
