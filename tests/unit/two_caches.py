"""Two accounts on this machine, one of which lends the other its files, over loopback.

pair = TwoCaches(tmp_path)
pair.fill("classic")
words, data = pair.transfer()
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from spark_pair.jobs.inside import Reporter
from spark_pair.weights import transfer_job
from spark_pair.weights.cache import Cache
from spark_pair.weights.manifest import File, Manifest
from spark_pair.weights.provenance import Artefact, Provenance, artefact_of, held_of
from spark_pair.weights.record import Proofs
from spark_pair.weights.transfer import Patience
from spark_pair.weights.transfer_order import Peer, read_order

ROOT = Path(__file__).resolve().parents[2]
REPO = "own/engram"
COMMIT, OTHER_COMMIT = "1bae0e1088993b9b82de08f59de5be5a34e42170", "2" * 40
MIB = 1 << 20

BIG, SECOND, SMALL, DEEP = "a.safetensors", "b.safetensors", "config.json", "deep/er/-x y.json"
SIZES = {BIG: 3 * MIB, SECOND: 2 * MIB + 1, SMALL: 200, DEEP: 300}
HASTY = Patience(
    line_failures=2,
    rest_seconds=0.05,
    probe_seconds=0.5,
    stall_seconds=3.0,
    offers=2,
    away_seconds=3.0,
)

OFFER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from spark_pair.weights.offer import offer
sys.exit(offer())
"""

Layout = Literal["classic", "shared", "plain"]


def content(path: str, size: int) -> bytes:
    """The bytes of a file, the same each time."""
    return random.Random(path).randbytes(size)  # noqa: S311


def described(path: str, data: bytes) -> File:
    """A file as the Hub would describe it; big ones by their sha256."""
    pointer = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if not path.endswith(".safetensors"):
        return File(path, len(data), pointer)
    digest = hashlib.sha256(data).hexdigest()
    return File(path, len(data), pointer, digest, hashlib.sha256(digest.encode()).hexdigest())


def loopback_rails() -> list[dict[str, str]]:
    """Addresses of loopback that another run of these tests does not use at the same time."""
    high, low = os.getpid() >> 8 & 127, os.getpid() & 255
    net = f"127.{128 + high}.{low}"
    return [{"here": f"{net}.1", "peer": f"{net}.2"}, {"here": f"{net}.3", "peer": f"{net}.4"}]


