"""The reason why the parser of SQL does not understand a statement, in words of our own. Pure."""

from __future__ import annotations

import re
from typing import Any

from sagas.sql_text.calls import NO_FUNCTIONS
from sagas.sql_text.dialects import NAMES
from sagas.sql_text.tokens import shown

_CALL = re.compile(r"(?<![\w.\"`])([a-z_]\w*)\s*\(", re.IGNORECASE)
_NO_NAMES = NO_FUNCTIONS - {"over", "filter", "within", "limit", "match"} | {"returning", "key", "conflict"}
"""Words before a parenthesis that are not names of functions."""


def why_unreadable(error: Any, dialect: str) -> str:
    """The place at which the analysis of a statement stopped, in words of our own."""
    details = next(iter(getattr(error, "errors", None) or ()), {})
    word = str(details.get("highlight") or "").strip()
    near = f" near `{shown(word)}`" if word else ""
    text = f"{details.get('start_context') or ''}{details.get('highlight') or ''}"
    calls = _CALL.findall(f"{text}{(details.get('end_context') or '')[:1]}")
    called = calls[-1] if calls and calls[-1].lower() not in _NO_NAMES else None
    quote = '"' if dialect in ("postgresql", "sqlite") else "`"
    why = (
        f": `{called}` is a keyword there, so write {quote}{called}{quote}(…) if a function is called so"
        if called
        else ""
    )
    return f"it cannot be analysed as a statement of {NAMES[dialect]}{near}{why}"
