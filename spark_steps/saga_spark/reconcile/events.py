"""Events of the outboxes against the steps that wrote them, and against what is in the topics."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from saga_activities.outbox import HELD, NEW, PUBLISHED
from saga_spark.reconcile.compare import difference
from saga_spark.reconcile.journal import FINAL
from saga_spark.reconcile.spec import Spec
from saga_spark.reconcile.tables import NOBODY, Few, Tables, findings, with_saga

CONSUMER = "consumer/"
"""What the step of an event begins with that a consumer has written in its own transaction."""


def events_and_guards(tables: Tables, outbox: DataFrame) -> list[DataFrame]:
    """Events of the outbox whose step was never done: they were written with it, or not at all. And events that wait
    for the outcome of a saga that has one: the row that decides about a step decides about its events too."""
    key = ["saga_id", "step", "generation"]
    recent = outbox if tables.since is None else outbox.where(F.col("created_at") >= tables.since)
    done = tables.guard.where(F.col("reason") == "do").select(*key)
    # A consumer and the command of a `kafka.request` have no row in the guard.
    unguarded = tables.entries.where("not guarded").select("saga_id", "step").distinct()
    written = recent.where(~F.col("step").startswith(CONSUMER)).join(unguarded, ["saga_id", "step"], "left_anti")
    rows = with_saga(written.join(done, key, "left_anti"), tables.sagas)
    over = F.col("state").isin(*FINAL) & F.col("judged")
    strange = (F.col("state") == NOBODY) & (F.col("created_at") >= tables.horizon)
    place = F.concat(F.col("connection"), F.lit(".saga_outbox"))
    details = {"topic": F.col("topic"), "status": F.col("status")}
    found = [findings(rows, F.when(strange | over, "event_without_effect"), place, _event(), details)]

    held = Few.of(outbox.where(F.col("status") == HELD), tables)
    known = tables.entries.where("residue").select("saga_id", "step")  # a person has left it so
    rows = held.rows.join(held.those(done, *key), key, "left_semi")
    rows = with_saga(rows.join(known, ["saga_id", "step"], "left_anti"), held.those(tables.sagas, "saga_id"))
    return [*found, findings(rows, F.when(over, "event_held"), place, _event(), details)]


def events_and_topics(
    tables: Tables, outbox: DataFrame, records: DataFrame, asked: Mapping[str, Any]
) -> list[DataFrame]:
    """What the outboxes have published against what read_committed consumers see. ``asked``: see ``Read.to_json``."""
    key = ("connection", "event_id", "topic")
    since = max(tables.since or 0.0, asked["unclaimed_since"])
    floors = F.create_map(*(F.lit(one) for one in chain(("", 0.0), *asked["floors"].items())))
    whole = F.coalesce(F.element_at(floors, F.col("topic")), F.lit(0.0))
    published = outbox.where((F.col("status") == PUBLISHED) & (F.col("published_at") >= whole))
    if tables.since is not None:
        published = published.where(F.col("published_at") >= tables.since)
    found = difference(published.select(*key), records.select(*key), Spec(key, ()))
    if found.rows is None:
        return []
    named = (F.col(f"k{at}").alias(name) for at, name in enumerate(key))
    few = Few.of(found.rows.select("kind", *named, "right_rows"), tables)
    rows = few.those(outbox, *key).select(*key, "status", "saga_id", "step", "generation")
    seen = few.those(records, *key).groupBy(*key).agg(
        F.max("timestamp").alias("timestamp"),
        F.first("saga_id").alias("told_saga"),
        F.first("step").alias("told_step"),
        F.concat_ws(", ", F.sort_array(F.collect_set(F.concat_ws("/", "partition", "offset")))).alias("at"),
    )  # fmt: skip
    joined = few.rows.join(rows, list(key), "left").join(seen, list(key), "left")
    joined = joined.withColumn("saga_id", F.coalesce("saga_id", "told_saga"))
    joined = joined.withColumn("saga_id", F.when(F.col("saga_id") != "", F.col("saga_id")))
    joined = joined.withColumn("step", F.coalesce("step", "told_step"))
    recent = F.col("timestamp") >= since
    claimed = F.coalesce(F.col("status").isin(PUBLISHED, NEW), F.lit(False))
    class_ = (
        F.when(F.col("kind") == "missing_right", "event_missing")
        .when(F.col("right_rows") > 1, F.when(recent, "event_published_twice"))
        .when(~claimed, F.when(recent, "event_unclaimed"))
    )
    place = F.concat(F.col("connection"), F.lit(".saga_outbox"))
    details = {
        "topic": F.col("topic"),
        "status": F.col("status"),
        "records": F.col("right_rows"),
        "partition/offset": F.col("at"),
    }
    return [findings(with_saga(joined, tables.sagas), class_, place, _event(), details)]


def _event() -> Column:
    """The key of a row of the outbox."""
    return F.to_json(F.struct("event_id"))
