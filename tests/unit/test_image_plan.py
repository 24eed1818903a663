"""What is left to do for the images of a pair, and everything that is refused before a switch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from docker_images import Images
from pair_hostvars import COMMIT, hostvars

from spark_pair import pair_variables
from spark_pair.errors import SparkPairError
from spark_pair.image import asking, due
from spark_pair.image.identity import ImageError
from spark_pair.image.look import look, named
from spark_pair.image.order import BuildOrder, ExportOrder, FetchOrder
from spark_pair.image.prune import prune
from spark_pair.image.served import kit_problem
from spark_pair.weights.variables import settings_of

NAMES: Mapping[Any, str] = {"head": "spark-a", "worker": "spark-b"}
BUILT = f"tensorfold-dsv41:{COMMIT[:12]}"
KIT = {"path": "/kits/wide", "manifest_sha256": "5" * 64}
ONE, TWO = "1" * 64, "2" * 64
ARCHIVE = {"path": f"{ONE}.tar", "size": 1, "sha256": TWO}


def seen(**images: Any) -> dict[str, Any]:
    """A look at a machine with one image or none."""
    return {
        "docker": "",
        "installed": True,
        "images": {},
        "prune": {},
        "builds": {},
        "named": {},
        "scratch": 0,
        **images,
    }


def there(identity: str, kit: str = "") -> dict[str, Any]:
    return {"identity": identity, "size": 1, "kit": kit, "unlisted": False}


class Wanted:
    """The variables of a pair, and what both machines have of the image they name."""

    def __init__(self, **changes: Any) -> None:
        self.variables = hostvars(
            **{"tensorfold_service_image": "", "weights_hub_token": "", **changes}
        )
        self.images = due.wanted(pair_variables.engines_of("spark-a", self.variables))
        self.settings = settings_of("spark-a", self.variables)
        servers = pair_variables.description_of("spark-a", self.variables)["servers"]
        self.needed = due.needed(self.images, servers)

    def plan(
        self,
        head: Any,
        worker: Any,
        *,
        check: bool = False,
        head_: Mapping[str, Any] | None = None,
        worker_: Mapping[str, Any] | None = None,
    ) -> due.Plan:
        name = self.images[0].name
        seens: dict[Any, Any] = {
            "head": seen(images={name: head}, **(head_ or {})),
            "worker": seen(images={name: worker}, **(worker_ or {})),
        }
        return due.plan(
            self.images, seens, NAMES, self.settings.prune_images, needed=self.needed, check=check
        )


def kinds(plan: due.Plan) -> list[str]:
    assert not plan.problems
    return [step.kind for step in plan.steps]


class TestWhatIsLeft:
    def test_nothing_when_both_have_the_same(self) -> None:
        plan = Wanted().plan(there(ONE), there(ONE))
        assert kinds(plan) == [] and BUILT in plan.words[0]

    def test_what_is_nowhere_is_built_and_sent(self) -> None:
        plan = Wanted().plan(None, None)
        assert kinds(plan) == ["build", "ship"]
        assert [step.id for step in plan.steps] == ["build-image-head", "ship-image-worker"]

    def test_a_build_whose_script_may_do_more_is_refused(self) -> None:
        (words,) = (
            Wanted().plan(None, None, head_={"builds": {BUILT: "./x does not know it"}}).problems
        )
        assert f"{BUILT} is not built: ./x does not know it" in words

    @pytest.mark.parametrize(
        ("worker", "words"),
        [(None, "spark-b has none"), (there(TWO), "that of spark-b has other content")],
    )
    def test_what_the_worker_lacks_is_sent(self, worker: Any, words: str) -> None:
        plan = Wanted().plan(there(ONE), worker)
        assert kinds(plan) == ["ship"] and words in plan.steps[0].words
        assert plan.steps[0].identity == ONE

    def test_a_name_of_the_operators_is_never_built(self) -> None:
        (words,) = Wanted(tensorfold_service_image="mine:1").plan(None, there(ONE)).problems
        assert "mine:1 is not on spark-a" in words and "never built" in words

    def test_and_is_sent_like_any_other(self) -> None:
        assert kinds(Wanted(tensorfold_service_image="mine:1").plan(there(ONE), None)) == ["ship"]

    def test_what_is_named_by_a_digest_cannot_be_sent(self) -> None:
        wanted = Wanted(tensorfold_service_image=f"mine@sha256:{ONE}")
        assert kinds(wanted.plan(there(ONE), there(ONE))) == []
        assert "give it a tag" in wanted.plan(there(ONE), None).problems[0]

    @pytest.mark.parametrize(
        ("image", "way_out"), [("", "docker image rm"), ("mine:1", "leave tensorfold_service")]
    )
    def test_an_image_without_the_kit_is_refused(self, image: str, way_out: str) -> None:
        wanted = Wanted(tensorfold_service_image=image, engine_image_kit=KIT)
        (words,) = wanted.plan(there(ONE, "lacks a.cubin"), there(ONE)).problems
        assert "on spark-a lacks a.cubin" in words and way_out in words

    @pytest.mark.parametrize("check", [True, False])
    def test_the_list_of_a_kit_that_a_run_would_bring_is_missed_by_a_run_alone(
        self, check: bool
    ) -> None:
        wanted = Wanted(tensorfold_service_image="mine:1", engine_image_kit=KIT)
        head = there(ONE, "cannot be compared") | {"unlisted": True}
        plan = wanted.plan(head, there(ONE), check=check)
        if check:
            assert not plan.problems and not plan.steps
            assert "whether mine:1 holds the kit is seen when its checkout is made" in plan.words
        else:
            assert "mine:1 on spark-a cannot be compared" in plan.problems[0]

    def test_engines_with_one_image_share_it(self) -> None:
        entries = {
            "deepseek": {"unit": "a.service"},
            "hikari": {"unit": "b.service", "context": 4096, "max_tokens": 100},
        }
        (image,) = Wanted(tensorfold_service_engines=entries).images
        assert (image.name, image.servers) == (BUILT, ("deepseek", "hikari"))

    def test_and_it_must_hold_what_any_of_them_needs(self) -> None:
        entries = {
            "deepseek": {"unit": "a.service"},
            "hikari": {"unit": "b.service", "kit": KIT, "round_rows": 32},
        }
        wanted = Wanted(tensorfold_service_engines=entries, tensorfold_service_image="mine:1")
        (image,) = wanted.images
        assert image.engine.name == "hikari" and image.servers == ("deepseek", "hikari")


class TestADockerThatSaysNothing:
    DOWN: Mapping[str, Any] = {"docker": "Cannot connect"}
    ABSENT: Mapping[str, Any] = {"docker": "docker: not found", "installed": False}

    @pytest.mark.parametrize("check", [True, False])
    def test_silence_is_no_absence(self, check: bool) -> None:
        plan = Wanted().plan(None, None, check=check, worker_=self.DOWN)
        assert plan.problems == ("spark-b cannot be asked about images: Cannot connect",)

    def test_a_check_of_a_bare_machine_goes_on(self) -> None:
        def plan(image: str, check: bool) -> due.Plan:
            wanted = Wanted(tensorfold_service_image=image)
            return wanted.plan(None, None, check=check, head_=self.ABSENT, worker_=self.ABSENT)

        assert kinds(plan("", check=True)) == ["build", "ship"]
        assert kinds(plan("mine:1", check=True)) == ["ship"]
        assert plan("", check=False).problems


class TestPruning:
    def plan(self, *names: str, **more: Any) -> due.Plan:
        return Wanted(engine_image_prune=list(names)).plan(there(ONE), there(ONE), **more)

    def test_what_is_there_is_removed_where_it_is(self) -> None:
        plan = self.plan(
            "old:1",
            head_={"prune": {"old:1": {"there": True, "containers": []}}},
            worker_={"prune": {"old:1": {"there": False, "containers": []}}},
        )
        assert plan.prune == {"head": ("old:1",), "worker": ()}
        assert not plan.problems

    def test_the_wanted_one_is_refused(self) -> None:
        (words,) = self.plan(BUILT).problems
        assert f"names {BUILT}, but deepseek is to run it" in words

    @pytest.mark.parametrize(
        ("wanted", "asked"),
        [
            ("mine:1", "docker.io/library/mine:1"),
            ("mine", "mine:latest"),
            ("docker.io/library/mine:latest", "mine"),
            ("example.org/a/mine", "example.org/a/mine:latest"),
            ("somebody/mine:1", "docker.io/somebody/mine:1"),
        ],
    )
    def test_the_wanted_one_by_another_name_is_refused(self, wanted: str, asked: str) -> None:
        engine = Wanted(tensorfold_service_image=wanted, engine_image_prune=[asked])
        (words,) = engine.plan(there(ONE), there(ONE)).problems
        assert f"names {asked}, but deepseek is to run it" in words

    @pytest.mark.parametrize("asked", ["0123456789ab", f"sha256:{ONE}", f"any@sha256:{ONE}"])
    def test_the_wanted_one_by_its_id_is_refused(self, asked: str) -> None:
        found = {"there": True, "tags": [BUILT, "by-hand:1"], "containers": []}
        (words,) = self.plan(asked, worker_={"prune": {asked: found}}).problems
        assert f"names {asked}, but deepseek is to run it" in words

    def test_a_second_name_of_the_wanted_one_may_go(self) -> None:
        found = {"there": True, "tags": [BUILT, "by-hand:1"], "containers": []}
        plan = self.plan("by-hand:1", worker_={"prune": {"by-hand:1": found}})
        assert not plan.problems and plan.prune["worker"] == ("by-hand:1",)

    @pytest.mark.parametrize("asked", ["other.org/mine:1", "somebody/mine:1", "mine:2", "mines:1"])
    def test_one_that_only_looks_like_it_may_go(self, asked: str) -> None:
        engine = Wanted(tensorfold_service_image="mine:1", engine_image_prune=[asked])
        assert not engine.plan(there(ONE), there(ONE)).problems

    def test_one_in_use_is_refused(self) -> None:
        used = {"there": True, "containers": ["dsv41-tensorfold"]}
        (words,) = self.plan("old:1", worker_={"prune": {"old:1": used}}).problems
        assert "on spark-b it is in use by dsv41-tensorfold" in words

    def test_the_image_of_a_server_that_is_only_gone_back_to(self) -> None:
        # Down and without a container, and still it is the way back.
        wanted = Wanted(
            engine_image_prune=["vllm:1"], model_server_extra={"hikari": {"images": ["vllm:1"]}}
        )
        there_ = {"prune": {"vllm:1": {"there": True, "containers": []}}}
        (words,) = wanted.plan(there(ONE), there(ONE), head_=there_, worker_=there_).problems
        assert "engine_image_prune names vllm:1, but it is an image of hikari" in words

    def test_one_that_a_generation_starts_with_is_refused(self) -> None:
        named_ = {"old:1": "the generation that served last"}
        (words,) = self.plan("old:1", head_={"named": named_}).problems
        assert "it is the image of the generation that served last" in words


class TestOrders:
    def test_a_build_is_asked_for_what_is_declared(self) -> None:
        wanted = Wanted(engine_image_kit=KIT, tensorfold_service_round_rows=32)
        step = wanted.plan(None, None).steps[0]
        told = asking.orders(step, wanted.images, wanted.settings)
        order = BuildOrder.from_dict(json.loads(json.dumps(told["order"])))
        engine = wanted.images[0].engine
        assert (order.image, str(order.checkout)) == (engine.image, engine.checkout)
        assert order.command == ("./scripts/prepare.sh", "image")
        assert order.kit == {
            "folder": "kit",
            "in_image": "/kit",
            "manifest_sha256": "5" * 64,
            "count": 64,
        }
        assert str(order.scratch) == f"/home/ann/.cache/spark-pair/build/{engine.recipe_id}"

    def test_an_image_is_sent_over_the_rails(self) -> None:
        wanted = Wanted()
        told = asking.orders(wanted.plan(there(ONE), None).steps[0], wanted.images, wanted.settings)
        export = ExportOrder.from_dict(told["export"])
        fetch = FetchOrder.from_dict({**told["fetch"], "archive": ARCHIVE})
        assert export.identity == fetch.identity == ONE
        assert export.folder == fetch.origin == Path("/home/ann/.cache/spark-pair/images")
        assert fetch.folder == Path("/srv/bob/.cache/spark-pair/images")
        assert [rail.peer for rail in fetch.way.rails] == ["198.51.100.11", "198.51.100.139"]

    def test_without_a_rail_nothing_is_sent(self) -> None:
        wanted = Wanted()
        for one in wanted.variables.values():
            one["cx7_network_rails"] = []
        settings = settings_of(
            "spark-a",
            {
                name: {
                    **one,
                    "tensorfold_service_fabric_peer": "192.0.2.1",
                    "tensorfold_service_worker": "bob@192.0.2.1",
                }
                for name, one in wanted.variables.items()
            },
        )
        with pytest.raises(SparkPairError, match="no rail in common"):
            asking.orders(wanted.plan(there(ONE), None).steps[0], wanted.images, settings)

    def test_kits_are_looked_for_where_they_lie(self) -> None:
        wanted = Wanted(engine_image_kit=KIT, engine_image_prune=["old:1"])
        engine = wanted.images[0].engine
        head, worker = (
            asking.asked(role, wanted.images, wanted.settings) for role in ("head", "worker")
        )
        assert head["kits"][engine.image]["files"] == f"{engine.checkout}/kit"
        assert worker["kits"] == {}
        assert head["prune"] == worker["prune"] == ["old:1"]

    def test_what_may_be_built_is_looked_at_on_the_head_alone(self) -> None:
        for name, there_ in (("", [BUILT]), ("mine:1", [])):
            wanted = Wanted(tensorfold_service_image=name)
            head, worker = (
                asking.asked(role, wanted.images, wanted.settings) for role in ("head", "worker")
            )
            assert list(head["builds"]) == there_ and worker["builds"] == {}


class TestLook:
    @pytest.fixture
    def images(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
        found = Images(tmp_path / "docker")
        found.use(monkeypatch)
        return found

    def look(self, root: Path, **asked: Any) -> dict[str, Any]:
        return look(asked, current=root / "current", state=root / "state.json")

    def test_what_is_there_and_what_is_not(self, images: Images, tmp_path: Path) -> None:
        images.put("engine:1")
        images.put("old:1")
        images.used_by("old:1", "b", "a")
        (tmp_path / "scratch").mkdir()
        (tmp_path / "scratch/x.tar").write_bytes(b"123")
        found = self.look(
            tmp_path,
            images=["engine:1", "engine:2"],
            prune=["old:1", "old:2"],
            scratch=str(tmp_path / "scratch"),
        )
        assert found["images"]["engine:2"] is None
        assert len(found["images"]["engine:1"]["identity"]) == 64
        assert found["prune"] == {
            "old:1": {"there": True, "tags": ["old:1"], "containers": ["a", "b"]},
            "old:2": {"there": False, "tags": [], "containers": []},
        }
        assert (found["docker"], found["scratch"]) == ("", 3)

    @pytest.mark.usefixtures("images")
    def test_a_script_that_does_not_know_the_stage(self, tmp_path: Path) -> None:
        (tmp_path / "prepare.sh").write_text("everything\n")
        builds = {
            stage: {"checkout": str(tmp_path), "command": command}
            for stage, command in (("a:1", ["./prepare.sh", "image"]), ("b:1", ["make", "image"]))
        }
        found = self.look(tmp_path, builds=builds)["builds"]
        assert "does not seem to know a stage 'image'" in found["a:1"] and found["b:1"] == ""

    def test_a_docker_that_is_down_is_a_reason(self, images: Images, tmp_path: Path) -> None:
        images.fault("down")
        found = self.look(tmp_path, images=["engine:1"])
        assert "Cannot connect" in found["docker"] and found["installed"]

    def test_a_machine_without_docker(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        found = self.look(tmp_path, images=["engine:1"])
        assert not found["installed"] and found["docker"]

    def test_the_kit_in_an_image(self, images: Images, tmp_path: Path) -> None:
        kit = self.kit(tmp_path / "kit")
        images.put("engine:1", files={"kit/a": "content of a"})
        images.put("engine:2", files={"kit/a": "other"})
        asked = {"files": str(tmp_path / "kit"), "in_image": "/kit", **kit}
        names = ["engine:1", "engine:2"]
        found = self.look(tmp_path, images=names, kits=dict.fromkeys(names, asked))["images"]
        assert found["engine:1"]["kit"] == ""
        assert "other content in a" in found["engine:2"]["kit"]
        other = {**asked, "manifest_sha256": "0" * 64}
        found = self.look(tmp_path, images=names, kits={"engine:1": other})["images"]
        assert "cannot be compared with the declared kit" in found["engine:1"]["kit"]
        assert not found["engine:1"]["unlisted"]
        absent = {**asked, "files": str(tmp_path / "no-checkout-yet/kit")}
        found = self.look(tmp_path, images=names, kits={"engine:1": absent})["images"]
        assert found["engine:1"]["unlisted"] and found["engine:1"]["kit"]

    def kit(self, folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True)
        text = f"{hashlib.sha256(b'content of a').hexdigest()}  a\n"
        (folder / "MANIFEST").write_text(text)
        return {"manifest_sha256": hashlib.sha256(text.encode()).hexdigest(), "count": 1}

    def test_images_of_generations_that_are_needed(self, tmp_path: Path) -> None:
        for name, line in (("aaa", "IMAGE='engine:1'"), ("bbb", "IMAGE=engine:2"), ("ccc", "")):
            scripts = tmp_path / "generations" / name / "recipe/scripts"
            scripts.mkdir(parents=True)
            (scripts / "local.sh").write_text(f"# words\n{line}\nPORT=8888\n")
        (tmp_path / "current").mkdir()
        (tmp_path / "current/deepseek").symlink_to(tmp_path / "generations/aaa")
        (tmp_path / "current/candidate").symlink_to(tmp_path / "generations/ccc")
        state = tmp_path / "state.json"
        state.write_text(json.dumps({"serving": {"server": "deepseek", "generation": "bbb"}}))
        assert named(tmp_path / "current", state) == {
            "engine:1": "the generation that deepseek starts with",
            "engine:2": "the generation that served last",
        }
        state.write_text("[]")
        assert list(named(tmp_path / "current", state)) == ["engine:1"]

    def test_pruning_by_name(self, images: Images) -> None:
        for name in ("old:1", "old:2"):
            images.put(name)
        assert prune(["old:1", "old:9"], check=True) == ["old:1"]
        assert prune(["old:1", "old:9"], check=False) == ["old:1"]
        assert list(images.all) == ["old:2"]
        images.used_by("old:2", "dsv41-tensorfold")
        with pytest.raises(ImageError, match=r"old:2 is in use by dsv41-tensorfold"):
            prune(["old:2"], check=False)
        assert list(images.all) == ["old:2"]

    def test_a_generations_image_is_looked_into_before_a_switch(
        self, images: Images, tmp_path: Path
    ) -> None:
        generation = tmp_path / "generation"
        kit = self.kit(generation / "recipe/wide")
        told: dict[str, Any] = {
            "image": "engine:1",
            "kit": {
                "folder": "wide",
                "in_image": "/kit",
                "manifest_sha256": kit["manifest_sha256"],
                "files": 1,
            },
        }
        manifest = generation / "generation.json"
        manifest.write_text(json.dumps(told))
        images.put("engine:1", files={"kit/a": "content of a"})
        assert kit_problem(generation) is None
        images.put("engine:1")
        assert "engine:1 lacks a of the 1 files" in str(kit_problem(generation))
        images.fault("down")
        assert "cannot be told: Docker" in str(kit_problem(generation))
        del told["kit"]["files"]
        manifest.write_text(json.dumps(told))
        assert "does not say 'files'" in str(kit_problem(generation))
        manifest.write_text(json.dumps({**told, "kit": None}))
        assert kit_problem(generation) is None

    def test_what_is_written_is_what_a_switch_reads(self) -> None:
        (image,) = Wanted(engine_image_kit=KIT, tensorfold_service_round_rows=32).images
        told = json.loads(image.engine.generation_json)
        assert told["image"] == image.name
        assert told["kit"] == {
            "folder": "kit",
            "in_image": "/kit",
            "manifest_sha256": "5" * 64,
            "files": 64,
        }
        (stock,) = Wanted().images
        assert json.loads(stock.engine.generation_json)["kit"] is None
