"""Classifies database errors: a failure of the infrastructure, or an error of the statement."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import exc as sa

from saga_activities.engine_tables import ENGINE_TABLES
from saga_activities.foreign_rights import ForeignRights
from saga_activities.guard.sqlstates import (
    LOCK_TIMEOUT,
    OF_VALUES,
    TIMED_OUT,
    Healing,
    healing_of,
    is_answer,
    is_connection_lost,
    is_infrastructure,
    is_of_the_connection,
    native_code,
    sqlstate_of,
    what_to_correct,
)
from saga_activities.parameters.parameter_errors import (
    OF_PARAMETERS,
    own_hint,
    sent_names,
    what_to_write,
    with_names,
)
from sagas.errors import InfrastructureError
from sagas.protocol.outcomes import Failure, Outcome
from sagas.sql_text.parsed import parse_sql
from sagas.sql_text.tokens import RefusedStatement, shown
from sagas.text.author_values import text_of

_WRITE_REFUSED = ("25006", 1792)
"""A statement that writes, in a transaction that only reads: PostgreSQL, MySQL and MariaDB."""

_SQLITE_READONLY = 8

_MISSING_TABLE_CODES = ("42P01", 1146, 1)  # 1: of SQLite, which has no code of its own for it

_ENGINE_TABLE = re.compile(rf"[\"'.»«„“ ]({'|'.join(sorted(ENGINE_TABLES))})\b")
"""A table of the engine in the sentence that says what is missing; the quotation marks depend on the language."""

STATEMENT_NOTE = "statement: "
"""How the note of an exception begins that has the failed statement, with its placeholders."""

VALUE_NOTE = "value: "
"""How the note of an exception begins that names the parameter at fault, and its column."""

_LAST_STATEMENTS = ("COMMIT", "PREPARE TRANSACTION")
"""The engine's own statements that check deferred constraints and run deferred triggers."""

_OFFSET_TIME = re.compile(r"Incorrect (?:datetime|timestamp) value: '[^']*[+-]\d\d:\d\d'")
_MAX_STATEMENT = 300
MAX_QUOTED = 120
"""Characters of the statement in a message; its details have more."""
_MAX_MESSAGE = 500


class NoFreeConnection(InfrastructureError):
    """No connection of the pool was free, or a new one open, in time."""


@dataclass(frozen=True, slots=True)
class ClassifiedError:
    """A database error, classified.

    ``infrastructure``: not caused by the statement; retry. ``connection_lost``: a COMMIT that was in flight may or may
    not have happened. ``timed_out``: the attempt's own time ran out. ``healing``: what a retry can do about an error of
    the statement; None if nobody can say. ``code`` is that of the database, ``sqlstate`` what it means in all of them.
    ``answered``: the database has given this answer, so its connection is well.
    """

    message: str
    infrastructure: bool
    connection_lost: bool = False
    timed_out: bool = False
    healing: Healing | None = None
    code: str | int | None = None
    sqlstate: str = ""
    answered: bool = True

    @property
    def of_the_connection(self) -> bool:
        """Return whether only what the connection has prepared is at fault, which is gone after the rollback."""
        return is_of_the_connection(self.sqlstate)


def classify_database_error(error: BaseException) -> ClassifiedError | None:
    """Classify ``error``; None if it does not come from a database or a network."""
    if isinstance(error, InfrastructureError | ForeignRights):
        answered = not isinstance(error, NoFreeConnection)
        message = str(error) or "a database or a network failed"
        return ClassifiedError(message, infrastructure=True, answered=answered)
    if isinstance(error, sa.TimeoutError):
        return ClassifiedError("no connection to the database was free in time", infrastructure=True, answered=False)
    origin = error.orig if isinstance(error, sa.DBAPIError) else error
    is_of_network = isinstance(origin, TimeoutError | asyncio.IncompleteReadError | OSError)
    sqlstate, code = sqlstate_of(origin), native_code(origin)
    if is_of_network or (isinstance(error, sa.DBAPIError) and error.connection_invalidated):
        answered = not is_of_network and sqlstate is not None and is_answer(sqlstate)
        return ClassifiedError(_error_message(origin), infrastructure=True, connection_lost=True, answered=answered)
    if sqlstate is None:
        if not isinstance(error, sa.SQLAlchemyError):
            return None
        healing = "never" if _is_refused_by_the_driver(error, origin) else None
        return ClassifiedError(_error_message(origin), infrastructure=False, healing=healing)
    if sqlstate == TIMED_OUT:
        message = "the statement exceeded the time of the attempt"
        return ClassifiedError(message, infrastructure=False, timed_out=True, answered=False)
    if _concerns_engine_tables(origin, code):
        return _missing_table(origin)
    return ClassifiedError(
        _error_message(origin),
        infrastructure=is_infrastructure(sqlstate),
        connection_lost=is_connection_lost(sqlstate),
        healing=healing_of(sqlstate),
        code=getattr(origin, "sqlite_errorname", code),
        sqlstate=sqlstate,
        answered=is_answer(sqlstate),
    )


