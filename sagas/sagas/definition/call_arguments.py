"""The arguments of a call of a built-in action: computed by expressions, sent by a client, or given by an operator.

They must fit what the definition's checks demand of literals, so an action never sees a value of another shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sagas.builtins.argument_groups import group_mistakes
from sagas.builtins.callbacks import CALLBACK, CALLBACK_ADDRESS
from sagas.builtins.messaging import EMITTERS, events_long_form
from sagas.builtins.misplaced_arguments import OF_A_STATEMENT, misplaced_arguments
from sagas.builtins.registry import BUILTINS, DURATION, EXPRESSION, is_condition
from sagas.builtins.spark import SPARK, spark_long_form
from sagas.builtins.sql_places import check_sql
from sagas.definition.schema_mismatches import JsonNode, mismatches
from sagas.errors import did_you_mean
from sagas.sql_text.tokens import RefusedStatement

_TOGETHER = "together"
"""The argument of `spark` that the engine adds for `publish: together`."""

FIXED = ("connection", "two_phase", "reply_topic", _TOGETHER)
"""Arguments that only a definition sets: where the guard and the credentials are, who listens for replies."""


def argument_problem(uses: str, arguments: Mapping[str, Any]) -> str | None:
    """Why a built-in action does not take these arguments, which names the argument; None if it does, or is not one."""
    builtin = BUILTINS.get(uses)
    if builtin is None or (uses == "sql" and _is_plain_sql(arguments)):
        return None
    properties = builtin.parameters["properties"]
    given = _as_written(uses, arguments)
    for name, value in given.items():
        if name not in properties:
            hint = did_you_mean(name[:60], tuple(properties))
            return f"`{uses}` has no argument `{name[:60]}`; it takes {', '.join(properties)}{hint}"
        schema = properties[name]
        if schema.get(EXPRESSION) == "rendered":
            schema = {"type": "boolean"} if is_condition(schema) else {}
        elif schema is DURATION and isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            continue  # an expression may compute the seconds
        for node, message in mismatches(JsonNode(value, name), schema, schema):
            return f"argument `{node.path[:80]}` of `{uses}`: {message}"
    for name in builtin.parameters["required"]:
        if name not in given and name != "connection":  # the guard has it
            return f"`{uses}` needs the argument `{name}`"
    if uses == SPARK and "job" not in given and "sql" not in given:
        return f"`{uses}` needs the argument `job` or `sql`"
    for mistake in group_mistakes(uses, given):
        return mistake.message
    for misplaced in misplaced_arguments(uses, given):
        return f"{misplaced.message}; {misplaced.help}"
    return None


def _as_written(uses: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without what the engine adds to those of a definition."""
    given = {name: value for name, value in arguments.items() if name != _TOGETHER or uses != SPARK}
    if uses == "http" and isinstance(callback := given.get(CALLBACK), Mapping):
        given[CALLBACK] = {name: value for name, value in callback.items() if name != CALLBACK_ADDRESS}
    return given


def statement_problem(uses: str, arguments: Mapping[str, Any], *, reads: bool) -> str | None:
    """Why the SQL in these arguments cannot be run, or does not go with its parameters; None if it can and does.

    Attempts compare them themselves, in the dialect of the database.
    """
    try:
        check_sql(uses, arguments, reads=reads)
    except RefusedStatement as error:
        return str(error)
    return None


_PLAIN_SQL = {"connection", "run"}
_PLAIN_STATEMENT = {"sql", *OF_A_STATEMENT}


def _is_plain_sql(arguments: Mapping[str, Any]) -> bool:
    """True for most calls of `sql`, which certainly fit: bulk workflows make hundreds of thousands of them."""
    run = arguments.get("run")
    return type(run) is list and bool(run) and arguments.keys() == _PLAIN_SQL and all(map(_is_plain_statement, run))


def _is_plain_statement(statement: Any) -> bool:
    if type(statement) is not dict or not statement.keys() <= _PLAIN_STATEMENT:
        return False
    rows, text = statement.get("expect_rows"), statement.get("sql")
    return (
        bool(type(text) is str and text)
        and type(statement.get("params", {})) is dict
        and (type(rows) is int and rows >= 0 if "expect_rows" in statement else "rejected" not in statement)
        and type(statement.get("rejected", "")) is str
    )


def fixed_argument_problem(new: Mapping[str, Any], original: Mapping[str, Any]) -> str | None:
    """Why an operator's arguments do not take the place of these: an argument of the definition would change."""
    for name in FIXED:
        if name in new and new[name] != original.get(name):
            return f"`{name}` is what the definition says and cannot change; leave it out, or correct the definition"
    return None


def replaced_arguments(uses: str, new: Mapping[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    """An operator's arguments in place of the original ones, in the form that the action reads."""
    if uses not in BUILTINS:
        return dict(new)
    arguments = {**{name: original[name] for name in FIXED if name in original}, **new}
    if uses in EMITTERS:
        return events_long_form(arguments)
    return spark_long_form(arguments) if uses == SPARK else arguments
