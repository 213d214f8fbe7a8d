"""The placeholders of a statement for PostgreSQL at which it expects its ``integer`` of four bytes. Pure.

An integer is sent as ``bigint``, of whatever size it is. PostgreSQL has no ``left(text, bigint)``, no ``date + bigint``
and no ``jsonb -> bigint``: there, an integer is what its digits are in SQL, ``integer`` if it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sagas.sql_text.calls import NO_FUNCTIONS
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.tokens import SqlToken

_PRODUCTS = ("*", "/", "%", "^")
_COMPARISONS = ("=", "<", ">", "<=", ">=", "<>", "!=")

_TRANSPARENT = frozenset(["coalesce", "greatest", "least", "nullif"])
"""Functions whose result has the type of their arguments, so that the place of the call counts."""

_TAKE_ALL = frozenset(["sum", "min", "max", "avg", "unnest"])
"""Functions that take every type of integer."""


@lru_cache(maxsize=4096)
def integer_places(statement: ParsedSql) -> frozenset[int]:
    """The placeholders, counted from 0."""
    if not statement.parameters:
        return frozenset()
    tokens = list(statement.significant())
    words = [statement.text_of(token).lower() for token in tokens]
    opened: list[str] = []
    places: list[bool] = []
    for at, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(_opened(tokens, words, at))
        elif token.kind == "close" and opened:
            opened.pop()
        elif token.kind == "parameter":
            inner = next((kind for kind in reversed(opened) if kind != "transparent"), "other")
            places.append(_is_integer_place(tokens, words, at, in_function=inner == "function"))
    return frozenset(place for place, is_integer in enumerate(places) if is_integer)


def _opened(tokens: Sequence[SqlToken], words: Sequence[str], at: int) -> str:
    """The kind of a parenthesis or bracket: ``function`` has arguments or indexes, ``transparent`` groups operands."""
    if words[at] == "[":
        return "function"
    if at == 0 or tokens[at - 1].kind in ("operator", "open") or words[at - 1] in _TRANSPARENT:
        return "transparent"
    is_name = tokens[at - 1].kind in ("word", "name")
    return "function" if is_name and words[at - 1] not in NO_FUNCTIONS | _TAKE_ALL else "other"


def _is_integer_place(tokens: Sequence[SqlToken], words: Sequence[str], at: int, *, in_function: bool) -> bool:
    operators = [
        (operator, other)
        for step in (-1, 1)
        if (side := _operator(tokens, words, at, step)) is not None
        for operator, other in [side]
    ]
    if any(operator in _PRODUCTS for operator, _ in operators):
        return False
    if any(operator in "+-" and _is_number(tokens, other) for operator, other in operators):
        return in_function
    if any(operator not in _COMPARISONS for operator, _ in operators):
        return True
    return in_function and not operators


def _operator(tokens: Sequence[SqlToken], words: Sequence[str], at: int, step: int) -> tuple[str, int] | None:
    """The operator on one side of a placeholder, and the index of the token behind it; None if there is none."""
    text, index = "", at + step
    while 0 <= index < len(tokens) and tokens[index].kind == "operator" and words[index] != ",":
        if text and tokens[max(index, index - step)].start != tokens[min(index, index - step)].end:
            break  # the next operator is another one
        text = words[index] + text if step < 0 else text + words[index]
        index += step
    if not text or text == "=>":
        return None
    if step < 0 and text in ("-", "+") and _begins_expression(tokens, words, index):
        return _operator(tokens, words, index + 1, step)  # before its sign
    return text, index


def _begins_expression(tokens: Sequence[SqlToken], words: Sequence[str], before: int) -> bool:
    """Return whether an expression begins after the token ``before``."""
    if before < 0 or tokens[before].kind in ("open", "operator"):
        return True
    return tokens[before].kind == "word" and words[before] in NO_FUNCTIONS


def _is_number(tokens: Sequence[SqlToken], index: int) -> bool:
    """Return whether an operand is a number or a parameter, which have no type of their own there."""
    if not 0 <= index < len(tokens):
        return False
    if tokens[index].kind == "parameter":
        return index + 1 == len(tokens) or tokens[index + 1].kind != "cast"
    return tokens[index].kind == "number"
