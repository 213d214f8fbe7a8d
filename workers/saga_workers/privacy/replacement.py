"""Texts of the engine's tables with `•••` in place of the values of a saga."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from saga_activities.guard.result_codec import MARKER_KEY, REJECTED, decode_marker, encode_marker, holds_values
from saga_activities.guard.stored_values import StoredValues
from saga_activities.guard.unreadable_rows import UnreadableRow
from saga_activities.value_places import ValuePlace
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


WHOLE = Replacement(None)


def replaced_result(place: ValuePlace, text: str, values: StoredValues, replacement: Replacement) -> str | None:
    """The text to store in place of a result in `saga_guard`; None if it is to stay.

    A text that no key here reads, or that is not JSON, is replaced as a whole.
    """
    decrypt, encrypt = partial(values.decrypt_result, place), partial(values.encrypt_result, place)
    return _stored(text, decrypt, encrypt, replacement.result, WHOLE.result)


def replaced_json(place: ValuePlace, text: str | None, values: StoredValues, replacement: Replacement) -> str | None:
    """The text to store in place of a JSON text in another table; None if it is to stay.

    A text that no key here reads, or that is not JSON, is replaced as a whole.
    """
    if text is None:
        return None
    decrypt, encrypt = partial(values.decrypt_json, place), partial(values.encrypt_json, place)
    return _stored(text, decrypt, encrypt, replacement.json, WHOLE.json)


def _stored(
    text: str,
    decrypt: Callable[[str], str | None],
    encrypt: Callable[[str], str | None],
    replace: Callable[[str], str],
    replace_whole: Callable[[str], str],
) -> str | None:
    try:
        clear = decrypt(text)
        if clear is None or (new := replace(clear)) in (clear, _rewritten(clear)):
            return None
    except (UnreadableRow, ValueError, RecursionError):
        return encrypt(replace_whole("null"))
    return encrypt(new)


def _rewritten(text: str) -> str:
    """The JSON text in the form in which a replacement writes it."""
    return Replacement(frozenset()).json(text)
