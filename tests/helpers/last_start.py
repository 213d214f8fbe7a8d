"""`--no-tests-after`: a run on a slow machine ends in time, and says how many tests it has not run."""

from __future__ import annotations

import time

import pytest

_NOT_RUN = "not run: the time of this run was over"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-tests-after",
        type=float,
        metavar="TIME",
        help="begin no test after this time, in seconds since the epoch; those that are left are skipped",
    )


def skip_if_late(item: pytest.Item) -> None:
    """Skip the test, before a fixture of it is made, if its run may begin no further one."""
    last_start = item.config.getoption("no_tests_after")
    if last_start is not None and time.time() > last_start:
        pytest.skip(_NOT_RUN)


def count_not_run(skipped: list[pytest.TestReport]) -> int:
    return sum(isinstance(report.longrepr, tuple) and _NOT_RUN in report.longrepr[2] for report in skipped)
