"""Running a program in the engine's image: what it sees, how it is stopped, what is left."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from docker_program import IMAGE, DockerProgram

from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobStoppedError
from spark_pair.weights import container
from spark_pair.weights.container import Container, ContainerError, Mount


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerProgram:
    return DockerProgram(tmp_path / "docker", monkeypatch)


def made(*command: str, image: str = IMAGE, mounts: tuple[Mount, ...] = ()) -> Container:
    return Container("spark-pair-x", image, command, mounts, memory_bytes=1 << 30)


class TestRun:
    def test_what_it_says_comes_back(self, docker: DockerProgram) -> None:
        lines: list[str] = []
        text = "import sys; print('out'); print('a\\nb', file=sys.stderr); sys.exit(3)"
        ended = container.carry_out(made(sys.executable, "-c", text), Reporter(), lines.append)
        assert (ended.code, ended.out, ended.last_lines) == (3, "out", ("a", "b"))
        assert lines == ["a", "b"] and not ended.ok and ended.words() == "a / b"

    def test_the_call_is_limited_and_named(self, docker: DockerProgram) -> None:
        container.carry_out(made("/bin/true", mounts=(Mount(docker.home, "/hf"),)), Reporter())
        words = " ".join(docker.runs[0])
        for part in (
            "run --rm --name spark-pair-x --pull never --network none --user ",
            "--memory 1073741824 --memory-swap 1073741824",
            f"--volume {docker.home}:/hf:ro {IMAGE} /bin/true",
        ):
            assert part in words

    def test_what_an_earlier_run_left_is_removed_first(self, docker: DockerProgram) -> None:
        docker.leave("spark-pair-x")
        container.carry_out(made("/bin/true"), Reporter())
        assert docker.calls[0] == ["rm", "--force", "spark-pair-x"] and not docker.there

    def test_a_stop_ends_the_container(self, docker: DockerProgram) -> None:
        reporter = Reporter()
        text = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(60)"

        def stop(_: str) -> None:
            threading.Timer(0.1, reporter.stop_asked.set).start()

        with pytest.raises(JobStoppedError):
            container.carry_out(made(sys.executable, "-c", text), reporter, stop)
        assert docker.calls[-1] == ["rm", "--force", "spark-pair-x"] and not docker.there

    def test_an_image_that_is_not_there_is_said(self, docker: DockerProgram) -> None:
        with pytest.raises(ContainerError, match=r"does not start x in other:1: .*No such image"):
            container.carry_out(made("x", image="other:1"), Reporter())

    def test_no_docker_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ContainerError, match="docker"):
            container.carry_out(made("x"), Reporter())


class TestPlaces:
    def test_everything_below_one_folder_is_one_mount(self, tmp_path: Path) -> None:
        (tmp_path / "hf/hub/x").mkdir(parents=True)
        mounts = container.cache_mounts(tmp_path / "hf", [tmp_path / "hf/hub"])
        assert mounts == (Mount(tmp_path / "hf", "/hf"),)
        assert container.inside(mounts, tmp_path / "hf/hub/x") == "/hf/hub/x"

    def test_a_place_on_another_disk_is_mounted_too(self, tmp_path: Path) -> None:
        (tmp_path / "disk/hub/x").mkdir(parents=True)
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf/hub").symlink_to(tmp_path / "disk/hub")
        mounts = container.cache_mounts(tmp_path / "hf", [tmp_path / "hf/hub"], writable=True)
        assert [(one.target, one.writable) for one in mounts] == [
            ("/hf", True),
            (str(tmp_path / "hf"), True),
            (str(tmp_path / "disk/hub"), True),
        ]
        inside = container.inside(mounts, tmp_path / "hf/hub/x")
        assert inside == str(tmp_path / "disk/hub/x")

    def test_a_link_is_relative_where_both_ends_move_together(self, tmp_path: Path) -> None:
        root = tmp_path / "hf"
        (root / "work").mkdir(parents=True)
        text = container.link_text(root / "hub/blob", root / "work", root)
        assert text == "../hub/blob"
        elsewhere = tmp_path / "disk/blob"
        assert container.link_text(elsewhere, root / "work", root) == str(elsewhere)

    def test_what_a_container_does_not_see_is_refused(self, tmp_path: Path) -> None:
        mounts = container.cache_mounts(tmp_path / "hf", [])
        with pytest.raises(ContainerError, match="outside of everything"):
            container.inside(mounts, tmp_path / "other/x")
