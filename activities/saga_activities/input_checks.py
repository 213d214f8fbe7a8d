"""Checks inputs that may take a second each, without delaying anything else of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sagas.definition.input_validation import invalid_input, validate_input
from sagas.definition.model import Definition
from sagas.definition.schema_patterns import MAX_STEPS, TooComplex, bounded
from sagas.errors import UsageError

_QUICK_STEPS = 2_000
"""Of a check that is made at once; it takes about ten milliseconds."""

_Checked = TypeVar("_Checked")

_thread = ThreadPoolExecutor(1, "input checks")
"""One for the process: costly inputs wait for each other, and nothing else waits for them."""


async def check(call: Callable[[], _Checked], steps: int = MAX_STEPS) -> _Checked:
    """Return what the call returns, which validates inputs: at once if that is quick, else in turn with other ones.

    Raises TooComplex after this many steps of validation, and what the call raises.
    """

    def bounded_call(most: int) -> _Checked:
        with bounded(most):
            return call()

    try:
        return bounded_call(min(steps, _QUICK_STEPS))
    except TooComplex:
        return await asyncio.get_running_loop().run_in_executor(_thread, bounded_call, steps)


async def check_inputs(definition: Definition, inputs: Sequence[Any]) -> list[Any]:
    """The normalised inputs of sagas that start together, and share the steps of one.

    Raises UsageError about the first input that is not valid, or at which the steps are used up.
    """
    number = 0

    def validated() -> list[Any]:
        nonlocal number
        values: list[Any] = []
        for number, input in enumerate(inputs, 1):
            value, problems = validate_input(definition, input)
            if problems:
                raise UsageError(_which(number, inputs) + invalid_input(definition.saga, problems))
            values.append(value)
        return values

    try:
        return await check(validated)
    except TooComplex as error:
        problem = f"input: {error.message}"
        raise UsageError(_which(number, inputs) + invalid_input(definition.saga, [problem])) from None


def _which(number: int, inputs: Sequence[Any]) -> str:
    return f"saga {number} of {len(inputs)}: " if len(inputs) > 1 else ""
