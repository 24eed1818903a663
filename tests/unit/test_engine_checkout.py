"""The recipe's checkout: the commit, the declared patches, the kit, and nothing else."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from engine_sources import START, commit, git, kit, patch_of, without_runuser

from spark_pair import engine_checkout, engine_kit
from spark_pair.engine_checkout import CheckoutError, Kit, Patch, Wanted
from spark_pair.system import Result

FIRST, SECOND = START.replace("line 5\n", "line five\n"), START.replace("line 20\n", "line XX\n")


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    commit(tmp_path / "origin", {"start.sh": "old\n"})
    commit(
        tmp_path / "origin",
        {"start.sh": START, ".gitignore": "scripts/local.sh\n.env\n*.log\n", "scripts/x": "1\n"},
    )
    return tmp_path / "origin"


@pytest.fixture
def patches(tmp_path: Path, origin: Path) -> dict[str, Patch]:
    folder = tmp_path / "patches"
    folder.mkdir()
    found = {}
    for name, change in {
        "one": {"start.sh": FIRST},
        "two": {"start.sh": SECOND, "tools.py": "new\n"},
        "clash": {"start.sh": START.replace("line 5\n", "line V\n")},
    }.items():
        sha256 = patch_of(origin, folder / "x", change)
        (folder / "x").rename(folder / f"{sha256}.patch")
        found[name] = Patch(f"{name}.patch", sha256)
    return found


@pytest.fixture
def wanted(tmp_path: Path, origin: Path, patches: dict[str, Patch]) -> Wanted:
    return Wanted(
        path=tmp_path / "recipes/deepseek-abc",
        url=str(origin),
        commit=git(origin, "rev-parse", "HEAD"),
        owner=getpass.getuser(),
        patches=(patches["one"], patches["two"]),
        kit=Kit(kit(tmp_path / "kit"), "kit", tmp_path / "kit"),
        patch_folder=tmp_path / "patches",
    )


def make(wanted: Wanted) -> Wanted:
    engine_checkout.make(wanted, without_runuser)
    return wanted


def leaves(wanted: Wanted) -> list[str]:
    folder = wanted.path.parent
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_status_equals_exactly_the_declared_patches(wanted: Wanted) -> None:
    assert not engine_checkout.check(wanted, without_runuser)
    make(wanted)
    assert engine_checkout.check(wanted, without_runuser)
    assert git(wanted.path, "rev-parse", "HEAD") == wanted.commit
    said = git(wanted.path, "status", "--porcelain", "--untracked-files=all")
    assert said.splitlines() == ["M  start.sh", "A  tools.py"]
    both = START.replace("line 5\n", "line five\n").replace("line 20\n", "line XX\n")
    assert (wanted.path / "start.sh").read_text() == both
    assert len(list((wanted.path / "kit/wide").iterdir())) == 64
    assert leaves(wanted) == [wanted.path.name]


def test_a_stock_checkout_is_an_older_commit_without_anything(wanted: Wanted, origin: Path) -> None:
    stock = replace(wanted, commit=git(origin, "rev-parse", "HEAD^"), patches=(), kit=None)
    make(stock)
    assert engine_checkout.check(stock, without_runuser)
    assert git(stock.path, "status", "--porcelain", "--ignored") == ""
    assert (stock.path / "start.sh").read_text() == "old\n"


def test_a_commit_on_no_branch_is_found(wanted: Wanted, origin: Path) -> None:
    git(origin, "checkout", "-q", "--detach")
    alone = commit(origin, {"start.sh": START, "more": "x\n"})
    git(origin, "update-ref", "refs/pull/40/head", alone)
    git(origin, "checkout", "-q", "main")
    make(replace(wanted, commit=alone))
    assert (wanted.path / "more").exists()


def test_a_patch_that_does_not_apply_names_itself_and_the_hunk(
    wanted: Wanted, patches: dict[str, Patch]
) -> None:
    with pytest.raises(CheckoutError) as failed:
        make(replace(wanted, patches=(patches["one"], patches["clash"])))
    assert "clash.patch does not apply" in str(failed.value)
    assert "start.sh, hunk @@ -3,7 +3,7 @@" in str(failed.value)
    assert leaves(wanted) == []


def test_a_patch_on_the_host_is_not_trusted(wanted: Wanted) -> None:
    file = wanted.patches[0].file(wanted.patch_folder)
    file.write_text(file.read_text() + "\n")
    with pytest.raises(CheckoutError, match=r"one\.patch .* has sha256 "):
        make(wanted)
    file.unlink()
    with pytest.raises(CheckoutError, match=r"one\.patch is not in"):
        make(wanted)
    assert leaves(wanted) == []


def test_an_unknown_commit_names_the_variables_but_no_password(wanted: Wanted) -> None:
    with pytest.raises(CheckoutError, match="tensorfold_service_recipe_commit"):
        make(replace(wanted, commit="f" * 40))
    with pytest.raises(CheckoutError) as failed:
        make(replace(wanted, url="file://me:secret@/nowhere"))
    assert "secret" not in str(failed.value)
    assert leaves(wanted) == []


def test_a_password_of_the_repository_is_not_left_in_the_checkout(wanted: Wanted) -> None:
    make(replace(wanted, url=f"file://me:hunter2@localhost{wanted.url}"))
    config = (wanted.path / ".git/config").read_text()
    assert "hunter2" not in config and "file://localhost/" in config


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("start.sh", "#!/bin/sh\n", "start.sh (changed)"),
        ("scripts/x", "2\n", "scripts/x (changed)"),
        ("notes", "mine\n", "notes (new)"),
        (".env", "PORT=1\n", ".env (new)"),
        ("scripts/local.sh", "PORT=1\n", "scripts/local.sh (new)"),
        ("kit/wide/rows-3.cubin", "x", "kit/wide/rows-3.cubin (not as in the kit)"),
        ("kit/wide/mine.cubin", "x", "kit/wide/mine.cubin (new)"),
    ],
)
def test_a_foreign_edit_is_shown_and_kept(wanted: Wanted, name: str, text: str, words: str) -> None:
    make(wanted)
    (wanted.path / name).write_text(text)
    with pytest.raises(CheckoutError) as failed:
        engine_checkout.check(wanted, without_runuser)
    said = str(failed.value)
    assert words in said and "git -C" in said and "engine_image_patches" in said
    assert f"(sudo mv {wanted.path} {wanted.path}.aside)" in said
    assert (wanted.path / name).read_text() == text
    assert ("move them out of" in said) == (name == "notes")
    if "(changed)" in words:
        assert "  -" in said and "diff --git" in said


def test_an_edit_stays_foreign_when_it_was_added_or_committed(wanted: Wanted) -> None:
    make(wanted)
    (wanted.path / "start.sh").write_text("mine\n")
    git(wanted.path, "add", "start.sh")
    with pytest.raises(CheckoutError, match=r"start\.sh \(changed\)"):
        engine_checkout.check(wanted, without_runuser)
    git(wanted.path, "commit", "-qam", "mine")
    with pytest.raises(CheckoutError, match="another commit"):
        engine_checkout.check(wanted, without_runuser)


def test_the_way_to_keep_an_edit_gives_a_patch_for_the_end_of_the_queue(
    wanted: Wanted, tmp_path: Path
) -> None:
    make(wanted)
    edited = (wanted.path / "start.sh").read_text().replace("line 12\n", "line twelve\n")
    (wanted.path / "start.sh").write_text(edited)
    (wanted.path / "mine.py").write_text("mine\n")
    tree = engine_checkout.changes(wanted.path, wanted.owner, without_runuser).tree
    git(wanted.path, "add", "--intent-to-add", ".")
    text = git(wanted.path, "diff", "--binary", tree) + "\n"
    (wanted.patch_folder / "x").write_text(text)
    sha256 = engine_kit.digest(wanted.patch_folder / "x")
    (wanted.patch_folder / "x").rename(wanted.patch_folder / f"{sha256}.patch")
    longer = replace(
        wanted,
        path=tmp_path / "recipes/deepseek-longer",
        patches=(*wanted.patches, Patch("my.patch", sha256)),
    )
    make(longer)
    assert (longer.path / "start.sh").read_text() == edited
    assert (longer.path / "mine.py").read_text() == "mine\n"


def test_an_ignored_file_that_a_run_leaves_is_nobodys_edit(wanted: Wanted) -> None:
    make(wanted)
    (wanted.path / "start.log").write_text("left by a run\n")
    (wanted.path / "tools/__pycache__").mkdir(parents=True)
    (wanted.path / "tools/__pycache__/bench.pyc").write_text("left by a run\n")
    assert engine_checkout.check(wanted, without_runuser)


def test_a_kit_file_that_the_recipe_has_otherwise_is_refused(wanted: Wanted, origin: Path) -> None:
    other = commit(origin, {"kit/wide/rows-3.cubin": "the recipe's own"})
    with pytest.raises(CheckoutError, match=r"kit/wide/rows-3\.cubin is a file of the recipe"):
        make(replace(wanted, commit=other))
    assert leaves(wanted) == []


def test_a_manifest_of_the_recipes_own_stays(wanted: Wanted, origin: Path) -> None:
    other = commit(origin, {"kit/MANIFEST": "the recipe's own\n"})
    make(replace(wanted, commit=other))
    assert (wanted.path / "kit/MANIFEST").read_text() == "the recipe's own\n"
    assert (wanted.path / "kit/wide/rows-3.cubin").exists()


def test_a_bad_kit_makes_no_checkout(wanted: Wanted, tmp_path: Path) -> None:
    (tmp_path / "kit/wide/rows-3.cubin").write_text("x")
    with pytest.raises(engine_kit.KitError, match=r"rows-3\.cubin"):
        make(wanted)
    assert leaves(wanted) == []


@pytest.mark.parametrize("at", ["fetch", "apply", "write-tree", "ls-files"])
def test_an_interruption_anywhere_leaves_nothing(wanted: Wanted, at: str) -> None:
    def interrupted(argv: Sequence[str], timeout: float) -> Result:
        if at in argv:
            raise KeyboardInterrupt
        return without_runuser(argv, timeout)

    with pytest.raises(KeyboardInterrupt):
        engine_checkout.make(wanted, interrupted)
    assert leaves(wanted) == []
    # What a power cut leaves is cleared away by the next run.
    partial = wanted.path.with_name(f".{wanted.path.name}.partial")
    partial.mkdir(parents=True)
    (partial / "junk").write_text("x")
    make(wanted)
    assert leaves(wanted) == [wanted.path.name]


def test_a_checkout_of_an_earlier_version_has_no_note_and_is_its_commit(wanted: Wanted) -> None:
    stock = replace(wanted, patches=(), kit=None)
    git(wanted.path.parent.parent, "clone", "-q", wanted.url, str(wanted.path))
    assert engine_checkout.check(stock, without_runuser)
    with pytest.raises(CheckoutError, match="made from another commit or other patches"):
        engine_checkout.check(wanted, without_runuser)
    (wanted.path / "start.sh").write_text("mine\n")
    with pytest.raises(CheckoutError, match="holds what was not declared"):
        engine_checkout.check(stock, without_runuser)


def test_git_runs_as_the_owner_with_its_home_and_no_stray_variables(wanted: Wanted) -> None:
    seen: list[Sequence[str]] = []

    def noted(argv: Sequence[str], timeout: float) -> Result:
        seen.append(argv)
        return without_runuser(argv, timeout)

    engine_checkout.make(wanted, noted)
    assert all(list(argv[:4]) == ["runuser", "-u", wanted.owner, "--"] for argv in seen)
    assert all("GIT_DIR" in argv and any(w.startswith("HOME=") for w in argv) for argv in seen)
