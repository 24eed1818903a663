"""What a repository holds at a commit, and which of it is wanted."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.weights.manifest import (
    File,
    Manifest,
    ManifestError,
    Selector,
    Source,
)

COMMIT = "1bae0e1088993b9b82de08f59de5be5a34e42170"
REPO = "owner/name"
SHA1, SHA256 = "a" * 40, "b" * 64

OVERLAY = (
    "apply_mia29_wo_b_graft.py",
    "exl3_wo_b_l10_35_mia29.safetensors",
    "EXL3_MIA29_ABLIT_META.json",
    "README.md",
)


def manifest(*paths: str) -> Manifest:
    return Manifest(REPO, COMMIT, tuple(File(path, 1, SHA1) for path in paths))


def source(**more: Any) -> dict[str, Any]:
    return {
        "name": "engram",
        "repo": REPO,
        "revision": COMMIT[:8],
        "files": ["*.json", {"pattern": "model-*", "count": 2}],
        "hosts": ["head", "worker"],
        **more,
    }


@given(content=st.binary(max_size=300))
def test_a_small_file_is_proven_by_gits_name_for_it(content: bytes) -> None:
    name = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    file = File("a", len(content), name)
    hasher = file.hasher()
    hasher.update(content)
    assert (file.proof, file.etag, hasher.hexdigest()) == ("git_sha1", name, name)


def test_a_large_file_is_proven_by_its_sha256() -> None:
    content = b"large"
    file = File("a", len(content), SHA1, hashlib.sha256(content).hexdigest(), "c" * 64)
    hasher = file.hasher()
    hasher.update(content)
    assert (file.proof, file.etag) == ("sha256", hasher.hexdigest())


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../up", "a/../../b", "a//b", "./a", "a/", "a\0b", ".."]
)
def test_a_path_that_could_leave_its_folder_is_refused(path: str) -> None:
    with pytest.raises(ManifestError, match="not a path inside a repository"):
        File(path, 1, SHA1)


@pytest.mark.parametrize("path", ["-a.bin", "a b/c", "..a", "a/.b", "ä"])
def test_odd_names_are_fine(path: str) -> None:
    assert File(path, 1, SHA1).path == path


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"size": -1}, "-1 for a size"),
        ({"size": True}, "True for a size"),
        ({"size": "12"}, "'12' for a size"),
        ({"git_sha1": "x"}, "'x' for git_sha1"),
        ({"git_sha1": None}, "None for git_sha1"),
        ({"sha256": SHA256.upper()}, "for sha256"),
        ({"xet_hash": "../../x"}, "for xet_hash"),
    ],
)
def test_what_is_no_size_or_hash_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        File.from_dict({"path": "a", "size": 1, "git_sha1": SHA1, **more})


@given(
    st.dictionaries(
        st.text("ab/. -", min_size=1, max_size=6).filter(
            lambda path: not {"", ".", ".."} & set(path.split("/"))
        ),
        st.tuples(
            st.integers(0, 10**12), st.none() | st.just(SHA256), st.none() | st.just("c" * 64)
        ),
        max_size=8,
    )
)
def test_a_manifest_survives_json(files: dict[str, tuple[int, str | None, str | None]]) -> None:
    made = Manifest(
        REPO,
        COMMIT,
        tuple(File(path, size, SHA1, sha, xet) for path, (size, sha, xet) in files.items()),
    )
    again = Manifest.from_dict(json.loads(json.dumps(made.as_dict())))
    assert again == made
    assert [file.path for file in made.files] == sorted(files)
    assert made.total == sum(size for size, _, _ in files.values())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "no manifest"),
        ({"repo": "name", "commit": COMMIT, "files": []}, "not owner/name"),
        ({"repo": "../x", "commit": COMMIT, "files": []}, "not owner/name"),
        ({"repo": REPO, "commit": "main", "files": []}, "not a commit"),
        ({"repo": REPO, "commit": COMMIT, "files": [{}]}, "does not describe a file"),
        ({"repo": REPO, "commit": COMMIT, "files": [3]}, "does not describe a file"),
        (
            {"repo": REPO, "commit": COMMIT, "files": 2 * [File("a", 1, SHA1).as_dict()]},
            "lists a path twice",
        ),
    ],
)
def test_what_is_no_manifest_is_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        Manifest.from_dict(data)


def test_files_are_selected_over_the_whole_path() -> None:
    held = manifest("b/model-1", "a.json", "b/x.json", "model-2")
    chosen = held.select([Selector("*.json", 2), Selector("model-*"), Selector("a.json")])
    assert [file.path for file in chosen] == ["a.json", "b/x.json", "model-2"]
    assert held.part(chosen).total == 3
    assert held.file("a.json").size == 1
    with pytest.raises(ManifestError, match="has no file b/nothing"):
        held.file("b/nothing")


@pytest.mark.fault(33)
def test_every_selector_that_misses_is_named() -> None:
    held = manifest(*OVERLAY)
    with pytest.raises(ManifestError) as error:
        held.select([Selector("*mia29*"), Selector("*.md", 2), Selector("mia29"), Selector("x")])
    words = str(error.value)
    assert "'*.md' matches 1 files, not 2" in words
    # The pattern that failed by hand; the files that were meant are named.
    assert "nothing matches 'mia29' (there is EXL3_MIA29_ABLIT_META.json" in words
    assert "nothing matches 'x'" in words
    assert "'*mia29*'" not in words


def test_a_source_is_read_from_variables_and_survives_json() -> None:
    made = Source.from_dict(source(gated=True, enabled=False))
    assert made.files == (Selector("*.json"), Selector("model-*", 2))
    assert (made.hosts, made.gated, made.enabled) == (("head", "worker"), True, False)
    assert Source.from_dict(json.loads(json.dumps(made.as_dict()))) == made
    assert Source.from_dict(source()).enabled


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"revision": "main"}, "never a branch"),
        ({"revision": "45ee5d"}, "at least its first 7"),
        ({"revision": 45000000}, "in quotes"),
        ({"repo": "name"}, "not owner/name"),
        ({"name": "A b"}, "its name must be"),
        ({"files": []}, "names no file"),
        ({"files": "*.json"}, "not a list"),
        ({"files": [3]}, "neither a pattern"),
        ({"files": [""]}, "no pattern"),
        ({"files": [{"pattern": "a", "number": 2}]}, "neither a pattern"),
        ({"files": [{"pattern": "a", "count": 0}]}, "say how many files"),
        ({"hosts": ["spark-033f"]}, "head, worker or both"),
        ({"hosts": []}, "head, worker or both"),
        ({"gated": "yes"}, "neither true nor false"),
        ({"token": "x"}, "unknown keys: token"),
    ],
)
def test_a_source_that_cannot_be_is_refused_by_name(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words) as error:
        Source.from_dict(source(**more))
    assert "files" in more or repr(more.get("name", "engram")) in str(error.value)


def test_a_source_that_lacks_something_is_refused() -> None:
    data = source()
    del data["revision"], data["hosts"]
    with pytest.raises(ManifestError, match="lacks hosts, revision"):
        Source.from_dict(data)
