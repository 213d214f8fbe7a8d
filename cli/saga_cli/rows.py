"""Rows of a file as inputs of sagas: JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sagas.errors import SagaError, UsageError

_MOST_MISTAKES = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One row. ``number`` counts rows from 1 (the header is none); ``place`` is for people: file and line."""

    number: int
    place: str
    value: Any


class BadRows(UsageError):
    """Some rows cannot be used; nothing was started."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        found = list(mistakes)
        more = f"\n… and {len(found) - _MOST_MISTAKES} more" if len(found) > _MOST_MISTAKES else ""
        super().__init__("\n".join(found[:_MOST_MISTAKES]) + more, help="nothing was started; mend the file first")


def read_rows(path: Path, schema: Mapping[str, Any]) -> tuple[list[Row], list[str]]:
    """All rows, and one sentence for each that cannot be read. ``schema`` tells what a text of a CSV file stands for.

    Raises UsageError: the file cannot be read at all, or is of another kind.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    readers = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"--from takes a .jsonl, .csv or .parquet file, not {path.name}")
    rows: list[Row] = []
    mistakes: list[str] = []
    try:
        for one in reader(path, schema):
            (mistakes if isinstance(one, str) else rows).append(one)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise UsageError(f"the file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {path} is not text in UTF-8") from error
    return rows, mistakes


def file_digest(path: Path) -> str:
    """Twelve hexadecimal digits that stand for the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _json_lines(path: Path, _: Mapping[str, Any]) -> Iterator[Row | str]:
    number = 0
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            number += 1
            try:
                yield Row(number, f"{path}:{line}", json.loads(text))
            except json.JSONDecodeError as error:
                yield f"{path}:{line}: not JSON: {error.msg} in column {error.colno}"


def _csv(path: Path, schema: Mapping[str, Any]) -> Iterator[Row | str]:
    """Columns are fields of the input, `a.b` is field b of a; an empty cell leaves its field out."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if not header or not any(header):
            raise UsageError(f"{path} has no header line with the names of the fields")
        try:
            for number, cells in enumerate((row for row in reader if row), start=1):
                place = f"{path}:{reader.line_num}"
                if len(cells) != len(header):
                    yield f"{place}: {len(cells)} cells, but the header has {len(header)}"
                    continue
                try:
                    yield Row(number, place, _object(dict(zip(header, cells, strict=True)), schema))
                except SagaError as error:
                    yield f"{place}: {error.message}"
        except csv.Error as error:
            yield f"{path}:{reader.line_num}: {error}"


def _object(cells: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, text in cells.items():
        if text == "":
            continue
        *parents, last = name.split(".")
        place, described = value, schema
        for parent in parents:
            place = place.setdefault(parent, {})
            described = _property(described, parent)
        place[last] = _cell(text, _property(described, last), name)
    return value


def _property(schema: Any, name: str) -> Mapping[str, Any]:
    found = (schema.get("properties") or {}).get(name) if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _cell(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """A text stays a text unless the input's schema says otherwise: a postcode must not become a number."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if not kinds or "string" in kinds:
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if "boolean" in kinds and text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise UsageError(f"{name}: {text!r} is not of type {' or '.join(kinds)}") from None


def _parquet(path: Path, _: Mapping[str, Any]) -> Iterator[Row | str]:
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UsageError(
            "Parquet files need the package pyarrow, which is not installed",
            help="pip install 'saga-orchestrator[parquet]'",
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for value in batch.to_pylist():
                    number += 1
                    # Types that JSON has not (dates, decimals) become texts.
                    plain = json.loads(json.dumps(_without_nulls(value), default=str))
                    yield Row(number, f"{path} row {number}", plain)
    except arrow.ArrowException as error:
        raise UsageError(f"{path} is not a Parquet file: {error}") from error


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """A missing value in a column is a field that is not given."""
    return {name: one for name, one in value.items() if one is not None}
