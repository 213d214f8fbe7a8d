"""Validates inputs against JSON Schema, in time and memory that neither the schema nor the input can make explode.

jsonschema does the work. Replaced are the keywords that stall it: regular expressions run in RE2 (linear time),
`uniqueItems` compares hashes instead of pairs; `multipleOf` computes exactly, with numbers of any size. Every keyword
that is applied to a value costs a step, so recursive references and repeated alternatives end too. Nothing is ever
fetched: a `$ref` leads to a part of the same schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Context, Decimal
from functools import lru_cache
from itertools import islice
from typing import Any

from sagas.errors import UsageError
from sagas.expressions.re2_pattern import compile_pattern

MAX_VALUES = 250_000
"""Values (elements, fields) of one input."""

MAX_STEPS = 1_000_000
"""Keywords that are applied to values in one validation."""

_ALTERNATIVES = 8
"""Steps of `anyOf` and `oneOf`, which collect the errors of all alternatives."""

_PATTERN_LENGTH = 10_000
_EXACT = Context(prec=10_000)
"""Has more digits than the quotient of any two numbers of JSON that the engine takes."""

_REFERENCES = ("$ref", "$dynamicRef")
_DATA_KEYWORDS = ("const", "enum", "default", "examples")

_steps: ContextVar[list[int]] = ContextVar("steps")


class TooComplex(UsageError):
    """The input is too large for the schema: make it smaller, or simplify the schema under `input`."""


def charge(steps: int = 1) -> None:
    """Count work of the current validation; raises TooComplex when it is too much."""
    counter = _steps.get(None)
    if counter is not None:
        counter[0] -= steps
        if counter[0] < 0:
            raise TooComplex


def canonical_schema(schema: Any) -> str:
    """The text of a schema, by which its validator is kept."""
    return json.dumps(schema, sort_keys=True)


def first_errors(canonical: str, value: Any, maximum: int) -> list[Any]:
    """At most ``maximum`` errors of a value. Raises TooComplex, or UsageError for a reference that leads nowhere.

    ``canonical``: the :func:`canonical_schema`.
    """
    from referencing.exceptions import Unresolvable

    validator = _validator(canonical)
    try:
        return list(islice(validator.iter_errors(value), maximum))
    except Unresolvable as error:
        raise UsageError(f"the schema of the input has no {error.ref}; correct its `$ref`") from None


@contextmanager
def bounded() -> Iterator[None]:
    """A context in which all validation counts as one."""
    token = _steps.set([MAX_STEPS])
    try:
        yield
    finally:
        _steps.reset(token)


@lru_cache(maxsize=64)
def _validator(canonical: str) -> Any:
    # Imported here: the import takes a tenth of a second, and most commands validate no input.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend
    from referencing import Registry

    own = {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
    own |= {"additionalProperties": _additional_properties, "enum": _enum_keyword(), "multipleOf": _multiple_of}
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    bounded_validator = extend(Draft202012Validator, {name: _charged(name, call) for name, call in keywords.items()})
    return bounded_validator(
        _without_dialects(json.loads(canonical)),
        format_checker=_format_checker(),
        registry=Registry(),
    )


def _format_checker() -> Any:
    """The formats of jsonschema, with regular expressions of RE2."""
    from jsonschema import Draft202012Validator, FormatChecker

    checker = FormatChecker(())
    checker.checkers = {**Draft202012Validator.FORMAT_CHECKER.checkers, "regex": (_is_pattern, ())}
    return checker


def _is_pattern(value: Any) -> bool:
    return not isinstance(value, str) or _pattern_problem(value) is None


def _without_dialects(schema: Any) -> Any:
    """The schema without `$schema`, by which jsonschema would choose a validator of its own for a part."""
    if isinstance(schema, list):
        return [_without_dialects(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _DATA_KEYWORDS else _without_dialects(value)
        for key, value in schema.items()
        if key != "$schema" or not isinstance(value, str)
    }


def _charged(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    quadratic = name.startswith("unevaluated")
    base = _ALTERNATIVES if name in ("anyOf", "oneOf") else 1

    def charged(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        size = len(instance) if isinstance(instance, dict | list) else 0
        charge(base + (size * size // 100 if quadratic else 0))
        return apply(validator, value, instance, schema)

    return charged


# Regular expressions


def matches_pattern(pattern: str, text: str) -> bool:
    """True if the pattern occurs in the text. Raises UsageError for a pattern that RE2 does not support."""
    try:
        compiled = compile_pattern(pattern)
    except ValueError as error:
        raise UsageError(f"the schema of the input has a pattern that RE2 does not support: {error}") from None
    charge(len(text) * compiled.programsize >> 11)
    try:
        return compiled.search(text) is not None
    except UnicodeEncodeError:
        return False


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not matches_pattern(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if matches_pattern(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [
        name
        for name in instance
        if name not in known and not any(matches_pattern(pattern, name) for pattern in patterns)
    ]
    if rest is False and extra:
        shown = ", ".join(repr(name) for name in extra[:10]) + (", …" if len(extra) > 10 else "")
        verb = "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({shown} {verb} unexpected)")
    elif isinstance(rest, Mapping):
        for name in extra:
            yield from validator.descend(instance[name], rest, path=name)


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not wanted or not isinstance(instance, list):
        return
    seen: set[str] = set()
    for item in instance:
        text = _comparable_text(item)
        if text in seen:
            yield ValidationError("a list that has non-unique elements")
            return
        seen.add(text)


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, bool) or not isinstance(instance, int | float):
        return
    if _EXACT.remainder(_decimal(instance), _decimal(divisor)):
        yield ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _decimal(number: float) -> Decimal:
    """The number as it is written: 0.01 is a hundredth, which no float is."""
    return Decimal(number if isinstance(number, int) else repr(number))


def _enum_keyword() -> Callable[..., Any]:
    """`enum` by lookup; the texts of each list are kept as long as the schema."""
    texts: dict[int, frozenset[str]] = {}

    def enum(validator: Any, listed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        from jsonschema import ValidationError

        if id(listed) not in texts:
            texts[id(listed)] = frozenset(map(_comparable_text, listed))
        if _comparable_text(instance) not in texts[id(listed)]:
            yield ValidationError(f"{instance!r} is not one of {listed!r}")

    return enum


def _comparable_text(value: Any) -> str:
    text = json.dumps(_comparable(value), sort_keys=True)
    charge(1 + len(text) // 256)
    return text


def _comparable(value: Any) -> Any:
    """The value with whole numbers as integers: 1.0 equals 1 in JSON Schema."""
    if isinstance(value, dict):
        return {key: _comparable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# What a schema may not use


def schema_problems(schema: Any) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    """The code, path and message of each part of a schema that the engine refuses."""
    parts = list(_parts(schema, ()))
    names = {part.get(key) for part, _ in parts for key in ("$anchor", "$dynamicAnchor", "$id") if key in part}
    nested_ids = any("$id" in part for part, path in parts if path)
    patterned = any("patternProperties" in part for part, _ in parts)
    for part, path in parts:
        for keyword in _REFERENCES:
            reference = part.get(keyword)
            if isinstance(reference, str) and not _is_local(reference, schema, names, nested_ids):
                yield "SAGA112", (*path, keyword), f"`{keyword}` leads to {reference[:80]}, which is not in this schema"
        patterns = part.get("patternProperties")
        written = [(("pattern",), part.get("pattern"))]
        written += [(("patternProperties", one), one) for one in patterns] if isinstance(patterns, dict) else []
        for place, pattern in written:
            if isinstance(pattern, str) and (reason := _pattern_problem(pattern)):
                code = "SAGA119" if _is_other_dialect(pattern) else "SAGA112"
                yield code, (*path, *place), f"RE2 does not read this pattern: {reason}"
        if "unevaluatedProperties" in part and patterned:
            message = "`unevaluatedProperties` in a schema with `patternProperties` is not supported"
            yield "SAGA119", (*path, "unevaluatedProperties"), message


def _parts(schema: Any, path: tuple[str | int, ...]) -> Iterator[tuple[dict[str, Any], tuple[str | int, ...]]]:
    if isinstance(schema, list):
        for at, one in enumerate(schema):
            yield from _parts(one, (*path, at))
    elif isinstance(schema, dict):
        yield schema, path
        for key, one in schema.items():
            if key not in _DATA_KEYWORDS or (path and path[-1] in ("properties", "$defs")):
                yield from _parts(one, (*path, key))


def _is_local(reference: str, schema: Any, names: set[Any], nested_ids: bool) -> bool:
    if not reference.startswith("#"):
        return reference in names
    if reference == "#" or reference[1:] in names or nested_ids:
        return True
    target = schema
    for part in reference[2:].split("/") if reference.startswith("#/") else ("",):
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and part.isdecimal() and int(part[:6]) < len(target):
            target = target[int(part[:6])]
        elif isinstance(target, dict) and part in target:
            target = target[part]
        else:
            return False
    return True


def _is_other_dialect(pattern: str) -> bool:
    """True for a pattern that engines with backtracking read."""
    try:
        re.compile(pattern[:_PATTERN_LENGTH])
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _pattern_problem(pattern: str) -> str | None:
    if len(pattern) > _PATTERN_LENGTH:
        return f"it has more than {_PATTERN_LENGTH:,} characters"
    try:
        compile_pattern(pattern)
    except ValueError as error:
        return str(error)
    return None
