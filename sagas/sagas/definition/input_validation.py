"""Validates the input of a saga, and completes it. Every way of starting a saga does it here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagas.definition.input_completion import fill_in_defaults, with_integers
from sagas.definition.model import Definition
from sagas.definition.schema_messages import closest_error, sentence
from sagas.definition.schema_validation import canonical_schema, compile_schema
from sagas.definition.sensitivity import has_sensitive_names, is_sensitive
from sagas.errors import UsageError
from sagas.expressions import ANY_ELEMENT
from sagas.expressions.work_budget import TooComplex, bounded, current_budget
from sagas.input_limits import MAX_INPUT_VALUES
from sagas.text.exact_json import canonical_json, with_json_names
from sagas.text.exact_numbers import exact_value, has_whole_decimal
from sagas.text.json_values import json_copy, json_problem

MAX_ERRORS = 20

_VALUES_PER_STEP = 8
"""Values of an input that are read in the time of a step, before the schema is applied to them."""


def validate_input(definition: Definition, input: Any) -> tuple[Any, list[str]]:
    """The normalised input, and a message per mistake (empty: it is valid). Every way of starting a saga uses it.

    None counts as `{}`. Defaults are filled in, and 12.0 becomes 12 where the schema says `integer`: ids, labels,
    arguments, outputs and digests see the result. A ``float``, which Python code may pass, is the decimal that it
    prints, and a key that is not a text has the name that it gets in JSON.

    Within :func:`bounded` all inputs share its steps, and TooComplex is raised when they are used up.
    """
    schema = definition.input
    try:
        with bounded() as budget:
            most = min(MAX_INPUT_VALUES, _VALUES_PER_STEP * max(budget.remaining, 0))
            if problem := json_problem(input, max_values=most):
                if most < MAX_INPUT_VALUES:  # perhaps only because few steps are left
                    budget.give_up()
                    raise TooComplex
                return input, [f"input: {problem}"]
            value = {} if input is None else exact_value(with_json_names(input))
            if schema == {}:
                return value, []
            compiled = compile_schema(canonical_schema(schema))
            if compiled.has_defaults:  # else there is nothing to fill in, and copying takes a third of the time
                value = fill_in_defaults(compiled, json_copy(value))
            errors = compiled.first_errors(value, MAX_ERRORS + 1)
            if not errors and compiled.has_integers and has_whole_decimal(value):
                value = with_integers(compiled, value if compiled.has_defaults else json_copy(value))
    except RecursionError:
        return input, ["input: the schema contains itself without end; correct its `$ref`"]
    except UsageError as error:
        if isinstance(error, TooComplex) and current_budget() is not None:
            raise
        return input, [f"input: {error.message}"]
    except ArithmeticError:
        return input, ["input: a number cannot be checked against the schema; correct the numbers in the schema"]
    errors.sort(key=lambda error: [str(part) for part in error.absolute_path])
    messages = [error_message(error, schema) for error in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        messages.append("and more errors")
    return value, messages


def is_normalised(input: Any, value: Any) -> bool:
    """True if an input is already what :func:`validate_input` makes of it: ``value``."""
    return value is input or canonical_json(value) == canonical_json(input)


_MAX_LISTED = 3


def invalid_input(saga: str, problems: Sequence[str]) -> str:
    """The sentence about an input with these mistakes; it has the first of them."""
    more = f" (and {len(problems) - _MAX_LISTED} more)" if len(problems) > _MAX_LISTED else ""
    return f"the input of {saga} is not valid: {'; '.join(problems[:_MAX_LISTED])}{more}"


def error_message(error: Any, schema: Any) -> str:
    """The sentence about one error, which begins with its place in the input."""
    error = closest_error(error)
    location, path = "input", ()
    for part in error.absolute_path:
        if isinstance(part, int):
            location, path = f"{location}[{part}]", (*path, ANY_ELEMENT)
        else:
            sensitive = has_sensitive_names(schema, path)
            location, path = f"{location}.{'…' if sensitive else part}", (*path, part)
    message = sentence(error, mask_value=is_sensitive(schema, path), mask_names=has_sensitive_names(schema, path))
    return f"{location} {message}" if message.startswith(("needs", "has")) else f"{location}: {message}"
