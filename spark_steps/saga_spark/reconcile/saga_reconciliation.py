"""Reconciles all sagas: the sagas with the guards, and the guards with the business tables, outboxes and topics.

Each pair is compared as in :mod:`~saga_spark.reconcile.key_comparison`: without mismatches that costs one pass over
each side, and only keys that differ are looked up in the other tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from saga_spark.reconcile.comparison_database import BROKEN, UNKNOWN, ComparisonDatabase, sql_constant, with_saga
from saga_spark.reconcile.effect_checks import LIVE, check_effects
from saga_spark.reconcile.event_checks import check_events_against_guards, check_events_against_topics
from saga_spark.reconcile.key_comparison import find_differing_keys
from saga_spark.reconcile.topic_extract import TopicsRead
from sagas.protocol.payloads import NOTIFICATION_PREFIX
from sagas.settings.reconcile import EffectTable


def find_mismatches(
    database: ComparisonDatabase,
    effects: Sequence[EffectTable],
    topics: TopicsRead | None,
    on_progress: Callable[[str], None] = lambda what: None,
) -> None:
    """Add every mismatch to the findings of the database. ``topics`` is None if no topic was read. Blocks."""
    on_progress("the sagas with the guards")
    check_sagas_against_guards(database)
    for table in effects:
        on_progress(f"{table.connection}.{table.table} with the sagas that write it")
        check_effects(database, table)
    on_progress("the outboxes with the guards")
    check_events_against_guards(database)
    if topics is not None:
        on_progress("the outboxes with the topics")
        check_events_against_topics(database, topics)


def check_sagas_against_guards(database: ComparisonDatabase) -> None:
    """Compare the effects of sagas that have ended with the rows of the guards."""
    key = ("saga_id", "step", "generation")
    columns = ", ".join(key)
    database.view("claimed", f"SELECT {columns} FROM entries WHERE guarded AND live AND NOT residue")
    # Notifications are best effort, and no saga claims their effects.
    database.view(
        "present",
        f"SELECT {columns} FROM guard ANTI JOIN (SELECT saga_id FROM sagas WHERE NOT judged) unjudged USING (saga_id)"
        f" WHERE {LIVE} AND NOT starts_with(step, {sql_constant(NOTIFICATION_PREFIX)})",
    )
    if not find_differing_keys(database, "claimed", "present", key):
        return
    database.table(
        "guard_of_keys",
        f"SELECT {columns}, string_agg(DISTINCT connection, ', ' ORDER BY connection) AS connection,"
        " max(reason) AS reason, max(undone) AS undone, max(created_at) AS created_at"
        f" FROM guard SEMI JOIN differing USING ({columns}) GROUP BY {columns}",
    )
    database.table(
        "entries_of_keys",
        "SELECT saga_id, step, generation AS said_generation, state AS said, live, residue"
        " FROM entries SEMI JOIN differing USING (saga_id, step)",
    )
    database.table(
        "reads",
        f"SELECT DISTINCT saga_id, {_step_of('step')} AS definition FROM entries SEMI JOIN differing USING (saga_id)"
        " WHERE reads",
    )
    rows = (
        "SELECT differing.*, connection, reason, undone, created_at, said_generation, said, live, residue"
        f" FROM differing LEFT JOIN guard_of_keys USING ({columns}) LEFT JOIN entries_of_keys USING (saga_id, step)"
        f" ANTI JOIN reads ON reads.saga_id = differing.saga_id AND reads.definition = {_step_of('differing.step')}"
    )
    class_ = (
        "CASE WHEN kind = 'missing_right' THEN 'saga_without_effect'"
        " WHEN kind = 'duplicate' THEN 'effect_applied_twice' WHEN coalesce(residue, false) THEN NULL"
        f" WHEN {UNKNOWN} THEN CASE WHEN created_at >= {sql_constant(database.horizon)} THEN 'effect_without_saga' END"
        f" WHEN {BROKEN} THEN 'open_effects'"
        " WHEN said IS NULL AND state <> 'COMPENSATED' THEN 'effect_without_saga'"
        " WHEN live AND said_generation <> generation THEN 'effect_applied_twice' ELSE 'effect_not_undone' END"
    )
    state = (
        "CASE WHEN reason = 'undo' THEN 'sealed' WHEN undone THEN 'undone' WHEN reason = 'do' THEN 'done'"
        " ELSE 'nothing' END"
    )
    details = {"saga_state": "said", "guard_state": state}
    database.add_findings(with_saga(rows), class_, place="connection", details=details)


def _step_of(entry: str) -> str:
    """The step of an entry id, as SQL: an earlier run may have had more items."""
    return f"split_part({entry}, '#', 1)"
