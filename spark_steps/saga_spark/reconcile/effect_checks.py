"""Compares business tables, outbox events and topics with the guards and the sagas that should have produced them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from saga_activities.messaging.outbox import HELD, NEW, PUBLISHED
from saga_spark.reconcile.comparison import find_differing_keys
from saga_spark.reconcile.extracts import ABNORMAL_STATES, FINAL_STATES, READ_MARGIN
from saga_spark.reconcile.findings import EXPECTED_PREFIX
from saga_spark.reconcile.reconcile_spec import ComparisonSpec
from sagas.text.exact_json import encode_json


def check_rows_against_guards(
    tables: ReconciliationTables, effects: Mapping[str, Any], rows: DataFrame
) -> list[DataFrame]:
    """Compare the rows of a business table with the steps that are done according to the guards."""
    amounts = list(effects["amounts"])
    rows = _with_amounts(rows, {f"a{index}": F.col(f"a{index}") for index in range(len(amounts))})
    steps = tables.guard.where(F.split("step", "#")[0] == effects["step"])
    if effects["sagas"]:
        mine = tables.sagas.where(F.col("saga").isin(effects["sagas"])).select("saga_id")
        steps = steps.join(mine, "saga_id", "left_semi")
    steps = steps.withColumn("bound", _binding_value(effects))
    fields = effects["amounts"].values()
    steps = _with_amounts(
        steps, {f"a{index}": F.get_json_object("result", _json_path(field)) for index, field in enumerate(fields)}
    )
    if tables.since is not None:
        rows, steps = _limit_to_window(rows, steps, tables, effects)
    if effects["holds"]:
        return [_unowned_reservations(tables, effects, rows, steps)]
    live = steps.where((F.col("reason") == "do") & ~F.col("undone"))
    names = tuple(f"a{index}" for index in range(len(amounts)))
    left, right = live, rows
    if effects["many"]:
        left, right = (side.groupBy("bound").agg(*_amount_sums(names)) for side in (live, rows))
    spec = ComparisonSpec.parse({"key": "bound", "compare": list(names), "tolerance": effects["tolerance"]})
    different = find_differing_keys(left, right, spec, tables.rows)
    columns = ("kind", F.col("k0").alias("bound"), "left_rows", "right_rows", "left", "right")
    differing = DifferingKeys.persist(different and different.select(*columns), tables)
    return [] if differing is None else [_classify(tables, effects, differing, rows, steps)]


def _classify(
    tables: ReconciliationTables,
    effects: Mapping[str, Any],
    differing: DifferingKeys,
    rows: DataFrame,
    steps: DataFrame,
) -> DataFrame:
    by_guard = (
        differing.matching_rows(steps, "bound")
        .groupBy("bound")
        .agg(
            F.min("saga_id").alias("guard_saga"),
            F.min("step").alias("step"),
            F.max("generation").alias("generation"),
            F.min("created_at").alias("created_at"),
            F.max("undone").alias("undone"),
        )
    )
    by_row = (
        differing.matching_rows(rows, "bound")
        .groupBy("bound")
        .agg(F.min("row").alias("row"), F.min("time").alias("time"))
    )
    same = F.col("d.bound").eqNullSafe(F.col("r.bound"))
    joined = differing.rows.alias("d").join(by_row.alias("r"), same, "left").select("d.*", "r.row", "r.time")
    joined = joined.join(by_guard, "bound", "left")
    joined = joined.withColumn("saga_id", F.coalesce(F.col("guard_saga"), _saga_id_of_row(effects)))
    joined = join_saga(joined, DifferingKeys(joined, differing.small).matching_rows(tables.sagas, "saga_id"))
    undone = F.coalesce(F.col("undone"), F.lit(False)) | (F.col("state") == "COMPENSATED")
    old = F.coalesce(F.col("time") < tables.horizon, F.lit(False))
    several = F.col("left_rows") != F.col("right_rows")
    class_ = (
        F.when(F.col("kind") == "missing_right", F.when(F.col("state") != UNKNOWN_STATE, "saga_without_effect"))
        .when(F.col("kind") == "missing_left", F.when(undone, "effect_not_undone")
              .when(old & (F.col("state") == UNKNOWN_STATE), None).otherwise("effect_without_saga"))
        .when(several & (F.col("right_rows") > F.col("left_rows")), "effect_applied_twice")
        .when(several, "saga_without_effect")
        .otherwise("amounts_differ")
    )  # fmt: skip
    if tables.since is not None:
        # Data from before the window may have been read incompletely.
        class_ = F.when(F.least(F.col("created_at"), F.col("time")) < tables.since, None).otherwise(class_)
    details: dict[str, Column] = {
        "rows": F.col("right_rows"),
        "steps_done": F.col("left_rows"),
        "bound": F.col("bound"),
    }
    for index, column in enumerate(effects["amounts"]):
        details[column] = F.col(f"right.v{index}").cast("string")
        details[f"{EXPECTED_PREFIX}{column}"] = F.col(f"left.v{index}").cast("string")
    return to_findings(joined, class_, F.lit(_table_label(effects)), F.col("row"), details)


def _unowned_reservations(
    tables: ReconciliationTables, effects: Mapping[str, Any], rows: DataFrame, steps: DataFrame
) -> DataFrame:
    """Rows of effects with `holds` whose saga has ended, or that no saga has made."""
    owners = steps.groupBy("bound").agg(
        F.min("saga_id").alias("guard_saga"),
        F.min("step").alias("step"),
        F.max("generation").alias("generation"),
        F.max(((F.col("reason") == "do") & ~F.col("undone")).cast("int")).alias("live"),
    )
    rows = rows.join(owners, "bound", "left")
    rows = rows.withColumn("saga_id", F.coalesce(F.col("guard_saga"), _saga_id_of_row(effects)))
    rows = join_saga(rows, tables.sagas)
    old = F.coalesce(F.col("time") < tables.horizon, F.lit(False))
    open_effect = F.col("state").isin(*ABNORMAL_STATES) & (F.col("live") == 1)  # already reported as open_effects
    class_ = F.when(open_effect, None).when(
        F.col("state").isin(*FINAL_STATES, *ABNORMAL_STATES) | ((F.col("state") == UNKNOWN_STATE) & ~old),
        "reservation_unowned",
    )
    return to_findings(rows, class_, F.lit(_table_label(effects)), F.col("row"), {"bound": F.col("bound")})


def check_rows_against_sagas(
    tables: ReconciliationTables, effects: Mapping[str, Any], rows: DataFrame
) -> list[DataFrame]:
    """Check the rows of a business table that belong to a saga as a whole."""
    owned = rows.groupBy("bound").agg(
        F.count(F.lit(1)).alias("rows"), F.min("row").alias("row"), F.min("time").alias("time")
    )
    owned = join_saga(owned.withColumn("saga_id", F.col("bound")), tables.sagas)
    old = F.coalesce(F.col("time") < tables.horizon, F.lit(False))
    if tables.since is not None:
        seen = F.coalesce(F.col("time") >= tables.since, F.lit(False)) | (F.col("state") != UNKNOWN_STATE)
        owned = owned.where(seen)
    held = (F.col("state").isin(*FINAL_STATES, *ABNORMAL_STATES) | ((F.col("state") == UNKNOWN_STATE) & ~old)) & F.lit(
        effects["holds"]
    )
    class_ = (
        F.when(held, "reservation_unowned")
        .when(F.lit(effects["holds"]), None)
        .when(F.col("state") == UNKNOWN_STATE, F.when(~old, "effect_without_saga"))
        .when(F.col("state") == "COMPENSATED", "effect_not_undone")
        .when(F.col("state").isin(*ABNORMAL_STATES), "open_effects")
        .when((F.col("rows") > 1) & F.lit(not effects["many"]), "effect_applied_twice")
    )
    place = F.lit(_table_label(effects))
    owned = owned.withColumn("step", F.lit(None).cast("string")).withColumn("generation", F.lit(None).cast("int"))
    findings = [to_findings(owned, class_, place, F.col("row"), {"rows": F.col("rows"), "bound": F.col("bound")})]
    if effects["sagas"] and not effects["holds"]:
        done = tables.sagas.where((F.col("state") == "COMPLETED") & F.col("judged"))
        done = done.where(F.col("saga").isin(effects["sagas"]))
        if tables.since is not None and effects["timed"]:
            done = done.where(F.col("started_at") >= tables.since)
        missing = done.join(rows.select(F.col("bound").alias("saga_id")).distinct(), "saga_id", "left_anti")
        missing = missing.withColumn("step", F.lit(None).cast("string"))
        missing = missing.withColumn("generation", F.lit(None).cast("int"))
        findings.append(to_findings(missing, F.lit("saga_without_effect"), place, F.lit(None), {"rows": F.lit(0)}))
    return findings


def _binding_value(effects: Mapping[str, Any]) -> Column:
    """The value that links a guard row to the rows of the business table."""
    match effects["binding"]:
        case "saga_id":
            return F.col("saga_id")
        case "guard_key":
            first = F.concat_ws("/", "saga_id", "step")
            return F.when(F.col("generation") == 1, first).otherwise(F.concat_ws("@", first, F.col("generation")))
        case _:
            return F.get_json_object("result", _json_path(effects["field"]))


def _saga_id_of_row(effects: Mapping[str, Any]) -> Column:
    """The saga's id as the row itself contains it."""
    match effects["binding"]:
        case "saga_id":
            return F.col("bound")
        case "guard_key":
            return F.nullif(F.regexp_extract("bound", r"^(.*)/[^/]*$", 1), F.lit(""))
        case _:
            return F.lit(None).cast("string")


