"""What a transfer from the peer is asked for, as it is handed to its job. Pure.

Two kinds share the way across: files of a repository's commit, which go into the cache of the
account, and one rank file, which goes into a folder of its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import DescriptionError
from .cache import Cache
from .manifest import File, Manifest, ManifestError
from .order_parts import (
    OrderError,
    RankArtefact,
    absolute,
    check_shape,
    text,
    texts,
    whole_number,
)
from .provenance import Artefact, Held, Origin

KIND = "transfer"
RANK_KIND = "transfer_rank"

Transport = Literal["daemon", "ssh"]
TRANSPORTS: tuple[Transport, ...] = ("daemon", "ssh")

STREAMS_MOST = 16
_WORDS = "a transfer's order"
WAY_KEYS = frozenset({"peer", "rails", "transport", "ports", "streams", "limit_bytes_per_second"})
_RANK_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z:.%_-]*")
_USER = re.compile(r"[a-z_][a-z0-9_-]*[$]?")


@dataclass(frozen=True)
class Peer:
    """The machine that the files come from."""

    name: str
    user: str
    home: Path
    """Of that account, there."""
    addresses: tuple[str, ...]
    """In the order in which ssh tries them."""
    port: int
    """Of its ssh server."""


@dataclass(frozen=True)
class Rail:
    """One direct line: its address on this machine and on the peer."""

    here: str
    peer: str


@dataclass(frozen=True)
class Way:
    """How bytes come across."""

    peer: Peer
    rails: tuple[Rail, ...]
    transport: Transport
    ports: tuple[int, int]
    """First and last port that the peer may offer the files at."""
    streams: int
    """How many come at once, over all rails."""
    limit_bytes_per_second: float | None
    """For all streams together."""


@dataclass(frozen=True)
class TransferOrder:
    """Files of one commit that shall come from the peer's cache into the account's here."""

    source: str
    home: Path
    manifest: Manifest
    files: tuple[File, ...]
    way: Way
    floor_bytes: int
    """What stays free on the disk."""

    @classmethod
    def from_dict(cls, data: Any) -> TransferOrder:
        """Raises DescriptionError with what is wrong."""
        order = check_shape(data, KIND, _WORDS, WAY_KEYS | {"source", "manifest", "files"})
        try:
            manifest = Manifest.from_dict(order["manifest"])
            files = tuple(manifest.file(path) for path in texts(order, "files"))
            if not files:
                raise OrderError("no file")
            return cls(
                source=text(order, "source"),
                home=absolute(order, "home"),
                manifest=manifest,
                files=files,
                way=way_of(order),
                floor_bytes=whole_number(order, "floor_bytes", 0),
            )
        except OrderError as error:
            raise DescriptionError(f"{_WORDS} has {error}") from None
        except (ManifestError, TypeError, AttributeError) as error:
            raise DescriptionError(f"{_WORDS}: {error}") from error

    def where(self) -> Cache:
        """The cache that the files go to."""
        return Cache.of_account(self.home)

    @property
    def total(self) -> int:
        """Bytes of all the files."""
        return sum(file.size for file in self.files)

    def artefact(self) -> Artefact:
        """What the record shall say of the files, without them."""
        repo, commit = self.manifest.repo, self.manifest.commit
        folder = str(self.where().snapshot(repo, commit))
        return Artefact(
            self.source, "repository", repo, commit, Origin.TRANSFERRED, 0.0, folder, {}
        )

    # ---- what the job may put into the record

    @property
    def whole(self) -> frozenset[str]:
        """Nothing: each file counts by itself."""
        return frozenset()

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """Nothing leaves the record."""
        return {}

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Whether a proof is for a file that was ordered, with the hash that was ordered."""
        file = next((one for one in self.files if one.path == path), None)
        if file is None or replace(artefact, at=0.0, files={}) != self.artefact():
            return False
        return held.proves(file)


@dataclass(frozen=True)
class RankFile:
    """A rank file as the record of the peer describes it."""

    path: str
    """Its name; it lies in no folder below."""
    size: int
    sha256: str
    entries: int
    index_sha256: str

    @property
    def file(self) -> File:
        """The same as a file that is proven by its sha256."""
        return File(self.path, self.size, "0" * 40, self.sha256)


@dataclass(frozen=True)
class RankTransferOrder:
    """One rank file that shall come from a folder of the peer into one here."""

    made_from: Artefact
    """What the record here shall say of the file, without it."""
    home: Path
    origin: Path
    """The folder on the peer."""
    rank: RankFile
    way: Way
    floor_bytes: int

    @classmethod
    def from_dict(cls, data: Any) -> RankTransferOrder:
        """Raises DescriptionError with what is wrong."""
        order = check_shape(data, RANK_KIND, _WORDS, WAY_KEYS | {"artefact", "from", "file"})
        try:
            return cls(
                made_from=_artefact(order["artefact"]),
                home=absolute(order, "home"),
                origin=absolute(order, "from"),
                rank=_rank(order["file"]),
                way=way_of(order),
                floor_bytes=whole_number(order, "floor_bytes", 0),
            )
        except OrderError as error:
            raise DescriptionError(f"{_WORDS} has {error}") from None

    @property
    def folder(self) -> Path:
        """Where it goes."""
        return Path(self.made_from.folder)

    @property
    def total(self) -> int:
        """Bytes of the file."""
        return self.rank.size

    def artefact(self) -> Artefact:
        """What the record shall say of the file, without it."""
        return self.made_from

    # ---- what the job may put into the record

    @property
    def whole(self) -> frozenset[str]:
        """The file: there is one of each rank."""
        return frozenset({self.rank.path})

    @property
    def gone(self) -> Mapping[str, frozenset[str]]:
        """Nothing leaves the record."""
        return {}

    def accepts(self, artefact: Artefact, path: str, held: Held) -> bool:
        """Whether a proof is for the very file that was ordered."""
        return (
            replace(artefact, at=0.0, files={}) == self.made_from
            and path == self.rank.path
            and (held.size, held.sha256, held.git_sha1) == (self.rank.size, self.rank.sha256, "")
        )


