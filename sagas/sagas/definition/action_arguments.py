"""Binds the arguments of a Python action: JSON values, checked against the types that its signature declares.

A value fits if it is valid for the JSON Schema of its parameter; only then pydantic makes the Python value of it.
Nothing is converted on the way that JSON tells apart: text is not a number, and neither is `true`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from sagas.actions.registry import Action, result_schema
from sagas.actions.signature import Parameter
from sagas.definition.input_completion import with_integers
from sagas.definition.schema_messages import closest_error, describe_types, sentence
from sagas.definition.schema_validation import canonical_schema, compile_schema
from sagas.errors import UsageError
from sagas.expressions.work_budget import bounded
from sagas.text.exact_numbers import exact_value, has_whole_decimal

_PLAIN = {"string": str, "integer": int, "boolean": bool}
"""Types of values that need no validator: bulk workflows bind hundreds of thousands of them."""

CONVERSIONS = {"integer": "int(…)", "number": "decimal(…)", "boolean": "bool(…)", "string": "string(…)"}
"""The function of expressions that makes a value of each type."""


def bind(action: Action, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the action's function, in the annotated types.

    Raises ValueError when an argument is missing, unknown, given twice or of the wrong type.
    """
    signature = action.signature
    for parameter in signature.twice(arguments):
        raise ValueError(
            f"{action.name}: {parameter.name!r} and {parameter.variable!r} name the same argument; give only one"
        )
    bound = {}
    for name, value in arguments.items():
        parameter = signature.find(name)
        if parameter is None:
            takes = ", ".join(each.name for each in signature.parameters) or "none"
            raise ValueError(f"{action.name} takes no argument {name!r}; it takes {takes}")
        try:
            bound[signature.variable(name)] = _convert(parameter, name, value)
        except _WrongValue as error:
            raise ValueError(f"{action.name}: argument {error}") from None
    for parameter in signature.missing(arguments):
        raise ValueError(f"{action.name} needs the argument {parameter.name!r}")
    return bound


def argument_problem(action: Action, name: str, value: Any) -> str | None:
    """Why the action does not take this value of one of its arguments, beginning with its name; None if it does."""
    parameter = action.signature.find(name)
    if parameter is None:
        return f"{name}: there is none"
    try:
        _convert(parameter, name, value)
    except _WrongValue as error:
        return str(error)
    return None


def returned_problem(action: Action, result: Any) -> str | None:
    """Why the action cannot have returned this result; None if it can, or has no return annotation to compare with."""
    if (schema := result_schema(action)) is None:
        return None
    compiled = compile_schema(canonical_schema(schema))
    try:
        with bounded():
            errors = compiled.first_errors(exact_value(result), 1)
    except RecursionError:
        return "the result is nested too deeply for the return annotation"
    if not errors:
        return None
    error = closest_error(errors[0])
    return f"{_place('result', error.absolute_path)}: {sentence(error, mask_value=True)}"


class _WrongValue(Exception):
    """An argument has another type than its annotation; the message begins with the path of the value in it."""


def _convert(parameter: Parameter, name: str, value: Any) -> Any:
    """The value of the argument ``name`` in the annotated type. Raises _WrongValue."""
    from pydantic import ValidationError

    schema = parameter.schema
    if schema and not (schema.keys() == {"type"} and type(value) is _PLAIN.get(schema["type"])):
        value = _checked(parameter, name, exact_value(value))
    try:
        return parameter.adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]
        message = f"{problem['msg'][:1].lower()}{problem['msg'][1:]}"
        raise _WrongValue(f"{_place(name, problem['loc'])}: {message}") from None
    except (TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise _WrongValue(
            f"{name}: a validator of its type raised {type(error).__name__}; it must raise ValueError for a value that"
            " does not fit"
        ) from error


def _checked(parameter: Parameter, name: str, value: Any) -> Any:
    """The value with integers where the schema says `integer`. Raises _WrongValue."""
    compiled = compile_schema(parameter.schema_text)
    try:
        with bounded():
            errors = compiled.first_errors(value, 1)
            if not errors:
                adapt = compiled.has_integers and has_whole_decimal(value)
                return with_integers(compiled, copy.deepcopy(value)) if adapt else value
    except RecursionError:
        raise _WrongValue(f"{name} is nested too deeply for the type of the parameter") from None
    except UsageError as error:
        raise _WrongValue(f"{name} cannot be checked against the type of the parameter: {error.message}") from None
    error = closest_error(errors[0])
    # The value may be a secret of the input, and the message is shown with the saga.
    message, place = sentence(error, mask_value=True), _place(name, error.absolute_path)
    hint = ""
    if isinstance(error.instance, str) and error.validator == "type" and error.validator_value in CONVERSIONS:
        message = f"is text, and the parameter is {describe_types(error.validator_value)}"
        hint = f"; convert it with {CONVERSIONS[error.validator_value]}, or pass it without quotes"
    joint = " " if message.startswith(("needs", "has", "is")) else ": "
    raise _WrongValue(f"{place}{joint}{message}{hint}")


def _place(name: str, path: Iterable[Any]) -> str:
    return name + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
