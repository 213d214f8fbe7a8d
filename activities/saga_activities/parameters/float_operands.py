"""Numbers that PostgreSQL compares with columns of floats: sent as text, which it reads as it has read the column.

A number with all its digits is compared as a double, and 0.1 is equal to no `real`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from saga_activities.parameters.json_parameters import UnusableParameter
from saga_activities.parameters.parameter_columns import Parameters, needs_care
from sagas.sql_text.parameters.compared_parameters import ComparedParameter, compared_parameters
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import placeholder_names
from sagas.text.message_texts import MessageTexts

AskTypes = Callable[[ParsedSql, Parameters], Awaitable[Mapping[str, int]]]
"""Gives the object identifiers of the types of parameters by their names, without running the statement."""

_COMPARISONS = ("=", "<>", "!=", "<", ">", "<=", ">=", "@>", "<@", "&&")
_QUANTIFIERS = ("any", "all", "some")

_FLOATS = frozenset((700, 701, 1021, 1022))
"""The object identifiers of `real`, `double precision` and arrays of them."""


async def with_float_arrays(
    statement: ParsedSql, rows: Sequence[Parameters], ask_types: AskTypes
) -> Sequence[Parameters]:
    """The parameters, with arrays that are compared with floats as text. Raises the errors of the database."""
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list) and needs_care(value)}
    lists &= _comparison_operands(statement) if lists else lists
    if not lists:
        return rows
    types = await ask_types(statement, {**rows[0], **dict.fromkeys(lists)})
    floats = {name for name in lists if types.get(name) in _FLOATS}
    return [{name: _text(name, value) if name in floats else value for name, value in row.items()} for row in rows]


def _comparison_operands(statement: ParsedSql) -> set[str]:
    """The parameters that are an operand of a comparison, or the array of `any (…)`.

    The database may be unable to tell the type of a parameter that is an argument of a function.
    """
    tokens = list(statement.significant())
    words = ["", "", *(statement.text_of(token).lower() for token in tokens), ""]
    return {
        statement.text_of(token)[1:]
        for number, token in enumerate(tokens, 2)
        if token.kind == "parameter"
        and (
            words[number - 1] in _COMPARISONS
            or words[number + 1] in _COMPARISONS
            or (words[number - 1] == "(" and words[number - 2] in _QUANTIFIERS)
        )
    }


async def with_floats(statement: ParsedSql, row: Parameters, ask_types: AskTypes) -> Parameters:
    """The parameters, with text for numbers that are compared with floats alone. Raises the errors of the database."""
    places, texts = placeholder_names(statement), dict[str, str]()
    uses: dict[str, list[ComparedParameter]] = {}
    for use in compared_parameters(statement):
        uses.setdefault(use.parameter, []).append(use)
    for name, of_name in uses.items():
        is_compared = all(use.direct and use.use in ("compared", "element") for use in of_name)
        is_number = not isinstance(row[name], list) and needs_care(row[name])
        if is_number and is_compared and len(of_name) == places.count(name):
            texts[name] = _text(name, row[name])
    types = await ask_types(statement, {**row, **texts}) if texts else {}
    return {**row, **{name: text for name, text in texts.items() if types[name] in _FLOATS}}


def _text(name: str, value: Any) -> Any:
    """A number, or the items of an array, as PostgreSQL reads them. Raises UnusableParameter."""
    try:
        return _operand(value, MessageTexts())
    except ValueError as error:
        raise UnusableParameter(f"the parameter {name} cannot be written: {error}") from error


def _operand(value: Any, texts: MessageTexts) -> Any:
    if isinstance(value, list):
        return f"{{{','.join('NULL' if item is None else str(_operand(item, texts)) for item in value)}}}"
    return texts.text(value) if needs_care(value) or isinstance(value, int) else value
