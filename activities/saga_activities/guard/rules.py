"""The guard's rules: what a row that is there, or is not, means. guarantees §4, in code.

Each function is one transaction's script. It ends in a :class:`Verdict`: the answer, and whether to commit.
Insert order is always do, confirm, undo, and a script inserts its own row before it runs an action. A row whose
transaction is still open makes the second insert wait; a committed one does not, so an insert that was won earlier
excludes nobody: each action has to win the row of its own operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from saga_activities.guard import result_codec
from saga_activities.guard.session import SqlSession
from saga_activities.guard.transaction import GuardRow, GuardTransaction, HeldDecision, RowOp, RowReason, RowWrite
from sagas.protocol.outcomes import Failure, Marker, Outcome

GuardedBody = Callable[[SqlSession], Awaitable[Any]]
"""An action. Its result is stored; ``Rejected`` or any other exception takes everything back."""

GuardMode = Literal["decide", "mark", "own"]
GuardRows = Mapping[RowOp, GuardRow]

NOTHING_TO_UNDO = "NOTHING_TO_UNDO"
ELSEWHERE = "elsewhere"
CONFIRMED = "confirmed"
MARKERS: Mapping[str, Marker] = {
    NOTHING_TO_UNDO: "nothing_to_undo",
    ELSEWHERE: "elsewhere",
    CONFIRMED: "confirmed",
}
"""What a word in the place of a result means to the caller."""


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """The answer of a script; ``commit`` False takes the transaction back."""

    outcome: Outcome
    commit: bool = False
    row_write: RowWrite | None = None


async def do(tx: GuardTransaction, args_hash: str | None, body: GuardedBody) -> ScriptResult:
    """Run the action once; a second delivery gets the stored result, one after the undo is refused."""
    if await tx.insert("do", "do", args_hash=args_hash):
        return await _run_body(tx, body, "do")
    return ScriptResult(stored_do_outcome(await tx.rows(), args_hash))


def stored_do_outcome(rows: GuardRows, args_hash: str | None) -> Outcome:
    """What an attempt of `do` is told that found its row."""
    row = rows["do"]
    if is_sealed(row):
        return late("this step was sealed before the attempt came: it never happened and never will")
    if has_been_undone(rows):
        return late("this step has been undone; the attempt came too late")
    if not same_arguments(row, args_hash):
        return needs_operator(
            "ArgumentsChanged",
            "key used with other arguments",
            "the step was done with other arguments under the same key, and was left as it is",
        )
    return done(row)


async def undo(
    tx: GuardTransaction,
    body: GuardedBody | None,
    confirmed_body: GuardedBody | Literal["elsewhere"] | None,
    known_done: bool,
    mode: GuardMode,
) -> ScriptResult:
    """Undo the step once, or see to it that it never happens.

    ``mark`` decides without an action; ``own`` runs one that was decided elsewhere. ``confirmed`` undoes a step that
    was confirmed; where that lives elsewhere, a word of the guard takes the place of its result.
    """
    if mode == "own":
        return await _run_own_row(tx, "own_undo", "undo", body)
    if await tx.insert("do", "undo"):
        if known_done:
            return ScriptResult(unknown_effect())
        await write_tombstones(tx)
        return ScriptResult(nothing_to_undo(), commit=True)
    fenced = await tx.insert("confirm", "undo")
    first = await tx.insert("undo", "undo")
    rows = await tx.rows()
    if is_sealed(rows["do"]):
        return ScriptResult(unknown_effect() if known_done else nothing_to_undo())
    if not first:
        return ScriptResult(done(rows["undo"]))
    action = body
    if not fenced and rows["confirm"].reason == "confirm":
        if confirmed_body is None:
            return ScriptResult(cannot_undo_confirmed())
        if confirmed_body == "elsewhere":
            return _decide_only("undo", CONFIRMED)
        action = confirmed_body
    if mode == "mark" and action is body:
        return _decide_only("undo", ELSEWHERE)
    return await _run_body(tx, action, "undo")


async def confirm(tx: GuardTransaction, body: GuardedBody | None, mode: GuardMode) -> ScriptResult:
    """Confirm a step that was done and not undone, once."""
    if mode == "own":
        return await _run_own_row(tx, "own_confirm", "confirm", body)
    won = await tx.insert("confirm", "confirm")
    rows = await tx.rows()
    if not may_be_confirmed(rows):
        return ScriptResult(late("this step was not done, or has been undone: there is nothing to confirm"))
    if not won:
        return ScriptResult(done(rows["confirm"]))
    if mode == "mark":
        return _decide_only("confirm", ELSEWHERE)
    return await _run_body(tx, body, "confirm")


async def seal(tx: GuardTransaction) -> ScriptResult:
    """Find out whether the step happened, and if it did not: see to it that it never does."""
    if await tx.insert("do", "undo"):
        await write_tombstones(tx)
        return ScriptResult(sealed(), commit=True)
    return ScriptResult(stored_seal_outcome(await tx.rows()))


async def release_held(tx: GuardTransaction) -> ScriptResult:
    """The saga is past its commit point: release what this entry still holds. (What was undone holds nothing.)"""
    await tx.rows()
    return decide_held("release")


async def drop_held(tx: GuardTransaction) -> ScriptResult:
    """The saga ended without its commit point: drop what this entry still holds. (What was confirmed holds nothing.)

    With the fence of an undo, so that no confirm can be right later.
    """
    if await tx.insert("do", "undo"):
        await write_tombstones(tx)
    else:
        await tx.insert("confirm", "undo")
    return decide_held("drop")


def decide_held(held: HeldDecision) -> ScriptResult:
    """The decision about held events alone; no row of an operation is written with it."""
    return ScriptResult(
        Outcome.done({"held": held}, attempt=None), commit=True, row_write=RowWrite("confirm", None, held=held)
    )


def stored_seal_outcome(rows: GuardRows) -> Outcome:
    """What a seal is told that found the row of `do`."""
    if is_sealed(rows["do"]):
        return sealed()
    if has_been_undone(rows):
        return late("this step has already been undone")
    return done(rows["do"])


def stored_outcome(op: RowOp | Literal["seal"], rows: GuardRows, args_hash: str | None) -> Outcome | None:
    """What is known about an operation whose COMMIT got lost, from its rows; None: its row is not there."""
    if ("do" if op == "seal" else op) not in rows:
        return None
    match op:
        case "seal":
            return stored_seal_outcome(rows)
        case "do":
            return stored_do_outcome(rows, args_hash)
        case "undo":
            return nothing_to_undo() if is_sealed(rows["do"]) else done(rows["undo"])
        case "confirm":
            return done(rows["confirm"]) if may_be_confirmed(rows) else late("this step has been undone")
        case _:
            return done(rows[op])


# The conditions, one function each: a test takes each away and must see an effect leak.


def is_sealed(row: GuardRow) -> bool:
    return row.reason == "undo"


def has_been_undone(rows: GuardRows) -> bool:
    return "undo" in rows


def same_arguments(row: GuardRow, args_hash: str | None) -> bool:
    """A row written by a person's decision carries no hash and accepts any."""
    return row.args_hash is None or args_hash is None or row.args_hash == args_hash


