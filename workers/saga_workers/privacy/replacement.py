"""Texts of the engine's tables with `•••` in place of the values of a saga."""

from __future__ import annotations

from typing import Any

from saga_activities.guard.result_codec import MARKER_KEY, REJECTED, decode_marker, encode_marker, holds_values
from sagas.definition.sensitivity import SensitiveMask
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.printable import MASK


class Replacement:
    """Replaces the values that are known, or everything if they are not: then ``sensitive`` is None."""

    def __init__(self, sensitive: frozenset[str] | None) -> None:
        self._sensitive = sensitive

    def result(self, text: str) -> str:
        """The result or the marker of a guard row. A marker stays what it is for the guard."""
        if not holds_values(text):
            return text
        marker = decode_marker(text)
        if marker is None:
            return self.json(text)
        details = {name: value for name, value in marker.items() if name != MARKER_KEY}
        if self._sensitive is None:
            return encode_marker(REJECTED, reason=MASK, details={})
        return encode_marker(REJECTED, **self._replaced(details))

    def json(self, text: str) -> str:
        """A JSON text."""
        return encode_json(self._replaced(decode_json(text))).decode()

    def text(self, text: str) -> str:
        """Plain text, such as the key of an event."""
        return self._replaced(text)

    def headers(self, text: str) -> str:
        """The headers of an event as JSON, which stay an object."""
        return "{}" if self._sensitive is None else self.json(text)

    def _replaced(self, value: Any) -> Any:
        return MASK if self._sensitive is None else SensitiveMask(self._sensitive).value(value)
