"""Regular expressions of users: RE2, whose time is linear in the text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_MEMORY = 1 << 20


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Any:
    """The compiled pattern. Raises ValueError with the reason if RE2 does not support it."""
    import re2  # imported on first use: a C extension that most sagas never need

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it does not parse"
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
    except UnicodeEncodeError:
        raise ValueError("it has half a surrogate pair") from None
