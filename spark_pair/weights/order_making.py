"""What the job of each step is given, from a plan and the looks that it was made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import Exit, SparkPairError
from . import layout
from . import seen as looks
from .cache import Cache
from .goal import Goal
from .holdings import OVERLAY, RANKS, Pair, RankFile, Wanted, rank_of_name
from .manifest import HOST_ROLES, HostRole, Manifest
from .provenance import Origin
from .rank_file import rank_of
from .shard_order import INDEX
from .steps import Step
from .variables import Settings, places

SCHEMA = 1
GRAFT, UNDO = "graft-checkpoint-head", "undo-graft-head"
SEND_RANK = "transfer-rank1-worker"

Seens = Mapping[HostRole, Mapping[str, Any]]
"""What each machine that could be looked at told, as `look` returns it."""


class StepError(SparkPairError):
    """A step that was planned is not due any more, or not possible as things are now."""

    exit = Exit.REFUSED


class Orders:
    """Orders for what is wanted, by what two looks told."""

    def __init__(
        self,
        settings: Settings,
        manifests: Mapping[str, Manifest],
        goal: Goal,
        seens: Seens,
        pair: Pair,
    ) -> None:
        """`manifests` are by the name of their source, `pair` is what the looks say is held."""
        self.settings = settings
        self.manifests = manifests
        self.goal = goal
        self.seens = seens
        self.pair = pair

    def _begin(self, host: HostRole, kind: str) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kind": kind,
            "home": self.settings.homes[host],
            "floor_bytes": self.settings.options.floor_bytes,
        }

    def _work(self, host: HostRole) -> Path:
        return Path(places(self.settings.homes[host])["work"])

    def _checkpoint(self) -> Wanted:
        if self.goal.checkpoint is None:
            raise StepError("no checkpoint is wanted, so nothing is made of one")
        return self.goal.checkpoint

    def _snapshot(self, host: HostRole) -> str:
        one = self._checkpoint()
        cache = Cache.of_account(Path(self.settings.homes[host]))
        return str(cache.snapshot(one.source.repo, one.commit))

    # ---- files of the Hub

    def download(self, step: Step) -> dict[str, Any]:
        source = next(one for one in self.settings.sources if one.name == step.source)
        return {
            "schema": SCHEMA,
            "source": source.name,
            "endpoint": self.settings.endpoint,
            "home": self.settings.homes[step.host],
            "manifest": self.manifests[source.name].as_dict(),
            "files": [*step.files, *self._stranded(step)],
            "workers": self.settings.workers,
            "limit_bytes_per_second": None,
            "floor_bytes": self.settings.options.floor_bytes,
            "gated": source.gated,
        }

    def _stranded(self, step: Step) -> list[str]:
        """Files that are recorded where a graft has put them, and that lie in the cache too.

        With fresh shards in the cache that folder counts no longer, so they are proven anew.
        """
        known = self.seens[step.host]["artefacts"].get(step.source)
        if step.source != "checkpoint" or known is None:
            return []
        if known["folder"] == self._snapshot(step.host):
            return []
        files = {file.path: file for file in self._checkpoint().files}
        return [
            path
            for path in sorted(known["files"])
            if path in files
            and path not in step.files
            and looks.is_there(self.seens[step.host], self._checkpoint(), files[path])
        ]

    def transfer(self, step: Step) -> dict[str, Any]:
        return {
            **self._begin(step.host, "transfer"),
            "source": step.source,
            "manifest": self.manifests[step.source].as_dict(),
            "files": list(step.files),
            **way_of(self.settings, step.host),
        }

    # ---- rank files

    def rank(self, step: Step) -> dict[str, Any]:
        """Rank 1, from the head to the worker; where that one has it, from itself to itself."""
        mine = self.goal.rank_file(self.pair["head"], 1)
        if mine is None:
            raise StepError(f"{step.id}: rank 1 is not on {self.settings.names['head']} any more")
        footer = self._footer("head", mine)
        details = {**self._details("head", mine), INDEX: footer[INDEX]}
        return {
            **self._begin(step.host, "transfer_rank"),
            "artefact": self._rank_artefact(step.host, 1, details),
            "from": mine.folder,
            "file": {
                "path": mine.path,
                "size": mine.size,
                "sha256": mine.sha256,
                "entries": footer["entries"],
                INDEX: footer[INDEX],
            },
            **way_of(self.settings, step.host),
        }

    def _rank_artefact(
        self, host: HostRole, rank: int, details: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What the record shall say of a rank file, and where it goes."""
        one, overlay = self._checkpoint(), self.goal.graft
        ranks = Path(places(self.settings.homes[host])["ranks"])
        return {
            "name": layout.rank_name(rank, overlay),
            "repo": one.source.repo,
            "commit": one.commit,
            "folder": str(layout.rank_files(ranks, one.commit, overlay)),
            "details": {**details, OVERLAY: overlay},
        }

    def _details(self, host: HostRole, file: RankFile) -> dict[str, Any]:
        """What a machine's record remembers of a rank file besides."""
        for which in ("artefacts", "doubtful"):
            entry = self.seens[host][which].get(file.artefact)
            if entry and file.path in entry["files"]:
                return {**entry["details"], OVERLAY: file.overlay}
        return {OVERLAY: file.overlay}

    def _footer(self, host: HostRole, file: RankFile) -> Mapping[str, Any]:
        """What a look told of the end of a rank file."""
        whole = f"{file.folder}/{file.path}"
        for seen in self.seens[host]["ranks"]["files"]:
            if whole.endswith(f"/{seen['name']}") and seen["footer"] and seen["size"] == file.size:
                footer: Mapping[str, Any] = seen["footer"]
                return footer
        raise StepError(
            f"rank {file.rank} on {self.settings.names[host]} is recorded in {file.folder}, but "
            "no whole file is seen there: run --tags verify, which reads it again"
        )

    def shard(self, step: Step) -> dict[str, Any]:
        one, overlay, cut = self._checkpoint(), self.goal.graft, self.settings.cut
        rank = next(rank for rank in RANKS if step.id == f"shard-rank{rank}-head")
        artefact = self._rank_artefact(step.host, rank, {})
        model = self._snapshot(step.host)
        if overlay:
            model = str(layout.grafted(self._work(step.host), one.commit, overlay))
        return {
            **self._begin(step.host, "shard"),
            "rank": rank,
            "model": model,
            "artefact": artefact,
            "image": cut.image,
            "command": list(cut.command),
            "memory_bytes": cut.memory_bytes,
            "expected_bytes": self.settings.options.rank_bytes,
            "wrong": self._wrong(step.host, rank, artefact["folder"]),
        }

    def _wrong(self, host: HostRole, rank: int, folder: str) -> list[str]:
        """Names of files of that rank in a folder that the record knows to be wrong."""
        return sorted(
            path
            for name, entry in self.seens[host]["wrong"].items()
            if entry["kind"] == "rank_file" and entry["folder"] == folder
            for path in entry["files"]
            if rank_of_name(name) == rank == rank_of(path)
        )

    def drop(self) -> dict[str, Any] | None:
        mine, theirs = (self.goal.rank_file(self.pair[role], 1) for role in HOST_ROLES)
        names = self.settings.names
        if mine is None:
            return None
        if theirs is None or (mine.path, mine.size, mine.sha256) != (
            theirs.path, theirs.size, theirs.sha256,
        ):  # fmt: skip
            raise StepError(
                f"{names['head']} keeps its copy of rank 1, since {names['worker']} has not "
                "recorded the very same file: run --tags verify on both, then run again"
            )
        return {
            **self._begin("head", "drop"),
            "artefact": {
                "name": mine.artefact,
                "repo": self._checkpoint().source.repo,
                "commit": mine.checkpoint,
                "folder": mine.folder,
                "details": self._details("head", mine),
            },
            "file": {"path": mine.path, "size": mine.size, "sha256": mine.sha256},
        }

    # ---- the checkpoint

    def graft(self, step: Step) -> dict[str, Any]:
        one, held, graft = self._checkpoint(), self.pair[step.host], self.settings.graft
        undo = step.id == UNDO
        overlay = held.overlaid if undo else self.goal.graft
        journal = looks.journal(self.seens[step.host], one, str(overlay))
        files = [file.path for file in one.files]
        if undo:
            # What is not there at all is fetched afterwards.
            files = [path for path in files if path in held.recorded.get(one.name, {})]
        return {
            **self._begin(step.host, "undo_graft" if undo else "graft"),
            "method": journal["method"] if undo and journal else self.settings.options.graft,
            "manifest": self.manifests[one.name].as_dict(),
            "files": files,
            "overlay": {"commit": overlay} if undo else self._overlay(),
            "work": str(self._work(step.host)),
            "former": self._former(step.host),
            "tensors": graft.tensors,
            "image": graft.image,
            "command": list(graft.command),
            "dtypes_command": list(graft.dtypes_command),
            "recipe": graft.recipe,
            "memory_bytes": graft.memory_bytes,
        }

    def _overlay(self) -> dict[str, Any]:
        overlay = self.goal.overlay
        if overlay is None:
            raise StepError("no overlay is wanted, so none is put into the checkpoint")
        return {
            "manifest": self.manifests[overlay.name].as_dict(),
            "files": [file.path for file in overlay.files],
        }

    def _former(self, host: HostRole) -> str:
        """How the checkpoint came here before anything was put into it."""
        for which in ("artefacts", "doubtful", "wrong"):
            if entry := self.seens[host][which].get("checkpoint"):
                if entry["origin"] != Origin.GRAFTED:
                    return str(entry["origin"])
                if former := entry["details"].get("former"):
                    return str(former)
        return str(Origin.DOWNLOADED)

    def prune(self, step: Step) -> dict[str, Any]:
        one, work = self._checkpoint(), self._work(step.host)
        overlays = dict.fromkeys((self.goal.graft, self.pair[step.host].overlaid))
        grafted = [str(layout.grafted(work, one.commit, each)) for each in overlays if each]
        return {
            **self._begin(step.host, "prune"),
            "manifest": self.manifests[one.name].as_dict(),
            "files": [file.path for file in self.goal.prunable],
            "artefact": one.name,
            "repo": one.source.repo,
            "commit": one.commit,
            "folders": [*grafted, self._snapshot(step.host)],
            "work": str(work),
            "overlay": self.goal.graft,
        }


def way_of(settings: Settings, host: HostRole) -> dict[str, Any]:
    """How bytes come to a machine from the other one. Raises StepError without a common rail."""
    origin = _other(host)
    names, machines, transfer = (
        settings.names, settings.machines, settings.transfer,
    )  # fmt: skip
    here, there = machines[host], machines[origin]
    rails = [
        {"here": mine, "peer": theirs}
        for mine, theirs in zip(here.rails, there.rails, strict=False)
    ]
    if not rails:
        raise StepError(
            f"{names[host]} and {names[origin]} have no rail in common, and what is sent "
            "goes over the rails: name them in cx7_network_rails of both"
        )
    return {
        "peer": {
            "name": names[origin],
            "user": there.user,
            "home": settings.homes[origin],
            "addresses": list(there.addresses),
            "port": there.port,
        },
        "rails": rails,
        "transport": transfer.transport,
        "ports": list(transfer.ports),
        "streams": transfer.streams,
        "limit_bytes_per_second": None,
    }


def _other(host: HostRole) -> HostRole:
    return "worker" if host == "head" else "head"
