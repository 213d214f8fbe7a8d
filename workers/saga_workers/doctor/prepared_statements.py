"""Lets a database prepare one statement: nothing is executed, and nothing stays.

PostgreSQL parses and plans (``PREPARE``, ``EXPLAIN EXECUTE``, which also checks rights), MySQL and MariaDB prepare, and
SQLite compiles (``EXPLAIN``). Drivers send types of parameters that are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.table_engines import table_problem
from saga_activities.parameters.compared_columns import paired_problem
from saga_activities.parameters.parameter_errors import (
    AMBIGUOUS,
    SYNTAX_ERROR,
    UNDEFINED,
    what_to_write,
    with_names,
)
from saga_workers.doctor.parameter_types import possible_types
from saga_workers.doctor.postgresql_attempts import PostgresqlAttempts
from saga_workers.runtime.database_access import driver_message
from sagas.sql_text.dialects import NAMES
from sagas.sql_text.parameters.places_apart import with_places_apart
from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.sql_text.sql_statements import main_keyword
from sagas.sql_text.written_tables import changed_tables

MISSING_TABLE = "create the table, or correct its name"
_NAME = "saga_doctor"
_NOT_PREPARABLE = ("CALL", "NOTIFY", "LOCK")
_HELP: Mapping[str | int, str] = {
    **dict.fromkeys(("42P01", 1146, "no such table"), MISSING_TABLE),
    **dict.fromkeys(("42703", 1054, "no such column", "has no column"), "create the column, or correct its name"),
    "42704": "create the type, or correct its name",
    **dict.fromkeys(("42883", 1305, 1630, "no such function"), "create the function, or cast its arguments"),
    **dict.fromkeys(
        ("42501", 1142, 1143, 1044, 1370, "readonly"), "grant the right to the user of the connection's url"
    ),
}
_ANY_HELP = "correct the statement; the position is that of the statement, or of the place that the database names"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A database's refusal of a statement. ``offset`` is the place in the author's text, if it names it.

    ``is_prepared``: the database would take it, and the step refuses it.
    """

    why: str
    help: str
    offset: int = 0
    is_prepared: bool = False


class NotChecked(Exception):
    """A statement that the database cannot judge without running it."""


async def prepare(connection: AsyncConnection, parsed: ParsedSql, *, takes_literals: bool = False) -> Refusal | None:
    """Return the refusal of a statement; None if the database prepares it.

    The connection is in autocommit mode, and gets settings of its own: it must not be used for anything else.
    ``takes_literals``: the values of its parameters become literals, as in the inputs of Spark steps. Raises
    :class:`NotChecked`, and SQLAlchemy's errors if the database cannot be used.
    """
    match connection.dialect.name:
        case "postgresql":
            return await _prepare_postgresql(connection, parsed, takes_literals=takes_literals)
        case "sqlite":
            return await _prepare_sqlite(connection, parsed)
        case _:
            return await _prepare_mysql(connection, parsed)


async def _prepare_postgresql(
    connection: AsyncConnection, parsed: ParsedSql, *, takes_literals: bool
) -> Refusal | None:
    import psycopg

    keyword = main_keyword(parsed)
    if keyword in _NOT_PREPARABLE:
        raise NotChecked(f"PostgreSQL cannot prepare {keyword}")
    raw: Any = (await connection.get_raw_connection()).driver_connection
    # The driver would prepare what it sends repeatedly, such as BEGIN, and DEALLOCATE ALL would take that from it.
    raw.prepare_threshold = None
    attempts = PostgresqlAttempts(raw, parsed, with_places_apart(parsed))
    possible = None
    try:
        refused = await attempts.prepare({})
        types: Mapping[str, str] | None = {}
        if refused is not None:
            with_numbers = PostgresqlAttempts(raw, parsed, parsed)  # a number has one type at all places
            possible = await possible_types(parsed, refused, with_numbers.prepare)
            attempts, types = with_numbers, None if possible is None else possible.types
        if types is not None:
            refused = await attempts.explain(types)
            if refused is None and possible is not None:
                raise NotChecked(possible.why)
    except psycopg.OperationalError as busy:
        raise NotChecked(f"the database was busy: {driver_message(busy)}") from None
    if refused is None:
        repeated = _repeated_name(attempts.columns) if takes_literals else None
        help = "name each column once, or give one an alias with `as`"
        return None if repeated is None else Refusal(repeated, help, is_prepared=True)
    message = with_names(driver_message(refused.error), refused.names)
    if refused.code.startswith("23"):
        raise NotChecked(f"it refuses NULL for a parameter: {message}")
    help = _HELP.get(refused.code, _ANY_HELP)
    if refused.code == "42883" and _begins_operator(parsed, refused.offset):
        help = "cast the operands to types that have the operator, or create it"
    if possible is not None and possible.types is None:
        help = possible.advice
    if refused.code not in (AMBIGUOUS, UNDEFINED):  # about types that only a run has
        help = what_to_write(refused.code, message, parsed) or help
    if refused.code == SYNTAX_ERROR and takes_literals and parsed.parameters:
        why = "it may need literals (`date :day`), which a prepared statement cannot have; write casts (`:day::date`)"
        raise NotChecked(why)
    return Refusal(message, help, refused.offset or 0)