def _limit_to_window(
    rows: DataFrame, steps: DataFrame, tables: ReconciliationTables, effects: Mapping[str, Any]
) -> tuple[DataFrame, DataFrame]:
    """Both sides as far back as both were read. If rows have no time: the sagas of the window, with all rows."""
    assert tables.since is not None
    if effects["timed"]:
        return rows, steps.where(F.col("created_at") >= tables.since - READ_MARGIN)
    bounds = steps.select("bound").distinct()
    if effects["binding"] == "saga_id":
        bounds = bounds.union(tables.sagas.select("saga_id")).distinct()
    return rows.join(bounds, "bound", "left_semi"), steps


def _with_amounts(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    return reduce(
        lambda done, column: done.withColumn(column[0], column[1].cast("decimal(38,9)")), columns.items(), frame
    )


def _amount_sums(names: Sequence[str]) -> list[Column]:
    sums = [F.sum(name).cast("decimal(38,9)").alias(name) for name in names]
    return sums or [F.lit(True).alias("there")]


def _json_path(field: str) -> str:
    """A dotted field of a result as a JSON path."""
    return "$" + "".join(f"[{encode_json(part).decode()}]".replace('"', "'") for part in field.split("."))


def _table_label(effects: Mapping[str, Any]) -> str:
    return f"{effects['connection']}.{effects['table']}"


CONSUMER_PREFIX = "consumer/"
"""Prefix of the step of an event that a consumer has written in its own transaction."""


def check_events_against_guards(tables: ReconciliationTables, outbox: DataFrame) -> list[DataFrame]:
    """Outbox events whose step was never done, and events that still wait for the outcome of a saga that has ended.

    An event is written in its step's transaction, and the row that decides a step decides its events too.
    """
    key = ["saga_id", "step", "generation"]
    recent = outbox if tables.since is None else outbox.where(F.col("created_at") >= tables.since)
    done = tables.guard.where(F.col("reason") == "do").select(*key)
    # A consumer and the command of a `kafka.request` have no row in the guard.
    unguarded = tables.entries.where("not guarded").select("saga_id", "step").distinct()
    written = recent.where(~F.col("step").startswith(CONSUMER_PREFIX)).join(unguarded, ["saga_id", "step"], "left_anti")
    rows = join_saga(written.join(done, key, "left_anti"), tables.sagas)
    over = F.col("state").isin(*FINAL_STATES) & F.col("judged")
    strange = (F.col("state") == UNKNOWN_STATE) & (F.col("created_at") >= tables.horizon)
    place = F.concat(F.col("connection"), F.lit(".saga_outbox"))
    details = {"topic": F.col("topic"), "status": F.col("status")}
    findings = [to_findings(rows, F.when(strange | over, "event_without_effect"), place, _outbox_row_key(), details)]

    held = DifferingKeys.persist(outbox.where(F.col("status") == HELD), tables)
    if held is None:
        return findings
    residue = tables.entries.where("residue").select("saga_id", "step")  # left by an operator
    rows = held.rows.join(held.matching_rows(done, *key), key, "left_semi")
    rows = join_saga(rows.join(residue, ["saga_id", "step"], "left_anti"), held.matching_rows(tables.sagas, "saga_id"))
    return [*findings, to_findings(rows, F.when(over, "event_held"), place, _outbox_row_key(), details)]


def check_events_against_topics(
    tables: ReconciliationTables, outbox: DataFrame, records: DataFrame, topics: Mapping[str, Any]
) -> list[DataFrame]:
    """Compare published events with what read_committed consumers see. ``topics``: see ``TopicsRead.to_json``."""
    key = ("connection", "event_id", "topic")
    since = max(tables.since or 0.0, topics["unclaimed_since"])
    floors = F.create_map(*(F.lit(value) for value in chain(("", 0.0), *topics["floors"].items())))
    whole = F.coalesce(F.element_at(floors, F.col("topic")), F.lit(0.0))
    published = outbox.where((F.col("status") == PUBLISHED) & (F.col("published_at") >= whole))
    if tables.since is not None:
        published = published.where(F.col("published_at") >= tables.since)
    sides = published.select(*key), records.select(*key)
    differing = find_differing_keys(*sides, ComparisonSpec(key, ()), tables.rows)
    named = (F.col(f"k{index}").alias(name) for index, name in enumerate(key))
    few = DifferingKeys.persist(differing and differing.select("kind", *named, "right_rows"), tables)
    if few is None:
        return []
    rows = few.matching_rows(outbox, *key).select(*key, "status", "saga_id", "step", "generation")
    seen = few.matching_rows(records, *key).groupBy(*key).agg(
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
    return [to_findings(join_saga(joined, tables.sagas), class_, place, _outbox_row_key(), details)]


def _outbox_row_key() -> Column:
    """The key of a row of the outbox."""
    return F.to_json(F.struct("event_id"))


FINDING_COLUMNS = ("class", "saga_id", "saga", "state", "step", "generation", "place", "row", "details")
"""``place`` is a connection or ``connection.table``, ``row`` the key of a business row as JSON, ``details`` further
information for the operator as JSON."""

BROADCAST_LIMIT = 100_000
"""Up to this number of keys are broadcast to every task, so that the other side need not be sorted."""

UNKNOWN_STATE = "UNKNOWN"
"""Replaces the state of a saga that is not known."""


@dataclass(frozen=True, slots=True)
class ReconciliationTables:
    """``guard`` has one row per generation of each entry and database, ``live`` those whose effect is in place.

    ``since``: only what happened at or after it is reported. ``horizon``: sagas older than it may have passed
    Temporal's retention, so nothing older is reported. Both are in seconds since the epoch. ``rows``: the number of
    rows of all tables together, business tables included.
    """

    sagas: DataFrame
    entries: DataFrame
    guard: DataFrame
    since: float | None
    horizon: float
    rows: int
    persisted: list[DataFrame] = field(default_factory=list)

    @property
    def live(self) -> DataFrame:
        return self.guard.where((F.col("reason") == "do") & ~F.col("undone"))


@dataclass(frozen=True, slots=True)
class DifferingKeys:
    """Keys that differ. If they are few, other tables are first reduced to them, which avoids sorting."""

    rows: DataFrame
    small: bool

    @staticmethod
    def persist(rows: DataFrame | None, tables: ReconciliationTables) -> DifferingKeys | None:
        """Compute the rows and persist them until the check has ended; None if there are none."""
        if rows is None:
            return None
        tables.persisted.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        count = rows.count()
        return DifferingKeys(rows, count <= BROADCAST_LIMIT) if count else None

    def matching_rows(self, table: DataFrame, *key: str) -> DataFrame:
        """The rows of a table that have one of these keys; nulls match nulls."""
        if not self.small:
            return table
        keys = self.rows.select(*(F.col(name).alias(f"_{name}") for name in key)).distinct()
        same = reduce(Column.__and__, (F.col(name).eqNullSafe(F.col(f"_{name}")) for name in key))
        return table.join(F.broadcast(keys), same, "left_semi")


def to_findings(
    rows: DataFrame, class_: Column, place: Column, row: Column, details: Mapping[str, Column]
) -> DataFrame:
    columns = {
        "class": class_,
        "place": place,
        "row": row.cast("string"),
        "details": F.to_json(F.struct(*(column.alias(name) for name, column in details.items()))),
    }
    findings = rows.select(*(columns.get(name, F.col(name)).alias(name) for name in FINDING_COLUMNS))
    return findings.where(F.col("class").isNotNull())


def join_saga(rows: DataFrame, sagas: DataFrame) -> DataFrame:
    """Add ``saga``, ``state`` (UNKNOWN_STATE for unknown sagas) and ``judged`` by each row's ``saga_id``."""
    states = sagas.select("saga_id", "saga", "state", "judged")
    joined = rows.drop("saga", "state", "judged").join(states, "saga_id", "left")
    return joined.withColumn("state", F.coalesce(F.col("state"), F.lit(UNKNOWN_STATE)))
