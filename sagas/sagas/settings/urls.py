"""Database URLs as people write them, turned into URLs with an asynchronous driver."""

from __future__ import annotations

from pathlib import Path

from sagas.errors import UsageError

# Only drivers that cannot work asynchronously are replaced; one that was named on purpose stays.
_ASYNC_DRIVER = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg2": "postgresql+psycopg",
    "mysql": "mysql+asyncmy",
    "mysql+pymysql": "mysql+asyncmy",
    "mysql+mysqldb": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
    "mariadb+pymysql": "mariadb+asyncmy",
    "sqlite": "sqlite+aiosqlite",
    "sqlite+pysqlite": "sqlite+aiosqlite",
}


def async_url(url: str, root: Path) -> str:
    """The URL with an asynchronous driver; a relative SQLite file is one of the project folder.

    Raises:
        UsageError: the text is no URL.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme:
        raise UsageError("A database url looks like postgresql://user@host:5432/name.")
    driver = _ASYNC_DRIVER.get(scheme, scheme)
    if driver.startswith("sqlite"):
        rest = _sqlite_path(rest, root)
    return f"{driver}://{rest}"


def _sqlite_path(rest: str, root: Path) -> str:
    """Three slashes are a relative file and four an absolute one; every command runs from any folder."""
    path, question, query = rest.removeprefix("/").partition("?")
    if not path or path.startswith((":memory:", "/", "file:")):
        return rest
    return f"/{root / path}{question}{query}"
