"""The books of all sagas in Spark: what the sagas say against the guards, the guards against the business tables.

Each pair is compared as :mod:`~spark_steps.reconcile.compare` does: where all is well that costs one pass over each
side, and only keys that differ are looked up in the other tables. Every check gives rows of the same form, see
``FINDING``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_steps.reconcile.compare import difference, kept
from spark_steps.reconcile.extract import GUARD_SCHEMA, MARGIN, OUTBOX_SCHEMA, effect_schema
from spark_steps.reconcile.findings import EXPECTED
from spark_steps.reconcile.journal import BROKEN, ENTRIES, ENTRY_SCHEMA, FINAL, SAGA_SCHEMA, SAGAS
from spark_steps.reconcile.spec import Spec

FINDING = ("class", "saga_id", "saga", "state", "step", "generation", "place", "row", "details")
"""``place`` is a connection or ``connection.table``, ``row`` the key of a business row as JSON, ``details`` more words
for people as JSON."""

FEW = 100_000
"""Sagas that are still open or cannot be judged: up to so many are sent to every task rather than sorted."""

SMALL = 200_000
SMALL_CONF = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For fewer rows than SMALL, compiling each query would take most of the time."""

FINDINGS = "findings.jsonl"

NOBODY = "UNKNOWN"
"""In the place of the state of a saga that nobody knows."""


@dataclass(frozen=True, slots=True)
class Tables:
    """``guard`` has one row for each generation of each entry and database, ``live`` those whose effect is there.

    ``since``: only what happened then or later is reported; ``horizon``: what is older than Temporal's own memory can
    have lost its saga, so nothing is said about it. Both in seconds since the epoch.
    """

    sagas: DataFrame
    entries: DataFrame
    guard: DataFrame
    since: float | None
    horizon: float

    @property
    def live(self) -> DataFrame:
        return self.guard.where((F.col("reason") == "do") & ~F.col("undone"))


def check(spark: SparkSession, request: Mapping[str, Any]) -> dict[str, Any]:
    """Find every mismatch. ``request``: ``folder`` (of journal and extracts), ``effects`` (see ``Effects.to_json``),
    ``since``, ``horizon``, ``rows`` (how many were extracted), ``limit`` (findings of each class that are written out).

    Answers ``counts`` by class and writes the findings to ``findings.jsonl`` in the folder.
    """
    folder = Path(request["folder"])
    if request["rows"] < SMALL:
        for name, value in SMALL_CONF.items():
            spark.conf.set(name, value)
    tables = Tables(
        sagas=_read(spark, folder / SAGAS, SAGA_SCHEMA),
        entries=_read(spark, folder / ENTRIES, ENTRY_SCHEMA),
        guard=_read(spark, folder / "guard", GUARD_SCHEMA),
        since=request.get("since"),
        horizon=request.get("horizon") or 0.0,
    )
    found = stories_and_guards(tables)
    for effects in request["effects"]:
        rows = _read(spark, folder / "effects" / f"{effects['name']}.parquet", effect_schema(len(effects["amounts"])))
        found += rows_and_guards(tables, effects, rows) if effects["step"] else rows_and_sagas(tables, effects, rows)
    found.append(events_and_guards(tables, _read(spark, folder / "outbox", OUTBOX_SCHEMA)))
    with kept(reduce(DataFrame.unionAll, found)) as findings:
        counts = {row["class"]: row["count"] for row in findings.groupBy("class").count().collect()}
        with (folder / FINDINGS).open("w", encoding="utf-8") as out:
            for class_ in counts:
                for finding in findings.where(F.col("class") == class_).limit(request["limit"]).collect():
                    out.write(json.dumps(finding.asDict(), ensure_ascii=False) + "\n")
    return {"counts": counts}