def _repeated_name(columns: Sequence[str]) -> str | None:
    """The sentence about two columns that have one name for Spark, which ignores case; None if there are none."""
    folded = [name.lower() for name in columns]
    for at, name in enumerate(folded):
        if name in folded[:at]:
            both = f"{columns[folded.index(name)]}, {columns[at]}"
            return f"the input has two columns of the same name ({both}), and Spark ignores case"
    return None


_OPERATOR_WORDS = ("like", "ilike", "not", "similar", "in", "between", "is")


def _begins_operator(parsed: ParsedSql, offset: int | None) -> bool:
    return any(
        token.start == offset and (token.kind == "operator" or parsed.text_of(token).lower() in _OPERATOR_WORDS)
        for token in parsed.tokens
    )


async def _prepare_mysql(connection: AsyncConnection, parsed: ParsedSql) -> Refusal | None:
    await connection.exec_driver_sql("SET SESSION lock_wait_timeout = 2")
    await connection.exec_driver_sql("SET @saga_doctor = %s", (parsed.render("qmark").text,))
    try:
        await connection.exec_driver_sql(f"PREPARE {_NAME} FROM @saga_doctor")
    except DBAPIError as error:
        code = error.orig.args[0] if error.orig is not None and error.orig.args else 0
        if code == 1295:
            raise NotChecked(f"{NAMES[parsed.dialect]} cannot prepare {main_keyword(parsed)}") from None
        if code == 1205:
            raise NotChecked("a table is locked") from None
        if error.connection_invalidated:
            raise
        return Refusal(driver_message(error), _HELP.get(code, _ANY_HELP))
    await connection.exec_driver_sql(f"DEALLOCATE PREPARE {_NAME}")

    async def query(text: str, values: Mapping[str, Any]) -> Sequence[Any]:
        rendered = parse_sql(text, parsed.dialect).render("format")
        return (await connection.exec_driver_sql(rendered.text, rendered.values(values))).mappings().all()

    async def describe(text: str) -> Sequence[tuple[str, int]]:
        result = await connection.exec_driver_sql(parse_sql(text, parsed.dialect).render("format").text)
        description: Any = result.cursor.description if result.cursor is not None else ()
        return [(name, kind) for name, kind, *_ in description or ()]

    if (problem := await table_problem(changed_tables(parsed), query)) is not None:
        return Refusal(problem, "convert the table to InnoDB", is_prepared=True)
    problem = await paired_problem(parsed, (), query, describe)
    help = "write a cast, so that values of one kind are compared or assigned"
    return None if problem is None else Refusal(problem, help, is_prepared=True)


async def _prepare_sqlite(connection: AsyncConnection, parsed: ParsedSql) -> Refusal | None:
    rendered = parsed.render("qmark")
    raw: Any = (await connection.get_raw_connection()).driver_connection
    # A row of EXPLAIN has the statement's literals as text, and the bytes of a blob need be none.
    raw.text_factory = _decoded
    try:
        await connection.exec_driver_sql(f"EXPLAIN {rendered.text}", (None,) * len(rendered.names))
        if main_keyword(parsed) not in ("SELECT", "VALUES"):
            await _refuse_read_only(connection)
    except DBAPIError as error:
        why = driver_message(error)
        if "locked" in why:
            raise NotChecked("another process writes to the database") from None
        help = next((help for text, help in _HELP.items() if isinstance(text, str) and text in why), _ANY_HELP)
        return Refusal(why, help)
    return None


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


async def _refuse_read_only(connection: AsyncConnection) -> None:
    """Raise DBAPIError if the file cannot be written: SQLite says so only to a statement that writes, here nothing."""
    version = (await connection.exec_driver_sql("PRAGMA user_version")).scalar_one()
    await connection.exec_driver_sql("BEGIN")
    try:
        await connection.exec_driver_sql(f"PRAGMA user_version = {int(version)}")
    finally:
        await connection.exec_driver_sql("ROLLBACK")
