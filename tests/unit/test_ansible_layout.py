"""Rules that the plays and roles keep, read from the files themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_pair import engine_settings, pair_variables, roles

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))
PLAYS = [ROOT / "site.yml", *PLAYBOOKS]
FROM_INVENTORY = {"pair_role", "pair_peer", "spark_user", "spark_home"}
NEVER = {"stop_incumbent", "rollback", "discover", "adopt", "verify"}
STEPS = {"weights": ["download", "transfer", "graft", "shard", "prune"]}
"""A stage that also answers to the kinds of its steps."""
OF_A_STEP = ("hf_download", "hf_transfer", "ablit_graft", "rank_files")
HANDED_OVER = {
    *(
        f"{role}_{name}"
        for role in OF_A_STEP
        for name in ("job", "words", "order", "caps", "refused")
    ),
    *(f"long_work_{name}" for name in ("job", "verb", "words", "caps", "refused")),
    "engine_image_entry",
}
"""What one role gives another."""


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None


def task_files() -> list[Path]:
    return [
        *PLAYS,
        *(ROOT / "roles").glob("*/tasks/*.yml"),
        *(ROOT / "roles").glob("*/handlers/*.yml"),
    ]


def mappings(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
        for value in data.values():
            yield from mappings(value)
    elif isinstance(data, list):
        for value in data:
            yield from mappings(value)


def shared_defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in (ROOT / "group_vars/all").glob("*.yml"):
        found.update(load(file) or {})
    return found


def test_tags_stand_on_import_playbook_lines_only() -> None:
    for path in task_files():
        for entry in mappings(load(path)):
            if "tags" in entry:
                assert path.name == "site.yml", path
                assert "ansible.builtin.import_playbook" in entry
                assert "always" not in entry["tags"]


def test_every_stage_has_its_own_tag_and_the_last_are_asked_for_only() -> None:
    for entry in load(ROOT / "site.yml"):
        stage = Path(entry["ansible.builtin.import_playbook"]).stem
        expected = [*(["never"] if stage in NEVER else []), stage, *STEPS.get(stage, [])]
        assert entry["tags"] == expected
    imported = [
        Path(entry["ansible.builtin.import_playbook"]).name for entry in load(ROOT / "site.yml")
    ]
    assert sorted(imported) == [path.name for path in PLAYBOOKS]


def test_the_engines_key_is_changed_after_everything_that_can_fail() -> None:
    # A running engine takes it at once, while whoever asks it still has the old one.
    names = [task["name"] for task in load(ROOT / "roles/tensorfold_service/tasks/main.yml")]
    assert names[-1] == "Write the key that the API asks for"
    assert "spark_pair_secret_file" not in (
        (ROOT / "roles/tensorfold_service/tasks/engine.yml").read_text()
    )


def test_one_pairs_failure_stays_its_own() -> None:
    forbidden = {"any_errors_fatal", "serial", "run_once", "max_fail_percentage", "force_handlers"}
    for path in task_files():
        for entry in mappings(load(path)):
            assert not forbidden & entry.keys(), path


def test_no_role_depends_on_another_or_names_a_group() -> None:
    for role in ROLES:
        assert load(ROOT / "roles" / role / "meta/main.yml")["dependencies"] == []
        for path in (ROOT / "roles" / role).rglob("*"):
            if path.is_file():
                assert not re.search(r"groups\[|spark_pair\.hosts|group_names", path.read_text()), (
                    path
                )


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_every_play_begins_with_the_gate(path: Path) -> None:
    for play in load(path):
        assert play["hosts"] == "spark_pair"
        assert play["gather_facts"] in (False, "{{ false | bool }}")
        assert play["tasks"][0]["ansible.builtin.include_role"]["name"] == "pair_gate"


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_roles_enter_by_include(path: Path) -> None:
    for play in load(path):
        assert "roles" not in play
        for entry in mappings(play["tasks"]):
            assert "ansible.builtin.import_role" not in entry


def test_only_looking_stages_pass_an_incomplete_pair() -> None:
    lenient = {
        path.stem
        for path in PLAYBOOKS
        if load(path)[0]["tasks"][0].get("vars", {}).get("pair_gate_needs") == "any"
    }
    assert lenient == {"preflight", "status", "discover", "plan", "verify"}


def test_a_rollback_looks_at_no_variable() -> None:
    for stage in ("rollback", "stop_incumbent"):
        tasks = load(ROOT / f"playbooks/{stage}.yml")[0]["tasks"]
        assert tasks[0]["vars"]["pair_gate_inputs"] == "none"
        assert "hostvars" not in (ROOT / f"playbooks/{stage}.yml").read_text()


@pytest.mark.parametrize("role", ROLES)
def test_entry_points_are_documented_and_defaults_agree(role: str) -> None:
    folder = ROOT / "roles" / role
    specs = load(folder / "meta/argument_specs.yml")["argument_specs"]
    defaults = load(folder / "defaults/main.yml") or {}
    shared = shared_defaults()
    entered = {"main"}
    for path in task_files():
        for entry in mappings(load(path)):
            include = entry.get("ansible.builtin.include_role")
            if include and include["name"] == role:
                entered.add(include.get("tasks_from", "main"))
    assert entered == set(specs)

    documented: dict[str, Any] = {}
    for spec in specs.values():
        for name, option in (spec.get("options") or {}).items():
            documented[name] = option
            assert option.get("description"), name
            assert name.startswith(f"{role}_") or name in FROM_INVENTORY, name
            if option.get("required"):
                # One default in one place: what several stages share lies in group_vars/all.
                assert "default" not in option
                assert name not in defaults
    for name, value in defaults.items():
        assert name in documented, name
        assert documented[name]["default"] == value, name
        assert name not in shared, f"{name} has two defaults"
    for name, option in documented.items():
        if option.get("required") and name.startswith(f"{role}_"):
            arrives = name in shared or "_switch_" in name or name.endswith("_recipe_commit")
            arrives = arrives or name in HANDED_OVER
            assert arrives, f"{name} has no default in group_vars/all"


def test_every_shared_default_is_documented_by_its_role() -> None:
    for name in shared_defaults():
        if name.startswith("ansible_"):
            continue
        owner = next(role for role in ROLES if name.startswith(f"{role}_"))
        specs = load(ROOT / "roles" / owner / "meta/argument_specs.yml")["argument_specs"]
        assert any(name in (spec.get("options") or {}) for spec in specs.values()), name


def test_the_checks_of_engine_settings_cover_every_documented_variable() -> None:
    documented = {
        name
        for role in ("tensorfold_service", "engine_image")
        for name in load(ROOT / f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"][
            "options"
        ]
    }
    keys = set(engine_settings.ENTRY_KEYS) - {"unit", "link"}
    checked = {engine_settings.variable_of(key) for key in keys}
    assert checked <= documented
    own = {name for name in documented - checked if name.startswith(engine_settings.PREFIX)}
    assert own == {f"{engine_settings.PREFIX}{name}" for name in ("engines", "hide_secrets")}


def test_registered_variables_are_internal() -> None:
    for path in task_files():
        for entry in mappings(load(path)):
            if isinstance(entry.get("register"), str):
                assert entry["register"].startswith("__"), path


@pytest.mark.parametrize(
    "module", ["description", "engine_settings", "pair_variables", "installation", "generation",
               "hostview", "preflight.judge", "gate", "release", "plan_text", "follow",
               "discover.look"],
)  # fmt: skip
def test_what_runs_on_a_bare_host_needs_no_package(module: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spark_pair.{module}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("weights_disk_ordr", "weights_disk_order"),
        ("ablit_graft_enable", "ablit_graft_enabled"),
        ("rank_files_prune_source", "rank_files_prune_sources"),
        ("hf_download_worker", "hf_download_workers"),
    ],
)
def test_a_misspelt_setting_of_the_weights_is_found(wrong: str, right: str) -> None:
    found = pair_variables.misspelt([wrong], roles.known_variables(ROOT), roles.role_prefixes(ROOT))
    assert found == [(wrong, right)]
