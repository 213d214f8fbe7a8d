"""Reads a saga's input from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sagas.definition.schema_paths import resolve
from sagas.errors import UsageError

_JSON_KINDS: Mapping[type, frozenset[str]] = {
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

    Where ``schema`` says that a field is a text, it is one: `--set name=7` needs no quotes.
    Raises UsageError: not JSON, an unreadable file, or a field without a value.
    """
    value = {} if text is None else parse_json(text, "--input")
    for field in fields:
        name, equals, written = field.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes key=value, not {field!r}")
        if not isinstance(value, dict):
            raise UsageError("--set needs an input that is an object")
        place = value
        *parents, last = name.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UsageError(f"--set {name}: {parent} is not an object")
        place[last] = _value(written, _kinds(schema or {}, name.split(".")))
    return value


def parse_json(text: str, where: str) -> Any:
    """JSON as it is, from ``@file``, or from standard input for ``-``.

    Raises UsageError: not JSON, or an unreadable file. ``where`` names the option in the sentence.
    """
    if text == "-":
        if sys.stdin.isatty():
            print("reading JSON from the keyboard; end with Ctrl-D", file=sys.stderr)
        text, where = sys.stdin.read(), "standard input"
    elif text.startswith("@"):
        path = Path(text[1:])
        where = str(path)
        text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}",
            help="""quote it for the shell: '{"name": "value"}', or write @file""",
        ) from None


def read_text(path: Path) -> str:
    """The text of a file. Raises UsageError: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"the file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {path} is not text in UTF-8") from error


def _value(written: str, kinds: frozenset[str]) -> Any:
    """JSON where it is JSON, else the text itself: `--set n=3` is a number, `--set name=ann` a text.

    Where the schema allows a text and not what was read, it is the text: `--set zip=20095` and `--set name=null`.
    """
    try:
        value = json.loads(written)
    except json.JSONDecodeError:
        return written
    return written if "string" in kinds and not kinds & _JSON_KINDS[type(value)] else value


def _kinds(schema: Mapping[str, Any], path: Sequence[str]) -> frozenset[str]:
    """The ``type`` of a field, as far as the schema says it plainly."""
    found: Any = resolve(schema, schema)
    for name in path:
        inner = (found.get("properties") or {}).get(name) if isinstance(found, Mapping) else None
        found = resolve(inner, schema)
    kinds = found.get("type", ()) if isinstance(found, Mapping) else ()
    return frozenset([kinds] if isinstance(kinds, str) else kinds)
