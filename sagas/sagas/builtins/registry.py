"""Facts about the built-in actions: their arguments, and what the engine may assume about them.

Only data: how `sql` and `http` run is the business of the activities; `wait`, `require` and `saga` are done by the
machine itself. Arguments whose value is an expression (``EXPRESSION``) are taken bare or in ``${{ }}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sagas.builtins import messaging, spark

Schema = Mapping[str, Any]
Executor = Literal["sql", "http", "engine", "spark", "kafka"]

EXPRESSION = "x-expression"
"""Marks a text that is CEL: ``rendered`` is evaluated before the call, ``response`` by the action over the answer."""

PLANNED = "x-later"
"""Marks an argument of a later part of the product; the value names that part."""

READ_METHODS = ("GET", "HEAD")
DURATION = {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d))+$"}
_STRING = {"type": "string", "minLength": 1}
_STATUS = {
    "type": "array",
    "items": {
        "anyOf": [{"type": "integer", "minimum": 100, "maximum": 599}, {"type": "string", "pattern": "^[1-5]xx$"}]
    },
}


@dataclass(frozen=True, slots=True)
class Builtin:
    """One built-in action. ``parameters`` is the JSON Schema of its `with`.

    ``where``: ``sql`` is guarded by its connection, ``http`` talks to a participant, ``engine`` runs in the machine,
    ``spark`` works beside the worker and keeps its rows at home (``[spark] ledger``), ``kafka`` keeps its events in the
    outbox of one connection (``[kafka] outbox``).
    ``read`` True: it never has an effect (`http` depends on its method, see :func:`is_read`).
    ``own_undo`` True: before the commit point it needs no `compensate`.
    """

    name: str
    summary: str
    executor: Executor
    parameters: Schema
    read: bool = False
    own_undo: bool = False


def _object(required: list[str], properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


_PARAMS = {"type": "object"}
_EXPECT_ROWS = {"type": "integer", "minimum": 0}
STATEMENT = _object(
    ["sql"], {"sql": _STRING, "params": _PARAMS, "expect_rows": _EXPECT_ROWS, "rejected": {"type": "string"}}
)
BUILTINS: Mapping[str, Builtin] = {
    builtin.name: builtin
    for builtin in (
        Builtin(
            "sql",
            "statements in one guarded transaction; the result is the rows of the last RETURNING or SELECT",
            "sql",
            _object(
                ["connection", "run"],
                {
                    "connection": _STRING,
                    "run": {"anyOf": [_STRING, STATEMENT, {"type": "array", "minItems": 1, "items": STATEMENT}]},
                    "params": _PARAMS,
                    "expect_rows": _EXPECT_ROWS,
                    "rejected": {"type": "string"},
                    "emit": {"type": "array", "items": messaging.EVENT},
                    "two_phase": {PLANNED: "two-phase commit"},
                },
            ),
        ),
        Builtin(
            "http",
            "one request; GET and HEAD are reads",
            "http",
            _object(
                [],
                {
                    "connection": _STRING,
                    "method": {"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]},
                    "path": {"type": "string"},
                    "url": {"type": "string", "pattern": "^https?://"},
                    "query": {"type": "object"},
                    "headers": {"type": "object"},
                    "json": {},
                    "form": {"type": "object"},
                    "body": {"type": "string"},
                    "done": _STATUS,
                    "rejected": _STATUS,
                    "result": {"type": "string", "minLength": 1, EXPRESSION: "response"},
                    "callback": {PLANNED: "http callbacks"},
                },
            ),
        ),
        Builtin(
            "saga",
            "a nested saga; it brings its own undo",
            "engine",
            _object(["name"], {"name": _STRING, "input": {}}),
            own_undo=True,
        ),
        Builtin(
            "wait",
            "waits for a time or for a signal",
            "engine",
            _object(
                [],
                {
                    "for": DURATION,
                    "until": _STRING,
                    "signal": _STRING,
                    "timeout": DURATION,
                    "on_timeout": {"enum": ["reject", "continue", "park"]},
                },
            ),
            read=True,
        ),
        Builtin(
            "require",
            "rejects when the expression is false",
            "engine",
            _object(
                ["that"],
                {"that": {"type": ["string", "boolean"], EXPRESSION: "rendered"}, "message": _STRING},
            ),
            read=True,
        ),
        Builtin(
            spark.SPARK,
            "a Spark job whose output is staged, audited, published and taken back",
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
            "a command to a topic; the saga goes on when the reply comes",
            "kafka",
            messaging.REQUEST_PARAMETERS,
        ),
    )
}


def is_read_call(uses: str, arguments: Mapping[str, Any]) -> bool:
    """True when this call of a built-in action can have no effect."""
    builtin = BUILTINS.get(uses)
    if builtin is None:
        return False
    return builtin.read or (uses == "http" and str(arguments.get("method", "GET")).upper() in READ_METHODS)


def may_reject(uses: str, arguments: Mapping[str, Any]) -> bool:
    """True when this call of a built-in action can be rejected."""
    if uses == "sql":
        run = arguments.get("run")
        statements = run if isinstance(run, list) else [run, arguments]
        return any(isinstance(one, Mapping) and "expect_rows" in one for one in statements)
    if uses == "http":
        return arguments.get("rejected") != []
    if uses == "wait":
        return "signal" in arguments
    return uses not in messaging.EMITTERS


def is_spark_job(uses: str) -> bool:
    """True for the actions that a Spark runner performs."""
    return uses in BUILTINS and BUILTINS[uses].executor == "spark"
