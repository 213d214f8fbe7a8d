"""A saga that leaves its bulk workflow to be cancelled takes the cancel along."""

from __future__ import annotations

from sagas.bulk.bulk_machine import BulkMachine, Detach, NewSaga, PerformChunk
from sagas.definition.model import Compensation, Definition, Operation, StepDefinition
from sagas.definition.step_graph import ExecutionPlan
from sagas.machine.machine import Machine
from sagas.protocol.messages import Call, CancelRequested
from sagas.protocol.outcomes import Outcome


def bulk_machine() -> BulkMachine:
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
        for id, needs in (("deposit", ()), ("rest", ("deposit",)))
    )
    definition = Definition(saga="order", steps=steps, digest="sha256:order")
    return BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)


def test_it_runs_no_further_step_after_it_has_left() -> None:
    bulk = bulk_machine()
    [first] = [one for one in bulk.start([NewSaga("order-1", {}, {})], 0.0) if isinstance(one, PerformChunk)]
    bulk.detach("order-1", "somebody acts on it", 1.0, cancel=CancelRequested(1.0, who="me", message="wrong order"))
    done = Outcome.done({}, attempt=1)
    assert bulk.chunk_ended(first.id, [done], 2.0) == [Detach(("order-1",))]
    alone = Machine.restore(bulk.members["order-1"].machine.snapshot())
    assert alone.view(3.0).state == "COMPENSATING"
    assert [one.action for one in alone.reissue(3.0) if isinstance(one, Call)] == ["refund"]


def test_one_whose_first_call_has_not_begun_ends_at_once() -> None:
    bulk = bulk_machine()
    bulk.start([NewSaga("order-1", {}, {})], 0.0, alone={"order-1": "it may have been started on its own"})
    bulk.detach("order-1", "somebody acts on it", 1.0, cancel=CancelRequested(1.0))
    assert bulk.members["order-1"].why_leaving == "it may have been started on its own"
    assert bulk.members["order-1"].machine.started_at is None
