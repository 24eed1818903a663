"""What both halves of this scenario need.

Nothing here may change a machine, so the plays run beside each other, and the machines are compared
once, after all of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from stories.plays import Played, Together


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Together]:
    """The plays of those tests of a module that take part in this session."""
    asked: dict[str, Mapping[str, Any]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module:
            for mark in item.iter_markers("play"):
                asked[item.name] = mark.kwargs
    together = Together(asked)
    yield together
    together.close()


@pytest.fixture
def played(request: pytest.FixtureRequest, runs: Together) -> Played:
    """The run that the test's mark `play` asks for."""
    return runs[request.node.name]
