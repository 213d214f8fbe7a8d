"""The tables of a reconciliation in Spark, and the form of what is found in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

FINDING = ("class", "saga_id", "saga", "state", "step", "generation", "place", "row", "details")
"""``place`` is a connection or ``connection.table``, ``row`` the key of a business row as JSON, ``details`` more words
for people as JSON."""

FEW = 100_000
"""Keys up to so many are sent to every task, so that the other side need not be sorted."""

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
    kept: list[DataFrame] = field(default_factory=list)

    @property
    def live(self) -> DataFrame:
        return self.guard.where((F.col("reason") == "do") & ~F.col("undone"))


@dataclass(frozen=True, slots=True)
class Few:
    """Keys that differ. Where they are few, other tables are first reduced to them: that needs no sorting."""

    rows: DataFrame
    small: bool

    @staticmethod
    def of(rows: DataFrame, tables: Tables) -> Few:
        """Computes the rows, and keeps them until the check is over."""
        tables.kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return Few(rows, rows.count() <= FEW)

    def those(self, table: DataFrame, *key: str) -> DataFrame:
        """The rows of a table that have one of these keys; a null is a key too."""
        if not self.small:
            return table
        keys = self.rows.select(*(F.col(name).alias(f"_{name}") for name in key)).distinct()
        same = reduce(Column.__and__, (F.col(name).eqNullSafe(F.col(f"_{name}")) for name in key))
        return table.join(F.broadcast(keys), same, "left_semi")


def findings(rows: DataFrame, class_: Column, place: Column, row: Column, details: Mapping[str, Column]) -> DataFrame:
    columns = {
        "class": class_,
        "place": place,
        "row": row.cast("string"),
        "details": F.to_json(F.struct(*(column.alias(name) for name, column in details.items()))),
    }
    found = rows.select(*(columns.get(name, F.col(name)).alias(name) for name in FINDING))
    return found.where(F.col("class").isNotNull())


def with_saga(rows: DataFrame, sagas: DataFrame) -> DataFrame:
    """``saga``, ``state`` and ``judged`` of each row's ``saga_id``; the state is NOBODY where nobody knows it."""
    known = sagas.select("saga_id", "saga", "state", "judged")
    joined = rows.drop("saga", "state", "judged").join(known, "saga_id", "left")
    return joined.withColumn("state", F.coalesce(F.col("state"), F.lit(NOBODY)))
