"""Errors of parsing and evaluating expressions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sagas.errors import SagaError, nearest
from sagas.text.printable import printable_line

NO_OFFSET = -1


class ExpressionError(SagaError):
    """The expression cannot be read or evaluated.

    ``offset`` counts characters from the start of :attr:`Expression.source`. Functions raise with the offset
    unplaced; the part of the expression that called them fills it in. From ``compile_value`` it counts from the
    start of the string at ``path`` in the value.
    """

    def __init__(self, message: str | None = None, offset: int = NO_OFFSET, *, help: str | None = None) -> None:
        super().__init__(printable_line(message) if message else None, help=help)
        self.offset = offset
        self.path: tuple[str | int, ...] = ()
        self.text = ""
        """The string of a template whose evaluation failed, at ``path`` in the value."""

    def __reduce__(self) -> tuple[type[ExpressionError], tuple[str, int]]:
        return type(self), (self.message, self.offset)


class MissingError(ExpressionError):
    """A field, an index or the value before it does not exist: what ``default`` and ``has`` handle."""


class LimitError(ExpressionError):
    """The evaluation is too large. Never absorbed by ``||``, ``&&`` or ``default``."""


def suggestion(wrong: str, names: Iterable[str]) -> str:
    """The end of a message that proposes the closest known name; empty if none is close."""
    near = nearest(wrong, islice(names, 200))
    return f"; did you mean '{near}'?" if near else ""
