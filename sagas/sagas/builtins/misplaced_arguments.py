"""Arguments of built-in actions that have no effect in the form in which they are written. Pure.

Each of them would be ignored, so a row count would not be checked, or other rows would be read: it is an error, when
the definition is checked and, for SQL, before an attempt runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.builtins.spark import RECONCILE, SPARK
from sagas.builtins.sql_places import Path
from sagas.text.json_values import as_mapping

OF_A_STATEMENT = ("params", "expect_rows", "rejected")
"""The arguments of `sql` that belong to one statement."""

_READS = ("GET", "HEAD")
_SOURCES_OF = {
    "table": ("connection", "table"),
    "query": ("connection",),
    "output": ("step",),
    "as_of": ("table",),
    "since": ("topic",),
}
"""The sources of rows with which a field of an input has an effect; `where` and `columns` have it with each."""


@dataclass(frozen=True, slots=True)
class MisplacedArgument:
    """An argument without effect: the path that leads to it, why it has none, and where it belongs."""

    path: Path
    message: str
    help: str


def misplaced_arguments(uses: str, arguments: Mapping[str, Any]) -> Iterator[MisplacedArgument]:
    """All arguments without effect of a call, which may also be wrong in any other way."""
    match uses:
        case "sql":
            yield from _of_sql(arguments)
        case "http":
            yield from _of_http(arguments)
        case "wait":
            if "on_timeout" in arguments and "signal" in arguments and "timeout" not in arguments:
                message = "`on_timeout` has no effect without `timeout`: the signal is waited for without limit"
                yield MisplacedArgument(("on_timeout",), message, "add `timeout`, or remove `on_timeout`")
        case str() if uses == SPARK:
            yield from _of_spark(arguments)
        case str() if uses == RECONCILE:
            for side in ("left", "right"):
                yield from _of_input(arguments.get(side), (side,))


def _of_sql(arguments: Mapping[str, Any]) -> Iterator[MisplacedArgument]:
    run = arguments.get("run")
    next_to_run = [name for name in OF_A_STATEMENT if name in arguments]
    if isinstance(run, list):
        for name in next_to_run:
            message = f"`{name}` next to a list of statements has no effect"
            help = f"write it in the statement that it belongs to: run: [{{sql: …, {name}: …}}]"
            yield MisplacedArgument((name,), message, help)
        for index, statement in enumerate(run):
            yield from _without_row_count(statement, ("run", index))
        return
    if isinstance(run, Mapping):
        for name in next_to_run:
            if name in run:
                message = f"`{name}` is written twice, in `run` and next to it, and only one of them would have effect"
                yield MisplacedArgument((name,), message, "keep the one next to `sql`")
        yield from _without_row_count({**arguments, **run}, ("run",) if "rejected" in run else ())
    else:
        yield from _without_row_count(arguments, ())


def _without_row_count(statement: Any, path: Path) -> Iterator[MisplacedArgument]:
    if isinstance(statement, Mapping) and "rejected" in statement and "expect_rows" not in statement:
        message = "`rejected` has no effect without `expect_rows`: it is the message for another number of rows"
        yield MisplacedArgument((*path, "rejected"), message, "add `expect_rows` to this statement, or remove it")


def _of_http(arguments: Mapping[str, Any]) -> Iterator[MisplacedArgument]:
    method = str(arguments.get("method", "GET")).upper()
    for name in ("json", "form", "body"):
        if name in arguments and method in _READS:
            message = f"`{name}` has no effect: a {method} request has no body"
            help = "name a method that has one, such as `method: POST`, or write the values under `query`"
            yield MisplacedArgument((name,), message, help)


def _of_spark(arguments: Mapping[str, Any]) -> Iterator[MisplacedArgument]:
    for name, source in as_mapping(arguments.get("inputs")).items():
        yield from _of_input(source, ("inputs", name))
    outputs = {("outputs", name): output for name, output in as_mapping(arguments.get("outputs")).items()}
    for path, output in {("output",): arguments.get("output"), **outputs}.items():
        yield from _of_output(as_mapping(output), path)
    audit = arguments.get("audit")
    for index, check in enumerate(audit) if isinstance(audit, list) else ():
        check = as_mapping(check)
        if "where" in check and "sql" in check:
            help = "write the condition in the query itself"
            yield MisplacedArgument(("audit", index, "where"), "`where` of the check `sql` has no effect", help)
        for kind, field in (("relationships", "to"), ("reconcile", "with")):
            yield from _of_input(as_mapping(check.get(kind)).get(field), ("audit", index, kind, field))


def _of_input(source: Any, path: Path) -> Iterator[MisplacedArgument]:
    given = as_mapping(source)
    kind = next((word for word in ("connection", "parquet", "step", "topic", "table") if word in given), None)
    for name, kinds in _SOURCES_OF.items():
        if name in given and kind is not None and kind not in kinds:
            places = " or ".join(f"`{other}`" for other in kinds if other != name) or "a table of a catalog"
            message = f"`{name}` of an input has no effect with `{kind}`"
            yield MisplacedArgument((*path, name), message, f"it belongs to an input with {places}: remove it")


def _of_output(given: Mapping[str, Any], path: Path) -> Iterator[MisplacedArgument]:
    mode = str(given.get("mode", "append"))
    if "where" in given and mode != "overwrite_where" and "${{" not in mode:
        message = f"`where` of an output has no effect with the mode `{mode}`"
        help = "write `mode: overwrite_where` to replace these rows, or select the rows in the job"
        yield MisplacedArgument((*path, "where"), message, help)
    if "value" in given and "topic" not in given:
        message = "`value` of an output has no effect without `topic`"
        yield MisplacedArgument((*path, "value"), message, "it names the column of a topic's records: remove it")
    if "partition_by" in given and (kind := next((word for word in ("topic", "connection") if word in given), None)):
        message = f"`partition_by` of an output has no effect with `{kind}`"
        help = "set `key` for the records of a topic" if kind == "topic" else "partition the table in the database"
        yield MisplacedArgument((*path, "partition_by"), message, help)
