"""The operators of expressions. Each takes the Evaluation and charges it for work that grows with the data."""

from __future__ import annotations

import decimal
import operator
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sagas.expressions.errors import ExpressionError, LimitError
from sagas.expressions.limits import BITS_PER_DIGIT, MAX_DATA_DEPTH, Evaluation, check_integer, check_string_length
from sagas.expressions.values import DECIMAL_DIGITS, DIVIDING, EXACT, to_cel, type_name

Operator = Callable[[Evaluation, Any, Any], Any]

_DECIMAL_STRING = re.compile(r"\s*[+-]?[0-9]+(\.[0-9]+)?\s*", re.ASCII)
_DECIMAL_WORK = 4
"""How much more work a digit of a decimal is than one of an integer."""

_DECIMAL_OPERATION = 12
"""The work of an operation on two decimals, however few digits they have."""

_DECIMAL_HELP = "write decimal(x) to calculate with a number in a string"


class UnsuitableOperandsError(ExpressionError):
    """The operator does not take these values; the compiler adds the names of the operands."""


def unsuitable_operands(reason: str = "") -> UnsuitableOperandsError:
    return UnsuitableOperandsError(reason or "?")


def compute_exactly(compute: Callable[[Decimal, Decimal], Decimal], left: Decimal, right: Decimal) -> Decimal:
    """The exact result; raises LimitError if it has too many digits."""
    try:
        return compute(left, right)
    except (decimal.Inexact, decimal.Overflow, decimal.Underflow, decimal.InvalidOperation):
        raise LimitError(f"a decimal of more than {DECIMAL_DIGITS:,} digits is refused") from None


def digits_of(number: Decimal) -> int:
    """About the digits of a finite number without exponent."""
    return max(len(str(number)), abs(number.adjusted()))


def as_decimal(run: Evaluation, number: int | Decimal) -> Decimal:
    if isinstance(number, Decimal):
        return number
    charge_conversion(run, number)
    return Decimal(number)


def charge_conversion(run: Evaluation, number: int | Decimal) -> None:
    """Charge for the conversion of an integer to a decimal, also in a comparison with one."""
    if isinstance(number, int):
        run.charge_digits(number.bit_length(), number.bit_length())


def _decimal_pair(run: Evaluation, left: int | Decimal, right: int | Decimal) -> tuple[Decimal, Decimal]:
    """Both numbers as decimals, charged for their multiplication or division."""
    pair = as_decimal(run, left), as_decimal(run, right)
    run.charge_work(_DECIMAL_OPERATION)
    bits = [int(len(str(number)) * BITS_PER_DIGIT) for number in pair]
    run.charge_digits(*(size * _DECIMAL_WORK for size in bits))
    return pair


def is_number(value: Any) -> bool:
    return value.__class__ is int or value.__class__ is Decimal


def add(run: Evaluation, left: Any, right: Any) -> Any:
    kinds = (left.__class__, right.__class__)
    if kinds == (int, int):
        return check_integer(left + right)
    if kinds == (list, list):
        run.charge(len(left) + len(right))
        return left + right
    if is_number(left) and is_number(right):
        run.charge_work(_DECIMAL_OPERATION)
        return compute_exactly(EXACT.add, as_decimal(run, left), as_decimal(run, right))
    if timedelta in kinds and (set(kinds) <= {datetime, timedelta}):
        return _calendar_arithmetic(operator.add, left, right)
    raise unsuitable_operands()


def concatenate(run: Evaluation, left: Any, right: Any) -> Any:
    """``+`` as concatenation, chosen if the source shows that one side is a string.

    Otherwise adding two strings is an error: amounts are passed as strings, and "1.00" + "2.00" is not an amount.
    """
    if left.__class__ is str and right.__class__ is str:
        check_string_length(len(left) + len(right))
        run.charge_text(len(left) + len(right))
        run.charge_work(2)
        return left + right
    if left is None or right is None:
        raise unsuitable_operands("write default(x, '') where it may be null")
    raise unsuitable_operands("write string(x) to convert a value to a string")


def subtract(run: Evaluation, left: Any, right: Any) -> Any:
    kinds = (left.__class__, right.__class__)
    if kinds == (int, int):
        return check_integer(left - right)
    if is_number(left) and is_number(right):
        run.charge_work(_DECIMAL_OPERATION)
        return compute_exactly(EXACT.subtract, as_decimal(run, left), as_decimal(run, right))
    if kinds in ((datetime, timedelta), (datetime, datetime), (timedelta, timedelta)):
        return _calendar_arithmetic(operator.sub, left, right)
    raise unsuitable_operands()


def multiply(run: Evaluation, left: Any, right: Any) -> Any:
    if left.__class__ is int and right.__class__ is int:
        run.charge_digits(left.bit_length(), right.bit_length())
        return check_integer(left * right)
    if is_number(left) and is_number(right):
        return compute_exactly(EXACT.multiply, *_decimal_pair(run, left, right))
    raise unsuitable_operands()


def divide(run: Evaluation, left: Any, right: Any) -> Any:
    """The quotient of integers truncated towards zero, as in CEL; else a decimal of 28 digits."""
    if not (is_number(left) and is_number(right)):
        raise unsuitable_operands()
    if right == 0:
        raise ExpressionError("division by zero")
    if left.__class__ is int and right.__class__ is int:
        run.charge_digits(left.bit_length(), right.bit_length())
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return compute_exactly(DIVIDING.divide, *_decimal_pair(run, left, right))


