"""A build command that its script may not understand is never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pair.image.stage_word import knows, problem

IGNORES = """#!/bin/bash
# usage: prepare.sh [image|send]    image) makes "image" alone
log() { echo "$1"; }
docker image inspect x
docker load <image.tar
for image in a b; do log "$image"; done
kind=image
build_image
"""


@pytest.mark.parametrize(
    "text",
    [
        "case $1 in\n  image) build ;;\nesac\n",
        'for stage in "$@"; do\n case $stage in\n  image | send) "do_$stage" ;;\n esac\ndone\n',
        "case ${1:-all} in (send|image) build ;; esac\n",
        "[[ $1 == image ]] && build\nexit\n",
        'if [ "${1}" = "image" ]; then build; fi\n',
        "import sys\nif sys.argv[1] == 'image': build()\n",
        'case "$1" in "image" | send) build ;; esac\n',
        "case $1 in send) send ;; image) build ;; esac\n",
        'test "$1" = image && build\n',
    ],
)
def test_a_script_that_compares_its_argument_knows_the_stage(text: str) -> None:
    assert knows(text, "image")


@pytest.mark.parametrize(
    "text",
    [
        IGNORES,
        "build\n",
        "case $KIND in image) build ;; esac\n",  # nothing of it comes from the arguments
        "case $1 in my-image) build ;; images) ;; image-all) ;; esac\n",
        'log() { echo "$1"; }\nlog "1/3 (build the image)"\n',
        'log() { echo "$*"; }\ndocker save image | ssh "$WORKER" docker load\n',
        'say() { echo "$1"; }\ndocker inspect --type "image" x\n',
        'die() { echo "$1"; exit 1; }\ndie "no space (and the image)"\n',
        'log() { echo "$1"; }\nlog "the kit is baked (in image)"\n',
        "import sys\nname = sys.argv[0]\nkind = 'image'\n",
    ],
)
def test_one_that_does_not_is_told(text: str) -> None:
    assert not knows(text, "image")


def test_the_stand_in_knows_its_stages() -> None:
    root = Path(__file__).resolve().parents[2]
    script = root / "simulated_pair/standins/recipe/tree/scripts/prepare.sh"
    assert all(knows(script.read_text(), stage) for stage in ("image", "send", "graft", "ranks"))
    assert not knows(script.read_text(), "container")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "recipe/scripts").mkdir(parents=True)
    (tmp_path / "recipe/scripts/prepare.sh").write_text(IGNORES)
    (tmp_path / "other.sh").write_text(IGNORES)
    return tmp_path / "recipe"


def test_the_refusal_names_both_ways_out(checkout: Path) -> None:
    for script in ("./scripts/prepare.sh", "scripts/prepare.sh"):
        said = problem(checkout, [script, "image"])
        assert "'image'" in said and "engine_image_build_command" in said
        assert "tensorfold_service_image" in said


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "./scripts/prepare.sh image"],
        ["./scripts/prepare.sh"],
        ["./scripts/prepare.sh", "--only-image"],
        ["./scripts/absent.sh", "image"],
        ["../other.sh", "image"],
        ["/bin/true", "image"],
        ["make", "image"],
    ],
    ids=" ".join,
)
def test_any_other_command_is_what_the_operator_says(checkout: Path, command: list[str]) -> None:
    assert problem(checkout, command) == ""
