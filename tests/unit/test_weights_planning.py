"""From variables and two looks to a plan, its orders, and the few questions to the Hub."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub_server import STRANGER_TOKEN, TOKEN, Hub, weights
from pair_hostvars import hostvars

from spark_pair import ansible_pair
from spark_pair.errors import SparkPairError
from spark_pair.weights import found_text, planning, stage
from spark_pair.weights.cache import Cache
from spark_pair.weights.download_order import DownloadOrder
from spark_pair.weights.graft_order import GraftOrder
from spark_pair.weights.hub import HubError, Kind
from spark_pair.weights.kept import Kept, ordered
from spark_pair.weights.look import look
from spark_pair.weights.manifest import HOST_ROLES, File, Manifest, Source
from spark_pair.weights.order_making import StepError
from spark_pair.weights.orders import acceptance
from spark_pair.weights.planning import Planned
from spark_pair.weights.provenance import Artefact, Held, Origin, Provenance, entry_of
from spark_pair.weights.questions import HubQuestions
from spark_pair.weights.remove_order import DropOrder, PruneOrder
from spark_pair.weights.shard_order import ShardOrder
from spark_pair.weights.transfer_order import RankTransferOrder, TransferOrder
from spark_pair.weights.variables import Settings, settings_of

OVERLAY = {"ablit_graft_enabled": True}


def file(path: str, size: int) -> File:
    return File(path, size, "a" * 40, "b" * 64 if path.endswith(".safetensors") else None)


SHARDS = [file(f"model-{n:05d}-of-00039.safetensors", 1000) for n in range(1, 40)]
TABLES = [file(f"model-{n:05d}-of-00048.safetensors", 2000) for n in range(46, 49)]
SMALL = [file("config.json", 5), file("README.md", 7)]
CONTENT = {
    "checkpoint": [*SHARDS, *SMALL],
    "engram": [*TABLES, *SMALL],
    "overlay": [
        file("exl3_wo_b_l10_35_mia29.safetensors", 600),
        file("apply_mia29_wo_b_graft.py", 50),
        file("EXL3_MIA29_ABLIT_META.json", 40),
        file("README.md", 7),
    ],
}


def manifest_of(source: Source) -> Manifest:
    commit = source.revision.ljust(40, "0")
    return Manifest(source.repo, commit, tuple(CONTENT[source.name]))


class Asked:
    """Answers like a Hub, and remembers what it was asked; `refuses` names sources or paths."""

    def __init__(self, *refuses: str, kind: Kind = "network") -> None:
        self.refuses = refuses
        self.kind = kind
        self.manifests: list[str] = []
        self.probed: list[str] = []

    def manifest(self, source: Source) -> Manifest:
        self.manifests.append(source.name)
        if source.name in self.refuses:
            raise HubError(self.kind, "the Hub cannot be reached; check the network.")
        return manifest_of(source)

    def probe(self, manifest: Manifest, path: str) -> None:
        self.probed.append(path)
        if path in self.refuses:
            raise HubError("terms", "accept the terms.")


class Pair:
    """Two hosts below a folder, as their looks find them."""

    def __init__(self, root: Path, **changes: Any) -> None:
        both = hostvars(weights_hub_token="", **changes)
        for host, variables in both.items():
            variables["spark_home"] = str(root / host)
        self.settings: Settings = settings_of("spark-a", both)
        self.root = root

    def kept(self, role: Any) -> Kept:
        return Kept(self.root / f"kept-{role}")

    def seens(self) -> dict[Any, Mapping[str, Any]]:
        return {
            role: look(
                {**self.settings.asked(role), "image": "", "images": []},
                provenance=Provenance(self.root / f"{role}.json"),
                kept=self.kept(role),
            )
            for role in HOST_ROLES
        }

    def plan(self, questions: Any) -> Planned:
        return planning.make(self.settings, self.seens(), questions)


def named(pair: Pair, name: str) -> Source:
    return next(one for one in pair.settings.sources if one.name == name)


def small(**more: Any) -> dict[str, Any]:
    sizes = {"rank_file": 100, "image": 0, "rewritten": 100}
    return {"weights_expected_bytes": sizes, "weights_disk_floor_gib": 0, **more}


def test_without_rails_nothing_is_fetched_that_could_not_be_sent(tmp_path: Path) -> None:
    pair = Pair(tmp_path, **small())
    machines = {
        role: replace(one, addresses=one.addresses[:1])
        for role, one in pair.settings.machines.items()
    }
    pair.settings = replace(pair.settings, machines=machines)
    (problem,) = pair.plan(Asked()).plan.problems
    assert "no rail in common" in problem and "cx7_network_rails" in problem


def test_an_empty_pair_downloads_what_the_variables_name(tmp_path: Path) -> None:
    pair, asked = Pair(tmp_path, **small()), Asked()
    made = pair.plan(asked)
    assert made.plan.problems == ()
    steps = {step.id: step for step in made.plan.steps}
    assert list(steps)[:2] == ["download-checkpoint-head", "download-engram-head"]
    assert len(steps["download-checkpoint-head"].files) == 41
    assert steps["download-engram-head"].files == (
        "config.json",
        "model-00047-of-00048.safetensors",
        "model-00048-of-00048.safetensors",
    )
    assert asked.manifests == ["checkpoint", "engram"]
    assert asked.probed == []


def test_what_a_machine_keeps_is_not_asked_for(tmp_path: Path) -> None:
    pair, asked = Pair(tmp_path, **small()), Asked()
    pair.kept("worker").keep(manifest_of(named(pair, "checkpoint")))
    pair.kept("head").keep(manifest_of(named(pair, "engram")))
    assert pair.plan(asked).plan.steps
    assert asked.manifests == []


def test_a_list_of_another_commit_is_of_no_use(tmp_path: Path) -> None:
    pair, asked = Pair(tmp_path, **small()), Asked()
    other = manifest_of(named(pair, "checkpoint"))
    seens = pair.seens()
    held = {other.repo: Manifest(other.repo, "f" * 40, other.files).as_dict()}
    seens["head"] = {**seens["head"], "manifests": held}
    planning.make(pair.settings, seens, asked)
    assert "checkpoint" in asked.manifests


class TestListsOfACache:
    """They are anybody's who may write there, so the Hub is asked first."""

    OUT_OF_REACH = ("checkpoint", "engram")

    def pair(self, root: Path) -> Pair:
        pair = Pair(root, **small())
        for role in HOST_ROLES:
            cache = Cache.of_account(Path(pair.settings.homes[role]))
            for name in self.OUT_OF_REACH:
                cache.write_tree(self.short(pair, name))
        return pair

    def short(self, pair: Pair, name: str) -> Manifest:
        """What is wanted, without the README that the Hub lists too."""
        whole = manifest_of(named(pair, name))
        return whole.part(one for one in whole.files if one.path != "README.md")

    def record(self, pair: Pair, role: Any, name: str) -> None:
        """Write and record everything that the cache's list of a source wants."""
        manifest, source = self.short(pair, name), named(pair, name)
        folder = Cache.of_account(Path(pair.settings.homes[role])).snapshot(
            manifest.repo, manifest.commit
        )
        folder.mkdir(parents=True)
        held = {}
        for one in manifest.select(source.files):
            (folder / one.path).write_bytes(b"x" * one.size)
            proof = {one.proof: one.etag}
            held[one.path] = self.held(folder / one.path, **proof)
        self.keep(pair, role, name, folder, held)

    def rank(self, pair: Pair, role: Any, number: int) -> None:
        """The rank file of a host, with a record."""
        folder = Path(pair.settings.asked(role)["places"]["ranks"])
        folder.mkdir(parents=True)
        path = folder / f"rank{number}of2-x.bin"
        path.write_bytes(b"x" * 100)
        held = {path.name: self.held(path, sha256="c" * 64)}
        self.keep(pair, role, f"rank{number}", folder, held)

    def held(self, path: Path, *, sha256: str = "", git_sha1: str = "") -> Held:
        found = path.stat()
        return Held(
            found.st_size, found.st_mtime_ns, found.st_ino, time.time(), "read", sha256, git_sha1
        )  # fmt: skip

    def keep(self, pair: Pair, role: Any, name: str, folder: Path, held: dict[str, Held]) -> None:
        cut = name.startswith("rank")
        source = manifest_of(named(pair, "checkpoint" if cut else name))
        artefact = Artefact(
            name, "rank_file" if cut else "repository", source.repo, source.commit, Origin.ADOPTED,
            time.time(), str(folder), held, {"overlay": None} if cut else {},
        )  # fmt: skip
        Provenance(pair.root / f"{role}.json").record(artefact)

    def finish(self, pair: Pair) -> None:
        """Both machines hold everything, with a record."""
        self.record(pair, "head", "checkpoint")
        for number, role in enumerate(HOST_ROLES):
            self.record(pair, role, "engram")
            self.rank(pair, role, number)

    def test_the_hub_is_asked_first(self, tmp_path: Path) -> None:
        pair, asked = self.pair(tmp_path), Asked()
        made = pair.plan(asked)
        assert asked.manifests == ["checkpoint", "engram"] and made.notes == ()
        assert made.manifests["engram"] == manifest_of(named(pair, "engram"))
        assert {one.told_by for one in made.manifests.values()} == {"hub"}

    @pytest.mark.parametrize("kind", ["network", "busy", "server"])
    def test_without_the_hub_they_will_do_and_it_is_said(self, tmp_path: Path, kind: Kind) -> None:
        pair = self.pair(tmp_path)
        made = pair.plan(Asked("engram", kind=kind))
        assert made.plan.problems == () and made.plan.steps
        assert made.notes == ("the Hub cannot be reached: the list of engram is the cache's own",)
        step = next(one for one in made.plan.steps if one.source == "engram")
        (ordered_one,) = ordered(planning.order(step, pair.settings, made, pair.seens()))
        assert ordered_one.told_by == "cache"

    @pytest.mark.parametrize("kind", ["repository", "token", "terms", "revision", "tls"])
    def test_a_refusal_is_an_answer(self, tmp_path: Path, kind: Kind) -> None:
        made = self.pair(tmp_path).plan(Asked("engram", kind=kind))
        assert made.notes == ()
        assert made.plan.problems[0].startswith("What engram consists of is not known: ")

    def test_where_everything_is_recorded_nobody_is_asked(self, tmp_path: Path) -> None:
        pair, asked = self.pair(tmp_path), Asked()
        self.finish(pair)
        assert pair.plan(asked).plan.steps == ()
        assert asked.manifests == []

    def test_what_is_not_recorded_is_asked_about(self, tmp_path: Path) -> None:
        pair, asked = self.pair(tmp_path), Asked()
        self.finish(pair)
        cache = Cache.of_account(Path(pair.settings.homes["worker"]))
        engram = named(pair, "engram")
        (cache.snapshot(engram.repo, engram.revision) / "config.json").unlink()
        assert pair.plan(asked).plan.steps
        assert asked.manifests == ["checkpoint", "engram"]


