"""The answers of sagas to the requests of one session, each on a page of its own that can be opened again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_KEPT = 10


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The answer to a request. ``word``: its name. ``problem``: why there is no answer."""

    saga_id: str
    word: str
    answer: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ManyAnswers:
    """The answers of several sagas to the same decision. ``step``: the step of the definition."""

    word: str
    step: str
    answers: Sequence[RequestAnswer]


class RequestAnswers:
    """The latest answers, by their numbers."""

    def __init__(self) -> None:
        self._answers: dict[str, RequestAnswer | ManyAnswers] = {}
        self._count = 0

    def keep(self, answer: RequestAnswer | ManyAnswers) -> str:
        """Keep an answer in place of the oldest; return its number."""
        self._count += 1
        self._answers[str(self._count)] = answer
        self._answers.pop(str(self._count - _MOST_KEPT), None)
        return str(self._count)

    def find(self, number: str) -> RequestAnswer | ManyAnswers | None:
        return self._answers.get(number)
