"""Engine settings: what is refused, how they are written down, what names a generation."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pair_hostvars import COMMIT, hostvars

from spark_pair import engine_settings, pool
from spark_pair.engine_settings import Engine, EngineSettingsError, Place, build_engine
from spark_pair.errors import DescriptionError

ROOT = Path(__file__).resolve().parents[2]
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
    with pytest.raises(DescriptionError) as caught:
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


@pytest.mark.parametrize("path", ["/data//hf", "/data/./hf", "//data/hf/", "/data/hf"])
def test_a_path_is_written_as_docker_will_say_it(path: str) -> None:
    settings = engine(nfs_volume=path, state_dir=path).settings
    assert (settings["NFS_VOLUME"], settings["STATE_DIR"]) == ("/data/hf", "/data/hf")
    assert settings["WORKER_ENGRAM_DIR"].startswith("/data/hf/hub/")


def test_a_generation_says_what_it_declares_and_no_secret() -> None:
    made = engine(
        round_rows=16,
        extra_settings={"NCCL_DEBUG": "INFO"},
        secret_settings={"HF_TOKEN": "hf_abc"},
    )
    told = json.loads(made.generation_json)
    assert told["settings"]["ROUND_ROWS"] == "16"
    assert told["settings"]["NCCL_DEBUG"] == "INFO"
    assert told["secret_settings"] == ["HF_TOKEN"]
    assert "hf_abc" not in made.generation_json
    assert "HF_TOKEN=hf_abc" in made.local_sh


def test_a_generation_names_its_repository_without_a_password() -> None:
    made = engine(recipe_url="https://me:hunter2@example.org/recipe.git")
    assert json.loads(made.generation_json)["recipe_url"] == "https://example.org/recipe.git"
    assert made.recipe_url == "https://me:hunter2@example.org/recipe.git"


def test_what_is_accepted_is_no_matter_of_the_generation() -> None:
    accepting = engine(accept_dry_run="0" * 64, expect_drafts="false")
    assert accepting.hash == engine().hash
    assert (accepting.accept_dry_run, accepting.expect_drafts) == ("0" * 64, False)
    assert (engine().accept_dry_run, engine().expect_drafts) == (None, True)


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
        ("reasoning_effort", "maximal", "one of none, minimal"),
        ("allow_max_effort", "perhaps", "0 or 1"),
        ("parallel", 0, "from 1 to 8"),
        ("parallel", 4.0, "from 1 to 8"),
        ("parallel", "4 ", "from 1 to 8"),
        ("parallel", None, "from 1 to 8"),
        ("round_rows", "032", "from 16 to 48"),
        ("context", 2047, "from 2048 to 1048576"),
        ("context", "0262144", "from 2048 to 1048576"),
        ("prefill_interleave_ms", "0250", "milliseconds"),
        ("prefill_interleave_ms", -1, "milliseconds"),
        ("prepare", 1, "while no server answers"),
        ("prepare", "", "while no server answers"),
        ("max_tokens", 0, "from 1 to 1048576"),
        ("api_open", "perhaps", "0 or 1"),
        ("host", "0.0.0.0 -x", "an address to listen on"),
        ("fabric_peer", "198.51.100.12\nPORT=1", "one line"),
        ("port", 0, "from 1 to 65535"),
        ("accept_dry_run", "yes", "64 digits"),
        ("expect_drafts", "maybe", "0 or 1"),
        ("state_dir", "~/state", "absolute path"),
        ("state_dir", "$HOME/state", "absolute path"),
        ("worker", "198.51.100.12", "user@address"),
        ("image", "two words", "an image reference"),
        ("served_name", "", "the model name"),
        ("served_name", "DeepSeek V4.1", "without blanks"),
        ("served_name", "DeepSeek ", "without blanks"),
        ("max_tokens", 300_000, "no more than the context"),
        ("recipe_url", "-u", "repository"),
        ("recipe_commit", "27741e1", "40 characters"),
    ],
)
def test_a_wrong_value_is_refused_by_name(suffix: str, value: Any, said: str) -> None:
    message = refused(**{suffix: value})
    # "max" is refused together with the variable that would allow it.
    named = "reasoning_effort" if value == "max" else suffix
    assert message.startswith(f"tensorfold_service_{named} is ")
    assert said in message


@pytest.mark.parametrize(
    ("suffix", "value", "reason"),
    [
        ("parallel", 9, "more lanes"),
        ("round_rows", 49, "kernels"),
        ("context", 1, "one request takes 2048"),
        ("graphs", 2, "slower, without"),
        ("thinking", "high", "reasoning_effort"),
        ("ablit", "on", "the overlay"),
    ],
)
def test_a_refusal_gives_its_reason(suffix: str, value: Any, reason: str) -> None:
    assert reason in refused(**{suffix: value}).partition(", but must be ")[2]


KIT = {"path": "/kits/wide", "manifest_sha256": "5" * 64}


def test_more_rows_than_the_stock_kernels_know_need_a_declared_kit() -> None:
    message = refused(round_rows=32)
    assert message.startswith("tensorfold_service_round_rows is 32")
    assert "engine_image_kit" in message and "engine_image_patches" in message
    # An image of one's own may hold anything: without a kit there is nothing to compare it with.
    assert "engine_image_kit" in refused(round_rows=17, image="engine:mine")
    assert "engines.deepseek.round_rows" in refused({"round_rows": 48})
    for rows in (17, 32, 48):
        assert engine({"round_rows": rows, "kit": KIT}).settings["ROUND_ROWS"] == str(rows)


def test_a_kit_may_be_there_before_it_is_used() -> None:
    made = engine({"kit": KIT})
    assert made.settings["ROUND_ROWS"] == "16"
    assert made.recipe_id != engine().recipe_id


def test_the_effort_that_loops_must_be_meant() -> None:
    assert "tensorfold_service_allow_max_effort: true" in refused(reasoning_effort="max")
    made = engine(reasoning_effort="max", allow_max_effort=True)
    assert made.settings["REASONING_EFFORT"] == "max"
    assert engine(allow_max_effort=True).hash == engine().hash


def test_every_effort_but_that_one_needs_no_leave() -> None:
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        assert engine(reasoning_effort=effort).settings["REASONING_EFFORT"] == effort


PRODUCTION = ROOT / "inventory/example/group_vars/spark_pair/production.yml.example"


def production() -> dict[str, Any]:
    """The example's variables as a run would see them."""
    text = PRODUCTION.read_text().replace("{{ inventory_dir }}", "/inventory")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def test_the_settings_of_production_are_accepted() -> None:
    variables = hostvars()["spark-a"] | {"tensorfold_service_image": ""} | production()
    made = build_engine(
        "deepseek", {"unit": "x.service"}, variables, place=PLACE, ready_timeout=300
    )
    expected = {
        "CONTEXT": "262144",
        "PARALLEL": "8",
        "ROUND_ROWS": "32",
        "GRAPHS": "1",
        "PREFILL_INTERLEAVE_MS": "250",
        "THINKING": "0",
        "REASONING_EFFORT": "high",
        "PREPARE": "0",
        "API_KEY": "0",
    }
    assert {name: made.settings[name] for name in expected} == expected
    assert made.image_built and made.image == f"tensorfold-dsv41:{made.recipe_id}"
    assert len(made.patches) == 2 and made.kit and made.kit.count == 64
    shared = pool.Pool(made.context, 8, 32)
    assert pool.overload(shared, made.clients) == ""


