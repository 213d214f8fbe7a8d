"""Scripts that a person pastes into a client of the database to restore rows.

A script fixes the settings that decide how its values are read. It restores all of its rows, or none: not if one of
them is another one than its statement names, and not if one is refused. Clients go on after an error, so the script
itself ends with the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
}
"""Settings that decide how PostgreSQL writes values as text and reads them."""

RESTORING_SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
"""The `sql_mode` in which rows are restored.

It takes all values that a table may hold: the key 0, dates with zeros, the 31st of each month.
"""

CHANGED_SINCE = "a row has changed since, nothing was restored"

_MYSQL_SETTINGS = {
    "time_zone": "'+00:00'",
    "sql_mode": f"'{RESTORING_SQL_MODE}'",
    "foreign_key_checks": "1",
    "unique_checks": "1",
}


def restoring_script(dialect: str, statements: Sequence[str]) -> tuple[str, ...]:
    """The script of these statements, each of which changes one row if it is as the statement names it."""
    if dialect == "postgresql":
        return (_postgresql(statements),)
    return tuple(_sqlite(statements) if dialect == "sqlite" else _mysql(statements))


def restoring_command(dialect: str, statements: Sequence[str]) -> str:
    """The script of these statements as one text: one line, where it is one statement, or each in a line of its own.

    After an error the clients of SQLite ignore the rest of a line.
    """
    if dialect == "postgresql":
        return " ".join(map(str.strip, _postgresql(statements).splitlines()))
    if len(statements) > 1:
        return "\n".join(restoring_script(dialect, statements))
    if dialect == "sqlite":
        return f"{statements[0]};"
    settings = ", ".join(f"{name} = {value}" for name, value in _MYSQL_SETTINGS.items())
    return f"SET NAMES utf8mb4; SET {settings}; {statements[0]};"


def _postgresql(statements: Sequence[str]) -> str:
    """One statement, so that it is atomic in every client."""
    quote = "$saga$"
    while any(quote in statement for statement in statements):
        quote = f"{quote[:-1]}_$"
    lines = [f"  SET LOCAL {name} = '{value}';" for name, value in POSTGRESQL_TEXTS.items()]
    lines += [
        "  IF current_setting('session_replication_role') = 'replica' THEN",
        "  SET LOCAL session_replication_role = 'origin'; END IF;",
        "  SET CONSTRAINTS ALL DEFERRED;",
    ]
    for statement in statements:
        lines += [f"  {statement};", f"  IF NOT FOUND THEN RAISE EXCEPTION '{CHANGED_SINCE}'; END IF;"]
    # A column may have the name of a variable.
    return "\n".join([f"DO {quote} #variable_conflict use_column", "BEGIN", *lines, f"END {quote};"])


def _mysql(statements: Sequence[str]) -> Iterable[str]:
    # A deadlock ends the transaction: without autocommit the next statement begins another one.
    settings = {**_MYSQL_SETTINGS, "autocommit": "0"}
    yield "SET NAMES utf8mb4;"
    yield f"SET {', '.join(f'@saga_{name} = @@{name}' for name in settings)}, @saga_rows = 0;"
    yield f"SET {', '.join(f'{name} = {value}' for name, value in settings.items())};"
    for statement in statements:
        yield f"{statement};"
        yield "SET @saga_rows = @saga_rows + ROW_COUNT();"
    yield f"SET @saga_end = IF(@saga_rows = {len(statements)}, 'COMMIT', 'SELECT ''{CHANGED_SINCE}'' AS refused');"
    yield "PREPARE saga_end FROM @saga_end;"
    yield "EXECUTE saga_end;"
    yield "ROLLBACK;"
    yield f"SET {', '.join(f'{name} = @saga_{name}' for name in settings)};"


def _sqlite(statements: Sequence[str]) -> Iterable[str]:
    yield "PRAGMA foreign_keys = ON;"
    yield "BEGIN;"
    yield "PRAGMA defer_foreign_keys = ON;"
    check = f'CONSTRAINT "{CHANGED_SINCE}" CHECK (changed = {len(statements)})'
    yield f"CREATE TEMP TABLE saga_restore (started INTEGER, changed INTEGER {check});"
    yield f"INSERT INTO temp.saga_restore VALUES (total_changes(), {len(statements)});"  # noqa: S608 - shown, not run
    yield from (f"{statement};" for statement in statements)
    yield "UPDATE OR ROLLBACK temp.saga_restore SET changed = total_changes() - started - 1;"
    yield "DROP TABLE temp.saga_restore;"
    yield "COMMIT;"
