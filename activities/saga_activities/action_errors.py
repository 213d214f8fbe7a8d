"""The failure and the message of an exception that the code of an action has raised."""

from __future__ import annotations

import sys

from sagas.protocol.outcomes import Failure
from sagas.text.author_errors import attribute_of
from sagas.text.author_values import RAISED_AT, text_of
from sagas.text.own_frames import noted_place

_MAX_MESSAGE = 500
_MISTAKES = (LookupError, AttributeError, TypeError, NameError, ArithmeticError, AssertionError, ImportError)
"""Exceptions of Python whose text is not a sentence for an operator: `'sku'` of a KeyError."""


def action_failure(error: BaseException) -> Failure:
    """The failure with the details of the author's exception, and with the place where it was raised."""
    details, place = attribute_of(error, "details"), noted_place(error)
    return Failure(
        type(error).__name__,
        action_error_message(error),
        {**(details if isinstance(details, dict) else {}), **({} if place is None else {RAISED_AT: place})},
    )


def action_error_message(error: BaseException) -> str:
    """The author's own words as they are; those of Python and of a library with their source, and what to do."""
    name, text = type(error).__name__, text_of(error)
    root = type(error).__module__.partition(".")[0]
    if root == "builtins":
        is_mistake = isinstance(error, _MISTAKES)
        source = "the code of the action"
    else:
        is_mistake = not root.startswith("saga") and "site-packages" in (
            getattr(sys.modules.get(root), "__file__", "") or ""
        )
        source = f"the package {root} in the code of the action"
    if not is_mistake:
        return text or name
    words = " ".join(text.split())[:_MAX_MESSAGE]
    return f"{source} raised {name}{': ' if words else ''}{words}; correct the code, or raise Rejected for a refusal"
