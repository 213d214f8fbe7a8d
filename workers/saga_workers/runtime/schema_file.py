"""A project's schema file: its statements, applied completely each time."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.runtime.database_access import driver_errors, driver_message
from saga_workers.runtime.lock_waits import LockWatch, has_waited_too_long
from sagas.errors import SagaError, UsageError
from sagas.settings import SqlConnection
from sagas.settings.trust import require_own
from sagas.sql_text.tokens import INSIGNIFICANT, SqlToken, shown, split_tokens

_SHOWN = 100
"""Characters of a statement in a message."""


def schema_text(connection: SqlConnection) -> str | None:
    """The project's schema file; None without one.

    Raises UsageError if it cannot be read, or belongs to another user.
    """
    file = connection.schema_file
    if file is None:
        return None
    require_own(file)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"connections.{connection.name}.schema: {file} cannot be read: {reason}") from error


async def apply_schema(engine: AsyncEngine, settings: SqlConnection, text: str, watch: LockWatch) -> None:
    """Run a file of statements in one transaction if the database can (MySQL and MariaDB commit each DDL statement).

    Raises SagaError, with the line and the statement that the database refuses, and the driver's error if a lock was
    not granted in time.
    """
    async with engine.begin() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        for offset, statement in split_statements(text, engine.dialect.name):
            watch.statement = f"{settings.schema_file}:{_line(text, offset)}"
            try:
                match engine.dialect.name:
                    case "postgresql":
                        await driver.execute(statement)
                    case "sqlite":
                        await driver.executescript(f"{statement};")
                    case _:
                        await connection.exec_driver_sql(statement.replace("%", "%%"))
            except (*driver_errors(), DBAPIError) as error:
                if has_waited_too_long(error):
                    raise
                position = getattr(getattr(error, "diag", None), "statement_position", None)
                line = _line(text, offset + int(position or 1) - 1)
                raise SagaError(
                    f"{settings.schema_file}:{line}: the database of {settings.name} refuses"
                    f" `{shown(statement, _SHOWN)}`: {driver_message(error)}",
                    help="correct the file, and repeat the command; its statements run each time, so write"
                    " `create table if not exists`; the engine's own tables in this database are there already",
                ) from error


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def split_statements(text: str, dialect: str = "mysql") -> Iterator[tuple[int, str]]:
    """Each statement of a file, with its offset.

    A semicolon inside of a trigger or a function ends no statement. SQLite says itself where one is complete; MySQL and
    MariaDB have a statement end at a ``;`` at the end of a line (comments may follow there); a file for PostgreSQL with
    the body of a function outside of quotes (``begin atomic``) is one statement. Raises UsageError for a string that is
    not closed.
    """
    if dialect == "postgresql" and _ATOMIC.search(text):
        yield 0, text
        return
    tokens = split_tokens(text, dialect)
    start: int | None = None
    for at, token in enumerate(tokens):
        if token.kind not in (*INSIGNIFICANT, "end") and start is None:
            start = token.start
        elif token.kind == "end" and start is not None and _is_end(text, start, tokens, at, dialect):
            yield start, text[start : token.start].rstrip()
            start = None
    if start is not None:
        yield start, text[start:].rstrip()


_ATOMIC = re.compile(r"\bbegin\s+atomic\b", re.IGNORECASE)


def _is_end(text: str, start: int, tokens: Sequence[SqlToken], at: int, dialect: str) -> bool:
    if dialect == "postgresql":
        return True
    if dialect == "sqlite":
        return sqlite3.complete_statement(text[start : tokens[at].end])
    return _ends_line(text, tokens[at + 1 :])


def _ends_line(text: str, following: Sequence[SqlToken]) -> bool:
    """True if only comments follow on the same line."""
    for token in following:
        if "\n" in text[token.start : token.end] or token.kind not in INSIGNIFICANT:
            return token.kind in INSIGNIFICANT
    return True
