"""Puts large files into a Xet store of the real client's own making, and reads that store.

``hf_xet`` can use a directory in place of its server; a store filled that way is served here
either as that directory (``local://``, same machine only, no faults) or over HTTP by
:class:`Store`, in the two requests a download makes: a file's reconstruction, and ranges of the
xorbs it names.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .repositories import Held

HASHES = "xet.json"
SHARD_HEADER_BYTES = 48
ENTRY_BYTES = 48
CHUNK_HEADER_BYTES = 8
WITH_VERIFICATION, WITH_METADATA = 1 << 31, 1 << 30
END_OF_FILES = b"\xff" * 32


def fill(directory: Path, repositories: Iterable[Held]) -> Path:
    """Store every large file under ``directory`` and give each its Xet hash; the store's path.

    Raises ``ImportError`` where ``hf_xet`` is not installed and something is to be stored.
    """
    store = directory / "cas"
    store.mkdir(exist_ok=True)
    known_file = directory / HASHES
    known: dict[str, str] = json.loads(known_file.read_text()) if known_file.is_file() else {}
    large = [(held, file) for held in repositories for file in held.files.values() if file.sha256]
    missing = {
        file.sha256: held.folder / file.path for held, file in large if file.sha256 not in known
    }
    if missing:
        known |= _upload(store, {str(key): path for key, path in missing.items()})
        partial = known_file.with_suffix(".new")
        partial.write_text(json.dumps(known), encoding="utf-8")
        partial.replace(known_file)
    for held, file in large:
        held.give_xet_hash(file.path, known[str(file.sha256)])
    return store


def _upload(store: Path, files: dict[str, Path]) -> dict[str, str]:
    import hf_xet  # noqa: PLC0415 - a Hub that serves by HTTP alone needs the standard library only

    with hf_xet.XetSession().new_upload_commit(endpoint=f"local://{store}") as commit:
        uploads = {
            sha256: commit.start_upload_file(str(path), sha256=hf_xet.SKIP_SHA256)
            for sha256, path in files.items()
        }
    return {sha256: str(upload.result().xet_info.hash) for sha256, upload in uploads.items()}


@dataclass(frozen=True)
class Segment:
    """Part of a file: chunks ``start`` to ``end`` of a xorb, ``size`` bytes unpacked."""

    xorb: str
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class Chunks:
    """Where a xorb's chunks begin, in its own bytes, and how long each is unpacked."""

    offsets: list[int]
    sizes: list[int]


class Store:
    """What a Xet server answers, from a directory that :func:`fill` made."""

    def __init__(self, directory: Path) -> None:
        self._xorbs = directory / "xet" / "xorbs" / "xorbs"
        self._chunks: dict[str, Chunks] = {}
        self._files: dict[str, list[Segment]] = {}
        for shard in sorted((directory / "xet" / "xorbs" / "shards").glob("*.mdb")):
            self._files |= _read_files(shard.read_bytes())

    def xorb(self, name: str) -> Path:
        """The file that holds a xorb."""
        return self._xorbs / f"default.{name}"

    def reconstruct(
        self, file: str, begin: int, stop: int, link: Callable[[str, int], str]
    ) -> dict[str, Any]:
        """How to put bytes ``begin`` to ``stop`` of a file together.

        ``link`` makes the address of a xorb for the part of the file that begins at an offset.
        Raises ``KeyError`` for a file that is not here.
        """
        terms: list[dict[str, Any]] = []
        fetch: dict[str, list[dict[str, Any]]] = {}
        position, first = 0, 0
        for segment in self._files[file]:
            if position + segment.size > begin and position < stop:
                at, term, place = self._term(segment, position, begin, stop)
                first = first if terms else begin - at
                terms.append(term)
                ranges = [{"chunks": term["range"], "bytes": place}]
                fetch.setdefault(segment.xorb, []).append(
                    {"url": link(segment.xorb, at), "ranges": ranges}
                )
            position += segment.size
        return {"offset_into_first_range": first, "terms": terms, "xorbs": fetch}

    def _term(
        self, segment: Segment, position: int, begin: int, stop: int
    ) -> tuple[int, dict[str, Any], dict[str, int]]:
        """Where a segment's needed chunks begin in the file, the term, and its bytes' place."""
        chunks = self._known(segment.xorb)
        starts = [position]
        for size in chunks.sizes[segment.start : segment.end]:
            starts.append(starts[-1] + size)
        low = max(0, bisect_right(starts, begin) - 1)
        high = bisect_left(starts, stop)
        high = min(high, len(starts) - 1)
        term = {
            "hash": segment.xorb,
            "unpacked_length": starts[high] - starts[low],
            "range": {"start": segment.start + low, "end": segment.start + high},
        }
        place = {
            "start": chunks.offsets[segment.start + low],
            "end": chunks.offsets[segment.start + high] - 1,
        }
        return starts[low], term, place

    def _known(self, name: str) -> Chunks:
        chunks = self._chunks.get(name)
        if chunks is None:
            chunks = self._chunks[name] = _read_chunks(self.xorb(name))
        return chunks


def _name(raw: bytes) -> str:
    """A hash as Xet writes it: four numbers of eight bytes, each in little-endian order."""
    return "".join(raw[at : at + 8][::-1].hex() for at in range(0, 32, 8))


def _number(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 4], "little")


def _read_files(shard: bytes) -> dict[str, list[Segment]]:
    """The files that a shard describes, by hash."""
    files: dict[str, list[Segment]] = {}
    at = SHARD_HEADER_BYTES
    while (head := shard[at : at + ENTRY_BYTES])[:32] != END_OF_FILES:
        flags, count = _number(head, 32), _number(head, 36)
        entries = [
            shard[at + ENTRY_BYTES * n : at + ENTRY_BYTES * (n + 1)] for n in range(1, count + 1)
        ]
        files[_name(head[:32])] = [
            Segment(_name(entry[:32]), _number(entry, 36), _number(entry, 40), _number(entry, 44))
            for entry in entries
        ]
        following = count * (2 if flags & WITH_VERIFICATION else 1)
        following += 1 if flags & WITH_METADATA else 0
        at += ENTRY_BYTES * (1 + following)
    return files


def _read_chunks(xorb: Path) -> Chunks:
    """The chunks of a xorb: each a header with both lengths, then its bytes; a footer follows."""
    offsets, sizes = [0], []
    with xorb.open("rb") as file:
        while (head := file.read(CHUNK_HEADER_BYTES))[:1] == b"\0":
            packed = int.from_bytes(head[1:4], "little")
            sizes.append(int.from_bytes(head[5:8], "little"))
            offsets.append(offsets[-1] + CHUNK_HEADER_BYTES + packed)
            file.seek(offsets[-1])
    return Chunks(offsets, sizes)
