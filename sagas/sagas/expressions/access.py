"""Reading names, fields and elements, and the sentences for what is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sagas.expressions.errors import ExpressionError, MissingError, did_you_mean
from sagas.expressions.limits import Run
from sagas.expressions.values import kind_of, pull

Code = Callable[[Run], Any]

_SHOWN_FIELDS = 8


def root(name: str, offset: int) -> Code:
    """A name of the context."""

    def root(run: Run) -> Any:
        try:
            return pull(run.context[name])
        except KeyError:
            hint = did_you_mean(name, map(str, run.context))
            raise ExpressionError(f"there is nothing named '{name}' here{hint}", offset) from None

    return root


def field(operand: Code, name: str, owner: str, offset: int) -> Code:
    """``owner.name``."""

    def select(run: Run) -> Any:
        value = operand(run)
        if value.__class__ is dict and name in value:
            return pull(value[name])
        raise _no_field(owner, value, name, offset)

    return select


def lenient_field(operand: Code, name: str, owner: str, offset: int, *, missing: bool) -> Code:
    """``owner.name``, null where the owner is null; with ``missing`` also where it has no such field."""

    def select(run: Run) -> Any:
        value = operand(run)
        if value is None:
            return None
        if value.__class__ is dict and name in value:
            return pull(value[name])
        if missing and value.__class__ is dict:
            return None
        raise _no_field(owner, value, name, offset)

    return select


def has_field(operand: Code, name: str, owner: str, offset: int) -> Code:
    """``has(owner.name)``."""

    def has(run: Run) -> bool:
        value = operand(run)
        if value is None or value.__class__ is dict:
            return value is not None and name in value
        raise ExpressionError(f"{owner} is {kind_of(value)} and has no fields", offset)

    return has


def element(operand: Code, key: Code, owner: str, offset: int) -> Code:
    """``owner[key]``: an element of a list, or a field by its name."""

    def index(run: Run) -> Any:
        value, at = operand(run), key(run)
        if value.__class__ is list and at.__class__ is int:
            if 0 <= at < len(value):
                return pull(value[at])
            raise MissingError(f"{owner} has no element {_brief(at)}; it has {len(value)}, the first is 0", offset)
        if at.__class__ is str and value.__class__ is not list:
            if value.__class__ is dict and at in value:
                return pull(value[at])
            raise _no_field(owner, value, at, offset)
        if value is None:
            raise MissingError(f"{owner} is null and has no elements", offset)
        wants = "an integer" if value.__class__ is list else "a string"
        if value.__class__ in (list, dict):
            raise ExpressionError(f"{owner} is {kind_of(value)}: its index is {wants}, not {kind_of(at)}", offset)
        raise ExpressionError(f"{owner} is {kind_of(value)} and has no elements", offset)

    return index


def _brief(number: int) -> str:
    text = str(number)
    return text if len(text) <= 20 else text[:20] + "…"


def _no_field(owner: str, value: Any, field: str, offset: int) -> ExpressionError:
    shown = field[:40]
    if value is None:
        return MissingError(f"{owner} is null and has no field '{shown}'; write default({owner}.{shown}, …)", offset)
    if value.__class__ is not dict:
        return ExpressionError(f"{owner} is {kind_of(value)} and has no field '{shown}'", offset)
    known = sorted(str(key) for key in value)
    listed = ", ".join(known[:_SHOWN_FIELDS]) + (", …" if len(known) > _SHOWN_FIELDS else "")
    has = f"it has {listed}" if known else "it is empty"
    return MissingError(f"{owner} has no field '{shown}'; {has}{did_you_mean(field, known)}", offset)
