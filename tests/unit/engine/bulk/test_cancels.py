"""A saga that leaves its bulk workflow to be cancelled takes the cancel along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sagas.bulk.bulk_machine import BulkCommand, BulkMachine, Detach, NewSaga, PerformChunk, Record
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Compensation, Definition, Operation, StepDefinition
from sagas.machine.machine import Machine
from sagas.protocol.messages import Call, CancelRequested
from sagas.protocol.outcomes import Failure, Outcome


def reading_machine() -> BulkMachine:
    """The second step only reads."""
    bulk = bulk_machine()
    deposit, rest = bulk.definition.steps
    steps = (deposit, replace(rest, kind="read", compensate=None))
    definition = replace(bulk.definition, steps=steps)
    return BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)


def bulk_machine(*, parallel: bool = False) -> BulkMachine:
    charge, refund = (Operation(uses=name, connection="bank") for name in ("charge", "refund"))
    steps = tuple(
        StepDefinition(
            id=id,
            name=id,
            kind="compensatable",
            do=charge,
            compensate=Compensation((refund,)),
            guarantee="guarded",
            needs=needs,
        )
        for id, needs in (("deposit", ()), ("rest", () if parallel else ("deposit",)))
    )
    definition = Definition(saga="order", steps=steps, digest="sha256:order")
    return BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)


def test_it_runs_no_further_step_after_it_has_left() -> None:
    bulk = bulk_machine()
    [first] = [
        command for command in bulk.start([NewSaga("order-1", {}, {})], 0.0) if isinstance(command, PerformChunk)
    ]
    bulk.detach("order-1", "somebody acts on it", 1.0, cancel=CancelRequested(1.0, who="me", message="wrong order"))
    done = Outcome.done({}, attempt=1)
    assert bulk.chunk_ended(first.id, [done], 2.0) == [Detach(("order-1",))]
    alone = Machine.restore(bulk.members["order-1"].leave_happy_path().snapshot())
    assert alone.view().state == "COMPENSATING"
    assert [command.action for command in alone.reissue(3.0) if isinstance(command, Call)] == ["refund"]


def test_one_whose_first_call_has_not_begun_ends_at_once() -> None:
    bulk = bulk_machine()
    bulk.start([NewSaga("order-1", {}, {})], 0.0, alone={"order-1": "it may have been started on its own"})
    bulk.detach("order-1", "somebody acts on it", 1.0, cancel=CancelRequested(1.0))
    assert bulk.members["order-1"].why_leaving == "it may have been started on its own"
    assert bulk.members["order-1"].leave_happy_path().started_at is None


def test_many_are_cancelled_where_they_are() -> None:
    bulk = bulk_machine()
    chunk = chunk_of(bulk.start([NewSaga(f"order-{n}", {}, {}) for n in (1, 2, 3)], 0.0))
    bulk.detach("order-3", "somebody acts on it", 0.5)
    asked = ["order-1", "order-3", "order-4"]
    assert bulk.cancel_responses(asked) == {"order-1": "accepted", "order-3": "accepted"}
    bulk.cancel(CancelRequested(1.0, who="me"), ["order-1", "order-4"])
    assert bulk.cancel_responses(["order-1", "order-2"]) == {"order-1": "already", "order-2": "accepted"}
    done = Outcome.done({}, attempt=1)
    commands = bulk.chunk_ended(chunk.id, [done] * 3, 2.0)
    calls = [item for command in commands if isinstance(command, PerformChunk) for item in command.calls]
    assert [(item.saga_id, item.call.op) for item in calls] == [("order-1", "undo"), ("order-2", "do")]
    assert Detach(("order-3",)) in commands
    bulk.detached(["order-3"], 3.0)
    assert bulk.cancel_responses(asked) == {"order-1": "already"}


def test_one_whose_state_is_on_its_way_is_cancelled_in_its_own_workflow() -> None:
    """The cancel is not part of that state; if it ended the saga here, the saga would go on there all the same."""
    bulk = bulk_machine()
    chunk = chunk_of(bulk.start([NewSaga("order-1", {}, {})], 0.0))
    bulk.detach("order-1", "somebody acts on it", 0.5)
    assert bulk.chunk_ended(chunk.id, [None], 1.0) == [Detach(("order-1",))]
    assert bulk.cancel_responses(["order-1"]) == {}
    assert bulk.cancel(CancelRequested(2.0)) == []
    assert bulk.counts() == {"RUNNING": 1}
    assert bulk.due_cancels(["order-1"]) == ["order-1"]
    assert bulk.due_cancels(["order-1"]) == []
    bulk.detached(["order-1"], 3.0)
    assert bulk.finished


def test_a_cancel_of_single_sagas_is_left_to_the_caller() -> None:
    """The answer does not name them, so they are asked one by one, in their own workflows."""
    bulk = bulk_machine()
    chunk = chunk_of(bulk.start([NewSaga("order-1", {}, {})], 0.0))
    bulk.detach("order-1", "somebody acts on it", 0.5)
    bulk.chunk_ended(chunk.id, [None], 1.0)
    assert bulk.cancel(CancelRequested(2.0), ["order-1"]) == []
    assert bulk.due_cancels(["order-1"]) == []


def chunk_of(commands: Sequence[BulkCommand]) -> PerformChunk:
    return next(command for command in commands if isinstance(command, PerformChunk))


def test_a_call_that_a_chunk_postpones_does_not_begin_after_its_cancel() -> None:
    """Going backward starts no attempt (rule 2)."""
    bulk = bulk_machine(parallel=True)
    chunks = [command for command in bulk.start([NewSaga("order-1", {}, {})], 0.0) if isinstance(command, PerformChunk)]
    [deposit], [rest] = (
        [chunk for chunk in chunks if chunk.calls[0].call.step == step] for step in ("deposit", "rest")
    )
    refused = Outcome("rejected", failure=Failure("Rejected", "no"), attempt=1, retryable=False)
    bulk.chunk_ended(deposit.id, [refused], 1.0)
    commands = bulk.chunk_ended(rest.id, [None], 2.0)
    assert [command for command in commands if isinstance(command, PerformChunk)] == []
    assert commands == [Record(("order-1",))]
    assert bulk.counts() == {"COMPENSATED": 1}


def test_one_that_a_lost_attempt_may_have_performed_is_made_sure_of() -> None:
    bulk = bulk_machine(parallel=True)
    chunks = [command for command in bulk.start([NewSaga("order-1", {}, {})], 0.0) if isinstance(command, PerformChunk)]
    [deposit], [rest] = (
        [chunk for chunk in chunks if chunk.calls[0].call.step == step] for step in ("deposit", "rest")
    )
    refused = Outcome("rejected", failure=Failure("Rejected", "no"), attempt=1, retryable=False)
    bulk.chunk_ended(deposit.id, [refused], 1.0)
    [again] = [command for command in bulk.chunk_ended(rest.id, [None], 2.0, 2) if isinstance(command, PerformChunk)]
    assert [item.call.op for item in again.calls] == ["seal"]


def test_a_read_is_not_awaited() -> None:
    bulk, done = reading_machine(), Outcome.done({}, attempt=1)
    deposit = chunk_of(bulk.start([NewSaga(f"order-{n}", {}, {}) for n in (1, 2)], 0.0))
    read = chunk_of(bulk.chunk_ended(deposit.id, [done] * 2, 1.0))
    undo = chunk_of(bulk.cancel(CancelRequested(2.0, who="me"), ["order-1"]))
    assert [(item.saga_id, item.call.op) for item in undo.calls] == [("order-1", "undo")]
    assert bulk.chunk_ended(undo.id, [done], 3.0) == []
    assert bulk.counts() == {"COMPENSATED": 1, "RUNNING": 1}
    assert bulk.chunk_ended(read.id, [done] * 2, 4.0) == [Record(("order-1", "order-2"))]
    assert bulk.counts() == {"COMPENSATED": 1, "COMPLETED": 1}
    [step] = [step for step in bulk.view("order-1").steps if step.id == "rest"]
    assert (step.state, step.result) == ("UNKNOWN", None)


def test_an_end_is_recorded_while_a_read_that_nobody_awaits_hangs() -> None:
    bulk, done = reading_machine(), Outcome.done({}, attempt=1)
    deposit = chunk_of(bulk.start([NewSaga("order-1", {}, {})], 0.0))
    read = chunk_of(bulk.chunk_ended(deposit.id, [done], 1.0))
    undo = chunk_of(bulk.cancel(CancelRequested(2.0)))
    assert bulk.chunk_ended(undo.id, [done], 3.0) == [Record(("order-1",))]
    bulk.recorded(["order-1"], 4.0)
    assert bulk.finished
    lost = Outcome("unknown", failure=Failure("Timeout", "no answer"))
    assert bulk.chunk_lost(read.id, lost, 5.0, 2) == []
