"""The arguments of a `spark` step as values: the job, its inputs, its outputs, its checks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.builtins.spark import CHECK_KINDS, FIXED_CONF, SPARK
from sagas.builtins.sql_places import check_sql
from sagas.errors import UsageError

WriteMode = Literal["append", "overwrite", "overwrite_partitions", "overwrite_where", "merge"]
CheckSeverity = Literal["error", "warn"]


@dataclass(frozen=True, slots=True)
class Input:
    """A source of rows.

    ``kind``: ``connection`` (a table or query of a database), ``parquet``, ``step`` (the staged output of an ancestor),
    ``table`` (of a catalog: ``catalog.namespace.table``) or ``topic``.
    """

    kind: Literal["connection", "parquet", "step", "table", "topic"]
    options: Mapping[str, Any]

    @staticmethod
    def parse(name: str, data: Mapping[str, Any]) -> Input:
        """Raises UsageError, one message."""
        for kind in ("connection", "parquet", "step", "topic"):
            if kind in data:
                if kind == "connection" and ("table" in data) == ("query" in data):
                    raise UsageError(f"the input {name} reads a connection and needs either `table` or `query`")
                return Input(kind, data)
        if "table" in data:
            return Input("table", data)
        raise UsageError(f"the input {name} needs one of `connection`, `parquet`, `step`, `table` and `topic`")


@dataclass(frozen=True, slots=True)
class Output:
    """A destination where rows become visible.

    ``kind``: ``iceberg`` (``table`` is ``catalog.namespace.table``), ``parquet``, ``postgresql`` (``connection`` and
    ``table``) or ``topic``, whose records hold the whole row or its column ``value``.
    """

    name: str
    kind: Literal["iceberg", "parquet", "postgresql", "topic"]
    destination: str
    mode: WriteMode = "append"
    connection: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    value: str | None = None

    @staticmethod
    def parse(name: str, data: Mapping[str, Any]) -> Output:
        """Raises UsageError, one message."""
        mode: WriteMode = data.get("mode", "append")
        common: dict[str, Any] = {
            "where": data.get("where", {}),
            "key": as_names(data.get("key")),
            "partition_by": as_names(data.get("partition_by")),
        }
        if mode == "overwrite_where" and not common["where"]:
            raise UsageError(f"the output {name} has the mode overwrite_where and needs `where`")
        if mode == "merge" and not common["key"]:
            raise UsageError(f"the output {name} has the mode merge and needs `key`")
        if "topic" in data:
            return Output(name, "topic", data["topic"], mode, **common, value=data.get("value"))
        if "parquet" in data:
            return Output(name, "parquet", data["parquet"], mode, **common)
        if "connection" in data and "table" in data:
            return Output(name, "postgresql", data["table"], mode, data["connection"], **common)
        if "table" in data:
            return Output(name, "iceberg", data["table"], mode, **common)
        raise UsageError(f"the output {name} needs `table`, `parquet`, `topic`, or `connection` and `table`")


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the audit. ``kind`` is its name in the language, ``spec`` its arguments."""

    kind: str
    spec: Any
    severity: CheckSeverity = "error"
    where: Any = None
    output: str = "output"
    name: str = ""

    @staticmethod
    def parse(number: int, data: Mapping[str, Any], outputs: Sequence[str]) -> Check:
        """``number`` counts from 1. Raises UsageError, one message."""
        kinds = [kind for kind in CHECK_KINDS if kind in data]
        if len(kinds) != 1:
            raise UsageError(f"check {number} of the audit needs exactly one of {', '.join(CHECK_KINDS)}")
        output = data.get("output", outputs[0])
        if output not in outputs:
            raise UsageError(
                f"check {number} of the audit names the output {output}; the outputs are {', '.join(outputs)}"
            )
        name = data.get("name") or f"{number}:{kinds[0]}"
        if kinds[0] == "rows" and "change" in data["rows"] and data.get("where") is not None:
            raise UsageError(
                f"the check {name} has `change` and `where`; remove one, because `change` compares whole outputs"
            )
        if kinds[0] == "rows" and "accept" in data["rows"] and "change" not in data["rows"]:
            raise UsageError(f"the check {name} has `accept` without `change`; remove it, or add `change`")
        return Check(kinds[0], data[kinds[0]], data.get("severity", "error"), data.get("where"), output, name)


@dataclass(frozen=True, slots=True)
class Job:
    """One `spark` step. ``code``: ``module:function``, ``{"sql": …}`` or ``{"main": …, "class": …, "args": […]}``."""

    code: str | Mapping[str, Any]
    inputs: Mapping[str, Input]
    params: Mapping[str, Any]
    outputs: Mapping[str, Output]
    conf: Mapping[str, Any]
    audit: tuple[Check, ...]
    together: bool = False

    @staticmethod
    def parse(arguments: Mapping[str, Any]) -> Job:
        """Parse the arguments in their long form (see ``sagas.builtins.spark``). Raises UsageError, one message."""
        if "job" not in arguments:
            raise UsageError("a spark step needs `job` or `sql`")
        check_sql(SPARK, arguments)
        for name, value in FIXED_CONF.items():
            if str(arguments.get("conf", {}).get(name, value)) != value:
                raise UsageError(f"conf: {name} must stay {value}, because staged files rely on it; remove it")
        outputs = {name: Output.parse(name, data) for name, data in arguments.get("outputs", {}).items()}
        if not outputs:
            raise UsageError("a spark step needs `output` or `outputs`")
        checks = tuple(
            Check.parse(number, data, list(outputs)) for number, data in enumerate(arguments.get("audit", ()), 1)
        )
        duplicates = {check.name for check in checks if sum(other.name == check.name for other in checks) > 1}
        if duplicates:
            raise UsageError(f"two checks of the audit have the name {min(duplicates)}; rename one")
        return Job(
            code=arguments["job"],
            inputs={name: Input.parse(name, data) for name, data in arguments.get("inputs", {}).items()},
            params=arguments.get("params", {}),
            outputs=outputs,
            conf=arguments.get("conf", {}),
            audit=checks,
            together=arguments.get("together", False),
        )


def as_names(value: Any) -> tuple[str, ...]:
    """A name or a list of names as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def comparison_input(check: Check) -> Mapping[str, Any] | None:
    """The input that a check compares the output with; None if it needs none."""
    match check.kind:
        case "relationships":
            return check.spec["to"]
        case "reconcile":
            return check.spec["with"]
    return None


def comparison_input_name(check: Check) -> str:
    """The name of that input, which is frozen together with the inputs of the job.

    Unique per check, even where names of checks differ only in characters that a folder name cannot contain.
    """
    readable = re.sub(r"\W+", "-", check.name)
    return f"audit-{readable}-{hashlib.sha256(check.name.encode()).hexdigest()[:32]}"
