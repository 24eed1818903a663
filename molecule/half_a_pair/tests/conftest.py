"""What both halves of this scenario need."""

from collections.abc import Iterator

import pytest
from stories.machines import Fingerprint, fingerprint
from stories.servers import assert_hikari_alone, back_to_hikari


@pytest.fixture(scope="module")
def as_it_was() -> Iterator[Fingerprint]:
    """The pair before all of these refusals; after each of them it must still look like this."""
    back_to_hikari()
    yield fingerprint()
    assert_hikari_alone()
