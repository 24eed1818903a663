"""What containers mount belongs to the account before Docker makes it as root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_pair.container_runtime import mounts
from spark_pair.container_runtime.daemon_json import RefusedError
from spark_pair.container_runtime.docker import Host
from spark_pair.system import Result

pytestmark = pytest.mark.fault(11)

PATHS = (".cache/huggingface", ".cache/engine/logs")


class Machine:
    """Whoever runs this test stands for root or for the account, as `files_of` says."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.given: list[Path] = []
        self.made: list[Path] = []
        self.writable: set[Path] = set()
        self._patch = monkeypatch
        self.host = Host("spark-a", self._run, Path("/"))
        self.files_of("account")
        monkeypatch.setattr(mounts, "_give_back", lambda path, _: self.given.append(path))

    def files_of(self, owner: str) -> None:
        """Let everything that this test makes look like the files of `root`, or of somebody."""
        me = os.getuid()
        uid = me if owner == "account" else me + 1
        self.who = mounts.Account("spark", uid, uid, self.home)
        self._patch.setattr(mounts, "ROOT_UID", me if owner == "root" else me + 2)

    def mend(self, *paths: str, check: bool = False) -> mounts.Mended:
        return mounts.mend(self.host, self.who, paths or PATHS, check=check)

    def _run(self, argv: Sequence[str], timeout: float) -> Result:
        assert tuple(argv[:4]) == ("runuser", "-u", "spark", "--") and timeout > 0
        if argv[4] == "test":
            return Result(0 if Path(argv[-1]) in self.writable else 1, "", "")
        self.made.append(Path(argv[-1]))
        done = subprocess.run(argv[4:], capture_output=True, text=True, check=False)
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "home").mkdir()
    return Machine(tmp_path / "home", monkeypatch)


def test_what_is_missing_is_made_by_the_account_with_the_way_to_it(machine: Machine) -> None:
    mended = machine.mend()
    names = [".cache", ".cache/huggingface", ".cache/engine", ".cache/engine/logs"]
    assert machine.made == [machine.home / name for name in names]
    assert len(mended.did) == 4 and not mended.notes
    assert machine.mend() == mounts.Mended((), ())


def test_check_mode_says_the_same_and_makes_nothing(machine: Machine) -> None:
    said = machine.mend(check=True)
    assert not list(machine.home.iterdir())
    assert machine.mend().did == said.did


def test_a_directory_that_docker_made_is_given_back_alone(machine: Machine) -> None:
    (machine.home / ".cache/huggingface").mkdir(parents=True)
    machine.files_of("root")
    mended = machine.mend(".cache/huggingface")
    assert machine.given == [machine.home / ".cache", machine.home / ".cache/huggingface"]
    assert not mended.notes, "the listed directory itself is no leftover of root"


def test_what_root_left_inside_is_said_with_the_command(machine: Machine) -> None:
    (machine.home / ".cache/huggingface/hub").mkdir(parents=True)
    machine.files_of("root")
    mended = machine.mend(".cache/huggingface")
    assert len(mended.notes) == 1
    assert f"sudo chown -R spark: {machine.home}/.cache/huggingface" in mended.notes[0]
    assert machine.home / ".cache/huggingface/hub" not in machine.given


def test_a_directory_that_the_account_may_write_to_is_left_with_its_owner(machine: Machine) -> None:
    (machine.home / "shared").mkdir()
    machine.files_of("root")
    machine.writable = {machine.home / "shared"}
    assert machine.mend("shared") == mounts.Mended((), ())
    assert not machine.given


def test_somebody_elses_directory_is_refused(machine: Machine) -> None:
    (machine.home / "data").mkdir()
    machine.files_of("somebody")
    with pytest.raises(RefusedError, match=r"spark-a.*sudo chown spark: "):
        machine.mend("data")
    assert not machine.given


def test_a_link_to_another_disk_is_kept(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (machine.home / "models").symlink_to(tmp_path / "disk")
    assert machine.mend("models", "models/hub").did == (f"make {machine.home}/models/hub",)
    assert (machine.home / "models").is_symlink()
    assert (tmp_path / "disk/hub").is_dir()


def test_root_gives_nothing_away_that_a_link_leads_to(machine: Machine, tmp_path: Path) -> None:
    # Whoever owns the home could point the link at /etc.
    (tmp_path / "etc").mkdir()
    (machine.home / "models").symlink_to(tmp_path / "etc")
    machine.files_of("root")
    with pytest.raises(RefusedError, match=str(tmp_path / "etc")):
        machine.mend("models")
    assert not machine.given


def test_a_link_to_a_disk_that_is_not_mounted_is_refused(machine: Machine) -> None:
    (machine.home / "models").symlink_to("/nowhere/at/all")
    with pytest.raises(RefusedError, match=r"/nowhere/at/all.*mount"):
        machine.mend("models/hub")
    assert not machine.made


def test_a_file_in_the_way_is_refused_before_anything_is_made(machine: Machine) -> None:
    (machine.home / "models").write_text("")
    with pytest.raises(RefusedError, match="no directory"):
        machine.mend(".cache", "models")
    assert not machine.made


@pytest.mark.parametrize("path", ["/data/hf", "../elsewhere", "a/../../b", "", "."])
def test_paths_outside_the_home_are_refused(machine: Machine, path: str) -> None:
    with pytest.raises(RefusedError, match="below spark_home"):
        machine.mend(path)


def test_an_account_that_cannot_make_it_is_told(machine: Machine) -> None:
    machine.host = Host("spark-a", lambda *_: Result(1, "", "mkdir: Permission denied"))
    with pytest.raises(RefusedError, match="Permission denied"):
        machine.mend("models")


def test_no_account_and_no_home_are_refused(machine: Machine) -> None:
    with pytest.raises(RefusedError, match="spark_user"):
        mounts.account(machine.host, "nobody-of-that-name", str(machine.home))
    with pytest.raises(RefusedError, match="spark_home"):
        mounts.account(machine.host, "root", str(machine.home / "gone"))


def test_giving_back_follows_no_link(tmp_path: Path) -> None:
    mine = mounts.Account("spark", os.getuid(), os.getgid(), tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mounts._give_back(tmp_path / "real", mine)
    with pytest.raises(OSError):
        mounts._give_back(tmp_path / "link", mine)
    shutil.rmtree(tmp_path / "real")
