"""The order of the calls of a chunk, in which their transaction locks rows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from saga_activities.bodies.sql_action import statements_of
from sagas.protocol.payloads import Invocation
from sagas.sql_text.lock_order import lock_parameters
from sagas.sql_text.sql_statements import parse_guarded
from sagas.sql_text.tokens import RefusedStatement
from sagas.text.exact_json import canonical_json


async def sort_keys(calls: Sequence[Invocation], dialect: str) -> list[Sequence[str]]:
    """The values by which the statements of each call find their rows, as canonical JSON.

    Chunks that take their calls in the order of these lock the rows of one table in one order. Empty for other actions
    than `sql`: which rows they lock, only their authors know. Such chunks can deadlock, and so can those whose calls
    lock rows of several tables; they are repeated then.
    """
    if not any(call.action == "sql" for call in calls):
        return [()] * len(calls)
    if "sqlglot" in sys.modules:
        return _all_keys(calls, dialect)
    # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
    return await asyncio.to_thread(_all_keys, calls, dialect)


def _all_keys(calls: Sequence[Invocation], dialect: str) -> list[Sequence[str]]:
    return [_key(call.arguments, dialect) if call.action == "sql" else () for call in calls]


def _key(arguments: Mapping[str, Any], dialect: str) -> Sequence[str]:
    values: list[str] = []
    for statement in statements_of(arguments):
        parameters = statement.get("params") or {}
        try:
            names = lock_parameters(parse_guarded(statement["sql"], dialect))
        except RefusedStatement:  # the attempt says why
            continue
        values += [canonical_json(parameters[name]) for name in names if name in parameters]
    return values
