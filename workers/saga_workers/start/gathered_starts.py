"""The starts that will share a bulk workflow, each with the caller that waits for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from saga_workers.start.start_requests import StartRequest, StartResult


@dataclass(slots=True)
class WaitingStart:
    """A start, and the ``answer`` for which its caller waits."""

    id: str
    request: StartRequest
    answer: asyncio.Future[StartResult]

    @property
    def result(self) -> StartResult | None:
        """The result of a start that has been answered with one."""
        answer = self.answer
        return answer.result() if answer.done() and not answer.cancelled() and answer.exception() is None else None

    def succeed(self, result: StartResult) -> None:
        """Answer, unless there is an answer or the caller has given up."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless there is an answer or the caller has given up."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True)
class GatheredStarts:
    """``repeats``: starts whose id is already among ``starts``. ``size``: the bytes of all of them."""

    starts: dict[str, WaitingStart] = field(default_factory=dict)
    repeats: list[WaitingStart] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.starts) + len(self.repeats)

    def __iter__(self) -> Iterator[WaitingStart]:
        yield from self.starts.values()
        yield from self.repeats

    def add(self, start: WaitingStart, size: int) -> None:
        if self.starts.setdefault(start.id, start) is not start:
            self.repeats.append(start)
        self.size += size
