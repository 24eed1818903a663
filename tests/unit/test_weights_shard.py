"""Cutting a rank file: the tool's own run, what proves it, what every kind of trouble leaves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from docker_program import IMAGE, DockerProgram

from simulated_pair.standins.hub.hub_standin import weights
from spark_pair.errors import DescriptionError
from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError
from spark_pair.weights import layout, shard_job
from spark_pair.weights.cache import Cache
from spark_pair.weights.container import ContainerError
from spark_pair.weights.provenance import Artefact, Held, Origin, Provenance, stat_of
from spark_pair.weights.rank_file import read_footer
from spark_pair.weights.record import Proofs
from spark_pair.weights.shard_job import Told, shard
from spark_pair.weights.shard_order import ShardOrder

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "simulated_pair/standins/engine/bin/tf-dsv41-rank-cache"
REPO, COMMIT, OVERLAY = "own/model", "45ee5d0f" + "a" * 32, "0bdc2036" + "b" * 32
EXPECTED = 1 << 18


class Host:
    """A head with a recorded checkpoint in its cache, and a Docker."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.home = root / "home"
        self.cache = Cache.of_account(self.home)
        self.work = self.home / ".cache/huggingface/tensorfold-dsv41"
        self.model = self.cache.snapshot(REPO, COMMIT)
        self.provenance = Provenance(root / "var/provenance.json")
        self.folder = root / "var/jobs/shard"
        self.folder.mkdir(parents=True)
        self.reporter = Reporter(self.folder, "r1")
        self.docker = DockerProgram(root / "docker", monkeypatch)
        self.program = TOOL
        weights.checkpoint(EXPECTED).make(self.model)
        self.record(self.model)
        self.ranks = layout.rank_files(self.work, COMMIT, None)
        self.staging = self.ranks / ".cutting-rank1"

    def record(self, folder: Path, overlay: str | None = None) -> None:
        files = {}
        for path in sorted(folder.glob("*.*")):
            found = stat_of(path)
            assert found is not None
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            files[path.name] = Held(found.size, found.mtime_ns, found.inode, 1.0, "read", digest)
        origin = Origin.GRAFTED if overlay else Origin.DOWNLOADED
        details = {"overlay": overlay} if overlay else {}
        self.provenance.record(
            Artefact("checkpoint", "repository", REPO, COMMIT, origin, 1.0, str(folder), files,
                     details)
        )  # fmt: skip

    def order(self, **changes: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "shard",
            "home": str(self.home),
            "floor_bytes": 0,
            "rank": 1,
            "model": str(self.model),
            "artefact": {
                "name": "rank1",
                "repo": REPO,
                "commit": COMMIT,
                "folder": str(self.ranks),
                "details": {"overlay": None},
            },
            "image": IMAGE,
            "command": [sys.executable, "-I", str(self.program), "{model}", "{out}", "{rank}", "2"],
            "memory_bytes": 16 << 30,
            "expected_bytes": EXPECTED,
            "wrong": [],
            **changes,
        }

    def shard(self, **changes: Any) -> tuple[str, Mapping[str, Any]]:
        order = ShardOrder.from_dict(self.order(**changes))
        return shard(order, self.reporter, Proofs(self.folder), self.provenance)

    def tool(self, text: str) -> None:
        """Let the image run this instead of the tool's stand-in."""
        self.program = self.root / "program.py"
        self.program.write_text(text)

    def runs(self) -> int:
        return len(self.docker.runs) if (self.root / "docker/calls.jsonl").exists() else 0

    def proofs(self) -> list[str]:
        path = self.folder / "verified.jsonl"
        return [line for line in path.read_text().splitlines() if line] if path.exists() else []

    def found(self) -> list[str]:
        return sorted(one.name for one in self.ranks.iterdir()) if self.ranks.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def record_cut(host: Host, data: Mapping[str, Any]) -> None:
    """What root's last step does with the proof."""
    found = stat_of(host.ranks / data["file"])
    assert found is not None
    held = Held(found.size, found.mtime_ns, found.inode, 1.0, "read", data["sha256"])
    host.provenance.record(
        Artefact("rank1", "rank_file", REPO, COMMIT, Origin.CUT, 1.0, str(host.ranks),
                 {data["file"]: held}, {"overlay": None, "index_sha256": data["index_sha256"]})
    )  # fmt: skip


