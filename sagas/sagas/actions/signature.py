"""The signature of a Python action: the arguments that it takes under `with`."""

from __future__ import annotations

import inspect
import keyword
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints

from sagas.actions.envelope import ENVELOPE
from sagas.actions.step import Step
from sagas.actions.type_schemas import argument_schema, type_adapter
from sagas.errors import UsageError
from sagas.text.exact_json import canonical_json
from sagas.text.printable import printable_line

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def function_place(function: Callable[..., Any]) -> str | None:
    """A function and its file, for messages: ``the function charge in payments.py``; None if it has no code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"the function {code.co_name} in {Path(code.co_filename).name}"


@dataclass(frozen=True)
class Parameter:
    """One argument of an action. ``annotation`` is a Python type; ``schema`` the JSON Schema of its values.

    ``name`` is used in definitions (``from``), ``variable`` in Python (``from_``). ``place`` names the function and its
    file.
    """

    name: str
    variable: str
    required: bool
    annotation: Any
    default: Any = None
    place: str = "an action"

    @cached_property
    def adapter(self) -> Any:
        """The pydantic adapter that turns a JSON value into the annotated type. Raises UsageError if there is none."""
        try:
            return type_adapter(self.annotation)
        except Exception as error:  # also what the code of the annotated class raises
            raise self._refused(error) from error

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema 2020-12 of the argument's values; empty when it accepts any value. Raises UsageError."""
        if self.annotation is Any:
            return {}
        adapter = self.adapter
        try:
            return argument_schema(self.annotation, adapter)
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> UsageError:
        where = f"{self.place}: the annotation of the parameter {self.variable}"
        if "typing_extensions.TypedDict" in str(error):
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            return UsageError(
                f"{where} has a TypedDict from typing, which Python {version} does not fully describe",
                help="write `from typing_extensions import TypedDict`, or run Python 3.12 or later",
            )
        # pydantic goes on with advice for authors of models.
        described = str(getattr(error, "message", "")) or f"{type(error).__name__}: {error}"
        message = printable_line(" ".join(re.split(r"\. Set |\n\n", described)[0].split())).rstrip(".")
        return UsageError(
            f"{where} has no JSON Schema: {message}",
            help="annotate it with a type of JSON values (a number, str, a list, a dataclass, a TypedDict, a pydantic"
            " model), or with Any for values that are not checked",
        )

    @cached_property
    def schema_text(self) -> str:
        """The canonical text of the schema, by which its validator is kept."""
        return canonical_json(self.schema)


@dataclass(frozen=True)
class Signature:
    """The arguments of an action. ``other_arguments`` describes all that ``**kwargs`` receives; None without it.

    ``step`` is the name of the leading parameter that receives the :class:`Step`; None without one.
    ``unusable`` are names that ``**kwargs`` cannot receive.
    """

    parameters: tuple[Parameter, ...]
    other_arguments: Parameter | None
    step: str | None
    unusable: frozenset[str]

    @cached_property
    def _known(self) -> dict[str, Parameter]:
        spelled = {parameter.variable: parameter for parameter in self.parameters}
        return {**spelled, **{parameter.name: parameter for parameter in self.parameters}}

    def find(self, name: str) -> Parameter | None:
        """The parameter for the argument ``name`` of a definition; None when there is none."""
        parameter = self._known.get(name)
        return parameter if parameter is not None or name in self.unusable else self.other_arguments

    def variable(self, name: str) -> str:
        """The Python name of the parameter that receives the argument ``name``."""
        parameter = self._known.get(name)
        return name if parameter is None else parameter.variable

    def twice(self, arguments: Mapping[str, Any]) -> Iterator[Parameter]:
        """The parameters that are given under both of their names."""
        for parameter in self.parameters:
            if parameter.name != parameter.variable and parameter.name in arguments and parameter.variable in arguments:
                yield parameter

    def missing(self, arguments: Mapping[str, Any]) -> Iterator[Parameter]:
        """The required parameters that are not given."""
        for parameter in self.parameters:
            if parameter.required and parameter.name not in arguments and parameter.variable not in arguments:
                yield parameter


ANY_ARGUMENTS = Signature((), Parameter("arguments", "arguments", False, Any), "step", frozenset({ENVELOPE}))
"""The signature of a batch action, whose items have whatever arguments the definition gives."""


def without_a_name(function: Callable[..., Any]) -> inspect.Parameter | None:
    """The first parameter that a definition cannot pass, because it is positional-only or ``*args``; None if none."""
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        leading = position == 0 and parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if parameter.kind in _BY_POSITION and not (leading and _is_step(parameter, parameter.annotation)):
            return parameter
    return None


def read_signature(function: Callable[..., Any]) -> Signature:
    """Read the signature of an action's function. Raises UsageError when an annotation cannot be resolved."""
    place = function_place(function) or "an action"
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # an annotation is an expression, and may raise anything
        raise UsageError(
            f"{place}: an annotation cannot be resolved: {printable_line(f'{type(error).__name__}: {error}')}",
            help="import its name at the level of the module, not under `if TYPE_CHECKING`",
        ) from error
    parameters: list[Parameter] = []
    other_arguments, step, unusable = None, None, {ENVELOPE}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        hint = hints.get(parameter.name, Any)
        if position == 0 and parameter.kind is not inspect.Parameter.VAR_KEYWORD and _is_step(parameter, hint):
            step = parameter.name
            if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
                unusable.add(step)
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            required = parameter.default is inspect.Parameter.empty
            default = None if required else parameter.default
            name = _in_definitions(parameter.name)
            parameters.append(Parameter(name, parameter.name, required, hint, default, place))
        elif getattr(get_origin(hint), "_name", None) == "Unpack":
            parameters += _keys(get_args(hint)[0], place)
        else:
            other_arguments = Parameter(parameter.name, parameter.name, False, hint, place=place)
    return Signature(tuple(parameters), other_arguments, step, frozenset(unusable))


def _is_step(parameter: inspect.Parameter, hint: Any) -> bool:
    return parameter.name == "step" or hint == "Step" or (isinstance(hint, type) and issubclass(hint, Step))


def _in_definitions(variable: str) -> str:
    """``from`` for ``from_``: a Python keyword is an ordinary name in YAML (PEP 8 adds the underscore)."""
    name = variable.removesuffix("_")
    return name if keyword.iskeyword(name) else variable


def _keys(typed: Any, place: str) -> Iterator[Parameter]:
    """The keys of a TypedDict: ``**values: Unpack[Values]`` names each argument (PEP 692)."""
    for name, hint in get_type_hints(typed, include_extras=True).items():
        required = name in typed.__required_keys__
        if get_origin(hint) in (Required, NotRequired):
            required, hint = get_origin(hint) is Required, get_args(hint)[0]
        yield Parameter(name, name, required, hint, place=place)
