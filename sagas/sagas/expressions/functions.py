"""The functions of expressions; the macros (has, default, all, exists, map, filter …) belong to the parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal
from urllib.parse import quote

from sagas.expressions import values
from sagas.expressions.errors import ExpressionError
from sagas.expressions.limits import (
    BITS_PER_DIGIT,
    REFUSED_PATTERN_WORK,
    Evaluation,
    check_integer,
    check_string_length,
)
from sagas.expressions.operators import as_decimal, compute_exactly, digits_of, is_number
from sagas.expressions.re2_pattern import compile_pattern
from sagas.expressions.values import (
    DECIMAL_DIGITS,
    DURATION_LENGTH,
    EXACT,
    ROUNDING,
    format_decimal,
    parse_decimal,
    to_cel,
    type_name,
)
from sagas.input_limits import MAX_INTEGER_DIGITS
from sagas.text.digests import name_uuid, sha256_hex
from sagas.text.shortening import shorten

Style = Literal["function", "method", "both"]

_ROUND_DIGITS = 100
_PATTERN_LENGTH = 1_000


@dataclass(frozen=True, slots=True)
class Function:
    """A function and the facts for static checks: ``result`` is its type in words of JSON Schema, ``takes_numbers``
    says that it accepts only numbers. ``work``: what a call with short arguments takes, in units of an Evaluation."""

    call: Callable[..., Any]
    min_arguments: int
    max_arguments: int
    style: Style = "both"
    result: str | None = None
    takes_numbers: bool = False
    work: int = 4


def _type_error(name: str, wants: str, value: Any) -> ExpressionError:
    help_ = "; write decimal(x) for a number in a string" if value.__class__ is str and "number" in wants else ""
    return ExpressionError(
        f"{name} takes {wants}, not {type_name(value).removeprefix('not ')}{_quoted_string(value)}{help_}"
    )


def _quoted_string(value: Any) -> str:
    if value.__class__ is str:
        return f" '{shorten(value, 40)}'"
    return ""


def _as_string(name: str, value: Any) -> str:
    if value.__class__ is not str:
        raise _type_error(name, "strings", value)
    return value


def _as_list(name: str, value: Any) -> list[Any]:
    if value.__class__ is not list:
        raise _type_error(name, "a list", value)
    return value


def _as_number(name: str, value: Any) -> Any:
    value = to_cel(value)
    if not is_number(value):
        raise _type_error(name, "numbers", value)
    return value


def size(run: Evaluation, value: Any) -> int:
    if value.__class__ not in (str, list, dict):
        raise _type_error("size", "a string, a list or a map", value)
    return len(value)


def total(run: Evaluation, items: Any) -> Any:
    run.charge(len(_as_list("sum", items)))
    result: Any = 0
    for item in items:
        number = _as_number("sum", item)
        if result.__class__ is int and number.__class__ is int:
            result = check_integer(result + number)
        else:
            run.charge_work(8)
            result = compute_exactly(EXACT.add, as_decimal(run, result), as_decimal(run, number))
    return result


def _charge_mixed_numbers(run: Evaluation, numbers: list[Any], comparisons: int) -> None:
    """Charge for comparing integers with decimals, each of them this often."""
    if any(number.__class__ is Decimal for number in numbers):
        for number in numbers:
            if number.__class__ is int:
                run.charge_digits(number.bit_length() * comparisons, number.bit_length())


def _min_or_max(name: str, choose: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def extreme(run: Evaluation, *args: Any) -> Any:
        items = args[0] if len(args) == 1 and args[0].__class__ is list else args
        run.charge(len(items))
        numbers = [_as_number(name, item) for item in items]
        _charge_mixed_numbers(run, numbers, 1)
        if not numbers:
            raise ExpressionError(f"{name} of an empty list has no value; give one with [x] + list")
        return choose(numbers)

    return extreme


def rounded(run: Evaluation, value: Any, digits: Any = None) -> Any:
    """An integer, or with ``digits`` a decimal with exactly that scale; halves are rounded away from zero."""
    number = _as_number("round", value)
    if number.__class__ is Decimal:
        run.charge(len(str(number)) // 128)
        run.charge_work(digits_of(number) >> 4)
    if digits is None:
        if number.__class__ is int:
            return number
        return check_integer(int(_quantize(number, Decimal(1))))
    if digits.__class__ is not int or not 0 <= digits <= _ROUND_DIGITS:
        raise ExpressionError(f"round takes 0 to {_ROUND_DIGITS} digits after the point")
    return _quantize(as_decimal(run, number), Decimal((0, (1,), -digits)))


def _quantize(number: Decimal, unit: Decimal) -> Decimal:
    return compute_exactly(lambda value, step: value.quantize(step, ROUND_HALF_UP, ROUNDING), number, unit)


def sort(run: Evaluation, items: Any) -> list[Any]:
    """Ascending and stable. Strings are ordered by code point, even if they look like numbers."""
    run.charge(len(_as_list("sort", items)) * max(1, len(items).bit_length() // 2))
    pulled = [to_cel(item) for item in items]
    kinds = {Decimal if item.__class__ is int else item.__class__ for item in pulled}
    if len(kinds) > 1 or not kinds <= {Decimal, str, bool, datetime, timedelta}:
        raise ExpressionError("sort takes a list of numbers or a list of strings, not a mixture")
    if kinds == {str}:
        characters = sum(map(len, pulled))
        run.charge_text(characters)
        run.charge_order(characters, len(pulled))
    _charge_mixed_numbers(run, pulled, len(pulled).bit_length())
    return sorted(pulled)


def join(run: Evaluation, items: Any, separator: Any = "") -> str:
    run.charge(len(_as_list("join", items)))
    parts = [_as_string("join", to_cel(item)) for item in items]
    length = sum(map(len, parts)) + len(_as_string("join", separator)) * max(0, len(parts) - 1)
    check_string_length(length)
    run.charge_text(length)
    return separator.join(parts)


def split(run: Evaluation, text: Any, separator: Any) -> list[str]:
    run.charge_text(len(_as_string("split", text)))
    run.charge_search(len(text), len(_as_string("split", separator)))
    parts = text.split(separator) if separator else list(text)
    run.charge(len(parts))
    return parts


def _case_function(name: str, change: Callable[[str], str]) -> Callable[..., str]:
    def cased(run: Evaluation, text: Any) -> str:
        run.charge_text(len(_as_string(name, text)))
        if not text.isascii():
            run.charge_work(len(text) >> 4)
        changed = change(text)
        check_string_length(len(changed))
        return changed

    return cased


def _string_test(name: str, test: Callable[[str, str], bool]) -> Callable[..., bool]:
    def tested(run: Evaluation, text: Any, other: Any) -> bool:
        run.charge_text(len(_as_string(name, text)))
        return test(text, _as_string(name, other))

    return tested


def contains(run: Evaluation, text: Any, part: Any) -> bool:
    run.charge_text(len(_as_string("contains", text)))
    run.charge_search(len(text), len(_as_string("contains", part)))
    return part in text


_NO_PATH_PART = re.compile(r"[\x00-\x1f\x7f\\*?\[\]{}%]|^/|//|(^|/)\.+(/|$)")
"""Text that could lead out of the folder to which it is appended, to another scheme, or to several files."""


def path_part(run: Evaluation, value: Any) -> Any:
    """The value, if a path with it stays below the folder to which it is appended."""
    if value.__class__ in (int, bool, Decimal):
        return value
    run.charge_text(len(_as_string("path_part", value)))
    run.charge_work(len(value) >> 2)
    if _NO_PATH_PART.search(value):
        raise ExpressionError(
            f"{_quoted_string(value).strip()} cannot be a part of a path: it may have no leading `/`, no `..`, "
            "no backslash, wildcard or `%`"
        )
    return value


def matches(run: Evaluation, text: Any, pattern: Any) -> bool:
    """RE2 search (linear time): matches anywhere in the text unless the pattern has ``^`` and ``$``."""
    if len(_as_string("matches", pattern)) > _PATTERN_LENGTH:
        raise ExpressionError(f"a regular expression may have at most {_PATTERN_LENGTH:,} characters")
    run.charge_pattern(pattern)
    try:
        compiled = compile_pattern(pattern)
    except ValueError as error:
        run.charge_work(REFUSED_PATTERN_WORK)
        shown = pattern[:60].encode("utf-8", "backslashreplace").decode()
        raise ExpressionError(f"'{shown}' is not a regular expression of RE2: {error}") from None
    run.charge_match(pattern, compiled.programsize, len(_as_string("matches", text)))
    try:
        return compiled.search(text) is not None
    except UnicodeEncodeError:
        raise ExpressionError("matches cannot read a string with half a surrogate pair") from None


def integer(run: Evaluation, value: Any) -> int:
    """A decimal truncated towards zero, a timestamp as seconds since the epoch, or a string parsed as an integer."""
    kind = value.__class__
    if kind is int:
        return value
    if kind is Decimal:
        run.charge_text(len(str(value)))
        run.charge_work(digits_of(value) >> 4)
        return int(value)
    if kind is datetime:
        return (value - values.timestamp_from_string("1970-01-01T00:00:00Z")) // timedelta(seconds=1)
    if kind is str:
        digits = value[1:] if value[:1] in ("-", "+") and len(value) <= MAX_INTEGER_DIGITS else value
        if not (len(digits) <= MAX_INTEGER_DIGITS and digits.isascii() and digits.isdigit()):
            raise ExpressionError(f"int cannot read{_quoted_string(value)} as an integer")
        bits = int(len(digits) * BITS_PER_DIGIT)
        run.charge_digits(bits, bits)
        return int(value)
    raise _type_error("int", "a number, a timestamp or a string", value)


def decimal(run: Evaluation, value: Any) -> Decimal:
    return _decimal(run, "decimal", value)


def double(run: Evaluation, value: Any) -> Decimal:
    """CEL's conversion, as an alias of ``decimal``: expressions have no floats."""
    return _decimal(run, "double", value)


