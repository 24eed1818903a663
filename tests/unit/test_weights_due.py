"""Whether a step may be begun, by what the machines hold at that moment."""

from __future__ import annotations

from typing import Any

import pytest
from fake_pair import FakePair
from fake_systemd import FakeSystemd
from pair_hostvars import hostvars

from spark_pair import ansible_pair
from spark_pair.description import ROLES, Role
from spark_pair.errors import SparkPairError
from spark_pair.hostview import View
from spark_pair.jobs.units import Jobs
from spark_pair.weights import beside, due, serving
from spark_pair.weights.manifest import File, Manifest, Selector, Source
from spark_pair.weights.plan import Plan
from spark_pair.weights.steps import Kind, Step
from spark_pair.weights.variables import Settings, settings_of

MANIFEST = Manifest("owner/name", "c" * 40, (File("config.json", 5, "a" * 40, None),))


def source(name: str) -> Source:
    return Source(name, "owner/name", "c" * 40, (Selector("*"),), ("head",))


def step(kind: Kind, name: str, *needs: str) -> Step:
    return Step(name, kind, "head", 10, name, needs)


IMAGE = step("image", "image-head")
CUT = step("shard", "shard-rank0-head", "image-head")
SEND = step("transfer", "transfer-rank1-worker", "shard-rank1-head")
FETCH = step("download", "download-engram-head")
PRUNE = step("prune", "prune-checkpoint-head")


def settings(**changes: Any) -> Settings:
    return settings_of("spark-a", hostvars(weights_hub_token="", **changes))


class TestDue:
    def test_a_step_of_the_new_plan_is(self) -> None:
        assert due.step(Plan("minimal", (IMAGE, FETCH)), FETCH.id) is FETCH

    def test_one_that_is_done_by_now_is_not(self) -> None:
        assert due.step(Plan("minimal", (IMAGE,)), FETCH.id) is None

    def test_one_that_needs_another_waits(self) -> None:
        cut = step("shard", "shard-rank0-head", FETCH.id)
        with pytest.raises(due.NotDueError, match=f"must wait for {FETCH.id}"):
            due.step(Plan("minimal", (FETCH, cut)), cut.id)

    def test_the_image_is_made_elsewhere_and_waited_for_by_the_plan(self) -> None:
        assert due.step(Plan("minimal", (IMAGE, CUT)), CUT.id) is CUT

    def test_a_plan_with_problems_begins_nothing(self) -> None:
        with pytest.raises(due.NotDueError, match="cannot be begun: the disk is too small"):
            due.step(Plan("minimal", (FETCH,), problems=("the disk is too small",)), FETCH.id)

    @pytest.mark.parametrize("left", [CUT, SEND, step("graft", "graft-checkpoint-head")])
    def test_nothing_is_pruned_while_the_shards_may_be_needed(self, left: Step) -> None:
        with pytest.raises(due.NotDueError, match=f"must wait for {left.id}"):
            due.step(Plan("minimal", (left, PRUNE)), PRUNE.id)

    def test_downloads_of_other_things_do_not_keep_the_shards(self) -> None:
        assert due.step(Plan("minimal", (PRUNE, FETCH)), PRUNE.id) is PRUNE


class TestKnown:
    def test_a_list_of_the_plan_is_answered_with(self) -> None:
        known = due.Known.of({"checkpoint": MANIFEST.as_dict()})
        assert known.manifest(source("checkpoint")) == MANIFEST
        known.probe(MANIFEST, "config.json")

    def test_nobody_is_asked_for_another(self) -> None:
        with pytest.raises(SparkPairError, match="run again"):
            due.Known({}).manifest(source("engram"))


class TestSpokenFor:
    def facts(self, host: str, **more: Any) -> dict[str, Any]:
        gate: dict[str, Any] = {
            "pair": {"head": "spark-a", "worker": "spark-b"},
            "absences": {},
            "input_problems": [],
        }
        return {
            "inventory_hostname": host,
            "hostvars": {
                name: {"looked": {"seen": {"of": name}}} for name in gate["pair"].values()
            },
            "ansible_play_hosts": ["spark-a", "spark-b"],
            "gate": {**gate, **more},
        }

    def test_the_first_host_speaks_for_both(self) -> None:
        pair = ansible_pair.spoken_for(self.facts("spark-a"), "gate", "looked")
        assert pair is not None and not pair.problems and not pair.missing
        assert pair.seens == {"head": {"of": "spark-a"}, "worker": {"of": "spark-b"}}

    def test_the_other_one_has_nothing_to_do(self) -> None:
        assert ansible_pair.spoken_for(self.facts("spark-b"), "gate", "looked") is None

    def test_without_a_pair_every_host_says_so_itself(self) -> None:
        facts = self.facts("spark-b", pair={}, absences={"spark-b": "no peer"})
        pair = ansible_pair.spoken_for(facts, "gate", "looked")
        assert pair is not None and pair.problems == ("no peer",)

    def test_a_host_that_was_not_looked_at_is_told(self) -> None:
        facts = self.facts("spark-a", absences={"spark-b": "spark-b is away"})
        pair = ansible_pair.spoken_for(facts, "gate", "looked")
        assert pair is not None and pair.missing == ("spark-b is away",)


