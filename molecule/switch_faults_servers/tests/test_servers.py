"""Servers, units, ports and memory fail in a switch: exactly one server answers in the end."""

import pytest
from stories.fire import Case, Matrix, in_order
from stories.fire_servers import CASES

SCENARIO = "servers"


@pytest.mark.parametrize("case", in_order(CASES), ids=lambda case: case.name)
def test_in_the_end(case: Case, matrix: Matrix) -> None:
    matrix.tell(case)
