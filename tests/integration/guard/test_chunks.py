"""Chunks against the single guard: the same calls, after the same history, have the same outcomes, rows and effects."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from sagas.actions.batch import BatchStep, Item
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.bulk.wire_format import decode_outcomes, encode_outcomes
from sagas.errors import Rejected
from sagas.protocol.messages import CallOperation, GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key
from tests.helpers.sampling import every_nth, scaled
from tests.integration.guard.conftest import GuardDatabase, new_attempt

_UUID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")
EFFECT = "insert into chunk_effect values (:id, :kind)"
TABLE = """
create table if not exists chunk_effect (id varchar(200), kind varchar(30), primary key (id, kind))
"""
HOW = ("ok", "ok", "ok", "refused", "error", "twice", "late twice")
"""What an action does. ``twice``: its second statement violates a constraint; ``late twice``: it catches the error."""


async def perform(step: Step, kind: str, how: str) -> dict[str, Any]:
    await step.sql.execute(EFFECT, id=step.saga_id, kind=kind)
    step.emit("effects", key=step.saga_id, value={"kind": kind})
    if how in ("twice", "late twice"):
        try:
            await step.sql.execute(EFFECT, id=step.saga_id, kind=kind)
        except Exception:
            if how == "twice":
                raise
    if how == "refused":
        raise Rejected("no", why="the test says so")
    if how == "error":
        raise RuntimeError("it fails")
    return {"kind": kind}


@action("one", connection="shop")
async def act(step: Step, how: str = "ok", n: int = 0) -> dict[str, Any]:
    return await perform(step, step.op, how)


@action("many", connection="shop", batch=True)
async def many(step: BatchStep, items: list[Item]) -> list[Any]:
    results: list[Any] = []
    for item in items:
        if item["how"] == "error":
            raise RuntimeError("it fails")
        if item["how"] == "refused":
            results.append(Rejected("no", why="the test says so"))
            continue
        for _ in range(2 if "twice" in item["how"] else 1):
            await step.sql.execute(EFFECT, id=item.saga_id, kind=item.op)
        item.emit("effects", key=item.saga_id, value={"kind": item.op})
        results.append({"kind": item.op})
    return results


ACTIONS = Actions([getattr(act, ACTION_ATTRIBUTE), getattr(many, ACTION_ATTRIBUTE)])


def arguments(form: str, saga_id: str, op: str, how: str, n: int) -> Mapping[str, Any]:
    """The arguments that make an action of this form behave so."""
    if form in ("one", "many"):
        return {"how": how, "n": n}
    if form == "outbox.emit":
        return {"events": [{"topic": "effects", "key": op, "value": {"n": n}}]}
    values = "(:id, :kind)" if how not in ("twice", "late twice") else "(:id, :kind), (:id, :kind)"
    return {
        "connection": "shop",
        "run": f"insert into chunk_effect select x.* from (select :id as id, :kind as kind) x where {n} = {n}"
        if how == "ok"
        else f"insert into chunk_effect values {values}",
        "params": {"id": saga_id, "kind": op},
        **({"expect_rows": 7, "rejected": "no"} if how in ("refused", "error") else {}),
    }


@dataclass(frozen=True)
class Form:
    """The action, operation and guard mode that the calls of a chunk have in common."""

    action: str
    op: CallOperation
    mode: str


FORMS = [
    *(Form(name, op, "decide") for name in ("one", "many", "sql", "outbox.emit") for op in ("do", "undo", "confirm")),
    Form("one", "undo", "own"),
    Form("many", "confirm", "own"),
    Form("saga.undo", "undo", "mark"),
    Form("saga.confirm", "confirm", "mark"),
    Form("saga.seal", "seal", "decide"),
]


def call(form: Form, saga_id: str, how: str, n: int, known_done: bool, confirmed: Any) -> Invocation:
    undo = form.op == "undo"
    key = idempotency_key(saga_id, "pay", 1, form.op if form.op in ("undo", "confirm") else "")
    guard = GuardSpec("shop", form.mode, undo and known_done, confirmed if undo else None)  # pyright: ignore[reportArgumentType]
    values = {} if form.action.startswith("saga.") else arguments(form.action, saga_id, form.op, how, n)
    return Invocation(form.action, values, key, saga_id, "pay", form.op, 1, guard=guard, saga="order")


def summary(outcome: Outcome | None, saga_id: str) -> Any:
    assert outcome is not None
    failure = None if outcome.failure is None else (outcome.failure.type, outcome.failure.message.partition("\n")[0])
    if failure is not None and failure[0] in ("UniqueViolation", "InFailedSqlTransaction"):
        failure = "a constraint"  # which of its errors an action ends with that goes on after the first
    facts = (
        outcome.kind,
        outcome.marker,
        outcome.result,
        failure,
        outcome.park_reason,
        outcome.retryable and not outcome.conflict,
    )
    return without_ids(facts, saga_id)


def without_ids(facts: Any, saga_id: str) -> str:
    """The facts as text, without the ids of the saga and its events."""
    return _UUID.sub("UUID", repr(facts).replace(saga_id, "ID"))


async def left_by(database: GuardDatabase, saga_id: str) -> Any:
    """Guard rows, effects and events of a saga."""
    queries = (
        "select op, reason, result, args_hash is null from saga_guard where saga_id = :id order by op",
        "select kind from chunk_effect where id = :id order by kind",
        "select topic, event_key, status from saga_outbox where saga_id = :id order by id",
    )
    rows_of_queries = [
        sorted(without_ids(tuple(row), saga_id) for row in await database.rows(query, id=saga_id)) for query in queries
    ]
    return repr(rows_of_queries)


class Bench:
    """Performs calls one by one, and as chunks."""

    def __init__(self, database: GuardDatabase) -> None:
        self.database = database
        bodies = ActionBodies(ACTIONS)
        self.single = Dispatcher(bodies, database.connections, HttpConnections({}))
        self.chunks = ChunkPerformer(database.guard, bodies)

    async def alone(self, invocation: Invocation) -> Outcome:
        return await self.single.perform(invocation, new_attempt())

    async def chunk(self, calls: Sequence[Invocation]) -> list[Outcome | None]:
        return await self.chunks.perform(calls, new_attempt())


@pytest.fixture
async def bench(guard_database: GuardDatabase) -> Bench:
    await guard_database.rows(TABLE)
    return Bench(guard_database)


def random_call(dice: random.Random, form: Form) -> Callable[[str], Invocation]:
    how, n, known_done = dice.choice(HOW), dice.choice((0, 0, 0, 1)), dice.random() < 0.3
    confirmed = dice.choice((None, None, "elsewhere", ("one", {"how": "ok", "n": 5})))
    return lambda saga_id: call(form, saga_id, how, n, known_done, confirmed)


HISTORIES = [Form("one", "do", "decide"), *FORMS[-5:], Form("one", "undo", "decide"), Form("one", "confirm", "decide")]


async def test_a_chunk_does_what_single_calls_do(bench: Bench) -> None:
    """Items with random histories, behaviours and arguments, in chunks of each form."""
    rounds, items = scaled((1, 2), (6, 6))
    dice = random.Random(f"{bench.database.kind} {rounds}")
    wrong: list[str] = []
    for form in FORMS * rounds:
        pairs: list[tuple[Invocation, Invocation]] = []
        for _ in range(items):
            ids = f"one-{uuid4()}", f"all-{uuid4()}"
            before = [
                random_call(dice, dice.choice(HISTORIES[:1] * 4 + HISTORIES))
                for _ in range(dice.choice((0, 1, 1, 2, 3)))
            ]
            for earlier in before:
                for id in ids:
                    await bench.alone(earlier(id))
            make = random_call(dice, form)
            pairs.append((make(ids[0]), make(ids[1])))
        alone = [await bench.alone(single) for single, _ in pairs]
        together = await bench.chunk([item for _, item in pairs])
        for (single, item), ours, theirs in zip(pairs, together, alone, strict=True):
            facts = [
                (summary(outcome, chunk_call.saga_id), await left_by(bench.database, chunk_call.saga_id))
                for chunk_call, outcome in ((item, ours), (single, theirs))
            ]
            if facts[0] != facts[1]:
                wrong.append(f"{form} {item.arguments} {item.guard}\n  chunk  {facts[0]}\n  single {facts[1]}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong[:6])


async def test_repeating_a_chunk_changes_nothing(bench: Bench) -> None:
    for form in every_nth(2, FORMS[:9]):
        calls = [call(form, f"again-{uuid4()}", "ok", 0, False, None) for _ in range(5)]
        first = await bench.chunk(calls)
        rows = [await left_by(bench.database, call.saga_id) for call in calls]
        assert [summary(a, c.saga_id) for a, c in zip(await bench.chunk(calls), calls, strict=True)] == [
            summary(a, c.saga_id) for a, c in zip(first, calls, strict=True)
        ]
        assert [await left_by(bench.database, call.saga_id) for call in calls] == rows


async def test_a_chunk_beside_single_calls_and_another_chunk(bench: Bench) -> None:
    """Each effect is there once, however many chunks and single calls race for it, and all of them report it."""
    for name in ("one", "many", "sql"):
        calls = [call(Form(name, "do", "decide"), f"race-{uuid4()}", "ok", 0, False, None) for _ in range(8)]
        chunks = [bench.chunk(calls), bench.chunk(calls[::-1]), *(bench.alone(call) for call in calls[::3])]
        results: list[Any] = await asyncio.gather(*chunks)
        told = [*results[0], *results[1], *results[2:]]
        for outcome in told:
            assert outcome.kind == "done" or outcome.infrastructure, outcome
        for outcome in await bench.chunk(calls):
            assert outcome is not None
            assert outcome.kind == "done"
        for chunk_call in calls:
            assert (
                await bench.database.rows("select count(*) from chunk_effect where id = :id", id=chunk_call.saga_id)
            )[0][0] == 1


async def test_an_action_without_a_worker_counts_in_no_attempt_of_a_chunk(bench: Bench) -> None:
    calls = [replace(call(FORMS[0], f"missing-{uuid4()}", "ok", 0, False, None), action="missing")]
    outcomes = await bench.chunk(calls)
    for attempt, not_started, counted in ((1, True, True), (2, False, False)):
        (outcome,) = decode_outcomes(encode_outcomes(outcomes, attempt), 1)
        assert outcome is not None
        assert (outcome.kind, outcome.not_started, outcome.counted) == ("failed", not_started, counted)
