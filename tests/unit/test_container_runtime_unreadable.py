"""An error of the file system becomes a sentence with a host and a next step."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spark_pair.container_runtime import unreadable

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "root_squash"),
        (errno.EPERM, "root_squash"),
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "dmesg"),
    ],
)
def test_it_says_what_where_why_and_what_next(number: int, advice: str) -> None:
    error = OSError(number, os.strerror(number), "/home/spark/.cache")
    words = unreadable.sentence("spark-a", error)
    assert words.startswith(f"/home/spark/.cache on spark-a cannot be used ({os.strerror(number)})")
    assert advice in words and words.endswith("run again with --tags runtime.")


def test_an_error_without_a_file_has_words_as_well() -> None:
    assert "a file on spark-a cannot be used (odd)" in unreadable.sentence(
        "spark-a", OSError("odd")
    )


@pytest.mark.parametrize("module", ["container_runtime", "gpu_proof"])
def test_the_modules_say_it_so(module: str) -> None:
    text = (ROOT / f"library/spark_pair_{module}.py").read_text(encoding="utf-8")
    assert "except OSError as error:\n        module.fail_json(msg=unreadable.sentence(" in text
