"""Set-up for all tests: where checkpoints are built, and the logs of processes beside a failed test."""

from collections.abc import Generator

import pytest

from support import checkpoints, processes


@pytest.fixture(scope="session", autouse=True)
def _checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoints.set_root(tmp_path_factory.mktemp("checkpoints"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for process in processes.LIVE:
            report.sections.append((f"log of {process.log_path.name}", process.log_tail()))
    return report