def test_no_plan_without_knowing_what_to_fetch(tmp_path: Path) -> None:
    pair = Pair(tmp_path, **small())
    plan = pair.plan(Asked("engram")).plan
    assert plan.steps == ()
    assert plan.problems == (
        "What engram consists of is not known: the Hub cannot be reached; check the network.",
    )


def test_a_list_of_files_that_is_wrong_is_a_problem_of_the_plan(tmp_path: Path) -> None:
    extra = {"engram": {"files": ["model-00099-*"]}}
    plan = Pair(tmp_path, **small(weights_sources_extra=extra)).plan(Asked()).plan
    assert any("nothing matches 'model-00099-*'" in one for one in plan.problems)


def test_what_is_gated_is_tried_once_with_its_smallest_file(tmp_path: Path) -> None:
    asked = Asked()
    plan = Pair(tmp_path, **small(**OVERLAY)).plan(asked).plan
    assert asked.probed == ["README.md"] and not plan.problems


def test_what_is_not_given_stops_everything_before_the_first_byte(tmp_path: Path) -> None:
    plan = Pair(tmp_path, **small(**OVERLAY)).plan(Asked("README.md")).plan
    assert plan.problems == ("overlay cannot be downloaded: accept the terms.",)
    assert plan.steps  # shown all the same


