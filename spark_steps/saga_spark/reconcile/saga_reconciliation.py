"""Reconciles all sagas in Spark: the sagas with the guards, and the guards with the business tables.

Each pair is compared as in :mod:`~saga_spark.reconcile.comparison`: without mismatches that costs one pass over each
side, and only keys that differ are looked up in the other tables. Every check returns rows with ``FINDING_COLUMNS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from saga_spark.reconcile.comparison import find_differing_keys, persisted
from saga_spark.reconcile.effect_checks import (
    BROADCAST_LIMIT,
    UNKNOWN_STATE,
    DifferingKeys,
    ReconciliationTables,
    check_events_against_guards,
    check_events_against_topics,
    check_rows_against_guards,
    check_rows_against_sagas,
    join_saga,
    to_findings,
)
from saga_spark.reconcile.extracts import (
    ABNORMAL_STATES,
    ENTRIES_FILE,
    ENTRY_SCHEMA,
    GUARD_SCHEMA,
    OUTBOX_SCHEMA,
    SAGA_SCHEMA,
    SAGAS_FILE,
    effect_schema,
)
from saga_spark.reconcile.findings import COMPARING
from saga_spark.reconcile.reconcile_spec import ComparisonSpec
from saga_spark.reconcile.topic_extract import RECORD_SCHEMA, RECORDS_FILE
from saga_spark.runner.task_context import TaskContext
from sagas.protocol.payloads import NOTIFICATION_PREFIX
from sagas.text.exact_json import encode_json

SMALL_ROW_COUNT = 200_000
SMALL_CONF = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for fewer rows than SMALL_ROW_COUNT, where compiling each query would take most of the time."""

FINDINGS_FILE = "findings.jsonl"


