"""Two images are the same exactly when they would run alike, whichever store keeps them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.image.identity import ImageError, also_called, identity_of, inspect
from spark_pair.system import Result

LAYERS = [f"sha256:{digit * 64}" for digit in "ab"]

OVERLAY2: dict[str, Any] = {
    "Id": "sha256:" + "1" * 64,
    "RepoTags": ["engine:test"],
    "RepoDigests": [],
    "Parent": "sha256:" + "2" * 64,
    "Created": "2026-11-30T08:51:51.082894503Z",
    "DockerVersion": "26.1.5",
    "Config": {
        "Hostname": "",
        "User": "",
        "AttachStdin": False,
        "Env": ["PATH=/usr/bin:/bin"],
        "Cmd": ["tensorfold"],
        "Image": "sha256:" + "2" * 64,
        "Volumes": None,
        "WorkingDir": "",
        "Entrypoint": None,
        "OnBuild": None,
        "Labels": {"a": "1", "b": "2"},
    },
    "Architecture": "arm64",
    "Os": "linux",
    "Size": 46_912_757,
    "GraphDriver": {
        "Data": {"MergedDir": "/var/lib/docker/overlay2/3b/merged"},
        "Name": "overlay2",
    },
    "RootFS": {"Type": "layers", "Layers": LAYERS},
    "Metadata": {"LastTagTime": "2026-11-30T08:51:51.1Z"},
}
"""As Docker 26 tells with its overlay2 store."""

CONTAINERD: dict[str, Any] = {
    "Id": "sha256:" + "3" * 64,
    "RepoTags": ["engine:test"],
    "RepoDigests": ["engine@sha256:" + "3" * 64],
    "Created": "2026-11-30T08:51:51.082894503Z",
    "Config": {
        "Env": ["PATH=/usr/bin:/bin"],
        "Cmd": ["tensorfold"],
        "WorkingDir": "/",
        "Labels": {"b": "2", "a": "1"},
    },
    "Architecture": "arm64",
    "Variant": "v8",
    "Os": "linux",
    "Size": 17_000_000,
    "RootFS": {"Type": "layers", "Layers": LAYERS},
    "Descriptor": {"mediaType": "application/vnd.oci.image.index.v1+json"},
}
"""As Docker 28 tells of the same image with containerd's store: by its index."""


def changed(place: str, value: Any) -> dict[str, Any]:
    entry = copy.deepcopy(OVERLAY2)
    *folders, last = place.split(".")
    target = entry
    for name in folders:
        target = target[name]
    target[last] = value
    return entry


@pytest.mark.fault(6)
def test_both_stores_tell_of_the_same_image() -> None:
    assert OVERLAY2["Id"] != CONTAINERD["Id"]
    assert identity_of(OVERLAY2) == identity_of(CONTAINERD)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("RootFS.Layers", LAYERS[:1]),
        ("RootFS.Layers", LAYERS[::-1]),
        ("Config.Cmd", ["sh"]),
        ("Config.Entrypoint", ["/init"]),
        ("Config.Env", ["PATH=/usr/bin:/bin", "TF_DS_GRAPHS=0"]),
        ("Config.Labels", {"a": "1"}),
        ("Config.User", "nobody"),
        ("Config.WorkingDir", "/opt"),
        ("Architecture", "amd64"),
        ("Os", "windows"),
    ],
)
def test_what_would_run_otherwise_is_another_image(place: str, value: Any) -> None:
    assert identity_of(changed(place, value)) != identity_of(OVERLAY2)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("Id", "sha256:" + "9" * 64),
        ("RepoTags", ["other:name"]),
        ("Created", "2027-01-01T00:00:00Z"),
        ("Size", 1),
        ("Config.Image", "sha256:" + "9" * 64),
        ("Config.Hostname", "0123456789ab"),
        ("Config.Labels", {"b": "2", "a": "1"}),
        ("Config.Volumes", {}),
    ],
)
def test_how_it_was_made_and_kept_says_nothing(place: str, value: Any) -> None:
    assert identity_of(changed(place, value)) == identity_of(OVERLAY2)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True))
def test_layers_alone_tell_images_apart(layers: list[str]) -> None:
    entry = changed("RootFS.Layers", layers)
    assert (identity_of(entry) == identity_of(OVERLAY2)) == (layers == LAYERS)


@pytest.mark.parametrize("entry", [{}, {"RootFS": None}, {"RootFS": {"Layers": []}}])
def test_without_layers_nothing_can_be_compared(entry: dict[str, Any]) -> None:
    with pytest.raises(ImageError, match="without layers"):
        identity_of(entry)


class TestAsking:
    def answering(self, result: Result) -> Any:
        def run(argv: Sequence[str], timeout: float) -> Result:
            assert list(argv) == ["docker", "image", "inspect", "--", "engine:test"]
            return result

        return run

    def test_an_image_that_is_there(self) -> None:
        found = inspect("engine:test", self.answering(Result(0, json.dumps([OVERLAY2]), "")))
        assert found is not None
        assert (found.name, found.size) == ("engine:test", 46_912_757)
        assert found.identity == identity_of(OVERLAY2)

    @pytest.mark.parametrize(
        "words", ["Error: No such image: engine:test", "error: no such image: engine:test"]
    )
    def test_one_that_is_not_there(self, words: str) -> None:
        assert inspect("engine:test", self.answering(Result(1, "[]\n", words))) is None

    @pytest.mark.parametrize(
        ("result", "words"),
        [
            (Result(1, "", "Cannot connect to the Docker daemon"), "Cannot connect"),
            (Result(127, "", "docker: not found"), "not found"),
            (Result(0, "{broken", ""), "not understood"),
            (Result(0, "[]", ""), "not understood"),
            (Result(0, '[{"Id": "x"}]', ""), "without layers"),
        ],
    )
    def test_silence_is_no_absence(self, result: Result, words: str) -> None:
        with pytest.raises(ImageError, match=words):
            inspect("engine:test", self.answering(result))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("engine:test", "engine:test-was-01234567"),
        ("engine", "engine:latest-was-01234567"),
        ("reg.example:5000/a/engine", "reg.example:5000/a/engine:latest-was-01234567"),
        ("reg.example:5000/a/engine:1", "reg.example:5000/a/engine:1-was-01234567"),
    ],
)
def test_an_image_that_loses_its_name_stays_findable(name: str, kept: str) -> None:
    assert also_called(name, "0123456789" * 6 + "abcd") == kept
