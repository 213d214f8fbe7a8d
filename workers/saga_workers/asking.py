"""Questions of `saga doctor` to what may not answer: a disk, a catalog, a broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from saga_workers.finding import Finding
from sagas.errors import Infrastructure, SagaError

PATIENCE = 15.0
"""Seconds whatever is asked may take to answer."""


async def asked(check: str, question: Callable[[], str], *, patience: float = PATIENCE) -> Finding:
    """What a blocking question gives, as a finding; its error, or its silence, as one too."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def tell(error: BaseException | None, message: str) -> None:
        if not answer.done():
            answer.set_result(message) if error is None else answer.set_exception(error)

    def ask() -> None:
        try:
            told: tuple[BaseException | None, str] = None, question()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            told = error, ""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waited any longer
            loop.call_soon_threadsafe(tell, *told)

    # A thread of its own, and a daemon: what never answers must not keep the command from ending.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return Finding(check, True, await asyncio.wait_for(answer, patience))
    except SagaError as error:
        return Finding(check, False, error.message, error.help)
    except Infrastructure as error:
        return Finding(check, False, str(error))
    except TimeoutError:
        return Finding(check, False, f"no answer within {patience:.0f} s")
