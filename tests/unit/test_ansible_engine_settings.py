"""Engine settings: what is refused, how they are written down, what names a generation."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_hostvars import COMMIT, hostvars

from spark_pair import engine_settings
from spark_pair.engine_settings import Engine, EngineSettingsError, Place, build_engine

PLACE = Place("ann", "/home/ann", "bob", "/srv/bob", "198.51.100.12")


def engine(entry: dict[str, Any] | None = None, **changes: Any) -> Engine:
    variables = hostvars(**{f"tensorfold_service_{key}": value for key, value in changes.items()})
    return build_engine(
        "deepseek",
        {"unit": "dsv41-tensorfold.service", "link": "dsv41", **(entry or {})},
        variables["spark-a"],
        place=PLACE,
        ready_timeout=300,
    )


def refused(entry: dict[str, Any] | None = None, **changes: Any) -> str:
    with pytest.raises(EngineSettingsError) as caught:
        engine(entry, **changes)
    return str(caught.value)


def test_stock_settings_and_what_follows_from_the_inventory() -> None:
    settings = engine().settings
    assert settings["PARALLEL"] == "4"
    assert settings["ROUND_ROWS"] == "16"
    assert settings["ABLIT"] == "0"
    assert settings["PREPARE"] == "0"
    assert settings["CONTEXT"] == "262144"
    assert settings["WORKER"] == "bob@198.51.100.12"
    assert settings["FABRIC_PEER"] == "198.51.100.12"
    assert settings["STATE_DIR"] == "/home/ann/.cache/dsv41-tensorfold/state"
    assert settings["NFS_VOLUME"] == "/srv/bob/.cache/huggingface"
    assert settings["WORKER_ENGRAM_DIR"].startswith("/srv/bob/.cache/huggingface/hub/models--")
    assert settings["MEMGUARD_REMOTE_DIR"] == "/srv/bob/.cache/dsv41-tensorfold"
    assert settings["WAIT_TIMEOUT"] == "300"
    assert "PREFILL_INTERLEAVE_MS" not in settings


def test_the_engram_tables_follow_the_cache_that_was_chosen() -> None:
    settings = engine(nfs_volume="/data/hf").settings
    assert settings["WORKER_ENGRAM_DIR"].startswith("/data/hf/hub/models--deepseek-ai--")


def test_an_entry_overrides_the_variables_by_suffix() -> None:
    candidate = engine({"parallel": 8, "image": "engine:candidate"}, parallel=2)
    assert candidate.settings["PARALLEL"] == "8"
    assert candidate.image == "engine:candidate"


@pytest.mark.parametrize(
    ("suffix", "value", "said"),
    [
        ("parallel", 9, "from 1 to 8"),
        ("parallel", "08", "from 1 to 8"),
        ("parallel", True, "from 1 to 8"),
        ("round_rows", 15, "from 16 to 48"),
        ("round_rows", 49, "from 16 to 48"),
        ("context", 1_048_577, "from 2048 to 1048576"),
        ("graphs", 2, "0 or 1"),
        ("ablit", "on", "0 or 1"),
        ("prepare", "auto", "while no server answers"),
        ("reasoning_effort", "max", "thinking loops"),
        ("port", 0, "from 1 to 65535"),
        ("state_dir", "~/state", "absolute path"),
        ("state_dir", "$HOME/state", "absolute path"),
        ("worker", "198.51.100.12", "user@address"),
        ("image", "two words", "an image reference"),
        ("served_name", "", "the model name"),
        ("max_tokens", 300_000, "no more than the context"),
        ("recipe_url", "-u", "repository"),
        ("recipe_commit", "27741e1", "40 characters"),
    ],
)
def test_a_wrong_value_is_refused_by_name(suffix: str, value: Any, said: str) -> None:
    message = refused(**{suffix: value})
    assert message.startswith(f"tensorfold_service_{suffix} is ")
    assert said in message


def test_numbers_of_the_command_line_are_text() -> None:
    assert engine(parallel="8").settings["PARALLEL"] == "8"


def test_the_commit_has_no_default_and_the_message_tells_how_to_find_it() -> None:
    message = refused(recipe_commit=None)
    assert "tensorfold_service_recipe_commit is not set" in message
    assert "git -C ~/dsv41 rev-parse HEAD" in message


def test_an_entry_with_an_unknown_key_is_refused_with_the_nearest() -> None:
    assert "did you mean 'parallel'" in refused({"paralel": 8})


def test_without_a_rail_the_worker_cannot_be_found() -> None:
    place = Place("ann", "/home/ann", "bob", "/srv/bob", None)
    with pytest.raises(EngineSettingsError, match="cx7_network_rails"):
        build_engine(
            "deepseek", {"unit": "x.service"}, hostvars()["spark-a"], place=place, ready_timeout=300
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PORT", "use tensorfold_service_port instead"),
        ("TF_DS_PREFILL_INTERLEAVE_MS", "use tensorfold_service_prefill_interleave_ms instead"),
        ("WAIT_TIMEOUT", "ready_timeout"),
        ("lower", "capitals"),
        ("A B", "capitals"),
    ],
)
def test_extra_settings_cannot_contradict_the_variables(name: str, said: str) -> None:
    assert said in refused(extra_settings={name: 1})


def test_a_secret_setting_marks_the_engine_and_is_never_in_a_message() -> None:
    made = engine(secret_settings={"HF_TOKEN": "hf_secret"})
    assert made.secret
    assert "HF_TOKEN=hf_secret" in made.local_sh
    message = refused(secret_settings={"HF_TOKEN": "hf_secret\nPORT=1"})
    assert "hf_secret" not in message


@given(
    st.text(
        st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters="\x7f"),
        max_size=40,
    )
)
def test_every_value_reaches_bash_unchanged(value: str) -> None:
    text = engine_settings.local_sh_text("deepseek", {"VALUE": value})
    done = subprocess.run(
        ["bash", "-c", f'{text}\nprintf %s "$VALUE"'],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert done.stdout == value.encode()


def test_the_hash_names_everything_that_decides_how_the_engine_runs() -> None:
    first = engine()
    assert engine().hash == first.hash
    others = [
        engine(parallel=8),
        engine(recipe_commit=COMMIT[::-1]),
        engine(recipe_url="/elsewhere.git"),
        build_engine(
            "deepseek",
            {"unit": "dsv41-tensorfold.service"},
            hostvars()["spark-a"],
            place=Place("eve", "/home/eve", "bob", "/srv/bob", "198.51.100.12"),
            ready_timeout=300,
        ),
    ]
    assert len({first.hash, *(other.hash for other in others)}) == 5
    assert first.path == f"/var/lib/spark-pair/generations/{first.hash}"


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    """A generation whose start.sh prints what it sees."""
    recipe = tmp_path / "generations/abc/recipe"
    recipe.mkdir(parents=True)
    script = recipe / "start.sh"
    script.write_text('#!/bin/sh\npwd\necho "[$*]"\nenv | sort\n')
    script.chmod(0o755)
    launch = recipe.parent / "launch"
    launch.write_text(engine_settings.launch_text(PLACE))
    launch.chmod(launch.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "current").symlink_to(recipe.parent)
    return tmp_path


def launched(generation: Path, *words: str) -> subprocess.CompletedProcess[str]:
    stale = {"TF_DS_PREFILL_INTERLEAVE_MS": "0", "HOST": "evil", "PORT": "1", "CONTEXT": ""}
    return subprocess.run(
        [str(generation / "current/launch"), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **stale},
    )


@pytest.mark.fault(38)
def test_launch_empties_the_environment(generation: Path) -> None:
    done = launched(generation, "start.sh", "restart", "two words")
    lines = done.stdout.splitlines()
    assert lines[0] == str(generation / "generations/abc/recipe")
    assert lines[1] == "[restart two words]"
    names = {line.partition("=")[0] for line in lines[2:]}
    assert names - {"PWD", "_", "SHLVL"} == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG"}
    assert "HOME=/home/ann" in lines


def test_launch_passes_leading_assignments_only(generation: Path) -> None:
    done = launched(generation, "DRY_RUN=1", "start.sh", "A=B")
    assert "DRY_RUN=1" in done.stdout.splitlines()
    assert "[A=B]" in done.stdout


def test_launch_without_a_script_says_so(generation: Path) -> None:
    done = launched(generation, "DRY_RUN=1")
    assert done.returncode == 2
    assert "name a script" in done.stderr


def test_all_that_a_generation_holds_is_in_its_name() -> None:
    name = engine_settings.generation_hash("manifest", "local.sh", "launch")
    assert name != engine_settings.generation_hash("another", "local.sh", "launch")
    assert name != engine_settings.generation_hash("manifest", "another", "launch")
    assert name != engine_settings.generation_hash("manifest", "local.sh", "another")
