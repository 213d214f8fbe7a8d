"""One question to many sagas: each is asked, whatever becomes of the others, and some of them at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from temporalio.service import RPCError

from saga_workers.steering import NoAnswer
from sagas.errors import SagaError

AT_ONCE = 100
"""Questions that are open at the same time. One that no worker answers takes seconds."""

T = TypeVar("T")
R = TypeVar("R")


async def ask_each(
    targets: Iterable[T], ask: Callable[[T], Awaitable[R]], *, saga_of: Callable[[T], str] = str
) -> list[R | SagaError]:
    """The answers in the order of the targets; where there is none, the error that says why.

    Several targets of one saga are asked one after the other: Temporal takes ten updates of a run at a time. When no
    worker answers the first, the others are not tried.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    turns: dict[str, asyncio.Lock] = {}
    silent: dict[str, NoAnswer] = {}

    async def one(target: T) -> R | SagaError:
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
                return SagaError(f"the Temporal server did not do it: {error.message}", help="saga doctor")

    return list(await asyncio.gather(*(one(target) for target in targets)))


def worst_code(answers: Sequence[object]) -> int:
    """The exit code for all of them: the highest one of their errors, 0 when there is none."""
    return max((answer.exit_code for answer in answers if isinstance(answer, SagaError)), default=0)
