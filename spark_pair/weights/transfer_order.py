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
from .manifest import File, Manifest, ManifestError, is_commit
from .provenance import Artefact, Held, Origin

SCHEMA = 1
KIND = "transfer"
RANK_KIND = "transfer_rank"

Transport = Literal["daemon", "ssh"]
TRANSPORTS: tuple[Transport, ...] = ("daemon", "ssh")

STREAMS_MOST = 16
_WAY = frozenset({"peer", "rails", "transport", "ports"})
_COMMON = frozenset({"schema", "kind", "home"}) | _WAY
_OPTIONAL = frozenset({"floor_bytes", "streams", "limit_bytes_per_second"})
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
        order = _checked(data, KIND, frozenset({"source", "manifest", "files"}))
        if not isinstance(order["source"], str) or not order["source"]:
            raise DescriptionError(f"a transfer's order has {order['source']!r} for source")
        if not isinstance(order["files"], list | tuple):
            raise DescriptionError("a transfer's order has no list of files")
        try:
            manifest = Manifest.from_dict(order["manifest"])
            files = tuple(manifest.file(str(path)) for path in order["files"])
        except (ManifestError, TypeError, AttributeError) as error:
            raise DescriptionError(f"a transfer's order: {error}") from error
        if not files:
            raise DescriptionError("a transfer's order names no file")
        return cls(
            source=order["source"],
            home=Path(order["home"]),
            manifest=manifest,
            files=files,
            way=_way(order),
            floor_bytes=order.get("floor_bytes", 0),
        )

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
        order = _checked(data, RANK_KIND, frozenset({"artefact", "from", "file"}))
        origin = order["from"]
        if not isinstance(origin, str) or not origin.startswith("/"):
            raise DescriptionError(f"a transfer's order has {origin!r} for from: no absolute path")
        return cls(
            made_from=_artefact(order["artefact"]),
            home=Path(order["home"]),
            origin=Path(origin),
            rank=_rank(order["file"]),
            way=_way(order),
            floor_bytes=order.get("floor_bytes", 0),
        )

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


def _checked(data: Any, kind: str, own: frozenset[str]) -> Mapping[str, Any]:
    """An order of that kind with all its keys, and what both kinds share looked at."""
    if not isinstance(data, Mapping):
        raise DescriptionError("a transfer's order is not a mapping")
    if data.get("schema") != SCHEMA:
        raise DescriptionError(
            f"a transfer's order has schema {data.get('schema')!r}, not {SCHEMA}: the tool on "
            "this host is of another release; run --tags tools"
        )
    if data.get("kind") != kind:
        raise DescriptionError(f"an order of the kind {data.get('kind')!r} is no {kind}")
    if missing := sorted((_COMMON | own) - set(data)):
        raise DescriptionError(f"a transfer's order lacks {', '.join(missing)}")
    if unknown := sorted(map(str, set(data) - _COMMON - own - _OPTIONAL)):
        raise DescriptionError(f"a transfer's order has unknown keys: {', '.join(unknown)}")
    if not _is_absolute(data["home"]):
        raise DescriptionError(
            f"a transfer's order has {data['home']!r} for home, which is no absolute path"
        )
    for key, least, most in (
        ("floor_bytes", 0, None),
        ("streams", 1, STREAMS_MOST),
        ("limit_bytes_per_second", 1, None),
    ):
        value = data.get(key)
        if key == "floor_bytes" and key in data and value is None:
            raise DescriptionError("a transfer's order has None for floor_bytes")
        whole = type(value) is int or (key == "limit_bytes_per_second" and type(value) is float)
        if value is not None and (not whole or value < least or (most and value > most)):
            raise DescriptionError(f"a transfer's order has {value!r} for {key}")
    return data


def _way(order: Mapping[str, Any]) -> Way:
    if order["transport"] not in TRANSPORTS:
        raise DescriptionError(
            f"a transfer's order has {order['transport']!r} for transport, which is none of "
            f"{', '.join(TRANSPORTS)}"
        )
    limit = order.get("limit_bytes_per_second")
    streams = order.get("streams")
    return Way(
        peer=_peer(order["peer"]),
        rails=_rails(order["rails"]),
        transport=order["transport"],
        ports=_ports(order["ports"]),
        streams=4 if streams is None else streams,
        limit_bytes_per_second=None if limit is None else float(limit),
    )


