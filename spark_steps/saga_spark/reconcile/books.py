"""The books of all sagas in Spark: what the sagas say against the guards, the guards against the business tables.

Each pair is compared as :mod:`~saga_spark.reconcile.compare` does: where all is well that costs one pass over each
side, and only keys that differ are looked up in the other tables. Every check gives rows of the same form, see
``FINDING``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from saga_spark.reconcile.business import rows_and_guards, rows_and_sagas
from saga_spark.reconcile.compare import difference, kept
from saga_spark.reconcile.events import events_and_guards, events_and_topics
from saga_spark.reconcile.extract import GUARD_SCHEMA, OUTBOX_SCHEMA, effect_schema
from saga_spark.reconcile.journal import BROKEN, ENTRIES, ENTRY_SCHEMA, SAGA_SCHEMA, SAGAS
from saga_spark.reconcile.spec import Spec
from saga_spark.reconcile.tables import FEW, NOBODY, Few, Tables, findings, with_saga
from saga_spark.reconcile.topics import RECORD_SCHEMA, RECORDS
from sagas.machine.keys import NOTIFICATION

SMALL = 200_000
SMALL_CONF = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For fewer rows than SMALL, compiling each query would take most of the time."""

FINDINGS = "findings.jsonl"


def check(spark: SparkSession, request: Mapping[str, Any]) -> dict[str, Any]:
    """Find every mismatch. ``request``: ``folder`` (of journal and extracts), ``effects`` (see ``Effects.to_json``),
    ``since``, ``horizon``, ``rows`` (how many were extracted), ``limit`` (findings of each class that are written out),
    ``topics`` (see ``topics.Read.to_json``; None: no topic was read).

    Answers ``counts`` by class and writes the findings to ``findings.jsonl`` in the folder.
    """
    folder = Path(request["folder"])
    small = request["rows"] < SMALL
    if small:
        for name, value in SMALL_CONF.items():
            spark.conf.set(name, value)
    tables = Tables(
        sagas=_read(spark, folder / SAGAS, SAGA_SCHEMA),
        entries=_read(spark, folder / ENTRIES, ENTRY_SCHEMA),
        guard=_read(spark, folder / "guard", GUARD_SCHEMA),
        since=request.get("since"),
        horizon=request.get("horizon") or 0.0,
    )
    try:
        found = stories_and_guards(tables)
        for effects in request["effects"]:
            schema = effect_schema(len(effects["amounts"]))
            rows = _read(spark, folder / "effects" / f"{effects['name']}.parquet", schema)
            found += (rows_and_guards if effects["step"] else rows_and_sagas)(tables, effects, rows)
        outbox = _read(spark, folder / "outbox", OUTBOX_SCHEMA)
        found += events_and_guards(tables, outbox)
        if request.get("topics") is not None:
            records = _read(spark, folder / RECORDS, RECORD_SCHEMA)
            found += events_and_topics(tables, outbox, records, request["topics"])
        whole = reduce(DataFrame.unionAll, found)
        with kept(whole.coalesce(1) if small else whole) as told:
            counts = {row["class"]: row["count"] for row in told.groupBy("class").count().collect()}
            limit = request["limit"]
            # A limit is several jobs, one after the other; most books need none.
            parts = (told.where(F.col("class") == class_).limit(limit) for class_ in counts)
            with (folder / FINDINGS).open("w", encoding="utf-8") as out:
                for part in [told] if sum(counts.values()) <= limit else parts:
                    for finding in part.collect():
                        out.write(json.dumps(finding.asDict(), ensure_ascii=False) + "\n")
    finally:
        for frame in tables.kept:
            frame.unpersist()
    return {"counts": counts}


def _read(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    return spark.read.schema(from_arrow_schema(schema)).parquet(str(path))


def stories_and_guards(tables: Tables) -> list[DataFrame]:
    """What the sagas that are over say is there, against the rows of the guards."""
    key = ("saga_id", "step", "generation")
    said = tables.entries.where("guarded and live and not residue").select(*key)
    # What a notification has done is nobody's effect: it is best effort, and no story says that it must be there.
    steps = tables.live.where(~F.col("step").startswith(NOTIFICATION))
    there = _without_unjudged(steps, tables.sagas).select(*key)
    found = difference(said, there, Spec(key, ()))
    if found.rows is None:
        return []
    rows = found.rows.select("kind", *(F.col(f"k{at}").alias(name) for at, name in enumerate(key)), "right_rows")
    few = Few.of(rows, tables)
    rows = few.rows
    guard = few.those(tables.guard.select(*key, "connection", "reason", "undone", "created_at"), *key)
    guard = guard.groupBy(*key).agg(
        F.concat_ws(", ", F.sort_array(F.collect_set("connection"))).alias("connection"),
        F.max("reason").alias("reason"),
        F.max("undone").alias("undone"),
        F.max("created_at").alias("created_at"),
    )
    entries = tables.entries.select(
        "saga_id", "step", F.col("generation").alias("said_generation"), F.col("state").alias("said"), "live", "residue"
    )
    sagas = few.those(tables.sagas, "saga_id")
    rows = rows.join(guard, list(key), "left").join(few.those(entries, "saga_id", "step"), ["saga_id", "step"], "left")
    rows = with_saga(rows, sagas)
    unknown, broken = F.col("state") == NOBODY, F.col("state").isin(*BROKEN)
    other_generation = F.col("live") & (F.col("said_generation") != F.col("generation"))
    class_ = (
        F.when(F.col("kind") == "missing_right", "saga_without_effect")
        .when(F.col("kind") == "duplicate", "effect_applied_twice")
        .when(F.coalesce(F.col("residue"), F.lit(False)), None)
        .when(unknown, F.when(F.col("created_at") >= tables.horizon, "effect_without_saga"))
        .when(broken, "open_effects")
        .when(F.col("said").isNull() & (F.col("state") != "COMPENSATED"), "effect_without_saga")
        .when(F.coalesce(other_generation, F.lit(False)), "effect_applied_twice")
        .otherwise("effect_still_there")
    )
    return [findings(rows, class_, F.col("connection"), F.lit(None), {
        "saga_says": F.col("said"),
        "guard_says": F.when(F.col("reason") == "undo", "sealed").when(F.col("undone"), "undone")
        .when(F.col("reason") == "do", "done").otherwise("nothing"),
    })]  # fmt: skip


def _without_unjudged(rows: DataFrame, sagas: DataFrame) -> DataFrame:
    unjudged = sagas.where(~F.col("judged")).select("saga_id")
    count = unjudged.count()
    if not count:
        return rows
    return rows.join(F.broadcast(unjudged) if count <= FEW else unjudged, "saga_id", "left_anti")
