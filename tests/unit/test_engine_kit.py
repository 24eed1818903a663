"""A kit: every file as its manifest says, all of them, nothing else, and in one step."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_sources
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair import engine_kit
from spark_pair.engine_kit import MANIFEST, Declared, KitError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kit"


@pytest.fixture
def declared(folder: Path) -> Declared:
    return engine_sources.kit(folder)


def archive_of(folder: Path, target: Path, prefix: str = "") -> Path:
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, prefix or ".")
    return target


def test_a_folder_and_archives_of_it_are_proven_alike(folder: Path, declared: Declared) -> None:
    files = engine_kit.prove(folder, declared)
    assert len(files) == 64
    for prefix in (".", "wide-rows-2"):
        made = archive_of(folder, folder.parent / "kit.tar.gz", prefix)
        assert engine_kit.prove(made, declared) == files
    engine_kit.pack(folder, folder.parent / "packed.tar")
    assert engine_kit.prove(folder.parent / "packed.tar", declared) == files


def _damage(folder: Path) -> None:
    (folder / "wide/rows-7.cubin").write_bytes(b"another\0")


def _lose(folder: Path) -> None:
    (folder / "wide/rows-7.cubin").unlink()


def _add(folder: Path) -> None:
    (folder / "wide/rows-64.cubin").write_bytes(b"one too many")


def _link(folder: Path) -> None:
    (folder / "wide/rows-7.cubin").unlink()
    (folder / "wide/rows-7.cubin").symlink_to("rows-8.cubin")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_damage, r"wide/rows-7\.cubin is not what its MANIFEST says"),
        (_lose, r"wide/rows-7\.cubin of its MANIFEST is missing"),
        (_add, r"wide/rows-64\.cubin is not in its MANIFEST"),
        (_link, r"rows-7\.cubin is no plain file"),
    ],
)
def test_one_bad_file_is_named_and_nothing_is_put_in_place(
    folder: Path, declared: Declared, harm: Callable[[Path], None], words: str
) -> None:
    harm(folder)
    with pytest.raises(KitError, match=words):
        engine_kit.prove(folder, declared)
    place = folder.parent / "kits/abc"
    with pytest.raises(KitError, match=words.split(" ", maxsplit=1)[0]):
        engine_kit.install(archive_of(folder, folder.parent / "kit.tar"), declared, place)
    assert list(place.parent.iterdir()) == []


def test_another_manifest_is_refused_with_both_hashes(folder: Path, declared: Declared) -> None:
    with pytest.raises(KitError, match=f"{declared.manifest_sha256}, declared is {'0' * 64}"):
        engine_kit.prove(folder, replace(declared, manifest_sha256="0" * 64))
    with pytest.raises(KitError, match="lists 64 files, declared are 63"):
        engine_kit.prove(folder, replace(declared, count=63))


def test_what_is_no_kit_is_said(tmp_path: Path, declared: Declared) -> None:
    with pytest.raises(KitError, match="nothing of that name"):
        engine_kit.prove(tmp_path / "absent", declared)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(KitError, match="no tar archive"):
        engine_kit.prove(tmp_path / "text", declared)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KitError, match=r"no readable MANIFEST"):
        engine_kit.prove(tmp_path / "empty", declared)


def test_a_kit_is_installed_as_a_whole_and_proven_at_each_look(
    folder: Path, declared: Declared
) -> None:
    place = folder.parent / "kits/abc"
    left = place.with_name("abc.new")
    left.mkdir(parents=True)
    (left / "junk").write_text("of a power cut")
    assert not engine_kit.present(declared, place)
    engine_kit.install(archive_of(folder, folder.parent / "kit.tar"), declared, place)
    assert engine_kit.present(declared, place)
    assert [path.name for path in place.parent.iterdir()] == ["abc"]
    _damage(place)
    with pytest.raises(KitError, match=r"changed after it was put there: wide/rows-7"):
        engine_kit.present(declared, place)
    assert (place / "wide/rows-7.cubin").read_bytes() == b"another\0"
    with pytest.raises(KitError, match=rf"\(sudo rm -r {place}\)"):
        engine_kit.present(declared, place)


def test_two_runs_pack_one_kit_at_the_same_time(
    folder: Path, declared: Declared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "cache/kit.tar"
    packed: list[str] = []
    real = tarfile.open

    def opened(name: Any, mode: str = "r", **options: Any) -> tarfile.TarFile:
        if mode == "w":
            packed.append(str(name))
            if len(packed) == 1:
                # Another pair's run comes, packs and is done before this one has begun to write.
                engine_kit.pack(folder, target)
        return real(name, mode, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(tarfile, "open", opened)
    engine_kit.pack(folder, target)
    assert len({*packed}) == 2
    assert engine_kit.prove(target, declared)
    assert [path.name for path in target.parent.iterdir()] == ["kit.tar"]


def test_a_packing_that_failed_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "cache/kit.tar"
    (tmp_path / "cache/kit.tar").mkdir(parents=True)  # a folder is in the way of the rename
    with pytest.raises(OSError, match="directory"):
        engine_kit.pack(folder, target)
    assert [path.name for path in target.parent.iterdir()] == ["kit.tar"]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../b", "a//b", MANIFEST, "-x", "a b"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(KitError, match="no usable path"):
        engine_kit.parse_manifest(f"{'0' * 64}  {path}\n".encode())


@pytest.mark.parametrize("path", ["../escape", "/tmp/escape"])
def test_an_archive_cannot_write_elsewhere(folder: Path, declared: Declared, path: str) -> None:
    made = folder.parent / "evil.tar"
    with tarfile.open(made, "w") as archive:
        archive.add(folder, ".")
        info = tarfile.TarInfo(path)
        archive.addfile(info)
    place = folder.parent / "kits/abc"
    with pytest.raises(KitError):
        engine_kit.install(made, declared, place)
    assert not (folder.parent / "kits/escape").exists() and not place.exists()


_PATHS = st.from_regex(
    r"[a-z0-9_][a-z0-9_.+-]{0,8}(/[a-z0-9_][a-z0-9_.+-]{0,8}){0,2}", fullmatch=True
)
_DIGESTS = st.binary(max_size=4).map(lambda data: hashlib.sha256(data).hexdigest())


@given(st.dictionaries(_PATHS, _DIGESTS))
def test_a_manifest_that_was_written_is_read_again(files: dict[str, str]) -> None:
    assert engine_kit.parse_manifest(engine_kit.manifest_text(files).encode()) == files