class TwoCaches:
    """A lender, a receiver with the folder of one job, and the files that go across."""

    def __init__(self, root: Path, sizes: Mapping[str, int] | None = None) -> None:
        self.root = root
        self.there, self.here = root / "there", root / "here"
        self.lender = Cache.of_account(self.there)
        self.cache = Cache.of_account(self.here)
        self.folder = root / "var/jobs/transfer"
        self.folder.mkdir(parents=True)
        self.provenance = Provenance(root / "var/provenance.json")
        self.rails = loopback_rails()
        wanted = SIZES if sizes is None else sizes
        self.contents = {path: content(path, size) for path, size in wanted.items()}
        self.offers = 0

    @property
    def manifest(self) -> Manifest:
        files = [described(path, data) for path, data in self.contents.items()]
        return Manifest(REPO, COMMIT, tuple(files))

    @property
    def total(self) -> int:
        return sum(map(len, self.contents.values()))

    def file(self, path: str) -> File:
        return self.manifest.file(path)

    # ---- caches

    def fill(
        self,
        layout: Layout = "classic",
        *,
        cache: Cache | None = None,
        paths: Iterable[str] | None = None,
        commit: str = COMMIT,
    ) -> None:
        """Put files into a cache, the lender's by default, as its owner may have them."""
        for path in self.contents if paths is None else paths:
            fill(cache or self.lender, commit, self.file(path), self.contents[path], layout)

    def path(self, path: str, cache: Cache | None = None) -> Path:
        """Its name in the snapshot, the receiver's by default."""
        return (cache or self.cache).snapshot(REPO, COMMIT) / path

    # ---- the job

    def order(self, **changes: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "transfer",
            "source": "engram",
            "home": str(self.here),
            "manifest": self.manifest.as_dict(),
            "files": sorted(self.contents),
            **self.way(),
            "floor_bytes": 0,
            **changes,
        }

    def way(self) -> dict[str, Any]:
        return {
            "peer": {
                "name": "spark-1",
                "user": "operator",
                "home": str(self.there),
                "addresses": ["192.0.2.11", "192.0.2.12"],
                "port": 22,
            },
            "rails": self.rails,
            "transport": "daemon",
            "ports": [18730, 18739],
            "streams": 4,
            "limit_bytes_per_second": None,
        }

    def command(self, peer: Peer, address: str) -> list[str]:
        """In place of ssh: the same program, on this machine."""
        self.offers += 1
        return [sys.executable, "-I", "-c", OFFER]

    def reporter(self) -> Reporter:
        return Reporter(self.folder, "r1")

    def transfer(
        self, reporter: Reporter | None = None, **changes: Any
    ) -> tuple[str, Mapping[str, Any]]:
        """Run the job."""
        order = changes.pop("order", None) or self.order(**changes)
        return transfer_job.run(
            read_order(order),
            reporter or self.reporter(),
            Proofs(self.folder),
            self.provenance,
            command=self.command,
            patience=HASTY,
        )

    def record(self, name: str = "engram", order: dict[str, Any] | None = None) -> Artefact:
        """Put into the record what the job has proven, as far as its order allows; all must be."""
        wanted = read_order(order or self.order())
        proofs = [
            json.loads(line)
            for line in (self.folder / "verified.jsonl").read_bytes().splitlines()
            if line
        ]
        held = {}
        for proof in proofs:
            artefact = artefact_of(name, {**proof["artefact"], "files": {}})
            one = held_of(proof["held"])
            assert wanted.accepts(artefact, proof["path"], one)
            held[proof["path"]] = one
        artefact = artefact_of(name, {**proofs[0]["artefact"], "files": {}})
        whole = replace(artefact, files=held)
        self.provenance.merge(whole)
        return whole

    # ---- what must hold at any time

    def right(self) -> None:
        """Everything is here as the Hub has it, each blob once, nothing left over."""
        folder = self.cache.folder(REPO)
        for path, data in self.contents.items():
            entry = self.path(path)
            assert entry.is_symlink() and not entry.readlink().is_absolute(), path
            assert entry.resolve() == (folder / "blobs" / self.file(path).etag).resolve(), path
            assert entry.read_bytes() == data, path
        staging = self.cache.staging(REPO)
        left = sorted(one.name for one in staging.iterdir()) if staging.is_dir() else []
        assert left == [], left
        assert (folder / "trees" / f"{COMMIT}.json").is_file()
        assert (folder / "refs" / f"pinned-{COMMIT[:8]}").read_text() == COMMIT

    def nothing_wrong(self) -> None:
        """Whatever has a final name has the right content."""
        blobs = self.cache.folder(REPO) / "blobs"
        by_etag = {self.file(path).etag: data for path, data in self.contents.items()}
        for blob in blobs.iterdir() if blobs.is_dir() else ():
            assert blob.read_bytes() == by_etag[blob.name], blob.name


def fill(cache: Cache, commit: str, file: File, data: bytes, layout: Layout) -> None:
    """Put one file into a cache as the hub's own client, or somebody's copy, has it."""
    entry = cache.snapshot(REPO, commit) / file.path
    entry.parent.mkdir(parents=True, exist_ok=True)
    if layout == "plain":
        entry.write_bytes(data)
        return
    blob = cache.blob(REPO, file)
    blob.parent.mkdir(parents=True, exist_ok=True)
    if layout == "shared" and file.xet_hash:
        payload = cache.root / "blobs" / file.xet_hash[:2] / file.xet_hash
        payload.parent.mkdir(parents=True, exist_ok=True)
        payload.unlink(missing_ok=True)
        payload.write_bytes(data)
        payload.chmod(0o444)
        blob.unlink(missing_ok=True)
        blob.symlink_to(os.path.relpath(payload, blob.parent))
    else:
        blob.write_bytes(data)
    entry.unlink(missing_ok=True)
    entry.symlink_to(os.path.relpath(blob, entry.parent))
