"""Attempts not counted because the executor of the action was lost: repeated at `max_interval` with a reason
to read, and never what leads backward."""

from __future__ import annotations

from typing import Any

import pytest

from saga_workers.views.reported_reasons import reported_reasons
from sagas.definition.model import Retry
from sagas.protocol.messages import CallEnded
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import decode_failure, encode_failure
from tests.unit.engine.machine.driver import START, MachineDriver, op, probe, saga, step


def unavailable(attempt: int = 1) -> Outcome:
    failure = Failure("Infrastructure", "the runner was killed")
    return Outcome("failed", failure=failure, attempt=attempt, infrastructure=True, counted=False)


def lose(driver: MachineDriver, id: str, attempt: int = 1) -> MachineDriver:
    """Lose the worker of the attempt of this number; earlier attempts of the same call count."""
    driver.flights.pop(id)
    return driver.feed(CallEnded(id, unavailable(attempt), driver.now, attempt - 1))


def row(driver: MachineDriver, id: str) -> dict[str, Any]:
    return next(step for step in driver.story["steps"] if step["id"] == id)


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("kind", ["compensatable", "pivot", "retriable", "read"])
def test_an_unstarted_step_is_retried_uncounted(kind: str, restore: bool) -> None:
    steps = [step("p", kind="pivot")] if kind == "retriable" else [step("a")]
    definition = saga(*steps, step("b", kind=kind, do=op("act.b", {}, on="shop", retry=Retry(max_attempts=2))))
    driver = MachineDriver(definition, hold=["b"], restore=restore).start()
    for times in range(1, 41):
        lose(driver, "b")
        assert row(driver, "b")["attempts"] == 0
        assert row(driver, "b")["error"]["details"] == {"uncounted": times}
        driver.fire("b~retry")
    assert driver.now == START + 40 * 60
    assert driver.undone == []
    driver.end("b", ("done", 1))
    assert (driver.state, row(driver, "b")["attempts"]) == ("COMPLETED", 1)
    assert reported_reasons(driver.view) == []


def test_an_uncounted_step_is_shown_as_stuck() -> None:
    driver = MachineDriver(saga(step("a")), hold=["a"]).start()
    lose(driver, "a")
    assert reported_reasons(driver.view) == ["a could not be attempted, once: the runner was killed"]
    lose(driver.fire("a~retry"), "a")
    assert reported_reasons(driver.view) == ["a could not be attempted, 2 times in a row: the runner was killed"]


def test_an_uncounted_undo_is_shown_as_stuck() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["b", "a~undo"]).start()
    driver.end("b", "rejected")
    lose(driver, "a~undo")
    assert reported_reasons(driver.view) == ["the undo of a could not be attempted yet: the runner was killed"]


def test_earlier_attempts_count() -> None:
    definition = saga(step("a"), step("b", do=op("act.b", {}, on="shop", retry=Retry(max_attempts=3))))
    driver = MachineDriver(definition, hold=["b"]).start()
    lose(driver, "b", attempt=3)
    assert row(driver, "b")["attempts"] == 2
    lose(driver.fire("b~retry"), "b")
    driver.fire("b~retry")
    assert driver.call("b").retry.max_attempts == 1
    driver.end("b", ("failed", 1))
    assert (driver.state, row(driver, "b")["attempts"]) == ("COMPENSATED", 3)


def test_a_cancel_during_uncounted_attempts_has_nothing_to_undo() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["b"]).start()
    lose(driver, "b").cancel()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])
    assert row(driver, "b")["state"] == "FAILED"


def test_a_cancelled_uncounted_pivot_is_not_retried() -> None:
    driver = MachineDriver(saga(step("a"), step("p", kind="pivot")), hold=["p"]).start()
    driver.cancel()
    lose(driver, "p")
    assert driver.state == "COMPENSATED"
    assert driver.log == ["a", "p", "a~undo"]


def test_uncounted_failures_survive_serialization() -> None:
    output = unavailable()
    failure = output.failure
    assert failure is not None
    assert decode_failure(failure.type, failure.message, encode_failure(output, 1)) == output


@pytest.mark.parametrize("kind", ["compensatable", "pivot", "retriable"])
def test_a_worker_of_another_project_does_not_repeat_without_end(kind: str) -> None:
    steps = [step("p", kind="pivot")] if kind == "retriable" else [step("a")]
    foreign = op("act.b", {}, local=False, task_queue="other", retry=Retry(max_attempts=3))
    driver = MachineDriver(saga(*steps, step("b", kind=kind, do=foreign)), hold=["b"]).start()
    for _ in range(2):
        lose(driver, "b")
        assert driver.state != "PARKED"
        driver.fire("b~retry")
    lose(driver, "b")
    [parked] = driver.story["parked"]
    assert parked["why"] == "not counted as an attempt, 3 times: Infrastructure: the runner was killed"
    assert driver.state == "PARKED"


def test_a_worker_of_another_project_does_not_repeat_beyond_the_time_of_the_step() -> None:
    foreign = op("act.b", {}, local=False, task_queue="other", retry=Retry(max_attempts=30, give_up_after=90.0))
    driver = MachineDriver(saga(step("a"), step("b", do=foreign)), hold=["b"]).start()
    for _ in range(2):
        lose(driver, "b")
        driver.fire("b~retry")
    lose(driver, "b")
    assert driver.state == "PARKED"


def test_an_action_that_no_foreign_worker_knows_yet_is_waited_for() -> None:
    foreign = op("act.b", {}, local=False, task_queue="other", retry=Retry(max_attempts=2))
    driver = MachineDriver(saga(step("a"), step("b", do=foreign)), hold=["b"]).start()
    for _ in range(5):
        driver.flights.pop("b")
        unknown = decode_failure("NotFoundError", "no such action", {"attempt": 1})
        driver.feed(CallEnded("b", unknown, driver.now, 0)).fire("b~retry")
    driver.end("b", ("done", 1))
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("restore", [False, True])
def test_an_uncounted_probe_is_made_again(restore: bool) -> None:
    do = op("act.b", {}, retry=Retry(max_attempts=1))
    probed = step("b", do=do, on=None, probe=probe("look"), settle=0.0)
    driver = MachineDriver(saga(step("a"), probed), answers={"b": "unknown"}, hold=["b~probe"], restore=restore).start()
    for _ in range(20):
        lose(driver, "b~probe", attempt=2)
        assert (driver.state, driver.undone) == ("RUNNING", [])
        driver.fire("b~ask")
    driver.end("b~probe", "found")
    assert (driver.state, driver.undone) == ("COMPLETED", [])
