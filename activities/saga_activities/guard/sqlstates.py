"""Gives each database error a SQLSTATE, and says of each SQLSTATE what another attempt can do.

One table of SQLSTATEs serves all databases. PostgreSQL reports them itself. MySQL and MariaDB report them for some
errors only and have numbers for all, SQLite has result codes: the tables below translate these.

Sources: PostgreSQL's appendix A, the server error lists of MySQL and MariaDB, SQLite's result codes.
"""

from __future__ import annotations

import re
from typing import Any, Literal

Healing = Literal["never", "perhaps"]
"""``never``: the statement fails again. ``perhaps``: another transaction may end the conflict."""

LOCK_TIMEOUT = "55P03"
TIMED_OUT = "57014"
TRANSACTION_TIMEOUT = "25P04"

_INFRASTRUCTURE = (
    "08",  # the connection
    "25006",  # read_only_sql_transaction: the server is a standby, as after a failover
    "25P03", TRANSACTION_TIMEOUT,  # idle_in_transaction_session_timeout, transaction_timeout
    "40",  # the transaction was rolled back: a deadlock, a serialization failure
    "53",  # a lack of resources: disk, memory, connections
    LOCK_TIMEOUT,
    "57P01", "57P02", "57P03", "57P05",  # a shutdown, a crash, cannot connect now, idle_session_timeout
    "58",  # the operating system
    "XA1",  # the branch of an XA transaction was rolled back
)  # fmt: skip
_NOT_ANSWERED = (
    "08", "25006", TRANSACTION_TIMEOUT, "40003", "53", TIMED_OUT, "57P01", "57P02", "57P03", "57P05", "58",
)  # fmt: skip
"""Errors that concern all attempts over the connection: it is lost, or its server is down, a standby, at its limits, or
too slow. Any other error is an answer about the rows, the locks or the statement of one attempt: a deadlock, a lock
that others hold, a transaction that the action has left idle.
"""
_CONNECTION_LOST = ("08", "25P03", TRANSACTION_TIMEOUT, "40003", "57P01", "57P02", "57P05")

_OF_THE_CONNECTION = ("26000", "42P05")
"""A prepared statement exists already, or not any more: a pooler has exchanged the server's connection, or a function
has sent DEALLOCATE ALL. The driver forgets its statements when it rolls back, so the next attempt prepares them again;
but a step may lose them each time, so its attempts are limited.
"""
_NEVER = (
    "0A",  # feature not supported
    "0K", "0Z", "20", "24", "2D", "2F",  # errors in a routine: handlers, CASE, cursors, COMMIT, a missing RETURN
    "21",  # cardinality: a subquery with several rows
    "22",  # data exceptions: a type, a range, a division by zero
    "23502", "23514",  # NOT NULL, CHECK
    "25000", "25001",  # a statement that no transaction may have
    "3D", "3F",  # an unknown database or schema
    "42",  # syntax, unknown tables, columns and functions, missing rights
    "44",  # the check option of a view
    "54",  # the statement exceeds a limit of the server
)  # fmt: skip
_CONFLICT = "23"
_SEVERAL_ROWS = "21"
OF_VALUES = ("22", "23502", "23514", "44")
RIGHT = "42501"

_POSTGRESQL_PLACES = {
    ("0A000", "RevalidateCachedQuery"): "26000",  # a prepared plan is outdated
    ("54000", "GetNewTransactionId"): "53400",  # no transaction may write until a VACUUM has run
    ("54000", "GetNewMultiXactId"): "53400",
    ("55000", "MarkAsPreparing"): "0A000",  # prepared transactions are disabled
    ("55000", "currval_oid"): "0A000",  # this session has not used the sequence
    ("55000", "error_view_not_updatable"): "0A000",
    ("55000", "lastval"): "0A000",
}
"""Functions of the server that use a code for something else than its usual meaning.

55000 otherwise stands for what passes: a prepared transaction that another session is ending, a materialized view that
is not filled yet, a recovery that is in progress.
"""

