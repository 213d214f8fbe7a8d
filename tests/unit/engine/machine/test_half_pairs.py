"""Half a surrogate pair, which a Python action may return, fails at most its saga: Temporal's messages are UTF-8."""

from __future__ import annotations

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, DefaultPayloadConverter

from sagas.protocol.messages import Finish
from sagas.workflow.failures import closing_error
from sagas.workflow.summaries import SUMMARY_LIMIT, limit_summary, run_summary
from tests.unit.engine.machine.driver import MachineDriver, saga, step


@pytest.mark.parametrize("text", ["wait for ok-\ud800", "\udfff" * (SUMMARY_LIMIT + 1)])
def test_a_summary_can_be_sent(text: str) -> None:
    assert limit_summary(text).encode()
    assert run_summary(text).encode()
    assert "?" in limit_summary(text)


def test_the_failure_of_a_saga_has_its_message_type_and_view() -> None:
    finish = Finish("COMPENSATED", committed=False)
    document = {"state": "\ud800", "reason": {"kind": "rejected", "step": "check", "message": "no \ud800"}}
    sent = Failure()
    DefaultFailureConverter().to_failure(closing_error(finish, document), DefaultPayloadConverter(), sent)
    assert sent.message == "undone: rejected at check: no ?"
    assert sent.application_failure_info.type == "SagaCompensated"
    assert len(sent.application_failure_info.details.payloads) == 1


def test_a_fairness_key_fails_its_step() -> None:
    limited = step("a", fairness_key="${{ input.account }}", on_failure="park")
    driver = MachineDriver(saga(limited), {"account": "\ud800"}).run()
    assert driver.machine.state == "PARKED"
    assert "the fairness key contains half a surrogate pair" in str(driver.machine.view().to_json())
