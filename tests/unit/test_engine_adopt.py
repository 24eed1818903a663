"""A checkout changed by hand becomes one patch of a commit that its repository has."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine_sources import START, commit, git, kit, without_runuser

from spark_pair import engine_adopt, engine_checkout, engine_kit
from spark_pair.engine_checkout import CheckoutError, Patch, Wanted
from spark_pair.system import Result


def runner(argv: Sequence[str], timeout: float) -> Result:
    """Docker runs one rank; git is the real one."""
    if argv[0] == "docker":
        return Result(0, "hikari\tvllm:1\ndsv41-tensorfold\ttensorfold-dsv41:by-hand\n", "")
    return without_runuser(argv, timeout)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    commit(
        tmp_path / "origin",
        {
            "start.sh": START,
            "old.py": "x\n",
            ".gitignore": "scripts/local.sh\n",
            "scripts/x": "1\n",
        },
    )
    git(tmp_path, "clone", "-q", str(tmp_path / "origin"), "dsv41")
    return tmp_path / "dsv41"


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    # git notes in an object's time that it was looked at.
    return {
        str(path): (0 if ".git" in path.parts else path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def found(checkout: Path) -> engine_adopt.Found:
    before = state(checkout)
    one = engine_adopt.look(checkout, runner)
    assert state(checkout) == before, "the checkout was changed"
    assert one is not None
    return one


def change(checkout: Path) -> None:
    (checkout / "start.sh").write_text(START.replace("line 7\n", "line seven\n"))
    (checkout / "start.sh").chmod(0o755)
    (checkout / "old.py").unlink()
    (checkout / "mine.py").write_bytes(b"# caf\xe9\n")
    (checkout / "scripts/local.sh").write_text("HF_TOKEN=secret\n")
    kit(checkout / "kit")


def test_the_patch_gives_the_same_files_again(checkout: Path, tmp_path: Path) -> None:
    change(checkout)
    one = found(checkout)
    assert sorted(one.files) == ["mine.py", "old.py", "start.sh"]
    assert one.commit == git(checkout, "rev-parse", "HEAD") and one.own_commits == 0
    assert b"secret" not in one.patch
    assert one.image == "tensorfold-dsv41:by-hand"
    assert found(checkout).patch == one.patch
    (tmp_path / f"{one.sha256}.patch").write_bytes(one.patch)
    queue = (Patch("adopted.patch", one.sha256),)
    wanted = Wanted(
        tmp_path / "made", one.url, one.commit, getpass.getuser(), queue, patch_folder=tmp_path
    )
    engine_checkout.make(wanted, without_runuser)
    for name in ("start.sh", "mine.py", "scripts/x"):
        assert (wanted.path / name).read_bytes() == (checkout / name).read_bytes()
    assert not (wanted.path / "old.py").exists()
    assert (wanted.path / "start.sh").stat().st_mode & 0o100


def test_binary_files_are_a_kit_and_no_part_of_the_patch(checkout: Path) -> None:
    change(checkout)
    one = found(checkout).kit
    assert one is not None
    assert (one.folder, one.count) == ("kit", 64)
    # The list that lies there is the one that is made: both are in the order of sha256sum.
    declared = engine_kit.Declared(one.manifest_sha256, one.count)
    assert engine_kit.prove(checkout / "kit", declared)


def test_commits_that_only_this_machine_has_go_into_the_patch(checkout: Path) -> None:
    published = git(checkout, "rev-parse", "HEAD")
    commit(checkout, {"start.sh": "mine\n", "new.txt": "x\n"})
    (checkout / "scripts/x").write_text("2\n")
    one = found(checkout)
    assert (one.commit, one.own_commits) == (published, 1)
    assert sorted(one.files) == ["new.txt", "scripts/x", "start.sh"]


def test_a_clean_checkout_gives_no_patch(checkout: Path) -> None:
    one = found(checkout)
    assert (one.patch, one.files, one.kit) == (b"", (), None)
    said = engine_adopt.lines(one.as_dict(), "/x/adopted.patch", "/x/list")
    assert not any("patches" in line or "kit" in line for line in said)
    assert f"tensorfold_service_recipe_commit: {one.commit}" in said


def test_the_lines_name_everything_that_must_be_declared(checkout: Path) -> None:
    change(checkout)
    one = found(checkout)
    said = "\n".join(engine_adopt.lines(one.as_dict(), "/x/adopted.patch", "/x/list"))
    for words in (one.commit, one.sha256, "/x/adopted.patch", one.url, "by-hand", "count: 64"):
        assert words in said


@pytest.mark.parametrize(
    "name",
    [
        ".env.local",
        "scripts/.env",
        "scripts/local.sh.bak",
        "scripts/local.sh~",
        "HF_TOKEN",
        "my-token.txt",
        "client_secret.json",
        "secrets.yml",
        "secrets/hub",
    ],
)
def test_what_may_hold_a_secret_is_left_out_and_named(checkout: Path, name: str) -> None:
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("HF_TOKEN=hf_abc\n")
    (checkout / "mine.py").write_text("x\n")
    one = found(checkout)
    assert one.files == one.taken_in == ("mine.py",) and b"hf_abc" not in one.patch
    assert one.left_out == (f"{name} (may hold a token)",)
    said = "\n".join(engine_adopt.lines(one.as_dict(), "/x/adopted.patch", "/x/list"))
    assert f"# Left out: {name} (may hold a token)." in said
    assert "git does not know them: mine.py." in said


def test_the_patch_is_for_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/.adopted.patch.new").write_text("left by a run that was killed")
    engine_adopt.keep(tmp_path / "patches/adopted.patch", b"x\n")
    (one,) = (tmp_path / "patches").iterdir()
    assert (one.name, one.read_bytes()) == ("adopted.patch", b"x\n")
    assert one.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["scripts/local.sh.example", ".env.example", "tokenizer.py"])
def test_an_example_of_settings_is_taken_in(checkout: Path, name: str) -> None:
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("HF_TOKEN=\n")
    assert found(checkout).taken_in == (name,)


def test_a_file_that_git_knows_stays_in_the_patch(checkout: Path) -> None:
    commit(checkout, {"tokenizer.py": "x\n"})
    (checkout / "tokenizer.py").write_text("y\n")
    one = found(checkout)
    assert one.files == ("tokenizer.py",) and one.left_out == one.taken_in == ()


def test_a_repository_inside_is_left_out_and_named(checkout: Path) -> None:
    commit(checkout / "nested", {"a.txt": "x\n"})
    (checkout / "mine.py").write_text("x\n")
    one = found(checkout)
    assert one.files == ("mine.py",)
    assert one.left_out == ("nested/ (a repository of its own)",)


def test_a_link_is_ours_and_nothing_is_nothing(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(checkout)
    assert engine_adopt.look(tmp_path / "link", runner) is None
    assert engine_adopt.look(tmp_path / "absent", runner) is None
    (tmp_path / "plain").mkdir()
    with pytest.raises(CheckoutError, match="no checkout of git"):
        engine_adopt.look(tmp_path / "plain", runner)