_MYSQL_NUMBERS: dict[str, tuple[int | range, ...]] = {
    # Infrastructure.
    "08001": (2002, 2003),  # cannot connect
    "08004": (1129,),  # too many failed connections from this host
    "08006": (1152, range(1158, 1162), 2006, 2013, 2055),  # the connection is lost
    "25006": (1792, 1836, 1874),  # read only: the transaction, the server, InnoDB
    "40001": (1020, 1213, 1317, 3058),  # a snapshot conflict, deadlocks, KILL QUERY
    "53100": (1021, 1114, 4139),  # the disk, a table or an index is full
    "53200": (1037, 1038, 1041, 1206),  # out of memory, too many locks
    "53300": (1040, 1135, 1203, 1637),  # too many connections, threads, connections of the user, transactions
    "53400": (1226, 1461),  # a quota of the user, max_prepared_stmt_count
    LOCK_TIMEOUT: (1205, 3572),  # also NOWAIT of MySQL
    TIMED_OUT: (1969, 3024),  # max_statement_time, max_execution_time
    "57P01": (1053, 1077, 1927, 3169),  # shutdown, killed
    "57P03": (3032, 3168),  # offline mode
    "57P05": (4031,),  # wait_timeout of MySQL
    "58030": (1023, 1024, 1026, 1810, 1811, 1878),  # reading or writing a file
    # What another transaction may end.
    "23503": (1216, 1217, 1451, 1452),
    "23505": (1022, 1062, 1169, 1557, 1586, 1761, 1762, 1859),
    # What fails again.
    "22000": (1265, 1299, 1300, 1366, 1411, 1470, 1525, 1526, 1742, 1748, 1977),  # values and types
    "22023": (1210, 1298, 1649, range(3685, 3700), 4024, 4078, 4079, range(4101, 4105), 4107, 4183),  # wrong arguments
    "22032": (range(4035, 4047), range(4048, 4052), 4076, range(4176, 4180)),  # JSON
    "2200H": (1467, 4084),  # AUTO_INCREMENT or a sequence has run out
    "23502": (1048, 1364, 1423),
    "23514": (3819, 4025),  # CHECK: MySQL, MariaDB
    "25000": (1422,),  # a statement that would end the transaction
    RIGHT: (1044, 1095, 1142, 1143, 1227, 1345, 1370, 1979),
    "42000": (
        1052, 1094, 1096, 1108, 1111, 1136, 1137, 1191, 1193, 1221, 1222, 1241, 1245, 1267, 1270, 1271, 1272, 1273,
        1284, 1302, 1477,
        1578, 1621, 1706, 1735, 1747, 1764, 1765, 1766,  # names, columns, grouping, collations, variables, partitions
        1093, 1099, 1100, 1175, 1204, 1224, 1225, 1228, 1229, 1233, 1238, 1289, 1295, 1336, 1442, 1444, 1445,
        1746, 1769, 1901, 1906, 1907, 1919, 1920, 1922, 3105,  # statements that are not allowed, generated columns
        1288, 1347, 1348, 1356, 1368, 1393, 1394, 1395, 1449, 1462, 1471,  # views
        1128, 1328, 1646, 1648, 1691,  # routines
        range(3573, 3577), range(3579, 3600), range(4002, 4024), 4074,  # WITH, window functions
        4081, 4082, 4085, 4093, 4099, 4100,  # sequences, VALUES
        range(4121, 4125), 4137, range(4140, 4143), 4156, 4157,  # system versions, periods
        4161, 4162, 4172, 4180, 4187,  # types, operators
    ),
    "44000": (1369,),
    "54000": (1116, 1119, 1153, 1197, 1301, 1390, 1424, 1436, 1456, 1473, 1705, 1713, 3008, 3636),
}  # fmt: skip
"""Numbers whose own SQLSTATE says nothing (HY000), or something else: 42000 is also a quota, 23000 also NOT NULL.

Where MySQL and MariaDB use one number for two errors, both have the same meaning here, or only one of them can happen.
"""
_MYSQL_SQLSTATES = {
    number: sqlstate
    for sqlstate, entries in _MYSQL_NUMBERS.items()
    for entry in entries
    for number in (entry if isinstance(entry, range) else (entry,))
}
_MYSQL_WORDS = {
    # The option of a replica, or any other one, with which the statement fails again.
    1290: (re.compile("read[-_]only", re.IGNORECASE), "25006", "0A000"),
    # A statement that would commit the XA transaction, or XA END after a deadlock has rolled it back.
    1399: (re.compile("ACTIVE"), "25000", "XA100"),
}
"""Numbers with two meanings: a word of the message that no language translates, the SQLSTATE with it and without it."""

