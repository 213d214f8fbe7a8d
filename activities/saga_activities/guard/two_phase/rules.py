"""The rules of two-phase commit: what the rows of a step mean (docs/explanation/guard.md).

The rows of the guard are outside the prepared transaction, because they decide about it:

===============  =======================================================================================
``do``           reason ``do``: attempts may prepare; reason ``undo``: none may any more; its ``result`` has the
                 random part of the transaction's id
``run.N``        the attempt that may prepare now, the highest N; its ``result``, stored before it prepares
``committed``    written inside the prepared transaction: it appears with the effect, and not before
``confirm``      the step is confirmed
``undo``         the step is undone or sealed
===============  =======================================================================================

The transaction to prepare locks the row ``do``, and a prepared transaction keeps its locks. So the holder of this lock
knows that no attempt is preparing and that nothing is prepared, and ``committed`` says whether there is an effect.
Without ``committed`` a late attempt would repeat an effect that has just been committed, and a transaction that an
administrator has rolled back would count as confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping

from saga_activities.guard import result_codec
from saga_activities.guard import rules as guard_rules
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.transaction import GuardRow
from saga_activities.guard.two_phase.transaction_id import TransactionId, new_token
from sagas.protocol.outcomes import OTHER_ARGUMENTS, Outcome

Rows = Mapping[str, GuardRow]

COMMITTED = "committed"
"""The ``op`` of the row that is part of the prepared transaction."""

_RUN_PREFIX = "run."


def new_marker() -> str:
    """The stored result of a new row ``do``: a marker with the random part of the transaction's id."""
    return result_codec.encode_marker("two_phase", token=new_token())


def transaction_id(entry_key: EntryKey, marker: str | None) -> TransactionId | None:
    """The id of the transaction of the entry whose row ``do`` has this result; None if it prepares none."""
    token = (result_codec.decode_marker(marker) or {}).get("token")
    return TransactionId(entry_key, token) if isinstance(token, str) else None


def run_op(run: int) -> str:
    """The ``op`` of the row of run ``run``, from 1."""
    return f"{_RUN_PREFIX}{run}"


def run_of(op: str) -> int | None:
    """The number of the run whose row has this ``op``; None if it is another row."""
    number = op.removeprefix(_RUN_PREFIX)
    return int(number) if op.startswith(_RUN_PREFIX) and number.isdecimal() else None


def current_run(rows: Rows) -> int:
    """The run that may prepare, or has prepared; 0: none."""
    return max((run for op in rows if (run := run_of(op)) is not None), default=0)


def earlier_runs(rows: Rows) -> list[int]:
    """The runs that will never prepare once the lock of ``do`` was obtained: all that exist."""
    return sorted(run for op in rows if (run := run_of(op)) is not None)


# What the rows alone decide; None if they do not.
def do_outcome(rows: Rows, args_hash: str | None, origin: str | None = None) -> Outcome | None:
    """The outcome of a forward attempt."""
    row = rows.get("do")
    if row is None:
        return None
    if is_refused(rows):
        return guard_rules.late("this step has been undone or sealed; the attempt arrived too late")
    if not guard_rules.is_own(row, origin):
        return guard_rules.done_by_another()
    if not guard_rules.same_arguments(row, args_hash):
        return guard_rules.needs_operator(
            "ArgumentsChanged",
            OTHER_ARGUMENTS[0],
            f"the step was begun with other arguments, and was left as it is; {guard_rules.CONTINUES_ANOTHER_RUN}",
        )
    return result_of(rows) if is_committed(rows) else None


def undo_outcome(
    rows: Rows, known_done: bool, forward_hash: str | None = None, origin: str | None = None
) -> Outcome | None:
    """The outcome of an undo."""
    if guard_rules.is_of_another(rows, origin):
        return guard_rules.other_effect() if known_done else guard_rules.nothing_to_undo()
    if "do" in rows and not is_refused(rows) and not guard_rules.same_arguments(rows["do"], forward_hash):
        return guard_rules.other_effect()
    if "undo" in rows:
        return guard_rules.done(rows["undo"])
    if is_committed(rows):
        return guard_rules.cannot_undo_confirmed()
    return guard_rules.unknown_effect() if "do" not in rows and known_done else None


def confirm_outcome(rows: Rows, origin: str | None = None) -> Outcome | None:
    """The outcome of a confirm."""
    if guard_rules.is_of_another(rows, origin):
        return guard_rules.done_by_another("confirm")
    if "do" not in rows or is_refused(rows):
        return guard_rules.late("this step was not done, or has been undone: there is nothing to confirm")
    return guard_rules.done(rows["confirm"]) if "confirm" in rows else None


def seal_outcome(rows: Rows, origin: str | None = None) -> Outcome | None:
    """The outcome of a seal."""
    if guard_rules.is_of_another(rows, origin):
        return guard_rules.sealed()
    if "undo" in rows:
        undone = result_codec.decode_marker(rows["undo"].result) is None
        return guard_rules.late("this step has already been undone") if undone else guard_rules.sealed()
    return result_of(rows) if is_committed(rows) else None


def lost_transaction() -> Outcome:
    """A confirm found neither a prepared transaction nor its effect."""
    return guard_rules.needs_operator(
        "PreparedTransactionLost",
        "the prepared transaction was rolled back outside the saga",
        "the transaction of this step is neither prepared nor committed: somebody has rolled it back, and its effect "
        "is missing",
    )


# The conditions, one function each: a test disables each of them and must see a violation.
def is_refused(rows: Rows) -> bool:
    """The step was undone or sealed: nothing may be prepared any more."""
    return rows["do"].reason == "undo"


def is_committed(rows: Rows) -> bool:
    """The prepared transaction was committed, or an operator has recorded that the step is done."""
    return COMMITTED in rows


def may_prepare(rows: Rows, run: int) -> bool:
    """Run ``run`` holds the lock of ``do``, and no later attempt has taken over."""
    return current_run(rows) == run


def result_of(rows: Rows) -> Outcome:
    """``done`` with the result of the run that has prepared or committed."""
    row = rows.get(run_op(current_run(rows)))
    return guard_rules.done(row if row is not None else rows[COMMITTED])
