"""How a value comes in: each entry writes a file, text or message as a user would, and lets the engine read it."""

from __future__ import annotations

import csv
import decimal
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from confluent_kafka import Message
from temporalio.api.common.v1 import Payload

from saga_activities.kafka.record_codec import decode
from saga_cli.input_files import read_rows
from saga_cli.inputs import read_input
from saga_workers.serve.start_request import parse_start
from saga_workers.trigger.saga_trigger import TriggerExpressions
from sagas.definition.model import KafkaTrigger
from sagas.errors import UsageError
from sagas.settings import load_settings
from sagas.workflow.json_payloads import read_payload
from tests.integration.values.oracle import Json, Number, write_json

_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


@dataclass(frozen=True)
class Entered:
    """``path``: where expressions find the value. ``steps``: YAML that brings it there."""

    path: str = "input.doc"
    input: Any = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    steps: str = ""


Enter = Callable[[Json, Mapping[str, Any], Path], Entered]
"""Takes the value, the schema of the input, and an empty folder."""


def _document(value: Json) -> str:
    return write_json({"doc": value})


def join_pairs(text: str) -> str:
    """The JSON text with characters beyond the first plane as they are: YAML and TOML have no surrogate pairs."""

    def join(match: re.Match[str]) -> str:
        return bytes.fromhex(match[1] + match[2]).decode("utf-16-be")

    return _PAIR.sub(join, text)


def literal(value: Json, _: Mapping[str, Any], __: Path) -> Entered:
    text = join_pairs(write_json({"value": value})).replace("\x7f", "\\u007f")
    return Entered("steps.given.result", steps=f"  - {{id: given, uses: echo, with: {text}, effect: none}}\n")


def variable(value: Json, _: Mapping[str, Any], folder: Path) -> Entered:
    text = _toml(value)
    (folder / "saga.toml").write_text(f"[vars]\ndoc = {text}\n", encoding="utf-8")
    return Entered("vars.doc", variables=load_settings(config=folder / "saga.toml", env={}).vars)


def _toml(value: Json) -> str:
    match value:
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    return join_pairs(write_json(value)).replace("\x7f", "\\u007f")


def option(value: Json, schema: Mapping[str, Any], _: Path) -> Entered:
    return Entered(input=read_input(_document(value), [], schema))


def option_file(value: Json, schema: Mapping[str, Any], folder: Path) -> Entered:
    (folder / "input.json").write_text(_document(value), encoding="utf-8")
    return Entered(input=read_input(f"@{folder / 'input.json'}", [], schema))


def set_field(value: Json, schema: Mapping[str, Any], _: Path) -> Entered:
    return Entered(input=read_input(None, [f"doc={write_json(value)}"], schema))


def csv_cell(value: Json, schema: Mapping[str, Any], folder: Path) -> Entered:
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        text = value if isinstance(value, str) else write_json(value)
        csv.writer(file).writerows([["doc", "end"], [text, "x"]])
    return Entered(input=_only_row(folder / "rows.csv", schema))


def json_line(value: Json, schema: Mapping[str, Any], folder: Path) -> Entered:
    (folder / "rows.jsonl").write_text(f"{_document(value)}\n", encoding="utf-8")
    return Entered(input=_only_row(folder / "rows.jsonl", schema))


def json_array(value: Json, schema: Mapping[str, Any], folder: Path) -> Entered:
    (folder / "rows.json").write_text(f"[{_document(value)}]", encoding="utf-8")
    return Entered(input=_only_row(folder / "rows.json", schema))


def parquet(value: Json, schema: Mapping[str, Any], folder: Path) -> Entered:
    pyarrow.parquet.write_table(pyarrow.table({"doc": _array(value)}), folder / "rows.parquet")
    return Entered(input=_only_row(folder / "rows.parquet", schema))


def fits_parquet(value: Json) -> bool:
    """A scalar that a column can hold with its digits."""
    if not isinstance(value, Number):
        return isinstance(value, bool | str)
    if value.is_integer:
        return -(2**63) <= int(value.text) < 2**63
    sign, digits, exponent = value.parts
    return -37 <= exponent <= 0 and len(digits) <= 38 and not (sign and digits == "0")


def _array(value: Json) -> Any:
    if not isinstance(value, Number):
        return pyarrow.array([value])
    if value.is_integer:
        return pyarrow.array([int(value.text)])
    wide = decimal.Decimal(value.text)
    return pyarrow.array([wide], pyarrow.decimal128(38, -value.parts[2]))


def _only_row(path: Path, schema: Mapping[str, Any]) -> Any:
    rows, mistakes = read_rows(path, schema)
    if mistakes:
        raise UsageError(mistakes[0])
    return rows[0].value


def http_start(value: Json, _: Mapping[str, Any], __: Path) -> Entered:
    body = f'{{"input": {_document(value)}}}'.encode()
    return Entered(input=parse_start("application/json", body).input)


def kafka_event(value: Json, _: Mapping[str, Any], __: Path) -> Entered:
    read = decode(Message("orders", 0, 0, key=b"k", value=write_json({"order": value}).encode()))
    event = {"trigger": {"value": read.value}}
    expressions = TriggerExpressions(KafkaTrigger("orders", input={"doc": "${{ trigger.value.order }}"}))
    return Entered(input=expressions.input(event))


def foreign_client(value: Json, _: Mapping[str, Any], __: Path) -> Entered:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=_document(value).encode())
    return Entered(input=read_payload(payload))


ENTRIES: dict[str, Enter] = {
    "YAML": literal,
    "TOML": variable,
    "--input": option,
    "--input @": option_file,
    "--set": set_field,
    "CSV": csv_cell,
    "JSONL": json_line,
    "JSON array": json_array,
    "Parquet": parquet,
    "HTTP start": http_start,
    "Kafka event": kafka_event,
    "Temporal": foreign_client,
}


def can_enter(name: str, value: Json, typed: bool) -> bool:
    """True if the entry has a form for the value."""
    match name:
        case "Parquet":
            return fits_parquet(value)
        case "CSV":  # an empty cell has no value; without a schema every cell is a string
            return value not in ("", None) and (typed or isinstance(value, str))
        case "TOML":
            return not _has_null(value)
        case "YAML":
            return "${{" not in write_json(value)
    return True


def _has_null(value: Json) -> bool:
    if isinstance(value, list | dict):
        return any(map(_has_null, value if isinstance(value, list) else value.values()))
    return value is None
