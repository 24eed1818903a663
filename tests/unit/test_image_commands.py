"""`spark-pair image`, as its jobs and a person at the machine call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from docker_images import Images
from fake_pair import FakePair

from spark_pair import cli
from spark_pair import description as descriptions
from spark_pair.jobs.inside import FOLDER, RUN
from spark_pair.jobs.shapes import JobResult, read_result

IMAGE = "tensorfold-dsv41:0123456789ab"


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
    found = Images(tmp_path / "docker")
    found.use(monkeypatch)
    return found


class Job:
    """A job as systemd runs it: its folder, its order, its secrets."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = root / "job"
        self.folder.mkdir()
        self.secrets = root / "secrets"
        self.secrets.mkdir()
        monkeypatch.setenv(FOLDER, str(self.folder))
        monkeypatch.setenv(RUN, "r1")
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(self.secrets))

    def run(self, verb: str, order: dict[str, Any]) -> tuple[int, JobResult]:
        (self.folder / "order.json").write_text(json.dumps(order))
        code = cli.main(["image", verb])
        result = read_result(self.folder, "r1")
        assert result is not None
        return code, result


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_a_build_is_handed_its_settings_as_a_secret(
    images: Images, job: Job, tmp_path: Path
) -> None:
    (tmp_path / "recipe").mkdir()
    build = tmp_path / "recipe/build"
    build.write_text(f'#!/bin/sh\n{images.home}/docker make "$IMAGE" scripts\n')
    build.chmod(0o755)
    order = {
        "schema": 1,
        "kind": "image_build",
        "home": str(tmp_path),
        "floor_bytes": 0,
        "image": IMAGE,
        "checkout": str(tmp_path / "recipe"),
        "scratch": str(tmp_path / "scratch/one"),
        "command": ["./build"],
        "kit": None,
        "expected_bytes": 0,
    }
    code, result = job.run("build", order)
    assert code != 0 and "was given no settings" in result.message
    (job.secrets / "local-sh").write_text("WORKER=bob@192.0.2.12\nHF_TOKEN=secret\n")
    code, result = job.run("build", order)
    assert code == 0 and result.data["image"] == IMAGE, result.message
    settings = "WORKER=bob@192.0.2.12\nHF_TOKEN=secret\n"
    assert images.all[IMAGE]["files"]["scripts/local.sh"] == settings
    assert "secret" not in (job.folder / "order.json").read_text()


@pytest.mark.parametrize("verb", ["build", "export", "fetch"])
def test_an_order_that_is_none_ends_the_job_in_words(job: Job, images: Images, verb: str) -> None:
    code, result = job.run(verb, {"schema": 1, "kind": "graft"})
    assert code != 0 and not result.ok and "is of kind 'graft'" in result.message


def test_the_images_of_the_servers_on_this_host(
    images: Images,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(descriptions, "load", lambda _: FakePair().description)
    assert cli.main(["image"]) == 0
    assert capsys.readouterr().out == "image:1  is not here\n"
    images.put("image:1")
    assert cli.main(["image", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["image:1"]["size"] == 1000
    assert cli.main(["image"]) == 0
    assert told["image:1"]["identity"][:12] in capsys.readouterr().out
    images.fault("down")
    assert cli.main(["image"]) == 10
    assert "Cannot connect" in capsys.readouterr().err
