"""Rows of a file as inputs of sagas: JSON lines, a JSON array, CSV and Parquet."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from saga_cli.input_columns import check_columns
from saga_cli.inputs import InputRow, field_path, parse_text
from sagas.definition.schema_types import types_at
from sagas.definition.sensitivity import is_sensitive
from sagas.errors import UsageError
from sagas.text.bounded_files import short_path
from sagas.text.exact_json import decode_unambiguous
from sagas.text.json_mistakes import InvalidJson

_MAX_ERRORS_SHOWN = 10
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_KINDS = ".jsonl, .json, .csv or .parquet"


class InvalidRows(UsageError):
    """Some rows are invalid; nothing was started."""

    def __init__(self, errors: Iterable[str]) -> None:
        ordered = sorted(errors, key=_row_of)
        super().__init__(ordered[0], help="nothing was started; fix the file first")
        hidden = len(ordered) - _MAX_ERRORS_SHOWN
        self.more = [*ordered[1:_MAX_ERRORS_SHOWN], *([f"… and {hidden} more"] if hidden > 0 else [])]


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
    readers = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_array, ".csv": _csv}
    name = path.name.lower()
    reader = readers.get(Path(name.removesuffix(".gz")).suffix)
    if reader is None and name.endswith(".parquet"):
        from saga_cli.parquet_rows import parquet_rows

        reader = parquet_rows
    if reader is None:
        raise UsageError(f"--from takes a {_KINDS} file, or one of the first three with .gz, not {path.name}")
    rows: list[InputRow] = []
    mistakes: list[str] = []
    try:
        for row in reader(path, schema):
            if isinstance(row, str):
                mistakes.append(row)
            else:
                rows.append(row)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UsageError(f"{path} is not a complete gzip file; compress it again") from None
    except OSError as error:
        raise UsageError(f"the file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {path} is not UTF-8 text; save it as UTF-8") from error
    return rows, mistakes


def file_digest(path: Path) -> str:
    """Thirty-two hexadecimal digits that stand for the file's content, compressed or not."""
    with _open_bytes(path) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:32]


def _open_bytes(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")  # pyright: ignore[reportReturnType]


def _open_text(path: Path, newline: str | None = None) -> IO[str]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)  # pyright: ignore[reportReturnType]
    return path.open(encoding="utf-8-sig", newline=newline)


def _json_lines(path: Path, _: Mapping[str, Any]) -> Iterator[InputRow | str]:
    number = 0
    with _open_text(path) as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            number += 1
            try:
                yield InputRow(number, f"{path}:{line}", decode_unambiguous(text))
            except InvalidJson as error:
                yield f"{path}:{line}: not JSON: {error.problem} (column {error.column})"
            except RecursionError:
                yield f"{path}:{line}: the row is nested too deeply"
            except ValueError as error:
                yield f"{path}:{line}: {error}"


def _json_array(path: Path, _: Mapping[str, Any]) -> Iterator[InputRow | str]:
    with _open_text(path) as file:
        text = file.read()
    try:
        rows = decode_unambiguous(text)
    except InvalidJson as error:
        raise UsageError(f"{path}:{error.line}: not JSON: {error.problem} (column {error.column})") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(rows, list):
        raise UsageError(
            f"{path} is not an array of inputs",
            help="write [ ] around the inputs, or use --input @file for a single one",
        )
    yield from (InputRow(number, f"{path} row {number}", row) for number, row in enumerate(rows, start=1))


def _csv(path: Path, schema: Mapping[str, Any]) -> Iterator[InputRow | str]:
    """Columns are fields of the input, `a.b` is field b of a; an empty cell leaves its field out."""
    with _open_text(path, newline="") as file:
        raw: list[str] = []
        reader = csv.reader(_noted(file, raw), strict=True)
        line = 1
        try:
            header = next(reader, None)
            if not header or not any(header):
                raise UsageError(f"{path} has no header line with the field names")
            if (misplaced := _misplaced_quote(raw)) is not None:
                raise UsageError(f"{path}:1: column {misplaced + 1}: {_UNQUOTED}")
            columns = _columns(path, header, schema)
            number = 0
            while True:
                line = reader.line_num + 1
                raw.clear()
                cells = next(reader, None)
                if cells is None:
                    return
                if cells:
                    number += 1
                    location = f"{path}:{line}"
                    row = _csv_row(cells, columns, _misplaced_quote(raw))
                    yield f"{location}: {row}" if isinstance(row, str) else InputRow(number, location, row)
        except csv.Error as error:
            yield f"{path}:{line}: {_csv_problem(error)}"