def remainder(run: Evaluation, left: Any, right: Any) -> Any:
    """The remainder of integers, with the sign of the dividend, as in CEL."""
    if not (left.__class__ is int and right.__class__ is int):
        raise unsuitable_operands("it takes integers")
    if right == 0:
        raise ExpressionError("division by zero")
    run.charge_digits(left.bit_length(), right.bit_length())
    magnitude = abs(left) % abs(right)
    return -magnitude if left < 0 else magnitude


def negate(value: Any) -> Any:
    if value.__class__ is int:
        return -value
    if value.__class__ is Decimal:
        return value.copy_negate()
    if value.__class__ is timedelta:
        return _calendar_arithmetic(operator.sub, timedelta(0), value)
    raise unsuitable_operands()


def _calendar_arithmetic(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    try:
        return compute(left, right)
    except OverflowError:
        raise ExpressionError("the result is outside the calendar (years 1 to 9999)") from None


def equals(run: Evaluation, left: Any, right: Any) -> bool:
    """Deep equality. Values of different types are unequal, but comparing a number with a string is an error."""
    if (left.__class__ is str and is_number(right)) or (right.__class__ is str and is_number(left)):
        raise unsuitable_operands(_DECIMAL_HELP)
    return deep_equal(run, left, right, 0)


def deep_equal(run: Evaluation, left: Any, right: Any, level: int) -> bool:
    """Equality of any two values; unlike :func:`equals` it accepts a number and a string."""
    left, right = to_cel(left), to_cel(right)
    kind = left.__class__
    if kind is not right.__class__:
        if not (is_number(left) and is_number(right)):
            return False
        _charge_comparison(run, left, right)
        return left == right
    if kind is list or kind is dict:
        if level > MAX_DATA_DEPTH:
            raise LimitError(f"values nested deeper than {MAX_DATA_DEPTH} levels cannot be compared")
        if len(left) != len(right):
            return False
        run.charge(len(left))
        if kind is dict:
            run.charge_work(sum(len(key) for key in left if key.__class__ is str) >> 6)
        if kind is list:
            return all(deep_equal(run, a, b, level + 1) for a, b in zip(left, right, strict=True))
        return all(key in right and deep_equal(run, value, right[key], level + 1) for key, value in left.items())
    if kind is str:
        run.charge_text(len(left))
    elif kind is Decimal:
        run.charge_work(_DECIMAL_OPERATION)
    return left == right


def _charge_comparison(run: Evaluation, left: int | Decimal, right: int | Decimal) -> None:
    """Charge for the comparison of an integer with a decimal."""
    run.charge_work(_DECIMAL_OPERATION)
    charge_conversion(run, left)
    charge_conversion(run, right)


def differs(run: Evaluation, left: Any, right: Any) -> bool:
    return not equals(run, left, right)


def contained(run: Evaluation, left: Any, right: Any) -> bool:
    """``left in right``: an element of a list, or a key of a map."""
    if right.__class__ is dict:
        if left.__class__ is not str:
            return False
        run.charge_work(len(left) >> 6)
        return left in right
    if right.__class__ is list:
        for item in right:
            run.charge(1)
            if deep_equal(run, left, item, 0):
                return True
        return False
    raise unsuitable_operands("the right side must be a list or a map")


def _ordering(compare: Callable[[Any, Any], bool]) -> Operator:
    def ordered(run: Evaluation, left: Any, right: Any) -> bool:
        check_order(run, left, right)
        return compare(left, right)

    return ordered


def check_order(run: Evaluation, left: Any, right: Any) -> None:
    """Raise if the values have no order, or are two numeric strings, for which "9.00" > "10.00" would hold."""
    if is_number(left) and is_number(right):
        if left.__class__ is not right.__class__:
            _charge_comparison(run, left, right)
        elif left.__class__ is Decimal:
            run.charge_work(_DECIMAL_OPERATION)
        return
    kind = left.__class__
    if kind is not right.__class__ or kind not in (str, bool, datetime, timedelta):
        raise unsuitable_operands(_DECIMAL_HELP if {str} < {kind, right.__class__} else "")
    if kind is str:
        run.charge_text(min(len(left), len(right)))
        if len(left) < 64 and len(right) < 64 and _DECIMAL_STRING.fullmatch(left) and _DECIMAL_STRING.fullmatch(right):
            raise unsuitable_operands(_DECIMAL_HELP)


OPERATORS: dict[str, Operator] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
    "==": equals,
    "!=": differs,
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
    "in": contained,
}


def operand_error_message(op: str, left: str, left_value: Any, right: str, right_value: Any, reason: str) -> str:
    """The message of an :class:`UnsuitableOperandsError`; ``left`` and ``right`` are the source of the operands."""
    both = f"'{op}' cannot take {_describe_operand(left, left_value)} and {_describe_operand(right, right_value)}"
    if reason == "?":
        strings = str in (left_value.__class__, right_value.__class__)
        reason = _DECIMAL_HELP if strings else ""
        if op == "+" and left_value.__class__ is right_value.__class__ is str:
            reason += ", or join([a, b], '') to concatenate strings"
    return f"{both}; {reason}" if reason else both


def _describe_operand(source: str, value: Any) -> str:
    return f"{source} ({type_name(value)})" if value is not None else f"{source} (which is null)"
