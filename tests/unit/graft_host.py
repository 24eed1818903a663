"""An account with a small checkpoint and an overlay in its cache, and a record that knows them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from simulated_pair.standins.hub.hub_standin.content import Tensor, index, write_safetensors
from spark_pair.jobs.inside import Reporter
from spark_pair.weights import graft_job
from spark_pair.weights.cache import Cache
from spark_pair.weights.graft_order import GraftOrder
from spark_pair.weights.manifest import File, Manifest
from spark_pair.weights.provenance import Artefact, Held, Origin, Provenance, stat_of
from spark_pair.weights.record import Proofs, Taken, take_over

REPO, OVERLAY_REPO = "own/checkpoint", "own/overlay"
COMMIT, OVERLAY_COMMIT = "45ee5d0f" + "1" * 32, "0bdc2036" + "2" * 32
SIDECAR, SCRIPT = "wo_b.safetensors", "apply_graft.py"
SHARDS = tuple(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
INDEX, CONFIG, README = "model.safetensors.index.json", "config.json", "docs/README.md"
TOUCHED = SHARDS[:2]

Layout = Literal["classic", "shared"]


def part(layer: int, seed: str, *, dtype: str = "I16", rows: int = 300) -> list[Tensor]:
    """What the overlay replaces of a layer."""
    return [
        Tensor(f"layers.{layer}.attn.wo_b.trellis", dtype, (rows, 4), seed),
        Tensor(f"layers.{layer}.attn.wo_b.mul1", "I32", (), seed),
    ]


def stock_shards() -> dict[str, list[Tensor]]:
    """Two shards of which the overlay touches tensors, the second in two places, and one more."""
    rest = [
        Tensor("layers.{}.ffn.trellis", "I16", (70, 9)),
        Tensor("layers.{}.a.norm", "BF16", (5,)),
    ]

    def layer(number: int) -> list[Tensor]:
        own = [Tensor(one.name.format(number), one.dtype, one.shape) for one in rest]
        return [*part(number, "stock"), *own]

    return {
        SHARDS[0]: layer(1),
        SHARDS[1]: [*layer(2), *layer(3)],
        SHARDS[2]: [Tensor("embed.weight", "BF16", (40, 8)), Tensor("norm", "BF16", (8,))],
    }


def overlay_tensors() -> list[Tensor]:
    """What replaces them: six tensors."""
    return [tensor for layer in (1, 2, 3) for tensor in part(layer, "overlay")]


class GraftHost:
    """One head; nothing of it is outside of `root`."""

    def __init__(
        self,
        root: Path,
        *,
        layout: Layout = "classic",
        overlay: Iterable[Tensor] | None = None,
        stock: Mapping[str, list[Tensor]] | None = None,
        script: str = "pass\n",
    ) -> None:
        self.home = root / "home"
        self.cache = Cache.of_account(self.home)
        self.hf = self.home / ".cache/huggingface"
        self.work = self.hf / "tensorfold-dsv41"
        self.derived = self.work / "45ee5d0f-ablit-0bdc2036"
        self.folder = self.derived / "checkpoint"
        self.job = root / "var/jobs/graft-checkpoint-head"
        self.job.mkdir(parents=True)
        self.provenance = Provenance(root / "var/provenance.json")
        self.reporter = Reporter(self.job, "r1")
        self.layout = layout
        shards = dict(stock or stock_shards())
        texts = {INDEX: index(shards), CONFIG: "{}\n", README: "# Stand-in\n"}
        self.manifest = self._fill(REPO, COMMIT, shards, texts, {*shards, INDEX})
        tensors = list(overlay if overlay is not None else overlay_tensors())
        self.sidecar = self._fill(
            OVERLAY_REPO, OVERLAY_COMMIT, {SIDECAR: tensors}, {SCRIPT: script}, {SIDECAR}
        )
        self.record()

    # ---- the cache

    def _fill(
        self,
        repo: str,
        commit: str,
        shards: Mapping[str, Iterable[Tensor]],
        texts: Mapping[str, str],
        large: set[str],
    ) -> Manifest:
        files = []
        staging = self.cache.make_staging(repo)
        for path in sorted([*shards, *texts]):
            made = staging / "made"
            if path in shards:
                write_safetensors(made, shards[path])
            else:
                made.write_text(texts[path])
            file = described(path, made.read_bytes(), large=path in large)
            self._place(repo, commit, file, made)
            files.append(file)
        manifest = Manifest(repo, commit, tuple(files))
        self.cache.write_tree(manifest)
        self.cache.write_ref(repo, commit)
        return manifest

    def _place(self, repo: str, commit: str, file: File, made: Path) -> None:
        if self.layout == "classic" or not file.sha256:
            self.cache.place(repo, commit, file, made)
            if file.sha256:
                self.cache.blob(repo, file).chmod(0o444)
            return
        # As the hub's client lays them down since it has one store for all repositories.
        store = self.cache.root / "blobs"
        store.mkdir(exist_ok=True)
        (store / ".huggingface-shared-blobs").write_text("1\n")
        payload = store / file.sha256[:2] / file.sha256
        payload.parent.mkdir(exist_ok=True)
        made.rename(payload)
        payload.chmod(0o444)
        blob = self.cache.blob(repo, file)
        blob.parent.mkdir(exist_ok=True)
        blob.symlink_to(os.path.relpath(payload, blob.parent))
        self.cache.link(repo, commit, file)
        line = f"{blob.relative_to(self.cache.root)}\n"
        payload.with_name(f"{payload.name}.refs").write_text(line)

    def record(self, origin: Origin = Origin.DOWNLOADED) -> None:
        """Record the checkpoint as it lies in the cache."""
        folder = self.cache.snapshot(REPO, COMMIT)
        files = {file.path: held_of(folder / file.path, file) for file in self.manifest.files}
        self.provenance.record(
            Artefact("checkpoint", "repository", REPO, COMMIT, origin, 1.0, str(folder), files)
        )

    def entry(self, path: str) -> Path:
        """A file's name in the cache."""
        return self.cache.snapshot(REPO, COMMIT) / path

    def blob(self, path: str) -> Path:
        return self.cache.blob(REPO, self.manifest.file(path))

    def payload(self, path: str) -> Path:
        return Path(os.path.realpath(self.entry(path)))

    # ---- the job

    def order(self, kind: str = "graft", **more: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": kind,
            "home": str(self.home),
            "floor_bytes": 0,
            "method": "in_place",
            "manifest": self.manifest.as_dict(),
            "files": [file.path for file in self.manifest.files],
            "overlay": {
                "manifest": self.sidecar.as_dict(),
                "files": [file.path for file in self.sidecar.files],
            },
            "work": str(self.work),
            "former": "downloaded",
            "tensors": 6,
            **more,
        }

    def run(
        self, kind: str = "graft", *, threads: int = 1, **more: Any
    ) -> tuple[str, Mapping[str, Any]]:
        """The job's program, without root's last step."""
        order = GraftOrder.from_dict(self.order(kind, **more))
        return graft_job.run(
            order, self.reporter, Proofs(self.job), self.provenance, threads=threads
        )

    def take_over(self, kind: str = "graft", **more: Any) -> Taken:
        """Root's last step."""
        return take_over(self.job, self.provenance, self.order(kind, **more))

    def graft(self, **more: Any) -> Artefact:
        """Both; the record of the checkpoint then."""
        self.run(**more)
        self.take_over(**more)
        return self.provenance.load()["checkpoint"]

    def undo(self, **more: Any) -> Artefact:
        """The way back, with its last step."""
        self.run("undo_graft", **more)
        self.take_over("undo_graft", **more)
        return self.provenance.load()["checkpoint"]

    # ---- what must be so

    def tree(self) -> dict[str, str]:
        """Every file and link of the account, with its content, but for locks."""
        found = {}
        for place, folders, names in os.walk(self.hf):
            for name in [*names, *(one for one in folders if Path(place, one).is_symlink())]:
                path = Path(place, name)
                if name.endswith(".lock"):
                    continue
                key = str(path.relative_to(self.hf))
                found[key] = f"-> {path.readlink()}" if path.is_symlink() else digest(path)
        return found

    def grafted_content(self) -> dict[str, str]:
        """sha256 of each file of the grafted checkpoint, links followed."""
        return {file.path: digest(self.folder / file.path) for file in self.manifest.files}

    def expected(self) -> dict[str, str]:
        """The same as it must be: made by writing the shards anew with the overlay's tensors."""
        overlay = {tensor.name: tensor for tensor in overlay_tensors()}
        found = {}
        for file in self.manifest.files:
            if file.path not in SHARDS:
                continue
            made = self.home.parent / "expected"
            shards = stock_shards()[file.path]
            write_safetensors(made, [overlay.get(one.name, one) for one in shards])
            found[file.path] = digest(made)
        return found


def described(path: str, data: bytes, *, large: bool) -> File:
    """What the Hub says of a file with this content."""
    sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    sha256 = hashlib.sha256(data).hexdigest() if large else None
    return File(path, len(data), sha1, sha256)


def held_of(path: Path, file: File) -> Held:
    """What is recorded of a file that was downloaded."""
    found = stat_of(path)
    assert found is not None
    return Held(
        found.size, found.mtime_ns, found.inode, 1.0, "written", file.sha256 or "",
        "" if file.sha256 else file.git_sha1,
    )  # fmt: skip


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
