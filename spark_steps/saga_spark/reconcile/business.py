"""The rows of business tables against the guards' word about the steps that wrote them, or against whole sagas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from saga_spark.reconcile.compare import difference
from saga_spark.reconcile.extract import MARGIN
from saga_spark.reconcile.findings import EXPECTED
from saga_spark.reconcile.journal import BROKEN, FINAL
from saga_spark.reconcile.spec import Spec
from saga_spark.reconcile.tables import NOBODY, Few, Tables, findings, with_saga


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
    return [_classified(tables, effects, Few.of(differing, tables), rows, steps)]


def _classified(tables: Tables, effects: Mapping[str, Any], few: Few, rows: DataFrame, steps: DataFrame) -> DataFrame:
    by_guard = (
        few.those(steps, "bound")
        .groupBy("bound")
        .agg(
            F.min("saga_id").alias("guard_saga"),
            F.min("step").alias("step"),
            F.max("generation").alias("generation"),
            F.min("created_at").alias("created_at"),
            F.max("undone").alias("undone"),
        )
    )
    by_row = few.those(rows, "bound").groupBy("bound").agg(F.min("row").alias("row"), F.min("time").alias("time"))
    same = F.col("d.bound").eqNullSafe(F.col("r.bound"))
    joined = few.rows.alias("d").join(by_row.alias("r"), same, "left").select("d.*", "r.row", "r.time")
    joined = joined.join(by_guard, "bound", "left")
    joined = joined.withColumn("saga_id", F.coalesce(F.col("guard_saga"), _saga_of(effects)))
    joined = with_saga(joined, Few(joined, few.small).those(tables.sagas, "saga_id"))
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
    return findings(joined, class_, F.lit(_place(effects)), F.col("row"), details)


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
    rows = with_saga(rows, tables.sagas)
    old = F.coalesce(F.col("time") < tables.horizon, F.lit(False))
    open_effect = F.col("state").isin(*BROKEN) & (F.col("live") == 1)  # told as open_effects already
    class_ = F.when(open_effect, None).when(
        F.col("state").isin(*FINAL, *BROKEN) | ((F.col("state") == NOBODY) & ~old), "reservation_unowned"
    )
    return findings(rows, class_, F.lit(_place(effects)), F.col("row"), {"bound": F.col("bound")})


def rows_and_sagas(tables: Tables, effects: Mapping[str, Any], rows: DataFrame) -> list[DataFrame]:
    """The rows of a business table that belong to a saga as a whole."""
    owned = rows.groupBy("bound").agg(
        F.count(F.lit(1)).alias("rows"), F.min("row").alias("row"), F.min("time").alias("time")
    )
    owned = with_saga(owned.withColumn("saga_id", F.col("bound")), tables.sagas)
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
    found = [findings(owned, class_, place, F.col("row"), {"rows": F.col("rows"), "bound": F.col("bound")})]
    if effects["sagas"] and not effects["holds"]:
        done = tables.sagas.where((F.col("state") == "COMPLETED") & F.col("judged"))
        done = done.where(F.col("saga").isin(effects["sagas"]))
        if tables.since is not None and effects["timed"]:
            done = done.where(F.col("started_at") >= tables.since)
        missing = done.join(rows.select(F.col("bound").alias("saga_id")).distinct(), "saga_id", "left_anti")
        missing = missing.withColumn("step", F.lit(None).cast("string"))
        missing = missing.withColumn("generation", F.lit(None).cast("int"))
        found.append(findings(missing, F.lit("saga_without_effect"), place, F.lit(None), {"rows": F.lit(0)}))
    return found


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
