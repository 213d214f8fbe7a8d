"""Classifies database errors: a failure of the infrastructure, or an error of the statement.

Sources: PostgreSQL's appendix A (SQLSTATE), the server error lists of MySQL and MariaDB, SQLite's result codes.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exc as sa

from saga_activities.guard.statement_errors import (
    Healing,
    healing_of_mysql,
    healing_of_postgresql,
    healing_of_sqlite,
    is_of_the_connection,
    is_wraparound,
    what_to_correct,
)
from sagas.errors import InfrastructureError
from sagas.protocol.outcomes import Failure, Outcome
from sagas.sql_text.tokens import shown

_INFRASTRUCTURE_SQLSTATE_CLASSES = ("08", "53", "58")
"""Connection errors, a lack of resources (disk, memory, connections), errors of the operating system."""

_INFRASTRUCTURE_SQLSTATES = frozenset(
    {
        "40001",  # serialization_failure
        "40003",  # statement_completion_unknown
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available: lock_timeout
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P05",  # idle_session_timeout
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
        "25006",  # read_only_sql_transaction: the server is a standby, as after a failover
    }
)

_MYSQL_INFRASTRUCTURE = frozenset(
    {
        1020,  # a snapshot conflict of MariaDB's innodb_snapshot_isolation
        1021,  # disk full
        1037,  # out of memory
        1040,  # too many connections
        1041,  # out of resources
        1053,  # server shutdown in progress
        1077,  # normal shutdown
        1152,  # aborted connection
        1158, 1159, 1160, 1161,  # network errors while reading or writing
        1205,  # lock wait timeout
        1213,  # deadlock
        1317,  # query interrupted
        1792, 1836,  # read only: the transaction, the server, as after a failover; also 1290
        1927,  # connection was killed
        2002, 2003,  # cannot connect
        2006, 2013, 2055,  # the connection is lost
        4031,  # closed because of wait_timeout
    }
)  # fmt: skip

_MYSQL_OPTION_PREVENTS = 1290
_READ_ONLY_OPTION = re.compile("read[-_]only", re.IGNORECASE)
"""The option that 1290 names if the server is a replica; with any other one the statement fails again."""

_MYSQL_CONNECTION_LOST = frozenset({1053, 1077, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2055, 4031})

_SQLITE_INFRASTRUCTURE = frozenset({5, 6, 10, 13, 14, 15})
"""BUSY, LOCKED, IOERR, FULL, CANTOPEN, PROTOCOL."""

_WRITE_REFUSED = ("25006", 1792)
"""A statement that writes, in a transaction that only reads: PostgreSQL, MySQL and MariaDB."""

_LOCK_TIMEOUT = ("55P03", 1205)
"""A statement that has waited too long for a lock: PostgreSQL, MySQL and MariaDB."""

_SQLITE_READONLY = 8

_MISSING_TABLE_CODES = ("42P01", 1146, 1)  # 1: of SQLite, which has no code of its own for it

_ENGINE_TABLE = re.compile(
    r"[\"'.»«„“ ]saga_(guard|outbox|outbox_home|watermark|version|version_seen|request|inbox|image|image_row|row_lock"
    r"|lock|lock_order|lock_request|lock_wait|relay_lease|run|claim|definition|output)\b"
)
"""A table of the engine in the sentence that says what is missing; the quotation marks depend on the language."""

STATEMENT_NOTE = "statement: "
"""How the note of an exception begins that has the failed statement, with its placeholders."""

_LAST_STATEMENTS = ("COMMIT", "PREPARE TRANSACTION")
"""The engine's own statements that check deferred constraints and run deferred triggers."""

_MAX_STATEMENT = 300
_MAX_QUOTED = 120
"""Characters of the statement in a message; its details have more."""
_MAX_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class ClassifiedError:
    """A database error, classified.

    ``infrastructure``: not caused by the statement; retry. ``connection_lost``: a COMMIT that was in flight may or may
    not have happened. ``timed_out``: the attempt's own time ran out. ``healing``: what a retry can do about an error of
    the statement; None: nobody can say. ``code`` is that of the database. ``of_the_connection``: only what the
    connection has prepared is at fault, which is gone after the rollback.
    """

    message: str
    infrastructure: bool
    connection_lost: bool = False
    timed_out: bool = False
    healing: Healing | None = None
    code: str | int | None = None
    of_the_connection: bool = False


