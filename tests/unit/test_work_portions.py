"""Work on a large value that counts no evaluation steps: a check of a stranger's input rests during it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from saga_activities.input_checks import InputChecks, _Pace
from saga_activities.kafka.record_codec import parse_value
from sagas.text.exact_json import canonical_json, decode_unambiguous, with_json_names
from sagas.text.exact_numbers import comparable, comparable_json, exact_value, has_whole_decimal
from sagas.text.json_values import has_more_values, json_copy, json_problem
from sagas.text.work_portions import PORTION, resting

MANY = 20 * PORTION

NUMBERS = [1] * MANY
SMALL_LISTS = [[1] for _ in range(MANY)]
NAMES = {f"n{number}": 1 for number in range(MANY)}
VALUES = {"numbers": NUMBERS, "small lists": SMALL_LISTS, "names": NAMES}


@pytest.mark.parametrize("work", [json_problem, json_copy, comparable, exact_value, with_json_names, has_whole_decimal])
@pytest.mark.parametrize("kind", VALUES)
def test_a_loop_over_a_value_rests_after_each_portion(kind: str, work: Callable[[Any], Any]) -> None:
    rests: list[int] = []
    with resting(lambda: rests.append(1)):
        work(VALUES[kind])
    assert len(rests) >= MANY // PORTION - 1


TEXTS = {
    "decimals": b"[" + b"1.5," * MANY + b"1]",
    "half a pair": b'["\\ud800",' + b"1," * MANY + b"1]",
    "names twice": b"[" + b'{"a":1},' * MANY + b'{"a":1,"a":1}]',
    "no end": b"[" + b"1," * MANY,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_parser_that_calls_for_each_value_rests_after_each_portion(kind: str) -> None:
    rests: list[int] = []
    with resting(lambda: rests.append(1)):
        try:
            decode_unambiguous(TEXTS[kind])
        except ValueError:
            assert kind in ("names twice", "no end")
    assert len(rests) >= MANY // PORTION - 1


def test_each_call_that_reads_or_writes_a_long_text_is_followed_by_a_rest() -> None:
    text = "x" * 1_000_000
    json = f'{{"a":"{text}"}}'.encode()
    calls: list[Callable[[], Any]] = [
        lambda: has_more_values(json, 1_000),
        lambda: decode_unambiguous(json),
        lambda: canonical_json({"a": text}),
        lambda: comparable_json({"a": text}),
    ]
    for call in calls:
        rests: list[int] = []
        with resting(lambda rests=rests: rests.append(1)):
            call()
        assert rests


def test_a_value_is_the_same_in_portions() -> None:
    value = {"a": [*range(PORTION + 1)], "b": {str(number): {"c": number} for number in range(2 * PORTION)}}
    with resting(lambda: None):
        assert json_copy(value) == comparable(value) == value


def test_work_outside_of_a_check_never_rests() -> None:
    with resting(lambda: pytest.fail("it rested")):
        pass
    assert json_problem(NUMBERS) is None


async def test_reading_a_large_record_holds_up_its_process_for_moments_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU between two rests, which other processes of the machine change little; 180 ms when reading rested
    never.
    """
    held: list[float] = []
    rest = _Pace.rest

    def noted(pace: _Pace) -> None:
        held.append(time.thread_time() - began[0])
        rest(pace)
        began[0] = time.thread_time()

    began = [0.0]

    def read() -> None:
        began[0] = time.thread_time()
        value = parse_value(record)
        comparable_json({"value": value})
        exact_value(value)
        held.append(time.thread_time() - began[0])

    monkeypatch.setattr(_Pace, "rest", noted)
    record = b'{"numbers":[' + b"1.5," * 240_000 + b"1]}"
    gc.collect()
    await InputChecks().run(read, caller="a", size=len(record))
    assert len(held) > 100
    assert max(held) < sum(held) / 5
