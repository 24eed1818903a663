"""An image is built from a checkout in an empty environment, and believed only when it is there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from docker_images import Images

from spark_pair.engine_settings import Place, launch_text
from spark_pair.errors import DescriptionError
from spark_pair.image import build_job, kit
from spark_pair.image.build_job import build, environment
from spark_pair.image.identity import ImageError
from spark_pair.image.order import BuildOrder
from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError
from spark_pair.system import run_plainly

IMAGE = "tensorfold-dsv41:0123456789ab"
LOCAL_SH = "WORKER=bob@192.0.2.12\n"
FILES = {"gemm.cubin": "wide rows", "sub/graph.cubin": "a graph"}


def listed(files: Mapping[str, str]) -> str:
    return "".join(
        f"{hashlib.sha256(text.encode()).hexdigest()}  {path}\n" for path, text in files.items()
    )


class Machine:
    """A head with a checkout whose script is given by the test."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images = Images(root / "docker")
        self.images.use(monkeypatch)
        self.home = root / "home"
        self.checkout = root / "recipe"
        (self.checkout / "scripts").mkdir(parents=True)
        (self.checkout / "scripts/local.sh").write_text("WORKER=stale\n")
        self.kit: dict[str, Any] | None = None
        self.changes: dict[str, Any] = {}
        # The command's own environment has no PATH of the test's.
        self.docker = self.images.home / "docker"

    def script(self, text: str) -> None:
        path = self.checkout / "build"
        known = "case $1 in image) ;; *) exit 2 ;; esac"
        path.write_text(f"#!/bin/bash\nset -e\n{known}\n{text}\n")
        path.chmod(0o755)

    def with_kit(self, files: Mapping[str, str] = FILES, **changes: Any) -> None:
        for path, text in files.items():
            place = self.checkout / "kit" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        manifest = self.checkout / "kit/MANIFEST"
        manifest.write_text(listed(files))
        self.kit = {
            "folder": "kit",
            "in_image": "/opt/kit",
            "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
            "count": len(files),
            **changes,
        }

    @property
    def order(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "image_build",
            "home": str(self.home),
            "floor_bytes": 0,
            "image": IMAGE,
            "checkout": str(self.checkout),
            "scratch": str(self.home / ".cache/spark-pair/build/0123456789ab"),
            "command": ["./build", "image"],
            "kit": self.kit,
            "expected_bytes": 0,
            **self.changes,
        }

    def build(self, reporter: Reporter | None = None) -> tuple[str, Mapping[str, Any]]:
        order = BuildOrder.from_dict(json.loads(json.dumps(self.order)))
        return build(order, reporter or Reporter(), LOCAL_SH)

    def failing(self) -> str:
        with pytest.raises(JobFailedError) as caught:
            self.build()
        assert IMAGE not in self.images.all
        self.nothing_left()
        return str(caught.value)

    def nothing_left(self) -> None:
        folder = self.home / ".cache/spark-pair/build"
        assert [path.name for path in folder.glob("*")] in ([], ["0123456789ab.log"])
        assert not self.images.containers


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path, monkeypatch)
    found.script(f'{found.docker} make "$IMAGE" scripts build')
    return found


