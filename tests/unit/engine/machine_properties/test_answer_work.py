"""A workflow task takes a bounded time for one answer, whatever JSON it is within the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from sagas.input_limits import MAX_INPUT_VALUES, MAX_RESULT_VALUES
from sagas.protocol.outcomes import Outcome
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, is_omitted, limit_size
from sagas.text.exact_json import decode_json, encode_json
from sagas.workflow.json_payloads import activity_result
from tests.helpers.quiet_cpu import is_short, work_seconds
from tests.unit.engine.machine.driver import MachineDriver, saga, step

LIMIT = 1.0
"""Seconds of a workflow task."""


def filled(element: str, times: int) -> str:
    """A list of so many elements, or as many as fit into a payload."""
    return "[" + ",".join([element] * min(times, (MAX_PAYLOAD_BYTES - 1_000) // (len(element.encode()) + 1))) + "]"


SHAPES: dict[str, Callable[[int], str]] = {
    "large exponents": lambda most: filled("1e999", most),
    "small exponents": lambda most: filled("1e-999", most),
    "different numbers": lambda most: "[" + ",".join(f"{number}e9" for number in range(most // 2)) + "]",
    "integers": lambda most: filled("1234567", most),
    "long integers": lambda most: filled("9" * 3_999, most),
    "long decimals": lambda most: filled("9." + "9" * 998, most),
    "empty objects": lambda most: filled("{}", most // 2),
    "empty lists": lambda most: filled("[]", most // 2),
    "objects": lambda most: filled('{"a":1}', most // 3),
    "names": lambda most: "{" + ",".join(f'"{number}":1' for number in range(most // 2)) + "}",
    "texts": lambda most: filled('"ab"', most),
    "other alphabets": lambda most: filled('"é"', most),
    "a text of the value": lambda _: '"' + "secret-42 " * 190_000 + '"',
    "deep": lambda most: filled("[" * 97 + "1" + "]" * 97, most // 98),
}

SCHEMA = {
    "type": "object",
    "properties": {"card": {"x-sensitive": True}, "list": {"type": "array", "items": {"x-sensitive": True}}},
}


def driver(value: Any) -> MachineDriver:
    output = {"all": "${{ steps.a.result }}"}
    return MachineDriver(saga(step("a"), input=SCHEMA, output=output), input=value, hold={"a"}).start()


def answered(driven: MachineDriver, answer: str) -> MachineDriver:
    """The machine after a task in which a worker of another project has given the answer."""
    result = activity_result(RawValue(Payload(metadata={"encoding": b"json/plain"}, data=answer.encode())))
    driven.end("a", Outcome.done(result, attempt=None))
    encode_json(driven.machine.view().to_json())
    return driven


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_answer_within_the_limits_makes_a_task_long(shape: str) -> None:
    answer = SHAPES[shape](MAX_RESULT_VALUES - 10)
    small = {"card": "secret-42", "list": [5, 12]}
    assert is_short(lambda: answered(driver(small), answer), LIMIT)
    assert not is_omitted(answered(driver(small), answer).row("a")["result"])


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_sensitive_input_makes_a_task_long(shape: str) -> None:
    value = decode_json(SHAPES[shape](MAX_INPUT_VALUES - 10))
    assert is_short(lambda: answered(driver({"list": value}), '"x"'), LIMIT)


@pytest.mark.parametrize("element", ["{}", "1"])
def test_an_answer_of_too_many_values_is_not_read(element: str) -> None:
    answer = filled(element, 400_000)
    driven = driver({"card": "secret-42"})
    assert work_seconds(lambda: answered(driven, answer), enough=0.2) < 0.2
    reason = {"omitted": "unreadable", "reason": "it has more than 100,000 values"}
    assert driven.row("a")["result"] == reason
    assert limit_size(decode_json(answer)) == {"omitted": "values", "bytes": len(answer)}
