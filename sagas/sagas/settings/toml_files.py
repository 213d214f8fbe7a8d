"""Reads a TOML file of the settings, with exact numbers."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from sagas.errors import UsageError
from sagas.input_limits import MAX_SETTINGS_BYTES
from sagas.text.bounded_files import read_bounded
from sagas.text.exact_json import exact_number

_MAX_KEY_PARTS = 1000


class UnreadableToml(UsageError):
    """A file cannot be read, or is not valid TOML."""


def _exact_number(text: str) -> Decimal:
    """Infinity and NaN, which TOML has, are refused where a setting takes a number."""
    return Decimal(text) if text.lstrip("+-") in ("inf", "nan") else exact_number(text.replace("_", ""))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, with exact numbers. Raises UnreadableToml."""
    try:
        content = read_bounded(path, MAX_SETTINGS_BYTES)
        # tomllib takes quadratic time for the parts of a key.
        if any(line.partition(b"=")[0].count(b".") > _MAX_KEY_PARTS for line in content.splitlines()):
            raise UnreadableToml(f"{path} is not valid TOML: a key is nested too deeply")
        return tomllib.loads(content.decode(), parse_float=_exact_number)
    except OSError as error:
        raise UnreadableToml(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnreadableToml(f"{path} is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise UnreadableToml(f"{path} is not valid TOML: {error}") from error
    except (RecursionError, ValueError) as error:  # a number of thousands of digits is a plain ValueError
        raise UnreadableToml(f"{path} is not valid TOML: it is nested too deeply, or has too long a number") from error
