"""An attempt that nobody heard of again may still have its effect: no later one may make the saga forget it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagas.bulk.bulk_machine import BulkCommand, BulkMachine, Detach, NewSaga, PerformChunk, Wake
from sagas.bulk.wire_format import decode_outcomes, encode_outcomes
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import (
    Compensation,
    Definition,
    Operation,
    Retry,
    StepDefinition,
    backoff,
    remaining_retry,
)
from sagas.machine.machine import Machine
from sagas.protocol.messages import Call, CallEnded, TimerFired
from sagas.protocol.outcomes import Failure, Outcome
from sagas.text.exact_json import decode_json, encode_json

REFUSED = Outcome("rejected", failure=Failure("Rejected", "no"), attempt=1, retryable=False)
LOST = Outcome("unknown", failure=Failure("Timeout", "no answer"), attempt=1)
NO_WORKER = Outcome("failed", failure=Failure("NotFoundError", "no worker knows it"), attempt=1, not_started=True)


@pytest.fixture
def bulk() -> BulkMachine:
    return new_bulk(max_attempts=4)


def new_bulk(max_attempts: int) -> BulkMachine:
    charge = Operation(uses="charge", connection="bank", retry=Retry(max_attempts=max_attempts, initial_interval=0.1))
    refund = Operation(uses="refund", connection="bank")
    step = StepDefinition(
        id="charge", name="charge", kind="compensatable", do=charge, compensate=Compensation((refund,)),
        guarantee="guarded",
    )  # fmt: skip
    definition = Definition(saga="order", steps=(step,), digest="sha256:order")
    return BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)


def start(bulk: BulkMachine) -> PerformChunk:
    return chunk_of(bulk.start([NewSaga("order-1", {}, {})], 0.0))


def chunk_of(commands: list[BulkCommand]) -> PerformChunk:
    return next(command for command in commands if isinstance(command, PerformChunk))


def ops(chunk: PerformChunk) -> list[str]:
    return [item.call.op for item in chunk.calls]


def retried(bulk: BulkMachine, commands: list[BulkCommand], at: float) -> PerformChunk:
    assert any(isinstance(command, Wake) for command in commands)
    return chunk_of(bulk.woken(at))


def test_a_rejection_of_the_only_attempt_needs_no_seal(bulk: BulkMachine) -> None:
    first = start(bulk)
    bulk.chunk_ended(first.id, [REFUSED], 1.0)
    assert bulk.counts() == {"COMPENSATED": 1}


def test_a_rejection_after_a_lost_attempt_is_sealed(bulk: BulkMachine) -> None:
    first = start(bulk)
    again = retried(bulk, bulk.chunk_ended(first.id, [LOST], 1.0), 2.0)
    assert ops(chunk_of(bulk.chunk_ended(again.id, [REFUSED], 3.0))) == ["seal"]


def test_a_rejection_in_a_later_attempt_of_the_chunk_is_sealed(bulk: BulkMachine) -> None:
    first = start(bulk)
    later = Outcome("rejected", failure=Failure("Rejected", "no"), attempt=2, retryable=False)
    assert ops(chunk_of(bulk.chunk_ended(first.id, [later], 1.0))) == ["seal"]


def test_a_rejection_after_the_time_of_a_repeated_chunk_ran_out_is_sealed(bulk: BulkMachine) -> None:
    """The chunk's first attempt was lost; its second did not come to this call."""
    first = start(bulk)
    again = chunk_of(bulk.chunk_ended(first.id, [None], 1.0, 2))
    assert again.calls[0].earlier_attempts == 1
    assert ops(chunk_of(bulk.chunk_ended(again.id, [REFUSED], 2.0))) == ["seal"]


def test_a_worker_without_the_action_uses_up_no_attempt_after_a_lost_one() -> None:
    """The call is due again much later, so the saga leaves instead of being undone."""
    bulk = new_bulk(max_attempts=2)
    first = start(bulk)
    again = retried(bulk, bulk.chunk_ended(first.id, [LOST], 1.0), 2.0)
    assert bulk.chunk_ended(again.id, [NO_WORKER], 3.0) == [Detach(("order-1",))]


def test_a_worker_without_the_action_uses_up_no_attempt_after_a_lost_one_of_the_chunk() -> None:
    bulk = new_bulk(max_attempts=2)
    first = start(bulk)
    ended = decode_outcomes(encode_outcomes([replace(NO_WORKER, counted=False)], 2), 1)
    assert bulk.chunk_ended(first.id, ended, 3.0) == [Detach(("order-1",))]


