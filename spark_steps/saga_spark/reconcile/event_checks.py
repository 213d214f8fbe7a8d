"""Compares outbox events and topics with the guards and the sagas that should have produced them."""

from __future__ import annotations

from saga_activities.messaging.outbox import HELD, NEW, PUBLISHED
from saga_spark.reconcile.comparison_database import OVER, UNKNOWN, ComparisonDatabase, members, sql_constant, with_saga
from saga_spark.reconcile.key_comparison import find_differing_keys
from saga_spark.reconcile.topic_extract import TopicsRead

CONSUMER_PREFIX = "consumer/"
"""Prefix of the step of an event that a consumer has written in its own transaction."""

_PLACE = "connection || '.saga_outbox'"
_ROW = "CASE WHEN event_id IS NULL THEN '{}' ELSE json_object('event_id', event_id) END"
"""The key of a row of the outbox, as SQL."""


def check_events_against_guards(database: ComparisonDatabase) -> None:
    """Find outbox events whose step was never done, and events that still wait for the outcome of a saga that has
    ended.

    An event is written in its step's transaction, and the row that decides a step decides its events too.
    """
    recent = "true" if database.since is None else f"created_at >= {sql_constant(database.since)}"
    done = "(SELECT saga_id, step, generation FROM guard WHERE reason = 'do') done USING (saga_id, step, generation)"
    # A consumer and the command of a `kafka.request` have no row in the guard. Commands also have a type of their own:
    # a run that a reset has made may have ended before the step that an earlier run has done and undone.
    unguarded = "(SELECT saga_id, step FROM entries WHERE NOT guarded) unguarded USING (saga_id, step)"
    written = (
        f"FROM outbox ANTI JOIN {unguarded} WHERE NOT is_command"
        f" AND NOT starts_with(step, {sql_constant(CONSUMER_PREFIX)}) AND {recent}"
    )
    database.table("events", f"FROM ({written}) ANTI JOIN {done}")
    over = f"{OVER} AND judged"
    strange = f"{UNKNOWN} AND created_at >= {sql_constant(database.horizon)}"
    details = {"topic": "topic", "status": "status"}
    class_ = f"CASE WHEN ({strange}) OR ({over}) THEN 'event_without_effect' END"
    database.add_findings(with_saga("FROM events"), class_, place=_PLACE, row=_ROW, details=details)

    residue = "(SELECT saga_id, step FROM entries WHERE residue) residue USING (saga_id, step)"  # left by an operator
    held = f"FROM outbox SEMI JOIN {done} ANTI JOIN {residue} WHERE status = {sql_constant(HELD)}"
    class_ = f"CASE WHEN {over} THEN 'event_held' END"
    database.add_findings(with_saga(held), class_, place=_PLACE, row=_ROW, details=details)


def check_events_against_topics(database: ComparisonDatabase, topics: TopicsRead) -> None:
    """Compare published events with what read_committed consumers see."""
    key = ("connection", "event_id", "topic")
    columns = ", ".join(key)
    database.table("floors", "SELECT NULL::VARCHAR AS topic, NULL::DOUBLE AS floor WHERE false")
    if topics.floors:
        database.connection.executemany("INSERT INTO floors VALUES (?, ?)", [*topics.floors.items()])
    recent = "" if database.since is None else f" AND published_at >= {sql_constant(database.since)}"
    database.view(
        "published",
        f"SELECT {columns} FROM outbox LEFT JOIN floors USING (topic)"
        f" WHERE status = {sql_constant(PUBLISHED)} AND published_at >= coalesce(floor, 0){recent}",
    )
    database.view("visible", "FROM records WHERE NOT is_hidden")
    if not find_differing_keys(database, "published", "visible", key):
        return
    same = " AND ".join(f"side.{name} IS NOT DISTINCT FROM differing.{name}" for name in key)
    database.table("outbox_of_keys", f"FROM outbox side SEMI JOIN differing ON {same}")
    database.table(
        "records_of_keys",
        f"SELECT {columns}, max(timestamp) AS timestamp, min(saga_id) AS saga_id, min(step) AS step,"
        " string_agg(DISTINCT partition || '/' || \"offset\", ', ' ORDER BY partition || '/' || \"offset\") AS places"
        f" FROM visible side SEMI JOIN differing ON {same} GROUP BY {columns}",
    )
    database.table(
        "hidden_of_keys",
        f"SELECT DISTINCT {columns}, is_hidden FROM records side SEMI JOIN differing ON {same} WHERE is_hidden",
    )
    joined = (
        f"SELECT {columns}, kind, is_hidden, right_rows, timestamp, places, status, generation,"
        " nullif(coalesce(outbox_of_keys.saga_id, records_of_keys.saga_id), '') AS saga_id,"
        " coalesce(outbox_of_keys.step, records_of_keys.step) AS step"
        f" FROM differing LEFT JOIN outbox_of_keys USING ({columns}) LEFT JOIN records_of_keys USING ({columns})"
        f" LEFT JOIN hidden_of_keys USING ({columns})"
    )
    seen = f"timestamp >= {sql_constant(max(database.since or 0.0, topics.unclaimed_since))}"
    claimed = f"coalesce(status IN {members((PUBLISHED, NEW))}, false)"
    class_ = (
        "CASE WHEN kind = 'missing_right' THEN CASE WHEN is_hidden THEN 'event_hidden' ELSE 'event_missing' END"
        f" WHEN right_rows > 1 THEN CASE WHEN {seen} THEN 'event_published_twice' END"
        f" WHEN NOT {claimed} AND {seen} THEN 'event_unclaimed' END"
    )
    details = {"topic": "topic", "status": "status", "records": "right_rows", "partition/offset": "places"}
    database.add_findings(with_saga(joined), class_, place=_PLACE, row=_ROW, details=details)
