"""Every ported saga on real servers: success, failure, a killed process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import pytest

from tests.patterns.pattern import PORTED, Pattern, patterns
from tests.patterns.player import Row

SAGAS = {pattern.name: pattern for pattern in patterns(PORTED)}


@pytest.mark.slow  # examples of test_patterns.py and of tests/integration/participant, in the words of others
@pytest.mark.parametrize("pattern", SAGAS.values(), ids=SAGAS.keys())
def test_ported_saga(pattern: Pattern, plays: Mapping[str, Future[Row]]) -> None:
    plays[pattern.name].result()
