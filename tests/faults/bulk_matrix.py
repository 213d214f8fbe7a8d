"""The fault matrix of bulk execution: three sagas in one bulk workflow, whose equal calls are chunks.

A fault of a process or a server hits all of them; one of a participant hits a single saga, and the others must not
notice. The rows have the numbers of those for single sagas. Some of these have a row or a position less:

===  ===========================  ====================================================================================
row  what has less                why
===  ===========================  ====================================================================================
21   poison at registration       P, A, C: it is before any saga starts
21   code-decides-otherwise       B, A: as for single sagas, one forward position and one backward
31   start-unanswered             P, A, C: it is before any saga starts
35   nested-saga-past-its-pivot   it is refused by `saga validate`, whatever executes it
===  ===========================  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tests.faults.cells import COMPLETED, FORWARD, REFUSED, Position, Row, RunFault
from tests.faults.evidence.checker import Expected
from tests.faults.injection import fault_bulk as bulk
from tests.faults.injection import fault_operator as people
from tests.faults.injection import fault_participant as participant
from tests.faults.injection import fault_servers as servers
from tests.faults.injection import fault_worker as worker
from tests.faults.matrix import (
    CANCELLED_AFTER_HOLD,
    CANCELLED_AT_PIVOT,
    DATABASE,
    FORK,
    NEST,
    PARKED_PAST_PIVOT,
    PATIENT,
    TEMPORAL,
    UNDO_ORDER,
    gone,
    tripled,
    undone,
)

LONG: Final = 150.0
"""Seconds after which a bulk workflow must have ended whose chunk's time, a minute, may have run out; or that Temporal
has handed to a frozen worker, one task for each poll it had open: five attempts of a chunk take half a minute then, and
the workflow tasks after them as long.
"""

SLOWLY: Final[Mapping[Position, Expected]] = {at: replace(expected, limit=LONG) for at, expected in FORWARD.items()}
CANCELLED: Final = Expected("COMPENSATED", "cancelled")


def row(number: str, fault: str, run_fault: RunFault, expected: Mapping[Position, Expected], **more: Any) -> Row:
    fields = {"split": False, "edit": PATIENT, **more}
    return Row(number, f"bulk-{fault}", run_fault, expected, bulk=True, **fields)


def only(**expected: Expected) -> dict[str, Any]:
    """How the saga that is hit ends; the others end as without the fault."""
    return {"expected": expected, "others": {at: FORWARD[at] for at in FORWARD if at in expected}}


BULK_ROWS: tuple[Row, ...] = (
    row("01", "worker-killed-before-start", bulk.killed_before_start, FORWARD),
    row("01", "worker-killed-before-it-leaves", bulk.killed_before_it_leaves, **only(A=PARKED_PAST_PIVOT)),
    row("02", "worker-killed-before-commit", worker.killed_before_commit, FORWARD),
    row("03", "worker-killed-after-effect", worker.killed_after_effect, FORWARD),
    row("03", "worker-killed-after-it-left", bulk.killed_after_it_left, **only(A=PARKED_PAST_PIVOT)),
    row("04", "worker-frozen-before-insert", bulk.frozen_before_insert, SLOWLY, proxied=DATABASE, edit={}),
    row("04", "worker-frozen-in-transaction", worker.frozen_in_transaction, SLOWLY, edit={}),
    row("04", "worker-frozen-after-commit", bulk.frozen_after_commit, SLOWLY),
    row("05", "commit-unanswered", bulk.commit_unanswered, SLOWLY, proxied=DATABASE),
    row("05", "commit-lost", bulk.commit_lost, SLOWLY, proxied=DATABASE),
    row(
        "06",
        "participant-refuses",
        participant.rejects,
        **only(B=undone("rejected", "hold", "debit"), P=REFUSED, A=PARKED_PAST_PIVOT, C=REFUSED),
    ),
    row(
        "07",
        "compensation-keeps-failing",
        participant.keeps_failing,
        **only(C=Expected("COMPENSATED", "rejected", "capture", decisions=("retry",))),
        attempts=2,
        targets=UNDO_ORDER,
    ),
    row(
        "07",
        "compensation-given-up",
        participant.skipped,
        **only(
            C=Expected("RESIDUE", "rejected", "capture", effects=frozenset({"order"}), decisions=("skip",)),
        ),
        attempts=2,
        targets=UNDO_ORDER,
    ),
    row("08", "worker-killed-in-workflow-task", bulk.killed_in_workflow_task, FORWARD),
    row("09", "temporal-killed", servers.temporal_killed, FORWARD, own=TEMPORAL),
    row("11", "temporal-cut", servers.temporal_cut, FORWARD, proxied=TEMPORAL),
    row("12", "database-cut", servers.database_cut, SLOWLY, proxied=DATABASE),
    row("12", "database-killed", servers.database_killed, SLOWLY, own=DATABASE),
    row("12", "database-errors", servers.database_errors, FORWARD),
    row("12", "session-terminated", servers.session_terminated, FORWARD),
    row("12", "no-session-free", servers.no_session_free, SLOWLY),
    # A chunk waits for a connection for half of its minute; the others hold theirs for a whole one.
    row(
        "12",
        "pool-exhausted",
        bulk.pool_exhausted,
        SLOWLY,
        pool=2,
        edit={"timeout: 3s": "timeout: 10s"},
    ),
    row("21", "poison-refused-at-registration", bulk.refused_at_registration, {"B": COMPLETED}, checked=False),
    row("21", "unknown-saga", bulk.unknown_saga, {"B": COMPLETED}, checked=False),
    row("21", "workflow-code-raises", bulk.code_raises, FORWARD),
    row("21", "code-decides-otherwise", bulk.code_decides_otherwise, {"P": COMPLETED, "C": REFUSED}),
    row("21", "expression-fails", participant.expression_fails, **only(**gone("definition", "input.notes"))),
    row(
        "22",
        "arguments-too-large",
        bulk.arguments_too_large,
        **only(**gone("definition", "bytes; Temporal accepts")),
        edit={**PATIENT, **tripled("hold", "capture", "ship", "release")},
    ),
    row("22", "result-too-large", participant.result_too_large, **only(**gone("failed", "bytes"))),
    row("22", "results-too-large-together", bulk.results_too_large_together, FORWARD),
    row(
        "24",
        "cancelled",
        bulk.cancelled,
        **only(B=CANCELLED, P=COMPLETED, A=COMPLETED, C=REFUSED),
    ),
    row("24", "cancelled-and-pivot-refused", bulk.cancelled_and_refused, **only(P=CANCELLED_AT_PIVOT)),
    row("24", "cancelled-as-it-completes", bulk.cancelled_as_it_completes, **only(B=CANCELLED)),
    row(
        "24",
        "cancelled-natively",
        people.cancelled_natively,
        {**FORWARD, "B": CANCELLED_AFTER_HOLD},
    ),
    row("24", "cancelled-before-first-task", people.cancelled_before_first_task, {"B": CANCELLED}),
    row(
        "25",
        "terminated",
        bulk.terminated,
        {**SLOWLY, "B": undone("terminated", None, "hold", "debit")},
    ),
    row(
        "27",
        "branch-refuses",
        bulk.branch_rejects,
        **only(B=undone("rejected", "hold", "debit")),
        saga="fork",
        shape=FORK,
    ),
    row(
        "27",
        "order-across-the-join",
        participant.order_across_join,
        {"C": Expected("COMPENSATED", "rejected", "capture")},
        saga="fork",
        shape=FORK,
        targets=UNDO_ORDER,
    ),
    row("31", "started-again", bulk.started_again, {"B": COMPLETED}),
    row("31", "start-unanswered", bulk.start_unanswered, {"B": COMPLETED}, proxied=TEMPORAL),
    row("31", "started-singly-too", bulk.started_by_both, {"B": COMPLETED}),
    row("32", "deployed-anew", worker.redeployed, FORWARD),
    row(
        "35",
        "nested-saga-refused",
        bulk.child_rejects,
        {"B": undone("rejected", "deposit", "debit")},
        saga="parent",
        shape=NEST,
    ),
    row(
        "35",
        "nested-saga-undone-by-a-new-worker",
        participant.child_undone_by_new_worker,
        {"C": REFUSED},
        saga="parent",
        shape=NEST,
    ),
)
