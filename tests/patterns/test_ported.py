"""Every ported saga on real servers: success, failure, a killed process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import pytest

from tests.helpers.slow_parameters import mostly_slow
from tests.patterns.pattern import PORTED, Pattern, patterns
from tests.patterns.player import Row

SAGAS = {pattern.name: pattern for pattern in patterns(PORTED)}
EVERY_RUN = {"camel-lra"}
"""Its participant is a class with `@participant`; `make test-long` plays the others."""


@pytest.mark.parametrize("pattern", mostly_slow(SAGAS, EVERY_RUN, SAGAS))
def test_ported_saga(pattern: Pattern, plays: Mapping[str, Future[Row]]) -> None:
    plays[pattern.name].result()
