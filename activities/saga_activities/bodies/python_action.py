"""Runs a Python action: binds its arguments, calls it, and converts its result to JSON."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from pydantic_core import to_jsonable_python

from saga_activities.concurrency import uncancellable
from sagas.actions import Absent, Action, Done, Unknown
from sagas.actions.step import Step


class ActionNotRegistered(Exception):
    """The action is not registered on this worker; another worker may have it."""


class InvalidArguments(ValueError):
    """The arguments do not fit the action's signature."""


def bind_arguments(action: Action, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the function. Raises InvalidArguments."""
    try:
        return action.bind(arguments)
    except ValueError as error:
        raise InvalidArguments(str(error)) from None


async def run_python_action(action: Action, step: Step, arguments: Mapping[str, Any], threads: Executor) -> Any:
    """The action's result as JSON (or its probe answer). Plain functions run in a thread."""
    positional = () if action.signature.step is None else (step,)
    if action.asynchronous:
        result = await action.function(*positional, **arguments)
    else:
        call = functools.partial(contextvars.copy_context().run, action.function, *positional, **arguments)
        # A thread cannot be interrupted: if its attempt ended earlier, a compensation could start while it still runs.
        result = await uncancellable(asyncio.get_running_loop().run_in_executor(threads, call))
    return jsonable(result)


def jsonable(value: Any) -> Any:
    """``value`` as JSON: dataclasses and models as objects, decimals and times as strings. Probe answers are kept."""
    match value:
        case Done():
            return Done(jsonable(value.result))
        case Absent() | Unknown() | None | bool() | int() | str():
            return value
    return to_jsonable_python(value)
