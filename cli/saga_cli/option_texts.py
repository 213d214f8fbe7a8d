"""Reads the texts and JSON that a command is given: as an option, in a file, or on standard input."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from saga_cli.output import warn
from sagas.errors import UsageError
from sagas.input_limits import MAX_FILE_BYTES
from sagas.text.bounded_files import read_bounded, short_path
from sagas.text.exact_json import decode_unambiguous
from sagas.text.json_mistakes import InvalidJson


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
        return decode_unambiguous(text)
    except InvalidJson as error:
        lost = where.startswith("-") and text.startswith("{") and '"' not in text and "'" not in text
        help = """quote it for the shell: '{"name": "value"}', or write @file""" if lost else None
        if where.startswith("-") and re.match(r"[\w.-]+=", text):
            help = """write an object of names and values: '{"name": "value"}'"""
        if where.startswith("-") and len(text) < 1_000 and os.path.isfile(text):
            help = f"write @{text} to read the file"
        raise UsageError(f"{where} is not JSON: {error}", help=help) from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{where} cannot be read: {error}") from None


def read_standard_input(what: str) -> str:
    """All of standard input; ``what`` is shown to a person at a terminal. Raises UsageError: it is too large."""
    if sys.stdin.isatty():
        warn(f"reading {what} from standard input; end with Ctrl-D")
    try:
        text = sys.stdin.read(MAX_FILE_BYTES + 1)
    except UnicodeDecodeError:
        raise UsageError("standard input is not UTF-8 text") from None
    if len(text) > MAX_FILE_BYTES:
        raise UsageError(f"standard input is larger than {MAX_FILE_BYTES:,} bytes")
    return text.removeprefix("\ufeff")


def read_text(path: Path) -> str:
    """The text of a file. Raises UsageError: it cannot be read."""
    try:
        return read_bounded(path).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"the file {short_path(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the file {path} is not UTF-8 text; save it as UTF-8") from error