def read_order(data: Any) -> TransferOrder | RankTransferOrder:
    """An order of either kind. Raises DescriptionError."""
    if isinstance(data, Mapping) and data.get("kind") == RANK_KIND:
        return RankTransferOrder.from_dict(data)
    return TransferOrder.from_dict(data)


# ---- reading --------------------------------------------------------------------------------


def way_of(order: Mapping[str, Any]) -> Way:
    """How bytes come across, by an order's own words (`WAY_KEYS`). Raises OrderError."""
    if order["transport"] not in TRANSPORTS:
        raise OrderError(
            f"{order['transport']!r} for transport, which is none of {', '.join(TRANSPORTS)}"
        )
    return Way(
        peer=_peer(order["peer"]),
        rails=_rails(order["rails"]),
        transport=order["transport"],
        ports=_ports(order["ports"]),
        streams=_streams(order),
        limit_bytes_per_second=_limit(order["limit_bytes_per_second"]),
    )


def _streams(order: Mapping[str, Any]) -> int:
    if (streams := whole_number(order, "streams", 1)) > STREAMS_MOST:
        raise OrderError(f"{streams} for streams, which is more than {STREAMS_MOST}")
    return streams


def _limit(value: Any) -> float | None:
    if value is not None and (type(value) not in (int, float) or value < 1):
        raise OrderError(f"{value!r} for limit_bytes_per_second")
    return None if value is None else float(value)


def _peer(data: Any) -> Peer:
    peer = _exactly(data, "a peer", "name", "user", "home", "addresses", "port")
    addresses = texts(peer, "addresses")
    if not addresses:
        raise OrderError("a peer without addresses")
    # What begins with a hyphen would be an option of ssh.
    if text(peer, "name").startswith("-"):
        raise OrderError(f"{peer['name']!r} for the peer's name")
    if not _USER.fullmatch(text(peer, "user")):
        raise OrderError(f"{peer['user']!r} for the peer's account")
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise OrderError(f"{address!r} for the peer's address")
    port = whole_number(peer, "port", 1)
    if port > 65535:
        raise OrderError(f"{port} for the peer's port")
    return Peer(peer["name"], peer["user"], absolute(peer, "home"), addresses, port)


def _rails(data: Any) -> tuple[Rail, ...]:
    if not isinstance(data, list | tuple) or not data:
        raise OrderError("no rails")
    found = []
    for rail in data:
        if not isinstance(rail, Mapping) or set(rail) != {"here", "peer"}:
            raise OrderError(f"{rail!r} for a rail")
        for address in rail.values():
            try:
                ipaddress.ip_address(address if isinstance(address, str) else "")
            except ValueError:
                raise OrderError(f"{address!r} for an address of a rail") from None
        found.append(Rail(rail["here"], rail["peer"]))
    return tuple(found)


def _ports(data: Any) -> tuple[int, int]:
    match data:
        case [int(first), int(last)] if 1024 <= first <= last < 65536:
            return first, last
    raise OrderError(f"{data!r} for ports, which is no range between 1024 and 65535")


def _artefact(data: Any) -> Artefact:
    rank = RankArtefact.from_dict(data)
    return Artefact(
        name=rank.name,
        kind="rank_file",
        repo=rank.repo,
        commit=rank.commit,
        origin=Origin.TRANSFERRED,
        at=0.0,
        folder=str(rank.folder),
        files={},
        details=dict(rank.details),
    )


def _rank(data: Any) -> RankFile:
    file = _exactly(data, "a file", "path", "size", "sha256", "entries", "index_sha256")
    if not _RANK_NAME.fullmatch(text(file, "path")):
        raise OrderError(f"{file['path']!r} for the name of a file")
    for key in ("sha256", "index_sha256"):
        if not _SHA256.fullmatch(text(file, key)):
            raise OrderError(f"{file[key]!r} for {key}")
    return RankFile(
        file["path"],
        whole_number(file, "size", 1),
        file["sha256"],
        whole_number(file, "entries", 1),
        file["index_sha256"],
    )


def _exactly(data: Any, words: str, *keys: str) -> Mapping[str, Any]:
    """A mapping with these keys. Raises OrderError."""
    if not isinstance(data, Mapping) or set(data) != set(keys):
        raise OrderError(f"{words} without exactly {', '.join(sorted(keys))}")
    return data
