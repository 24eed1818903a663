"""The tool's releases: their name, their archive, and how a host changes from one to the next."""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_pair import installation, release
from spark_pair.inventory import ROOT
from spark_pair.system import Result

OK = Result(0, "", "")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    shutil.copytree(
        ROOT / "spark_pair", root / "spark_pair", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_a_release_is_named_by_sources_and_requirements(checkout: Path) -> None:
    first = release.release_hash(checkout)
    (checkout / "spark_pair/__pycache__").mkdir()
    (checkout / "spark_pair/__pycache__/x.pyc").write_bytes(b"0")
    assert release.release_hash(checkout) == first
    (checkout / "spark_pair/paths.py").write_text("# changed\n")
    second = release.release_hash(checkout)
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert len({first, second, release.release_hash(checkout)}) == 3


@pytest.mark.parametrize(
    ("python", "machine"), [("3.10", "aarch64"), ("2.7", "x86_64"), ("3.12", "riscv64")]
)
def test_a_host_without_a_possible_release_is_refused(python: str, machine: str) -> None:
    with pytest.raises(release.ReleaseError):
        release.check_platform(python, machine)


def test_wheel_platforms_reach_down_from_the_hosts_glibc() -> None:
    tags = release.platform_tags("aarch64", "2.39")
    assert tags[0] == "manylinux_2_39_aarch64"
    assert tags[-2:] == ["manylinux_2_17_aarch64", "manylinux2014_aarch64"]
    with pytest.raises(release.ReleaseError):
        release.platform_tags("aarch64", "")


def test_two_hosts_of_one_kind_share_one_archive(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(*arguments: str) -> None:
        calls.append(arguments)
        folder = next(a.partition("=")[2] for a in arguments if a.startswith(("--dest", "--wheel")))
        Path(folder).mkdir(parents=True)
        (Path(folder) / f"{arguments[0]}-1-py3-none-any.whl").write_text(arguments[0])

    monkeypatch.setattr(release, "_pip", pip)
    cache = tmp_path / "cache"
    said: list[str] = []
    archives: list[Path] = []

    def build() -> None:
        archives.append(
            release.build_archive(
                checkout, cache, python="3.12", machine="aarch64", glibc="2.39", say=said.append
            )
        )

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert archives[0] == archives[1]
    assert [call[0] for call in calls] == ["download", "wheel"]
    assert "--only-binary=:all:" in calls[0]
    assert "--platform=manylinux_2_39_aarch64" in calls[0]
    with tarfile.open(archives[0]) as tar:
        assert tar.getnames() == [
            "wheels/download-1-py3-none-any.whl",
            "wheels/wheel-1-py3-none-any.whl",
        ]

    # A change of our own sources fetches nothing again, and the old archive makes room.
    (checkout / "spark_pair/paths.py").write_text("# changed\n")
    build()
    assert [call[0] for call in calls] == ["download", "wheel", "wheel"]
    assert [path.name for path in cache.glob("release-*.tar")] == [archives[2].name]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's /opt/spark-pair; its commands lie beside it."""
    links = {name: tmp_path / "bin" / name for name in installation.LINKS}
    monkeypatch.setattr(installation, "LINKS", links)
    (tmp_path / "opt").mkdir()
    return tmp_path / "opt"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    wheel = tmp_path / "spark_pair-1-py3-none-any.whl"
    wheel.write_text("wheel")
    path = tmp_path / "archive.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(wheel, arcname=f"wheels/{wheel.name}")
    return path


class FakePip:
    """Stands in for venv, pip and the new tool."""

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.argv: list[list[str]] = []

    def __call__(self, argv: Sequence[str], timeout: float) -> Result:
        self.argv.append(list(argv))
        if self.fails_at and self.fails_at in argv:
            return Result(1, "", "it broke")
        if "venv" in argv:
            (Path(argv[-1]) / "bin").mkdir(parents=True)
        if "install" in argv:
            (Path(argv[0]).parent / "spark-pair").write_text("tool")
        return OK


def install(host: Path, archive: Path, digest: str, runner: FakePip, keep: int = 3) -> list[str]:
    removed: list[str] = installation.install(
        digest, archive, keep=keep, prefix=host, runner=runner
    )["removed"]
    return removed


def test_a_release_is_installed_without_a_network_proven_and_made_current(
    host: Path, archive: Path
) -> None:
    runner = FakePip()
    install(host, archive, "a" * 12, runner)
    assert "--no-index" in runner.argv[1]
    assert runner.argv[2][1:] == ["--version"]
    assert (host / "current").readlink() == Path("releases") / ("a" * 12)
    assert installation.current_release(host) == "a" * 12
    assert installation.link_state("spark-pair", host) == "ours"
    assert installation.facts(host, runner)["complete"]


def test_a_release_for_another_python_counts_as_none(
    host: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(host, archive, "a" * 12, FakePip())
    monkeypatch.setattr(installation, "platform_words", lambda: "3.99 aarch64")
    assert not installation.facts(host, FakePip())["complete"]


def test_a_running_switch_is_seen(host: Path) -> None:
    assert installation.facts(host, FakePip())["switch_running"]
    assert not installation.facts(host, FakePip(fails_at="is-active"))["switch_running"]


def test_a_release_that_does_not_run_changes_nothing(host: Path, archive: Path) -> None:
    install(host, archive, "a" * 12, FakePip())
    with pytest.raises(installation.InstallationError, match="running it failed: it broke"):
        install(host, archive, "b" * 12, FakePip(fails_at="--version"))
    assert installation.current_release(host) == "a" * 12
    assert not (host / "releases" / ("b" * 12)).exists()


def test_an_interrupted_release_is_made_anew(host: Path, archive: Path) -> None:
    (host / "releases" / ("a" * 12) / "venv").mkdir(parents=True)
    runner = FakePip()
    install(host, archive, "a" * 12, runner)
    assert len(runner.argv) == 3
    install(host, archive, "a" * 12, runner)
    assert len(runner.argv) == 3


def test_a_foreign_command_is_not_replaced(host: Path, archive: Path) -> None:
    hf = host.parent / "bin/hf"
    hf.parent.mkdir()
    hf.write_text("the operator's own")
    install(host, archive, "a" * 12, FakePip())
    assert hf.read_text() == "the operator's own"
    (host.parent / "bin/spark-pair").unlink()
    (host.parent / "bin/spark-pair").write_text("something else")
    with pytest.raises(installation.InstallationError, match="not of this tool"):
        install(host, archive, "b" * 12, FakePip())


def test_old_releases_go_but_never_one_in_use(host: Path, archive: Path, tmp_path: Path) -> None:
    for index, letter in enumerate("abced"):
        install(host, archive, letter * 12, FakePip(), keep=10)
        os.utime(host / "releases" / (letter * 12), (index, index))
    units, proc = (tmp_path / "units", tmp_path / "transient"), tmp_path / "proc"
    for folder in units:
        folder.mkdir()
    unit = units[0] / "spark-pair-switch.service"
    unit.write_text(f"ExecStart={host}/releases/{'a' * 12}/venv/bin/spark-pair run-switch\n")
    (proc / "17").mkdir(parents=True)
    (proc / "17/cmdline").write_text(f"{host}/releases/{'b' * 12}/venv/bin/python\0x")
    # A job's program may be another's, docker for instance; its unit still ends with the tool.
    (units[1] / "spark-pair-job-cut.service").write_text(
        f"ExecStopPost=-{host}/releases/{'e' * 12}/venv/bin/spark-pair jobs ended\n"
    )
    assert installation.prune(host, keep=1, units=units, proc=proc) == ["c" * 12]
    left = sorted(path.name[0] for path in (host / "releases").iterdir())
    assert left == ["a", "b", "d", "e"]