class TestBesideAServer:
    """What needs a container of its own, while somebody serves."""

    CUT = {"id": "shard-rank0-head", "kind": "shard", "host": "head"}  # noqa: RUF012
    GRAFT = {"id": "graft-checkpoint-head", "kind": "graft", "host": "head"}  # noqa: RUF012

    @staticmethod
    def decide(available: float | None, server: str = "hikari") -> serving.Decision:
        pair = FakePair()
        if server:
            pair.start(server)
        views: dict[Role, View | None] = {role: pair.nodes[role].observe() for role in ROLES}
        head = views["head"]
        assert head is not None
        head["memory"] = None if available is None else {"available_gib": available}
        container = serving.container(TestBesideAServer.CUT, settings())
        return serving.decide(pair.description, views, (), allowed=True, container=container)

    def test_it_needs_its_memory_and_a_reserve(self) -> None:
        assert self.decide(24.0) == serving.Decision(capped=True, words="hikari runs")
        refused = self.decide(23.9).refused
        assert "24 GiB are available, and on the head that is 23.9 GiB" in refused
        assert "rank_files_memory_gib" in refused and "hikari runs" in refused

    def test_what_is_not_known_is_not_enough(self) -> None:
        assert "is not known" in self.decide(None).refused

    def test_ranks_that_are_allowed_for_make_no_room(self) -> None:
        assert "deepseek runs" in self.decide(1.0, "deepseek").refused

    def test_beside_nobody_there_is_no_such_question(self) -> None:
        assert self.decide(1.0, "") == serving.Decision()

    def test_what_runs_in_a_container(self) -> None:
        plain, recipe = (settings(ablit_graft_method=method) for method in ("in_place", "recipe"))
        assert serving.container(self.GRAFT, plain) is None
        found = serving.container(self.GRAFT, recipe)
        assert found is not None and found.variable == "ablit_graft_memory_gib"
        undo = {**self.GRAFT, "id": "undo-graft-head"}
        assert serving.container(undo, recipe) is None
        assert serving.container({**self.GRAFT, "kind": "prune"}, recipe) is None

    def test_a_build_is_as_much_of_a_load(self) -> None:
        build = {"id": "build-image-head", "kind": "image", "host": "head"}
        found = serving.container(build, settings(engine_image_build_memory_gib=6))
        assert found == serving.Container("head", 6 << 30, "engine_image_build_memory_gib")
        ship = {"id": "ship-image-worker", "kind": "image", "host": "worker"}
        assert serving.container(ship, settings()) is None

    @pytest.mark.parametrize(
        "kind", ["download", "transfer", "graft", "shard", "prune", "drop", "image"]
    )
    def test_every_kind_has_its_limits(self, kind: str) -> None:
        limits = {"megabytes_per_second": 7, "memory_gib": 1, "io_weight": 3, "cpu_weight": 4}
        name = "hf_download_while_serving" if kind == "download" else "hf_transfer_while_serving"
        step = {"id": f"{kind}-head", "kind": kind, "host": "head"}
        variable, found = serving.limits(step, settings(**{name: limits}))
        assert variable == name and found.bytes_per_second == 7_000_000

    def test_a_build_has_the_memory_that_it_was_let_in_with(self) -> None:
        limits = {"megabytes_per_second": 7, "memory_gib": 4, "io_weight": 3, "cpu_weight": 4}
        found = settings(hf_transfer_while_serving=limits, engine_image_build_memory_gib=6)
        build = {"id": "build-image-head", "kind": "image", "host": "head"}
        variable, mine = serving.limits(build, found)
        assert variable == "hf_transfer_while_serving and engine_image_build_memory_gib"
        assert mine.caps == {"memory_max": 6 << 30, "io_weight": 3, "cpu_weight": 4}
        ship = {"id": "ship-image-worker", "kind": "image", "host": "worker"}
        assert serving.limits(ship, found)[1].caps["memory_max"] == 4 << 30


class TestBeside:
    def test_a_host_that_nobody_describes_tells_what_it_can(self, tmp_path: Any) -> None:
        jobs = Jobs(base=tmp_path, private=tmp_path / "run", runner=FakeSystemd())
        asked = {"description": {}, "role": "head", "host": "spark-a", "job": "shard-rank0-head"}
        found = beside.beside(asked, jobs=jobs)
        assert found["view"] is None and found["description"] is None
        assert found["job"]["state"] == "absent"
        assert isinstance(found["switching"], list)
