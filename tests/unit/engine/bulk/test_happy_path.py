"""Sagas that share the happy path do what they would do with machines of their own, whatever happens to them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sagas.bulk.bulk_machine import BulkCommand, BulkMachine, Detach, NewSaga, PerformChunk, Record, Wake
from sagas.bulk.happy_path import HappyPathSaga, why_not_on_happy_path
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Compensation, Definition, Operation, Retry, Savepoint, StepDefinition
from sagas.expressions.limits import WorkMeter
from sagas.machine import state_budget, task_budget
from sagas.protocol.messages import CancelRequested
from sagas.protocol.outcomes import Failure, Outcome
from tests.helpers.sampling import scaled

IDS = tuple(f"order-{number}" for number in range(6))
LIMIT = 400
FAILING = "${{ input.items[input.n] }}"
"""Fails for the sagas whose ``n`` is 5."""


@dataclass
class Pair:
    """Two bulk machines with the same events: with the happy path, and with a machine for each saga."""

    sharing: BulkMachine
    separate: BulkMachine
    seen: Counter[str] = field(default_factory=Counter)
    meters: tuple[WorkMeter, WorkMeter] = field(default_factory=lambda: (WorkMeter(), WorkMeter()))
    calls: int = 0

    @classmethod
    def of(cls, definition: Definition, chunk_size: int) -> Pair:
        plan = ExecutionPlan(definition)
        variables = {"rate": 3}
        sharing, single = (
            BulkMachine(definition, plan, variables, chunk_size=chunk_size, happy_path=shares)
            for shares in (True, False)
        )
        return cls(sharing, single)

    def call(self, name: str, *args: Any, **more: Any) -> list[BulkCommand]:
        """Call a method of both. Three calls in a row are in one workflow task."""
        if self.calls % 3 == 0:
            self.meters = WorkMeter(), WorkMeter()
            for bulk, meter in zip((self.sharing, self.separate), self.meters, strict=True):
                bulk.begin_task(meter)
        self.calls += 1
        meters = self.meters
        answers = [getattr(bulk, name)(*args, **more) for bulk in (self.sharing, self.separate)]
        assert answers[0] == answers[1]
        assert (meters[0].steps, meters[0].work) == (meters[1].steps, meters[1].work)
        self._compare()
        return answers[0]

    def _compare(self) -> None:
        assert self.sharing.counts() == self.separate.counts()
        for own, other in zip(self.sharing.members.values(), self.separate.members.values(), strict=True):
            assert own.why_leaving == other.why_leaving
            for name in ("state", "started_at", "ended_at", "highest_generation", "paused"):
                assert getattr(own.progress, name) == getattr(other.progress, name)
            assert own.progress.compact_snapshot() == other.progress.compact_snapshot()
            shares = isinstance(own.progress, HappyPathSaga)
            self.seen[f"{'shares' if shares else 'left the path'} {own.state}"] += 1
            assert not isinstance(other.progress, HappyPathSaga)


def random_definition(source: random.Random) -> Definition:
    """Shared calls in a graph, with a pivot or without, with arguments of all kinds."""
    count = source.randint(1, 5)
    pivot = source.choice((None, None, *range(count)))
    forward = pivot is None and source.random() < 0.1
    steps: list[StepDefinition] = []
    for number in range(count):
        before = [step.id for step in steps]
        needs = before if number in (pivot, count - 1) else [id for id in before if source.random() < 0.5]
        if pivot is not None and number > pivot:
            needs = sorted({*needs, f"s{pivot}"})
        with_: dict[str, Any] = {
            "n": "${{ input.n + vars.rate }}",
            "key": "${{ step.key }}",
            "list": "${{ input.items.map(item, item) }}",
        }
        for need in needs:
            with_[need] = f"${{{{ default(steps.{need}.result, saga.started_at) }}}}"
        if source.random() < 0.3:
            with_["item"] = FAILING
        do = Operation(uses=source.choice(("sql", "shop.take")), with_=with_, connection="shop", retry=Retry(3, 0.5))
        if do.uses == "sql":
            do = replace(do, with_={"run": "update stock set n = :n", "params": with_, "connection": "shop"})
        after = forward or (pivot is not None and number > pivot)
        undo = Operation(uses="shop.give", connection="shop", with_=source.choice((None, {"of": "${{ input.n }}"})))
        kind = "pivot" if number == pivot else "retriable" if after else "compensatable"
        compensate = None if kind != "compensatable" else Compensation((undo,))
        on_failure = source.choice(("compensate", "compensate", "continue", "park"))
        on_failure = on_failure if kind == "compensatable" else "compensate"
        steps.append(
            StepDefinition(
                id=f"s{number}",
                name=f"Step {number}",
                kind=kind,
                do=do,
                needs=tuple(needs),
                compensate=compensate,
                on_failure=on_failure,
                guarantee="guarded",
            )
        )
    output = source.choice((None, {"last": f"${{{{ steps.s{count - 1}.result }}}}", "id": "${{ saga.id }}"}, FAILING))
    return Definition(
        saga="order",
        steps=tuple(steps),
        digest="sha256:order",
        output=output,
        deadline=source.choice((None, 60.0)),
        warn_after=source.choice((None, 30.0)),
        recovery="forward" if forward else "backward",
    )


def random_outcome(source: random.Random, percent: int) -> Outcome | None:
    if source.random() * 100 >= percent:
        return Outcome.done(source.choice((None, [], {"price": "1.50"}, 7, False, "x" * 70)), attempt=1)
    failure = Failure("Some", "for some reason")
    return source.choice(
        (
            None,
            Outcome("rejected", failure=failure, attempt=1, retryable=False),
            Outcome("failed", failure=failure, attempt=1),
            Outcome("unknown", failure=failure, attempt=1, infrastructure=source.random() < 0.5),
            Outcome("late", failure=failure, attempt=1, retryable=False),
            Outcome.done({"again": True}, attempt=2),
            Outcome.done(attempt=1, marker="nothing_to_undo"),
        )
    )


def live(seed: int) -> Counter[str]:
    """The sagas of one bulk workflow, until all have ended or left."""
    source = random.Random(seed)
    definition = random_definition(source)
    assert why_not_on_happy_path(definition) is None
    percent = source.choice((0, 0, 5, 30))
    pair = Pair.of(definition, source.choice((2, 10)))
    chunks: list[PerformChunk] = []
    at, wake_at, detaching, recording = 100.0, None, (), ()

    def take(commands: Sequence[BulkCommand]) -> None:
        nonlocal wake_at, detaching, recording
        for command in commands:
            match command:
                case PerformChunk():
                    chunks.append(command)
                case Wake():
                    wake_at = at + command.seconds
                case Detach():
                    detaching = command.sagas
                case Record():
                    recording = command.sagas

    inputs = [{"n": source.choice((0, 1, 2, 2, 5)), "items": [None, "b", 3]} for _ in IDS]
    take(
        pair.call(
            "start",
            [NewSaga(id, own, {}, source.choice((1, 1, 3))) for id, own in zip(IDS, inputs, strict=True)],
            at,
            alone={IDS[5]: "it may have been started on its own"} if source.random() < 0.2 else {},
        )
    )
    for _ in range(LIMIT):
        if pair.sharing.finished:
            return pair.seen
        at += source.choice((0.0, 0.25, 10.0))
        if source.random() < 0.1:  # somebody looks at a saga, on one worker only
            assert pair.sharing.view(source.choice(IDS)).saga == "order"
        if percent and source.random() < 0.05:
            take(pair.call("cancel", CancelRequested(at), source.choice((None, IDS[:2]))))
        elif percent and source.random() < 0.05:
            take(pair.call("detach", source.choice(IDS), "somebody acts on it", at))
        elif chunks and source.random() < 0.9:
            chunk = chunks.pop(source.randrange(len(chunks)))
            if source.random() * 100 < percent / 4:
                lost = Outcome("unknown", failure=Failure("Timeout", "no heartbeat in time"))
                take(pair.call("chunk_lost", chunk.id, lost, at, 1))
            else:
                outcomes = [random_outcome(source, percent) for _ in chunk.calls]
                take(pair.call("chunk_ended", chunk.id, outcomes, at, source.choice((1, 1, 1, 2))))
        elif detaching:
            gone, detaching = detaching, ()
            take(pair.call("detached", gone, at))
        elif recording:
            gone, recording = recording, ()
            take(pair.call("recorded", gone, at))
        elif wake_at is not None:
            at, wake_at = max(at, wake_at), None
            take(pair.call("woken", at))
    raise AssertionError(f"no end after {LIMIT} events: {pair.sharing.counts()}")


def test_sharing_changes_nothing_of_what_sagas_do() -> None:
    seen: Counter[str] = Counter()
    for seed in range(scaled(80, 20_000)):
        seen += live(seed)
    assert {f"shares {state}" for state in ("RUNNING", "COMMITTED", "COMPLETED")} <= seen.keys()
    departures = {
        f"left the path {state}" for state in ("RUNNING", "COMPENSATING", "COMPENSATED", "COMPLETED", "PARKED")
    }
    assert departures <= seen.keys()


@pytest.mark.slow
def test_sharing_changes_nothing_of_when_expressions_are_left_to_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_budget, "MAX_TASK_STEPS", 3)
    monkeypatch.setattr("sagas.bulk.happy_path.MAX_TASK_STEPS", 3)
    for seed in range(scaled(40, 5_000)):
        live(seed)


def test_an_end_without_commands_is_left_to_a_timer_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's expressions have taken long when a call ends whose sibling is still open."""
    monkeypatch.setattr(task_budget, "MAX_TASK_STEPS", 3)
    monkeypatch.setattr("sagas.bulk.happy_path.MAX_TASK_STEPS", 3)
    do = Operation(uses="shop.take", with_={}, connection="shop")
    first = StepDefinition(id="a", name="A", kind="compensatable", do=do, guarantee="guarded")
    heavy = replace(do, with_={"list": "${{ input.items.map(item, item) }}"})
    last = replace(first, id="c", do=heavy, needs=("a", "b"))
    definition = Definition(saga="order", steps=(first, replace(first, id="b"), last))
    pair = Pair.of(definition, 1)
    started = pair.call("start", [NewSaga(id, {"items": [1, 2, 3, 4, 5]}, {}) for id in IDS[:2]], 1.0)
    chunk = {(run.calls[0].call.id, run.calls[0].saga_id): run.id for run in started if isinstance(run, PerformChunk)}
    done = [Outcome.done(attempt=1)]
    pair.call("chunk_ended", chunk["a", IDS[0]], done, 2.0)
    pair.call("woken", 2.0)
    pair.call("chunk_ended", chunk["b", IDS[0]], done, 3.0)  # begins a task, and evaluates the arguments of c
    assert any(isinstance(command, Wake) for command in pair.call("chunk_ended", chunk["a", IDS[1]], done, 3.0))


