"""How fast: a limit shared by everything that is fetched at once, and what to show of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 10.0

Clock = Callable[[], float]


class Limiter:
    """Lets at most so many bytes a second through, over all threads; None is no limit."""

    def __init__(self, bytes_per_second: float | None, clock: Clock = time.monotonic) -> None:
        self._rate = bytes_per_second or None
        self._clock = clock
        self._free_at = 0.0
        self._lock = threading.Lock()

    def seconds_for(self, count: int) -> float:
        """Seconds to wait after so many bytes; the caller waits as it likes."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / self._rate
            return self._free_at - now


@dataclass(frozen=True)
class Reading:
    """What is shown of a download."""

    done: int
    """Bytes that are there, those of earlier runs included."""
    total: int
    fetched: int
    """Bytes that came over the network in this run."""
    rate: float
    """Bytes a second that came over the network lately."""
    step: str
    """What happens now, in some words."""


class Meter:
    """Counts what is there and what came, from many threads."""

    def __init__(self, total: int, clock: Clock = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._there: dict[str, int] = {}
        self._fetched = 0
        self._step = ""
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._lock = threading.Lock()

    def there(self, path: str, count: int) -> None:
        """So many bytes of a file are there."""
        with self._lock:
            self._there[path] = count

    def came(self, path: str, count: int, there: int) -> None:
        """So many more bytes of a file came, and so many are there now."""
        with self._lock:
            self._there[path] = there
            self._fetched += count

    def say(self, step: str) -> None:
        """Name what happens now."""
        with self._lock:
            self._step = step

    def read(self) -> Reading:
        """The state of things; the rate is that of the last WINDOW_SECONDS between readings."""
        with self._lock:
            now = self._clock()
            self._seen.append((now, self._fetched))
            while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW_SECONDS:
                self._seen.popleft()
            start, before = self._seen[0]
            rate = (self._fetched - before) / (now - start) if now > start else 0.0
            done = sum(self._there.values())
            return Reading(done, self._total, self._fetched, rate, self._step)
