"""The tool is struck in each phase of a switch: exactly one server answers in the end."""

import pytest
from stories.fire import Case, Matrix, in_order
from stories.fire_tool import CASES

SCENARIO = "tool"


@pytest.mark.parametrize("case", in_order(CASES), ids=lambda case: case.name)
def test_in_the_end(case: Case, matrix: Matrix) -> None:
    matrix.tell(case)
