"""The event loop of a command, which may end while an answer of Temporal is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def run_command(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine as :func:`asyncio.run` does."""
    with asyncio.Runner(loop_factory=_CommandLoop) as runner:
        return runner.run(work)


class _CommandLoop(asyncio.SelectorEventLoop):
    """Ignores what threads report after its end: nobody waits for it any more.

    The SDK of Temporal hands over each answer from a thread of its own. A call that is cancelled in that moment, as at
    the end of a command, is answered all the same, and the SDK prints a traceback if the loop refuses the answer.
    """

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            return asyncio.Handle(callback, args, self, context)
