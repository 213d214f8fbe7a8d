"""Names in SQL that is printed as an advice: a role or a table may be called like another statement."""

from __future__ import annotations


def sql_name(name: str) -> str:
    """A name as PostgreSQL quotes it."""
    return '"' + name.replace('"', '""') + '"'