def _is_refused_by_the_driver(error: sa.SQLAlchemyError, origin: Any) -> bool:
    """Return whether the statement was not sent, because its parameters have no form in this database."""
    if not isinstance(error, sa.StatementError):
        return False
    named = type(origin).__name__ in ("ProgrammingError", "DataError", "NotSupportedError")
    return (named and "closed" not in str(origin)) or not isinstance(error, sa.DBAPIError)


def _concerns_engine_tables(origin: Any, code: str | int | None) -> bool:
    """True if a table of the engine is missing."""
    return code in _MISSING_TABLE_CODES and _ENGINE_TABLE.search(_sentence(origin)) is not None


def concerns_engine_tables(error: BaseException) -> bool:
    """Return whether a table of the engine is missing."""
    origin = error.orig if isinstance(error, sa.DBAPIError) else error
    return _concerns_engine_tables(origin, native_code(origin))


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a statement has waited too long for a lock: it had no effect, and its transaction is as
    before it.
    """
    return sqlstate_of(error.orig if isinstance(error, sa.DBAPIError) else error) == LOCK_TIMEOUT


def is_refused_write(error: BaseException) -> bool:
    """Return whether a transaction that only reads has refused the statement."""
    origin = error.orig if isinstance(error, sa.DBAPIError) else error
    code = native_code(origin)
    if "sqlite" in type(origin).__module__:
        return isinstance(code, int) and code & 0xFF == _SQLITE_READONLY
    return code in _WRITE_REFUSED


def _missing_table(origin: Any) -> ClassifiedError:
    named = _ENGINE_TABLE.search(_sentence(origin))
    table = named[1] if named else "of saga"
    return ClassifiedError(
        f"the table {table} is missing in this database; run `saga setup`, which creates the tables of the engine",
        infrastructure=True,
    )


def _error_message(origin: Any) -> str:
    text = _sentence(origin)
    if (diagnostic := getattr(origin, "diag", None)) is not None and diagnostic.message_primary:
        # The detail of an error of rows or texts quotes them, which belongs in no message; others name types and names.
        quotes = str(getattr(origin, "sqlstate", "")).startswith(("23", "P0", "22P02"))
        hint = diagnostic.message_hint and own_hint(diagnostic.message_hint)
        more = (None if quotes else diagnostic.message_detail, hint)
        text = "; ".join([text, *(" ".join(part.split()).rstrip(".") for part in more if part)])
    return text[:_MAX_MESSAGE] or type(origin).__name__


def message_of(error: BaseException) -> str:
    """The sentence of a database in an error, in one line without the statement; of any other error its text."""
    classified = classify_database_error(error)
    return text_of(error) if classified is None else classified.message


def _sentence(origin: Any) -> str:
    """Return what the database says, without its number, the lines of the statement, and the values of a row."""
    if isinstance(origin, sa.StatementError) and origin.orig is not None:
        origin = origin.orig
    diagnostic = getattr(origin, "diag", None)
    primary = None if diagnostic is None else diagnostic.message_primary
    match getattr(origin, "args", ()):
        case (int(), words, *_):
            text = words
        case (words, *_) if isinstance(origin, sa.SQLAlchemyError):  # whose text also has the statement
            text = words
        case _:
            text = origin
    return " ".join(str(primary or text).split())


def failed_outcome(classified: ClassifiedError, error: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that was rolled back for certain."""
    if classified.infrastructure:
        failure = Failure("Infrastructure", classified.message)
        return Outcome("failed", failure=failure, infrastructure=True, answered=classified.answered)
    origin = getattr(error, "orig", None) or error
    kind = "Timeout" if classified.timed_out or origin is None else type(origin).__name__
    if classified.timed_out:
        return Outcome("failed", failure=Failure(kind, classified.message), answered=classified.answered)
    statement = None if error is None else failed_statement(error)
    code = {} if classified.code is None else {"code": classified.code}
    never = classified.healing == "never"
    details = code | ({} if statement is None else {"statement": statement}) | ({"cannot_heal": True} if never else {})
    failure = Failure(kind, _explained(*_in_names(classified, error), statement), details)
    is_conflict = classified.healing == "perhaps"
    return Outcome("failed", failure=failure, retryable=not never, conflict=is_conflict, answered=classified.answered)


