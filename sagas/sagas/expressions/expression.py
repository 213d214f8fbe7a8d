"""One expression, ready to be evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import DecimalException
from functools import lru_cache
from typing import Any

from sagas.expressions.compiler import Compiler
from sagas.expressions.errors import ExpressionError
from sagas.expressions.limits import Run
from sagas.expressions.nodes import Node
from sagas.expressions.parser import parse
from sagas.expressions.references import Reference, references
from sagas.expressions.scanner import OPEN, scan
from sagas.expressions.values import leave


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression; immutable, and the same object for the same source.

    ``source`` is without ``${{ }}`` and outer spaces; all offsets count its characters. ``node`` is the parsed form.
    """

    source: str
    references: tuple[Reference, ...]
    node: Node = field(repr=False, compare=False)
    _code: Callable[[Run], Any] = field(repr=False, compare=False)
    _slots: int = field(repr=False, compare=False)

    def evaluate(self, context: Mapping[str, Any]) -> Any:
        """The JSON value in this context; decimals leave as strings.

        A pure function of source and context: no clock, no randomness, no environment. Raises ExpressionError with
        one sentence when a part cannot be evaluated or the work or the result is too large.
        """
        try:
            return leave(self._code(Run(context, self._slots)))
        except ExpressionError as error:
            error.offset = max(error.offset, 0)
            raise
        except DecimalException:
            raise ExpressionError(f"{self.source[:50]} meets a decimal that is not a finite number", 0) from None

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return compile_expression, (self.source,)


def compile_expression(source: str) -> Expression:
    """Compile CEL, with or without ``${{ }}`` around it; raises ExpressionError with message and offset."""
    return _compiled(_unwrapped(source))


def _unwrapped(source: str) -> str:
    text = source.strip()
    if text.startswith(OPEN):
        parts = scan(text)
        if len(parts) != 1:
            raise ExpressionError("this is text around an expression; an expression alone is needed here", 0)
        return parts[0].text.strip()
    return text


@lru_cache(maxsize=4096)
def _compiled(source: str) -> Expression:
    node = parse(source)
    compiler = Compiler(source)
    code = compiler.compile(node)
    return Expression(source, references(node), node, code, compiler.slots)