def _decimal(run: Evaluation, name: str, value: Any) -> Decimal:
    if is_number(value):
        return compute_exactly(EXACT.add, as_decimal(run, value), Decimal(0)) if value.__class__ is int else value
    if value.__class__ is not str:
        raise _type_error(name, "a number or a string", value)
    run.charge_work(min(len(value), 2 * DECIMAL_DIGITS) >> 3)
    return parse_decimal(value)


def string(run: Evaluation, value: Any) -> str:
    kind = value.__class__
    if kind is str:
        return value
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        run.charge_digits(value.bit_length(), value.bit_length())
        return str(check_integer(value))
    if kind is Decimal:
        run.charge_work(digits_of(value) >> 4)
        return format_decimal(value)
    if kind is datetime:
        return values.timestamp_to_string(value)
    if kind is timedelta:
        return values.duration_to_string(value)
    raise _type_error("string", "a string, a number, a boolean, a timestamp or a duration", value)


def boolean(run: Evaluation, value: Any) -> bool:
    if value.__class__ is bool:
        return value
    words = {"true": True, "True": True, "TRUE": True, "t": True, "1": True}
    words |= {"false": False, "False": False, "FALSE": False, "f": False, "0": False}
    if value.__class__ is str and value in words:
        return words[value]
    raise ExpressionError(f"bool cannot read {type_name(value)}{_quoted_string(value)}; it reads 'true' and 'false'")