def test_a_plan_that_does_not_fit_asks_for_nothing_gated(tmp_path: Path) -> None:
    asked = Asked()
    plan = Pair(tmp_path, **small(weights_disk_floor_gib=10**9, **OVERLAY)).plan(asked).plan
    assert plan.problems and asked.probed == []


def test_an_order_is_what_the_download_understands(tmp_path: Path) -> None:
    pair = Pair(tmp_path, **small(hf_download_workers=7, **OVERLAY))
    made = pair.plan(Asked())
    for step in made.plan.steps:
        if step.kind != "download":
            continue
        data = planning.order(step, pair.settings, made, pair.seens())
        order = DownloadOrder.from_dict(data)
        assert [one.path for one in order.files] == list(step.files)
        assert order.source == step.source
        assert str(order.home) == pair.settings.homes[step.host]
        assert (order.workers, order.gated) == (7, step.source == "overlay")


class Recorded(Pair):
    """A pair of which the records hold what a test says; nothing lies on its disks."""

    ranks = "rank{0}of2-" + "a" * 20 + ".bin"

    def __init__(self, root: Path, **changes: Any) -> None:
        super().__init__(root, **small(**changes))
        self.known: dict[Any, dict[str, Any]] = {role: {} for role in HOST_ROLES}
        self.wrong: dict[Any, dict[str, Any]] = {role: {} for role in HOST_ROLES}
        self.files: dict[Any, list[dict[str, Any]]] = {role: [] for role in HOST_ROLES}
        self.grafts: list[dict[str, Any]] = []
        self.cached: dict[str, Any] = {}

    def seens(self) -> dict[Any, Mapping[str, Any]]:
        return {
            role: {
                **seen,
                "artefacts": self.known[role],
                "wrong": self.wrong[role],
                "ranks": {"folder": "", "files": self.files[role]},
                "grafts": self.grafts if role == "head" else [],
                "cached": self.cached if role == "head" else {},
            }
            for role, seen in super().seens().items()
        }

    @property
    def made(self) -> Planned:
        return self.plan(Asked())

    def order(self, step_id: str) -> dict[str, Any]:
        data = planning.order(step_id, self.settings, self.made, self.seens())
        assert acceptance(data) is not None  # its own class takes it
        return data

    def work(self, role: Any) -> str:
        return str(self.settings.asked(role)["places"]["work"])

    def hold(self, role: Any, name: str, **changes: Any) -> None:
        """Everything that is wanted of a source is recorded."""
        source = named(self, name)
        manifest = manifest_of(source)
        cache = Cache.of_account(Path(self.settings.homes[role]))
        files = {
            one.path: Held(one.size, 1, 1, 1.0, "read", one.sha256 or "", one.git_sha1)
            for one in manifest.select(source.files)
        }
        artefact = Artefact(
            name, "repository", source.repo, manifest.commit, Origin.DOWNLOADED, 1.0,
            str(cache.snapshot(source.repo, manifest.commit)), files,
        )  # fmt: skip
        self.known[role][name] = entry_of(replace(artefact, **changes))

    def cut(self, role: Any, rank: int, *, which: str = "known", **changes: Any) -> None:
        """A rank file from stock weights is recorded, and seen."""
        manifest = manifest_of(named(self, "checkpoint"))
        folder = f"{self.work(role)}/45ee5d0f/checkpoint/rank-cache"
        path = self.ranks.format(rank)
        usual = Artefact(
            f"rank{rank}", "rank_file", manifest.repo, manifest.commit, Origin.CUT, 1.0, folder,
            {path: Held(100, 1, 1, 1.0, "read", "c" * 64)}, {"overlay": None},
        )  # fmt: skip
        artefact = replace(usual, **changes)
        getattr(self, which)[role][artefact.name] = entry_of(artefact)
        footer = {"entries": 7, "index_sha256": "d" * 64, "bytes": 64}
        self.files[role].append(
            {
                "name": f"45ee5d0f/checkpoint/rank-cache/{path}", "rank": rank, "size": 100,
                "footer": footer, "problem": "", "recorded": True, "again": False,
            }
        )  # fmt: skip

    def graft(self, role: Any = "head") -> None:
        """The checkpoint carries the overlay in two of its shards."""
        overlay = manifest_of(named(self, "overlay")).commit
        grafted = [SHARDS[0].path, SHARDS[1].path]
        folder = f"{self.work(role)}/45ee5d0f-ablit-{overlay[:8]}/checkpoint"
        details = {"overlay": overlay, "grafted": grafted, "former": "adopted"}
        self.hold(role, "checkpoint", origin=Origin.GRAFTED, folder=folder, details=details)
        self.grafts.append(
            {
                "folder": f"45ee5d0f-ablit-{overlay[:8]}",
                "repo": named(self, "checkpoint").repo,
                "checkpoint": manifest_of(named(self, "checkpoint")).commit,
                "overlay": overlay, "method": "recipe", "state": "grafted",
                "there": dict.fromkeys(grafted, 1000), "undo": 0,
            }
        )  # fmt: skip


