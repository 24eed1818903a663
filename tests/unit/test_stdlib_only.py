"""What runs on a bare host, and the whole switch, needs nothing but Python itself.

A module that is shipped to a host without the tool, and everything between "stop the old server"
and "the new one answers", must not depend on a package that somebody installed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "spark_pair"
SHIPPED = f"ansible.module_utils.{PACKAGE}"

# The switch and the command that starts it; what observing and explaining need; what checks
# variables on the controller.
ALWAYS = [
    f"{PACKAGE}.{name}"
    for name in (
        "cli",
        "jobs.commands",
        "weights.commands",
        "switch.run",
        "description",
        "hostview",
        "verdict",
        "report",
        "plan_text",
        "pair_variables",
        "engine_settings",
    )
]

# Only ever imported by an action plugin, on the controller, where requirements.txt brings it.
WITH_ANSIBLE = {
    "yaml": {f"{PACKAGE}.roles"},
    "huggingface_hub": {f"{PACKAGE}.weights.hub"},
    "httpx2": {f"{PACKAGE}.weights.hub"},
}

# Imported inside a function that runs only where netplan is, which brings it along.
WITH_NETPLAN = {"yaml": {f"{PACKAGE}.rails.netplan"}}


# Imported inside the function of the verb that downloads: the command itself needs no package.
BEHIND_A_VERB = {f"{PACKAGE}.weights.download_job": f"{PACKAGE}.weights.commands"}


def file_of(module: str) -> Path | None:
    """The file of a module of the package, or None when there is no such module."""
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def imports_of(path: Path, module: str) -> frozenset[str]:
    """Everything that a file imports anywhere in it, by absolute name."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parts = package.split(".")
                above = parts[: len(parts) - node.level + 1]
                origin = ".".join([*above, *([origin] if origin else [])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return frozenset(name.replace(SHIPPED, PACKAGE, 1) for name in found)


def modules_in(names: Iterable[str]) -> Iterator[str]:
    """Modules of the package among names, each with the packages around it."""
    for name in names:
        parts = name.split(".")
        if parts[0] != PACKAGE:
            continue
        for size in range(1, len(parts) + 1):
            module = ".".join(parts[:size])
            if file_of(module):
                yield module


def reachable(names: Iterable[str]) -> set[str]:
    """Every module of the package that importing `names` brings in."""
    found: set[str] = set()
    todo = list(modules_in(names))
    while todo:
        module = todo.pop()
        if module not in found and module not in BEHIND_A_VERB:
            found.add(module)
            path = file_of(module)
            assert path is not None
            todo += modules_in(imports_of(path, module))
    return found


def roots_in(folder: str) -> set[str]:
    """What the plugins of a folder import."""
    files = sorted((ROOT / folder).glob("*.py"))
    assert files, folder
    return {name for path in files for name in imports_of(path, path.stem)}


def foreign(module: str) -> set[str]:
    """Top-level packages that a module imports and that Python does not bring along."""
    path = file_of(module)
    assert path is not None
    tops = {name.partition(".")[0] for name in imports_of(path, module)}
    return {top for top in tops if top and top not in sys.stdlib_module_names} - {PACKAGE}


# Download jobs run in the installed tool, which brings these along; nothing else may need them.
WITH_THE_TOOL = {f"{PACKAGE}.weights.hub", f"{PACKAGE}.weights.fetch"}
OF_THE_TOOL = {"huggingface_hub", "hf_xet", "httpx2"}

FOLDERS = ("library", "filter_plugins", "action_plugins")
ON_HOSTS = reachable(ALWAYS) | reachable(roots_in("library"))
ALL = sorted(ON_HOSTS | reachable(name for folder in FOLDERS for name in roots_in(folder)))
BARE = sorted(module for module in ALL if not any(module in of for of in WITH_ANSIBLE.values()))


def test_the_search_finds_the_chain_of_imports() -> None:
    assert f"{PACKAGE}.switch.hands" in ALL  # cli -> run -> work -> hands
    assert f"{PACKAGE}.probe" in reachable(roots_in("library"))
    assert f"{PACKAGE}.release" in ALL


@pytest.mark.parametrize("module", ALL)
def test_no_module_imports_a_package(module: str) -> None:
    exceptions = (*WITH_ANSIBLE.items(), *WITH_NETPLAN.items())
    allowed = {name for name, where in exceptions if module in where}
    assert foreign(module) <= allowed


@pytest.mark.parametrize(
    ("package", "module"),
    [(package, module) for package, where in WITH_NETPLAN.items() for module in sorted(where)],
)
def test_what_netplan_brings_along_is_imported_when_it_is_needed(package: str, module: str) -> None:
    path = file_of(module)
    assert path is not None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        alias.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    at_once = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    assert package in inside and package not in at_once


@pytest.mark.parametrize(("module", "importer"), BEHIND_A_VERB.items())
def test_what_is_behind_a_verb_is_imported_by_that_verb_alone(module: str, importer: str) -> None:
    path = file_of(importer)
    assert path is not None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_once = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    anywhere = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    name = module.rpartition(".")[2]
    assert name in anywhere and name not in at_once
    others = {
        one
        for one in ALL
        if one != importer and (file := file_of(one)) and module in imports_of(file, one)
    }
    assert not others


def test_exceptions_never_reach_a_host() -> None:
    excepted = set().union(*WITH_ANSIBLE.values())
    assert not excepted & (ON_HOSTS | reachable(roots_in("filter_plugins")))
    for name, where in WITH_ANSIBLE.items():
        assert all(name in foreign(module) for module in where), "an exception nobody needs"


def test_packages_of_the_tool_are_imported_by_downloads_alone() -> None:
    files = (ROOT / PACKAGE / "weights").rglob("*.py")
    modules = {f"{PACKAGE}.weights.{path.stem}" for path in files if path.stem != "__init__"}
    needing = {module for module in modules if foreign(module)}
    assert needing == WITH_THE_TOOL
    assert set().union(*map(foreign, needing)) == OF_THE_TOOL


def test_downloads_are_not_reached_from_plugins_or_from_checking_variables() -> None:
    assert WITH_THE_TOOL & set(ALL) == {f"{PACKAGE}.weights.hub"}


def test_only_the_controllers_questions_reach_the_hub_and_only_when_they_are_asked() -> None:
    hub, asking = f"{PACKAGE}.weights.hub", f"{PACKAGE}.weights.questions"
    importers = {one for one in ALL if (file := file_of(one)) and hub in imports_of(file, one)}
    assert importers == {asking}
    path = file_of(asking)
    assert path is not None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert all(node.module != "hub" for node in tree.body if isinstance(node, ast.ImportFrom))


def test_bare_python_imports_all_of_them() -> None:
    lines = [
        "import importlib, sys",
        f"sys.path.insert(0, {str(ROOT)!r})",
        f"for name in {BARE!r}: importlib.import_module(name)",
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_packages_themselves_are_empty() -> None:
    for path in (ROOT / PACKAGE).rglob("__init__.py"):
        assert path.read_text() == "", path


def test_modules_are_shipped_with_relative_imports_only() -> None:
    # Below ansible.module_utils the package has another name, so `import spark_pair` would fail.
    for module in sorted(ON_HOSTS):
        path = file_of(module)
        assert path is not None
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").partition(".")[0] != PACKAGE, module
            elif isinstance(node, ast.Import):
                assert all(alias.name.partition(".")[0] != PACKAGE for alias in node.names), module


def test_a_switch_does_not_wait_for_what_only_long_work_needs() -> None:
    ask = (
        "import sys\nfrom spark_pair import cli\n"
        "try: cli.main(['switch', '--help'])\nexcept SystemExit: pass\n"
        "long_work = ('spark_pair.weights', 'spark_pair.jobs')\n"
        "print([one for one in sys.modules if one.startswith(long_work)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
