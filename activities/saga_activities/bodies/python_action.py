"""Runs a Python action: binds its arguments, calls it, and converts its result to JSON."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ContextDecorator
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from saga_activities.concurrency import uncancellable
from saga_activities.json_results import UnusableResult, json_number, require_names, to_json_value
from sagas.actions.registry import Absent, Action, Done, Unknown
from sagas.actions.step import Step
from sagas.definition.action_arguments import bind
from sagas.input_limits import MAX_JSON_DEPTH
from sagas.text.author_errors import make_ordinary
from sagas.text.author_values import text_of


class ActionNotRegistered(Exception):
    """The action is not registered on this worker; another worker may have it."""


class InvalidArguments(ValueError):
    """The arguments do not fit the action's signature."""


def bind_arguments(action: Action, arguments: Mapping[str, Any], step: str) -> dict[str, Any]:
    """The keyword arguments of the function, for ``step``. Raises InvalidArguments."""
    try:
        with ordinary_errors():  # a validator is the author's code
            return bind(action, arguments)
    except ValueError as error:
        raise InvalidArguments(f"step {step}: {error}") from None


async def run_python_action(action: Action, step: Step, arguments: Mapping[str, Any], threads: Executor) -> Any:
    """The action's result as JSON (or its probe answer). Plain functions run in a thread."""
    positional = () if action.signature.step is None else (step,)
    if action.asynchronous:
        with ordinary_errors():
            result = await action.function(*positional, **arguments)
    else:
        function = ordinary_errors()(action.function)
        call = functools.partial(contextvars.copy_context().run, function, *positional, **arguments)
        # A thread cannot be interrupted: if its attempt ended earlier, a compensation could start while it still runs.
        result = await uncancellable(asyncio.get_running_loop().run_in_executor(threads, call))
    return jsonable(result)


class CodeExited(Exception):
    """An author's code has raised an exception that ends a process or an iteration."""


class ordinary_errors(ContextDecorator):
    """Turns what an author's code raises into an ordinary error, also SystemExit and its like. Raises CodeExited."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # No future can hold a StopIteration.
        is_ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration)
        if error is None or isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return
        if is_ordinary:
            make_ordinary(error)
            return
        name, text = type(error).__name__, text_of(error)
        words = f"{name}: {text}" if text else name
        exited = CodeExited(f"the code raised {words}; return, or raise an exception of another class")
        raise exited.with_traceback(trace) from None


def jsonable(value: Any) -> Any:
    """``value`` as JSON: dataclasses and models as objects, exact numbers, times as strings. Probe answers are kept.

    ``Done``, ``Absent`` and ``Unknown`` without parentheses are these classes, and mean an answer of theirs.
    Raises UnusableResult for bytes, a number that JSON does not have, and what is not data.
    """
    if value is Done or value is Absent or value is Unknown:
        return value()
    match value:
        case Done():
            return Done(jsonable(value.result))
        case Absent() | Unknown() | None | bool() | str():
            return value
    try:
        with ordinary_errors():  # an iterator and a serializer are the author's code
            return to_json_value(_with_exact_numbers(value))
    except PydanticSerializationError as error:
        raise UnusableResult(f"the result cannot be written as JSON, so return text instead: {error}") from error
    except RecursionError:
        raise UnusableResult(f"a result must not be nested deeper than {MAX_JSON_DEPTH} levels") from None


def _with_exact_numbers(value: Any) -> Any:
    """``value`` as pydantic writes it, but for numbers: it would write a decimal as a string."""
    match value:
        case Enum():
            return _with_exact_numbers(value.value)
        case None | bool() | str():
            return value
        case int() | float() | Decimal() | timedelta() | bytes() | bytearray() | memoryview():
            return value
        case Mapping():
            require_names(value.keys(), _key)
            return {_key(key): _with_exact_numbers(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() | deque() | Iterator():
            return [_with_exact_numbers(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not hasattr(value, "__pydantic_serializer__"):
            fields = dataclasses.fields(value)
            return {field.name: _with_exact_numbers(getattr(value, field.name)) for field in fields}
    elif not isinstance(value, BaseModel):
        return to_jsonable_python(value)
    serializer: Any = getattr(type(value), "__pydantic_serializer__")  # noqa: B009, of a model or pydantic's dataclass
    return _numbers_of(serializer.to_python(value), serializer.to_python(value, mode="json"))


def _numbers_of(native: Any, written: Any) -> Any:
    """``written``, a model as JSON, with the numbers of ``native``, the same model with Python's own values."""
    match native, written:
        case (Decimal(), str()) if str(native) == written:
            return native
        case dict(), dict():
            require_names(native.keys(), _key)
            if len(native) != len(written):
                return written
            return {
                key: _numbers_of(own, item) for own, (key, item) in zip(native.values(), written.items(), strict=True)
            }
        case ((list() | tuple() | set() | frozenset() | deque()), list()) if len(native) == len(written):
            return [_numbers_of(own, item) for own, item in zip(native, written, strict=True)]
    return written


def _key(key: Any) -> str:
    if isinstance(key, int):
        json_number(key)  # has a limit of its own, where Python raises an error in its own words
    return key if type(key) is str else next(iter(to_jsonable_python({key: None})))
