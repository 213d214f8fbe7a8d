"""Settings that every session of the engine fixes: how values are written as text, and how text is read as values.

Otherwise the time zone or a style of a server, a role or a database would decide what the engine stores and compares.
The user's own statements run in the same sessions, so `current_date` is the date in UTC.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, LiteralString, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL

from saga_activities.mysql_cursor import MAX_WARNINGS, strict_cursor
from saga_activities.mysql_passwords import refused_plugins
from saga_activities.mysql_text import UNCONVERTED_RESULTS
from saga_activities.result_columns import mysql_conversions
from sagas.errors import UsageError
from sagas.sql_text.restoring_script import POSTGRESQL_TEXTS
from sagas.text.sql_names import sql_name

_POSTGRESQL = {
    **POSTGRESQL_TEXTS,
    "client_encoding": "UTF8",
    "transform_null_equals": "off",
    "backslash_quote": "safe_encoding",
    "gin_fuzzy_search_limit": "0",
    "lc_numeric": "C",
    "lc_time": "C",
    "timezone_abbreviations": "Default",
    "xmlbinary": "base64",
}
"""Without the settings that belong to the objects of a database, such as `search_path` and
`default_text_search_config`, and those whose other value is an error and no other result.
"""


def durable_commit(*, local: bool) -> LiteralString:
    """The expression that makes COMMIT wait for the disk: with `synchronous_commit = off`, a crash of the server can
    lose an effect that is known as done. Other values, such as `remote_apply`, stay as they are, so it cannot be an
    option of the start. ``local``: for one transaction, so that it also holds where a connection pooler changes the
    session.
    """
    return (
        "CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'"
        f" THEN pg_catalog.set_config('synchronous_commit', 'on', {'true' if local else 'false'}) END"
    )


OWN_SEARCH_PATH = "SET LOCAL search_path TO DEFAULT"
"""Lets names without a schema mean the tables of the engine again, after a statement of an action that may have called
set_config. It ends with the transaction.
"""

CLEAN_POSTGRESQL = (
    f"RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; SELECT {durable_commit(local=False)},"
    " pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; DISCARD TEMP"
)
"""Ends what a statement has left in the session outside its transaction; RESET gives the settings above again. RESET
ALL leaves the role.
"""

KEPT_POSTGRESQL = (
    "session_authorization",
    "role",
    "lock_timeout",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "synchronous_commit",
)
"""The settings of a transaction of the engine that RESET ALL would end, or leaves as an action has set them."""


def with_foreign_keys(server_version: int, *, local: bool) -> str:
    """A query that lets foreign keys and triggers hold again, where `session_replication_role` switches them off.

    It returns the setting after it, which is still `replica` if the role may not change it: only superusers and roles
    with a grant may, so an option of the start would refuse the session. ``local``: until the end of the transaction.
    """
    granted = " OR has_parameter_privilege('session_replication_role', 'SET')" if server_version >= 150000 else ""
    return (
        "SELECT CASE WHEN current_setting('session_replication_role') = 'replica'"
        f" AND (current_setting('is_superuser') = 'on'{granted})"
        f" THEN set_config('session_replication_role', 'origin', {str(local).lower()})"
        " ELSE current_setting('session_replication_role') END"
    )


def without_foreign_keys(role: str, database: str) -> str:
    """The sentence about sessions in which foreign keys and triggers are off, for their role."""
    return (
        f"session_replication_role is replica in the sessions of the role {role}, so no foreign key is checked and no"
        f" trigger fires, and the role may not change it; reset it as a superuser, with `alter role {sql_name(role)}"
        f" reset session_replication_role` or `alter database {sql_name(database)} reset"
        " session_replication_role`, then try again"
    )


def require_foreign_keys(connection: psycopg.Connection[Any]) -> None:
    """Let foreign keys and triggers hold in this session. Raises UsageError if its role may not."""
    query = with_foreign_keys(connection.info.server_version, local=False)
    if connection.execute(cast("Any", query)).fetchone() == ("replica",):
        raise UsageError(without_foreign_keys(connection.info.user, connection.info.dbname))


SQL_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"

_MYSQL = (
    f"time_zone = '+00:00', sql_mode = '{SQL_MODE}', foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0,"
    " sql_auto_is_null = 0, sql_select_limit = 18446744073709551615, max_join_size = 18446744073709551615,"
    f" sql_big_selects = 1, max_error_count = {MAX_WARNINGS}, sql_notes = 1, completion_type = 0,"
    " lc_time_names = 'en_US', default_week_format = 0, div_precision_increment = 4, group_concat_max_len = 1048576,"
    f" max_sort_length = 1024, {UNCONVERTED_RESULTS} /*M! , check_constraint_checks = 1, standard_compliant_cte = 1,"
    " max_recursive_iterations = 4294967295, system_versioning_asof = default,"
    " old_mode = if(find_in_set('UTF8_IS_UTF8MB3', @@old_mode), 'UTF8_IS_UTF8MB3', '') */"
)
"""The defaults of the servers, where another value changes results in silence; of `old_mode` only the meaning of the
name `utf8` stays with the server.
"""

CLEAN_MYSQL = f"SET SESSION {_MYSQL}, @saga_released = RELEASE_ALL_LOCKS()"
"""Ends what a statement has left in a session of MySQL or MariaDB, and fixes the settings above again."""


SQLITE_SETTINGS = {
    "foreign_keys": "ON",
    "ignore_check_constraints": "OFF",
    "recursive_triggers": "OFF",
    "case_sensitive_like": "OFF",
    "reverse_unordered_selects": "OFF",
    "legacy_alter_table": "OFF",
    "synchronous": "FULL",
}
"""Settings of a connection of SQLite, for which a build of the library may have other defaults."""


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
                "auth_plugin_map": refused_plugins(url),
            }
    return {}


def psycopg_arguments(url: str = "") -> dict[str, Any]:
    """The arguments of ``psycopg.connect`` that open a session with these settings. Raises psycopg.ProgrammingError."""
    return _postgresql_arguments([str(conninfo_to_dict(url).get("options") or "")])


_OVERRIDING = ("PGTZ", "PGDATESTYLE", "PGCLIENTENCODING")
"""Variables that libpq sends beyond the options and that win over them, also after RESET.

Most have no argument that wins over them, and libraries also open sessions.
"""


def _postgresql_arguments(own: Sequence[str]) -> dict[str, Any]:
    """The settings of the start are also those that RESET gives again. libpq reads PGOPTIONS only without any."""
    for name in _OVERRIDING:
        os.environ.pop(name, None)
    given = [option for option in own if option] or [os.environ.get("PGOPTIONS", "")]
    options = [*filter(None, given), *(f"-c {name}={value}" for name, value in _POSTGRESQL.items())]
    # A URL may have the argument, which wins over the options.
    return {"options": " ".join(options), "client_encoding": _POSTGRESQL["client_encoding"]}
