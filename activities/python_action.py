"""Runs a Python action: binds its arguments, calls it, and makes its result JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from sagas.actions import Action
from sagas.probing import Absent, Done, Unknown
from sagas.step import Step


class BadArguments(ValueError):
    """The arguments do not fit the action's signature."""


def bind(action: Action, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the function. Raises BadArguments, one sentence."""
    try:
        return action.bind(arguments)
    except ValueError as error:
        raise BadArguments(str(error)) from None


async def run_action(action: Action, step: Step, bound: Mapping[str, Any]) -> Any:
    """The action's result as JSON (or its probe answer). Plain functions run in a thread."""
    positional = (step,) if action.takes_step else ()
    if action.asynchronous:
        result = await action.function(*positional, **bound)
    else:
        result = await asyncio.to_thread(action.function, *positional, **bound)
    return jsonable(result)


def jsonable(value: Any) -> Any:
    """``value`` as JSON: dataclasses and models as objects, decimals and times as strings. Probe answers stay."""
    match value:
        case Done():
            return Done(jsonable(value.result))
        case Absent() | Unknown() | None | bool() | int() | str():
            return value
    return to_jsonable_python(value)
