"""The guard's rules: what the presence or absence of a row means (docs/explanation/guard.md).

Each script runs in one transaction and returns a :class:`ScriptResult`: the outcome, and whether to commit.
Rows are always inserted in the order do, confirm, undo, and a script inserts its own row before it runs an action.
A second insert waits for a row whose transaction is open, but not for a committed one. So winning an earlier row is
not mutual exclusion: each action has to win the row of its own operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from saga_activities.guard import result_codec
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.transaction import GuardRow, GuardTransaction, HeldDecision, RowOp, RowReason, RowWrite
from saga_activities.guard.unreadable_rows import ChangedRow
from sagas.protocol.origin import is_of_another_saga
from sagas.protocol.outcomes import OTHER_ARGUMENTS, Failure, Marker, Outcome

GuardedBody = Callable[[SqlSession], Awaitable[Any]]
"""An action. Its result is stored; ``Rejected`` or any other exception rolls the transaction back."""

GuardMode = Literal["decide", "mark", "own"]
GuardRows = Mapping[str, GuardRow]

NOTHING_TO_UNDO = "NOTHING_TO_UNDO"
ELSEWHERE = "elsewhere"
CONFIRMED = "confirmed"
CONTINUES_ANOTHER_RUN = (
    "if an earlier run of this saga id did it, `saga resume ID` continues that run; if it was done with arguments of "
    "an operator, before a reset of the run, a `retry --with` of the same arguments finds its result"
)
MARKERS: Mapping[str, Marker] = {
    NOTHING_TO_UNDO: "nothing_to_undo",
    ELSEWHERE: "elsewhere",
    CONFIRMED: "confirmed",
}
"""The outcome's marker for each marker that is stored instead of a result."""


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """The end of a guard script; with ``commit`` False the transaction is rolled back."""

    outcome: Outcome
    commit: bool = False
    row_write: RowWrite | None = None


async def do(
    tx: GuardTransaction, args_hash: str | None, body: GuardedBody, origin: str | None = None, room: int | None = None
) -> ScriptResult:
    """Run the action once; a later attempt gets the stored result, or is refused after the undo.

    ``origin``: that of the saga, or a reference to it; the row of another saga with the same key is not its own.
    ``room``: see :mod:`sagas.protocol.result_room`.
    """
    if await tx.insert("do", "do", args_hash=args_hash, origin=origin):
        return await _run_body(tx, body, "do", room)
    return ScriptResult(stored_do_outcome(await tx.rows(), args_hash, origin))


async def reject(tx: GuardTransaction, failure: Failure) -> ScriptResult:
    """Seal the step with the rejection that later attempts get."""
    rejection = result_codec.encode_marker(result_codec.REJECTED, reason=failure.message, details=dict(failure.details))
    if await tx.insert("do", "undo", result=rejection):
        await seal_other_rows(tx)
        return ScriptResult(Outcome("rejected", failure=failure, retryable=False), commit=True)
    return ScriptResult(stored_do_outcome(await tx.rows(), None))


def stored_do_outcome(rows: GuardRows, args_hash: str | None, origin: str | None = None) -> Outcome:
    """The outcome of an attempt of `do` that found its row."""
    row = rows["do"]
    if is_sealed(row):
        return stored_rejection(row) or late(
            "this step was sealed before the attempt arrived: it never happened and never will"
        )
    if has_been_undone(rows):
        return late("this step has been undone; the attempt arrived too late")
    if not is_own(row, origin):
        return done_by_another()
    if not same_arguments(row, args_hash):
        return needs_operator(
            "ArgumentsChanged",
            OTHER_ARGUMENTS[0],
            f"the step was done with other arguments, and was left as it is; {CONTINUES_ANOTHER_RUN}",
        )
    return done(row)


async def undo(
    tx: GuardTransaction,
    body: GuardedBody | None,
    confirmed_body: GuardedBody | Literal["elsewhere"] | None,
    known_done: bool,
    mode: GuardMode,
    forward_hash: str | None = None,
    origin: str | None = None,
) -> ScriptResult:
    """Undo the step once, or make sure that it never happens.

    Mode ``mark`` decides without an action; ``own`` runs one that was decided elsewhere. ``confirmed_body`` undoes a
    confirmed step; if that action lives elsewhere, a marker is stored instead of its result. ``forward_hash``: the
    hash of the arguments of the effect that this saga undoes; None accepts any arguments. ``origin``: as of :func:`do`.
    """
    if mode == "own":
        return await _run_own_row(tx, "own_undo", "undo", body, origin)
    if await tx.insert("do", "undo"):
        if known_done:
            return ScriptResult(unknown_effect())
        await seal_other_rows(tx)
        return ScriptResult(nothing_to_undo(), commit=True)
    fenced = await tx.insert("confirm", "undo")
    first = await tx.insert("undo", "undo")
    rows = await tx.rows()
    if is_sealed(rows["do"]):
        return ScriptResult(unknown_effect() if known_done else nothing_to_undo())
    if not is_own(rows["do"], origin):
        return ScriptResult(other_effect() if known_done else nothing_to_undo())
    if not same_arguments(rows["do"], forward_hash):
        return ScriptResult(other_effect())
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