@pytest.fixture
def _roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a copy that holds a file named root be what this account cannot remove."""
    real = shutil.rmtree

    def rmtree(path: Any, **options: Any) -> None:
        if not (Path(path) / "recipe/root").exists():
            real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)


class TestBuilding:
    def test_it_is_built_under_its_name_with_the_wanted_settings(self, machine: Machine) -> None:
        words, data = machine.build()
        assert words.startswith(f"{IMAGE} is built")
        assert (data["image"], len(data["identity"])) == (IMAGE, 64)
        files = machine.images.all[IMAGE]["files"]
        assert files["scripts/local.sh"] == LOCAL_SH
        machine.nothing_left()

    def test_the_checkout_itself_is_never_touched(self, machine: Machine) -> None:
        machine.script(
            f'echo "# changed" >>build; rm -r scripts; {machine.docker} make "$IMAGE" build'
        )
        before = (machine.checkout / "build").read_text()
        machine.build()
        assert (machine.checkout / "build").read_text() == before
        assert (machine.checkout / "scripts/local.sh").read_text() == "WORKER=stale\n"

    def test_one_that_is_there_is_not_built_again(self, machine: Machine) -> None:
        machine.images.put(IMAGE)
        machine.script("exit 9")
        assert machine.build()[0].startswith(f"{IMAGE} is there already")

    def test_the_command_finds_nothing_but_the_name_in_its_environment(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TF_DS_PREFILL_INTERLEAVE_MS", "999")
        monkeypatch.setenv("PORT", "1")
        machine.script(f'env -0 >environment; {machine.docker} make "$IMAGE" environment')
        machine.build()
        told = machine.images.all[IMAGE]["files"]["environment"].split("\0")
        names = {line.partition("=")[0] for line in told if line} - {"PWD", "OLDPWD", "SHLVL", "_"}
        assert names == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "IMAGE"}

    def test_it_is_the_environment_of_a_start(self) -> None:
        found = environment(Path("/home/ann"), IMAGE)
        place = Place("ann", "/home/ann", "bob", "/srv/bob", peer_rail=None)
        told = launch_text(place).rpartition("env -i ")[2].replace("\\\n", " ").split()[:-1]
        launch = dict(word.split("=", 1) for word in told)
        assert launch.keys() == found.keys() - {"IMAGE"}
        for name in ("HOME", "SHELL", "PATH", "LANG"):
            assert launch[name] == found[name]

    def test_settings_are_seen_by_the_account_alone(self, machine: Machine) -> None:
        machine.script(f'stat -c %a scripts/local.sh >mode; {machine.docker} make "$IMAGE" mode')
        machine.build()
        assert machine.images.all[IMAGE]["files"]["mode"] == "600\n"

    def test_what_it_says_is_shown_and_kept(self, machine: Machine, tmp_path: Path) -> None:
        machine.script(
            "printf 'step 1\\rstep 2\\n'; echo -e '\\e[31mlinking\\e[0m'; "
            f'{machine.docker} make "$IMAGE" build'
        )
        steps: list[str] = []

        class Listening(Reporter):
            def step(self, words: str, total: int | None = None, done: int = 0) -> None:
                steps.append(words)

        machine.build(Listening())
        said = [words.partition(": ")[2] for words in steps if ": " in words]
        assert [*said] == ["step 1", "step 2", "linking"]
        log = machine.home / ".cache/spark-pair/build/0123456789ab.log"
        assert "linking" in log.read_text() and log.stat().st_mode & 0o777 == 0o600


class TestFailing:
    def test_an_end_without_an_image_is_a_failure(self, machine: Machine) -> None:
        machine.script("echo all is well")
        words = machine.failing()
        assert f"ended well, but there is no image {IMAGE}" in words and ".log" in words

    def test_a_command_that_fails_is_told_with_its_last_words(self, machine: Machine) -> None:
        machine.script("echo compiling; echo 'ld: cannot find -lcuda' >&2; exit 3")
        assert "./build image failed: compiling / ld: cannot find -lcuda" in machine.failing()

    def test_a_command_that_is_not_there(self, machine: Machine) -> None:
        (machine.checkout / "build").unlink()
        with pytest.raises(Exception, match=r"\./build cannot be run: No such file"):
            machine.build()
        machine.nothing_left()

    def test_a_script_that_does_not_know_the_stage_is_not_run(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        # It would do everything that it can do, beside whatever serves.
        (machine.checkout / "build").write_text(f"#!/bin/bash\ntouch {tmp_path}/ran\n")
        words = machine.failing()
        assert "does not seem to know a stage 'image'" in words
        assert not (tmp_path / "ran").exists()

    def test_without_room_nothing_is_begun(self, machine: Machine) -> None:
        machine.changes = {"expected_bytes": 1 << 60}
        assert "make room" in machine.failing()
        assert not [words for words in machine.images.calls if words[0] == "make"]

    def test_a_disk_that_fills_up_ends_the_build(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine.script("sleep 60")
        monkeypatch.setattr(build_job, "_WATCH_SECONDS", 0.0)
        rooms = iter([10])
        monkeypatch.setattr(build_job, "free_bytes", lambda _: next(rooms, 0))
        machine.changes = {"floor_bytes": 5}
        assert "so the build was ended" in machine.failing()

    def test_a_stop_ends_everything_that_it_has_started(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        machine.script(f"sleep 60 & echo $! >{tmp_path}/child; wait")
        reporter = Reporter()

        def stop() -> None:
            while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
                time.sleep(0.01)
            reporter.stop_asked.set()

        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(JobStoppedError):
            machine.build(reporter)
        stopping.join()
        machine.nothing_left()
        assert _gone(int((tmp_path / "child").read_text()))

    def test_what_a_killed_build_left_is_cleared_first(self, machine: Machine) -> None:
        left = Path(machine.order["scratch"]) / "recipe/locked"
        left.mkdir(parents=True)
        (left / "file").touch()
        left.chmod(0o500)
        machine.build()
        machine.nothing_left()

    @pytest.mark.usefixtures("_roots")
    def test_files_of_roots_in_the_copy_spoil_no_good_build(self, machine: Machine) -> None:
        machine.script(f'touch root; {machine.docker} make "$IMAGE" build')
        words, _ = machine.build()
        assert f"{IMAGE} is built" in words
        scratch = machine.order["scratch"]
        assert f"sudo rm -r {scratch}" in words

    @pytest.mark.usefixtures("_roots")
    def test_nor_hide_why_a_bad_one_failed(self, machine: Machine) -> None:
        machine.script("touch root; echo 'no such header'; exit 3")
        with pytest.raises(JobFailedError, match="failed: no such header"):
            machine.build()

    @pytest.mark.usefixtures("_roots")
    def test_what_is_left_of_them_is_named_with_what_removes_it(self, machine: Machine) -> None:
        left = Path(machine.order["scratch"]) / "recipe/root"
        left.mkdir(parents=True)
        with pytest.raises(ImageError, match=f"sudo rm -r {machine.order['scratch']}"):
            machine.build()

    def test_docker_without_an_answer_is_no_absence(self, machine: Machine) -> None:
        machine.images.fault("down")
        with pytest.raises(Exception, match="Cannot connect to the Docker daemon"):
            machine.build()


def _gone(process: int) -> bool:
    """Whether a process has ended; whoever reaps it may not have come yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class TestKit:
    def test_an_image_with_the_whole_kit(self, machine: Machine) -> None:
        machine.with_kit()
        machine.script(f'mkdir opt; cp -r kit opt/; {machine.docker} make "$IMAGE" opt')
        assert machine.build()[0].startswith(f"{IMAGE} is built")
        machine.nothing_left()

    def test_an_image_without_it_loses_its_name(self, machine: Machine) -> None:
        machine.with_kit()
        words = machine.failing()
        assert "lacks gemm.cubin, sub/graph.cubin of the 2 files of the kit in /opt/kit" in words
        assert "its name was taken away again" in words

    def test_half_of_it(self, machine: Machine) -> None:
        machine.with_kit()
        machine.script(
            "mkdir opt; cp -r kit opt/; rm opt/kit/gemm.cubin; echo >opt/kit/sub/graph.cubin; "
            f'{machine.docker} make "$IMAGE" opt'
        )
        words = machine.failing()
        assert "lacks gemm.cubin of the 2 files" in words
        assert "has other content in sub/graph.cubin" in words

    def test_one_that_was_there_before_keeps_its_name(self, machine: Machine) -> None:
        machine.with_kit()
        machine.images.put(IMAGE)
        with pytest.raises(JobFailedError, match=f"docker image rm {IMAGE}"):
            machine.build()
        assert IMAGE in machine.images.all

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"manifest_sha256": "0" * 64}, "engine_image_kit declares 0000"),
            ({"count": 64}, "names 2 files, and engine_image_kit declares 64"),
            ({"folder": "elsewhere"}, "cannot be read: No such file"),
        ],
    )
    def test_a_kit_that_is_not_the_declared_one(
        self, machine: Machine, changes: dict[str, Any], words: str
    ) -> None:
        machine.with_kit(**changes)
        with pytest.raises(DescriptionError, match=words):
            machine.build()
        assert IMAGE not in machine.images.all

    def test_a_look_that_was_killed_leaves_no_container(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        removed: list[str] = []

        def runner(argv: Any, timeout: float) -> Any:
            done = run_plainly(argv, timeout)
            if argv[1] == "ps":
                gone = 2**22 + 1
                return type(done)(0, f"old {gone}\nmine {os.getpid()}\n", "")
            if argv[1] == "rm":
                removed.append(argv[-1])
            return done

        machine.images.put(IMAGE, files={"kit/a": "b"})
        found = kit.read_out(IMAGE, "/kit", runner)
        assert found == {"a": hashlib.sha256(b"b").hexdigest()}
        assert removed == ["old", "c0"]


@pytest.mark.parametrize(
    "changes",
    [
        {"command": []},
        {"command": "./build"},
        {"checkout": "recipe"},
        {"scratch": "/home/a/../b"},
        {"image": ""},
        {"kit": {}},
        {"floor_bytes": -1},
        {"schema": 2},
        {"kind": "image_fetch"},
        {"more": 1},
    ],
    ids=str,
)
def test_an_order_that_is_none_is_refused(machine: Machine, changes: dict[str, Any]) -> None:
    with pytest.raises(DescriptionError, match="a build's order"):
        BuildOrder.from_dict({**machine.order, **changes})
