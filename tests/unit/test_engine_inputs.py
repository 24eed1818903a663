"""What an engine is built from: every bad declaration is refused by name, every good one named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.engine_inputs import Kit, Patch, image_name, kit, patches, recipe_id
from spark_pair.errors import DescriptionError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ONE, TWO = "1" * 64, "2" * 64
KIT = {"path": "/kits/wide", "manifest_sha256": ONE}


def refused(function: Any, raw: object) -> str:
    with pytest.raises(DescriptionError) as caught:
        function("the_variable", raw)
    return str(caught.value)


@pytest.mark.parametrize("raw", [None, "", [], ()])
def test_without_patches_the_queue_is_empty(raw: object) -> None:
    assert patches("the_variable", raw) == ()


def test_patches_keep_their_order_and_know_where_they_come_from() -> None:
    first, second = patches(
        "the_variable",
        [
            {"path": "/patches/0001-rows.patch", "sha256": ONE},
            {"url": "https://example.org/0040.patch", "sha256": TWO, "path": ""},
        ],
    )
    assert (first.name, first.from_url) == ("0001-rows.patch", False)
    assert (second.name, second.from_url) == ("0040.patch", True)


@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@example.org/a/0040.patch?token=secret",
        "https://example.org/a/0040.patch#secret",
        "https://example.org/a/0040.patch/?path=/secret",
    ],
)
def test_a_name_has_nothing_of_what_may_be_a_token(url: str) -> None:
    (patch,) = patches("the_variable", [{"url": url, "sha256": ONE}])
    with_kit = kit("the_variable", {"url": url, "manifest_sha256": ONE})
    assert patch.source == url
    assert patch.name == "0040.patch" and with_kit and with_kit.name == "0040.patch"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("0001.patch", "must be a list of patches"),
        ({"path": "/p", "sha256": ONE}, "must be a list of patches"),
        (["/p"], "the_variable[0] must be a mapping"),
        ([{"path": "/p", "sha256": ONE, "strip": 1}], "unknown key 'strip'"),
        ([{"sha256": ONE}], "either a path on this controller or a url"),
        ([{"path": "/p", "url": "https://example.org/p", "sha256": ONE}], "and not both"),
        ([{"path": "patches/p", "sha256": ONE}], "an absolute path on this controller"),
        ([{"path": "/a\nb", "sha256": ONE}], "an absolute path on this controller"),
        ([{"path": 5, "sha256": ONE}], "an absolute path on this controller"),
        ([{"url": "file:///p", "sha256": ONE}], "an http or https address"),
        ([{"url": "https://example.org/a b", "sha256": ONE}], "an http or https address"),
        ([{"path": "/p"}], "the_variable[0].sha256 must be a sha256"),
        ([{"path": "/p", "sha256": ONE[:-1]}], "must be a sha256"),
        ([{"path": "/p", "sha256": "A" * 64}], "must be a sha256"),
        ([{"path": "/p", "sha256": ONE + "\n"}], "must be a sha256"),
        ([{"path": "/p", "sha256": int(ONE)}], "must be a sha256"),
        (
            [{"path": "/a.patch", "sha256": ONE}, {"path": "/b.patch", "sha256": ONE}],
            "the_variable[1] is the same patch as an earlier entry (b.patch)",
        ),
    ],
)
def test_a_wrong_queue_is_refused_by_entry(raw: object, said: str) -> None:
    assert said in refused(patches, raw)


@pytest.mark.parametrize("raw", [None, "", {}])
def test_without_a_kit_there_is_none(raw: object) -> None:
    assert kit("the_variable", raw) is None


def test_a_kit_has_its_usual_places() -> None:
    assert kit("the_variable", KIT) == Kit("/kits/wide", ONE, 64, "kit", "/kit")
    other = kit("the_variable", {**KIT, "count": "3", "folder": "a/b", "in_image": "opt/kit"})
    assert other == Kit("/kits/wide", ONE, 3, "a/b", "/opt/kit")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"count": 0}, "above 0"),
        ({"count": "064"}, "above 0"),
        ({"count": True}, "above 0"),
        ({"count": 64.0}, "above 0"),
        ({"folder": "/kit"}, "a plain path below"),
        ({"folder": "../kit"}, "a plain path below"),
        ({"folder": "a/../../b"}, "a plain path below"),
        ({"folder": ".git"}, "a plain path below"),
        ({"folder": 5}, "a plain path below"),
        ({"in_image": "/"}, "an absolute path in the image"),
        ({"in_image": "/a b"}, "an absolute path in the image"),
        ({"in_image": ["/kit"]}, "an absolute path in the image"),
        ({"manifest_sha256": None}, "the_variable.manifest_sha256 must be a sha256"),
        ({"path": None}, "either a path"),
        ({"files": 64}, "unknown key 'files'"),
    ],
)
def test_a_wrong_kit_is_refused_by_key(changes: dict[str, object], said: str) -> None:
    assert said in refused(kit, {**KIT, **changes})


def test_a_kit_that_is_no_mapping_is_refused() -> None:
    assert "must be a mapping" in refused(kit, ["/kits/wide"])


def test_the_stock_recipe_is_named_by_its_commit_alone() -> None:
    assert recipe_id(COMMIT, (), None) == COMMIT[:12]
    assert image_name(recipe_id(COMMIT, (), None)) == f"tensorfold-dsv41:{COMMIT[:12]}"


def test_whatever_goes_in_changes_the_name() -> None:
    a, b = Patch("/a", ONE), Patch("/b", TWO)
    kits = [
        None,
        Kit("/kit", ONE, 64, "kit", "/kit"),
        Kit("/kit", TWO, 64, "kit", "/kit"),
        Kit("/kit", ONE, 63, "kit", "/kit"),
        Kit("/kit", ONE, 64, "other", "/kit"),
        Kit("/kit", ONE, 64, "kit", "/other"),
    ]
    queues: list[tuple[Patch, ...]] = [(), (a,), (a, b), (b, a)]
    names = {recipe_id(COMMIT, queue, one) for queue in queues for one in kits}
    assert len(names) == len(queues) * len(kits)


@given(st.text("abc/", min_size=1, max_size=9), st.text("abc/", min_size=1, max_size=9))
def test_where_the_files_come_from_changes_nothing(here: str, there: str) -> None:
    names = {
        recipe_id(COMMIT, (Patch(place, ONE),), Kit(place, TWO, 64, "kit", "/kit"))
        for place in (here, there)
    }
    assert len(names) == 1
