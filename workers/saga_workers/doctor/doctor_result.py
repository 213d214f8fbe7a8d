"""One result line of `saga doctor`, and the wrapper for probes that may not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sagas.errors import InfrastructureError, SagaError
from sagas.settings.masking import mask


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """``ok`` is None for a result that only informs. ``help`` is the next step."""

    check: str
    ok: bool | None
    message: str
    help: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Without the credentials that a driver's message may quote."""
        help = self.help and mask(self.help)
        return asdict(replace(self, message=mask(self.message), help=help))


_ENCRYPTED = "binary/encrypted"
"""The encoding that the SDK's error names for a value that only a codec reads."""


async def results_of(check: str, results: Awaitable[Sequence[DoctorResult] | DoctorResult]) -> Sequence[DoctorResult]:
    """The results of a check. An error that it does not expect is one too, so that it hides no result of the others."""
    try:
        result = await results
    except SagaError as error:
        return [DoctorResult(check, False, error.message, error.help)]
    except Exception as error:  # noqa: BLE001 - reported as a failed check
        if isinstance(error, KeyError) and _ENCRYPTED in str(error):
            why = "it reads values that are encrypted, and there is no [codec]"
            return [DoctorResult(check, False, why, "set [codec] key to the earlier key again")]
        text = " ".join(str(error).split())
        why = f"the check ended with an error of its own, {type(error).__name__}{f': {text[:300]}' if text else ''}"
        return [DoctorResult(check, False, why, "the other checks are complete; report this one as a bug of saga")]
    return [result] if isinstance(result, DoctorResult) else result


# Probes of what may not answer: a disk, a catalog, a broker.
CHECK_TIMEOUT = 15.0
"""Seconds a probe may take."""


async def timed_check(check: str, probe: Callable[[], str], *, timeout: float = CHECK_TIMEOUT) -> DoctorResult:
    """The result of a blocking probe; an error or a timeout is a result too."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def resolve(error: BaseException | None, message: str) -> None:
        if not answer.done():
            answer.set_result(message) if error is None else answer.set_exception(error)

    def run() -> None:
        try:
            result: tuple[BaseException | None, str] = None, probe()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            result = error, ""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, *result)

    # A daemon thread of its own: a probe that never returns must not keep the command from ending.
    threading.Thread(target=run, daemon=True).start()
    try:
        async with asyncio.timeout(timeout):
            return DoctorResult(check, True, await answer)
    except SagaError as error:
        return DoctorResult(check, False, error.message, error.help)
    except InfrastructureError as error:
        return DoctorResult(check, False, str(error))
    except TimeoutError:
        return DoctorResult(check, False, f"no answer within {timeout:.0f} s")