def _in_names(classified: ClassifiedError, error: BaseException | None) -> tuple[ClassifiedError, str | None]:
    """The error with the author's names of parameters, and what to write instead if one of them is at fault."""
    query, written = getattr(error, "statement", None), None if error is None else _whole_statement(error)
    if error is not None and (value := _note(error, VALUE_NOTE)) is not None:
        sentence = _sentence(getattr(error, "orig", None) or error)
        classified = replace(classified, message=classified.message.replace(sentence, f"{sentence}, {value}", 1))
    if _OFFSET_TIME.search(classified.message):
        return classified, "a datetime has no offset there: give the time in UTC, such as 2026-05-01T10:00:00Z"
    if not isinstance(query, str) or written is None or classified.code not in OF_PARAMETERS:
        return classified, None
    try:
        parsed = parse_sql(written, "postgresql")
    except RefusedStatement:
        return classified, None
    message = with_names(classified.message, sent_names(query, parsed))
    return replace(classified, message=message), what_to_write(classified.sqlstate, message, parsed)


def failed_statement(error: BaseException) -> str | None:
    """The author's statement that has raised ``error``, on one line; None if it is not known.

    Its note is the last: that of the session may have what the engine has made of it.
    """
    text = _whole_statement(error)
    return None if text is None else shown(text, _MAX_STATEMENT)


def _whole_statement(error: BaseException) -> str | None:
    return _note(error, STATEMENT_NOTE)


def _note(error: BaseException, beginning: str) -> str | None:
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(beginning)]
    return notes[-1].removeprefix(beginning) if notes else None


def refused_text(error: BaseException) -> tuple[str, str] | None:
    """The database's sentence about a value, and its words about the place; None for any other error."""
    origin = getattr(error, "orig", None)
    sqlstate = None if origin is None else sqlstate_of(origin)
    if sqlstate is None or not sqlstate.startswith(OF_VALUES):
        return None
    return _sentence(origin), getattr(getattr(origin, "diag", None), "context", None) or ""


def _explained(classified: ClassifiedError, instead: str | None, statement: str | None) -> str:
    """The database's words in a sentence of the engine, before the statement they are about, which may be long."""
    code = "" if classified.code is None else f" ({classified.code})"
    where = "" if statement is None else f", in `{shown(statement, MAX_QUOTED)}`"
    if statement is not None and statement.startswith(_LAST_STATEMENTS):
        where += ", which checks what is deferred"
    match classified.healing:
        case "never":
            help = instead or what_to_correct(
                classified.sqlstate,
                is_file=str(classified.code).startswith("SQLITE"),
                about_json="json" in classified.message.lower(),
            )
            return f"the database cannot run the statement: {classified.message}{code}{where}; {help}"
        case "perhaps" if classified.of_the_connection:
            help = "do not send DEALLOCATE ALL, and let a pooler keep the session of a connection"
            return f"the connection has lost what was prepared for it: {classified.message}{code}{where}; {help}"
        case "perhaps":
            return f"the statement contradicts the rows in the database: {classified.message}{code}{where}"
    return f"the database refuses the statement: {classified.message}{code}{where}"