def may_be_confirmed(rows: GuardRows) -> bool:
    row = rows.get("do")
    if row is None or is_sealed(row) or has_been_undone(rows):
        return False
    return "confirm" not in rows or rows["confirm"].reason == "confirm"


def held_decision_of(op: RowOp) -> HeldDecision | None:
    """What an operation decides about the entry's held events, whatever action it runs, and wherever that lives."""
    return {"confirm": "release", "undo": "drop"}.get(op)  # pyright: ignore[reportReturnType]


async def write_tombstones(tx: GuardTransaction) -> None:
    """A sealed step also has its other rows, so that no confirm and no undo finds room later."""
    await tx.insert("confirm", "undo", result=result_codec.encode_marker(NOTHING_TO_UNDO))
    await tx.insert("undo", "undo", result=result_codec.encode_marker(NOTHING_TO_UNDO))


async def _run_own_row(tx: GuardTransaction, op: RowOp, reason: RowReason, body: GuardedBody | None) -> ScriptResult:
    if not await tx.insert(op, reason):
        return ScriptResult(done((await tx.rows())[op]))
    return await _run_body(tx, body, op)


async def _run_body(tx: GuardTransaction, body: GuardedBody | None, op: RowOp) -> ScriptResult:
    """Run the action; its result goes into the row of ``op``, which this transaction has inserted."""
    result = result_codec.encode(None if body is None else await body(tx.sql))
    outcome = Outcome.done(result_codec.decode(result), attempt=None)
    return ScriptResult(outcome, commit=True, row_write=RowWrite(op, result, held_decision_of(op)))


def _decide_only(op: RowOp, marker: str) -> ScriptResult:
    """Decided here; the action lives elsewhere."""
    outcome = Outcome.done(attempt=None, marker=MARKERS[marker])
    return ScriptResult(
        outcome, commit=True, row_write=RowWrite(op, result_codec.encode_marker(marker), held_decision_of(op))
    )


def done(row: GuardRow) -> Outcome:
    """What the row stored: a result, or a word of the guard."""
    marker = result_codec.decode_marker(row.result)
    if marker is None:
        return Outcome.done(result_codec.decode(row.result), attempt=None)
    return Outcome.done(attempt=None, marker=MARKERS[marker[result_codec.MARKER_KEY]])


def nothing_to_undo() -> Outcome:
    return Outcome.done(attempt=None, marker="nothing_to_undo")


def sealed() -> Outcome:
    return Outcome.done(attempt=None, marker="sealed")


def late(message: str) -> Outcome:
    return Outcome("late", failure=Failure("AlreadyCompensated", message), retryable=False)


def unknown_effect() -> Outcome:
    return needs_operator(
        "UnknownEffect",
        "the guard does not know this effect",
        "the step is known to be done, but its row is not in this database: nothing was changed",
        marker="unknown_effect",
    )


def cannot_undo_confirmed() -> Outcome:
    return needs_operator(
        "Confirmed",
        "the step has been confirmed, and no action undoes a confirmed effect",
        "the step has been confirmed and has no `compensate.confirmed`: nothing was changed",
        marker="confirmed",
    )


def needs_operator(kind: str, park_reason: str, message: str, marker: Marker | None = None) -> Outcome:
    """An answer that only a person can go on from."""
    return Outcome("failed", failure=Failure(kind, message), marker=marker, retryable=False, park_reason=park_reason)
