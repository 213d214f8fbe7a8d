"""Settings that every session of the engine fixes: how values are written as text, and how text is read as values.

Otherwise the time zone or a style of a server, a role or a database would decide what the engine stores and compares.
The user's own statements run in the same sessions, so `current_date` is the date in UTC.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL

from saga_activities.mysql_cursor import MAX_WARNINGS, strict_cursor
from saga_activities.mysql_text import UNCONVERTED_RESULTS
from saga_activities.result_columns import mysql_conversions
from sagas.sql_text.restoring_script import POSTGRESQL_TEXTS

_POSTGRESQL = {**POSTGRESQL_TEXTS, "client_encoding": "UTF8"}

CLEAN_POSTGRESQL = "RESET ALL; SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; DISCARD TEMP"
"""Ends what a statement has left in the session outside its transaction; RESET gives the settings above again."""

SQL_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"

_MYSQL = (
    f"time_zone = '+00:00', sql_mode = '{SQL_MODE}', foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0,"
    " sql_auto_is_null = 0, sql_select_limit = 18446744073709551615, max_join_size = 18446744073709551615,"
    f" sql_big_selects = 1, max_error_count = {MAX_WARNINGS}, completion_type = 0, {UNCONVERTED_RESULTS}"
    " /*M! , check_constraint_checks = 1 */"
)

CLEAN_MYSQL = f"SET SESSION {_MYSQL}, @saga_released = RELEASE_ALL_LOCKS()"
"""Ends what a statement has left in a session of MySQL or MariaDB, and fixes the settings above again."""


def session_arguments(url: URL) -> dict[str, Any]:
    """The arguments of the driver that open a session with these settings."""
    match url.get_backend_name():
        case "postgresql":
            own = url.query.get("options") or ""
            return _postgresql_arguments([own] if isinstance(own, str) else own)
        case "mysql" | "mariadb":
            return {
                "charset": "utf8mb4",
                "init_command": f"SET SESSION {_MYSQL}",
                "conv": mysql_conversions(),
                "cursor_cls": strict_cursor(),
            }
    return {}


def psycopg_arguments(url: str = "") -> dict[str, Any]:
    """The arguments of ``psycopg.connect`` that open a session with these settings. Raises psycopg.ProgrammingError."""
    return _postgresql_arguments([str(conninfo_to_dict(url).get("options") or "")])


_OVERRIDING = ("PGTZ", "PGDATESTYLE", "PGCLIENTENCODING")
"""Variables that libpq sends beyond the options and that win over them, also after RESET.

Most have no argument that wins over them, and libraries open sessions, too.
"""


def _postgresql_arguments(own: Sequence[str]) -> dict[str, Any]:
    """The settings of the start are also those that RESET gives again. libpq reads PGOPTIONS only without any."""
    for name in _OVERRIDING:
        os.environ.pop(name, None)
    given = [option for option in own if option] or [os.environ.get("PGOPTIONS", "")]
    options = [*filter(None, given), *(f"-c {name}={value}" for name, value in _POSTGRESQL.items())]
    # A URL may have the argument, which wins over the options.
    return {"options": " ".join(options), "client_encoding": _POSTGRESQL["client_encoding"]}
