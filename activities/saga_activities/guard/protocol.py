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

from saga_activities.guard import codec
from saga_activities.guard.sql_handle import Sql
from saga_activities.guard.transaction import GuardRow, Held, Reason, RowOp, Save, Transaction
from sagas.outcomes import Failure, Marker, Outcome

Body = Callable[[Sql], Awaitable[Any]]
"""An action. Its result is stored; ``Rejected`` or any other exception takes everything back."""

Mode = Literal["decide", "mark", "own"]
Rows = Mapping[RowOp, GuardRow]

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
class Verdict:
    """The answer of a script; ``commit`` False takes the transaction back."""

    outcome: Outcome
    commit: bool = False
    save: Save | None = None


async def do(tx: Transaction, args_hash: str | None, body: Body) -> Verdict:
    """Run the action once; a second delivery gets the stored result, one after the undo is refused."""
    if await tx.insert("do", "do", args_hash=args_hash):
        return await _act(tx, body, "do")
    return Verdict(told_do(await tx.rows(), args_hash))


def told_do(rows: Rows, args_hash: str | None) -> Outcome:
    """What an attempt of `do` is told that found its row."""
    row = rows["do"]
    if is_sealed(row):
        return late("this step was sealed before the attempt came: it never happened and never will")
    if has_been_undone(rows):
        return late("this step has been undone; the attempt came too late")
    if not same_arguments(row, args_hash):
        return parks(
            "ArgumentsChanged",
            "key used with other arguments",
            "the step was done with other arguments under the same key, and was left as it is",
        )
    return done(row)


async def undo(
    tx: Transaction, body: Body | None, confirmed: Body | Literal["elsewhere"] | None, known_done: bool, mode: Mode
) -> Verdict:
    """Undo the step once, or see to it that it never happens.

    ``mark`` decides without an action; ``own`` runs one that was decided elsewhere. ``confirmed`` undoes a step that
    was confirmed; where that lives elsewhere, a word of the guard takes the place of its result.
    """
    if mode == "own":
        return await _own(tx, "own_undo", "undo", body)
    if await tx.insert("do", "undo"):
        if known_done:
            return Verdict(unknown_effect())
        await fill_seal(tx)
        return Verdict(nothing_to_undo(), commit=True)
    fenced = await tx.insert("confirm", "undo")
    first = await tx.insert("undo", "undo")
    rows = await tx.rows()
    if is_sealed(rows["do"]):
        return Verdict(unknown_effect() if known_done else nothing_to_undo())
    if not first:
        return Verdict(done(rows["undo"]))
    action = body
    if not fenced and rows["confirm"].reason == "confirm":
        if confirmed is None:
            return Verdict(stays_confirmed())
        if confirmed == "elsewhere":
            return _decided("undo", CONFIRMED)
        action = confirmed
    if mode == "mark" and action is body:
        return _decided("undo", ELSEWHERE)
    return await _act(tx, action, "undo")


async def confirm(tx: Transaction, body: Body | None, mode: Mode) -> Verdict:
    """Confirm a step that was done and not undone, once."""
    if mode == "own":
        return await _own(tx, "own_confirm", "confirm", body)
    won = await tx.insert("confirm", "confirm")
    rows = await tx.rows()
    if not may_be_confirmed(rows):
        return Verdict(late("this step was not done, or has been undone: there is nothing to confirm"))
    if not won:
        return Verdict(done(rows["confirm"]))
    if mode == "mark":
        return _decided("confirm", ELSEWHERE)
    return await _act(tx, body, "confirm")


async def seal(tx: Transaction) -> Verdict:
    """Find out whether the step happened, and if it did not: see to it that it never does."""
    if await tx.insert("do", "undo"):
        await fill_seal(tx)
        return Verdict(sealed(), commit=True)
    return Verdict(told_seal(await tx.rows()))


async def release_held(tx: Transaction) -> Verdict:
    """The saga is past its commit point: release what this entry still holds. (What was undone holds nothing.)"""
    await tx.rows()
    return settled("release")


async def drop_held(tx: Transaction) -> Verdict:
    """The saga ended without its commit point: drop what this entry still holds. (What was confirmed holds nothing.)

    With the fence of an undo, so that no confirm can be right later.
    """
    if await tx.insert("do", "undo"):
        await fill_seal(tx)
    else:
        await tx.insert("confirm", "undo")
    return settled("drop")


def settled(held: Held) -> Verdict:
    """The decision about held events alone; no row of an operation is written with it."""
    return Verdict(Outcome.done({"held": held}, attempt=None), commit=True, save=Save("confirm", None, held=held))