def test_a_result_beyond_the_budget_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_budget, "STATE_BUDGET", 120)
    for seed in range(scaled(40, 5_000)):
        live(seed)


def test_most_sagas_have_no_machine() -> None:
    """Nor one for each point: only the first saga that reaches it needs one, for a moment."""
    step = StepDefinition(
        id="pay", name="Pay", kind="pivot", do=Operation(uses="shop.pay", with_={}, connection="shop")
    )
    definition = Definition(saga="order", steps=(step, replace(step, id="ship", kind="retriable", needs=("pay",))))
    bulk = BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=10)
    done = Outcome.done(7, attempt=1)
    rejected = Outcome("rejected", failure=Failure("Some", "no"), attempt=1, retryable=False)
    [first] = [c for c in bulk.start([NewSaga(id, {}, {}) for id in IDS], 1.0) if isinstance(c, PerformChunk)]
    commands = bulk.chunk_ended(first.id, [*[done] * 5, rejected], 2.0)
    for chunk in [command for command in commands if isinstance(command, PerformChunk)]:
        sealed = chunk.calls[0].call.op == "seal"
        bulk.chunk_ended(
            chunk.id, [Outcome.done(attempt=1, marker="sealed") if sealed else done] * len(chunk.calls), 3.0
        )
    assert [isinstance(member.progress, HappyPathSaga) for member in bulk.members.values()] == [True] * 5 + [False]
    assert bulk.counts() == {"COMPLETED": 5, "COMPENSATED": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"if_": "input.n > 3"},
        {"for_each": "${{ input.items }}"},
        {"savepoint": Savepoint(2, 0.0)},
        {"confirm": Operation(uses="shop.confirm", connection="shop")},
        {"fairness_key": "${{ input.n }}"},
        {"do": Operation(uses="require", with_={"that": "${{ true }}"})},
        {"do": Operation(uses="http", with_={"url": "https://example.com"})},
    ],
)
def test_what_depends_on_values_or_is_not_batchable_is_not_shared(change: dict[str, Any]) -> None:
    step = StepDefinition(
        id="pay", name="Pay", kind="compensatable", do=Operation(uses="shop.pay", with_={}, connection="shop")
    )
    assert why_not_on_happy_path(Definition(saga="order", steps=(step,))) is None
    assert why_not_on_happy_path(Definition(saga="order", steps=(replace(step, **change),))) is not None
