"""The payloads that the codec endpoint converts: their number is bounded, and each counts as work of its caller."""

from __future__ import annotations

import pytest

from saga_workers.input_limits import MAX_CODEC_PAYLOADS
from saga_workers.serve.codec_endpoint import _payloads
from saga_workers.serve.request_body import BadRequest
from sagas.expressions.work_budget import TooComplex, WorkBudget, bounded


def body(payload: bytes, number: int) -> bytes:
    return b'{"payloads": [' + b",".join([payload] * number) + b"]}"


@pytest.mark.parametrize("payload", [b"{}", b'{"metadata": {}, "data": ""}', b"1"])
def test_too_many_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(BadRequest, match="may have 10,000 payloads; send several requests") as refused:
        _payloads(body(payload, 2 * MAX_CODEC_PAYLOADS + 1))
    assert refused.value.status == 413


def test_as_many_as_may_be_are_read() -> None:
    assert len(_payloads(body(b'{"metadata": {}, "data": ""}', MAX_CODEC_PAYLOADS))) == MAX_CODEC_PAYLOADS


def test_a_conversion_that_is_given_up_ends() -> None:
    budget = WorkBudget()
    budget.give_up()
    with bounded(budget), pytest.raises(TooComplex):
        _payloads(body(b"{}", 2))
