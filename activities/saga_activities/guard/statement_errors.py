"""Says which errors of a statement a retry can heal: never, perhaps after another transaction, or unknown.

Sources: PostgreSQL's appendix A (SQLSTATE), the server error lists of MySQL and MariaDB, SQLite's result codes.
"""

from __future__ import annotations

from typing import Any, Literal

Healing = Literal["never", "perhaps"]
"""``never``: the statement fails again. ``perhaps``: another transaction may end the conflict."""

_POSTGRESQL_NEVER_CLASSES = (
    "0A",  # feature not supported
    "21",  # cardinality: a subquery with several rows
    "22",  # data exceptions: a type, a range, a division by zero
    "3D", "3F",  # an unknown database or schema
    "42",  # syntax, unknown tables, columns and functions, missing rights
    "44",  # the check option of a view
    "54",  # the statement exceeds a limit of the server
)  # fmt: skip
_POSTGRESQL_NEVER = frozenset(
    {
        "23502",  # not_null_violation
        "23514",  # check_violation
    }
)
_POSTGRESQL_NEVER_PLACES = frozenset({"error_view_not_updatable", "MarkAsPreparing", "currval_oid", "lastval"})
"""Functions of the server whose 55000 stays: a view that takes no changes, prepared transactions are disabled, and the
last value of a sequence that this session has not used.

The code also stands for what passes: a prepared transaction that another session is ending, a materialized view that is
not filled yet, a recovery that is in progress.
"""
_POSTGRESQL_PASSING_LIMITS = frozenset({"GetNewTransactionId", "GetNewMultiXactId"})
"""Functions of the server whose 54000 ends with the next VACUUM: no transaction may write."""

_POSTGRESQL_PERHAPS = frozenset(
    {
        "23000",  # integrity_constraint_violation
        "23001",  # restrict_violation
        "23503",  # foreign_key_violation
        "23505",  # unique_violation
        "23P01",  # exclusion_violation
    }
)
_POSTGRESQL_OF_THE_CONNECTION = frozenset({"42P05", "26000"})
"""A prepared statement exists already, or not any more: a pooler has exchanged the server's connection, or a function
has sent DEALLOCATE ALL. The driver forgets its statements when it rolls back, so the next attempt prepares them again;
but a step may lose them each time, so its attempts are limited.
"""

_MYSQL_NEVER = frozenset(
    {
        1044, 1142, 1143, 1227, 1370,  # missing rights
        1046, 1049, 1051, 1109, 1146, 1191, 1193, 1305, 1449, 1630, 4089,  # an unknown database, table, name or account
        1052, 1054, 1060, 1066, 1110, 1176, 1247,  # columns, aliases and indexes that do not exist or are ambiguous
        1064, 1065, 1149,  # syntax
        1055, 1056, 1111, 1140,  # grouping
        1058, 1136, 1172, 1210, 1222, 1241, 1242, 1318, 1582, 1583,  # a wrong number of columns, rows or arguments
        1059, 1104, 1118, 1390, 1424, 1425, 1427, 1436, 1439, 1461, 4084,  # limits of the server
        1093, 1235, 1248, 1289, 1336, 1442,  # not supported
        1115, 1267, 1270, 1271, 1273, 1300,  # character sets and collations
        1048, 1263, 1364,  # NOT NULL
        1264, 1265, 1292, 1365, 1366, 1367, 1406, 1411, 1426, 1441, 1525, 1690, 4161,  # values and types
        1139, 3140, 3141, 3143, 3144, 3145, 3146, 3152, 3156, 3157, 4038, 4078, 4079,  # regular expressions, JSON
        1356, 1288, 1347, 1348, 1369, 1394, 1395, 1471,  # views
        1526, 1748,  # no partition for a row
        1906, 3105,  # a generated column
        3819, 4025,  # CHECK: MySQL, MariaDB
    }
)  # fmt: skip
_MYSQL_PERHAPS = frozenset(
    {
        1022, 1062, 1169, 1557, 1586, 1761, 1762,  # a duplicate key
        1216, 1217, 1451, 1452,  # a foreign key
    }
)  # fmt: skip

_SQLITE_NEVER = frozenset(
    {
        1,  # ERROR: syntax, unknown tables and columns
        3,  # PERM
        8, 1544,  # READONLY: the file, its folder
        18,  # TOOBIG
        20,  # MISMATCH
        23,  # AUTH
        25,  # RANGE
        275,  # CONSTRAINT_CHECK
        1299,  # CONSTRAINT_NOTNULL
        3091,  # CONSTRAINT_DATATYPE, of a strict table
    }
)  # fmt: skip
_SQLITE_PERHAPS = frozenset(
    {
        787,  # CONSTRAINT_FOREIGNKEY
        1555,  # CONSTRAINT_PRIMARYKEY
        2067,  # CONSTRAINT_UNIQUE
        2579,  # CONSTRAINT_ROWID
    }
)


def healing_of_postgresql(code: str, origin: Any) -> Healing | None:
    """``code`` is the SQLSTATE of the error ``origin``."""
    if code in _POSTGRESQL_PERHAPS or is_of_the_connection(code, origin):
        return "perhaps"
    if is_wraparound(code, origin):
        return None
    if code == "55000":
        return "never" if origin.diag.source_function in _POSTGRESQL_NEVER_PLACES else None
    return "never" if code in _POSTGRESQL_NEVER or code[:2] in _POSTGRESQL_NEVER_CLASSES else None


def is_wraparound(code: str, origin: Any) -> bool:
    """Return whether the server accepts no changes until a VACUUM, which has the code of a limit of statements."""
    return code == "54000" and getattr(origin.diag, "source_function", None) in _POSTGRESQL_PASSING_LIMITS


def is_of_the_connection(code: str | int | None, origin: Any) -> bool:
    """Return whether only what this connection has prepared is at fault: it is gone, or its table was changed since.

    A plan that is outdated has the code of an unsupported feature, and a message in the server's language.
    """
    outdated = code == "0A000" and getattr(origin.diag, "source_function", None) == "RevalidateCachedQuery"
    return outdated or code in _POSTGRESQL_OF_THE_CONNECTION


def healing_of_mysql(code: int) -> Healing | None:
    """``code`` is the error number, the same for MySQL and MariaDB unless the table says otherwise."""
    if code in _MYSQL_PERHAPS:
        return "perhaps"
    return "never" if code in _MYSQL_NEVER else None


def healing_of_sqlite(code: int) -> Healing | None:
    """``code`` is the extended result code."""
    if code in _SQLITE_PERHAPS:
        return "perhaps"
    return "never" if code in _SQLITE_NEVER else None


_MYSQL_VALUE_CODES = frozenset(
    {1048, 1263, 1364, 1264, 1265, 1292, 1365, 1366, 1367, 1406, 1411, 1426, 1441, 1525, 1690, 4161, 3819, 4025}
)
_NAMED_VALUE_CODES = frozenset(
    {"23502", "23514"}
    | {"SQLITE_MISMATCH", "SQLITE_CONSTRAINT_CHECK", "SQLITE_CONSTRAINT_NOTNULL", "SQLITE_CONSTRAINT_DATATYPE"}
)


def what_to_correct(code: str | int | None) -> str:
    """The next step after an error that no retry heals."""
    match code:
        case "42501" | 1044 | 1142 | 1143 | 1227 | 1370:
            return "grant the right to the user of the connection"
        case str():
            is_value = code.startswith("22") or code in _NAMED_VALUE_CODES
        case _:
            is_value = code in _MYSQL_VALUE_CODES
    return "correct the value or the statement" if is_value else "correct the statement or the database"