def test_attempts_are_known_after_leaving(bulk: BulkMachine) -> None:
    """In its own workflow the saga's first attempt is refused, although one of the bulk workflow's may come later."""
    first = start(bulk)
    bulk.chunk_ended(first.id, [LOST], 1.0)
    commands = bulk.detach("order-1", "somebody acts on it", 1.5)
    assert commands == [Detach(("order-1",))]
    alone = Machine.restore(decode_json(encode_json(bulk.members["order-1"].leave_happy_path().snapshot())))
    (call,) = [command for command in alone.reissue(2.0) if isinstance(command, Call)]
    assert call.earlier_attempts == 1
    alone.next(TimerFired("detached", 2.0))
    (seal,) = [
        each_call for each_call in alone.next(CallEnded(call.id, REFUSED, 3.0, 1)) if isinstance(each_call, Call)
    ]
    assert seal.op == "seal"
    assert alone.view().steps[0].attempts == 2


def test_the_retries_that_are_left_go_on_after_leaving(bulk: BulkMachine) -> None:
    """The saga's own workflow makes the remaining attempts, the next one when it is due, with the next intervals."""
    first = start(bulk)
    again = retried(bulk, bulk.chunk_ended(first.id, [LOST], 1.0), 2.0)
    commands = bulk.chunk_ended(again.id, [LOST], 3.0)  # two lost attempts: it leaves
    assert commands == [Detach(("order-1",))]
    alone = Machine.restore(decode_json(encode_json(bulk.members["order-1"].leave_happy_path().snapshot())))
    (call,) = [command for command in alone.reissue(3.05) if isinstance(command, Call)]
    assert (call.retry.max_attempts, call.earlier_attempts) == (2, 2)
    assert call.retry.initial_interval == pytest.approx(0.4)
    assert call.delay == pytest.approx(0.15)
    (late,) = [command for command in alone.reissue(60.0) if isinstance(command, Call)]
    assert late.delay == 0.0


def test_all_attempts_of_a_lost_chunk_count(bulk: BulkMachine) -> None:
    """The worker of the chunk died each time: the saga goes on alone, with the attempts that are left."""
    first = start(bulk)
    assert first.max_attempts == 4
    commands = bulk.chunk_lost(first.id, replace(LOST, attempt=None), 1.0, 3)
    assert commands == [Detach(("order-1",))]
    alone = Machine.restore(decode_json(encode_json(bulk.members["order-1"].leave_happy_path().snapshot())))
    (call,) = [command for command in alone.reissue(2.0) if isinstance(command, Call)]
    assert (call.retry.max_attempts, call.earlier_attempts) == (1, 3)


def test_a_lost_chunk_can_use_up_the_attempts_of_its_calls(bulk: BulkMachine) -> None:
    first = start(bulk)
    again = retried(bulk, bulk.chunk_ended(first.id, [LOST], 1.0), 2.0)
    assert again.max_attempts == 3
    (seal,) = chunk_of(bulk.chunk_lost(again.id, replace(LOST, attempt=None), 3.0, 3)).calls
    assert seal.call.op == "seal"
    assert bulk.view("order-1").steps[0].attempts == 4


@pytest.mark.parametrize(("attempts", "expected"), [(0, 1), (1, 1), (4, 4), (12, 5), (1_000_000, 5)])
def test_a_chunk_is_attempted_no_more_often_than_its_calls_may_be(attempts: int, expected: int) -> None:
    assert start(new_bulk(attempts)).max_attempts == expected


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        (1, Retry(max_attempts=4, initial_interval=4.0, max_interval=10.0, give_up_after=57.0)),
        (3, Retry(max_attempts=2, initial_interval=10.0, max_interval=10.0, give_up_after=57.0)),
        (9, Retry(max_attempts=1, initial_interval=10.0, max_interval=10.0, give_up_after=57.0)),
    ],
)
def test_the_rest_of_a_policy(attempts: int, expected: Retry) -> None:
    whole = Retry(max_attempts=5, initial_interval=2.0, max_interval=10.0, give_up_after=60.0)
    assert remaining_retry(whole, attempts, 3.0) == expected
    waits = [backoff(whole, attempts + n) for n in (1, 2, 3)]
    assert [backoff(remaining_retry(whole, attempts, 3.0), n) for n in (1, 2, 3)] == waits


@pytest.mark.parametrize(("attempts", "rest"), [(1, (2.0, 3.0)), (2, (3.0,)), (7, (3.0,))])
def test_the_rest_of_the_intervals(attempts: int, rest: tuple[float, ...]) -> None:
    assert remaining_retry(Retry(intervals=(1.0, 2.0, 3.0)), attempts, 0.0).intervals == rest


def test_a_policy_that_gives_up_leaves_time_for_the_attempt_that_is_due() -> None:
    assert remaining_retry(Retry(give_up_after=10.0), 1, 30.0).give_up_after == 1.0
