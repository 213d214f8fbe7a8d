"""A saga stays in its bulk workflow for a short `wait`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagas.bulk.batchable import LONGEST_WAIT, why_not_batchable
from sagas.bulk.bulk_machine import BulkCommand, BulkMachine, Detach, NewSaga, PerformChunk, Wake
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Compensation, Definition, Operation, Savepoint, StepDefinition
from sagas.protocol.messages import CancelRequested
from sagas.protocol.outcomes import Failure, Outcome

DONE = Outcome.done({}, attempt=1)


def _step(id: str, needs: tuple[str, ...], do: Operation) -> StepDefinition:
    if do.uses == "wait":
        return StepDefinition(id=id, name=id, kind="read", do=do, guarantee="at-least-once", needs=needs)
    undo = Compensation((Operation(uses="refund", connection="bank"),))
    return StepDefinition(
        id=id, name=id, kind="compensatable", do=do, compensate=undo, guarantee="guarded", needs=needs
    )


def _bulk(wait: dict[str, Any]) -> BulkMachine:
    """Sagas of three steps, the second of which waits."""
    charge = Operation(uses="charge", connection="bank")
    pause = _step("pause", ("charge",), Operation(uses="wait", with_=wait))
    steps = (_step("charge", (), charge), pause, _step("ship", ("pause",), charge))
    definition = Definition(saga="order", steps=steps, digest="sha256:order")
    return BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)


def _first_step_done(bulk: BulkMachine, inputs: tuple[dict[str, Any], ...] = ({}, {})) -> list[BulkCommand]:
    sagas = [NewSaga(f"order-{number}", input, {}) for number, input in enumerate(inputs, 1)]
    [chunk] = [command for command in bulk.start(sagas, 0.0) if isinstance(command, PerformChunk)]
    return bulk.chunk_ended(chunk.id, [DONE] * len(sagas), 1.0)


def _calls(commands: list[BulkCommand]) -> list[tuple[str, str, str]]:
    items = [item for command in commands if isinstance(command, PerformChunk) for item in command.calls]
    return [(item.saga_id, item.call.op, item.call.action) for item in items]


def test_a_saga_waits_inside_and_goes_on() -> None:
    bulk = _bulk({"for": "5s"})
    assert _first_step_done(bulk) == [Wake(5.0)]
    assert _calls(bulk.woken(5.9)) == []
    assert _calls(bulk.woken(6.0)) == [("order-1", "do", "charge"), ("order-2", "do", "charge")]
    assert bulk.counts() == {"RUNNING": 2}


def test_each_saga_waits_as_long_as_its_input_says() -> None:
    bulk = _bulk({"for": "${{ input.hold }}"})
    commands = _first_step_done(bulk, ({"hold": "2s"}, {"hold": "6s"}, {"hold": "0s"}))
    assert Detach(("order-2",)) in commands
    assert [command for command in commands if isinstance(command, Wake)] == [Wake(0.0)]
    assert _calls(bulk.woken(1.0)) == [("order-3", "do", "charge")]
    assert _calls(bulk.woken(3.0)) == [("order-1", "do", "charge")]


@pytest.mark.parametrize("wait", [{"for": "6s"}, {"signal": "go", "timeout": "2s"}, {"signal": "go"}])
def test_a_saga_leaves_for_a_longer_wait_and_for_a_signal(wait: dict[str, Any]) -> None:
    assert Detach(("order-1", "order-2")) in _first_step_done(_bulk(wait))


def test_a_cancel_ends_the_wait() -> None:
    bulk = _bulk({"for": "5s"})
    _first_step_done(bulk)
    commands = bulk.cancel(CancelRequested(2.0, who="me"), ["order-1"])
    assert _calls(commands) == [("order-1", "undo", "refund")]


def test_a_wait_that_begins_anew_is_a_whole_one() -> None:
    """Both waits are over at the same moment; the end of the first leads back to the savepoint, so both begin again."""
    charge = Operation(uses="charge", connection="bank")
    undo = Compensation((Operation(uses="refund", connection="bank"),))
    never = Operation(uses="require", with_={"that": "${{ false }}"})
    steps = (
        replace(_step("charge", (), charge), compensate=undo, savepoint=Savepoint(attempts=2)),
        _step("one", ("charge",), Operation(uses="wait", with_={"for": "2s"})),
        _step("other", ("charge",), Operation(uses="wait", with_={"for": "2s"})),
        replace(_step("never", ("one",), Operation(uses="wait")), do=never),
        _step("ship", ("other",), charge),
    )
    definition = Definition(saga="order", steps=steps, digest="sha256:order")
    bulk = BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)
    assert _first_step_done(bulk, ({},)) == [Wake(2.0)]
    bulk.woken(3.0)
    assert {step.id: step.state for step in bulk.view("order-1").steps}["other"] == "RUNNING"
    assert set(bulk.members["order-1"].timers.values()) == {5.0}


def test_a_neighbour_that_fails_does_not_wait() -> None:
    bulk = _bulk({"for": "5s"})
    [chunk] = [
        command
        for command in bulk.start([NewSaga(f"order-{n}", {}, {}) for n in (1, 2)], 0.0)
        if isinstance(command, PerformChunk)
    ]
    refused = Outcome("rejected", failure=Failure("Rejected", "no money"), attempt=1, retryable=False)
    bulk.chunk_ended(chunk.id, [DONE, refused], 1.0)
    assert bulk.counts() == {"RUNNING": 1, "COMPENSATED": 1}


@pytest.mark.parametrize(
    ("wait", "why"),
    [
        ({"for": f"{LONGEST_WAIT:g}s"}, None),
        ({"for": "5001ms"}, "`wait` may take more than 5s"),
        ({"for": "${{ input.hold }}"}, "`wait` may take more than 5s"),
        ({"until": "2026-01-01T00:00:00Z"}, "`wait` may take more than 5s"),
        ({"signal": "go", "timeout": "1s"}, "`wait` for a signal needs a workflow of its own"),
    ],
)
def test_explain_says_which_waits_are_batchable(wait: dict[str, Any], why: str | None) -> None:
    assert why_not_batchable(_step("pause", (), Operation(uses="wait", with_=wait))) == why
