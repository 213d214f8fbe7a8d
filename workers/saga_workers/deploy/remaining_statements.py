"""The SQL of calls that sagas may still make, as far as their definitions have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.builtins.spark import RECONCILE, SPARK
from sagas.builtins.sql_places import sql_places, value_at
from sagas.expressions.template_syntax import OPENING
from sagas.machine.remaining_calls import RemainingCall
from sagas.text.sql_names import sql_name


@dataclass(frozen=True, slots=True)
class RemainingStatement:
    """A statement and the connection whose database runs it. ``name`` says which one of the call it is.

    ``guarded``: it runs in the transaction of its step. ``restores``: its rows are restored, and it does not run again.
    """

    connection: str
    text: str
    name: str
    guarded: bool = True
    restores: bool = False


def remaining_statements(call: RemainingCall) -> Iterator[RemainingStatement]:
    """The statements of a call that this project's databases run."""
    operation = call.operation
    if not operation.local:
        return
    if operation.uses == RESTORE and operation.connection is not None:
        for text, name in _of_sql(call.restored or {}):
            yield RemainingStatement(operation.connection, text, name, restores=True)
    elif operation.uses == "sql" and operation.connection is not None:
        for text, name in _of_sql(call.arguments):
            yield RemainingStatement(operation.connection, text, name)
    elif operation.uses in (SPARK, RECONCILE):
        yield from _reads(call)


def _of_sql(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each literal text of the arguments of `sql`, and which one it is."""
    places = sql_places("sql", arguments)
    for number, place in enumerate(places, 1):
        for path in place.statements:
            text = value_at(arguments, path)
            if isinstance(text, str) and OPENING not in text:
                yield text, "statement" if len(places) == 1 else f"statement {number}"


def _reads(call: RemainingCall) -> Iterator[RemainingStatement]:
    """The queries of a Spark step on the databases that it reads from."""
    for place in sql_places(call.operation.uses or "", call.arguments):
        if place.connection is None:
            continue
        path = place.connection[:-1]
        source = value_at(call.arguments, path)
        written = [source.get(field) for field in ("connection", "query", "table", "where")]
        connection, query, table, where = (text if isinstance(text, str) else None for text in written)
        if connection is None or any(OPENING in text for text in written if isinstance(text, str)):
            continue
        read = f"(\n{query}\n) as input" if query is not None else _table(table)
        if read is not None:
            condition = "" if where is None else f" where (\n{where}\n)"
            text = f"select * from {read}{condition}"  # noqa: S608 - prepared only, as its author wrote it
            yield RemainingStatement(connection, text, f"query for {path[-1]}", guarded=False)


def _table(name: str | None) -> str | None:
    return None if name is None else ".".join(map(sql_name, name.split(".")))
