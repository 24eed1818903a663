"""Generations on a host: written whole or not at all, never changed afterwards."""

from __future__ import annotations

import getpass
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_pair import engine_checkout, engine_settings, generation
from spark_pair.system import Result, run

OWNER = getpass.getuser()


def without_runuser(argv: Sequence[str], timeout: float) -> Result:
    """Run as who we are; becoming somebody else needs root."""
    words = list(argv)
    return run(words[4:] if words[0] == "runuser" else words, timeout=timeout)


@pytest.fixture
def wanted(tmp_path: Path) -> generation.Wanted:
    checkout = tmp_path / "recipes/deepseek-abc"
    (checkout / "scripts").mkdir(parents=True)
    (checkout / "start.sh").write_text("#!/bin/sh\n")
    (checkout / "scripts/local.sh").write_text("left by the recipe\n")
    (checkout / "scripts/local.sh").chmod(0o644)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(checkout), *words], check=True)
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return generation.Wanted(
        path=tmp_path / "generations/0123456789ab",
        checkout=checkout,
        commit=commit,
        local_sh="PORT=8888\n",
        launch="#!/bin/sh\n",
        manifest="{}\n",
        owner=OWNER,
    )


def test_a_generation_is_made_once_and_then_found(wanted: generation.Wanted) -> None:
    assert not generation.check(wanted, without_runuser)
    generation.make(wanted, without_runuser)
    assert generation.check(wanted, without_runuser)
    local_sh = wanted.path / generation.LOCAL_SH
    assert stat.S_IMODE(local_sh.stat().st_mode) == 0o600
    assert local_sh.read_text() == "PORT=8888\n"
    assert stat.S_IMODE((wanted.path / "launch").stat().st_mode) == 0o755
    assert (wanted.path / "recipe/start.sh").is_file()
    assert [path.name for path in wanted.path.parent.iterdir()] == [wanted.path.name]


def test_a_changed_generation_is_refused_not_repaired(wanted: generation.Wanted) -> None:
    generation.make(wanted, without_runuser)
    (wanted.path / generation.LOCAL_SH).write_text("PORT=1\n")
    with pytest.raises(generation.GenerationError, match=r"recipe/scripts/local\.sh") as failed:
        generation.check(wanted, without_runuser)
    assert f"(sudo rm -r {wanted.path})" in str(failed.value)
    assert (wanted.path / generation.LOCAL_SH).read_text() == "PORT=1\n"


def test_another_commit_in_the_generation_is_seen(wanted: generation.Wanted) -> None:
    generation.make(wanted, without_runuser)
    with pytest.raises(generation.GenerationError, match="another commit"):
        generation.check(replace(wanted, commit="f" * 40), without_runuser)


def test_a_checkout_at_another_commit_is_refused(wanted: generation.Wanted) -> None:
    with pytest.raises(generation.GenerationError, match=f"sudo rm -r {wanted.checkout}"):
        generation.make(replace(wanted, commit="f" * 40), without_runuser)
    assert not wanted.path.exists()


def test_an_interrupted_generation_leaves_nothing_that_counts(wanted: generation.Wanted) -> None:
    def copy_fails(argv: Sequence[str], timeout: float) -> Result:
        return Result(1, "", "disk full") if argv[0] == "cp" else without_runuser(argv, timeout)

    with pytest.raises(generation.GenerationError, match="disk full"):
        generation.make(wanted, copy_fails)
    assert list(wanted.path.parent.iterdir()) == []
    # What a power cut leaves is cleared away by the next run.
    partial = wanted.path.parent / f".{wanted.path.name}.partial"
    partial.mkdir()
    (partial / "junk").write_text("x")
    generation.make(wanted, without_runuser)
    assert generation.check(wanted, without_runuser)


@pytest.fixture
def made(tmp_path: Path, wanted: generation.Wanted) -> generation.Wanted:
    """A generation under the name that its content has, as the plays make it."""
    manifest = f'{{"commit": "{wanted.commit}"}}\n'
    name = engine_settings.generation_hash(manifest, wanted.local_sh, wanted.launch)
    named = replace(wanted, path=tmp_path / "generations" / name, manifest=manifest)
    generation.make(named, without_runuser)
    return named


def test_a_generation_tells_by_itself_that_it_is_as_it_was_made(made: generation.Wanted) -> None:
    assert not generation.changed(made.path, OWNER, without_runuser)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("recipe/start.sh", "start.sh (changed)"),
        ("recipe/.env", ".env (new)"),
        ("recipe/mine", "mine (new)"),
        ("recipe/scripts/local.sh", "generation.json, recipe/scripts/local.sh or launch"),
        ("launch", "generation.json, recipe/scripts/local.sh or launch"),
    ],
)
def test_a_foreign_edit_in_a_generation_is_found_both_ways(
    made: generation.Wanted, name: str, words: str
) -> None:
    (made.path / name).write_text("#!/bin/sh\nmine\n")
    found = generation.changed(made.path, OWNER, without_runuser)
    assert found.files == (words,) and found.only_strays == (name == "recipe/mine")
    words = "move them out of .*/recipe" if found.only_strays else "was changed after it was made"
    with pytest.raises(generation.GenerationError, match=words):
        generation.check(made, without_runuser)
    assert (made.path / name).read_text() == "#!/bin/sh\nmine\n"


def test_a_generation_whose_note_is_broken_counts_as_changed(made: generation.Wanted) -> None:
    (made.path / "recipe" / engine_checkout.RECORD).write_text("{")
    found = generation.changed(made.path, OWNER, without_runuser)
    assert "cannot be read" in found.words and not found.only_strays


def test_a_stray_file_beside_a_change_excuses_nothing(made: generation.Wanted) -> None:
    (made.path / "recipe/mine").write_text("mine\n")
    (made.path / "recipe/start.sh").write_text("mine\n")
    found = generation.changed(made.path, OWNER, without_runuser)
    assert found.strays == ("mine",) and not found.only_strays
    with pytest.raises(generation.GenerationError, match=r"start\.sh \(changed\), mine \(new\)"):
        generation.check(made, without_runuser)


def test_a_changed_checkout_makes_no_generation(wanted: generation.Wanted) -> None:
    (wanted.checkout / "start.sh").write_text("mine\n")
    with pytest.raises(generation.GenerationError, match=r"start\.sh \(changed\)"):
        generation.make(wanted, without_runuser)
    assert not wanted.path.exists()
    assert engine_checkout.changes(wanted.checkout, OWNER, without_runuser)
