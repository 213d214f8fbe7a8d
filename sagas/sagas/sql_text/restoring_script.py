"""Scripts that a person pastes into a client of the database to restore rows.

A script fixes the settings that decide how its values are read. It restores all of its rows, or none: not if one of
them is another one than its statement names, not if the table then has other values than the statement gives, and not
if one is refused. Clients go on after an error, so the script itself ends with the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

POSTGRESQL_TEXTS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "xmloption": "content",
    "quote_all_identifiers": "off",
}
"""Settings that decide how PostgreSQL writes values and names as text and reads them."""

RESTORING_SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
"""The `sql_mode` in which rows are restored.

It takes all values that a table may hold: the key 0, dates with zeros, the 31st of each month.
"""

CHANGED_SINCE = "a row or its table has changed since, nothing was restored"

_MYSQL_SETTINGS = {
    "time_zone": "'+00:00'",
    "sql_mode": f"'{RESTORING_SQL_MODE}'",
    "foreign_key_checks": "1",
    "unique_checks": "1",
}


Changes = Sequence[Mapping[str, Any]]
"""Statements: ``sql`` changes one row if it is as the statement names it, and then the condition ``check`` holds, if it
is not None.
"""


def restoring_script(dialect: str, changes: Changes) -> tuple[str, ...]:
    """The script of these statements."""
    if dialect == "postgresql":
        return (_postgresql(changes),)
    return tuple(_sqlite(changes) if dialect == "sqlite" else _mysql(changes))


def restoring_command(dialect: str, changes: Changes) -> str:
    """The script as one text: one line, where it is one statement, or each in a line of its own.

    After an error the clients of SQLite ignore the rest of a line.
    """
    if dialect == "postgresql":
        return " ".join(map(str.strip, _postgresql(changes).splitlines()))
    return "\n".join(restoring_script(dialect, changes))


def _postgresql(changes: Changes) -> str:
    """One statement, so that it is atomic in every client."""
    quote = "$saga$"
    while any(quote in f"{change['sql']} {change['check']}" for change in changes):
        quote = f"{quote[:-1]}_$"
    lines = [f"  SET LOCAL {name} = '{value}';" for name, value in POSTGRESQL_TEXTS.items()]
    lines += [
        "  IF current_setting('session_replication_role') = 'replica' THEN",
        "  SET LOCAL session_replication_role = 'origin'; END IF;",
        "  SET CONSTRAINTS ALL DEFERRED;",
    ]
    for change in changes:
        failed = f"NOT FOUND OR NOT {change['check']}" if change["check"] else "NOT FOUND"
        lines += [f"  {change['sql']};", f"  IF {failed} THEN RAISE EXCEPTION '{CHANGED_SINCE}'; END IF;"]
    # A column may have the name of a variable.
    return "\n".join([f"DO {quote} #variable_conflict use_column", "BEGIN", *lines, f"END {quote};"])


def _mysql(changes: Changes) -> Iterable[str]:
    # A deadlock ends the transaction: without autocommit the next statement begins another one.
    settings = {**_MYSQL_SETTINGS, "autocommit": "0"}
    yield "SET NAMES utf8mb4;"
    yield f"SET {', '.join(f'@saga_{name} = @@{name}' for name in settings)}, @saga_rows = 0;"
    yield f"SET {', '.join(f'{name} = {value}' for name, value in settings.items())};"
    for change in changes:
        yield f"{change['sql']};"
        yield f"SET @saga_rows = @saga_rows + (ROW_COUNT() = 1 AND {change['check'] or 'TRUE'});"
    yield f"SET @saga_end = IF(@saga_rows = {len(changes)}, 'COMMIT', 'SELECT ''{CHANGED_SINCE}'' AS refused');"
    yield "PREPARE saga_end FROM @saga_end;"
    yield "EXECUTE saga_end;"
    yield "ROLLBACK;"
    yield f"SET {', '.join(f'{name} = @saga_{name}' for name in settings)};"


def _sqlite(changes: Changes) -> Iterable[str]:
    rows = len(changes)
    yield "PRAGMA foreign_keys = ON;"
    yield "BEGIN;"
    yield "PRAGMA defer_foreign_keys = ON;"
    check = f'CONSTRAINT "{CHANGED_SINCE}" CHECK (changed = {rows})'
    yield f"CREATE TEMP TABLE saga_restore (started INTEGER, stored INTEGER, changed INTEGER {check});"
    yield f"INSERT INTO temp.saga_restore VALUES (total_changes(), 0, {rows});"  # noqa: S608 - shown, not run
    for change in changes:
        yield f"{change['sql']};"
        yield f"UPDATE temp.saga_restore SET stored = stored + {change['check'] or 1};"  # noqa: S608 - shown, not run
    # The first row and each update of it count as well.
    changed = f"(total_changes() - started - 1 - {rows}) * (stored = {rows})"
    yield f"UPDATE OR ROLLBACK temp.saga_restore SET changed = {changed};"  # noqa: S608 - shown, not run
    yield "DROP TABLE temp.saga_restore;"
    yield "COMMIT;"
