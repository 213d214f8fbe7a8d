"""The real guard over rows in memory: fast enough to deliver every order there is."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from saga_activities.guard import rules
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.script_transactions import GuardScript, outcome_of_error
from saga_activities.guard.transaction import HELD_EVENT_STATUS, GuardRow, RowOp, RowReason, RowWrite
from sagas.errors import Rejected
from sagas.protocol.outcomes import Outcome
from tests.unit.guard.model import Event, State

TIMES: dict[str, float] = {"scheduled_at": 0.0, "deadline": 0.0}

_EFFECTS: Mapping[Event, str] = {
    "do": "applied",
    "undo": "undone",
    "undo_confirmed": "undone",
    "undo_of_others": "undone",
    "confirm": "confirmed",
}


class Memory:
    """The rows and effects of some generations; a copy is a snapshot."""

    def __init__(self, rows: Mapping[Any, GuardRow], states: Mapping[int, State]) -> None:
        self.rows = dict(rows)
        self.states = dict(states)

    def copy(self) -> Memory:
        return Memory(self.rows, self.states)

    def state(self, generation: int) -> State:
        """The rows and effects of one generation, in terms of the model."""

        def reason(op: RowOp) -> str | None:
            row = self.rows.get((generation, op))
            return None if row is None else row.reason

        effects = self.states.get(generation, State())
        return replace(effects, do=reason("do"), confirm=reason("confirm"), undo=reason("undo"))


class MemoryTransaction:
    """Works on a copy; COMMIT is taking the copy over."""

    def __init__(self, memory: Memory, generation: int) -> None:
        self.memory = memory.copy()
        self.generation = generation
        self.answered = True
        self.unanswered = False
        self.kept_changes = False

    @property
    def sql(self) -> Any:
        return self

    async def effect(self, name: str) -> None:
        state = self.memory.states.get(self.generation, State())
        event = "HELD" if name == "applied" else state.event
        self.memory.states[self.generation] = replace(state, **{name: getattr(state, name) + 1}, event=event)

    async def insert(
        self,
        op: str,
        reason: RowReason,
        *,
        args_hash: str | None = None,
        result: str | None = None,
        origin: str | None = None,
    ) -> bool:
        if (self.generation, op) in self.memory.rows:
            return False
        self.memory.rows[self.generation, op] = GuardRow(reason, args_hash, result, origin)
        return True

    async def check_watermark(self) -> None: ...

    async def rows(self, *, locked: bool = True) -> Mapping[str, GuardRow]:
        return {op: row for (generation, op), row in self.memory.rows.items() if generation == self.generation}

    async def lock_do(self) -> None: ...

    async def refuse_do(self) -> None: ...

    async def delete(self, op: str) -> None: ...

    async def commit(self, row_write: RowWrite | None) -> None:
        if row_write is not None and row_write.held is not None:
            state = self.memory.states.get(self.generation, State())
            if state.event == "HELD":
                self.memory.states[self.generation] = replace(state, event=HELD_EVENT_STATUS[row_write.held])
        if row_write is not None and row_write.result is not None:
            row = self.memory.rows[self.generation, row_write.op]
            self.memory.rows[self.generation, row_write.op] = replace(row, result=row_write.result)

    async def rollback(self) -> None: ...

    async def release(self) -> None: ...


class MemoryGuard(Guard):
    """The guard, its scripts and rules as they are; only the database is a dictionary."""

    def __init__(self, memory: Memory) -> None:
        super().__init__("memory", cast("Any", None))
        self.memory = memory

    async def run(
        self,
        entry_key: EntryKey,
        op: RowOp | Literal["seal"],
        script: GuardScript,
        scheduled_at: float,
        deadline: float,
        args_hash: str | None = None,
        idle_limit: float | None = None,
        read_only: bool = False,
    ) -> Outcome:
        tx = MemoryTransaction(self.memory, entry_key.generation)
        try:
            verdict = await script(tx)
        except Rejected as refusal:
            return outcome_of_error(refusal)
        if verdict.commit:
            await tx.commit(verdict.row_write)
            self.memory = tx.memory
        return verdict.outcome


def body(name: str | None) -> rules.GuardedBody:
    """An action with one effect; None: it refuses."""

    async def act(sql: Any) -> Any:
        if name is None:
            raise Rejected("no")
        await sql.effect(name)
        return {"effect": name}

    return act


def now(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    """The outcome of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("rows in memory never make anybody wait")


async def deliver(guard: Guard, address: EntryKey, event: Event, make_body: Any, times: Mapping[str, float]) -> Outcome:
    """Deliver one event to a guard, whatever database is behind it."""
    clock: dict[str, Any] = {"scheduled_at": times["scheduled_at"], "deadline": times["deadline"]}
    act = make_body(_EFFECTS.get(event))
    match event:
        case "do" | "refused_do":
            return await guard.do(address, "hash", act, **clock)
        case "undo" | "constraint_conflict":
            return await guard.undo(address, act, **clock)
        case "undo_of_others":
            return await guard.undo(address, act, forward_hash="other", **clock)
        case "undo_confirmed":
            return await guard.undo(address, act, confirmed_body=make_body("undone_confirmed"), **clock)
        case "confirm":
            return await guard.confirm(address, act, **clock)
        case "seal":
            return await guard.seal(address, **clock)
        case "ask_committed" | "ask_over":
            return await guard.decide_held_events(address, committed=event == "ask_committed", **clock)


def answer(outcome: Outcome) -> str:
    """The outcome in terms of the model."""
    if isinstance(outcome.result, dict) and "held" in outcome.result:
        return outcome.result["held"]
    return outcome.marker or outcome.kind
