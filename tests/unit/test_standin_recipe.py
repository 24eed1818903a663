"""The recipe's stand-in: its commits, and the patches and the kit that somebody may have for it."""

from __future__ import annotations

import getpass
import subprocess
import sys
from pathlib import Path

import pytest
from engine_sources import git, without_runuser

from spark_pair import engine_checkout, engine_kit
from spark_pair.engine_checkout import Kit, Patch, Wanted

RECIPE = Path(__file__).resolve().parents[2] / "simulated_pair/standins/recipe"
HEAD = (RECIPE / "HEAD.txt").read_text().strip()
QUEUE = ("0001-round-rows.patch", "0002-long-prompts.patch")
ALIEN = "0003-written-for-another-commit.patch"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("recipe") / "recipe.git"
    built = subprocess.run(
        [str(RECIPE / "build.sh"), str(target)], check=True, capture_output=True, text=True
    )
    assert built.stdout.strip() == HEAD, "write what build.sh prints into HEAD.txt"
    return target


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, engine_kit.Declared]:
    folder = tmp_path_factory.mktemp("kit")
    made = subprocess.run(
        [sys.executable, str(RECIPE / "make_kit.py"), str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder, engine_kit.Declared(made.stdout.strip(), 64)


def checkout(repository: Path, tmp_path: Path, *names: str, **more: Kit) -> Path:
    """Make a checkout with these patches, as the plays do."""
    queue = tuple(Patch(name, engine_kit.digest(RECIPE / "patches" / name)) for name in names)
    for patch in queue:
        patch.file(tmp_path).write_bytes((RECIPE / "patches" / patch.name).read_bytes())
    wanted = Wanted(
        tmp_path / "made", str(repository), HEAD, getpass.getuser(), queue, patch_folder=tmp_path,
        **more,
    )  # fmt: skip
    engine_checkout.make(wanted, without_runuser)
    return wanted.path


def refuses_rows(folder: Path, rows: str) -> bool:
    """Whether start.sh says no to this number of rows; it always ends at its look at CONTEXT."""
    settings = {"WORKER": "x@x", "ROUND_ROWS": rows, "CONTEXT": "no number"}
    done = subprocess.run(
        ["bash", "start.sh"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    refused = [name for name in settings if f"ERROR: {name} is" in done.stderr]
    assert len(refused) == 1, done.stderr
    return refused == ["ROUND_ROWS"]


def test_there_are_several_commits(repository: Path) -> None:
    tags = git(repository, "tag").split()
    assert tags == ["v1", "v2", "v3"]
    assert [git(repository, "show", f"{tag}:VERSION") for tag in tags] == ["1", "2", "3"]


def test_the_stock_start_knows_16_rows_and_the_patched_one_16_to_48(
    repository: Path, tmp_path: Path
) -> None:
    for name in ("stock", "patched"):
        (tmp_path / name).mkdir()
    stock = checkout(repository, tmp_path / "stock")
    assert [refuses_rows(stock, rows) for rows in ("16", "17", "32")] == [False, True, True]
    patched = checkout(repository, tmp_path / "patched", *QUEUE)
    rows = ("15", "17", "32", "48", "49")
    assert [refuses_rows(patched, one) for one in rows] == [True, False, False, False, True]


def test_the_alien_patch_does_not_apply_alone_nor_after_the_others(
    repository: Path, tmp_path: Path
) -> None:
    for names in ((ALIEN,), (*QUEUE, ALIEN)):
        with pytest.raises(engine_checkout.CheckoutError, match=r"start\.sh, hunk @@ -35,7"):
            checkout(repository, tmp_path, *names)


def test_the_kit_is_always_the_same_and_whole(
    repository: Path, tmp_path: Path, kit: tuple[Path, engine_kit.Declared]
) -> None:
    folder, declared = kit
    assert len(engine_kit.prove(folder, declared)) == 64
    made = checkout(repository, tmp_path, *QUEUE, kit=Kit(declared, "kit", folder))
    assert (made / "kit/wide/rows-32-linear.cubin").is_file()
    again = tmp_path / "again"
    subprocess.run([sys.executable, str(RECIPE / "make_kit.py"), str(again)], check=True)
    assert (again / "MANIFEST").read_text() == (folder / "MANIFEST").read_text()