def test_all_that_a_pair_in_production_sets_has_a_variable() -> None:
    known = {engine_settings.variable_of(key) for key in engine_settings.ENTRY_KEYS}
    assert set(production()) <= known
    told = PRODUCTION.read_text()
    # What its local.sh and its line of start had; the rest has the value that follows by itself.
    chosen = ("CONTEXT", "PARALLEL", "ROUND_ROWS", "GRAPHS", "PREFILL_INTERLEAVE_MS", "PREPARE")
    suffixes = {name: suffix for suffix, name in engine_settings.SETTINGS.items()}
    for name in (*chosen, "THINKING", "REASONING_EFFORT", "IMAGE"):
        assert f"tensorfold_service_{suffixes[name]}" in told, name
    for name in ("WORKER", "FABRIC_PEER", "STATE_DIR", "NFS_VOLUME", "WORKER_ENGRAM_DIR"):
        assert name in suffixes and name in told, name
    assert "MEMGUARD_REMOTE_DIR" in told and "ablit_graft_enabled" in told


KEY = "s3cret-s3cret-s3cret"
LOCKED: dict[str, Any] = {"api_key": KEY, "api_open": False}


def test_who_may_use_the_api_must_be_chosen() -> None:
    for nothing in ("", None):
        message = refused(api_key=nothing, api_open=False)
        assert "neither tensorfold_service_api_key nor tensorfold_service_api_open" in message
        assert "tensorfold_service_api_key to a key" in message
        assert "tensorfold_service_api_open: true" in message


