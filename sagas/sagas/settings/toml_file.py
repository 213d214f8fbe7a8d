"""Reads a TOML file; what is wrong with it becomes one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sagas.errors import UsageError


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises UsageError: it cannot be read, or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
