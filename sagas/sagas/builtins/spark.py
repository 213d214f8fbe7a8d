"""The arguments of `spark` and `reconcile` steps as JSON Schema, and the operations that the engine adds to them.

Data only: saga_spark stages, audits, publishes and reverts jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.builtins.messaging import FORM_DESCRIPTION, TOPIC
from sagas.builtins.schemas import CODE, NAME, PATH, SQL, STRING, object_schema

SPARK = "spark"
RECONCILE = "reconcile"
PUBLISH = "spark.publish"
DISCARD = "spark.discard"
REVERT = "spark.revert"
"""The operations that the engine adds to a `spark` step, in this order: `confirm`, `compensate` and
`compensate.confirmed`."""

JOB_TIMEOUT = 3600.0
JOB_HEARTBEAT = 30.0
"""Default timeouts in seconds; a job takes longer than a call."""

JOB_ATTEMPTS = 3
"""Default number of attempts: most errors of a job recur on every attempt."""

PUBLISH_TIMEOUT = 600.0
"""Seconds that one attempt to publish or to revert a publication may take."""

MULTI_TABLE_COMMIT = "multi_table_commit"
"""Property of a REST catalog in saga.toml: its server commits several tables in one transaction."""


def commits_together(catalog: Mapping[str, Any]) -> bool:
    """Return whether the catalog with these properties may commit several tables together.

    A REST server that offers the transaction may commit table by table, and nothing in the protocol tells: so its
    settings have to.
    """
    match catalog.get("type", "sql"):
        case "sql":
            return True
        case "rest":
            return catalog.get(MULTI_TABLE_COMMIT) in (True, "true")
    return False


SESSION_ZONE = "spark.sql.session.timeZone"
FIXED_CONF: Mapping[str, str] = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Properties that staged files depend on: every reader finds the same times in them, also before 1582."""
STAGING_SQL_CONF: Mapping[str, str] = {SESSION_ZONE: "UTC", **FIXED_CONF}
"""The properties of each session before the `conf` of a step, which may set another time zone for its job."""

MODES = ("append", "overwrite", "overwrite_partitions", "overwrite_where", "merge")

_NAME_OR_LIST = {"anyOf": [NAME, {"type": "array", "items": NAME, "minItems": 1}]}
_WHERE = {"anyOf": [SQL, {"type": "object", "minProperties": 1}]}
_NAMES = {"pattern": "^[a-z][a-z0-9_]{0,63}$"}
"""Names of inputs and outputs become folders of the stage and values of a column of `saga_output`."""
_NUMBER_OR_STRING = {"type": ["number", "string"]}


INPUT = object_schema(
    {
        "connection": NAME,
        "table": NAME,
        "query": SQL,
        "params": {"type": "object"},
        "columns": {"type": "array", "items": NAME, "minItems": 1},
        "where": _WHERE,
        "parquet": PATH,
        "step": NAME,
        "output": NAME,
        "as_of": {"type": ["string", "integer"]},
        "topic": TOPIC,
        "since": STRING,
    },
    **{
        FORM_DESCRIPTION: "a mapping with the source, not the name of an input, such as "
        "{connection: shop, table: orders}, {table: lake.silver.prices} or {parquet: data/promotions}"
    },
)
"""A source of rows: a table of a connection, files, the staged output of an ancestor, a table of a catalog, or a
topic (with ``since``, its records from that timestamp on)."""

OUTPUT = object_schema(
    {
        "table": NAME,
        "connection": NAME,
        "parquet": PATH,
        "mode": {"enum": list(MODES)},
        "where": {"type": "object", "minProperties": 1},
        "key": _NAME_OR_LIST,
        "partition_by": _NAME_OR_LIST,
        "topic": TOPIC,
        "value": NAME,
    }
)

_COMMON = {"severity": {"enum": ["error", "warn"]}, "where": _WHERE, "output": NAME, "name": STRING}
_RECONCILE = object_schema(
    {
        "with": INPUT,
        "key": _NAME_OR_LIST,
        "compare": _NAME_OR_LIST,
        "tolerance": _NUMBER_OR_STRING,
        "mapping": {"type": "object", "additionalProperties": NAME},
    },
    ("with", "key"),
)
CHECK_KINDS: dict[str, Any] = {
    "rows": object_schema(
        {
            "equals": _NUMBER_OR_STRING,
            "min": _NUMBER_OR_STRING,
            "max": _NUMBER_OR_STRING,
            "change": {"type": "string", "pattern": r"^\d+(\.\d+)?%$"},
            "accept": {"type": ["number", "string", "null"]},
        }
    ),
    "sum": object_schema(
        {
            "column": NAME,
            "equals": _NUMBER_OR_STRING,
            "min": _NUMBER_OR_STRING,
            "max": _NUMBER_OR_STRING,
            "tolerance": _NUMBER_OR_STRING,
        },
        ("column",),
    ),
    "unique": _NAME_OR_LIST,
    "not_null": _NAME_OR_LIST,
    "accepted_values": object_schema(
        {"column": NAME, "values": {"type": "array", "minItems": 1}}, ("column", "values")
    ),
    "relationships": object_schema({"column": NAME, "to": INPUT, "field": NAME}, ("column", "to", "field")),
    "expression": SQL,
    "sql": SQL,
    "reconcile": _RECONCILE,
}
CHECK = object_schema({**CHECK_KINDS, **_COMMON})
"""One check, with exactly one of the kinds."""