class TestOrders:
    CUTTER = ("tf-dsv41-rank-cache", "{model}", "{out}", "{rank}", "2")

    def test_a_transfer_goes_over_the_rails_of_both(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path, hf_transfer_transport="ssh", ansible_port=2222)
        pair.hold("head", "engram")
        order = TransferOrder.from_dict(pair.order("transfer-engram-worker"))
        assert [one.path for one in order.files] == [one.path for one in (SMALL[0], *TABLES[1:])]
        assert str(order.home) == pair.settings.homes["worker"]
        way = order.way
        assert (way.peer.name, way.peer.user, way.peer.port) == ("spark-a", "ann", 2222)
        assert way.peer.addresses[0] == "192.0.2.11" and len(way.peer.addresses) == 3
        assert [(rail.here, rail.peer) for rail in way.rails] == [
            ("198.51.100.12", "198.51.100.11"),
            ("198.51.100.140", "198.51.100.139"),
        ]
        assert (way.transport, way.ports, way.streams) == ("ssh", (8730, 8739), 4)
        assert way.limit_bytes_per_second is None

    def test_the_head_may_be_the_one_that_lacks_something(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.hold("worker", "engram")
        order = TransferOrder.from_dict(pair.order("transfer-engram-head"))
        assert (order.way.peer.name, order.way.peer.user) == ("spark-b", "bob")

    def test_without_rails_nothing_is_sent(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.hold("head", "engram")
        alone = {
            role: replace(one, addresses=one.addresses[:1])
            for role, one in pair.settings.machines.items()
        }
        pair.settings = replace(pair.settings, machines=alone)
        with pytest.raises(StepError, match="cx7_network_rails of both"):
            pair.order("transfer-engram-worker")

    def test_rank_1_is_sent_as_the_head_has_it(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.hold("head", "checkpoint")
        pair.cut("head", 1, details={"overlay": None, "by": "hand"})
        order = RankTransferOrder.from_dict(pair.order("transfer-rank1-worker"))
        assert str(order.origin) == f"{pair.work('head')}/45ee5d0f/checkpoint/rank-cache"
        assert str(order.folder) == f"{pair.work('worker')}/45ee5d0f/checkpoint/rank-cache"
        assert (order.rank.path, order.rank.sha256) == (pair.ranks.format(1), "c" * 64)
        assert (order.rank.size, order.rank.entries, order.rank.index_sha256[:2]) == (100, 7, "dd")
        assert order.made_from.name == "rank1" and order.made_from.details["by"] == "hand"

    def test_a_rank_file_that_cannot_be_seen_is_not_sent(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.hold("head", "checkpoint")
        pair.cut("head", 1)
        pair.files["head"].clear()
        with pytest.raises(StepError, match="no whole file is seen there"):
            pair.order("transfer-rank1-worker")

    def test_the_heads_copy_goes_once_the_worker_has_the_same(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.cut("head", 1)
        made = pair.made
        with pytest.raises(StepError, match="spark-b has not recorded the very same"):
            planning.drop_order(pair.settings, made, pair.seens())
        pair.cut("worker", 1, details={"overlay": None}, origin=Origin.TRANSFERRED)
        order = DropOrder.from_dict(planning.drop_order(pair.settings, made, pair.seens()))
        assert (order.artefact.name, order.path, order.size) == ("rank1", pair.ranks.format(1), 100)
        assert str(order.artefact.folder) == f"{pair.work('head')}/45ee5d0f/checkpoint/rank-cache"
        pair.cut("worker", 1, files={pair.ranks.format(1): Held(100, 1, 1, 1.0, "read", "e" * 64)})
        with pytest.raises(StepError, match="keeps its copy"):
            planning.drop_order(pair.settings, made, pair.seens())
        del pair.known["head"]["rank1"]
        assert planning.drop_order(pair.settings, made, pair.seens()) is None

    def test_stock_rank_files_are_cut_from_the_snapshot(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.hold("head", "checkpoint")
        order = ShardOrder.from_dict(pair.order("shard-rank1-head"))
        assert (order.rank, order.image, order.command) == (1, "engine:test", self.CUTTER)
        assert str(order.model) == pair.known["head"]["checkpoint"]["folder"]
        assert str(order.artefact.folder) == f"{pair.work('head')}/45ee5d0f/checkpoint/rank-cache"
        assert (order.artefact.name, order.artefact.overlay) == ("rank1", None)
        assert (order.expected_bytes, order.wrong, order.memory_bytes) == (100, (), 16 << 30)

    def test_a_wrong_file_of_that_rank_and_folder_is_replaced(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.hold("head", "checkpoint")
        for rank in (0, 1):
            pair.cut("head", rank, which="wrong")
        pair.cut("head", 0, which="wrong", name="rank0-ablit-0bdc2036", folder="/elsewhere")
        order = ShardOrder.from_dict(pair.order("shard-rank0-head"))
        assert order.wrong == (pair.ranks.format(0),)

    def test_grafted_ones_are_cut_from_the_work_folder(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path, **OVERLAY)
        pair.graft()
        order = ShardOrder.from_dict(pair.order("shard-rank0-head"))
        grafted = f"{pair.work('head')}/45ee5d0f-ablit-0bdc2036/checkpoint"
        assert (str(order.model), order.artefact.name) == (grafted, "rank0-ablit-0bdc2036")
        assert str(order.artefact.folder) == f"{grafted}/rank-cache"
        assert order.artefact.overlay == manifest_of(named(pair, "overlay")).commit

    def test_a_graft_is_told_where_everything_lies(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path, ablit_graft_tensors=4, ablit_graft_recipe="/srv/dsv41", **OVERLAY)
        pair.hold("head", "checkpoint", origin=Origin.TRANSFERRED)
        pair.hold("head", "overlay")
        order = GraftOrder.from_dict(pair.order("graft-checkpoint-head"))
        assert (order.kind, order.method, order.tensors) == ("graft", "in_place", 4)
        assert len(order.files) == 41 and order.former is Origin.TRANSFERRED
        assert order.sidecar is not None and order.sidecar.size == 600
        assert str(order.derived) == f"{pair.work('head')}/45ee5d0f-ablit-0bdc2036"
        assert (str(order.recipe), order.image) == ("/srv/dsv41", "engine:test")

    def test_a_graft_is_undone_the_way_it_was_made(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        pair.graft()
        del pair.known["head"]["checkpoint"]["files"][SHARDS[5].path]
        order = GraftOrder.from_dict(pair.order("undo-graft-head"))
        assert (order.kind, order.method, order.former) == (
            "undo_graft", "recipe", Origin.ADOPTED,
        )  # fmt: skip
        assert order.overlay == manifest_of(named(pair, "overlay")).commit
        assert len(order.files) == 40

    def test_pruning_names_the_shards_and_where_they_may_lie(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path, rank_files_prune_sources=True, **OVERLAY)
        pair.graft()
        overlay = {"overlay": manifest_of(named(pair, "overlay")).commit}
        for rank, role in enumerate(HOST_ROLES):
            pair.cut(role, rank, name=f"rank{rank}-ablit-0bdc2036", details=overlay)
        order = PruneOrder.from_dict(pair.order("prune-checkpoint-head"))
        assert [one.path for one in order.files] == [one.path for one in SHARDS[:-1]]
        assert str(order.folders[0]) == f"{pair.work('head')}/45ee5d0f-ablit-0bdc2036/checkpoint"
        assert order.folders[1:] == (order.snapshot,)
        assert order.overlay == overlay["overlay"]

    def test_what_a_graft_has_copied_is_proven_anew_beside_fresh_shards(
        self, tmp_path: Path
    ) -> None:
        pair = Recorded(tmp_path)
        pair.graft()
        for one in SHARDS[:-1]:
            del pair.known["head"]["checkpoint"]["files"][one.path]
        pair.grafts.clear()
        manifest = manifest_of(named(pair, "checkpoint"))
        left = {one.path: one.size for one in (SHARDS[-1], SMALL[0])}
        pair.cached = {manifest.repo: {manifest.commit: left}}
        order = DownloadOrder.from_dict(pair.order("download-checkpoint-head"))
        assert {one.path for one in order.files} == {one.path for one in (*SHARDS, SMALL[0])}
        # What lies nowhere in the cache is not fetched for that.
        step = planning.step_of(pair.made, "download-checkpoint-head")
        assert step is not None and len(step.files) == 38

    def test_what_is_not_due_has_no_order(self, tmp_path: Path) -> None:
        pair = Recorded(tmp_path)
        with pytest.raises(StepError, match="not due any more"):
            pair.order("undo-graft-head")
        image = next(one for one in pair.made.plan.steps if one.kind == "shard")
        with pytest.raises(StepError, match="no work of this stage"):
            planning.order(replace(image, kind="image"), pair.settings, pair.made, pair.seens())


class TestImages:
    """What cannot be run yet is said with the plan, and everything else goes on."""

    def barred(self, root: Path, there: bool | None, **changes: Any) -> Mapping[str, str]:
        pair = Pair(root, **small(**changes))
        seens = pair.seens()
        seens["head"] = {**seens["head"], "images": {"engine:test": there}}
        made = planning.make(pair.settings, seens, Asked())
        assert not made.plan.problems
        return made.plan.barred

    def test_rank_files_need_their_image(self, tmp_path: Path) -> None:
        found = self.barred(tmp_path, there=False)
        assert list(found) == ["shard-rank1-head", "shard-rank0-head"]
        (said,) = set(found.values())
        assert "the image engine:test is not on spark-a" in said and "rank_files_image" in said
        assert not self.barred(tmp_path, there=True)

    def test_what_docker_does_not_tell_is_tried(self, tmp_path: Path) -> None:
        assert not self.barred(tmp_path, there=None)

    def test_without_a_name_it_is_the_engines(self, tmp_path: Path) -> None:
        found = self.barred(tmp_path, there=False, rank_files_image="")
        assert "the image engine:test is not on spark-a" in found["shard-rank0-head"]

    @pytest.mark.parametrize(("image", "own"), [("", True), ("another:test", False)])
    def test_only_the_engines_image_is_brought_by_an_earlier_stage(
        self, tmp_path: Path, image: str, own: bool
    ) -> None:
        pair = Pair(tmp_path, **small(rank_files_image=image))
        seens = pair.seens()
        seens["head"] = {**seens["head"], "images": {image or "engine:test": False}}
        plan = planning.make(pair.settings, seens, Asked()).plan
        assert plan.imageless == ({*plan.barred} if own else set())
        work = stage.work(plan, ["all"])
        assert ("shard-rank1-head" in [step.id for step in work.do]) == own
        assert not [step for step in stage.work(plan, ["weights"]).do if step.kind == "shard"]

    def test_only_the_recipes_graft_needs_one(self, tmp_path: Path) -> None:
        step = "graft-checkpoint-head"
        assert step not in self.barred(tmp_path, there=False, **OVERLAY)
        by_recipe = {"ablit_graft_method": "recipe", "ablit_graft_recipe": "/home/a/recipe"}
        found = self.barred(tmp_path, there=False, **by_recipe, **OVERLAY)
        assert "ablit_graft_image" in found[step]


def test_a_look_that_cannot_be_trusted_stops_the_plan(tmp_path: Path) -> None:
    pair = Pair(tmp_path, **small())
    (tmp_path / "head.json").write_text("{broken")
    problems = pair.plan(Asked()).plan.problems
    assert any(one.startswith("spark-a: ") and "damaged" in one for one in problems)


class TestQuestionsOfTheController:
    @pytest.fixture
    def hub(self, tmp_path: Path) -> Any:
        with Hub(tmp_path / "hub", weights.account(1 << 20)) as hub:
            yield hub

    def test_a_prefix_becomes_the_whole_commit_with_its_files(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        pair = Pair(tmp_path)
        found = HubQuestions(hub.url, "").manifest(named(pair, "checkpoint"))
        assert found.commit == weights.CHECKPOINT_COMMIT
        assert len(found.select(named(pair, "checkpoint").files)) == 47

    def test_what_is_gated_is_given_to_those_who_accepted(self, hub: Hub, tmp_path: Path) -> None:
        source = named(Pair(tmp_path), "overlay")
        manifest = HubQuestions(hub.url, TOKEN).manifest(source)
        HubQuestions(hub.url, TOKEN).probe(manifest, "README.md")
        for token, kind in ((STRANGER_TOKEN, "terms"), ("", "token")):
            with pytest.raises(HubError) as raised:
                HubQuestions(hub.url, token).probe(manifest, "README.md")
            assert raised.value.kind == kind

    def test_only_what_is_gated_is_asked_for_with_the_token(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: dict[str, set[str | None]] = {}

        class Listening:
            def __init__(self, endpoint: str, token: str | None, **_: Any) -> None:
                self.token = token

            def resolve(self, repo: str, revision: str) -> str:
                asked.setdefault(repo, set()).add(self.token)
                return revision.ljust(40, "0")

            def manifest(self, repo: str, commit: str) -> Manifest:
                asked[repo].add(self.token)
                return Manifest(repo, commit, ())

        monkeypatch.setattr("spark_pair.weights.hub.Hub", Listening)
        questions = HubQuestions("https://hub.example", TOKEN)
        sources = [named(Pair(tmp_path), name) for name in ("checkpoint", "engram", "overlay")]
        for source in sources:
            questions.manifest(source)
        assert asked == {one.repo: {TOKEN} if one.gated else {None} for one in sources}
        assert asked[sources[-1].repo] == {TOKEN}

    def test_a_controller_without_the_client_is_told_how_to_get_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        monkeypatch.delitem(sys.modules, "spark_pair.weights.hub")
        with pytest.raises(SparkPairError, match="lacks huggingface_hub: run 'make setup'"):
            HubQuestions("https://hub.example", "").manifest(named(Pair(tmp_path), "engram"))

    def test_a_hub_out_of_reach_is_waited_for_once(self, tmp_path: Path) -> None:
        waited: list[float] = []
        told: list[str] = []
        questions = HubQuestions("http://127.0.0.1:9", "", say=told.append, sleep=waited.append)
        first, second = (named(Pair(tmp_path), name) for name in ("checkpoint", "engram"))
        messages, pauses = [], []
        for source in (first, second):
            with pytest.raises(SparkPairError) as raised:
                questions.manifest(source)
            messages.append(str(raised.value))
            pauses.append(len(waited))
        assert messages[0] == messages[1]
        assert pauses[0] == pauses[1] > 0
        assert len(told) == len([one for one in waited if one >= 3]) > 0
        assert all("asked again in" in words for words in told)


class TestTextWithoutAPlan:
    def test_an_empty_machine(self, tmp_path: Path) -> None:
        seen = Pair(tmp_path).seens()["head"]
        assert found_text.lines("spark-a", seen) == [
            "spark-a holds:",
            "  nothing of the weights",
        ]

    def test_files_without_a_record_and_what_is_unknown(self, tmp_path: Path) -> None:
        pair = Pair(tmp_path)
        cache = Cache.of_account(Path(pair.settings.homes["head"]))
        engram = named(pair, "engram")
        folder = cache.snapshot(engram.repo, engram.revision)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        seen = {**pair.seens()["head"], "unread": {"image": "docker does not answer"}}
        told = found_text.lines("spark-a", seen)
        assert any("1 file of deepseek-ai/" in line and "without a record" in line for line in told)
        assert told[-1] == "  ! image is not known: docker does not answer"


class TestWhatPluginsRead:
    PAIR: Any = {"head": "spark-a", "worker": "spark-b"}  # noqa: RUF012

    def test_the_first_host_in_the_run_speaks(self) -> None:
        assert ansible_pair.speaker(self.PAIR, ["spark-b", "spark-a"]) == "spark-a"
        assert ansible_pair.speaker(self.PAIR, ["spark-b"]) == "spark-b"
        assert ansible_pair.speaker(self.PAIR, []) is None

    def test_a_look_that_failed_is_told_with_its_host(self) -> None:
        hostvars: dict[str, Any] = {
            "spark-a": {"__looked": {"seen": {"tool": True}}},
            "spark-b": {},
        }
        found, missing = ansible_pair.seen(self.PAIR, hostvars, "__looked", {})
        assert found == {"head": {"tool": True}}
        assert missing == ["spark-b cannot be looked at: no answer"]

    def test_who_is_absent_is_told_in_the_words_of_the_gate(self) -> None:
        hostvars: dict[str, Any] = {"spark-a": {"__looked": {"seen": {}}}}
        found, missing = ansible_pair.seen(
            self.PAIR, hostvars, "__looked", {"spark-b": "spark-b is away"}
        )
        assert list(found) == ["head"] and missing == ["spark-b is away"]
