"""The budget of a process for checking the inputs of all callers.

A check that is quick is made at once. A costly one has a thread, so it delays no event loop; all threads together use
half a core, in portions of a millisecond, so that the rest of the process goes on; and the inputs of one caller are
checked one after the other, so that a caller delays itself first.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from saga_activities.input_limits import MAX_CHECKED_CALLERS, MAX_WAITING_CHECKS, QUICK_CHECK_BYTES, QUICK_CHECK_STEPS
from sagas.definition.input_validation import invalid_input, is_normalised, validate_input
from sagas.definition.model import Definition
from sagas.errors import UsageError
from sagas.expressions.work_budget import TooComplex, WorkBudget, bounded
from sagas.input_limits import MAX_CHECK_STEPS
from sagas.text.work_portions import resting

_LONGEST_REST = 0.05
"""Seconds of one rest; a part of a check that counts no steps may have taken longer."""

_HANDOVER = 0.0001
"""Seconds in which another thread takes its turn."""

_Checked = TypeVar("_Checked")


@dataclass(slots=True)
class _CallerTurn:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    """Inputs that wait or are checked."""


class _Pace:
    """Schedules one check in its thread: the threads work one at a time, and each rests as long as it has worked."""

    _working = threading.Lock()

    def __enter__(self) -> _Pace:
        self._working.acquire()
        self._began = time.perf_counter()
        return self

    def rest(self) -> None:
        """Let other threads of the process go on, and then another check."""
        time.sleep(min(time.perf_counter() - self._began, _LONGEST_REST))
        self._working.release()
        time.sleep(_HANDOVER)
        self._working.acquire()
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._working.release()


class InputChecks:
    """The checks of one process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CHECKED_CALLERS, "input checks")
        self._callers: dict[Hashable, _CallerTurn] = {}

    def is_busy(self, caller: Hashable) -> bool:
        """True if so many inputs of this caller wait that a further one should be sent again later."""
        caller_turn = self._callers.get(caller)
        return caller_turn is not None and caller_turn.waiting > MAX_WAITING_CHECKS

    async def run(
        self,
        call: Callable[[], _Checked],
        *,
        caller: Hashable,
        size: int = 0,
        steps: int = MAX_CHECK_STEPS,
        aside: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
    ) -> _Checked:
        """Return the result of a call that checks an input of ``caller``: at once if that is quick, else in turn.

        ``size``: bytes that the call reads first. ``aside``: entered while a costly check waits and runs.

        Raises TooComplex after this many steps, and what the call raises. The call is made again from its beginning if
        it turns out to be costly.
        """
        if size <= QUICK_CHECK_BYTES:
            quick = WorkBudget(min(steps, QUICK_CHECK_STEPS))
            try:
                with bounded(quick):
                    result = call()
                if not quick.is_spent:
                    return result
            except Exception:
                if not quick.is_spent:
                    raise
        async with aside():
            return await self._in_turn(call, caller, steps)

    async def _in_turn(self, call: Callable[[], _Checked], caller: Hashable, steps: int) -> _Checked:
        async with self.turn(caller):
            pace = _Pace()
            budget = WorkBudget(steps, pace.rest)
            try:
                work = partial(_paced, pace, budget, call)
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
            except asyncio.CancelledError:
                budget.give_up()  # a thread cannot be cancelled, but the check ends with its next step
                raise

    @asynccontextmanager
    async def turn(self, name: Hashable) -> AsyncIterator[None]:
        """The turn of a caller, after those that have waited for one before."""
        caller = self._callers.setdefault(name, _CallerTurn())
        caller.waiting += 1
        try:
            async with caller.turn:
                yield
        finally:
            caller.waiting -= 1
            if not caller.waiting:
                self._callers.pop(name, None)


def _paced(pace: _Pace, budget: WorkBudget, call: Callable[[], _Checked]) -> _Checked:
    with pace, bounded(budget), resting(pace.rest):
        return call()


INPUT_CHECKS = InputChecks()
"""The checks of this process."""


async def checked_input(definition: Definition, input: Any) -> Any:
    """The normalised input. Raises UsageError if it is not valid."""
    value, problems, _ = await _validated(definition, input, MAX_CHECK_STEPS)
    if problems:
        raise UsageError(invalid_input(definition.saga, problems))
    return value


@dataclass(frozen=True, slots=True)
class CheckedInputs:
    """Inputs of sagas that start together, by the ids of their sagas.

    ``refused``: why some are refused. ``completed``: the normalised form of those that were sent in another one.
    """

    refused: Mapping[str, str]
    completed: Mapping[str, Any]


async def check_together(definition: Definition, inputs: Mapping[str, Any]) -> CheckedInputs:
    """Check inputs of sagas that start together, by the ids of their sagas.

    All inputs share the steps of one. A quarter of the steps is kept for all in equal parts, so that only the input
    that uses up the rest is refused.
    """
    refused: dict[str, str] = {}
    completed: dict[str, Any] = {}
    remaining_steps = MAX_CHECK_STEPS
    kept = MAX_CHECK_STEPS // 4 // max(len(inputs), 1)
    for number, (id, input) in enumerate(inputs.items(), 1):
        most = remaining_steps - kept * (len(inputs) - number)
        value, problems, used = await _validated(definition, input, most)
        remaining_steps -= used
        if problems:
            refused[id] = invalid_input(definition.saga, problems)
        elif not is_normalised(input, value):
            completed[id] = value
    return CheckedInputs(refused, completed)


async def _validated(definition: Definition, input: Any, steps: int) -> tuple[Any, list[str], int]:
    """The normalised input, its problems, and the steps taken, at most ``steps``."""

    def check() -> tuple[Any, list[str], int]:
        with bounded() as budget:
            before = budget.remaining
            value, problems = validate_input(definition, input)
            return value, problems, before - budget.remaining

    try:
        return await INPUT_CHECKS.run(check, caller=definition.saga, steps=steps)
    except TooComplex as error:
        alone = "" if steps == MAX_CHECK_STEPS else ", or start it on its own"
        return input, [f"input: {error.message}{alone}"], steps