def timestamp(run: Evaluation, value: Any) -> datetime:
    run.charge(1)
    return value if value.__class__ is datetime else values.timestamp_from_string(_as_string("timestamp", value))


def duration(run: Evaluation, value: Any) -> timedelta:
    if value.__class__ is str:
        run.charge_work(2 * min(len(value), DURATION_LENGTH))
    return value if value.__class__ is timedelta else values.duration_from_string(_as_string("duration", value))


def date(run: Evaluation, value: Any) -> str:
    """``YYYY-MM-DD`` of a timestamp in UTC, or of a string."""
    return (
        value.date().isoformat() if value.__class__ is datetime else values.date_from_string(_as_string("date", value))
    )


def url_segment(run: Evaluation, value: Any) -> str:
    """A scalar, percent-encoded as one segment of a path or one value of a query."""
    return _percent_encoded(run, "url_segment", value, "")


def url_path(run: Evaluation, value: Any) -> str:
    """A path, percent-encoded except for its ``/`` and for what is encoded already."""
    run.charge_work(len(_as_string("url_path", value)) >> 6)
    if "?" in value or "#" in value:
        raise ExpressionError("a path has no '?' and no '#'; write its query under `query`")
    return _percent_encoded(run, "url_path", value, "/%")


def _percent_encoded(run: Evaluation, name: str, value: Any, keep: str) -> str:
    if value.__class__ not in (str, bool, int, Decimal, datetime, timedelta):
        raise _type_error(name, "a string, a number or a boolean", value)
    text = string(run, value)
    run.charge_work(len(text) >> 2 if text.isascii() else len(text))
    try:
        encoded = quote(text, safe=keep)
    except UnicodeEncodeError:
        raise ExpressionError(f"{name} cannot encode half a surrogate pair") from None
    run.charge_text(len(encoded))
    check_string_length(len(encoded))
    return encoded