def test_both_ways_at_once_are_refused() -> None:
    message = refused(api_key=KEY, api_open=True)
    assert "both set" in message and "tensorfold_service_api_open: true" in message
    assert KEY not in message


def test_an_open_api_has_no_file() -> None:
    made = engine()
    assert (made.api_key, made.api_key_path) == (False, None)
    assert made.settings["API_KEY"] == "0"
    assert json.loads(made.generation_json)["serves"]["key"] is None


def test_a_locked_api_names_its_file_and_nothing_of_the_key() -> None:
    made = engine(**LOCKED)
    assert made.settings["API_KEY"] == "1"
    place = "/home/ann/.cache/dsv41-tensorfold/state/api-key"
    assert made.api_key_path == place
    assert json.loads(made.generation_json)["serves"]["key"] == place
    assert KEY not in made.local_sh + made.generation_json + repr(made)
    # A changed key is no other configuration: it holds without a restart.
    assert engine(api_key=KEY + KEY, api_open=False).hash == made.hash
    assert engine().hash != made.hash


def test_the_file_follows_the_state_directory_or_is_named() -> None:
    assert engine(**LOCKED, state_dir="/data/state/").api_key_path == "/data/state/api-key"
    assert engine(**LOCKED, api_key_path="/data/keys").api_key_path == "/data/keys"
    assert "api_key_path is" in refused(**LOCKED, api_key_path="~/keys")


@pytest.mark.parametrize(
    "key",
    [
        "s3cret-s3cret-s",
        "s3cret s3cret s3cret",
        "s3cret-s3cret-s3cret\n",
        "s3cret'-s3cret-s3cret",
        's3cret"-s3cret-s3cret',
        "s3cret`-s3cret-s3cret",
        "s3cret:-s3cret-s3cret",
        "s3cret,-s3cret-s3cret",
        "s3crét-s3cret-s3cret",
        "s3cret" * 50,
        1234567890123456,
        1,
        True,
        ["s3cret-s3cret-s3cret"],
    ],
)
def test_an_unusable_key_is_refused_and_never_shown(key: Any) -> None:
    message = refused(api_key=key, api_open=False)
    assert message.startswith("tensorfold_service_api_key (its value is not shown)")
    assert "s3cr" not in message and "123456" not in message


def test_an_entry_chooses_for_itself() -> None:
    assert engine({"api_key": KEY}).api_key, "the variable says open, the entry a key"
    assert not engine({"api_open": True}, **LOCKED).api_key
    assert "engines.deepseek.api_key" in refused({"api_open": False})


def test_clients_are_checked_and_decide_nothing_of_how_the_engine_runs() -> None:
    client = {"name": "agents", "at_once": 8, "prompt": 30_000, "max_tokens": 2500}
    made = engine(clients=[client])
    assert [one.name for one in made.clients] == ["agents"]
    assert made.as_dict()["clients"] == [client]
    assert made.hash == engine().hash
    assert "tensorfold_service_clients[0]" in refused(clients=[{"name": "agents"}])


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
        ("API_KEY", "use tensorfold_service_api_key instead"),
        ("TENSORFOLD_API_KEY", "use tensorfold_service_api_key instead"),
        ("TF_DS_STREAMS", "use tensorfold_service_parallel instead"),
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