class TestCut:
    def test_one_file_in_its_place_and_proven(self, host: Host) -> None:
        words, data = host.shard()
        assert host.found() == [data["file"]]
        path = host.ranks / data["file"]
        footer = read_footer(path)
        assert data["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (data["size"], data["entries"]) == (footer.size, footer.entries)
        assert data["index_sha256"] == footer.index_sha256 and data["note"] == ""
        assert words.startswith(f"rank 1 of 45ee5d0f, stock is cut and proven: {data['file']}")
        assert path.stat().st_mode & 0o777 == 0o644
        assert len(host.proofs()) == 1

    def test_the_proof_is_what_the_order_accepts(self, host: Host) -> None:
        _, data = host.shard()
        order = ShardOrder.from_dict(host.order())
        artefact = Artefact(
            "rank1", "rank_file", REPO, COMMIT, Origin.CUT, 5.0, str(host.ranks), {},
            {"overlay": None, "index_sha256": data["index_sha256"]},
        )  # fmt: skip
        held = Held(data["size"], 1, 2, 3.0, "read", data["sha256"])
        assert order.accepts(artefact, data["file"], held)
        assert not order.accepts(artefact, data["file"].replace("rank1", "rank0"), held)
        assert not order.accepts(artefact, f"../{data['file']}", held)

    def test_the_tool_is_run_as_the_recipe_does(self, host: Host) -> None:
        host.shard()
        (run,) = host.docker.runs
        volumes = [run[at + 1] for at, word in enumerate(run) if word == "--volume"]
        assert volumes == [
            f"{host.home}/.cache/huggingface:/hf:ro",
            f"{host.staging}:/out:rw",
        ]
        assert run[run.index("--memory") + 1] == str(16 << 30)
        assert run[run.index(IMAGE) + 1 :] == [
            sys.executable, "-I", str(TOOL),
            f"/hf/hub/models--own--model/snapshots/{COMMIT}",
            "/out", "1", "2",
        ]  # fmt: skip

    def test_again_nothing_is_done(self, host: Host) -> None:
        _, data = host.shard()
        record_cut(host, data)
        words, again = host.shard()
        assert words == "rank 1 of 45ee5d0f, stock is there and recorded"
        assert again["sha256"] == data["sha256"] and host.runs() == 1

    def test_what_a_kill_left_after_the_name_was_given_is_swept(self, host: Host) -> None:
        _, data = host.shard()
        record_cut(host, data)
        host.staging.mkdir()
        (host.staging / "cut.json").write_text("{}")
        host.shard()
        assert host.found() == [data["file"]] and host.runs() == 1

    def test_both_ranks_lie_in_one_folder(self, host: Host) -> None:
        host.shard()
        artefact = {**host.order()["artefact"], "name": "rank0"}
        host.shard(rank=0, artefact=artefact)
        assert [name[:5] for name in host.found()] == ["rank0", "rank1"]

    def test_a_grafted_checkpoint(self, host: Host) -> None:
        grafted = layout.grafted(host.work, COMMIT, OVERLAY)
        shutil.copytree(host.model, grafted)
        host.record(grafted, OVERLAY)
        ranks = layout.rank_files(host.work, COMMIT, OVERLAY)
        artefact = {
            "name": layout.rank_name(1, OVERLAY), "repo": REPO, "commit": COMMIT,
            "folder": str(ranks), "details": {"overlay": OVERLAY},
        }  # fmt: skip
        words, data = host.shard(model=str(grafted), artefact=artefact)
        assert (ranks / data["file"]).exists() and "with the overlay 0bdc2036" in words

    def test_a_work_folder_on_another_disk(self, host: Host, tmp_path: Path) -> None:
        host.work.mkdir(parents=True)
        host.work.rename(tmp_path / "disk")
        host.work.symlink_to(tmp_path / "disk")
        host.shard()
        assert len(host.found()) == 1
        assert len(list((tmp_path / "disk").rglob("rank1of2-*.bin"))) == 1

    def test_progress_is_what_the_tool_says(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []
        step = Reporter.step

        def noted(reporter: Reporter, words: str, total: int | None = None, done: int = 0) -> None:
            steps.append(words)
            step(reporter, words, total, done)

        monkeypatch.setattr(Reporter, "step", noted)
        host.shard()
        assert (steps[0], steps[-1]) == ("cut rank 1", "read rank 1")


class TestRefused:
    def refused(self, host: Host, words: str, **changes: Any) -> None:
        before = host.found()
        with pytest.raises(JobFailedError, match=words):
            host.shard(**changes)
        assert host.found() == before and not host.proofs() and host.runs() == 0

    def test_without_a_record_of_the_checkpoint(self, host: Host) -> None:
        host.provenance.forget("checkpoint")
        self.refused(host, "no record speaks of the checkpoint 45ee5d0f")

    def test_when_the_checkpoint_carries_an_overlay_and_stock_is_wanted(self, host: Host) -> None:
        host.record(host.model, OVERLAY)
        self.refused(host, "does not carry what 45ee5d0f, stock means")

    def test_when_a_shard_was_touched(self, host: Host) -> None:
        os.utime(next(host.model.glob("*.safetensors")), ns=(1, 1))
        self.refused(host, "was written to since it was verified, so what was cut")

    def test_when_a_stranger_is_in_the_way(self, host: Host) -> None:
        host.ranks.mkdir(parents=True)
        (host.ranks / f"rank1of2-{'0' * 20}.bin").write_bytes(b"?")
        self.refused(host, "with two files of one rank the engine does not start")

    def test_without_room(self, host: Host) -> None:
        self.refused(host, "make room and run it again", expected_bytes=1 << 60)

    def test_without_the_image(self, host: Host) -> None:
        with pytest.raises(ContainerError, match="No such image: other"):
            host.shard(image="other")
        assert not host.staging.exists()


class TestTroubles:
    def test_the_tools_words_are_told(self, host: Host) -> None:
        next(host.model.glob("*.safetensors")).write_bytes((8).to_bytes(8, "little") + b"no json!")
        host.record(host.model)
        with pytest.raises(JobFailedError, match="is not a safetensors file"):
            host.shard()
        assert host.found() == []

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "without saying which file"),
            ('print(\'{"rank": 0, "world": 2}\')', "without saying which file"),
            (
                'print(\'{"rank": 1, "world": 2, "file": "/out/x.bin", "entries": 1,'
                ' "data_bytes": 2}\')',
                "no whole rank file",
            ),
        ],
    )
    def test_a_tool_that_says_what_is_not_so(self, host: Host, text: str, words: str) -> None:
        host.tool(text)
        with pytest.raises(JobFailedError, match=words):
            host.shard()
        assert host.found() == []
        host.program = TOOL
        host.shard()

    def test_a_file_that_is_not_what_the_tool_says(self, host: Host) -> None:
        engine = TOOL.parents[1]
        host.tool(
            f"import sys; sys.path.insert(0, {str(engine)!r})\n"
            "from tensorfold_standin import rank_cache as it\n"
            "write = it.write\n"
            "it.write = lambda *words: {**write(*words), 'entries': 7}\n"
            "sys.exit(it.main(sys.argv[1:]))\n"
        )
        with pytest.raises(JobFailedError, match="has 7 tensors with"):
            host.shard()
        assert host.found() == []

    def test_the_floor_ends_the_cut(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        host.tool("import time; time.sleep(60)")
        free = iter([1 << 60])
        monkeypatch.setattr(shard_job, "_free", lambda _: next(free, 5))
        with pytest.raises(JobFailedError, match="so the cut was ended"):
            host.shard(floor_bytes=10)
        assert host.found() == []
        assert host.docker.calls[-1][:2] == ["rm", "--force"]

    def test_a_stop_ends_the_container_and_leaves_nothing(self, host: Host) -> None:
        host.tool("import time; time.sleep(60)")
        threading.Timer(0.5, host.reporter.stop_asked.set).start()
        with pytest.raises(JobStoppedError):
            host.shard()
        assert host.found() == []
        assert host.docker.calls[-1] == ["rm", "--force", "spark-pair-cut-rank1"]

    def test_the_checkpoint_changes_meanwhile(self, host: Host) -> None:
        shard_path = next(host.model.glob("*.safetensors"))
        host.tool(
            f"import os, runpy, sys; os.utime({str(shard_path)!r}, ns=(1, 1))\n"
            f"sys.argv[0] = {str(TOOL)!r}; runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        with pytest.raises(JobFailedError, match="was written to since it was verified"):
            host.shard()
        assert not [name for name in host.found() if name.endswith(".bin")]


class TestLeftOver:
    """What a run that was ended by force has left."""

    def test_a_part_of_a_cut_is_removed_and_begun_anew(self, host: Host) -> None:
        host.staging.mkdir(parents=True)
        (host.staging / ".rank1of2.partial").write_bytes(b"half")
        host.shard()
        assert len(host.found()) == 1
        assert host.docker.calls[0] == ["rm", "--force", "spark-pair-cut-rank1"]

    def test_a_whole_file_is_not_cut_again(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.end_before(host, monkeypatch, "read")
        _, data = host.shard()
        assert host.runs() == 1 and host.found() == [data["file"]]

    def test_unless_it_was_cut_from_something_else(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.end_before(host, monkeypatch, "read")
        host.shard(command=[*host.order()["command"][:1], "-B", *host.order()["command"][1:]])
        assert host.runs() == 2 and len(host.found()) == 1

    def test_or_is_not_whole_any_more(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end_before(host, monkeypatch, "read")
        path = next(host.staging.glob("*.bin"))
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(JobFailedError, match="no whole rank file"):
            host.shard()
        host.shard()
        assert host.runs() == 2 and len(host.found()) == 1

    def test_a_note_alone_is_not_believed(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.end_before(host, monkeypatch, "read")
        next(host.staging.glob("*.bin")).unlink()
        host.shard()
        assert host.runs() == 2

    def test_killed_between_the_note_and_the_name(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace = Path.replace

        def killed(path: Path, target: Path) -> Path:
            if target.parent == host.ranks:
                raise Killed
            return replace(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed)
            with pytest.raises(Killed):
                host.shard()
        assert len(host.proofs()) == 1 and host.found() == [host.staging.name]
        _, data = host.shard()
        assert host.found() == [data["file"]] and host.runs() == 1

    def end_before(self, host: Host, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        """A SIGKILL before this step."""

        def killed(*_: object) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(shard_job._Cut, method, killed)
            with pytest.raises(Killed):
                host.shard()
        assert host.found() == [host.staging.name]


class Killed(BaseException):
    """Stands for the end of the process."""


PROGRAM = """
import sys
from pathlib import Path
from spark_pair import cli, paths
paths.VAR = Path(sys.argv[1])
sys.exit(cli.main(["weights", "shard", sys.argv[2]]))
"""
SLOWLY = """
import sys, time
sys.path.insert(0, {engine!r})
from tensorfold_standin import rank_cache
write = rank_cache._copy
def copy(*words):
    time.sleep(0.002)
    write(*words)
rank_cache._copy = copy
sys.exit(rank_cache.main(sys.argv[1:]))
"""


def reached(folder: Path, pattern: str, size: int, began: float) -> bool:
    """Whether there is a file of so many bytes that this run has written."""
    found = [one for path in folder.glob(pattern) if (one := stat_of(path))]
    return any(one.size >= size and one.mtime_ns > began * 1e9 for one in found)


def test_killed_at_any_moment_the_next_run_finishes(host: Host) -> None:
    """The container outlives the job that is killed; whatever lies there is never unproven."""
    host.tool(SLOWLY.format(engine=str(TOOL.parents[1])))
    order = host.root / "order.json"
    order.write_text(json.dumps(host.order()))
    words = [sys.executable, "-c", PROGRAM, str(host.root / "var"), str(order)]
    environment = {**os.environ, "SPARK_PAIR_JOB_FOLDER": str(host.folder)}
    partial = ".rank1of2.partial"
    moments = (
        (partial, 0), (partial, 1), (partial, EXPECTED // 8), ("rank1of2-*.bin", 1),
        ("cut.json", 1),
    )  # fmt: skip
    killed = 0
    for pattern, size in moments:
        began = time.time()
        process = subprocess.Popen(
            words, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 60
        while (
            not reached(host.staging, pattern, size, began)
            and process.poll() is None
            and time.monotonic() < end
        ):
            time.sleep(0.001)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        whole = [name for name in host.found() if name.endswith(".bin")]
        for name in whole:
            assert any(f'"path": "{name}"' in line for line in host.proofs())
        if whole:
            break
    assert killed
    if not any(name.endswith(".bin") for name in host.found()):
        subprocess.run(words, env=environment, cwd=ROOT, check=True, capture_output=True)
    (name,) = (one for one in host.found() if one.endswith(".bin"))
    assert read_footer(host.ranks / name).entries > 1
    assert host.docker.there == []


class TestWrong:
    def test_a_wrong_file_is_replaced(self, host: Host) -> None:
        _, data = host.shard()
        record_cut(host, data)
        with (host.ranks / data["file"]).open("r+b") as stream:
            stream.write(b"!")
        _, again = host.shard(wrong=[data["file"]])
        assert host.found() == [data["file"]] and again["sha256"] == data["sha256"]
        assert host.runs() == 2

    def test_one_of_another_name_too(self, host: Host) -> None:
        host.ranks.mkdir(parents=True)
        old = f"rank1of2-{'0' * 20}.bin"
        (host.ranks / old).write_bytes(b"?")
        _, data = host.shard(wrong=[old])
        assert host.found() == [data["file"]]
        order = ShardOrder.from_dict(host.order(wrong=[old]))
        assert order.gone == {"rank1": frozenset({old})}

    def test_its_room_counts(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        host.ranks.mkdir(parents=True)
        old = f"rank1of2-{'0' * 20}.bin"
        (host.ranks / old).write_bytes(b"?" * EXPECTED)
        monkeypatch.setattr(shard_job, "_free", lambda _: 10)
        host.shard(wrong=[old], floor_bytes=10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "prune"}, "is of kind 'prune', not shard"),
        ({"schema": 0}, "run --tags tools"),
        ({"rank": 2}, "neither 0 nor 1"),
        ({"rank": True}, "True for rank"),
        ({"model": "here"}, "no absolute path"),
        ({"command": []}, "no command"),
        ({"command": ["x", "{model}", "{rank}"]}, "a command without {out}"),
        ({"command": "x"}, "no list of texts"),
        ({"wrong": [f"rank0of2-{'0' * 20}.bin"]}, "of another rank"),
        ({"wrong": ["../x"]}, "no name of a file"),
        ({"memory_bytes": 0}, "0 for memory_bytes"),
        ({"artefact": {}}, "an artefact that is not described"),
        ({"image": ""}, "'' for image"),
    ],
)
def test_an_order_is_refused(host: Host, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        ShardOrder.from_dict(host.order(**changes))


@pytest.mark.parametrize(
    "details", [{}, {"overlay": "0bdc2036"}, {"overlay": 1}, "none", {"overlay": ""}]
)
def test_an_artefact_says_which_overlay_it_carries(host: Host, details: Any) -> None:
    artefact = {**host.order()["artefact"], "details": details}
    with pytest.raises(DescriptionError, match="do not say which overlay"):
        ShardOrder.from_dict(host.order(artefact=artefact))


def test_what_the_tool_says_is_the_last_line_about_that_rank() -> None:
    line = '{"rank": 1, "world": 2, "file": "/out/a.bin", "entries": 3, "data_bytes": 4}'
    assert Told.of_output(f"[1]\n{line}\nnot json\n", 1) == Told("a.bin", 3, 4)
    assert Told.of_output(line, 0) is None
    assert Told.of_output(line.replace("3", '"3"'), 1) is None
    assert Told.of_output("", 1) is None
