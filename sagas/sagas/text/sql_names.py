"""Names and texts in SQL, quoted: a table may be named like another statement, and a text may have apostrophes."""

from __future__ import annotations


def sql_name(name: str) -> str:
    """A name as PostgreSQL and SQLite quote it."""
    return '"' + name.replace('"', '""') + '"'


def backquoted(name: str) -> str:
    """A name as MySQL, MariaDB and Spark quote it; a dot in it then separates nothing."""
    return "`" + name.replace("`", "``") + "`"


def sql_text(text: str) -> str:
    """A text as a literal of standard SQL, in which a backslash is a character like others."""
    return "'" + text.replace("'", "''") + "'"
