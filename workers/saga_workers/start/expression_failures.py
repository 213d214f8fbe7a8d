"""The reason why an expression fails on what a stranger has sent, as logs, dead letters and responses have it."""

from __future__ import annotations

from typing import Any

from sagas.definition.sensitivity import has_sensitive_values
from sagas.expressions import ExpressionError
from sagas.expressions.errors import LimitError
from sagas.text.shortening import shorten

_SHOWN = 120


def failure_reason(error: ExpressionError, schema: Any) -> str:
    """The message of the error; without its quotes if the schema of the saga's input has `x-sensitive` values.

    An expression may take a value apart, so no search for the sensitive values would find all that a message quotes.
    """
    if isinstance(error, LimitError) or not has_sensitive_values(schema):
        return error.message
    text = shorten(" ".join(error.text.split()), _SHOWN)
    where = f"`{text}` fails" if text else "it fails"
    return f"{where}; the reason may quote an x-sensitive value, and is not shown"
