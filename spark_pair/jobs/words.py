"""A job in one line."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from .shapes import JobState, JobView, Progress

_QUERY = re.compile(r"(?<=[^\s?])\?[^\s)\"'?][^\s)\"']*")
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_UNITS = ("B", "kB", "MB", "GB", "TB")
_SILENT_SECONDS = 60


def line(view: JobView, now: float | None = None) -> str:
    """The live line: "download checkpoint  12.3 of 210.4 GB  98 MB/s  33 min left".

    `now` (epoch seconds) is for telling when there has been no news for a while.
    """
    if view.state is JobState.ABSENT:
        return f"{view.name}  never started"
    if view.state is not JobState.RUNNING:
        # Not its last step: what it was about counts now, and the message says how it ended.
        title = (view.request.words if view.request else "") or view.name
        return f"{title}  {view.state}: {view.message}"
    if view.progress is None:
        return f"{view.words}  running"
    parts = [view.words, *_parts(view.progress)]
    silent = (time.time() if now is None else now) - view.progress.at
    if silent >= _SILENT_SECONDS:
        # Speed and time left are old by now, and would lull whoever reads them.
        parts = [*parts[:2], f"no news for {duration(silent)}"]
    return "  ".join(part for part in parts if part)


def _parts(progress: Progress) -> list[str]:
    parts = [amount(progress.done, progress.total)]
    if progress.total is not None and progress.done >= progress.total:
        return parts
    if progress.rate is not None:
        parts.append(f"{size(progress.rate, whole=progress.rate >= 1e7)}/s")
    if progress.left_seconds is not None:
        parts.append(f"{duration(progress.left_seconds)} left")
    return parts


def amount(done: int, total: int | None) -> str:
    """ "12.3 of 210.4 GB", both in the unit of the total."""
    if total is None:
        return size(done) if done else ""
    unit = _unit_of(total)
    return f"{_in_unit(done, unit)} of {_in_unit(total, unit)} {_UNITS[unit]}"


def size(count: float, *, whole: bool = False) -> str:
    """Bytes in powers of ten, as disks and links are sold: "98.3 MB"."""
    unit = _unit_of(count)
    return f"{_in_unit(count, unit, whole=whole)} {_UNITS[unit]}"


def _unit_of(count: float) -> int:
    unit = 0
    while unit < len(_UNITS) - 1 and count >= 999.95 * 1000**unit:
        unit += 1
    return unit


def _in_unit(count: float, unit: int, *, whole: bool = False) -> str:
    return f"{count / 1000**unit:.{0 if whole or unit == 0 else 1}f}"


def duration(seconds: float) -> str:
    """ "40 s", "33 min", "5 h 36 min", "3 d 4 h"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = max(1, round(seconds / 60))
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def without_keys(text: str) -> str:
    """A text without what its addresses carry behind a "?" or before an "@": whoever has that of a
    store or a proxy may use them."""
    return _QUERY.sub("?…", _LOGIN.sub("…@", text))


def table(views: Sequence[JobView], now: float | None = None) -> str:
    """All jobs of a host, one a line."""
    if not views:
        return "no job was ever started on this host"
    width = max(len(view.name) for view in views)
    return "\n".join(
        f"{view.name:<{width}}  {view.state:<7}  {view.message or line(view, now)}"
        for view in views
    )
