"""A pair whose rails the stories may break, and that looks as before when they are told."""

from collections.abc import Iterator

import pytest
from stories.machines import on_both
from stories.servers import back_to_hikari

_TRACES = "rm -rf /var/lib/spark-pair/network /var/lib/spark-pair/jobs/network"


@pytest.fixture(scope="session", autouse=True)
def rails_as_found(pair: None) -> Iterator[None]:
    """Begin with the rails as the machines came, and leave them like that."""
    back_to_hikari()
    yield
    back_to_hikari()
    on_both(_TRACES)
