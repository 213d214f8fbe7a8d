"""Plays the selected patterns side by side on shared servers; each test waits for its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.processes import TemporalServer
from tests.patterns.pattern import Pattern
from tests.patterns.player import Row, play
from tests.patterns.stage import Servers

SIDE_BY_SIDE = 7
"""Most of the time a pattern waits, for the timeouts of what was killed."""


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest,
    temporal: TemporalServer,
    postgres_server: DatabaseServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Future[Row]]]:
    # The patterns of this file only: another process of xdist may play those of another one, with the same names.
    own = (item for item in request.session.items if item.path == request.path)
    playing = (item for item in own if "plays" in getattr(item, "fixturenames", ()))
    selected = [pattern for item in playing if (pattern := _pattern_of(item)) is not None]
    broker = request.getfixturevalue("kafka") if any(pattern.uses_kafka for pattern in selected) else None
    servers = Servers(temporal, postgres_server, broker)
    folder = tmp_path_factory.mktemp("patterns")
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        # Spark takes longest.
        ordered = sorted(selected, key=lambda pattern: not pattern.uses_spark)
        yield {pattern.name: pool.submit(play, pattern, servers, folder / pattern.name) for pattern in ordered}


def _pattern_of(item: pytest.Item) -> Pattern | None:
    pattern = getattr(getattr(item, "callspec", None), "params", {}).get("pattern")
    return pattern if isinstance(pattern, Pattern) else None
