"""Documentation that is generated is what the tree says now."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import test_weights_plan
import yaml

from spark_pair import engine_settings, pool
from spark_pair.preflight import judge

ROOT = Path(__file__).resolve().parents[2]


def generator(name: str) -> ModuleType:
    """A script of docs/ that writes a page, or parts of one."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_variables_is_up_to_date() -> None:
    module = generator("make_variables")
    assert module.page() == module.PAGE.read_text(), "run python docs/make_variables.py"


def test_the_plans_on_the_page_of_the_weights_are_what_the_code_says_now() -> None:
    module = generator("make_plan_table")
    text = module.PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"^<!-- plan (\w+) -->$", text, re.MULTILINE)
    assert sorted(shown) == sorted(module.BLOCKS)
    assert text.count("<!-- end of plan -->") == len(shown)
    assert module.page(text) == text, "run python docs/make_plan_table.py"


def test_the_plans_on_that_page_are_those_of_the_pair_that_the_plan_is_tested_with() -> None:
    module = generator("make_plan_table")
    for name, manifest in test_weights_plan.manifests().items():
        wanted = next(one for one in test_weights_plan.SOURCES if one.name == name)
        tested = sum(file.size for file in manifest.select(wanted.files))
        shown = module.MANIFESTS[name]
        # Beside the overlay's one large file the page shows its three small ones.
        assert 0 <= sum(file.size for file in shown.files) - tested < 100_000
        assert shown.repo == manifest.repo
        assert shown.commit[:8] == manifest.commit[:8]


def test_the_plans_on_that_page_are_of_the_sources_that_are_fetched() -> None:
    module = generator("make_plan_table")
    text = module.PAGE.read_text(encoding="utf-8")
    sources = yaml.safe_load((ROOT / "group_vars/all/weights.yml").read_text())["weights_sources"]
    assert sorted(sources) == sorted(module.MANIFESTS)
    for shown in module.SOURCES:
        fetched = sources[shown.name]
        assert (shown.repo, list(shown.hosts)) == (fetched["repo"], fetched["hosts"])
        assert shown.revision == fetched["revision"][:8]
        assert f"`{shown.repo}` at `{shown.revision}`" in text


def test_what_the_page_says_of_each_plan_is_so() -> None:
    module = generator("make_plan_table")
    assert module.BLOCKS["auto"]().startswith("```\nOrder download_first")
    assert module.BLOCKS["pruned"]().startswith("```\nOrder minimal")
    for name in ("auto", "unpruned", "pruned"):
        assert "Nothing is started" not in module.BLOCKS[name]()
    assert "rank_files_prune_sources: true" in module.BLOCKS["refused"]()


def test_the_page_of_the_engine_lists_every_variable_as_it_is_now() -> None:
    module = generator("make_engine_table")
    text = module.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- engine variables -->") == 1
    assert module.page(text) == text, "run python docs/make_engine_table.py"
    rows = module.rows()
    asked = {engine_settings.variable_of(key) for key in engine_settings.ENTRY_KEYS}
    assert asked - {"tensorfold_service_unit", "tensorfold_service_link"} <= set(rows)
    assert "engine_image_entry" not in rows, "a role passes it to another; nobody sets it"


def test_every_variable_of_the_engine_has_its_reason() -> None:
    module = generator("make_engine_table")
    rows = list(module.rows().items())
    assert len(rows) > 30
    for (above, _), (name, reason) in zip([("", ""), *rows[:-1]], rows, strict=True):
        # Below one comment stand only variables that belong together.
        assert reason or above.startswith(("tensorfold_service_", "engine_image_")), name
    assert sum(1 for _, reason in rows if not reason) <= 5


def test_the_example_on_the_page_of_the_engine_is_what_the_command_says() -> None:
    text = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    shared = pool.Pool(262_144, 8, 32)
    assert pool.words(shared, 30_000, 2500) in text
    for prompt, budget in ((30_000, 2500), (1000, 32_768), (110_000, 2500)):
        row = next(line for line in text.splitlines() if line.startswith(f"| {prompt} prompt"))
        assert str(budget) in row
        assert row.endswith(f"| {shared.at_once(prompt, budget)} |")


def test_links_between_pages_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_readme_names_every_tag() -> None:
    plays = yaml.safe_load((ROOT / "site.yml").read_text())
    tags = [tag for play in plays for tag in play["tags"] if tag != "never"]
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert sorted(rows) == sorted(tags)


def test_readme_counts_the_checks_of_preflight() -> None:
    assert f"[{len(judge.CATALOGUE)} checks]" in (ROOT / "README.md").read_text(encoding="utf-8")
