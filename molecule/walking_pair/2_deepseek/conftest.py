"""The steps of this story follow on from each other: after one fails, the others mean nothing."""

from collections.abc import Generator, Iterator

import pytest
from stories import preparation


class _SoFar:
    failed = ""


@pytest.fixture(scope="session", autouse=True)
def leaves_the_pair_prepared(pair: None) -> Iterator[None]:
    """Spare the next story the plays that this one has just seen to change nothing more."""
    yield
    if not _SoFar.failed:
        preparation.note()


@pytest.fixture
def story_so_far(request: pytest.FixtureRequest) -> None:
    if _SoFar.failed:
        pytest.fail(f"the story ended at {_SoFar.failed}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and "story_so_far" in getattr(item, "fixturenames", ()) and not _SoFar.failed:
        _SoFar.failed = item.name
    return report
