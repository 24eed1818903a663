"""Putting an overlay into a checkpoint with the recipe's own tools, and proving what they wrote."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from docker_program import IMAGE, DockerProgram
from graft_host import (
    INDEX,
    OVERLAY_COMMIT,
    SHARDS,
    TOUCHED,
    GraftHost,
    digest,
    part,
)

from simulated_pair.standins.hub.hub_standin.content import Tensor
from spark_pair.jobs.shapes import JobFailedError
from spark_pair.weights import graft_disk, graft_state
from spark_pair.weights.container import ContainerError
from spark_pair.weights.graft_bench import CONTAINER
from spark_pair.weights.graft_plan import GraftError
from spark_pair.weights.graft_state import Phase
from spark_pair.weights.provenance import Artefact, Origin, everyday
from spark_pair.weights.safetensors_header import read_header
from spark_pair.weights.verify import Disk

ENGINE = Path(__file__).resolve().parents[2] / "simulated_pair/standins/engine"
TOOL = Path(__file__).resolve().parents[2] / (
    "simulated_pair/standins/recipe/tree/tools/ablit_stock_dtypes.py"
)


def layers(number: int, seed: str, *, dtype: str = "F16") -> list[Tensor]:
    """What the overlay replaces of a layer, one tensor in the type that the checkpoint has or in
    another one."""
    return [*part(number, seed), Tensor(f"layers.{number}.attn.wo_b.suh", dtype, (64,), seed)]


def stock() -> dict[str, list[Tensor]]:
    rest = [Tensor(f"layers.{number}.ffn.trellis", "I16", (70, 9)) for number in (1, 2, 3)]
    return {
        SHARDS[0]: [*layers(1, "stock"), rest[0]],
        SHARDS[1]: [*layers(2, "stock"), *layers(3, "stock"), *rest[1:]],
        SHARDS[2]: [Tensor("embed.weight", "BF16", (40, 8))],
    }


class RecipeHost(GraftHost):
    """Its overlay has one tensor a layer of another type, unless told otherwise."""

    def __init__(self, root: Path, docker: DockerProgram, *, dtype: str = "F32", **more: Any):
        overlay = [one for number in (1, 2, 3) for one in layers(number, "overlay", dtype=dtype)]
        super().__init__(root, stock=stock(), overlay=overlay, script=self.script(), **more)
        self.docker = docker
        self.recipe = root / "recipe"
        (self.recipe / "tools").mkdir(parents=True)
        text = TOOL.read_text().replace('"/opt/engine"', repr(str(ENGINE)))
        (self.recipe / "tools/stock_types.py").write_text(text)

    @staticmethod
    def script() -> str:
        return (
            f"import sys\nsys.path.insert(0, {str(ENGINE)!r})\n"
            "from tensorfold_standin.overlay import main\nraise SystemExit(main(sys.argv[1:]))\n"
        )

    def order(self, kind: str = "graft", **more: Any) -> dict[str, Any]:
        command = ["{script}", "--src", "{src}", "--wo-b", "{sidecar}", "--dst", "{dst}"]
        usual = {
            "method": "recipe",
            "tensors": 9,
            "image": IMAGE,
            "command": [sys.executable, *command],
            "dtypes_command": [sys.executable, "{recipe}/tools/stock_types.py", "{src}", "{dst}"],
            "recipe": str(self.recipe),
            "memory_bytes": 1 << 30,
        }
        return super().order(kind, **{**usual, **more})


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerProgram:
    return DockerProgram(tmp_path / "docker", monkeypatch)


@pytest.fixture
def host(tmp_path: Path, docker: DockerProgram) -> RecipeHost:
    return RecipeHost(tmp_path / "host", docker)


def check(host: RecipeHost, record: Artefact) -> None:
    """Types and shapes are the checkpoint's, bytes the overlay's where both have one type."""
    sidecar = host.cache.snapshot("own/overlay", OVERLAY_COMMIT) / "wo_b.safetensors"
    overlay = read_header(sidecar)
    for path in TOUCHED:
        now, before = read_header(host.folder / path), read_header(host.entry(path))
        assert now.tensors.keys() == before.tensors.keys()
        for key, tensor in now.tensors.items():
            assert tensor.fits(before.tensors[key])
            mine = overlay.tensors.get(key)
            if mine is None:
                assert _bytes(host.folder / path, tensor) == _bytes(
                    host.entry(path), before.tensors[key]
                )
            elif mine.fits(tensor):
                assert _bytes(host.folder / path, tensor) == _bytes(sidecar, mine)
    assert record.origin is Origin.GRAFTED and record.details["grafted"] == list(TOUCHED)
    assert not everyday(record, Disk(record.folder).stat)


def _bytes(path: Path, tensor: Any) -> bytes:
    return path.read_bytes()[tensor.start : tensor.start + tensor.size]


class TestGraft:
    def test_the_tools_write_and_everything_is_proven(self, host: RecipeHost) -> None:
        before = {path: digest(host.entry(path)) for path in SHARDS}
        words, data = host.run()
        host.take_over()
        check(host, host.provenance.load()["checkpoint"])
        assert "3 of the tensors were given the stock types" in words
        assert data["uncompared"] == 3 and len(host.docker.runs) == 2
        assert {path: digest(host.entry(path)) for path in SHARDS} == before
        assert (host.folder / SHARDS[2]).is_symlink()
        assert not (host.derived / graft_state.NEW).exists()

    def test_equal_types_need_no_second_step(self, tmp_path: Path, docker: DockerProgram) -> None:
        host = RecipeHost(tmp_path / "host", docker, dtype="F16")
        record = host.graft(dtypes_command=[], recipe="")
        check(host, record)
        assert len(docker.runs) == 1

    def test_in_place_gives_the_same_where_it_can(
        self, tmp_path: Path, docker: DockerProgram
    ) -> None:
        host = RecipeHost(tmp_path / "host", docker, dtype="F16")
        first = host.graft()
        host.undo()
        second = host.graft(method="in_place")
        assert {path: first.files[path].sha256 for path in SHARDS} == {
            path: second.files[path].sha256 for path in SHARDS
        }

    def test_the_container_sees_the_cache_and_is_limited(self, host: RecipeHost) -> None:
        host.run()
        words = " ".join(host.docker.runs[0])
        assert f"--volume {host.hf}:/hf:rw" in words and ":/recipe:ro" in words
        assert "--memory 1073741824" in words and "--network none" in words
        assert "--src /hf/hub/models--own--checkpoint/snapshots/" in words
        assert f"--dst /hf/tensorfold-dsv41/{host.derived.name}/checkpoint.new" in words

    def test_a_second_run_runs_nothing(self, host: RecipeHost) -> None:
        host.graft()
        before, runs = host.tree(), len(host.docker.runs)
        words, _ = host.run()
        assert "already, nothing was written" in words
        assert host.tree() == before and len(host.docker.runs) == runs

    def test_undone_the_cache_is_as_it_was(self, host: RecipeHost) -> None:
        files = host.tree()
        host.graft()
        record = host.undo()
        assert host.tree() == files and not host.derived.exists()
        assert record.origin is Origin.DOWNLOADED
        assert not everyday(record, Disk(record.folder).stat)


class TestInterrupted:
    def test_an_index_that_cannot_be_written_does_not_cost_the_shards(
        self, host: RecipeHost
    ) -> None:
        """The script has written every shard and fails at its last file."""
        script = self._failing("target / INDEX")
        record = host.graft(command=[sys.executable, "-c", script, "{src}", "{sidecar}", "{dst}"])
        check(host, record)
        assert len(host.docker.runs) == 2
        found = (host.folder / INDEX).lstat()
        assert stat.S_ISREG(found.st_mode) and found.st_mode & 0o777 == 0o644

    @staticmethod
    def _failing(what: str) -> str:
        return (
            f"import sys\nsys.path.insert(0, {str(ENGINE)!r})\n"
            "from pathlib import Path\nfrom tensorfold_standin.overlay import INDEX, apply\n"
            "source, sidecar, target = (Path(word) for word in sys.argv[1:])\n"
            f"apply(source, sidecar, target)\n({what}).unlink()\n"
            "raise PermissionError(13, 'Permission denied', str(target / INDEX))\n"
        )

    def test_a_shard_that_was_not_written_is_a_failure_in_words(self, host: RecipeHost) -> None:
        script = self._failing(f"target / {SHARDS[1]!r}")
        command = [sys.executable, "-c", script, "{src}", "{sidecar}", "{dst}"]
        with pytest.raises(JobFailedError, match=r"exit code 1 before all .*PermissionError"):
            host.run(command=command)
        state = graft_state.read(host.derived)
        assert state is not None and state.phase is Phase.GRAFTING
        check(host, host.graft())

    def test_after_the_first_step_only_the_second_is_run(self, host: RecipeHost) -> None:
        with pytest.raises(JobFailedError, match="exit code 7"):
            host.run(dtypes_command=[sys.executable, "-c", "raise SystemExit(7)"])
        runs = len(host.docker.runs)
        check(host, host.graft())
        assert len(host.docker.runs) == runs + 1

    def test_a_container_that_goes_on_after_a_kill_is_ended_first(self, host: RecipeHost) -> None:
        with pytest.raises(JobFailedError):
            host.run(dtypes_command=[sys.executable, "-c", "raise SystemExit(7)"])
        host.docker.leave(CONTAINER)
        first = len(host.docker.calls)
        check(host, host.graft())
        assert host.docker.calls[first] == ["rm", "--force", CONTAINER]
        assert not host.docker.there

    def test_a_disk_that_fills_meanwhile_ends_it(
        self, host: RecipeHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        really = graft_disk.check_room

        def check_room(folder: Path, count: int, floor: int) -> None:
            really(folder, count, floor if count else 1 << 60)

        monkeypatch.setattr(graft_disk, "check_room", check_room)
        sleep = [sys.executable, "-c", "import time; time.sleep(60)", "{src}", "{dst}"]
        with pytest.raises(JobFailedError, match="make room"):
            host.run(command=sleep)
        assert not host.docker.there

    def test_one_that_was_begun_can_be_undone(self, host: RecipeHost) -> None:
        before = host.tree()
        with pytest.raises(JobFailedError):
            host.run(dtypes_command=[sys.executable, "-c", "raise SystemExit(7)"])
        host.undo()
        assert host.tree() == before


class TestProof:
    @pytest.mark.parametrize(
        "key", ["layers.2.ffn.trellis", "layers.3.attn.wo_b.trellis"], ids=["other", "overlay's"]
    )
    def test_a_wrong_byte_is_found(self, host: RecipeHost, key: str) -> None:
        """Whether the tools changed what is not theirs, or did not write what is."""
        spoil = (
            "import sys\nfrom pathlib import Path\n"
            "from spark_pair.weights.safetensors_header import read_header\n"
            f"path = Path(sys.argv[2], {SHARDS[1]!r})\n"
            f"at = read_header(path).tensors[{key!r}].start\n"
            "data = bytearray(path.read_bytes())\ndata[at] ^= 1\npath.write_bytes(data)\n"
        )
        types = host.order()["dtypes_command"]
        program = f"import subprocess, sys\nsubprocess.run({types[:1]} + sys.argv[3:])\n" + spoil
        command = [sys.executable, "-c", program, "{src}", "{dst}", *types[1:]]
        with pytest.raises(JobFailedError, match=f"{SHARDS[1]} .* other bytes of {key}"):
            host.run(dtypes_command=command)
        assert not (host.folder / SHARDS[1]).exists()
        check(host, host.graft())


class TestRefused:
    def refused(self, host: RecipeHost, match: str, **more: Any) -> None:
        before = host.tree()
        with pytest.raises((GraftError, ContainerError), match=match):
            host.run(**more)
        assert host.tree() == before

    def test_no_step_for_the_types(self, host: RecipeHost) -> None:
        self.refused(host, "ablit_graft_dtypes_command, which would change that", dtypes_command=[])

    def test_no_checkout_of_the_recipe(self, host: RecipeHost) -> None:
        self.refused(host, "set ablit_graft_recipe", recipe="")

    def test_a_checkout_that_is_not_there(self, host: RecipeHost) -> None:
        missing = host.recipe.parent / "nowhere"
        self.refused(host, f"{missing}/tools/stock_types.py is not there", recipe=str(missing))
        assert not missing.exists()

    def test_a_checkout_without_the_step(self, host: RecipeHost) -> None:
        (host.recipe / "tools/stock_types.py").unlink()
        self.refused(host, "stock_types.py is not there", recipe=str(host.recipe))

    def test_another_number_of_tensors(self, host: RecipeHost) -> None:
        self.refused(host, "has 9 tensors, not 104", tensors=104)

    def test_no_image(self, host: RecipeHost) -> None:
        with pytest.raises(ContainerError, match="No such image"):
            host.run(image="other:1")

    def test_a_graft_that_was_made_in_place(self, tmp_path: Path, docker: DockerProgram) -> None:
        host = RecipeHost(tmp_path / "host", docker, dtype="F16")
        host.graft(method="in_place")
        with pytest.raises(GraftError):
            host.run()

    def test_in_place_over_one_of_the_recipe(self, host: RecipeHost) -> None:
        host.graft()
        with pytest.raises(GraftError):
            host.run(method="in_place")
