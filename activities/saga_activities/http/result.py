"""``result:`` of an HTTP step: CEL over ``response``, compiled before the request is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saga_activities.http.response import Response
from sagas.expressions import ExpressionError, compile_expression

ToResult = Callable[[Response], Any]


class ResultError(ValueError):
    """``result`` does not compile, or cannot be computed from this answer."""


def compile_result(source: Any) -> ToResult:
    """How the result comes out of an answer.

    One expression, bare or in ``${{ }}``. Without one: the body as JSON, else its text, else null.
    Raises ResultError, when called and from what it returns.
    """
    if source is None:
        return _body
    if not isinstance(source, str):
        raise ResultError("`result` must be an expression")
    try:
        expression = compile_expression(source)
    except ExpressionError as error:
        raise ResultError(f"`result` does not compile: {error.message}") from None

    def to_result(response: Response) -> Any:
        try:
            return expression.evaluate({"response": response.to_json()})
        except ExpressionError as error:
            raise ResultError(error.message) from None

    return to_result


def _body(response: Response) -> Any:
    body = response.json()
    # A body `null` and no body at all are both no result; any other text that is not JSON is the result itself.
    return response.text if body is None and response.text.strip() not in ("", "null") else body
