from __future__ import annotations

from pathlib import Path

import pytest

from sagas.errors import UsageError
from sagas.settings.model import async_url

ROOT = Path("/project")


@pytest.mark.parametrize(
    ("written", "used"),
    [
        ("postgresql://u:p@h:1/d?x=1", "postgresql+psycopg://u:p@h:1/d?x=1"),
        ("postgres://h/d", "postgresql+psycopg://h/d"),
        ("postgresql+psycopg2://h/d", "postgresql+psycopg://h/d"),
        # a driver that works asynchronously was named on purpose
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg://h/d"),
        ("mysql+pymysql://h/d", "mysql+asyncmy://h/d"),
        ("mariadb://h/d", "mariadb+asyncmy://h/d"),
        # three slashes: relative to the project; four: absolute
        ("sqlite:///data/x.db?mode=ro", "sqlite+aiosqlite:////project/data/x.db?mode=ro"),
        ("sqlite:////data/x.db", "sqlite+aiosqlite:////data/x.db"),
        ("sqlite://", "sqlite+aiosqlite://"),
        ("sqlite:///:memory:", "sqlite+aiosqlite:///:memory:"),
    ],
)
def test_the_driver_is_asynchronous(written: str, used: str) -> None:
    assert async_url(written, ROOT) == used


@pytest.mark.parametrize("text", ["", "shop", "://x"])
def test_an_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="has the form postgresql://"):
        async_url(text, ROOT)
