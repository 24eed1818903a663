"""Docker's daemon.json with the NVIDIA runtime merged in, and nothing else of it changed.

The file is the operator's: it may hold proxies with passwords, mirrors, log settings. So it is read
strictly, gets one entry, and its content is never printed. Text in, text out: pure but for
`Place`, which reads and replaces the file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ..errors import Exit, SparkPairError

RUNTIME = "nvidia"
PROGRAM = "nvidia-container-runtime"
ENTRY: Mapping[str, Any] = {"path": PROGRAM, "args": []}
KEPT_SUFFIX = ".before-spark-pair"
KEPT = 3
"""Copies of a file from before a merge that stay beside it, the newest without a number."""


class RefusedError(SparkPairError):
    """Something the operator has to decide; the sentence says what was found and what to do."""

    exit = Exit.REFUSED
    changed = False
    """Whether something was done before it showed that the rest cannot be."""


def parse(text: str) -> dict[str, Any]:
    """Settings in a daemon.json; RefusedError with the place, never with the content.

    Docker takes an empty file for one without settings. A key that is there twice would lose one
    of its values by being written back, so it is refused as well.
    """
    if not text.strip():
        return {}
    try:
        found = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise RefusedError(
            f"it is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(found, dict):
        raise RefusedError("it does not hold a JSON object")
    if not isinstance(found.get("runtimes", {}), dict):
        raise RefusedError("its 'runtimes' is not a JSON object")
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedError(f"the key {twice!r} is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise RefusedError(f"it is not valid JSON: {name} is no value")


def conflict(config: Mapping[str, Any], exists: Callable[[str], bool]) -> str | None:
    """Why the file's own entry for the runtime cannot be used, or None.

    An entry that runs one of the toolkit's runtimes is the operator's choice and stays as it is;
    `exists` tells whether a program, by path or by name, is on the machine.
    """
    entry = config.get("runtimes", {}).get(RUNTIME)
    if entry is None and RUNTIME not in config.get("runtimes", {}):
        return None
    program = program_of(entry)
    if program is None:
        return f"its entry runtimes.{RUNTIME} names no program"
    if not Path(program).name.startswith(PROGRAM):
        return f"its entry runtimes.{RUNTIME} runs {program}, which is not NVIDIA's runtime"
    if not exists(program):
        return f"its entry runtimes.{RUNTIME} runs {program}, which is not on the machine"
    return None


def program_of(entry: Any) -> str | None:
    """The program that an entry below `runtimes` runs, or None when it names none."""
    if not isinstance(entry, dict):
        return None
    options = entry.get("options")
    found = entry.get("path") or (options.get("BinaryName") if isinstance(options, dict) else None)
    return found if isinstance(found, str) and found else None


def has_runtime(config: Mapping[str, Any]) -> bool:
    """Whether the file already asks Docker for the NVIDIA runtime."""
    return RUNTIME in config.get("runtimes", {})


def merged(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings in the same order, with the NVIDIA runtime; one that is there stays."""
    runtimes = dict(config.get("runtimes", {}))
    runtimes.setdefault(RUNTIME, dict(ENTRY))
    return {**config, "runtimes": runtimes}


def render(config: Mapping[str, Any], like: str) -> str:
    """Text of a daemon.json, indented as `like` is (four spaces where it shows no indentation)."""
    first = re.search(r"^([ \t]+)\S", like, re.MULTILINE)
    return json.dumps(config, indent=first[1] if first else 4, ensure_ascii=False) + "\n"


def runtimes_part(config: Mapping[str, Any]) -> str:
    """The only part of the file that may be shown."""
    if "runtimes" not in config:
        return ""
    return json.dumps({"runtimes": config["runtimes"]}, indent=4, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Place:
    """Where daemon.json is. A link is followed: its file is replaced, the link stays."""

    path: Path

    @property
    def kept(self) -> Path:
        """Where the bytes from before the latest merge are kept."""
        return self.path.with_name(self.path.name + KEPT_SUFFIX)

    def read(self) -> str | None:
        """The file's text, or None without a file; RefusedError when it is not UTF-8."""
        raw = self.raw()
        return None if raw is None else _text(raw)

    def raw(self) -> bytes | None:
        """The file's bytes, or None without a file."""
        return _bytes(self.path)

    def replace(self, text: str, accept: Callable[[Path], None]) -> None:
        """Write `text` beside the file, let `accept` judge it, keep the old bytes, rename.

        Mode and owner of the file stay; a new one is 0644. `accept` raises to refuse, and then, as
        with any error, the file is what it was.
        """
        self._put(text.encode(), accept, keep=True)

    def put_back(self) -> bool:
        """Undo the latest merge, byte for byte; False when the file is not what that merge made.

        Told from the file and its kept copy alone, so that a later run can do it as well, and never
        over an edit that somebody has made since.
        """
        now = self.read()
        for old in (_bytes(self.kept), None):
            if now is None or now != _made_from(old):
                continue
            if old is None:
                self.path.unlink(missing_ok=True)
            else:
                self._put(old, lambda _: None, keep=False)
            return True
        return False

    def _put(self, data: bytes, accept: Callable[[Path], None], *, keep: bool) -> None:
        target = self.path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        beside = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            if target.exists():
                _like(beside, target)
            else:
                beside.chmod(0o644)
            accept(beside)
            if keep and target.exists():
                self._keep(target)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)

    def _keep(self, target: Path) -> None:
        if _bytes(self.kept) == _bytes(target):
            return
        names = [self.kept, *(Path(f"{self.kept}.{number}") for number in range(1, KEPT))]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)
        _copy(target, self.kept)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RefusedError("it is not UTF-8 text") from None


def _made_from(old: bytes | None) -> str | None:
    """What a merge makes of a file with these bytes; None when it makes nothing of them."""
    try:
        text = "" if old is None else _text(old)
        return render(merged(parse(text)), text)
    except RefusedError:
        return None


def _like(path: Path, model: Path) -> None:
    status = model.stat()
    os.chown(path, status.st_uid, status.st_gid)
    path.chmod(status.st_mode & 0o7777)


def _copy(source: Path, target: Path) -> None:
    # Never readable by more than the source is, not even while it is written.
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream, source.open("rb") as old:
            shutil.copyfileobj(old, stream)
            stream.flush()
            os.fsync(stream.fileno())
        _like(beside, source)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