_SQLITE_SQLSTATES = {
    1: "42000",  # ERROR: syntax, unknown tables and columns
    3: RIGHT,  # PERM
    5: "40001", 6: "40001",  # BUSY, LOCKED
    7: "53200",  # NOMEM
    8: RIGHT,  # READONLY
    10: "58030", 13: "53100", 14: "58030", 15: "58000",  # IOERR, FULL, CANTOPEN, PROTOCOL
    18: "54000",  # TOOBIG
    20: "22000",  # MISMATCH
    23: RIGHT,  # AUTH
    25: "42000",  # RANGE
    275: "23514", 787: "23503", 1299: "23502", 1555: "23505", 2067: "23505", 2579: "23505",  # CONSTRAINT_*
    1032: "58030",  # READONLY_DBMOVED: the next connection opens the file that is there now
    3091: "22000",  # CONSTRAINT_DATATYPE, of a strict table
}  # fmt: skip


def sqlstate_of(origin: Any) -> str | None:
    """Return the SQLSTATE of a driver's error; None if it has no code or comes from no database."""
    if type(origin).__module__.startswith("psycopg"):
        return _of_postgresql(origin)
    match native_code(origin):
        case None | str():
            return None
        case code if hasattr(origin, "sqlite_errorcode"):
            # An extended code that is not listed means what its primary code means.
            return _SQLITE_SQLSTATES.get(code) or _SQLITE_SQLSTATES.get(code & 0xFF) or "XX000"
        case code:
            return _of_mysql(origin, code)


def native_code(origin: Any) -> str | int | None:
    """Return PostgreSQL's SQLSTATE, MySQL's number or SQLite's extended result code; None if the error has none."""
    if type(origin).__module__.startswith("psycopg"):
        return origin.sqlstate
    if (code := getattr(origin, "sqlite_errorcode", None)) is not None:
        return int(code)
    is_dbapi = any(base.__name__ in ("Error", "MySQLError") for base in type(origin).__mro__)
    match getattr(origin, "args", ()):
        case (int() as number, *_) if is_dbapi:
            return number
    return None


def _of_postgresql(origin: Any) -> str:
    if sqlstate := origin.sqlstate:
        return _POSTGRESQL_PLACES.get((sqlstate, origin.diag.source_function)) or sqlstate
    match type(origin).__name__:
        case "OperationalError" | "ConnectionTimeout":
            return "08006"  # of libpq: the server closed, refused or never answered
        case "ProgrammingError" | "DataError" | "NotSupportedError":
            return "22023"  # of psycopg: it cannot send a parameter
    return "XX000"


def _of_mysql(origin: Any, number: int) -> str:
    if number in _MYSQL_WORDS:
        word, with_it, without_it = _MYSQL_WORDS[number]
        return with_it if word.search(str(origin.args[1:])) else without_it
    return _MYSQL_SQLSTATES.get(number) or getattr(origin, "sqlstate", None) or "HY000"


def is_infrastructure(sqlstate: str) -> bool:
    return sqlstate.startswith(_INFRASTRUCTURE)


def is_connection_lost(sqlstate: str) -> bool:
    return sqlstate.startswith(_CONNECTION_LOST)


def is_answer(sqlstate: str) -> bool:
    """Return whether an error of this kind shows a database that answers."""
    return not sqlstate.startswith(_NOT_ANSWERED)


def is_of_the_connection(sqlstate: str) -> bool:
    """Return whether only what this connection has prepared is at fault: it is gone, or its table was changed since."""
    return sqlstate in _OF_THE_CONNECTION


def healing_of(sqlstate: str) -> Healing | None:
    """Return what a retry can do about an error of a statement; None if nobody can say."""
    if is_of_the_connection(sqlstate):
        return "perhaps"
    if sqlstate.startswith(_NEVER):
        return "never"
    return "perhaps" if sqlstate.startswith(_CONFLICT) else None


_OTHER_TYPE = ("42804", "22P02")
"""PostgreSQL's codes for a parameter whose type does not fit its place, and for text that is not a value of it."""


def what_to_correct(sqlstate: str, *, is_file: bool = False, about_json: bool = False) -> str:
    """The next step after an error that every retry meets again.

    ``is_file``: the database is a file of SQLite; ``about_json``: its message speaks of JSON.
    """
    if sqlstate == RIGHT:
        return (
            "let the worker write the database's file" if is_file else "grant the right to the user of the connection"
        )
    if sqlstate.startswith(_SEVERAL_ROWS):
        return "give each row once, or correct the statement: it meets several rows where one is expected"
    is_value = sqlstate.startswith(OF_VALUES)
    help = "correct the value or the statement" if is_value else "correct the statement or the database"
    return (
        f"{help}: a value becomes JSON with the cast `:name::jsonb`" if about_json and sqlstate in _OTHER_TYPE else help
    )
