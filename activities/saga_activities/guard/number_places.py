"""Text that is a number where PostgreSQL takes a type that holds fewer digits: refused before the statement is sent.

Text is sent without a type, and gets that of its place: `m = :v` with a column of money compares with the rounded
amount, as `f = :v` does with the nearest float. Only the server knows the types of all places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.column_catalog import Query, read_types
from saga_activities.guard.json_parameters import UnusableParameter
from saga_activities.guard.parameter_columns import InexactNumber, has_numbers, is_long_number
from saga_activities.guard.parameter_types import parameter_types
from sagas.builtins.assigned_parameters import AssignedParameter
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_parameters

_WHOLE = frozenset((16, 17, 20, 21, 23, 25, 26, 114, 1042, 1043, 1082, 1114, 1184, 1700, 2950, 3802, 0, 705))
"""The object identifiers of types that hold all of a text, or refuse it."""


async def refuse_rounded_numbers(
    connection: AsyncConnection, statement: ParsedSql, parameters: Sequence[Mapping[str, Any]], query: Query
) -> None:
    """Raises UnusableParameter for text of which PostgreSQL would take another number, and SQLAlchemy's errors.

    A cast of the author decides otherwise.
    """
    cast = cast_parameters(statement)
    wanted = {name for values in parameters for name, value in values.items() if _has_care(value)} - cast
    if not wanted:
        return
    types = await parameter_types(connection, statement, parameters[0])
    asked = {types[name] for name in wanted if name in types} - _WHOLE
    columns = await read_types(asked, query) if asked else {}
    for name in sorted(wanted):
        if (column := columns.get(types.get(name, 0))) is None:
            continue
        place = AssignedParameter(name, "its place", None, "its place", None, alone=True)
        for values in parameters:
            try:
                column.check_loss(place, values.get(name))
            except InexactNumber:
                raise UnusableParameter(
                    f"the parameter {name} is {str(values[name])[:80]}, and PostgreSQL takes a {column.type} at its"
                    f" place, which would be another number: write a cast to the type that is wanted, such as"
                    f" `:{name}::numeric`"
                ) from None


def _has_care(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_care, value))
    return isinstance(value, str) and (is_long_number(value) or has_numbers(value))
