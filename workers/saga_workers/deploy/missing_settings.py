"""Checks that the settings of a project have what a call needs beside its action: connections, catalogs, addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from sagas.builtins.callbacks import CALLBACK
from sagas.builtins.messaging import REQUEST
from sagas.builtins.registry import BUILTINS
from sagas.expressions.template_syntax import OPENING
from sagas.machine.remaining_calls import RemainingCall
from sagas.project import Project

_SPARK = "spark."
"""Beginning of the names of what the engine does with staged outputs."""


def missing_setting(project: Project, call: RemainingCall) -> str | None:
    """Why saga.toml is not enough for the call, as one sentence without a period; None if it is.

    A connection or catalog that an expression names is not known before the call.
    """
    uses, facts = call.operation.uses or "", project.context
    for name, kind in _connections(call):
        table = (facts.connections or {}).get(name)
        if table is None:
            return f"the connection {name} is not in saga.toml"
        if table.get("kind", "sql") != kind:
            return f"the connection {name} is not of the kind {kind} any more"
    if uses == "http" and call.arguments.get(CALLBACK) is not None and not facts.receives_callbacks:
        return "its callback needs an address: set public_url under [serve] in saga.toml"
    if uses == REQUEST and (facts.kafka is None or facts.kafka.outbox is None):
        return "it needs a database for its commands: set outbox under [kafka] in saga.toml"
    if _is_spark(uses):
        catalogs = {} if facts.spark is None else facts.spark.catalogs
        for name in _catalogs(call.arguments):
            if name not in catalogs:
                return f"the catalog {name} is not in saga.toml"
    return None


def _is_spark(uses: str) -> bool:
    return uses.startswith(_SPARK) or (uses in BUILTINS and BUILTINS[uses].executor == "spark")


def _connections(call: RemainingCall) -> Iterator[tuple[str, str]]:
    """The connections that the call is known to use, with their kinds."""
    uses, arguments = call.operation.uses or "", call.arguments
    if call.operation.connection is not None:
        yield call.operation.connection, "sql"
    if uses == "http" and _is_name(name := arguments.get("connection")):
        yield name, "http"
    if _is_spark(uses):
        for place in _places(arguments):
            if _is_name(name := place.get("connection")):
                yield name, "sql"


def _catalogs(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The catalogs of the tables that a Spark job reads and writes."""
    for place in _places(arguments):
        table = place.get("table")
        if "connection" not in place and isinstance(table, str) and _is_name(name := table.partition(".")[0]):
            yield name


def _places(arguments: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The inputs and outputs of a Spark job."""
    single = [arguments.get(name) for name in ("output", "left", "right")]
    several = [arguments.get(name) for name in ("inputs", "outputs")]
    for place in [*single, *(each for given in several if isinstance(given, Mapping) for each in given.values())]:
        if isinstance(place, Mapping):
            yield place


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and OPENING not in value
