"""The operator's own files are proven on the controller, before anything is sent."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import engine_sources
import pytest

from spark_pair import engine_files, engine_kit
from spark_pair.engine_inputs import Kit, Patch
from spark_pair.errors import DescriptionError


class Engine:
    """The fields of an engine entry that matter here."""

    name = "deepseek"
    recipe_url = "https://me:hunter2@example.org/recipe.git"
    commit = "c" * 40
    checkout = "/var/lib/spark-pair/recipes/deepseek-cccccccccccc-12345678"

    def __init__(self, patches: tuple[Patch, ...] = (), kit: Kit | None = None) -> None:
        self.patches, self.kit = patches, kit


def prepare(tmp_path: Path, *patches: Patch, kit: Kit | None = None) -> dict[str, Any]:
    engine: Any = Engine(patches, kit)
    return engine_files.prepare(engine, tmp_path / "cache")


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    file = tmp_path / "0001.patch"
    file.write_text("diff\n")
    return Patch(str(file), engine_kit.digest(file))


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    declared = engine_sources.kit(tmp_path / "kit")
    return Kit(str(tmp_path / "kit"), declared.manifest_sha256, declared.count, "kit", "/kit")


def test_what_the_module_is_told(tmp_path: Path, patch: Patch, kit: Kit) -> None:
    made = prepare(tmp_path, patch, kit=kit)
    assert made["checkout"]["patches"] == [{"name": "0001.patch", "sha256": patch.sha256}]
    assert made["checkout"]["kit"] == {
        "manifest_sha256": kit.manifest_sha256,
        "count": 64,
        "folder": "kit",
    }
    assert "with 0001.patch and a kit of 64 files" in made["words"]
    declared = engine_kit.Declared(kit.manifest_sha256, 64)
    assert len(engine_kit.prove(Path(made["kit_archive"]), declared)) == 64


def test_an_archive_is_sent_as_it_is(tmp_path: Path, kit: Kit) -> None:
    archive = tmp_path / "kit.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(kit.source, "wide-rows")
    given = Kit(str(archive), kit.manifest_sha256, kit.count, "kit", "/kit")
    assert prepare(tmp_path, kit=given)["kit_archive"] == str(archive)


def test_addresses_are_left_to_the_head(tmp_path: Path, kit: Kit) -> None:
    patch = Patch("https://me:hunter2@example.org/40.patch?token=hunter2", "a" * 64)
    away = Kit("https://me:hunter2@example.org/kit.tar", kit.manifest_sha256, 64, "kit", "/kit")
    made = prepare(tmp_path, patch, kit=away)
    assert made["kit_archive"] is None
    assert prepare(tmp_path)["kit_archive"] is None
    assert made["checkout"]["url"] == "https://example.org/recipe.git"
    assert "with 40.patch and" in made["words"]
    assert "hunter2" not in str(made), "a run with -v shows it"


def test_another_patch_is_refused_with_variable_file_and_both_hashes(
    tmp_path: Path, patch: Patch
) -> None:
    Path(patch.source).write_text("diff --git\n")
    with pytest.raises(DescriptionError) as refused:
        prepare(tmp_path, patch)
    found = engine_kit.digest(Path(patch.source))
    for words in ("engine_image_patches of deepseek", patch.source, patch.sha256, found):
        assert words in str(refused.value)
    Path(patch.source).unlink()
    with pytest.raises(DescriptionError, match=r"0001\.patch cannot be read on this controller"):
        prepare(tmp_path, patch)


def test_a_kit_with_one_bad_file_is_refused_before_it_is_packed(tmp_path: Path, kit: Kit) -> None:
    (tmp_path / "kit/wide/rows-9.cubin").write_bytes(b"half")
    with pytest.raises(DescriptionError, match=r"engine_image_kit of deepseek.*rows-9\.cubin"):
        prepare(tmp_path, kit=kit)
    assert not (tmp_path / "cache").exists()
    Path(kit.source).rename(tmp_path / "elsewhere")
    with pytest.raises(DescriptionError, match="nothing of that name"):
        prepare(tmp_path, kit=kit)


def test_words_show_no_password_of_the_repository(tmp_path: Path) -> None:
    assert prepare(tmp_path)["words"].startswith("https://example.org/recipe.git at ")
