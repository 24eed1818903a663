"""daemon.json is the operator's: one entry is added, everything else stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.container_runtime import daemon_json
from spark_pair.container_runtime.daemon_json import Place, RefusedError

pytestmark = pytest.mark.fault(11)

LEAVES = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
RUNTIMES = st.dictionaries(st.text(), VALUES, max_size=3)
CONFIGS = st.dictionaries(st.text().filter(lambda key: key != "runtimes"), VALUES, max_size=6)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config = draw(CONFIGS)
    if draw(st.booleans()):
        items = [*config.items(), ("runtimes", draw(RUNTIMES))]
        config = dict(draw(st.permutations(items)))
    return config


@given(configs())
def test_a_merge_keeps_every_key_and_the_order(config: dict[str, Any]) -> None:
    merged = daemon_json.merged(config)
    assert [key for key in merged if key in config] == list(config)
    assert set(merged) - set(config) <= {"runtimes"}
    assert all(merged[key] == config[key] for key in config if key != "runtimes")
    before = config.get("runtimes", {})
    assert list(merged["runtimes"])[: len(before)] == list(before)
    assert all(merged["runtimes"][name] == before[name] for name in before)
    assert daemon_json.has_runtime(merged)


@given(configs(), st.sampled_from([None, 2, "\t", 4]))
def test_a_merge_is_idempotent_through_its_text(
    config: dict[str, Any], indent: int | str | None
) -> None:
    text = json.dumps(config, indent=indent)
    once = daemon_json.render(daemon_json.merged(daemon_json.parse(text)), text)
    assert daemon_json.render(daemon_json.merged(daemon_json.parse(once)), once) == once
    assert daemon_json.parse(once) == daemon_json.merged(config)


@pytest.mark.parametrize("indent", [2, 3, "\t"])
def test_the_indentation_stays(indent: int | str) -> None:
    text = json.dumps({"debug": False}, indent=indent) + "\n"
    merged = daemon_json.render(daemon_json.merged(daemon_json.parse(text)), text)
    assert merged.splitlines()[1] == text.splitlines()[1] + ","


@pytest.mark.parametrize("text", ["", " \n", "{}"])
def test_a_file_without_settings_is_one(text: str) -> None:
    assert daemon_json.parse(text) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n "http-proxy": "http://me:secret@proxy"\n "debug": true}', "line 3, column 2"),
        ("[]", "JSON object"),
        ('{"runtimes": []}', "'runtimes'"),
        ('{"debug": true, "debug": false}', "'debug' is there twice"),
        ('{"shutdown-timeout": NaN}', "NaN"),
    ],
)
def test_what_cannot_be_merged_is_refused_without_showing_it(text: str, words: str) -> None:
    with pytest.raises(RefusedError) as refused:
        daemon_json.parse(text)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "trouble"),
    [
        ({"path": "nvidia-container-runtime"}, None),
        ({"path": "/usr/bin/nvidia-container-runtime.legacy", "runtimeArgs": []}, None),
        (
            {"runtimeType": "x", "options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}},
            None,
        ),
        ({"path": "/opt/old/nvidia-container-runtime"}, "not on the machine"),
        ({"path": "runc"}, "runs runc, which is not NVIDIA's"),
        ({"runtimeArgs": []}, "names no program"),
        (None, "names no program"),
        ("nvidia-container-runtime", "names no program"),
    ],
)
def test_an_entry_that_is_there_is_used_or_refused_but_never_replaced(
    entry: Any, trouble: str | None
) -> None:
    config = {"runtimes": {"nvidia": entry}}
    found = daemon_json.conflict(config, lambda name: not name.startswith("/opt"))
    assert (found is None) == (trouble is None)
    assert trouble is None or trouble in str(found)
    assert daemon_json.merged(config) == config


def test_only_runtimes_are_shown() -> None:
    shown = daemon_json.runtimes_part(
        {"proxies": {"http-proxy": "http://me:secret@proxy"}, "runtimes": {"a": {"path": "a"}}}
    )
    assert json.loads(shown) == {"runtimes": {"a": {"path": "a"}}}


def accept(_: Path) -> None:
    """Find nothing wrong."""


def test_a_replaced_file_keeps_its_mode_and_the_bytes_from_before(tmp_path: Path) -> None:
    place = Place(tmp_path / "daemon.json")
    place.path.write_text("first")
    place.path.chmod(0o640)
    place.replace("second", accept)
    assert place.path.read_text() == "second"
    assert place.path.stat().st_mode & 0o777 == 0o640
    assert place.kept.read_text() == "first"
    assert place.kept.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in tmp_path.iterdir()} == {place.path.name, place.kept.name}


def test_each_change_keeps_what_was_there_before_it(tmp_path: Path) -> None:
    place = Place(tmp_path / "daemon.json")
    for number in range(6):
        place.path.write_text(f"operator's {number}")
        place.replace(f"ours {number}", accept)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir() if path != place.path}
    assert kept == {
        "daemon.json.before-spark-pair": "operator's 5",
        "daemon.json.before-spark-pair.1": "operator's 4",
        "daemon.json.before-spark-pair.2": "operator's 3",
    }
    assert len(kept) == daemon_json.KEPT


def merge(place: Place) -> None:
    old = place.read() or ""
    place.replace(daemon_json.render(daemon_json.merged(daemon_json.parse(old)), old), accept)


@pytest.mark.parametrize("old", [b"\xef\xbb\xbf{}\r\n", b'{\r\n "debug": true}', b"", b"{}\n"])
def test_what_is_put_back_is_the_same_to_the_byte(tmp_path: Path, old: bytes) -> None:
    place = Place(tmp_path / "daemon.json")
    place.path.write_bytes(old)
    merge(place)
    assert place.path.read_bytes() != old
    assert place.put_back()
    assert place.path.read_bytes() == old
    assert {path.name for path in tmp_path.iterdir()} == {place.path.name, place.kept.name}
    assert not place.put_back()


def test_a_file_that_was_edited_since_is_not_put_back(tmp_path: Path) -> None:
    place = Place(tmp_path / "daemon.json")
    place.path.write_text("{}")
    merge(place)
    edited = place.path.read_text().replace("{", '{"debug": true, ', 1)
    place.path.write_text(edited)
    assert not place.put_back()
    assert place.path.read_text() == edited


def test_a_refused_file_leaves_nothing_behind(tmp_path: Path) -> None:
    place = Place(tmp_path / "daemon.json")
    place.path.write_text("first")

    def refuse(beside: Path) -> None:
        assert beside.read_text() == "second" and beside.parent == tmp_path
        raise RefusedError("no")

    with pytest.raises(RefusedError):
        place.replace("second", refuse)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"daemon.json": "first"}


def test_a_new_file_has_nothing_to_keep(tmp_path: Path) -> None:
    place = Place(tmp_path / "docker/daemon.json")
    assert place.read() is None
    merge(place)
    assert place.path.stat().st_mode & 0o777 == 0o644
    assert not place.kept.exists()
    assert place.put_back()
    assert not place.path.exists()


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real = tmp_path / "elsewhere/docker.json"
    real.write_text("first")
    place = Place(tmp_path / "daemon.json")
    place.path.symlink_to(real)
    place.replace("second", accept)
    assert place.path.is_symlink() and real.read_text() == "second"
    assert place.kept.read_text() == "first"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(RefusedError, match="UTF-8"):
        Place(tmp_path / "daemon.json").read()
