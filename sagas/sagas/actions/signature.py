"""The signature of a Python action: the arguments that it takes under `with`."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints

from sagas.actions.step import Step
from sagas.actions.type_schemas import type_schema
from sagas.text.exact_json import canonical_json

ENVELOPE = "_saga"
"""The argument, next to those of ``with``, that carries the call's envelope to every participant."""

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def function_place(function: Callable[..., Any]) -> str | None:
    """A function and its file, for messages: ``the function charge in payments.py``; None if it has no code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"the function {code.co_name} in {Path(code.co_filename).name}"


@dataclass(frozen=True)
class Parameter:
    """One argument of an action. ``annotation`` is a Python type; ``schema`` the JSON Schema of its values.

    ``name`` is used in definitions (``from``), ``variable`` in Python (``from_``).
    """

    name: str
    variable: str
    required: bool
    annotation: Any
    default: Any = None

    @cached_property
    def adapter(self) -> Any:
        """The pydantic adapter that turns a JSON value into the annotated type."""
        from pydantic import TypeAdapter

        return TypeAdapter(self.annotation)

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema 2020-12 of the argument's values; empty when it accepts any value."""
        if self.annotation is Any:
            return {}
        return type_schema(self.adapter, "validation")

    @cached_property
    def schema_text(self) -> str:
        """The canonical text of the schema, by which its validator is kept."""
        return canonical_json(self.schema)


@dataclass(frozen=True)
class Signature:
    """The arguments of an action. ``rest`` describes every argument that ``**kwargs`` receives; None without it.

    ``step`` is the name of the leading parameter that receives the :class:`Step`; None without one.
    ``unusable`` are names that ``**kwargs`` cannot receive.
    """

    parameters: tuple[Parameter, ...]
    rest: Parameter | None
    step: str | None
    unusable: frozenset[str]

    @cached_property
    def _known(self) -> dict[str, Parameter]:
        spelled = {parameter.variable: parameter for parameter in self.parameters}
        return {**spelled, **{parameter.name: parameter for parameter in self.parameters}}

    def find(self, name: str) -> Parameter | None:
        """The parameter for the argument ``name`` of a definition; None when there is none."""
        parameter = self._known.get(name)
        return parameter if parameter is not None or name in self.unusable else self.rest

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
    """Read the signature of an action's function. Raises NameError when an annotation cannot be resolved."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[Parameter] = []
    rest, step, unusable = None, None, {ENVELOPE}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        hint = hints.get(parameter.name, Any)
        if position == 0 and parameter.kind is not inspect.Parameter.VAR_KEYWORD and _is_step(parameter, hint):
            step = parameter.name
            if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
                unusable.add(step)
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            required = parameter.default is inspect.Parameter.empty
            default = None if required else parameter.default
            parameters.append(Parameter(_in_definitions(parameter.name), parameter.name, required, hint, default))
        elif getattr(get_origin(hint), "_name", None) == "Unpack":
            parameters += _keys(get_args(hint)[0])
        else:
            rest = Parameter(parameter.name, parameter.name, False, hint)
    return Signature(tuple(parameters), rest, step, frozenset(unusable))


def _is_step(parameter: inspect.Parameter, hint: Any) -> bool:
    return parameter.name == "step" or hint == "Step" or (isinstance(hint, type) and issubclass(hint, Step))


def _in_definitions(variable: str) -> str:
    """``from`` for ``from_``: a Python keyword is an ordinary name in YAML (PEP 8 adds the underscore)."""
    name = variable.removesuffix("_")
    return name if keyword.iskeyword(name) else variable


def _keys(typed: Any) -> Iterator[Parameter]:
    """The keys of a TypedDict: ``**values: Unpack[Values]`` names each argument (PEP 692)."""
    for name, hint in get_type_hints(typed, include_extras=True).items():
        required = name in typed.__required_keys__
        if get_origin(hint) in (Required, NotRequired):
            required, hint = get_origin(hint) is Required, get_args(hint)[0]
        yield Parameter(name, name, required, hint)
