"""Every pattern on real servers: success, failure, a killed process. `make patterns` runs this and prints the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pytest

from tests.patterns.pattern import Pattern, patterns
from tests.patterns.player import Row
from tests.patterns.table import RECORD, to_record

EVERY_RUN = ("half-message", "saga")
"""`make test` plays these; what the others are made of, tests/integration visits one by one."""


def _parameters() -> list[object]:
    marks = {True: [], False: [pytest.mark.slow]}
    return [pytest.param(pattern, id=pattern.name, marks=marks[pattern.name in EVERY_RUN]) for pattern in patterns()]


@pytest.mark.parametrize("pattern", _parameters())
def test_pattern(
    pattern: Pattern, plays: Mapping[str, Future[Row]], record_property: Callable[[str, object], None]
) -> None:
    record_property(RECORD, to_record(plays[pattern.name].result()))
