"""Reads a saga's input from the command line."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saga_cli.output import warn
from sagas.definition.input_schema import resolve_reference
from sagas.errors import SagaError, UsageError
from sagas.text.bounded_files import MAX_BYTES, read_bounded, short_path
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from sagas.definition.model import Definition
    from sagas.settings.project import Project

_JSON_TYPES: Mapping[type, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number", "integer"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def read_input(text: str | None, fields: list[str], schema: Mapping[str, Any] | None = None) -> Any:
    """The input from ``--input`` (JSON, ``@file`` or ``-``) with the fields of ``--set`` put in.

    Where ``schema`` says that a field is a string, it is one: `--set name=7` needs no quotes.
    Raises UsageError: not JSON, an unreadable file, or a field without a value.
    """
    value = {} if text is None else parse_json(text, "--input")
    for field in fields:
        name, equals, written = field.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes key=value, not {field!r}")
        if not isinstance(value, dict):
            raise UsageError("--set needs a JSON object as the input")
        target = value
        *parents, last = name.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UsageError(f"--set {name}: {parent} is not an object")
        target[last] = _parse_value(written, _schema_types(schema or {}, name.split(".")))
    return value


def parse_json(text: str, where: str) -> Any:
    """JSON as it is, from ``@file``, or from standard input for ``-``.

    Raises UsageError: not JSON, or an unreadable file. ``where`` names the option in the message.
    """
    if text == "-":
        text, where = read_standard_input("JSON"), "standard input"
    elif text.startswith("@"):
        path = Path(text[1:])
        where = str(path)
        text = read_text(path)
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}",
            help="""quote it for the shell: '{"name": "value"}', or write @file""",
        ) from None
    except _TooLarge as error:
        raise UsageError(f"{where} {error}") from None


class _TooLarge(ValueError):
    """JSON that Python cannot read: no input that a worker would accept."""


def _loads(text: str) -> Any:
    """Raises JSONDecodeError or _TooLarge."""
    try:
        return json.loads(text)
    except RecursionError:
        raise _TooLarge("is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise _TooLarge("has a number of more than 4,000 digits") from None


def read_standard_input(what: str) -> str:
    """All of standard input; ``what`` is shown to a person at a terminal. Raises UsageError: it is too large."""
    if sys.stdin.isatty():
        warn(f"reading {what} from standard input; end with Ctrl-D")
    try:
        text = sys.stdin.read(MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise UsageError("standard input is not UTF-8 text") from None
    if len(text) > MAX_BYTES:
        raise UsageError(f"standard input is larger than {MAX_BYTES:,} bytes")
    return text


def read_definition(source: Path, project: Project) -> Definition:
    """The definition in a file, or for ``-`` in standard input. Raises UsageError: it cannot be read, or has errors."""
    from sagas.definition.loader import parse_text

    piped = str(source) == "-"
    text = read_standard_input("a definition") if piped else read_text(source)
    definition, diagnostics = parse_text(text, "standard input" if piped else str(source), project.context)
    if definition is None:
        first = next(one for one in diagnostics if one.severity == "error")
        raise UsageError(
            f"{first.file}:{first.line}:{first.column} {first.code} {first.message}",
            help=first.help or None if piped else saga_command("validate", source),
        )
    return definition


def read_text(path: Path) -> str:
    """The text of a file. Raises UsageError: it cannot be read."""
    try:
        return read_bounded(path).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"the file {short_path(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {path} is not UTF-8 text") from error


def _parse_value(written: str, types: frozenset[str]) -> Any:
    """JSON where it is JSON, else the string itself: `--set n=3` is a number, `--set name=ann` a string.

    Where the schema allows a string and not what was read, it is the string: `--set zip=20095` and `--set name=null`.
    """
    try:
        value = _loads(written)
    except ValueError:
        return written
    return written if "string" in types and not types & _JSON_TYPES[type(value)] else value


def _schema_types(schema: Mapping[str, Any], path: Sequence[str]) -> frozenset[str]:
    """The ``type`` of a field, if the schema states it directly."""
    found: Any = resolve_reference(schema, schema)
    for name in path:
        inner = (found.get("properties") or {}).get(name) if isinstance(found, Mapping) else None
        found = resolve_reference(inner, schema)
    kinds = found.get("type", ()) if isinstance(found, Mapping) else ()
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


# Rows of a file as inputs of sagas: JSON lines, CSV and Parquet.

_MAX_ERRORS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row. ``number`` counts rows from 1 (without the header); ``location``: file and line."""

    number: int
    location: str
    value: Any


