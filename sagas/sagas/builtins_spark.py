"""The arguments of a `spark` step as JSON Schema, and the operations that the engine adds to it.

Facts only: how a job is staged, audited, published and taken back is the business of spark_steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.builtins_messaging import TOPIC

SPARK = "spark"
RECONCILE = "reconcile"
PUBLISH = "spark.publish"
DISCARD = "spark.discard"
UNPUBLISH = "spark.unpublish"
"""What the engine adds to a `spark` step: its `confirm`, its `compensate`, and the `confirmed` form of that."""

JOB_TIMEOUT = 3600.0
JOB_HEARTBEAT = 30.0
"""Seconds, where neither the step nor `defaults` says something: a job takes longer than a call."""

JOB_ATTEMPTS = 3
"""Attempts where nothing else is said: most errors of a job are the same each time."""

PUBLISH_TIMEOUT = 600.0
"""Seconds one attempt to publish or to take back may take."""

MODES = ("append", "overwrite", "overwrite_partitions", "overwrite_where", "merge")

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_WHERE = {"anyOf": [_TEXT, {"type": "object", "minProperties": 1}]}
_NAMES = {"pattern": "^[a-z][a-z0-9_]{0,63}$"}
"""Names of inputs and outputs are folders of the stage and a column of the ledger."""
_AMOUNT = {"type": ["number", "string"]}


def _object(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


INPUT = _object(
    {
        "connection": _TEXT,
        "table": _TEXT,
        "query": _TEXT,
        "columns": {"type": "array", "items": _TEXT, "minItems": 1},
        "where": _WHERE,
        "parquet": _TEXT,
        "step": _TEXT,
        "output": _TEXT,
        "as_of": {"type": ["string", "integer"]},
        "topic": TOPIC,
        "since": _TEXT,
    }
)
"""Where rows come from: a table of a connection, files, the staged output of an ancestor, a table of a catalog, a
topic (with ``since``: its records from that moment on)."""

OUTPUT = _object(
    {
        "table": _TEXT,
        "connection": _TEXT,
        "parquet": _TEXT,
        "mode": {"enum": list(MODES)},
        "where": {"type": "object", "minProperties": 1},
        "key": _TEXTS,
        "partition_by": _TEXTS,
        "topic": TOPIC,
        "value": _TEXT,
    }
)

_COMMON = {"severity": {"enum": ["error", "warn"]}, "where": _WHERE, "output": _TEXT, "name": _TEXT}
_RECONCILE = _object(
    {
        "with": INPUT,
        "key": _TEXTS,
        "compare": _TEXTS,
        "tolerance": _AMOUNT,
        "mapping": {"type": "object"},
    },
    ("with", "key"),
)
CHECK_KINDS: dict[str, Any] = {
    "rows": _object(
        {"equals": _AMOUNT, "min": _AMOUNT, "max": _AMOUNT, "change": {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}}
    ),
    "sum": _object(
        {"column": _TEXT, "equals": _AMOUNT, "min": _AMOUNT, "max": _AMOUNT, "tolerance": _AMOUNT}, ("column",)
    ),
    "unique": _TEXTS,
    "not_null": _TEXTS,
    "accepted_values": _object({"column": _TEXT, "values": {"type": "array", "minItems": 1}}, ("column", "values")),
    "relationships": _object({"column": _TEXT, "to": INPUT, "field": _TEXT}, ("column", "to", "field")),
    "expression": _TEXT,
    "sql": _TEXT,
    "reconcile": _RECONCILE,
}
CHECK = _object({**CHECK_KINDS, **_COMMON})
"""One check; exactly one of the kinds is there."""

PARAMETERS = _object(
    {
        "job": {
            "anyOf": [
                {"type": "string", "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"},
                _object({"sql": _TEXT}, ("sql",)),
                _object(
                    {"main": _TEXT, "class": _TEXT, "args": {"type": "array", "items": {"type": ["string", "number"]}}},
                    ("main",),
                ),
            ]
        },
        "sql": _TEXT,
        "inputs": {"type": "object", "propertyNames": _NAMES, "additionalProperties": INPUT},
        "params": {"type": "object"},
        "output": OUTPUT,
        "outputs": {"type": "object", "minProperties": 1, "propertyNames": _NAMES, "additionalProperties": OUTPUT},
        "conf": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        "audit": {"type": "array", "items": CHECK},
    }
)

SIDE = INPUT
RECONCILE_PARAMETERS = _object(
    {
        "left": SIDE,
        "right": SIDE,
        "key": _TEXTS,
        "compare": _TEXTS,
        "tolerance": _AMOUNT,
        "filter": _WHERE,
        "mapping": {"type": "object"},
        "severity": {"enum": ["error", "warn"]},
    },
    ("left", "right", "key"),
)
"""`uses: reconcile`: two sides that must say the same."""


def long_form(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a `spark` step as spark_steps reads them: one `job`, `outputs` by name, each with a `mode`."""
    result = {name: value for name, value in arguments.items() if name not in ("sql", "output", "outputs")}
    if "sql" in arguments:
        result["job"] = {"sql": arguments["sql"]}
    outputs = arguments.get("outputs")
    if outputs is None and "output" in arguments:
        outputs = {"output": arguments["output"]}
    if isinstance(outputs, dict):
        result["outputs"] = {
            name: {"mode": "append", **one} if isinstance(one, dict) else one for name, one in outputs.items()
        }
    return result


def topics_read(uses: str, arguments: Mapping[str, Any]) -> list[Any]:
    """The topics that a job, its checks or a `reconcile` step read, as they are written; arguments in their long
    form."""
    if uses == RECONCILE:
        sides = [arguments.get("left"), arguments.get("right")]
    elif uses == SPARK:
        checks = [one for one in _listed(arguments.get("audit")) if isinstance(one, Mapping)]
        named = [one["relationships"].get("to") for one in checks if isinstance(one.get("relationships"), Mapping)]
        named += [one["reconcile"].get("with") for one in checks if isinstance(one.get("reconcile"), Mapping)]
        sides = [*_values(arguments.get("inputs")), *named]
    else:
        sides = []
    return [side["topic"] for side in sides if isinstance(side, Mapping) and "topic" in side]


def topics_written(uses: str, arguments: Mapping[str, Any]) -> list[Any]:
    """The topics that are outputs of a job, as they are written; arguments in their long form."""
    outputs = _values(arguments.get("outputs")) if uses == SPARK else ()
    return [one["topic"] for one in outputs if isinstance(one, Mapping) and "topic" in one]


def _values(mapping: Any) -> Iterator[Any]:
    yield from mapping.values() if isinstance(mapping, Mapping) else ()


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
