"""Every story starts on a pair that exists, in a shell that says nothing about Ansible."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Molecule hands its own Ansible settings to the verifier. A story runs the plays as an operator
# does, with the ansible.cfg of the repository and nothing else.
for _name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
    del os.environ[_name]

from stories import machines, preparation, servers  # noqa: E402 - needs the two lines above


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell `molecule/run` how many tests passed and failed."""
    path = os.environ.get("STORIES_RESULTS")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if path and reporter is not None:
        counts = {name: len(reporter.stats.get(name, [])) for name in ("passed", "failed", "error")}
        with Path(path).open("a") as results:
            results.write(json.dumps(counts) + "\n")
