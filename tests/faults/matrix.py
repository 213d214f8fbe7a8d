"""The fault matrix itself; the rows of locks, savepoints and other features are in `feature_matrix`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import Server
from tests.faults.cells import ALL_THREE, COMPLETED, FORWARD, REFUSED, Position, Row
from tests.faults.evidence.checker import Expected, Shape, line
from tests.faults.injection import fault_broker as broker
from tests.faults.injection import fault_consumer as consumer
from tests.faults.injection import fault_engine as engine
from tests.faults.injection import fault_notification as notified
from tests.faults.injection import fault_operator as people
from tests.faults.injection import fault_participant as participant
from tests.faults.injection import fault_poison_message as poison
from tests.faults.injection import fault_relay as relay
from tests.faults.injection import fault_servers as servers
from tests.faults.injection import fault_worker as worker

BEFORE: Final = frozenset({"debit", "hold", "order"})
PAST: Final = BEFORE | {"capture"}

FORK = Shape(
    {
        "debit": frozenset(),
        "hold": frozenset(),
        "order": frozenset({"debit", "hold"}),
        "capture": BEFORE,
    }
)
NEST = line("debit", "hold", "order", "capture", "ship", nested=frozenset({"hold"}))
UNDO_ORDER: Mapping[Position, Target] = {"C": Target("order", "undo")}


def undone(reason: str, step: str | None, *steps: str, **more: tuple[str, ...]) -> Expected:
    return Expected("COMPENSATED", reason, step, undone=steps, **more)  # pyright: ignore[reportArgumentType]


def parked(step: str, effects: frozenset[str], reason: str | None = None, at: str | None = None) -> Expected:
    return Expected("PARKED", reason, at, parked=step, effects=effects)


CANCELLED = undone("cancelled", None, "debit")
CANCELLED_AFTER_HOLD = undone("cancelled", None, "hold", "debit")
CANCELLED_AT_PIVOT = undone("cancelled", None, *ALL_THREE)
NATIVE = ("CANCELED",)
PARKED_PAST_PIVOT = parked("ship", PAST)
PARKED_BACKWARD = parked("hold", frozenset({"debit", "hold"}), "rejected", "capture")


def gone(kind: str, says: str) -> Mapping[Position, Expected]:
    """A permanent failure: compensation before the pivot, PARKED after it and while compensating."""
    return {
        "B": replace(undone(kind, "hold", "debit"), says=says),
        "P": replace(undone(kind, "capture", *ALL_THREE), says=says),
        "A": replace(PARKED_PAST_PIVOT, says=says),
        "C": replace(PARKED_BACKWARD, says=says),
    }


def tripled(*names: str) -> dict[str, str]:
    """Arguments of three copies of an input: each fits into a payload, all do not."""
    return {
        f"input.notes.{name} }}}}": f"[input.notes.{name}, input.notes.{name}, input.notes.{name}] }}}}"
        for name in names
    }


PATIENT: Final = {"timeout: 3s": "timeout: 60s"}
"""For attempts that only wait for the harness, which needs more than their three seconds on a busy machine."""

TEMPORAL: Final[frozenset[Server]] = frozenset({"temporal"})
DATABASE: Final[frozenset[Server]] = frozenset({"database"})

ROWS: tuple[Row, ...] = (
    Row("01", "worker-killed-before-start", worker.killed_before_start, FORWARD, kills_workflow_worker=True),
    Row("02", "worker-killed-before-commit", worker.killed_before_commit, FORWARD, split=False),
    Row("03", "worker-killed-after-effect", worker.killed_after_effect, FORWARD, split=False),
    # Temporal hands attempts to the frozen worker too, one for each poll it had open.
    Row(
        "04",
        "worker-frozen-before-insert",
        worker.frozen_before_insert,
        {**FORWARD, "B": CANCELLED, "P": CANCELLED_AT_PIVOT},
        proxied=DATABASE,
        attempts=20,
    ),
    Row("04", "worker-frozen-in-transaction", worker.frozen_in_transaction, FORWARD, attempts=20),
    Row(
        "04",
        "worker-frozen-after-commit",
        worker.frozen_after_commit,
        {**FORWARD, "B": CANCELLED_AFTER_HOLD},
        attempts=20,
    ),
    Row(
        "05",
        "commit-unanswered",
        servers.commit_unanswered,
        {**FORWARD, "B": undone("failed", "hold", "hold", "debit")},
        proxied=DATABASE,
        attempts=2,
        edit=PATIENT,
    ),
    Row(
        "05",
        "commit-lost",
        servers.commit_lost,
        {**FORWARD, "B": undone("failed", "hold", "debit"), "P": undone("failed", "capture", *ALL_THREE)},
        proxied=DATABASE,
        attempts=2,
        edit=PATIENT,
    ),
    Row(
        "06",
        "participant-refuses",
        participant.rejects,
        {"B": undone("rejected", "hold", "debit"), "P": REFUSED, "A": PARKED_PAST_PIVOT, "C": REFUSED},
        edit=PATIENT,
    ),
    Row(
        "07",
        "compensation-keeps-failing",
        participant.keeps_failing,
        {"C": Expected("COMPENSATED", "rejected", "capture", undone=ALL_THREE, decisions=("retry",))},
        attempts=2,
        targets=UNDO_ORDER,
        edit=PATIENT,
    ),
    Row(
        "07",
        "compensation-given-up",
        participant.skipped,
        {
            "C": Expected(
                "RESIDUE",
                "rejected",
                "capture",
                undone=("hold", "debit"),
                effects=frozenset({"order"}),
                decisions=("skip",),
            )
        },
        attempts=2,
        targets=UNDO_ORDER,
        edit=PATIENT,
    ),
    Row("08", "worker-killed-in-workflow-task", worker.killed_in_workflow_task, FORWARD, kills_workflow_worker=True),
    Row("09", "temporal-killed", servers.temporal_killed, FORWARD, split=False, own=TEMPORAL),
    Row("11", "temporal-cut", servers.temporal_cut, FORWARD, split=False, proxied=TEMPORAL),
    Row("12", "database-cut", servers.database_cut, FORWARD, proxied=DATABASE),
    Row("12", "database-killed", servers.database_killed, FORWARD, own=DATABASE),
    Row("12", "database-errors", servers.database_errors, FORWARD),
    Row("12", "session-terminated", servers.session_terminated, FORWARD),
    Row("12", "no-session-free", servers.no_session_free, FORWARD),
    # An attempt waits for nine tenths of its time, and reports in the last.
    Row(
        "12",
        "pool-exhausted",
        servers.pool_exhausted,
        FORWARD,
        pool=2,
        kills_workflow_worker=True,
        edit={"timeout: 3s": "timeout: 10s"},
    ),
    Row("13", "broker-killed", broker.broker_killed, FORWARD, kafka="own", edit=PATIENT),
    Row("13", "broker-frozen", broker.broker_frozen, FORWARD, kafka="own", slow=True, edit=PATIENT),
    Row("13", "broker-cut", broker.broker_cut, FORWARD, kafka="shared", edit=PATIENT),
    Row("14", "relay-killed-before-sending", relay.killed_before_sending, FORWARD, kafka="shared", edit=PATIENT),
    Row("14", "relay-killed-in-transaction", relay.killed_in_transaction, FORWARD, kafka="shared", edit=PATIENT),
    Row("14", "relay-killed-before-answer", relay.killed_before_answer, FORWARD, kafka="shared", edit=PATIENT),
    Row("14", "relay-killed-before-recording", relay.killed_before_recording, FORWARD, kafka="shared", edit=PATIENT),
    Row("15", "relay-replaced-in-commit", relay.replaced_in_commit, FORWARD, kafka="shared", edit=PATIENT),
    Row("16", "commit-late", relay.commit_late, FORWARD, kafka="shared", edit=PATIENT),
    Row(
        "17", "relay-frozen-past-transaction", relay.frozen_past_its_transaction, FORWARD, kafka="shared", edit=PATIENT
    ),
    Row(
        "18",
        "consumer-killed-before-offset",
        consumer.killed_before_offset,
        FORWARD,
        kafka="shared",
        consumes=True,
        edit=PATIENT,
    ),
    Row(
        "18",
        "consumer-replaced-before-offset",
        consumer.replaced_before_offset,
        FORWARD,
        kafka="shared",
        consumes=True,
        slow=True,
        edit=PATIENT,
    ),
    Row("19", "message-overtaken", consumer.out_of_order, FORWARD, kafka="shared", consumes=True),
    Row(
        "20",
        "poison-command",
        poison.poisoned,
        {
            "B": undone("rejected", "ask", "debit"),
            "A": parked("tell", PAST),
            "C": parked("ask", frozenset({"debit"}), "rejected", "capture"),
        },
        kafka="shared",
        sends_commands=True,
        edit=poison.ASK_AND_TELL,
    ),
    Row(
        "20",
        "poison-command-that-decides",
        poison.poisoned,
        {"P": undone("rejected", "decide", *ALL_THREE)},
        kafka="shared",
        sends_commands=True,
        edit=poison.DECIDE,
        slow=True,
    ),
    Row(
        "21",
        "poison-refused-at-registration",
        participant.refused_at_registration,
        {"B": COMPLETED},
        checked=False,
    ),
    Row("21", "unknown-saga", engine.unknown_saga, {"B": COMPLETED}, checked=False, split=False),
    Row("21", "workflow-code-raises", engine.workflow_code_raises, FORWARD, kills_workflow_worker=True),
    Row(
        "21",
        "code-decides-otherwise",
        engine.code_decides_otherwise,
        {"P": COMPLETED, "C": REFUSED},
        kills_workflow_worker=True,
    ),
    Row("21", "expression-fails", participant.expression_fails, gone("definition", "input.notes")),
    Row(
        "22",
        "arguments-too-large",
        participant.arguments_too_large,
        gone("definition", "bytes; Temporal accepts"),
        edit={**PATIENT, **tripled("hold", "capture", "ship", "release")},
    ),
    Row("22", "result-too-large", participant.result_too_large, gone("failed", "bytes"), edit=PATIENT),
    Row(
        "24",
        "cancelled",
        people.cancelled,
        {**FORWARD, "B": CANCELLED_AFTER_HOLD},
        edit=PATIENT,
    ),
    Row("24", "cancelled-and-pivot-refused", people.cancelled_and_refused, {"P": CANCELLED_AT_PIVOT}, edit=PATIENT),
    Row(
        "24",
        "cancelled-natively",
        people.cancelled_natively,
        {**FORWARD, "B": undone("cancelled", None, "hold", "debit", statuses=NATIVE)},
        edit=PATIENT,
    ),
    Row(
        "24",
        "cancelled-before-first-task",
        people.cancelled_before_first_task,
        {"B": undone("cancelled", None, statuses=NATIVE)},
        split=False,
    ),
    Row(
        "24",
        "cancelled-as-it-completes",
        people.cancelled_as_it_completes,
        {"B": Expected("COMPENSATED", "cancelled")},
        edit=PATIENT,
    ),
    Row(
        "25",
        "terminated",
        people.terminated,
        {
            "B": Expected("TERMINATED", "terminated", effects=frozenset({"debit", "hold"})),
            "P": Expected("TERMINATED", "terminated", effects=PAST),
            "A": Expected("TERMINATED", "terminated", effects=PAST | {"ship"}),
            "C": Expected("TERMINATED", "terminated", effects=frozenset({"debit"})),
        },
        split=False,
        edit=PATIENT,
    ),
    Row(
        "27",
        "branch-refuses",
        participant.branch_rejects,
        {"B": undone("rejected", "hold", "debit")},
        saga="fork",
        shape=FORK,
        edit=PATIENT,
    ),
    Row(
        "27",
        "order-across-the-join",
        participant.order_across_join,
        {"C": Expected("COMPENSATED", "rejected", "capture")},
        saga="fork",
        shape=FORK,
        targets=UNDO_ORDER,
        edit=PATIENT,
    ),
    Row("30", "notification-target-down", notified.receiver_down, FORWARD, edit=notified.NOTIFY),
    Row("31", "started-again", people.started_again, {"B": COMPLETED}),
    Row("31", "start-unanswered", people.start_unanswered, {"B": COMPLETED}, proxied=TEMPORAL, split=False),
    Row("32", "deployed-anew", worker.redeployed, FORWARD, split=False),
    Row(
        "35",
        "nested-saga-refused",
        participant.child_rejects,
        {"B": undone("rejected", "deposit", "debit")},
        saga="parent",
        shape=NEST,
        split=False,
    ),
    Row(
        "35",
        "nested-saga-past-its-pivot",
        participant.nested_past_its_pivot,
        {"P": COMPLETED},
        saga="parent",
        checked=False,
    ),
    Row(
        "35",
        "nested-saga-undone-by-a-new-worker",
        participant.child_undone_by_new_worker,
        {"C": REFUSED},
        saga="parent",
        shape=NEST,
        split=False,
    ),
)
