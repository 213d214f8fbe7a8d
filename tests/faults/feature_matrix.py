"""The fault matrix of the features of a saga: locks, automatic compensation, two-phase commit, savepoints, checks.

Each has rows of its own, with real kills. A row has no cell where the feature does nothing that could be hit:

===  ======================  ========================================================================================
row  what is hit             its positions
===  ======================  ========================================================================================
36   the request for locks   B: it comes before the first step
36   a step, with the lock   all
36   the release of locks    A, C: it is at the end of the saga, or P: at its commit point (`until: commit`)
37   `compensate: auto`      B, C: the step and its undo; P, A: another step while the row is locked, as a pivot is
                             not undone and a step after it neither
37   the release of rows     A, C: it is at the end of the saga
38   the first phase         B: the step itself; P, A, C: another step, as a pivot has no second phase; the
                             transaction is prepared in P and C, and its commit has begun in A
38   the second phase        A: the commit, after the pivot; C: the rollback
39   a savepoint             C: the way back to it, or past it; B, P, A: the run after that, where A cannot go back
40   a check                 B: all checks have ended before the first step begins, so nothing is there to be undone
===  ======================  ========================================================================================
"""

from __future__ import annotations

from typing import Final

from tests.faults.cells import ALL_THREE, COMPLETED, FORWARD, REFUSED, Row
from tests.faults.evidence.checker import Expected
from tests.faults.injection import fault_automatic as automatic
from tests.faults.injection import fault_checks as checks
from tests.faults.injection import fault_locks as locks
from tests.faults.injection import fault_savepoint as savepoint
from tests.faults.injection import fault_two_phase as two_phase
from tests.faults.matrix import undone

RUN_AGAIN: Final = Expected("COMPLETED", undone=("order", "hold"))

FEATURE_ROWS: tuple[Row, ...] = (
    Row(
        "36",
        "worker-killed-after-lock-request",
        locks.killed_after_request,
        {"B": COMPLETED},
        split=False,
        edit=locks.LOCKED,
    ),
    Row("36", "worker-killed-with-lock", locks.killed_while_held, FORWARD, split=False, edit=locks.LOCKED),
    Row(
        "36",
        "worker-killed-after-lock-release",
        locks.killed_after_release,
        {"A": COMPLETED, "C": REFUSED},
        split=False,
        edit=locks.LOCKED,
    ),
    Row(
        "36",
        "worker-killed-after-lock-release-at-commit",
        locks.killed_after_release_at_commit,
        {"P": COMPLETED},
        split=False,
        edit=locks.LOCKED_UNTIL_COMMIT,
    ),
    Row(
        "36",
        "session-terminated-at-lock-release",
        locks.session_terminated_at_release,
        {"A": COMPLETED, "C": REFUSED},
        split=False,
        edit=locks.LOCKED,
        slow=True,
    ),
    Row(
        "36",
        "session-terminated-at-lock-release-at-commit",
        locks.session_terminated_at_release_at_commit,
        {"P": COMPLETED},
        split=False,
        edit=locks.LOCKED_UNTIL_COMMIT,
        slow=True,
    ),
    Row(
        "37",
        "worker-killed-in-automatic-step",
        automatic.killed_before_commit,
        FORWARD,
        split=False,
        targets=automatic.TAKE,
        edit=automatic.AUTOMATIC,
        slow=True,
    ),
    Row(
        "37",
        "worker-killed-after-automatic-step",
        automatic.killed_after_commit,
        FORWARD,
        split=False,
        targets=automatic.TAKE,
        edit=automatic.AUTOMATIC,
    ),
    Row(
        "37",
        "worker-killed-after-row-release",
        automatic.killed_after_row_release,
        {"A": COMPLETED, "C": REFUSED},
        split=False,
        edit=automatic.AUTOMATIC,
        slow=True,
    ),
    Row(
        "38",
        "worker-killed-in-two-phase-step",
        two_phase.killed_before_prepare,
        FORWARD,
        split=False,
        targets=two_phase.PREPARE,
        edit=two_phase.TWO_PHASE,
    ),
    Row(
        "38",
        "worker-killed-after-two-phase-prepare",
        two_phase.killed_after_prepare,
        FORWARD,
        split=False,
        targets=two_phase.PREPARED,
        edit=two_phase.TWO_PHASE,
        slow=True,
    ),
    Row(
        "38",
        "worker-killed-after-two-phase-end",
        two_phase.killed_after_end,
        {"A": COMPLETED, "C": REFUSED},
        split=False,
        targets=two_phase.END,
        edit=two_phase.TWO_PHASE,
    ),
    Row(
        "39",
        "worker-killed-after-savepoint",
        savepoint.killed_before_commit,
        dict.fromkeys(FORWARD, RUN_AGAIN),
        split=False,
        edit=savepoint.SAVEPOINT,
    ),
    Row(
        "39",
        "worker-killed-after-effect-after-savepoint",
        savepoint.killed_after_commit,
        dict.fromkeys(FORWARD, RUN_AGAIN),
        split=False,
        edit=savepoint.SAVEPOINT,
        slow=True,
    ),
    Row(
        "39",
        "worker-killed-in-last-undo-after-savepoint",
        savepoint.killed_in_last_undo,
        {"C": undone("rejected", "capture", "order", "hold", *ALL_THREE)},
        split=False,
        targets=savepoint.LAST_UNDO,
        edit=savepoint.SAVEPOINT,
        slow=True,
    ),
    Row(
        "40",
        "worker-killed-in-check",
        checks.killed_in_check,
        {"B": COMPLETED},
        split=False,
        targets=checks.CHECK,
        edit=checks.CHECKED,
    ),
    Row(
        "40",
        "worker-killed-in-check-that-refuses",
        checks.killed_in_check,
        {"B": undone("rejected", "hold")},
        split=False,
        targets=checks.CHECK,
        edit=checks.REFUSING,
        slow=True,
    ),
    Row(
        "40",
        "worker-killed-after-check",
        checks.killed_after_answer,
        {"B": COMPLETED},
        split=False,
        targets=checks.CHECK,
        edit=checks.CHECKED,
        slow=True,
    ),
    Row(
        "40",
        "worker-killed-in-workflow-task-after-check",
        checks.killed_in_workflow_task,
        {"B": COMPLETED},
        kills_workflow_worker=True,
        targets=checks.CHECK,
        edit=checks.CHECKED,
        slow=True,
    ),
    Row(
        "40",
        "session-terminated-in-check",
        checks.session_terminated,
        {"B": COMPLETED},
        split=False,
        targets=checks.CHECK,
        edit=checks.CHECKED,
        slow=True,
    ),
)
