"""The dialects of SQL that authors write, and the dialect of a connection's URL."""

from __future__ import annotations

from typing import Literal

Dialect = Literal["postgresql", "mysql", "mariadb", "sqlite", "spark"]

DATABASES: tuple[Dialect, ...] = ("postgresql", "mysql", "sqlite")
"""One dialect of each kind of database that a connection may have; MariaDB's text is read as MySQL's."""

NAMES = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
    "spark": "Spark SQL",
}
"""The names that people read in messages."""

_SCHEMES: dict[str, Dialect] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mariadb",
    "sqlite": "sqlite",
}


def dialect_of_url(url: str | None) -> Dialect | None:
    """The dialect of a database; without a URL it is the embedded PostgreSQL. None: the scheme is not supported."""
    if url is None:
        return "postgresql"
    return _SCHEMES.get(url.partition(":")[0].partition("+")[0].strip().lower())