async def skip_undo(tx: GuardTransaction, body: GuardedBody) -> ScriptResult:
    """Run the body of a skipped undo, unless the undo has happened."""
    rows = await tx.rows()
    if "undo" in rows:
        return ScriptResult(done(rows["undo"]))
    return ScriptResult(Outcome.done(await body(tx.sql), attempt=None, marker="skipped"), commit=True)


async def confirm(
    tx: GuardTransaction, body: GuardedBody | None, mode: GuardMode, origin: str | None = None
) -> ScriptResult:
    """Confirm a step once, if it is done and has not been undone. ``origin``: as of :func:`do`."""
    if mode == "own":
        return await _run_own_row(tx, "own_confirm", "confirm", body, origin)
    won = await tx.insert("confirm", "confirm")
    rows = await tx.rows()
    if is_of_another(rows, origin):
        return ScriptResult(done_by_another("confirm"))
    if not may_be_confirmed(rows):
        return ScriptResult(late("this step was not done, or has been undone: there is nothing to confirm"))
    if not won:
        return ScriptResult(done(rows["confirm"]))
    if mode == "mark":
        return _decide_only("confirm", ELSEWHERE)
    return await _run_body(tx, body, "confirm")


async def seal(tx: GuardTransaction, origin: str | None = None) -> ScriptResult:
    """Find out whether the step happened; if not, make sure that it never does."""
    if await tx.insert("do", "undo"):
        await seal_other_rows(tx)
        return ScriptResult(sealed(), commit=True)
    return ScriptResult(stored_seal_outcome(await tx.rows(), origin))


async def release_held(tx: GuardTransaction) -> ScriptResult:
    """Past the commit point: release the events this entry still holds. (An undone entry holds none.)"""
    await tx.rows()
    return decide_held("release")


async def drop_held(tx: GuardTransaction) -> ScriptResult:
    """The saga ended before its commit point: drop the events this entry still holds. (A confirmed entry holds none.)

    Also inserts the fence of an undo, so that a late confirm is refused.
    """
    if await tx.insert("do", "undo"):
        await seal_other_rows(tx)
    else:
        await tx.insert("confirm", "undo")
    return decide_held("drop")


def decide_held(held: HeldDecision) -> ScriptResult:
    """Decide about held events only; no row of an operation is written."""
    return ScriptResult(
        Outcome.done({"held": held}, attempt=None), commit=True, row_write=RowWrite("confirm", None, held=held)
    )


def stored_seal_outcome(rows: GuardRows, origin: str | None = None) -> Outcome:
    """The outcome of a seal that found the row of `do`."""
    if is_sealed(rows["do"]) or not is_own(rows["do"], origin):  # that of another saga is as good as a seal
        return sealed()
    if not has_been_undone(rows):
        return done(rows["do"])
    decided = result_codec.decode_marker(rows["undo"].result)
    if decided is not None and decided[result_codec.MARKER_KEY] in (ELSEWHERE, CONFIRMED):
        # The action of the undo lives elsewhere. A run that has to call it again needs the result of the step.
        return replace(done(rows["do"]), marker=done(rows["undo"]).marker)
    return late("this step has already been undone")


def stored_outcome(
    op: RowOp | Literal["seal"], rows: GuardRows, args_hash: str | None, origin: str | None = None
) -> Outcome | None:
    """The outcome of an operation as its rows record it; None if its row does not exist."""
    if ("do" if op == "seal" else op) not in rows:
        return None
    match op:
        case "seal":
            return stored_seal_outcome(rows, origin)
        case "do":
            return stored_do_outcome(rows, args_hash, origin)
        case "undo" if is_of_another(rows, origin):
            return nothing_to_undo()
        case "undo":
            return nothing_to_undo() if is_sealed(rows["do"]) else done(rows["undo"])
        case "confirm" if is_of_another(rows, origin):
            return done_by_another("confirm")
        case "confirm":
            return done(rows["confirm"]) if may_be_confirmed(rows) else late("this step has been undone")
        case _:
            return done(rows[op])


# The conditions, one function each: a test disables each of them and must see an effect leak.
def is_sealed(row: GuardRow) -> bool:
    return row.reason == "undo"


def is_own(row: GuardRow, origin: str | None) -> bool:
    """False for the row of another saga that was started with the same id, or of one with another input."""
    return not is_of_another_saga(row.origin, origin)


def is_of_another(rows: GuardRows, origin: str | None) -> bool:
    """True for an entry that another saga has made."""
    return "do" in rows and not is_own(rows["do"], origin)


def has_been_undone(rows: GuardRows) -> bool:
    return "undo" in rows


def same_arguments(row: GuardRow, args_hash: str | None) -> bool:
    """A row written by an operator's decision has no hash and accepts any arguments."""
    return row.args_hash is None or args_hash is None or row.args_hash == args_hash


