"""Messages for operators about exceptions in an action's code."""

from __future__ import annotations

import httpx
import pytest

from saga_activities.action_errors import action_error_message

ADVICE = "; correct the code, or raise Rejected for a refusal"


class CarrierClosed(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CarrierClosed("the carrier is closed"), "the carrier is closed"),
        (RuntimeError("no such day"), "no such day"),
        (CarrierClosed(), "CarrierClosed"),
        (KeyError("sku"), f"the code of the action raised KeyError: 'sku'{ADVICE}"),
        (AssertionError(), f"the code of the action raised AssertionError{ADVICE}"),
        (
            httpx.InvalidURL("no\nhost"),
            f"the package httpx in the code of the action raised InvalidURL: no host{ADVICE}",
        ),
    ],
)
def test_the_message_of_an_exception(error: Exception, message: str) -> None:
    assert action_error_message(error) == message
