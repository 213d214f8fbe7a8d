"""The types that PostgreSQL gives to the parameters of a statement, which only the server knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from sagas.sql_text.parsed import ParsedSql


async def parameter_types(
    connection: AsyncConnection, statement: ParsedSql, values: Mapping[str, Any]
) -> Mapping[str, int]:
    """Object identifiers by name, without running the statement. Raises SQLAlchemy's errors."""
    import psycopg

    raw: Any = (await connection.get_raw_connection()).driver_connection
    try:
        async with raw.lock:
            return await raw.wait(types_of(raw, statement, values))
    except psycopg.Error as error:
        sent = statement.render("pyformat").text  # in which the error finds the names of the parameters
        raise DBAPIError.instance(sent, values, error, psycopg.Error, dialect=connection.dialect) from error


def sent_types(transformer: Any, statement: ParsedSql, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The types that psycopg gives to the parameters, in the statement's order; 0: the place decides, as for text.

    ``transformer``: psycopg's, which remembers how it writes the values of each class.
    """
    from psycopg import ProgrammingError
    from psycopg.adapt import PyFormat

    def sent_type(value: Any) -> int:
        try:
            return 0 if value is None else transformer.get_dumper(value, PyFormat.AUTO).oid
        except ProgrammingError:  # a value that SQLAlchemy converts
            return 0

    return tuple(sent_type(values[name]) for name in statement.parameters)


def types_of(raw: Any, statement: ParsedSql, values: Mapping[str, Any]) -> Any:
    """Ask for the type of each parameter, in the way of psycopg's generators: of text that of its place."""
    import psycopg
    from psycopg import generators
    from psycopg.adapt import Transformer
    from psycopg.pq import DiagnosticField, ExecStatus

    text = statement.render("numeric_dollar").text
    raw.pgconn.send_prepare(b"", text.encode(), sent_types(Transformer(raw), statement, values))
    (*_, result) = yield from generators.execute(raw.pgconn)
    if result.status == ExecStatus.COMMAND_OK:
        raw.pgconn.send_describe_prepared(b"")
        (*_, result) = yield from generators.execute(raw.pgconn)
    if result.status != ExecStatus.COMMAND_OK:
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        message = result.error_message.decode(errors="replace")
        raise psycopg.errors.lookup(state)(message, info=result, encoding="utf-8")
    return {name: result.param_type(at) for at, name in enumerate(statement.parameters)}
