"""A cursor of MySQL and MariaDB for which lost parts of values are errors, and whose row counts are counts of rows.

The server only warns where a statement compares or computes with a part of a text (``id in ('5 or so')`` is
``id in (5)``), and where IGNORE stores what strict mode refuses. An INSERT that updates or replaces counts a row twice.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from saga_activities.mysql_text import ENCODING, UNCONVERTED_RESULTS, decoded_rows

_LOSSES = {
    1048,  # null in a column that has none
    1260,  # GROUP_CONCAT
    1264,  # out of range
    1265,  # of a column; where a calculation is rounded, this is only a note
    1292,  # text that is not a number or time
    1301,  # more than max_allowed_packet
    1364,  # no default
    1366,  # text that is not a number, or not of the character set
    1406,  # too long
    1452,  # a row without the row that its foreign key names
    1526,  # no partition
    1918,  # a conversion
    1977,  # a character that the other set lacks, on MariaDB
    3854,  # the same on MySQL
    4025,  # CHECK of MariaDB
    3819,  # CHECK of MySQL
}
"""Numbers of warnings that mean another value, or a row less, than the statement says."""

MAX_WARNINGS = 65535
"""The number of warnings that the server keeps of one statement: with more, a loss might not be among them."""

_INSERT = re.compile(rb"(?:\s+|/\*.*?\*/|(?:--\s|#)[^\n]*(?:\n|$))*+(?:insert|replace)\b", re.IGNORECASE | re.DOTALL)
_SET_NAMES = re.compile(rb"\s*set\s+(?:names|char)", re.IGNORECASE)
"""SQLAlchemy sends it first: it would let the server convert results."""
_NUMBER = re.compile(rb"\d+")


@cache
def strict_cursor() -> type:
    """The class of cursor that the sessions of MySQL and MariaDB use.

    Its driver is imported here, because a project without such a database need not have it.

    Its cursors raise asyncmy.errors.DataError with the number of the warning.
    """
    from asyncmy import cursors
    from asyncmy.errors import DataError

    base: Any = cursors.Cursor  # its stubs lack the methods that a subclass may change

    class LostValue(DataError):
        sqlstate = "22000"

    class StrictCursor(base):
        async def _do_get_result(self) -> None:
            await super()._do_get_result()
            self.rowcount = _count_of_rows(self.rowcount, self._result)

        async def _query(self, q: Any) -> Any:
            connection: Any = self.connection
            connection._encoding = ENCODING
            count = await super()._query(q)
            text = q if isinstance(q, bytes) else q.encode("utf-8", "surrogateescape")
            if _SET_NAMES.match(text):
                await connection.query(f"SET SESSION {UNCONVERTED_RESULTS}")
            if self._rows:
                self._rows = await decoded_rows(connection, self._result)
            is_one_row = count > 1 and self.description is None and not self._result.message
            if is_one_row and _INSERT.match(text):
                self.rowcount = count = 1  # only an INSERT of one row has no message
            return count

        async def _show_warnings(self, conn: Any) -> None:
            if self._result.has_next:
                return
            warnings = await conn.show_warnings() or ()
            for level, number, message in warnings:
                if level != "Note" and int(number) in _LOSSES:
                    raise LostValue(int(number), f"{message}: the statement would use or store another value")
            if len(warnings) >= MAX_WARNINGS:
                raise LostValue(1265, f"the statement gave {len(warnings)} warnings or more: change fewer rows")

    return StrictCursor


def _count_of_rows(count: int, result: Any) -> int:
    """The number of rows that an INSERT has inserted, updated or replaced.

    The first number of its message, in all languages (`Records: 3  Duplicates: 1`), after the byte of its length.
    """
    records = _NUMBER.search(result.message or b"", 1)
    return min(count, int(records[0])) if records else count
