"""JSON whose numbers keep every digit: an integer is an ``int``, every other number a ``Decimal``, never a ``float``.

All JSON of the engine is read and written here, so that no value passes through a binary float on its way. What comes
from outside is read with :func:`sagas.text.json_values.parse_json`, which also checks its bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from typing import Any

import msgspec

from sagas.input_limits import MAX_DECIMAL_DIGITS, MAX_INTEGER_DIGITS
from sagas.text.json_mistakes import InvalidJson
from sagas.text.shortening import shorten
from sagas.text.work_portions import count_text, count_value, in_portions

_NOT_ASCII = re.compile("[^\x00-\x7f]")


def exact_number(text: str) -> Decimal:
    """The number of a literal with a fraction or an exponent. Raises ValueError above :data:`MAX_DECIMAL_DIGITS`."""
    count_value()
    try:
        number = Decimal(text) if len(text) <= MAX_DECIMAL_DIGITS + 10 else None
    except ArithmeticError:  # an exponent that no Decimal has
        number = None
    if number is not None and len(text) <= MAX_DECIMAL_DIGITS and abs(number.adjusted()) < MAX_DECIMAL_DIGITS:
        return number  # as the check below, in a third of the time
    if number is None or decimal_problem(number) is not None:
        raise ValueError(f"the number {shorten(text, 40)} has more than {MAX_DECIMAL_DIGITS:,} digits")
    return number


def decimal_problem(number: Decimal) -> str | None:
    """Why JSON or the engine has no form for the number; None if they have."""
    if not number.is_finite():
        return f"{number} is not a JSON number"
    has_more_digits = len(str(number)) > MAX_DECIMAL_DIGITS and len(number.as_tuple().digits) > MAX_DECIMAL_DIGITS
    if has_more_digits or abs(number.adjusted()) >= MAX_DECIMAL_DIGITS:
        return f"it has a decimal of more than {MAX_DECIMAL_DIGITS:,} digits"
    return None


def number_text(number: float | Decimal) -> str:
    """A number inside text: the digits as written, without exponent and without the sign of zero.

    Raises ValueError for a number that :func:`decimal_problem` refuses: its exponent could stand for any number of
    zeros.
    """
    if isinstance(number, int):
        return str(number)
    exact = Decimal(repr(number)) if isinstance(number, float) else number
    if (problem := decimal_problem(exact)) is not None:
        raise ValueError(problem)
    return format(exact if exact else exact.copy_abs(), "f")


_DECODER = msgspec.json.Decoder(float_hook=exact_number)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_ALL_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_TOO_MANY_DIGITS = b"0" * (MAX_INTEGER_DIGITS + 1)
_CANONICAL = msgspec.json.Encoder(decimal_format="number", order="deterministic")


def value_text(value: Any) -> str:
    """A JSON value inside text: a string as it is, a number as :func:`number_text`, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return number_text(value)
    return readable_json(value, sort=True)


def decode_json(data: str | bytes) -> Any:
    """The value of a JSON text.

    Raises ValueError if it is none (:class:`InvalidJson`) or has too large a number, RecursionError if it is nested too
    deeply.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, ValueError):
        # Python's module reads half a surrogate pair, which msgspec refuses, and says where the mistake is.
        return _decode_or_explain(data)


def _decode_or_explain(data: str | bytes, **hooks: Any) -> Any:
    hooks |= {"parse_float": exact_number, "parse_int": _bounded_integer, "parse_constant": _refuse_constant}
    try:
        return json.loads(data, **hooks)
    except json.JSONDecodeError as error:
        raise InvalidJson(error) from None


def _bounded_integer(text: str) -> int:
    count_value()
    if len(text) > MAX_INTEGER_DIGITS + 1:
        raise ValueError(f"the number {shorten(text, 40)} has more than {MAX_INTEGER_DIGITS:,} digits")
    return int(text)


def decode_unambiguous(data: str | bytes) -> Any:
    """The value of a JSON text from outside. Raises as :func:`decode_json`, and :class:`RepeatedName`.

    A text with many small objects is read in a third of the time that Python's module takes with a hook for each.
    """
    try:
        text = data.encode() if isinstance(data, str) else data
        if not _may_have_long_integer(text):
            count_text(len(text))
            value = _DECODER.decode(text)
            count_text(len(text))
            if _has_all_names(value, text):
                return value
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        pass  # Python's module explains it, or reads it
    return _decode_or_explain(data, object_pairs_hook=_without_repetition)


def _may_have_long_integer(text: bytes) -> bool:
    """True if the text has more digits in a row than an integer may have: msgspec reads some more."""
    return len(text) > MAX_INTEGER_DIGITS and _TOO_MANY_DIGITS in text.translate(_ALL_DIGITS_ALIKE)


def _has_all_names(value: Any, text: bytes) -> bool:
    """True if the value of the text certainly has all its names. Each name that is repeated takes a colon away, because
    msgspec keeps the last of its values alone; and only an escape adds a colon.
    """
    colons = text.count(b":")
    may_be_escaped = b"\\u003a" in text or b"\\u003A" in text
    if not colons or may_be_escaped:
        return not colons
    written = _ENCODER.encode(value)
    count_text(len(written))
    return written.count(b":") == colons


class RepeatedName(ValueError):
    """An object of a JSON text has a name twice: parsers differ in which of its values counts."""

    def __init__(self, name: str) -> None:
        self.name = name[:60]
        super().__init__(f"the name {self.name!r} appears twice in one object; write it once")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    count_value()
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise RepeatedName(twice)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def encode_json(value: Any, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON in UTF-8; ``default`` converts what is not JSON.

    Raises TypeError or ValueError if it is not JSON, RecursionError if it is nested too deeply. A number that is not
    finite has no form in JSON, so it must be refused where it comes in.
    """
    encoder = _ENCODER if default is None else msgspec.json.Encoder(decimal_format="number", enc_hook=default)
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can hold
        return _encode_with_escapes(value, default, sort=False).encode()


