"""Makes exceptions of an author's classes usable: with a traceback, a cause, notes and a text, whatever their class.

``contextlib`` assigns ``__traceback__``, which a frozen dataclass refuses with an error that takes its own place.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import Any

_PARTS = ("__traceback__", "__cause__", "__context__", "__suppress_context__")  # to assign a cause sets the last one
_PROBED = "_saga_probed"


def make_ordinary(error: BaseException) -> None:
    """Make ``error`` accept attributes and have a text, by a class with the same name and bases, if its own does not.

    Call it where an author's code has raised the error, before that passes through any other code.
    """
    if not _is_ordinary(error):
        with contextlib.suppress(Exception):  # a class that cannot have subclasses: the error stays as it is
            object.__setattr__(error, "__class__", _ordinary_class(type(error)))


def attribute_of(error: BaseException, name: str, default: Any = None) -> Any:
    """An attribute that a class of the engine sets in its constructor, which a subclass need not call."""
    try:
        return getattr(error, name, default)
    except Exception:  # noqa: BLE001 - a property is the author's code
        return default


def _is_ordinary(error: BaseException) -> bool:
    kept = {name: getattr(BaseException, name).__get__(error) for name in _PARTS}
    try:
        str(error)
        for name, value in kept.items():
            setattr(error, name, value)
        setattr(error, _PROBED, True)
        delattr(error, _PROBED)
        return all(getattr(error, name) is value for name, value in kept.items())
    except Exception:  # noqa: BLE001 - the attributes and the text are the author's code
        return False


@lru_cache(maxsize=256)
def _ordinary_class(kind: type[BaseException]) -> type[BaseException]:
    def text(self: BaseException) -> str:
        try:
            return kind.__str__(self)
        except Exception as error:  # noqa: BLE001 - `__str__` is the author's code
            return f"(a {kind.__name__} without a text: its __str__ raised {type(error).__name__})"

    attributes: dict[str, Any] = {name: BaseException.__dict__[name] for name in _PARTS}
    attributes |= {name: getattr(BaseException, name) for name in ("__setattr__", "__delattr__", "add_note")}
    attributes |= {"__slots__": (), "__str__": text, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind)(kind.__name__, (kind,), attributes | {"with_traceback": BaseException.with_traceback})
