"""Says why a database cannot be used, and what to do about it, in the same words in every command."""

from __future__ import annotations

import os
import sqlite3

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from saga_activities.connections import missing_driver
from saga_activities.foreign_rights import ForeignRights
from saga_activities.guard.database_errors import concerns_engine_tables, is_lock_timeout
from sagas.errors import SagaError
from sagas.settings import SqlConnection
from sagas.settings.masking import mask

_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("failed to resolve", "name or service not known", "getaddrinfo", "unknown mysql server host"),
        "correct the host in {setting}; in a password, `@` is written %40, `/` %2F and `:` %3A",
    ),
    (
        ("refused", "timeout", "timed out", "does not answer", "can't connect", "no route to host", "unreachable"),
        "start the database, or correct host and port in {setting}",
    ),
    (("password", "authentication", "access denied", "role ", "pg_hba"), "correct user and password in {setting}"),
    (('database "', "database '"), "create the database, or correct its name in {setting}"),
    (("permission denied",), "grant the right to the user of {setting}"),
)
"""Words of the messages of drivers and servers, and what to do; the first that is contained counts."""


def driver_errors() -> tuple[type[Exception], ...]:
    """Return what the drivers raise if they are used without SQLAlchemy, as for a schema file."""
    import psycopg

    return (psycopg.Error, sqlite3.Error)


def driver_message(error: BaseException) -> str:
    """The driver's message in one line, without SQLAlchemy's wrapping, the statement and credentials."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if is_lock_timeout(error):
        return "a lock that another session holds was not granted in time"
    if isinstance(error, ForeignRights):
        return error.message
    if isinstance(error, ModuleNotFoundError):
        return missing_driver(error)
    original = error.orig if isinstance(error, DBAPIError) and error.orig else error
    match original.args:
        case (int(), str() as words, *_):  # of MySQL, after its number
            text = words
        case _:
            text = str(original)
    if isinstance(error, DBAPIError):
        from saga_activities.result_columns import undecodable_column  # it imports psycopg

        if (refusal := undecodable_column(error)) is not None:
            return refusal.message  # the driver's words have the value
    lines = text.strip().splitlines() or [type(original).__name__]
    return mask(lines[0].strip().rstrip("."))


def unusable(connection: SqlConnection, what: str, error: BaseException) -> SagaError:
    """The error for an operation that has failed in the database; ``what`` begins the message."""
    return SagaError(f"{what}: {driver_message(error)}", help=access_help(connection, error))


def access_help(connection: SqlConnection, error: BaseException) -> str:
    """The help for an error of the database of a connection."""
    if isinstance(error, ForeignRights):
        return error.help
    if concerns_engine_tables(error):
        return "saga setup"
    if is_lock_timeout(error):
        return "wait until that session has ended, as a migration does, or end it, then run this again"
    if connection.embedded:
        return "saga dev up"
    setting = f"connections.{connection.name}.url"
    text = driver_message(error).lower()
    if "unable to open" in text:
        return _file_help(connection, setting)
    for words, help in _CAUSES:
        if any(word in text for word in words):
            return help.format(setting=setting)
    return f"check {setting}"


def _file_help(connection: SqlConnection, setting: str) -> str:
    file = make_url(connection.url).database or ""
    folder = os.path.dirname(file)
    if folder and not os.path.isdir(folder):
        return f"create the folder {folder}, or correct the path in {setting}"
    return f"let this user read and write {file}, or correct the path in {setting}"
