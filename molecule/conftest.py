"""Every story starts on a pair that exists, in a shell that says nothing about Ansible."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Molecule hands its own Ansible settings to the verifier. A story runs the plays as an operator
# does, with the ansible.cfg of the repository and nothing else.
for _name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
    del os.environ[_name]

from stories import fire, machines, preparation, servers  # noqa: E402 - needs the two lines above


@pytest.fixture(scope="session", autouse=True)
def pair() -> None:
    """Have the pair up: a molecule run by hand may find it stopped."""
    machines.pair_command("start")


@pytest.fixture(scope="session")
def prepared(pair: None) -> None:
    """Have the tool and the services on both machines, so that a story can begin with a switch."""
    servers.back_to_hikari()
    preparation.prepare()


@pytest.fixture
def hikari_serves(prepared: None) -> Iterator[None]:
    """Begin with Hikari serving and an empty journal, and never leave a fault behind."""
    servers.back_to_hikari()
    yield
    machines.clear_faults()


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, prepared: None) -> Iterator[fire.Matrix]:
    """The cases of a scenario in which the switch is under fire."""
    servers.back_to_hikari()
    with fire.in_a_hurry():
        yield fire.Matrix(request.module.SCENARIO, request.module.CASES)
    servers.back_to_hikari()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests that `molecule/run` names, if it names any."""
    wanted = set(os.environ.get("STORIES_ONLY", "").splitlines())
    left_out = [item for item in items if wanted and item.nodeid not in wanted]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out the rest of the switch under fire when a run's time is up, and say so."""
    until = float(os.environ.get("STORIES_UNTIL") or "inf")
    if "matrix" in getattr(item, "fixturenames", ()) and time.time() > until:
        pytest.skip("no time is left in this run")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell `molecule/run` how many tests passed and failed, and which did not pass."""
    path = os.environ.get("STORIES_RESULTS")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if path and reporter is not None:
        kinds = ("passed", "failed", "error", "skipped")
        stats = {name: reporter.stats.get(name, []) for name in kinds}
        counts: dict[str, object] = {name: len(reports) for name, reports in stats.items()}
        counts["names"] = [report.nodeid for report in stats["failed"] + stats["error"]]
        with Path(path).open("a") as results:
            results.write(json.dumps(counts) + "\n")
