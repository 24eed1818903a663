"""The steps of this story follow on from each other: after one fails, the others mean nothing."""

from collections.abc import Generator

import pytest


class _SoFar:
    failed = ""


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