_CELL = re.compile(r'(?:"(?:[^"]|"")*"|(?P<unquoted>[^",\r\n]*))(?P<end>,|\r?\n?\Z|\r)')
_UNQUOTED = 'a quote stands in a cell without quotes; write the cell in quotes, and this quote twice: "5"" pipe"'


def _noted(lines: Iterable[str], raw: list[str]) -> Iterator[str]:
    """The lines, of which those of the current record are kept in ``raw``."""
    for line in lines:
        raw.append(line)
        yield line


def _misplaced_quote(raw: Sequence[str]) -> int | None:
    """The cell of a record, counted from 0, that does not begin with a quote and has one, which csv takes as text."""
    text = "".join(raw)
    if '"' not in text:
        return None
    at, number = 0, 0
    while at < len(text):
        cell = _CELL.match(text, at)
        if cell is None:
            return number
        at, number = cell.end(), number + 1
    return None


@dataclass(frozen=True, slots=True)
class _CsvColumn:
    name: str
    path: list[str]
    types: frozenset[str]
    sensitive: bool
    """True if the cells of the column are not quoted in messages."""


def _columns(path: Path, header: list[str], schema: Mapping[str, Any]) -> list[_CsvColumn]:
    """Raises UsageError for a header that is not that of a CSV file, with line and column."""
    for separator, what in _SEPARATORS.items():
        if any(separator in name for name in header):
            raise UsageError(
                f"{path}:1: the header has {what} between the names, and CSV has commas",
                help="save the file with commas, or as .jsonl",
            )
    for number, name in enumerate(header, start=1):
        if name != name.strip():
            raise UsageError(f"{path}:1: the name of column {number}, {name!r}, has blanks around it; remove them")
        if not name:
            raise UsageError(f"{path}:1: column {number} has no name; name it, or remove it from all rows")
        if (first := header.index(name) + 1) < number:
            raise UsageError(f"{path}:1: the columns {first} and {number} are both named {name}; rename or remove one")
    columns = [
        _CsvColumn(name, place, types_at(schema, place), is_sensitive(schema, tuple(place)))
        for name in header
        for place in [field_path(name, schema)]
    ]
    for column in columns:
        for other in columns:
            if column is not other and other.path[: len(column.path)] == column.path:
                raise UsageError(f"{path}:1: column {column.name} contains column {other.name}; keep one")
    check_columns(f"{path}:1", {column.name: column.path for column in columns}, schema)
    return columns


def _csv_row(cells: list[str], columns: list[_CsvColumn], misplaced: int | None) -> dict[str, Any] | str:
    """The input of a row, or all that is wrong with its cells. ``misplaced``: a cell with a quote at a wrong place."""
    if len(cells) != len(columns):
        if misplaced is not None:
            return f"cell {misplaced + 1}: {_UNQUOTED}"
        count = f"{len(cells)} cell{'s' if len(cells) > 1 else ''}"
        return f"{count}, but the header has {len(columns)}; quote a cell that contains a comma or a line end"
    value: dict[str, Any] = {}
    mistakes: list[str] = []
    for number, (column, text) in enumerate(zip(columns, cells, strict=True)):
        if text == "":
            continue
        if number == misplaced:
            is_blank = text.lstrip().startswith('"')
            problem = 'a blank stands before the quote; write ,"…" without it' if is_blank else _UNQUOTED
            mistakes.append(f"column {column.name}: {problem}")
            continue
        target = value
        *parents, last = column.path
        for parent in parents:
            target = target.setdefault(parent, {})
        try:
            target[last] = _parse_cell(text, column)
        except ValueError as error:
            mistakes.append(f"column {column.name}: {error}")
    return ", and ".join(mistakes) or value


def _parse_cell(text: str, column: _CsvColumn) -> Any:
    """A string stays a string unless the input's schema has another type: a postcode must not become a number."""
    is_text = not column.types or "string" in column.types
    return text if is_text else parse_text(text, column.types, sensitive=column.sensitive)


def _csv_problem(error: csv.Error) -> str:
    text = str(error)
    if "expected after" in text:
        return "text follows a closing quote; write a quote inside a quoted cell twice"
    if "unexpected end of data" in text:
        return "a quoted cell is not closed"
    if "field larger than" in text:
        return f"a cell has more than {csv.field_size_limit():,} characters; is a quote missing?"
    return f"the row is not CSV: {text}"