def find_mismatches(
    spark: SparkSession, request: Mapping[str, Any], on_progress: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Find every mismatch. ``request`` has ``folder`` (with the extracts), ``effects`` (see ``EffectTable.to_json``),
    ``since``, ``horizon``, ``rows`` (the number of extracted rows), ``limit`` (the number of findings written per kind)
    and ``topics`` (see ``TopicsRead.to_json``; None if no topic was read).

    Returns ``counts`` by kind, and writes the findings to ``findings.jsonl`` in the folder.
    """
    folder = Path(request["folder"])
    small = request["rows"] < SMALL_ROW_COUNT
    if small:
        for name, value in SMALL_CONF.items():
            spark.conf.set(name, value)
    tables = ReconciliationTables(
        sagas=_read_parquet(spark, folder / SAGAS_FILE, SAGA_SCHEMA),
        entries=_read_parquet(spark, folder / ENTRIES_FILE, ENTRY_SCHEMA),
        guard=_read_parquet(spark, folder / "guard", GUARD_SCHEMA),
        since=request.get("since"),
        horizon=request.get("horizon") or 0.0,
        rows=request["rows"],
    )
    try:
        on_progress("the sagas with the guards")
        findings = check_sagas_against_guards(tables)
        for effects in request["effects"]:
            on_progress(f"{effects['connection']}.{effects['table']} with the sagas that write it")
            schema = effect_schema(len(effects["amounts"]))
            rows = _read_parquet(spark, folder / "effects" / f"{effects['name']}.parquet", schema)
            findings += (check_rows_against_guards if effects["step"] else check_rows_against_sagas)(
                tables, effects, rows
            )
        outbox = _read_parquet(spark, folder / "outbox", OUTBOX_SCHEMA)
        on_progress("the outboxes with the guards")
        findings += check_events_against_guards(tables, outbox)
        if request.get("topics") is not None:
            on_progress("the outboxes with the topics")
            records = _read_parquet(spark, folder / RECORDS_FILE, RECORD_SCHEMA)
            findings += check_events_against_topics(tables, outbox, records, request["topics"])
        on_progress("what differs with the sagas")
        whole = reduce(DataFrame.unionAll, findings)
        with persisted(whole.coalesce(1) if small else whole) as mismatches:
            counts = {row["class"]: row["count"] for row in mismatches.groupBy("class").count().collect()}
            limit = request["limit"]
            # A limit takes several jobs, one after the other; most reconciliations need none.
            parts = (mismatches.where(F.col("class") == class_).limit(limit) for class_ in counts)
            with (folder / FINDINGS_FILE).open("w", encoding="utf-8") as out:
                for part in [mismatches] if sum(counts.values()) <= limit else parts:
                    for finding in part.collect():
                        out.write(encode_json(finding.asDict()).decode() + "\n")
    finally:
        for frame in tables.persisted:
            frame.unpersist()
    return {"counts": counts}


def _read_parquet(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    return spark.read.schema(from_arrow_schema(schema)).parquet(str(path))


def check_sagas_against_guards(tables: ReconciliationTables) -> list[DataFrame]:
    """Compare the effects of sagas that have ended with the rows of the guards."""
    key = ("saga_id", "step", "generation")
    claimed = tables.entries.where("guarded and live and not residue").select(*key)
    # Notifications are best effort, and no saga claims their effects.
    steps = tables.live.where(~F.col("step").startswith(NOTIFICATION_PREFIX))
    present = _comparable_only(steps, tables.sagas).select(*key)
    names = (F.col(f"k{index}").alias(name) for index, name in enumerate(key))
    differing = find_differing_keys(claimed, present, ComparisonSpec(key, ()), tables.rows)
    few = DifferingKeys.persist(differing and differing.select("kind", *names, "right_rows"), tables)
    if few is None:
        return []
    rows = few.rows
    guard = few.matching_rows(tables.guard.select(*key, "connection", "reason", "undone", "created_at"), *key)
    guard = guard.groupBy(*key).agg(
        F.concat_ws(", ", F.sort_array(F.collect_set("connection"))).alias("connection"),
        F.max("reason").alias("reason"),
        F.max("undone").alias("undone"),
        F.max("created_at").alias("created_at"),
    )
    entries = tables.entries.select(
        "saga_id", "step", F.col("generation").alias("said_generation"), F.col("state").alias("said"), "live", "residue"
    )
    sagas = few.matching_rows(tables.sagas, "saga_id")
    rows = rows.join(guard, list(key), "left").join(
        few.matching_rows(entries, "saga_id", "step"), ["saga_id", "step"], "left"
    )
    reads = tables.entries.where("reads").select("saga_id", _step_of("step").alias("definition")).distinct()
    read = (rows["saga_id"] == reads["saga_id"]) & (_step_of(rows["step"]) == reads["definition"])
    rows = join_saga(rows.join(reads, read, "left_anti"), sagas)
    unknown, broken = F.col("state") == UNKNOWN_STATE, F.col("state").isin(*ABNORMAL_STATES)
    other_generation = F.col("live") & (F.col("said_generation") != F.col("generation"))
    class_ = (
        F.when(F.col("kind") == "missing_right", "saga_without_effect")
        .when(F.col("kind") == "duplicate", "effect_applied_twice")
        .when(F.coalesce(F.col("residue"), F.lit(False)), None)
        .when(unknown, F.when(F.col("created_at") >= tables.horizon, "effect_without_saga"))
        .when(broken, "open_effects")
        .when(F.col("said").isNull() & (F.col("state") != "COMPENSATED"), "effect_without_saga")
        .when(F.coalesce(other_generation, F.lit(False)), "effect_applied_twice")
        .otherwise("effect_not_undone")
    )
    return [to_findings(rows, class_, F.col("connection"), F.lit(None), {
        "saga_state": F.col("said"),
        "guard_state": F.when(F.col("reason") == "undo", "sealed").when(F.col("undone"), "undone")
        .when(F.col("reason") == "do", "done").otherwise("nothing"),
    })]  # fmt: skip


def _step_of(entry: str | Column) -> Column:
    """The step of an entry id: an earlier run may have had more items."""
    return F.split(entry, "#")[0]


def _comparable_only(rows: DataFrame, sagas: DataFrame) -> DataFrame:
    unjudged = sagas.where(~F.col("judged")).select("saga_id")
    count = unjudged.count()
    if not count:
        return rows
    return rows.join(F.broadcast(unjudged) if count <= BROADCAST_LIMIT else unjudged, "saga_id", "left_anti")


def reconcile_sagas(context: TaskContext, request: dict[str, Any]) -> dict[str, Any]:
    """Reconcile all sagas; see :func:`find_mismatches`."""
    return find_mismatches(context.spark, request, lambda what: context.progress({COMPARING: what}))


def warm_up(context: TaskContext, request: dict[str, Any]) -> dict[str, Any]:
    """Start Spark while its data is still being extracted. Runs a query, because the first one loads most classes."""
    for name, value in SMALL_CONF.items():
        context.spark.conf.set(name, value)
    context.spark.range(1).groupBy("id").count().collect()
    return {}