def _read(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    return spark.read.schema(from_arrow_schema(schema)).parquet(str(path))


def stories_and_guards(tables: Tables) -> list[DataFrame]:
    """What the sagas that are over say is there, against the rows of the guards."""
    key = ("saga_id", "step", "generation")
    said = tables.entries.where("guarded and live and not residue").select(*key)
    there = _without_unjudged(tables.live, tables.sagas).select(*key)
    found = difference(said, there, Spec(key, ()))
    if found.rows is None:
        return []
    rows = found.rows.select("kind", *(F.col(f"k{at}").alias(name) for at, name in enumerate(key)), "right_rows")
    guard = tables.guard.select(*key, "connection", "reason", "undone", "created_at")
    guard = guard.groupBy(*key).agg(
        F.concat_ws(", ", F.sort_array(F.collect_set("connection"))).alias("connection"),
        F.max("reason").alias("reason"),
        F.max("undone").alias("undone"),
        F.max("created_at").alias("created_at"),
    )
    entries = tables.entries.select(
        "saga_id", "step", F.col("generation").alias("said_generation"), F.col("state").alias("said"), "live", "residue"
    )
    rows = rows.join(guard, list(key), "left").join(entries, ["saga_id", "step"], "left")
    rows = _with_saga(rows, tables.sagas)
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
    return [_findings(rows, class_, F.col("connection"), F.lit(None), {
        "saga_says": F.col("said"),
        "guard_says": F.when(F.col("reason") == "undo", "sealed").when(F.col("undone"), "undone")
        .when(F.col("reason") == "do", "done").otherwise("nothing"),
    })]  # fmt: skip


def rows_and_guards(tables: Tables, effects: Mapping[str, Any], rows: DataFrame) -> list[DataFrame]:
    """The rows of a business table against the steps that the guards say are done."""
    amounts = list(effects["amounts"])
    rows = _amounts(rows, {f"a{at}": F.col(f"a{at}") for at in range(len(amounts))})
    steps = tables.guard.where(F.split("step", "#")[0] == effects["step"])
    if effects["sagas"]:
        mine = tables.sagas.where(F.col("saga").isin(effects["sagas"])).select("saga_id")
        steps = steps.join(mine, "saga_id", "left_semi")
    steps = steps.withColumn("bound", _bound(effects))
    fields = effects["amounts"].values()
    steps = _amounts(steps, {f"a{at}": F.get_json_object("result", _path(field)) for at, field in enumerate(fields)})
    if tables.since is not None:
        rows, steps = _in_window(rows, steps, tables, effects)
    if effects["holds"]:
        return [_held(tables, effects, rows, steps)]
    live = steps.where((F.col("reason") == "do") & ~F.col("undone"))
    names = tuple(f"a{at}" for at in range(len(amounts)))
    left, right = live, rows
    if effects["many"]:
        left, right = (side.groupBy("bound").agg(*_sums(names)) for side in (live, rows))
    spec = Spec.parse({"key": "bound", "compare": list(names), "tolerance": effects["tolerance"]})
    found = difference(left, right, spec)
    if found.rows is None:
        return []
    differing = found.rows.select("kind", F.col("k0").alias("bound"), "left_rows", "right_rows", "left", "right")
    return [_classified(tables, effects, differing, rows, steps)]


def _classified(
    tables: Tables, effects: Mapping[str, Any], differing: DataFrame, rows: DataFrame, steps: DataFrame
) -> DataFrame:
    by_guard = steps.groupBy("bound").agg(
        F.min("saga_id").alias("guard_saga"),
        F.min("step").alias("step"),
        F.max("generation").alias("generation"),
        F.min("created_at").alias("created_at"),
        F.max("undone").alias("undone"),
    )
    by_row = rows.groupBy("bound").agg(F.min("row").alias("row"), F.min("time").alias("time"))
    same = F.col("d.bound").eqNullSafe(F.col("r.bound"))
    joined = differing.alias("d").join(by_row.alias("r"), same, "left").select("d.*", "r.row", "r.time")
    joined = joined.join(by_guard, "bound", "left")
    joined = joined.withColumn("saga_id", F.coalesce(F.col("guard_saga"), _saga_of(effects)))
    joined = _with_saga(joined, tables.sagas)
    undone = F.coalesce(F.col("undone"), F.lit(False)) | (F.col("state") == "COMPENSATED")
    old = F.coalesce(F.col("time") < tables.horizon, F.lit(False))
    several = F.col("left_rows") != F.col("right_rows")
    class_ = (
        F.when(F.col("kind") == "missing_right", F.when(F.col("state") != NOBODY, "saga_without_effect"))
        .when(F.col("kind") == "missing_left", F.when(undone, "effect_still_there")
              .when(old & (F.col("state") == NOBODY), None).otherwise("effect_without_saga"))
        .when(several & (F.col("right_rows") > F.col("left_rows")), "effect_applied_twice")
        .when(several, "saga_without_effect")
        .otherwise("amounts_differ")
    )  # fmt: skip
    if tables.since is not None:
        # What lies before the window was perhaps not read as a whole.
        class_ = F.when(F.least(F.col("created_at"), F.col("time")) < tables.since, None).otherwise(class_)
    details: dict[str, Column] = {
        "rows": F.col("right_rows"),
        "steps_done": F.col("left_rows"),
        "bound": F.col("bound"),
    }
    for at, column in enumerate(effects["amounts"]):
        details[column] = F.col(f"right.v{at}").cast("string")
        details[f"{EXPECTED}{column}"] = F.col(f"left.v{at}").cast("string")
    return _findings(joined, class_, F.lit(_place(effects)), F.col("row"), details)


def _held(tables: Tables, effects: Mapping[str, Any], rows: DataFrame, steps: DataFrame) -> DataFrame:
    """Reservations whose saga is over, or that nobody has ever made."""
    owners = steps.groupBy("bound").agg(
        F.min("saga_id").alias("guard_saga"),
        F.min("step").alias("step"),
        F.max("generation").alias("generation"),
        F.max(((F.col("reason") == "do") & ~F.col("undone")).cast("int")).alias("live"),
    )
    rows = rows.join(owners, "bound", "left")
    rows = rows.withColumn("saga_id", F.coalesce(F.col("guard_saga"), _saga_of(effects)))
    rows = _with_saga(rows, tables.sagas)
    old = F.coalesce(F.col("time") < tables.horizon, F.lit(False))
    open_effect = F.col("state").isin(*BROKEN) & (F.col("live") == 1)  # told as open_effects already
    class_ = F.when(open_effect, None).when(
        F.col("state").isin(*FINAL, *BROKEN) | ((F.col("state") == NOBODY) & ~old), "reservation_unowned"
    )
    return _findings(rows, class_, F.lit(_place(effects)), F.col("row"), {"bound": F.col("bound")})


def rows_and_sagas(tables: Tables, effects: Mapping[str, Any], rows: DataFrame) -> list[DataFrame]:
    """The rows of a business table that belong to a saga as a whole."""
    owned = rows.groupBy("bound").agg(
        F.count(F.lit(1)).alias("rows"), F.min("row").alias("row"), F.min("time").alias("time")
    )
    owned = _with_saga(owned.withColumn("saga_id", F.col("bound")), tables.sagas)
    old = F.coalesce(F.col("time") < tables.horizon, F.lit(False))
    if tables.since is not None:
        seen = F.coalesce(F.col("time") >= tables.since, F.lit(False)) | (F.col("state") != NOBODY)
        owned = owned.where(seen)
    held = (F.col("state").isin(*FINAL, *BROKEN) | ((F.col("state") == NOBODY) & ~old)) & F.lit(effects["holds"])
    class_ = (
        F.when(held, "reservation_unowned")
        .when(F.lit(effects["holds"]), None)
        .when(F.col("state") == NOBODY, F.when(~old, "effect_without_saga"))
        .when(F.col("state") == "COMPENSATED", "effect_still_there")
        .when(F.col("state").isin(*BROKEN), "open_effects")
        .when((F.col("rows") > 1) & F.lit(not effects["many"]), "effect_applied_twice")
    )
    place = F.lit(_place(effects))
    owned = owned.withColumn("step", F.lit(None).cast("string")).withColumn("generation", F.lit(None).cast("int"))
    found = [_findings(owned, class_, place, F.col("row"), {"rows": F.col("rows"), "bound": F.col("bound")})]
    if effects["sagas"] and not effects["holds"]:
        done = tables.sagas.where((F.col("state") == "COMPLETED") & F.col("judged"))
        done = done.where(F.col("saga").isin(effects["sagas"]))
        if tables.since is not None and effects["timed"]:
            done = done.where(F.col("started_at") >= tables.since)
        missing = done.join(rows.select(F.col("bound").alias("saga_id")).distinct(), "saga_id", "left_anti")
        missing = missing.withColumn("step", F.lit(None).cast("string"))
        missing = missing.withColumn("generation", F.lit(None).cast("int"))
        found.append(_findings(missing, F.lit("saga_without_effect"), place, F.lit(None), {"rows": F.lit(0)}))
    return found


def events_and_guards(tables: Tables, outbox: DataFrame) -> DataFrame:
    """Events of the outbox whose step was never done: they were written with it, or not at all."""
    key = ["saga_id", "step", "generation"]
    done = tables.guard.where(F.col("reason") == "do").select(*key)
    rows = _with_saga(outbox.join(done, key, "left_anti"), tables.sagas)
    old = (F.col("created_at") < tables.horizon) & (F.col("state") == NOBODY)
    unfit = ~old & ((F.col("state") == NOBODY) | (F.col("state").isin(*FINAL) & F.col("judged")))
    row = F.to_json(F.struct("event_id"))
    place = F.concat(F.col("connection"), F.lit(".saga_outbox"))
    return _findings(rows, F.when(unfit, "event_without_effect"), place, row, {"topic": F.col("topic"),
                                                                               "status": F.col("status")})  # fmt: skip


def _findings(rows: DataFrame, class_: Column, place: Column, row: Column, details: Mapping[str, Column]) -> DataFrame:
    columns = {
        "class": class_,
        "place": place,
        "row": row.cast("string"),
        "details": F.to_json(F.struct(*(column.alias(name) for name, column in details.items()))),
    }
    found = rows.select(*(columns.get(name, F.col(name)).alias(name) for name in FINDING))
    return found.where(F.col("class").isNotNull())


def _with_saga(rows: DataFrame, sagas: DataFrame) -> DataFrame:
    """``saga``, ``state`` and ``judged`` of each row's ``saga_id``; the state is NOBODY where nobody knows it."""
    known = sagas.select("saga_id", "saga", "state", "judged")
    joined = rows.drop("saga", "state", "judged").join(known, "saga_id", "left")
    return joined.withColumn("state", F.coalesce(F.col("state"), F.lit(NOBODY)))


def _without_unjudged(rows: DataFrame, sagas: DataFrame) -> DataFrame:
    unjudged = sagas.where(~F.col("judged")).select("saga_id")
    count = unjudged.count()
    if not count:
        return rows
    return rows.join(F.broadcast(unjudged) if count <= FEW else unjudged, "saga_id", "left_anti")


def _bound(effects: Mapping[str, Any]) -> Column:
    """What ties a row of the guard to the rows of the business table."""
    match effects["binding"]:
        case "saga_id":
            return F.col("saga_id")
        case "guard_key":
            first = F.concat_ws("/", "saga_id", "step")
            return F.when(F.col("generation") == 1, first).otherwise(F.concat_ws("@", first, F.col("generation")))
        case _:
            return F.get_json_object("result", _path(effects["field"]))


def _saga_of(effects: Mapping[str, Any]) -> Column:
    """The saga's id as the row itself tells it."""
    match effects["binding"]:
        case "saga_id":
            return F.col("bound")
        case "guard_key":
            return F.nullif(F.regexp_extract("bound", r"^(.*)/[^/]*$", 1), F.lit(""))
        case _:
            return F.lit(None).cast("string")


def _in_window(
    rows: DataFrame, steps: DataFrame, tables: Tables, effects: Mapping[str, Any]
) -> tuple[DataFrame, DataFrame]:
    """Both sides as far back as both were read. Without a time of the rows: the sagas of the window, with all rows."""
    assert tables.since is not None
    if effects["timed"]:
        return rows, steps.where(F.col("created_at") >= tables.since - MARGIN)
    known = steps.select("bound").distinct()
    if effects["binding"] == "saga_id":
        known = known.union(tables.sagas.select("saga_id")).distinct()
    return rows.join(known, "bound", "left_semi"), steps


def _amounts(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    return reduce(lambda done, one: done.withColumn(one[0], one[1].cast("decimal(38,9)")), columns.items(), frame)


def _sums(names: Sequence[str]) -> list[Column]:
    found = [F.sum(name).cast("decimal(38,9)").alias(name) for name in names]
    return found or [F.lit(True).alias("there")]


def _path(field: str) -> str:
    """A dotted field of a result as a JSON path."""
    return "$" + "".join(f"[{json.dumps(part)}]".replace('"', "'") for part in field.split("."))


def _place(effects: Mapping[str, Any]) -> str:
    return f"{effects['connection']}.{effects['table']}"
