"""A secret's file: closed to others, changed in place, its content in no message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_pair import secret_file
from spark_pair.secret_file import SecretFileError

OLD, NEW = "spark-pair: old-old-old-old-old\n", "spark-pair: new-new-new-new\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache/state/api-key"


def test_it_is_made_with_its_folders(path: Path) -> None:
    assert secret_file.write(path, OLD)
    assert path.read_text() == OLD
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_second_time_nothing_is_done(path: Path) -> None:
    secret_file.write(path, OLD)
    assert secret_file.is_as_wanted(path, OLD)
    assert not secret_file.write(path, OLD)


@pytest.mark.parametrize("content", [NEW, OLD + "another: line\n"])
def test_a_reader_that_has_it_open_sees_the_new_content(path: Path, content: str) -> None:
    secret_file.write(path, OLD)
    # What a container sees through a mount of this one file.
    with path.open() as mounted:
        assert secret_file.write(path, content)
        assert mounted.read() == content


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o400, 0o000])
def test_a_mode_that_is_wrong_is_mended(path: Path, mode: int) -> None:
    secret_file.write(path, OLD)
    path.chmod(mode)
    assert not secret_file.is_as_wanted(path, OLD)
    assert secret_file.write(path, OLD)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == OLD


def test_what_is_no_plain_file_is_left_alone(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    for attempt in (secret_file.write, secret_file.is_as_wanted):
        with pytest.raises(SecretFileError, match="api-key"):
            attempt(path, NEW)
    path.unlink()
    path.mkdir()
    with pytest.raises(SecretFileError):
        secret_file.write(path, NEW)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(SecretFileError, match="no plain file"):
        secret_file.write(path, NEW)
    assert victim.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named_without_the_secret(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SecretFileError) as caught:
        secret_file.write(tmp_path / "file/state/api-key", NEW)
    assert "file/state/api-key" in str(caught.value)
    assert "new-new" not in str(caught.value)