def with_json_names(value: Any) -> Any:
    """The value with the names that its keys get in JSON: 1 becomes "1". The value itself if all of them are texts."""
    waiting: list[Any] = [(value,)]
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict) and not all(isinstance(key, str) for key in in_portions(container)):
            return decode_json(encode_json(value))
        items = container.values() if isinstance(container, dict) else container
        waiting += [item for item in in_portions(items) if isinstance(item, dict | list)]
    return value


def canonical_json(value: Any) -> str:
    """A value as JSON with sorted keys, for hashes and comparisons: equal values have equal texts.

    Numbers are compared as written: 1.10 and 1.1 differ here. Raises as :func:`encode_json`.
    """
    try:
        text = _CANONICAL.encode(value).decode()
    except UnicodeEncodeError:
        return _encode_with_escapes(value, None, sort=True)
    count_text(len(text))
    return text


def to_ascii(text: str) -> str:
    """The JSON text with every character beyond ASCII as an escape."""
    return _NOT_ASCII.sub(lambda match: escaped(match.group()), text)


def escaped(text: str) -> str:
    """The text as it is inside a string of JSON in ASCII."""
    return json.dumps(text)[1:-1]


def readable_json(
    value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None, sort: bool = False
) -> str:
    """A value as JSON for people: with spaces, or with ``indent`` on several lines. Raises as :func:`encode_json`."""
    return "".join(_write(value, default, _Layout(", ", ": ", indent, sort)))


@dataclass(frozen=True, slots=True)
class _Layout:
    comma: str = ","
    colon: str = ":"
    indent: int | None = None
    sort: bool = False


def _encode_with_escapes(value: Any, default: Callable[[Any], Any] | None, *, sort: bool) -> str:
    return "".join(_write(value, default, _Layout(sort=sort)))


def _write(value: Any, default: Callable[[Any], Any] | None, layout: _Layout, level: int = 1) -> Iterator[str]:
    match value:
        case None | bool() | int() | float() | Decimal():
            yield _ENCODER.encode(value).decode()
        case str():
            yield _string(value)
        case dict():
            pairs = [(_string(str(key)) + layout.colon, item) for key, item in value.items()]
            pairs = sorted(pairs, key=itemgetter(0)) if layout.sort else pairs
            yield from _write_items("{}", pairs, default, layout, level)
        case list() | tuple():
            yield from _write_items("[]", [("", item) for item in value], default, layout, level)
        case _:
            if default is None:
                raise TypeError(f"JSON has no form for a value of type {type(value).__name__}")
            yield from _write(default(value), default, layout, level)


def _write_items(
    brackets: str,
    items: list[tuple[str, Any]],
    default: Callable[[Any], Any] | None,
    layout: _Layout,
    level: int,
) -> Iterator[str]:
    first, between, last = "", layout.comma, ""
    if layout.indent is not None and items:
        first = "\n" + " " * (layout.indent * level)
        between, last = "," + first, "\n" + " " * (layout.indent * (level - 1))
    yield brackets[0]
    for index, (key, item) in enumerate(in_portions(items)):
        yield (between if index else first) + key
        yield from _write(item, default, layout, level + 1)
    yield last + brackets[1]


def _string(text: str) -> str:
    try:
        return _ENCODER.encode(text).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can hold
        return json.dumps(text)
