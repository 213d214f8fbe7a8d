"""One look for rights of other roles in each database of a server, however many pools the tests of a process open.

PostgreSQL plans that query for twenty milliseconds of a core, and most tests open several pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from saga_activities.foreign_rights import _RightsCheck
from tests.helpers.database_servers import DatabaseServer

_look = _RightsCheck.__call__


@contextmanager
def looking_once(server: DatabaseServer) -> Iterator[None]:
    """A pool does not look where another one of the same role has found nothing."""
    clean: set[tuple[object, ...]] = set()

    def look_unless_clean(check: _RightsCheck, connection: Any) -> None:
        info = connection.info
        place = (info.port, info.dbname, info.user, check._trusted)
        if place not in clean:
            _look(check, connection)
            if info.port == server.port and not check._logged:
                clean.add(place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_RightsCheck, "__call__", look_unless_clean)
        yield


@contextmanager
def looking_always() -> Iterator[None]:
    """Each pool looks, as in operation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_RightsCheck, "__call__", _look)
        yield