def classify_database_error(error: BaseException) -> ClassifiedError | None:
    """Classify ``error``; None if it does not come from a database or a network."""
    if isinstance(error, InfrastructureError):
        return ClassifiedError(str(error) or "a database or a network failed", infrastructure=True)
    if isinstance(error, sa.TimeoutError):
        return ClassifiedError("no connection to the database was free in time", infrastructure=True)
    origin = error.orig if isinstance(error, sa.DBAPIError) else error
    if isinstance(error, sa.DBAPIError) and error.connection_invalidated:
        return ClassifiedError(_error_message(origin), infrastructure=True, connection_lost=True)
    if isinstance(origin, TimeoutError | asyncio.IncompleteReadError | OSError):
        return ClassifiedError(_error_message(origin), infrastructure=True, connection_lost=True)
    code = _error_code(origin)
    if code is None:
        if not isinstance(error, sa.SQLAlchemyError):
            return None
        healing = "never" if _is_refused_by_the_driver(error, origin) else None
        return ClassifiedError(_error_message(origin), infrastructure=False, healing=healing)
    if _concerns_engine_tables(origin, code):
        return _missing_tables()
    if isinstance(code, str):
        return _classify_postgresql(origin, code)
    if "sqlite" in type(origin).__module__:
        return ClassifiedError(
            _error_message(origin),
            infrastructure=code & 0xFF in _SQLITE_INFRASTRUCTURE,
            healing=healing_of_sqlite(code),
            code=getattr(origin, "sqlite_errorname", code),
        )
    return _classify_mysql(origin, code)


def _is_refused_by_the_driver(error: sa.SQLAlchemyError, origin: Any) -> bool:
    """Return whether the statement was not sent, because its parameters have no form in this database."""
    if not isinstance(error, sa.StatementError):
        return False
    named = type(origin).__name__ in ("ProgrammingError", "DataError", "NotSupportedError")
    return (named and "closed" not in str(origin)) or not isinstance(error, sa.DBAPIError)