def told_seal(rows: Rows) -> Outcome:
    """What a seal is told that found the row of `do`."""
    if is_sealed(rows["do"]):
        return sealed()
    if has_been_undone(rows):
        return late("this step has already been undone")
    return done(rows["do"])


def told_again(op: RowOp | Literal["seal"], rows: Rows, args_hash: str | None) -> Outcome | None:
    """What is known about an operation whose COMMIT got lost, from its rows; None: its row is not there."""
    if ("do" if op == "seal" else op) not in rows:
        return None
    match op:
        case "seal":
            return told_seal(rows)
        case "do":
            return told_do(rows, args_hash)
        case "undo":
            return nothing_to_undo() if is_sealed(rows["do"]) else done(rows["undo"])
        case "confirm":
            return done(rows["confirm"]) if may_be_confirmed(rows) else late("this step has been undone")
        case _:
            return done(rows[op])


# The conditions, one function each: a test takes each away and must see an effect leak.


def is_sealed(row: GuardRow) -> bool:
    return row.reason == "undo"


def has_been_undone(rows: Rows) -> bool:
    return "undo" in rows


def same_arguments(row: GuardRow, args_hash: str | None) -> bool:
    """A row written by a person's decision carries no hash and accepts any."""
    return row.args_hash is None or args_hash is None or row.args_hash == args_hash


def may_be_confirmed(rows: Rows) -> bool:
    row = rows.get("do")
    if row is None or is_sealed(row) or has_been_undone(rows):
        return False
    return "confirm" not in rows or rows["confirm"].reason == "confirm"


def held_after(op: RowOp) -> Held | None:
    """What an operation decides about the entry's held events, whatever action it runs, and wherever that lives."""
    return {"confirm": "release", "undo": "drop"}.get(op)  # pyright: ignore[reportReturnType]


async def fill_seal(tx: Transaction) -> None:
    """A sealed step also has its other rows, so that no confirm and no undo finds room later."""
    await tx.insert("confirm", "undo", result=codec.encode_marker(NOTHING_TO_UNDO))
    await tx.insert("undo", "undo", result=codec.encode_marker(NOTHING_TO_UNDO))


async def _own(tx: Transaction, op: RowOp, reason: Reason, body: Body | None) -> Verdict:
    if not await tx.insert(op, reason):
        return Verdict(done((await tx.rows())[op]))
    return await _act(tx, body, op)


async def _act(tx: Transaction, body: Body | None, op: RowOp) -> Verdict:
    """Run the action; its result goes into the row of ``op``, which this transaction has inserted."""
    result = codec.encode(None if body is None else await body(tx.sql))
    outcome = Outcome.done(codec.decode(result), attempt=None)
    return Verdict(outcome, commit=True, save=Save(op, result, held_after(op)))


def _decided(op: RowOp, word: str) -> Verdict:
    """Decided here; the action lives elsewhere."""
    outcome = Outcome.done(attempt=None, marker=MARKERS[word])
    return Verdict(outcome, commit=True, save=Save(op, codec.encode_marker(word), held_after(op)))


def done(row: GuardRow) -> Outcome:
    """What the row stored: a result, or a word of the guard."""
    marker = codec.decode_marker(row.result)
    if marker is None:
        return Outcome.done(codec.decode(row.result), attempt=None)
    return Outcome.done(attempt=None, marker=MARKERS[marker[codec.MARKER]])


def nothing_to_undo() -> Outcome:
    return Outcome.done(attempt=None, marker="nothing_to_undo")


def sealed() -> Outcome:
    return Outcome.done(attempt=None, marker="sealed")


def late(message: str) -> Outcome:
    return Outcome("late", failure=Failure("AlreadyCompensated", message), retryable=False)


def unknown_effect() -> Outcome:
    return parks(
        "UnknownEffect",
        "the guard does not know this effect",
        "the step is known to be done, but its row is not in this database: nothing was changed",
        marker="unknown_effect",
    )


def stays_confirmed() -> Outcome:
    return parks(
        "Confirmed",
        "the step has been confirmed, and no action undoes a confirmed effect",
        "the step has been confirmed and has no `compensate.confirmed`: nothing was changed",
        marker="confirmed",
    )


def parks(kind: str, why: str, message: str, marker: Marker | None = None) -> Outcome:
    """An answer that only a person can go on from."""
    return Outcome("failed", failure=Failure(kind, message), marker=marker, retryable=False, parks=why)