SPARK_PARAMETERS = object_schema(
    {
        "job": {
            "anyOf": [
                {"type": "string", "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", CODE: "name"},
                object_schema({"sql": SQL}, ("sql",)),
                object_schema(
                    {
                        "main": NAME,
                        "class": NAME,
                        "args": {"type": "array", "items": {"type": ["string", "number"]}},
                    },
                    ("main",),
                ),
            ]
        },
        "sql": SQL,
        "inputs": {"type": "object", "propertyNames": _NAMES, "additionalProperties": INPUT},
        "params": {"type": "object"},
        "output": OUTPUT,
        "outputs": {"type": "object", "minProperties": 1, "propertyNames": _NAMES, "additionalProperties": OUTPUT},
        "conf": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean"], CODE: "name"},
        },
        "audit": {"type": "array", "items": CHECK},
    }
)

SIDE = INPUT
RECONCILE_PARAMETERS = object_schema(
    {
        "left": SIDE,
        "right": SIDE,
        "key": _NAME_OR_LIST,
        "compare": _NAME_OR_LIST,
        "tolerance": _NUMBER_OR_STRING,
        "filter": _WHERE,
        "mapping": {"type": "object", "additionalProperties": NAME},
        "severity": {"enum": ["error", "warn"]},
    },
    ("left", "right", "key"),
)
"""`uses: reconcile`: two inputs that must have the same rows."""


def spark_long_form(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a `spark` step as saga_spark reads them: one `job`, `outputs` by name, each with a `mode`."""
    result = {name: value for name, value in arguments.items() if name not in ("sql", "output", "outputs")}
    if "sql" in arguments:
        result["job"] = {"sql": arguments["sql"]}
    outputs = arguments.get("outputs")
    if outputs is None and "output" in arguments:
        outputs = {"output": arguments["output"]}
    if isinstance(outputs, dict):
        result["outputs"] = {
            name: {"mode": "append", **output} if isinstance(output, dict) else output
            for name, output in outputs.items()
        }
    return result


def output_place(output: Mapping[str, Any]) -> tuple[str, str]:
    """The system of an output as it is written in a definition (connection, catalog, ``parquet`` or ``kafka``), and
    its place there: table, folder or topic.
    """
    if "parquet" in output:
        return "parquet", str(output["parquet"])
    if "topic" in output:
        return "kafka", str(output["topic"])
    table = str(output.get("table"))
    return str(output.get("connection") or table.partition(".")[0]), table


def topics_read(uses: str, arguments: Mapping[str, Any]) -> list[Any]:
    """The topics, as written, that a job, its checks or a `reconcile` step read; ``arguments`` are in the long form."""
    if uses == RECONCILE:
        sides = [arguments.get("left"), arguments.get("right")]
    elif uses == SPARK:
        checks = [check for check in _as_list(arguments.get("audit")) if isinstance(check, Mapping)]
        named = [
            check["relationships"].get("to") for check in checks if isinstance(check.get("relationships"), Mapping)
        ]
        named += [check["reconcile"].get("with") for check in checks if isinstance(check.get("reconcile"), Mapping)]
        sides = [*_mapping_values(arguments.get("inputs")), *named]
    else:
        sides = []
    return [side["topic"] for side in sides if isinstance(side, Mapping) and "topic" in side]


def topics_written(uses: str, arguments: Mapping[str, Any]) -> list[Any]:
    """The topics, as written, that are outputs of a job; ``arguments`` are in the long form."""
    outputs = _mapping_values(arguments.get("outputs")) if uses == SPARK else ()
    return [output["topic"] for output in outputs if isinstance(output, Mapping) and "topic" in output]


def _mapping_values(mapping: Any) -> Iterator[Any]:
    yield from mapping.values() if isinstance(mapping, Mapping) else ()


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