def _concerns_engine_tables(origin: Any, code: str | int) -> bool:
    """True if a table of the engine is missing."""
    return code in _MISSING_TABLE_CODES and _ENGINE_TABLE.search(_sentence(origin)) is not None


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a statement has waited too long for a lock: it had no effect, and its transaction is as
    before it.
    """
    return _error_code(error.orig if isinstance(error, sa.DBAPIError) else error) in _LOCK_TIMEOUT


def is_refused_write(error: BaseException) -> bool:
    """Return whether a transaction that only reads has refused the statement."""
    origin = error.orig if isinstance(error, sa.DBAPIError) else error
    code = _error_code(origin)
    if "sqlite" in type(origin).__module__:
        return isinstance(code, int) and code & 0xFF == _SQLITE_READONLY
    return code in _WRITE_REFUSED


def _classify_postgresql(origin: Any, code: str) -> ClassifiedError:
    if code == "57014":
        return ClassifiedError("the statement exceeded the time of the attempt", infrastructure=False, timed_out=True)
    lost = code in ("", "57P01", "57P02", "57P05", "25P03", "25P04", "40003") or code.startswith("08")
    infrastructure = lost or code in _INFRASTRUCTURE_SQLSTATES or code[:2] in _INFRASTRUCTURE_SQLSTATE_CLASSES
    return ClassifiedError(
        _error_message(origin),
        infrastructure=infrastructure or is_wraparound(code, origin),
        connection_lost=lost,
        healing=_healing_in_postgresql(origin, code),
        code=code if origin.sqlstate else None,
        of_the_connection=is_of_the_connection(code, origin),
    )


def _classify_mysql(origin: Any, code: int) -> ClassifiedError:
    message, healing = _error_message(origin), healing_of_mysql(code)
    infrastructure = code in _MYSQL_INFRASTRUCTURE
    if code == _MYSQL_OPTION_PREVENTS:
        infrastructure = _READ_ONLY_OPTION.search(message) is not None
        healing = None if infrastructure else "never"
    lost = code in _MYSQL_CONNECTION_LOST
    return ClassifiedError(message, infrastructure, connection_lost=lost, healing=healing, code=code)


def _healing_in_postgresql(origin: Any, code: str) -> Healing | None:
    if origin.sqlstate:
        return healing_of_postgresql(code, origin)
    # Raised by psycopg itself: a parameter of a type that it cannot send.
    return "never" if type(origin).__name__ in ("ProgrammingError", "DataError", "NotSupportedError") else None


def _missing_tables() -> ClassifiedError:
    return ClassifiedError(
        "run `saga setup`: the guard's tables are missing in this database",
        infrastructure=True,
    )


def _error_code(origin: Any) -> str | int | None:
    """SQLSTATE (empty: the client lost the server), MySQL's number, SQLite's result code."""
    if type(origin).__module__.startswith("psycopg"):
        if origin.sqlstate:
            return origin.sqlstate
        # OperationalError without SQLSTATE comes from libpq: the server closed, refused or never answered.
        return "" if type(origin).__name__ in ("OperationalError", "ConnectionTimeout") else "XX000"
    if (sqlite := getattr(origin, "sqlite_errorcode", None)) is not None:
        return int(sqlite)
    arguments = getattr(origin, "args", ())
    if arguments and isinstance(arguments[0], int) and hasattr(origin, "__cause__") and _is_dbapi(origin):
        return arguments[0]
    return None


def _is_dbapi(origin: Any) -> bool:
    return any(base.__name__ in ("Error", "MySQLError") for base in type(origin).__mro__)


def _error_message(origin: Any) -> str:
    text = _sentence(origin)
    if (diagnostic := getattr(origin, "diag", None)) is not None and diagnostic.message_primary:
        # A violated NOT NULL or CHECK has all values of the row as its detail, which belong in no message.
        whole_row = str(getattr(origin, "sqlstate", "")) in ("23502", "23514")
        more = (None if whole_row else diagnostic.message_detail, diagnostic.message_hint)
        text = "; ".join([text, *(" ".join(one.split()).rstrip(".") for one in more if one)])
    return text[:_MAX_MESSAGE] or type(origin).__name__


def _sentence(origin: Any) -> str:
    """Return what the database says, without its number, the lines of the statement, and the values of a row."""
    diagnostic = getattr(origin, "diag", None)
    primary = None if diagnostic is None else diagnostic.message_primary
    match getattr(origin, "args", ()):
        case (int(), words, *_):
            text = words
        case _:
            text = origin
    return " ".join(str(primary or text).split())


def failed_outcome(classified: ClassifiedError, error: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that was rolled back for certain."""
    if classified.infrastructure:
        return Outcome("failed", failure=Failure("Infrastructure", classified.message), infrastructure=True)
    origin = getattr(error, "orig", None) or error
    kind = "Timeout" if classified.timed_out or origin is None else type(origin).__name__
    if classified.timed_out:
        return Outcome("failed", failure=Failure(kind, classified.message))
    statement = None if error is None else failed_statement(error)
    code = {} if classified.code is None else {"code": classified.code}
    details = code | ({} if statement is None else {"statement": statement})
    failure = Failure(kind, _explained(classified, statement), details)
    never = classified.healing == "never"
    return Outcome("failed", failure=failure, retryable=not never, conflict=classified.healing == "perhaps")


def failed_statement(error: BaseException) -> str | None:
    """The author's statement that has raised ``error``, on one line; None if it is not known.

    Its note is the last: that of the session may have what the engine has made of it.
    """
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(STATEMENT_NOTE)]
    return shown(notes[-1].removeprefix(STATEMENT_NOTE), _MAX_STATEMENT) if notes else None


def _explained(classified: ClassifiedError, statement: str | None) -> str:
    """The database's words in a sentence of the engine, before the statement they are about, which may be long."""
    code = "" if classified.code is None else f" ({classified.code})"
    where = "" if statement is None else f", in `{shown(statement, _MAX_QUOTED)}`"
    if statement is not None and statement.startswith(_LAST_STATEMENTS):
        where += ", which checks what is deferred"
    match classified.healing:
        case "never":
            help = what_to_correct(classified.code)
            return f"the database cannot run the statement: {classified.message}{code}{where}; {help}"
        case "perhaps" if classified.of_the_connection:
            help = "do not send DEALLOCATE ALL, and let a pooler keep the session of a connection"
            return f"the connection has lost what was prepared for it: {classified.message}{code}{where}; {help}"
        case "perhaps":
            return f"the statement contradicts the rows in the database: {classified.message}{code}{where}"
    return f"the database refuses the statement: {classified.message}{code}{where}"