def may_be_confirmed(rows: GuardRows) -> bool:
    row = rows.get("do")
    if row is None or is_sealed(row) or has_been_undone(rows):
        return False
    return "confirm" not in rows or rows["confirm"].reason == "confirm"


def held_decision_of(op: RowOp) -> HeldDecision | None:
    """Return what an operation decides about the entry's held events, whatever action it runs and wherever
    that lives.
    """
    return {"confirm": "release", "undo": "drop"}.get(op)  # pyright: ignore[reportReturnType]


async def seal_other_rows(tx: GuardTransaction) -> None:
    """Insert the other rows of a sealed step as well, so that no confirm and no undo can insert them later."""
    await tx.insert("confirm", "undo", result=result_codec.encode_marker(NOTHING_TO_UNDO))
    await tx.insert("undo", "undo", result=result_codec.encode_marker(NOTHING_TO_UNDO))


def stored_rejection(row: GuardRow) -> Outcome | None:
    """The rejection that a sealed row keeps; None if it was sealed by an undo. Raises ChangedRow."""
    marker = result_codec.decode_marker(row.result)
    if marker is None or marker[result_codec.MARKER_KEY] != result_codec.REJECTED:
        return None
    match marker:
        case {"reason": str() as reason, "details": Mapping() as details}:
            return Outcome("rejected", failure=Failure("Rejected", reason, details), retryable=False)
    raise ChangedRow


async def _run_own_row(
    tx: GuardTransaction, op: RowOp, reason: RowReason, body: GuardedBody | None, origin: str | None
) -> ScriptResult:
    if not await tx.insert(op, reason, origin=origin):
        row = (await tx.rows())[op]
        return ScriptResult(done(row) if is_own(row, origin) else done_by_another(reason))
    return await _run_body(tx, body, op)


async def _run_body(tx: GuardTransaction, body: GuardedBody | None, op: RowOp, room: int | None = None) -> ScriptResult:
    """Run the action; its result is stored in the row of ``op``, which this transaction has inserted."""
    result = result_codec.encode(None if body is None else await body(tx.sql), room)
    outcome = Outcome.done(result_codec.decode(result), attempt=None)
    return ScriptResult(outcome, commit=True, row_write=RowWrite(op, result, held_decision_of(op)))


def _decide_only(op: RowOp, marker: str) -> ScriptResult:
    """Record a decision without an action: the action lives elsewhere."""
    outcome = Outcome.done(attempt=None, marker=MARKERS[marker])
    return ScriptResult(
        outcome, commit=True, row_write=RowWrite(op, result_codec.encode_marker(marker), held_decision_of(op))
    )


def done(row: GuardRow) -> Outcome:
    """The outcome `done`, with the result or the marker of the row. Raises ChangedRow."""
    marker = result_codec.decode_marker(row.result)
    if marker is None:
        return Outcome.done(result_codec.decode(row.result), attempt=None)
    match marker[result_codec.MARKER_KEY]:
        case str() as name if name in MARKERS:
            return Outcome.done(attempt=None, marker=MARKERS[name])
    raise ChangedRow


def nothing_to_undo() -> Outcome:
    return Outcome.done(attempt=None, marker="nothing_to_undo")


def sealed() -> Outcome:
    return Outcome.done(attempt=None, marker="sealed")


def late(message: str) -> Outcome:
    return Outcome("late", failure=Failure("AlreadyCompensated", message), retryable=False)


def unknown_effect() -> Outcome:
    return needs_operator(
        "UnknownEffect",
        "the guard has no row of this effect",
        "the step is known to be done, but its row is not in this database: nothing was changed",
        marker="unknown_effect",
    )


def done_by_another(reason: RowReason = "do") -> Outcome:
    """The outcome of an operation that another saga has made under the same key. A step has no effect then."""
    made = {"do": "done", "undo": "undone", "confirm": "done or confirmed"}[reason]
    return needs_operator(
        "ArgumentsChanged",
        OTHER_ARGUMENTS[1] if reason == "undo" else OTHER_ARGUMENTS[0],
        f"another saga with this id, or a run of this one with another input, has {made} the step, and it was left as "
        f"it is; {CONTINUES_ANOTHER_RUN}",
        marker="not_own" if reason == "do" else None,
    )


def other_effect() -> Outcome:
    return needs_operator(
        "ArgumentsChanged",
        OTHER_ARGUMENTS[1],
        f"the step was done with other arguments, and was left as it is; {CONTINUES_ANOTHER_RUN}",
    )


def cannot_undo_confirmed() -> Outcome:
    return needs_operator(
        "Confirmed",
        "the step has been confirmed, and no action undoes a confirmed effect",
        "the step has been confirmed and has no `compensate.confirmed`: nothing was changed",
        marker="confirmed",
    )


def needs_operator(kind: str, park_reason: str, message: str, marker: Marker | None = None) -> Outcome:
    """A failure that needs an operator's decision: the saga parks with ``park_reason``."""
    return Outcome("failed", failure=Failure(kind, message), marker=marker, retryable=False, park_reason=park_reason)