def _peer(data: Any) -> Peer:
    keys = {"name", "user", "home", "addresses", "port"}
    if not isinstance(data, Mapping) or set(data) != keys:
        raise DescriptionError(
            f"a transfer's order has a peer without exactly {', '.join(sorted(keys))}"
        )
    addresses = data["addresses"]
    if not isinstance(addresses, list | tuple) or not addresses:
        raise DescriptionError("a transfer's order has a peer without addresses")
    for word in ("name", "user"):
        # What begins with a hyphen would be an option of ssh.
        if not isinstance(data[word], str) or not data[word] or data[word].startswith("-"):
            raise DescriptionError(f"a transfer's order has {data[word]!r} for the peer's {word}")
    if not _USER.fullmatch(data["user"]):
        raise DescriptionError(f"a transfer's order has {data['user']!r} for the peer's account")
    if not _is_absolute(data["home"]):
        raise DescriptionError(f"a transfer's order has {data['home']!r} for the peer's home")
    for address in addresses:
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            raise DescriptionError(f"a transfer's order has {address!r} for the peer's address")
    if type(data["port"]) is not int or not 0 < data["port"] < 65536:
        raise DescriptionError(f"a transfer's order has {data['port']!r} for the peer's port")
    return Peer(data["name"], data["user"], Path(data["home"]), tuple(addresses), data["port"])


def _rails(data: Any) -> tuple[Rail, ...]:
    if not isinstance(data, list | tuple) or not data:
        raise DescriptionError("a transfer's order has no rails")
    found = []
    for rail in data:
        if not isinstance(rail, Mapping) or set(rail) != {"here", "peer"}:
            raise DescriptionError(f"a transfer's order has {rail!r} for a rail")
        for address in rail.values():
            try:
                ipaddress.ip_address(address if isinstance(address, str) else "")
            except ValueError:
                raise DescriptionError(
                    f"a transfer's order has {address!r} for an address of a rail"
                ) from None
        found.append(Rail(rail["here"], rail["peer"]))
    return tuple(found)


def _ports(data: Any) -> tuple[int, int]:
    match data:
        case [int(first), int(last)] if 1024 <= first <= last < 65536:
            return first, last
    raise DescriptionError(
        f"a transfer's order has {data!r} for ports, which is no range between 1024 and 65535"
    )


def _artefact(data: Any) -> Artefact:
    keys = {"name", "repo", "commit", "folder", "details"}
    if not isinstance(data, Mapping) or set(data) != keys:
        raise DescriptionError(
            f"a transfer's order has an artefact without exactly {', '.join(sorted(keys))}"
        )
    for key in ("name", "repo", "commit", "folder"):
        if not isinstance(data[key], str) or not data[key]:
            raise DescriptionError(f"a transfer's order has {data[key]!r} for the {key}")
    if not is_commit(data["commit"]):
        raise DescriptionError(f"a transfer's order has {data['commit']!r} for the commit")
    if not _is_absolute(data["folder"]) or not isinstance(data["details"], Mapping):
        raise DescriptionError("a transfer's order has no absolute folder, or no details")
    return Artefact(
        name=data["name"],
        kind="rank_file",
        repo=data["repo"],
        commit=data["commit"],
        origin=Origin.TRANSFERRED,
        at=0.0,
        folder=data["folder"],
        files={},
        details=dict(data["details"]),
    )


def _rank(data: Any) -> RankFile:
    keys = {"path", "size", "sha256", "entries", "index_sha256"}
    if not isinstance(data, Mapping) or set(data) != keys:
        raise DescriptionError(
            f"a transfer's order has a file without exactly {', '.join(sorted(keys))}"
        )
    path = data["path"]
    if not isinstance(path, str) or not _RANK_NAME.fullmatch(path):
        raise DescriptionError(f"a transfer's order has {path!r} for the name of a file")
    for key in ("size", "entries"):
        if type(data[key]) is not int or data[key] < 1:
            raise DescriptionError(f"a transfer's order has {data[key]!r} for {key}")
    for key in ("sha256", "index_sha256"):
        if not isinstance(data[key], str) or not _SHA256.fullmatch(data[key]):
            raise DescriptionError(f"a transfer's order has {data[key]!r} for {key}")
    return RankFile(path, data["size"], data["sha256"], data["entries"], data["index_sha256"])


def _is_absolute(path: Any) -> bool:
    return isinstance(path, str) and path.startswith("/")
