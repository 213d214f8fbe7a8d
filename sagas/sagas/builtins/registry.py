"""The built-in actions: their arguments, and what the engine may assume about them.

Data only: activities perform `sql` and `http`, the state machine performs `wait`, `require`, `pass`, `finish` and
`saga`. Arguments marked with ``EXPRESSION`` are CEL, bare or in ``${{ }}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sagas.builtins import messaging, spark
from sagas.builtins.callbacks import CALLBACK
from sagas.builtins.schemas import NAME, SQL, STRING, object_schema
from sagas.builtins.two_phase import TWO_PHASE

Schema = Mapping[str, Any]
Executor = Literal["sql", "http", "engine", "spark", "kafka"]

EXPRESSION = "x-expression"
"""Marks a string as CEL: ``rendered`` is evaluated before the call, ``response`` by the action on its response."""

CONDITION = {"type": ["string", "boolean"]}
"""An expression that is true or false."""

READ_METHODS = ("GET", "HEAD")
DURATION = {
    "type": "string",
    "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$",
    messaging.FORM_DESCRIPTION: "a duration such as 3s, 10m or 1h30m",
}
_TIMESTAMP = {
    "type": "string",
    "pattern": (
        r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
        r"([Zz]|[+-][0-9]{2}:[0-9]{2})$"
    ),
    messaging.FORM_DESCRIPTION: "a time with its zone, such as 2026-05-01T10:30:00Z",
}
_STATUS = {
    "type": "array",
    "items": {
        "type": ["integer", "string"],
        "minimum": 100,
        "maximum": 599,
        "pattern": "^[1-5]xx$",
        messaging.FORM_DESCRIPTION: "a status such as 409, or a class of them such as 4xx",
    },
}


@dataclass(frozen=True, slots=True)
class Builtin:
    """One built-in action. ``parameters`` is the JSON Schema of its `with`.

    ``executor``: ``sql`` is guarded in its connection's database, ``http`` calls a participant, ``engine`` runs in the
    state machine, ``spark`` runs in a Spark runner next to the worker and keeps its rows in ``[spark] ledger``,
    ``kafka`` keeps its events in the connection ``[kafka] outbox``.
    ``read``: the action never has an effect (for `http` it depends on the method, see :func:`is_read_call`; a `pass`
    with `compensate` takes its place among the effects all the same).
    ``own_undo``: the action needs no `compensate` before the commit point.
    """

    name: str
    summary: str
    executor: Executor
    parameters: Schema
    read: bool = False
    own_undo: bool = False


_PARAMS = {"type": "object"}
_PORT = r"(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_ADDRESS = rf"(?:\[[0-9A-Fa-f:.]+\]|[^\s\\/:@\[\]?#,;\"'<>^`|%{{}}]+)(?::{_PORT})?"
_EXPECT_ROWS = {"type": "integer", "minimum": 0, messaging.FORM_DESCRIPTION: "a number of rows, as in `expect_rows: 1`"}
STATEMENT = object_schema(
    {"sql": SQL, "params": _PARAMS, "expect_rows": _EXPECT_ROWS, "rejected": {"type": "string"}},
    ["sql"],
    **{messaging.FORM_DESCRIPTION: "a mapping for each statement: `- sql: select 1`"},
)
BUILTINS: Mapping[str, Builtin] = {
    builtin.name: builtin
    for builtin in (
        Builtin(
            "sql",
            "statements in one guarded transaction; the result is the rows of the last RETURNING or SELECT",
            "sql",
            object_schema(
                {
                    "connection": STRING,
                    "run": {"anyOf": [SQL, STATEMENT, {"type": "array", "minItems": 1, "items": STATEMENT}]},
                    "params": _PARAMS,
                    "expect_rows": _EXPECT_ROWS,
                    "rejected": {"type": "string"},
                    "emit": {"type": "array", "items": messaging.EVENT},
                    TWO_PHASE: {"type": "boolean"},
                },
                ["connection", "run"],
            ),
        ),
        Builtin(
            "http",
            "one request; GET and HEAD are reads",
            "http",
            object_schema(
                {
                    "connection": NAME,
                    "method": {"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]},
                    "path": {
                        "type": "string",
                        "pattern": r"^(?!\w+://)(?!.*/:\w)[^{}]*$",
                        messaging.FORM_DESCRIPTION: "a path below the address of the connection, with values as "
                        "expressions: /orders/${{ input.id }}",
                    },
                    "url": {
                        "type": "string",
                        "pattern": rf"^https?://(?!.*/:\w)(?:[^/?#]*@|{_ADDRESS}(?=[/?]|$)(?!.*\s))[^{{}}]*$",
                        messaging.FORM_DESCRIPTION: "an address that begins with http:// or https://, with values as "
                        "expressions, ${{ input.id }}; what follows the address of a connection is its `path`",
                    },
                    "query": {"type": "object"},
                    "headers": {"type": "object"},
                    "json": {},
                    "form": {"type": "object"},
                    "body": {"type": "string"},
                    "done": _STATUS,
                    "rejected": _STATUS,
                    "rejected_when": {**CONDITION, EXPRESSION: "response"},
                    "result": {"type": "string", "minLength": 1, EXPRESSION: "response"},
                    CALLBACK: object_schema(
                        {
                            "timeout": DURATION,
                            "done": {**CONDITION, EXPRESSION: "response"},
                            "rejected": {**CONDITION, EXPRESSION: "response"},
                        }
                    ),
                }
            ),
        ),
        Builtin(
            "saga",
            "a nested saga, with its own compensations",
            "engine",
            object_schema({"name": NAME, "input": {}}, ["name"]),
            own_undo=True,
        ),
        Builtin(
            "wait",
            "waits for a time or for a signal",
            "engine",
            object_schema(
                {
                    "for": DURATION,
                    "until": _TIMESTAMP,
                    "signal": STRING,
                    "timeout": DURATION,
                    "on_timeout": {"enum": ["reject", "continue", "park"]},
                }
            ),
            read=True,
        ),
        Builtin(
            "require",
            "rejects when the expression is false; without a `message`, with the expression and the values it reads",
            "engine",
            object_schema({"that": {**CONDITION, EXPRESSION: "rendered"}, "message": STRING}, ["that"]),
            read=True,
        ),
        Builtin(
            "pass",
            "does nothing; its `compensate`, if it has one, runs in its place",
            "engine",
            object_schema({"result": {EXPRESSION: "rendered"}}),
            read=True,
        ),
        Builtin(
            "finish",
            "completes the saga early when the expression is true: the steps below are skipped",
            "engine",
            object_schema({"when": {**CONDITION, EXPRESSION: "rendered"}, "output": {}}, ["when"]),
            read=True,
        ),
        Builtin(
            spark.SPARK,
            "a Spark job whose output is staged, audited, published, and reverted on undo",
            "spark",
            spark.SPARK_PARAMETERS,
            own_undo=True,
        ),
        Builtin(
            spark.RECONCILE,
            "compares two sets of rows; rejects when they differ",
            "spark",
            spark.RECONCILE_PARAMETERS,
            read=True,
        ),
        Builtin(
            messaging.EMIT,
            "events in one guarded transaction of a database; all or none, once",
            "sql",
            messaging.EMIT_PARAMETERS,
        ),
        Builtin(
            messaging.PUBLISH,
            "events to Kafka topics; all or none, once",
            "kafka",
            messaging.PUBLISH_PARAMETERS,
        ),
        Builtin(
            messaging.REQUEST,
            "a command to a topic; the saga continues when the reply arrives",
            "kafka",
            messaging.REQUEST_PARAMETERS,
        ),
    )
}


def response_expressions(uses: str) -> frozenset[str]:
    """The arguments of a built-in action that are expressions over its response, which the action evaluates."""
    return _RESPONSE_EXPRESSIONS.get(uses, frozenset())


def is_condition(schema: Schema) -> bool:
    """True for an argument that is an expression for true or false."""
    return EXPRESSION in schema and "boolean" in schema.get("type", ())


_RESPONSE_EXPRESSIONS = {
    uses: frozenset(
        name for name, schema in builtin.parameters["properties"].items() if schema.get(EXPRESSION) == "response"
    )
    for uses, builtin in BUILTINS.items()
}


def is_read_call(uses: str, arguments: Mapping[str, Any]) -> bool:
    """True if this call of a built-in action cannot have an effect."""
    builtin = BUILTINS.get(uses)
    if builtin is None:
        return False
    return builtin.read or (uses == "http" and str(arguments.get("method", "GET")).upper() in READ_METHODS)


def marks_expressions(schema: Schema) -> bool:
    """True for an object with fields that are marked as expressions."""
    return any(EXPRESSION in field for field in schema.get("properties", {}).values())


def may_reject(uses: str, arguments: Mapping[str, Any]) -> bool:
    """True if this call of a built-in action can be rejected."""
    if uses == "sql":
        run = arguments.get("run")
        statements = run if isinstance(run, list) else [run, arguments]
        return any(isinstance(statement, Mapping) and "expect_rows" in statement for statement in statements)
    if uses == "http":
        callback = arguments.get(CALLBACK)
        refuses = isinstance(callback, Mapping) and "rejected" in callback
        return arguments.get("rejected") != [] or "rejected_when" in arguments or refuses
    if uses == "wait":
        return "signal" in arguments
    return uses not in (*messaging.EMITTERS, "pass", "finish")


def is_spark_job(uses: str) -> bool:
    """True for the actions that run in a Spark runner."""
    return uses in BUILTINS and BUILTINS[uses].executor == "spark"
