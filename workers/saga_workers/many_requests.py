"""Requests to many sagas, made concurrently and independently of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from temporalio.service import RPCError

from saga_workers.temporal.temporal_runs import NoAnswer
from sagas.errors import SagaError

AT_ONCE = 100
"""Maximum number of open requests. One that no worker answers takes seconds."""

_T = TypeVar("_T")
_R = TypeVar("_R")


async def ask_each(
    targets: Iterable[_T], ask: Callable[[_T], Awaitable[_R]], *, saga_of: Callable[[_T], str] = str
) -> list[_R | SagaError]:
    """The responses in the order of the targets; a failed request is represented by its error.

    Targets of one saga are handled one after the other, because Temporal limits a run to ten updates in flight. If no
    worker answers the first one, the others are not attempted.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    turns: dict[str, asyncio.Lock] = {}
    silent: dict[str, NoAnswer] = {}

    async def attempt(target: _T) -> _R | SagaError:
        saga_id = saga_of(target)
        async with turns.setdefault(saga_id, asyncio.Lock()), gate:
            if saga_id in silent:
                return silent[saga_id]
            try:
                return await ask(target)
            except NoAnswer as error:
                silent[saga_id] = error
                return error
            except SagaError as error:
                return error
            except RPCError as error:
                return SagaError(f"the Temporal server refused the request: {error.message}", help="saga doctor")

    return list(await asyncio.gather(*(attempt(target) for target in targets)))


def worst_code(answers: Sequence[object]) -> int:
    """The highest exit code among the errors; 0 if there is none."""
    return max((answer.exit_code for answer in answers if isinstance(answer, SagaError)), default=0)
