"""The texts of one message: 1e999 is five characters of an input, and would be a thousand of each field of a form."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sagas.input_limits import MAX_NUMBER_TEXTS
from sagas.text.exact_json import value_text


class MessageTexts:
    """Writes the values of one message as text, see :func:`value_text`. The numbers among them share a limit."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_NUMBER_TEXTS

    def text(self, value: Any) -> str:
        """The text of a value. Raises ValueError if the numbers of the message have too many digits."""
        text = value_text(value)
        if isinstance(value, int | float | Decimal):
            self._left -= len(text)
            if self._left < 0:
                raise ValueError(
                    f"its numbers have more than {MAX_NUMBER_TEXTS:,} digits without exponents: send fewer numbers, or"
                    " shorter ones"
                )
        return text
