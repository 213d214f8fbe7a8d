from __future__ import annotations

from pathlib import Path

import pytest

from saga_activities.connections import open_engine
from saga_workers.runtime.databases import open_command_engine
from sagas.errors import UsageError
from sagas.settings import SqlConnection
from sagas.settings.connections import async_url

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


def test_an_unsupported_database_is_refused() -> None:
    with pytest.raises(UsageError, match='databases of "oracle://" are not supported'):
        async_url("oracle://h/x", ROOT)


@pytest.mark.parametrize("text", ["", "shop", "://x"])
def test_an_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must have the form postgresql://"):
        async_url(text, ROOT)


@pytest.mark.parametrize("url", ["nonsense", "postgresql://u:secret@host:abc/x"])
def test_a_wrong_url_names_its_setting_and_no_credential(tmp_path: Path, url: str) -> None:
    connection = SqlConnection(name="shop", root=tmp_path, url_setting=url)
    for open_pool in (open_command_engine, lambda connection: open_engine(connection.name, connection.url, 1)):
        with pytest.raises(UsageError, match=r"^connections\.shop\.url must have the form postgresql://") as raised:
            open_pool(connection)
        assert "secret" not in raised.value.message