class InvalidRows(UsageError):
    """Some rows are invalid; nothing was started."""

    def __init__(self, errors: Iterable[str]) -> None:
        found = sorted(errors, key=_row_of)
        super().__init__(found[0], help="nothing was started; fix the file first")
        hidden = len(found) - _MAX_ERRORS_SHOWN
        self.more = [*found[1:_MAX_ERRORS_SHOWN], *([f"… and {hidden} more"] if hidden > 0 else [])]


def _row_of(message: str) -> int:
    place = re.search(r"(?::| row )([0-9]{1,9}): ", message)
    return int(place[1]) if place else 0


def read_rows(path: Path, schema: Mapping[str, Any]) -> tuple[list[InputRow], list[str]]:
    """All rows, and one message for each that cannot be read. ``schema`` gives the types of the cells of a CSV file.

    Raises UsageError: the file cannot be read at all, or is of another kind.
    """
    if not os.path.isfile(path):  # unlike Path.is_file, it takes a name that is too long
        if os.path.exists(path):
            raise UsageError(f"--from takes a file, which {path} is not", help="write its rows to a .jsonl file first")
        raise UsageError(f"there is no file {short_path(path)}")
    readers = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"--from takes a .jsonl, .csv or .parquet file, not {path.name}")
    rows: list[InputRow] = []
    mistakes: list[str] = []
    try:
        for one in reader(path, schema):
            (mistakes if isinstance(one, str) else rows).append(one)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise UsageError(f"the file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {path} is not UTF-8 text") from error
    return rows, mistakes


def file_digest(path: Path) -> str:
    """Twelve hexadecimal digits that stand for the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _json_lines(path: Path, _: Mapping[str, Any]) -> Iterator[InputRow | str]:
    number = 0
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            number += 1
            try:
                yield InputRow(number, f"{path}:{line}", _loads(text))
            except json.JSONDecodeError as error:
                yield f"{path}:{line}: not JSON: {error.msg} in column {error.colno}"
            except _TooLarge as error:
                yield f"{path}:{line}: the row {error}"


def _csv(path: Path, schema: Mapping[str, Any]) -> Iterator[InputRow | str]:
    """Columns are fields of the input, `a.b` is field b of a; an empty cell leaves its field out."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            header = next(reader, None)
            if not header or not any(header):
                raise UsageError(f"{path} has no header line with the field names")
            for number, cells in enumerate((row for row in reader if row), start=1):
                location = f"{path}:{reader.line_num}"
                if len(cells) != len(header):
                    yield f"{location}: {len(cells)} cells, but the header has {len(header)}"
                    continue
                try:
                    yield InputRow(number, location, _nested_object(dict(zip(header, cells, strict=True)), schema))
                except SagaError as error:
                    yield f"{location}: {error.message}"
        except csv.Error as error:
            yield f"{path}:{reader.line_num}: {error}"


def _nested_object(cells: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, text in cells.items():
        if text == "":
            continue
        *parents, last = name.split(".")
        target, described = value, schema
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UsageError(f"{name}: {parent} is not an object, because another column has its value")
            described = _property_schema(described, parent)
        target[last] = _parse_cell(text, _property_schema(described, last), name)
    return value


def _property_schema(schema: Any, name: str) -> Mapping[str, Any]:
    found = (schema.get("properties") or {}).get(name) if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _parse_cell(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """A string stays a string unless the input's schema has another type: a postcode must not become a number."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if not kinds or "string" in kinds:
        return text
    try:
        return _loads(text)
    except ValueError:
        if "boolean" in kinds and text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise UsageError(f"{name}: {text!r} is not of type {' or '.join(kinds)}") from None


def _parquet(path: Path, _: Mapping[str, Any]) -> Iterator[InputRow | str]:
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UsageError(
            "reading Parquet files needs the package pyarrow, which is not installed",
            help="pip install 'saga-orchestrator[parquet]'",
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for value in batch.to_pylist():
                    number += 1
                    # Types that JSON does not have (dates, decimals) become strings.
                    plain = json.loads(json.dumps(_without_nulls(value), default=str))
                    yield InputRow(number, f"{path} row {number}", plain)
    except arrow.ArrowException as error:
        raise UsageError(f"{path} is not a Parquet file: {error}") from error


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """A missing value in a column is a field that is not given."""
    return {name: one for name, one in value.items() if one is not None}