def _sha256_of_scalar(run: Evaluation, value: Any) -> str:
    return sha256_hex(_utf8_text(run, "sha256", value).decode())


def _uuid_of_scalar(run: Evaluation, value: Any) -> str:
    return name_uuid(_utf8_text(run, "uuid", value).decode())


def _utf8_text(run: Evaluation, name: str, value: Any) -> bytes:
    if value.__class__ not in (str, bool, int, Decimal, datetime, timedelta):
        raise _type_error(name, "a string, a number or a boolean", value)
    text = string(run, value)
    run.charge_text(len(text))
    run.charge_work(len(text) >> 4)  # hashing it
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ExpressionError(f"{name} cannot encode half a surrogate pair") from None


FUNCTIONS: dict[str, Function] = {
    "size": Function(size, 1, 1, result="integer"),
    "contains": Function(contains, 2, 2, "method", "boolean"),
    "startsWith": Function(_string_test("startsWith", str.startswith), 2, 2, "method", "boolean"),
    "endsWith": Function(_string_test("endsWith", str.endswith), 2, 2, "method", "boolean"),
    "matches": Function(matches, 2, 2, result="boolean"),
    "int": Function(integer, 1, 1, "function", "integer", work=24),
    "double": Function(double, 1, 1, "function", "number", work=8),
    "decimal": Function(decimal, 1, 1, result="number", work=8),
    "string": Function(string, 1, 1, "function", "string", work=12),
    "bool": Function(boolean, 1, 1, "function", "boolean"),
    "timestamp": Function(timestamp, 1, 1, "function", work=24),
    "duration": Function(duration, 1, 1, "function", work=8),
    "sum": Function(total, 1, 1, result="number", takes_numbers=True),
    "min": Function(_min_or_max("min", min), 1, 100, result="number", takes_numbers=True),
    "max": Function(_min_or_max("max", max), 1, 100, result="number", takes_numbers=True),
    "round": Function(rounded, 1, 2, result="number", takes_numbers=True, work=16),
    "sort": Function(sort, 1, 1, result="array"),
    "join": Function(join, 1, 2, result="string"),
    "split": Function(split, 2, 2, result="array"),
    "lower": Function(_case_function("lower", str.lower), 1, 1, result="string"),
    "upper": Function(_case_function("upper", str.upper), 1, 1, result="string"),
    "date": Function(date, 1, 1, result="string", work=40),
    "sha256": Function(_sha256_of_scalar, 1, 1, "function", "string", work=24),
    "uuid": Function(_uuid_of_scalar, 1, 1, "function", "string", work=48),
    "url_segment": Function(url_segment, 1, 1, "function", "string", work=16),
    "url_path": Function(url_path, 1, 1, "function", "string", work=16),
    "path_part": Function(path_part, 1, 1, "function", work=12),
}

STRING_FUNCTIONS = frozenset({"string", "join", "lower", "upper", "date", "sha256", "uuid", "url_segment", "url_path"})
"""Functions that always return a string, so ``+`` next to one is concatenation."""
