"""Attempts that an open circuit breaker explains: they were made and are shown, and use up none of those allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagas.definition.model import Retry
from sagas.protocol.messages import CallEnded
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import decode_failure, encode_failure
from sagas.protocol.standing_pause import CIRCUIT_BREAKER, StandingPause
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step

OPEN = StandingPause("circuit_breaker", "shop", "2026-03-01T10:00:00Z", CIRCUIT_BREAKER)
FAILED = Outcome("failed", failure=Failure("HttpError", "503"), attempt=1, retry_after=1.0, breaker=OPEN)
UNKNOWN = replace(FAILED, kind="unknown", failure=Failure("Timeout", "no answer"))
TWICE = Retry(max_attempts=2)


def fail(driver: MachineDriver, id: str, outcome: Outcome = FAILED) -> MachineDriver:
    driver.flights.pop(id)
    return driver.feed(CallEnded(id, outcome, driver.now, 1))


@pytest.mark.parametrize("outcome", [FAILED, UNKNOWN], ids=["failed", "unknown"])
@pytest.mark.parametrize("kind", ["compensatable", "pivot", "retriable", "read"])
def test_a_step_has_as_many_attempts_left_as_before(kind: str, outcome: Outcome) -> None:
    steps = [step("p", kind="pivot")] if kind == "retriable" else [step("a")]
    definition = saga(*steps, step("b", kind=kind, do=op("act.b", {}, on="shop", retry=TWICE)))
    driver = MachineDriver(definition, hold=["b"], restore=True).start()
    for times in range(1, 21):
        fail(driver, "b", outcome)
        assert (driver.state, driver.row("b")["attempts"]) == ("COMMITTED" if kind == "retriable" else "RUNNING", times)
        paused = driver.view.paused
        assert paused is not None
        assert (paused.kind, paused.held) == ("circuit_breaker", ("b",)), "also between attempts of its own"
        driver.fire("b~retry")
        assert driver.call("b").retry.max_attempts == 2
    driver.end("b", ("done", 1))
    assert (driver.state, driver.row("b")["attempts"], driver.undone) == ("COMPLETED", 21, [])


def test_attempts_before_it_opens_count() -> None:
    definition = saga(step("a"), step("b", do=op("act.b", {}, on="shop", retry=Retry(max_attempts=3))))
    driver = MachineDriver(definition, hold=["b"]).start()
    driver.flights.pop("b")
    driver.feed(CallEnded("b", replace(FAILED, attempt=3), driver.now, 3)).fire("b~retry")
    assert driver.call("b").retry.max_attempts == 1
    driver.end("b", ("failed", 1))
    assert (driver.state, driver.row("b")["attempts"]) == ("COMPENSATED", 4)


def test_a_participant_without_keys_is_looked_up_before_it_is_called_again() -> None:
    do = op("act.b", {}, idempotent=False, retry=TWICE)
    driver = MachineDriver(
        saga(step("a"), step("b", do=do, probe=probe("look"), settle=0.0)), hold=["b", "b~probe"]
    ).start()
    for _ in range(5):
        fail(driver, "b", UNKNOWN)
        for _ in range(5):  # nor is a lookup used up
            fail(driver, "b~probe")
            assert "b" not in driver.flights
            driver.fire("b~ask")
        driver.end("b~probe", "absent").hold.add("b~probe")
        driver.fire("b~retry")
    driver.end("b", ("done", 1))
    assert (driver.state, driver.row("b")["attempts"]) == ("COMPLETED", 6)


def test_an_undo_is_not_parked() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["a~undo", "b"]).start()
    driver.end("b", "rejected")
    for _ in range(30):
        fail(driver, "a~undo", UNKNOWN)
        assert driver.state == "COMPENSATING"
        driver.fire("a~undo-retry")
    driver.end("a~undo", ("done", 1))
    assert (driver.state, driver.story["parked"]) == ("COMPENSATED", [])


def test_a_cancel_ends_the_wait_and_asks_the_guard() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["b"]).start()
    fail(driver, "b", UNKNOWN).cancel()
    assert (driver.state, driver.log) == ("COMPENSATED", ["a", "b", "b~seal", "a~undo"])


def test_it_survives_serialization() -> None:
    for outcome in (FAILED, UNKNOWN):
        assert outcome.failure is not None
        decoded = decode_failure(outcome.failure.type, outcome.failure.message, encode_failure(outcome, 1))
        assert not decoded.charged


def test_a_decision_does_not_wait_for_a_breaker_that_holds_the_probe() -> None:
    pivot = step("pay", kind="pivot", do=op("act.pay", {}, retry=Retry(max_attempts=1)), on=None, probe=probe("look"))
    driver = MachineDriver(saga(step("a"), pivot), answers={"pay": "unknown", "pay~probe": "unsure"}).run(until=0.0)
    driver.hold.add("pay~probe")
    driver.run(until=600.0)
    assert (driver.state, "pay~probe" in driver.flights) == ("PARKED", True)
    driver.answers["pay"] = "done"
    driver.decide("pay", "retry")
    fail(driver, "pay~probe")
    assert (driver.state, driver.log[-1]) == ("COMPLETED", "pay")
