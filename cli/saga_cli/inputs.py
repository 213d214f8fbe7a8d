"""Reads a saga's input from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saga_cli.option_texts import parse_json, read_standard_input, read_text
from sagas.definition.schema_messages import describe_types
from sagas.definition.schema_types import json_types, types_at
from sagas.definition.sensitivity import is_sensitive
from sagas.errors import UsageError
from sagas.text.exact_json import decode_unambiguous
from sagas.text.json_mistakes import InvalidJson
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten

if TYPE_CHECKING:
    from sagas.definition.model import Definition
    from sagas.project import Project

_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+(\.[0-9]*)?")


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row. ``number`` counts rows from 1 (without the header); ``location``: file and line."""

    number: int
    location: str
    value: Any


def read_input(text: str | None, fields: list[str], schema: Mapping[str, Any] | None = None) -> Any:
    """The input from ``--input`` (JSON, ``@file`` or ``-``) with the fields of ``--set`` put in.

    Where ``schema`` says that a field is a string, it is one: `--set name=7` needs no quotes.
    Raises UsageError: not JSON, an unreadable file, a field without a value, or one that is set twice.
    """
    value = {} if text is None else parse_json(text, "--input")
    set_before: set[str] = set()
    for field in fields:
        name, equals, written = field.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes key=value, not {field!r}")
        if name in set_before:
            raise UsageError(f"--set {name} is given twice; remove one of them")
        set_before.add(name)
        if not isinstance(value, dict):
            raise UsageError("--set needs a JSON object as the input")
        path = field_path(name, schema or {})
        target = value
        *parents, last = path
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UsageError(f"--set {name}: {parent} is not an object")
        types = types_at(schema or {}, path)
        try:
            sensitive = is_sensitive(schema or {}, tuple(path))
            is_text = not types or "string" in types
            target[last] = _guess(written, types) if is_text else parse_text(written, types, sensitive=sensitive)
        except ValueError as error:
            raise UsageError(f"--set {name}: {error}") from None
    return value


def field_path(name: str, schema: Any) -> list[str]:
    """`a.b` is field b of a, unless the schema declares a field of that whole name.

    Raises UsageError for an empty part.
    """
    declared = schema.get("properties") if isinstance(schema, Mapping) else None
    path = [name] if isinstance(declared, Mapping) and name in declared else name.split(".")
    if not all(path):
        raise UsageError(f"the field {name!r} has an empty name; write names with a dot between them, such as a.b")
    return path


def parse_text(text: str, types: frozenset[str], *, sensitive: bool = False) -> Any:
    """The JSON value of a text for a field that is not a string. Raises ValueError: its JSON has none of these types.

    ``sensitive``: the message does not quote the text.
    """
    try:
        value = decode_unambiguous(text)
    except (ValueError, RecursionError):
        if "boolean" in types and text.strip().lower() in ("true", "false"):
            return text.strip().lower() == "true"
        shown = "the value" if sensitive else repr(shorten(text, 60))
        kinds = describe_types(sorted(types - {"integer"} if "number" in types else types))
        if types & {"number", "integer"} and _LEADING_ZERO.fullmatch(text.strip()):
            raise ValueError(
                f"{shown} is not {kinds}: it has a leading zero; leave it out, or declare the field as a string"
            ) from None
        raise ValueError(f"{shown} is not {kinds}") from None
    return value


def _guess(written: str, types: frozenset[str]) -> Any:
    """JSON where it is JSON, else the string itself: `--set n=3` is a number, `--set name=ann` a string.

    Where the schema allows a string and not what was read, it is the string: `--set zip=20095` and `--set name=null`.
    Raises ValueError for JSON that cannot be read as it is written, such as an object with a name twice.
    """
    try:
        value = decode_unambiguous(written)
    except InvalidJson:
        return written
    except (ValueError, RecursionError) as error:
        if "string" in types:
            return written
        raise ValueError("it is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    return written if "string" in types and not types & json_types(value) else value


def read_definition(source: Path, project: Project) -> Definition:
    """The definition in a file, or for ``-`` in standard input. Raises UsageError: it cannot be read, or has errors."""
    from sagas.definition.loader import parse_text as parse_definition

    piped = str(source) == "-"
    text = read_standard_input("a definition") if piped else read_text(source)
    definition, diagnostics = parse_definition(text, "standard input" if piped else str(source), project.context)
    if definition is None:
        first = next(diagnostic for diagnostic in diagnostics if diagnostic.severity == "error")
        raise UsageError(
            f"{first.file}:{first.line}:{first.column} {first.code} {first.message}",
            help=first.help or None if piped else saga_command("validate", source),
        )
    return definition
