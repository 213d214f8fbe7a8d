"""Comparisons of exact numbers: 12.0 is 12, and 1.10 is 1.1."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal
from typing import Any

from sagas.input_limits import MAX_INTEGER_BITS, MAX_INTEGER_DIGITS
from sagas.text.exact_json import canonical_json
from sagas.text.work_portions import in_portions

_EXACT = Context(prec=20_000)
"""A precision with more digits than the quotient of any two numbers that the engine takes."""

_WRITTEN_OUT_DIGITS = 20
_WRITTEN_OUT = 10**_WRITTEN_OUT_DIGITS
"""The smallest integer of which :func:`comparable` writes the zeros at the end as an exponent: 1e999 is five characters
of an input, and would be a thousand of its digest.
"""


_LARGEST_INTEGER = 10**MAX_INTEGER_DIGITS - 1

BINARY = "x-binary"
"""The keyword of a schema for a number that is kept as a double."""


def is_whole(value: Any) -> bool:
    """True for a number without a fraction, however it is written: 12, 12.0 and 1.2e1."""
    if isinstance(value, Decimal):
        return value.is_finite() and value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


def has_too_many_digits(number: int) -> bool:
    """Return whether an integer has more than :data:`MAX_INTEGER_DIGITS` digits, without writing them."""
    return number.bit_length() > MAX_INTEGER_BITS and abs(number) > _LARGEST_INTEGER


def is_exact_double(number: int | Decimal) -> bool:
    """Return whether the double nearest to the number is written with the same digits."""
    try:
        nearest = float(number)
    except OverflowError:
        return False
    return Decimal(repr(nearest)) == number


def is_exact_single(number: int | Decimal, printed: int = 9) -> bool:
    """Return whether the float of four bytes nearest to the number is written with the same digits, by a database that
    prints ``printed`` of them.
    """
    try:
        (nearest,) = struct.unpack("f", struct.pack("f", float(number)))
    except OverflowError:
        return False
    shortest = next(digits for digits in range(1, 10) if _to_single(nearest, digits) == nearest)
    return shortest <= printed and Decimal(f"{nearest:.{shortest}g}") == number


def _to_single(number: float, digits: int) -> float:
    return struct.unpack("f", struct.pack("f", float(f"{number:.{digits}g}")))[0]


def is_multiple(number: int | Decimal, divisor: int | Decimal) -> bool:
    """True if the quotient is whole. Raises ArithmeticError for a divisor of zero."""
    return not _EXACT.remainder(Decimal(number), Decimal(divisor))


def comparable(value: Any) -> Any:
    """The JSON value with one form for each number, so that equal values have equal texts.

    The form of a number is hardly longer than the number as it was written, and takes no more work.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if -_WRITTEN_OUT < value < _WRITTEN_OUT else _comparable_integer(value)
    if isinstance(value, list | tuple):
        return [comparable(item) for item in in_portions(value)]
    if isinstance(value, Decimal):
        return _comparable_decimal(value)
    if isinstance(value, Mapping):
        return {key: comparable(item) for key, item in in_portions(value.items())}
    return value


def _comparable_decimal(number: Decimal) -> int | Decimal:
    if not number:
        return 0
    if is_whole(number) and number.adjusted() < _WRITTEN_OUT_DIGITS:
        return int(number)
    return number.normalize(_EXACT)


def _comparable_integer(number: int) -> int | Decimal:
    """The integer, or the decimal with an exponent if it ends in zeros. Python takes far longer to make a decimal of an
    integer than to write its digits.
    """
    if number % 10:
        return number
    written = str(number)
    digits = written.rstrip("0")
    return Decimal(f"{digits}E{len(written) - len(digits)}")


def is_equal(first: Any, other: Any) -> bool:
    """True for equal JSON values; 1 equals 1.0, but neither true nor "1"."""
    return comparable_json(first) == comparable_json(other)


_OTHER_FORM = re.compile(r"[:,[](?:-0|-?[0-9]+(?:[.eE]|(?<=[0-9]{20})))")
"""A number in JSON that may have another form: -0, one with a point or an exponent, and a large one."""

_ALL_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_LONG_TEXT = 4_096
"""Characters from which it is worth to look for such a part first."""

_PARTS_OF_OTHER_FORMS = (b"0.", b"0e", b"0E", b"0" * 20)


def comparable_json(value: Any) -> str:
    """The text that equal JSON values share, however their numbers are written: 1, 1.0 and 1e0.

    Most values have no number with another form: their text shows it in a third of the time that a look at each takes.
    """
    if isinstance(value, dict):
        try:
            text = canonical_json(value)
        except TypeError:  # a mapping in it is not a dict
            pass
        else:
            if not _may_have_other_form(text):
                return text
    return canonical_json(comparable(value))


def _may_have_other_form(json: str) -> bool:
    """True if a number of the text may have another form.

    The pattern looks at each number, in one call that takes 40 ms for a megabyte of them. So for a long text it is
    asked only if a part of such a number is somewhere in it, which takes a twentieth of that.
    """
    if len(json) < _LONG_TEXT:
        return _OTHER_FORM.search(json) is not None
    written = json.encode()
    alike = written.translate(_ALL_DIGITS_ALIKE)
    if b"-0" in written or any(part in alike for part in _PARTS_OF_OTHER_FORMS):
        return _OTHER_FORM.search(json) is not None
    return False


def exact_value(value: Any) -> Any:
    """The value with every ``float`` as the decimal that it prints; the value itself if it has none."""
    return value if next(_scalars(value, float), None) is None else _exact_copy(value)


def _exact_copy(value: Any) -> Any:
    match value:
        case float():
            return Decimal(repr(value))
        case dict():
            return {key: _exact_copy(item) for key, item in in_portions(value.items())}
        case list():
            return [_exact_copy(item) for item in in_portions(value)]
    return value


def has_whole_decimal(value: Any) -> bool:
    """True if a number of the value is whole and has a point or an exponent, such as 12.0."""
    return any(map(is_whole, _scalars(value, Decimal)))


def _scalars(value: Any, kind: type) -> Iterator[Any]:
    """The values of a type."""
    waiting: list[Any] = [(value,)]
    while waiting:
        for item in in_portions(waiting.pop()):
            if isinstance(item, kind):
                yield item
            elif isinstance(item, dict):
                waiting.append(item.values())
            elif isinstance(item, list):
                waiting.append(item)
