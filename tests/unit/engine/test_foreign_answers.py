"""Answers of workers that know nothing of this project: what they return and how they fail, in any shape."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import decode_failure, decode_result, encode_result
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS, MAX_TYPE_CHARACTERS


def test_an_argument_that_is_returned_is_the_result() -> None:
    echo = {"seats": [], "_saga": {"key": "b-1/hold", "forward_key": "b-1/hold", "op": "do", "generation": 1}}
    assert decode_result(echo) == Outcome.done(echo, attempt=None)


@pytest.mark.parametrize("attempt", ["1", None, True, 1.5, [1]])
def test_an_envelope_without_a_number_is_data(attempt: Any) -> None:
    value = {"result": 1, "_saga": {"attempt": attempt}}
    assert decode_result(value) == Outcome.done(value, attempt=None)


def test_answers_of_this_project_keep_their_meaning() -> None:
    outcome = Outcome("done", {"seats": []}, attempt=2, marker="nothing_to_undo", repeats=3)
    assert decode_result(encode_result(outcome, 2)) == outcome


@pytest.mark.parametrize(
    ("detail", "attempt", "shown"),
    [
        ({"attempt": 1, "details": {"code": "sold-out"}}, 1, {"code": "sold-out"}),
        ({"attempt": 1, "code": "sold-out"}, 1, {"code": "sold-out"}),
        ({"attempt": 1}, 1, {}),
        ({"attempt": "1", "code": "sold-out"}, None, {"attempt": "1", "code": "sold-out"}),
        ({"attempt": 1, "details": "sold out", "repeats": "often"}, 1, {"details": "sold out"}),
        (["sold out"], None, {"details": ["sold out"]}),
        (None, None, {}),
    ],
)
def test_a_rejection_keeps_its_details(detail: Any, attempt: int | None, shown: dict[str, Any]) -> None:
    outcome = decode_failure("Rejected", "no seats", detail)
    assert (outcome.kind, outcome.attempt, outcome.repeats, outcome.retryable) == ("rejected", attempt, 0, False)
    assert outcome.failure is not None
    assert outcome.failure.details == shown


def test_a_failure_is_shortened_and_its_type_is_one_line() -> None:
    outcome = decode_failure("\x1b[2J\u202e\n" + "T" * 100_000, "m" * 3_000_000, None)
    assert outcome.failure is not None
    assert outcome.failure.type.startswith(r"\x1b[2J\u202e\nTTT")
    assert len(outcome.failure.type) <= MAX_TYPE_CHARACTERS + 20
    assert len(outcome.failure.message) <= MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize("value", ["no", "", 0, [1], {"a": 1}, None])
def test_fields_of_another_type_mean_nothing(value: Any) -> None:
    names = ("retryable", "infrastructure", "counted", "nothing_before", "marker", "parks")
    detail = {"outcome": "failed", "attempt": 1, "details": {}, **dict.fromkeys(names, value)}
    if isinstance(value, str):
        del detail["parks"]
    outcome = decode_failure("Error", "m", detail)
    assert outcome == Outcome("failed", failure=outcome.failure, attempt=1)
    done = decode_result({"result": 1, "_saga": {"attempt": 1, "marker": value}})
    assert done == Outcome.done(1, attempt=1)
