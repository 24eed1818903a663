"""Before Docker is installed or started: what would that remove, or bring back onto the GPU?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_docker import FakeDocker

from spark_pair.container_runtime import mounts, packages, ready, waiting
from spark_pair.container_runtime.daemon_json import RefusedError
from spark_pair.system import Result

pytestmark = pytest.mark.fault(11)

ROOT = Path(__file__).resolve().parents[2]
NO_UNIT = {"LoadState": "not-found", "ActiveState": "inactive"}
GPU = {"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}
ALWAYS = {"RestartPolicy": {"Name": "always", "MaximumRetryCount": 0}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeDocker:
    who = mounts.Account("spark", 1000, 1000, tmp_path)
    monkeypatch.setattr(mounts, "account", lambda *_: who)
    return FakeDocker(tmp_path)


def look(fake: FakeDocker, *paths: str, check: bool = False) -> ready.Ready:
    wanted = ready.Wanted("spark", "/home/spark", paths, allow_restart=False)
    return ready.make_ready(fake.host, wanted, check=check)


def refusal(fake: FakeDocker) -> str:
    with pytest.raises(RefusedError) as refused:
        look(fake)
    assert "spark-a" in str(refused.value) and "\n" not in str(refused.value)
    return str(refused.value)


def without_docker(fake: FakeDocker, listed: str) -> None:
    fake.unit = NO_UNIT
    (fake.root / "usr/bin/dockerd").unlink()
    fake.packages = listed


class TestPackages:
    """docker.io excludes what docker-ce is made of."""

    @pytest.mark.parametrize(
        "name", ["containerd.io", "docker-ce", "docker-ce-cli", "podman-docker"]
    )
    def test_what_would_be_removed_is_named(self, fake: FakeDocker, name: str) -> None:
        without_docker(fake, f"installed {name}\nnot-installed docker-ce-rootless-extras\n")
        words = refusal(fake)
        assert f"but {name}, which" in words and "apt-get install docker-ce" in words

    def test_half_of_a_package_is_there(self, fake: FakeDocker) -> None:
        without_docker(fake, "half-configured docker-ce\n")
        assert "docker-ce" in refusal(fake)

    def test_what_was_removed_is_gone(self, fake: FakeDocker) -> None:
        without_docker(fake, "config-files docker-ce\nnot-installed containerd.io\n")
        assert look(fake).lacks == ("docker",)

    def test_packages_that_cannot_be_listed_are_not_none(self, fake: FakeDocker) -> None:
        host = fake.host
        object.__setattr__(host, "run", lambda *_: Result(2, "", "the database is locked"))
        with pytest.raises(RefusedError, match="database is locked"):
            packages.require_room(host)

    def test_the_installation_removes_and_restarts_nothing(self) -> None:
        tasks = yaml.safe_load(
            (ROOT / "roles/container_runtime/tasks/prepare.yml").read_text(encoding="utf-8")
        )
        (task,) = [one for one in tasks if "ansible.builtin.apt" in one]
        assert task["ansible.builtin.apt"]["fail_on_autoremove"] is True
        assert task["ansible.builtin.apt"]["force_apt_get"] is True
        assert task["environment"]["NEEDRESTART_MODE"] == "l"


class TestStart:
    """A stopped Docker that is started brings containers back."""

    @pytest.fixture
    def stopped(self, fake: FakeDocker) -> FakeDocker:
        fake.unit = {"ActiveState": "inactive"}
        return fake

    def container(
        self, fake: FakeDocker, name: str, settings: dict[str, Any], root: str = "var/lib/docker"
    ) -> Path:
        folder = fake.root / root / "containers" / (name * 20)
        folder.mkdir(parents=True)
        (folder / "hostconfig.json").write_text(json.dumps(settings))
        (folder / "config.v2.json").write_text(json.dumps({"Name": f"/{name}"}))
        return folder

    @pytest.mark.parametrize(
        "gpu",
        [
            GPU,
            {"Runtime": "nvidia"},
            {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]},
            {"Devices": [{"PathOnHost": "/dev/nvidia0"}]},
        ],
    )
    def test_one_with_a_gpu_is_named(self, stopped: FakeDocker, gpu: dict[str, Any]) -> None:
        self.container(stopped, "vllm", {**gpu, **ALWAYS})
        words = refusal(stopped)
        assert "GPU: vllm." in words and "docker update --restart no" in words

    @pytest.mark.parametrize(
        "settings",
        [
            ALWAYS,
            {**GPU, "RestartPolicy": {"Name": "no"}},
            {**GPU, "RestartPolicy": {"Name": ""}},
            {**GPU},
            {"DeviceRequests": None, "Devices": None, **ALWAYS},
        ],
    )
    def test_others_are_no_reason(self, stopped: FakeDocker, settings: dict[str, Any]) -> None:
        self.container(stopped, "grafana", settings)
        assert look(stopped).lacks == ("running",)

    def test_one_that_cannot_be_read_may_be_one(self, stopped: FakeDocker) -> None:
        folder = self.container(stopped, "vllm", {})
        (folder / "hostconfig.json").write_text("{")
        assert "vllm (its settings cannot be read" in refusal(stopped)

    def test_they_lie_where_the_file_says(self, stopped: FakeDocker) -> None:
        stopped.operator_wrote('{"data-root": "/data/docker"}')
        self.container(stopped, "vllm", {**GPU, **ALWAYS}, root="data/docker")
        assert "vllm" in refusal(stopped)

    def test_the_look_is_bounded(
        self, stopped: FakeDocker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(waiting, "_CONTAINERS", 1)
        self.container(stopped, "a", {})
        self.container(stopped, "b", {})
        assert "more than 1 containers" in refusal(stopped)

    def test_a_docker_that_runs_is_not_looked_at(self, fake: FakeDocker) -> None:
        self.container(fake, "vllm", {**GPU, **ALWAYS})
        fake.unit = {"UnitFileState": "disabled"}
        assert look(fake).lacks == ("boot",)


@pytest.mark.parametrize("lack", ["docker", "account"])
def test_check_mode_shows_the_directories_whatever_docker_lacks(
    fake: FakeDocker, lack: str
) -> None:
    if lack == "docker":
        without_docker(fake, "")
    fake.account_may = lack != "account"
    assert look(fake, "models").did == ()
    said = look(fake, "models", check=True)
    assert said.lacks == (lack,)
    assert said.did == (f"make {fake.root / 'models'}",)
    assert said.diff == [{"prepared": f"make {fake.root / 'models'}\n"}]
    assert not fake.called("runuser -u spark -- mkdir")
