"""The parameter whose value a database has refused, with its column: a database names one of them, or neither. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sagas.sql_text.parameters.assigned_parameters import AssignedParameter, assigned_parameters
from sagas.sql_text.parameters.compared_parameters import compared_parameters
from sagas.sql_text.parsed import ParsedSql

_NUMBER = re.compile(r"\$(\d+)(?: = '.*')?$", re.MULTILINE)
"""In the context of an error of PostgreSQL, about a value that it could not read: in each language."""

_COLUMN = re.compile(
    r"column (?:`[^`]*`\.)*['`](?P<mysql>[^'`]+)['`]|`[^`.]+\.(?P<check>[^`.]+)` failed|column \w+\.(?P<sqlite>\w+)$"
)
"""The column in a message of MySQL, MariaDB, or a strict table of SQLite; the check is that of a column of JSON."""

_LIMIT = re.compile(r"\((\d+)\)")
_QUOTES = ('"{}"', "'{}'", "«{}»", "„{}“", "“{}”", "»{}«")


def refused_value(statement: ParsedSql, rows: Sequence[Mapping[str, Any]], message: str, context: str) -> str | None:
    """Words such as `the value of :day for the column day of orders`; None if the message shows no parameter.

    ``rows`` have the values that were sent, ``context`` what PostgreSQL says about the place of an error.
    """
    column = _COLUMN.search(message)
    told = None if column is None else column.group(column.lastgroup or 0).lower()
    if (number := _NUMBER.search(context)) is not None:
        names = [*statement.parameters[int(number[1]) - 1 : int(number[1])]]
    else:
        names = _named(statement, rows, message, told)
    places = {name: "" if told is not None else _place(statement, name) for name in names}
    shown = dict.fromkeys(f":{_written(name, statement)}{place}" for name, place in places.items())
    return f"the value of {' or '.join(shown)}" if shown else None


def _named(statement: ParsedSql, rows: Sequence[Mapping[str, Any]], message: str, column: str | None) -> Sequence[str]:
    """The parameters with the value that the message has; or those of its column, or too long for its type."""
    texts = {name: {str(row[name]) for row in rows if row.get(name) is not None} for name in statement.parameters}
    quoted = [name for name, of_name in texts.items() if any(_is_quoted(text, message) for text in of_name)]
    if column is not None:
        of_column = [
            name for name in texts if any(str(to.column).lower() == column for to in _targets(statement, name))
        ]
        return [name for name in quoted if name in of_column] or quoted or of_column
    if quoted or (limit := _LIMIT.search(message)) is None:
        return quoted
    longer = [name for name, of_name in texts.items() if any(len(text) > int(limit[1]) for text in of_name)]
    return [name for name in longer if _targets(statement, name)]


def _is_quoted(text: str, message: str) -> bool:
    flat = " ".join(text.split())
    return any(quotes.format(flat) in message for quotes in _QUOTES)


def _targets(statement: ParsedSql, name: str) -> list[AssignedParameter]:
    """The columns that get the value of a parameter, as far as the statement names them."""
    targets = assigned_parameters(statement.source, statement.dialect)
    return [
        target for target in targets if target.parameter == name and target.certain and isinstance(target.column, str)
    ]


def _place(statement: ParsedSql, name: str) -> str:
    if targets := _targets(statement, name):
        columns = dict.fromkeys(f"{target.column} of {target.name}" for target in targets)
        return f" for the column {' and '.join(columns)}"
    compared = (use.column for use in compared_parameters(statement) if use.parameter == name and use.column)
    column = next(compared, None)
    return "" if column is None else f", compared with the column {column.column} of {column.name}"


def _written(name: str, statement: ParsedSql) -> str:
    """The name without the number of a place: a parameter with several forms is sent as several."""
    base = re.sub(r"_\d+$", "", name)
    return base if base in statement.parameters else name
