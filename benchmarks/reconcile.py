"""Reconciliation of synthetic books: `python -m benchmarks.reconcile [--sizes 10000,100000,1000000] [--rounds N]`.

Each saga has three guarded steps, one order and one charge; every tenth was compensated, and 20 rows are spoiled. Told
are seconds and CPU seconds for each size, and per million sagas; and comparisons of two sides beside a plain full outer
join of the same rows: equal ones, ones that differ in 20 keys, and ones that differ in 20 values.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.compute import binary_join_element_wise  # pyright: ignore[reportAttributeAccessIssue]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.support.measure import ratio, seconds
from saga_spark.reconcile.comparison import find_differing_keys
from saga_spark.reconcile.extracts import (
    ENTRIES_FILE,
    ENTRY_SCHEMA,
    GUARD_SCHEMA,
    OUTBOX_SCHEMA,
    SAGA_SCHEMA,
    SAGAS_FILE,
    effect_schema,
)
from saga_spark.reconcile.reconcile_spec import ComparisonSpec
from saga_spark.reconcile.saga_reconciliation import find_mismatches
from sagas.settings.reconcile import EffectTable

NOW = 1_790_000_000.0
STEPS = ("reserve", "charge", "place")
SPOILED = 20
CHUNK = 100_000
KEY = ("saga_id", "step", "generation")
VALUES = ("connection", "result", "created_at")
LINE = "{:<44} {:>8} {:>7} {:>8} {:>7}"

Pair = Callable[[SparkSession, Path], tuple[DataFrame, DataFrame]]
Find = Callable[[DataFrame, DataFrame, tuple[str, ...]], int]

EFFECTS = (
    EffectTable(
        connection="shop",
        table="orders",
        key=("order_id",),
        saga_id="saga_id",
        step="place",
        amounts={"total": "total"},
    ),
    EffectTable(connection="shop", table="charges", key=("id",), guard_key="id", step="charge"),
)


def generate(folder: Path, sagas: int) -> None:
    """The journal and the extracts of so many sagas, with SPOILED differences in each pair of sides."""
    for name in ("guard", "outbox", "effects"):
        (folder / name).mkdir(parents=True)
    effects = {effect.name: folder / "effects" / f"{effect.name}.parquet" for effect in EFFECTS}
    schemas = {effect.name: effect_schema(len(effect.amounts)) for effect in EFFECTS}
    with (
        pq.ParquetWriter(folder / SAGAS_FILE, SAGA_SCHEMA) as journal,
        pq.ParquetWriter(folder / ENTRIES_FILE, ENTRY_SCHEMA) as entries,
        pq.ParquetWriter(folder / "guard" / "shop.parquet", GUARD_SCHEMA) as guard,
        pq.ParquetWriter(effects["orders"], schemas["orders"]) as orders,
        pq.ParquetWriter(effects["charges"], schemas["charges"]) as charges,
    ):
        for start in range(0, sagas, CHUNK):
            number = np.arange(start, min(start + CHUNK, sagas))
            size, done = len(number), number % 10 != 0
            text = pc.cast(pa.array(number), pa.string())
            ids = binary_join_element_wise("checkout", text, "-")
            begun = pa.array(np.full(size, NOW - 7200.0))
            states = pa.array(np.where(done, "COMPLETED", "COMPENSATED"))
            names, yes = pa.array(["checkout"] * size), pa.array([True] * size)
            journal.write_table(pa.table([ids, names, states, begun, begun, yes], schema=SAGA_SCHEMA))
            ones = pa.array(np.ones(size, np.int32))
            no = pa.array([False] * size)
            result = binary_join_element_wise('{"total":"', text, '.50"}', "")
            for step in STEPS:
                steps = pa.array([step] * size)
                said = pa.array(np.where(done, "DONE", "COMPENSATED"))
                entries.write_table(pa.table([ids, steps, ones, said, yes, pa.array(done), no], schema=ENTRY_SCHEMA))
                undone = pa.array(~done if step != "reserve" else ~done & (number >= SPOILED * 10))
                columns = [pa.array(["shop"] * size), ids, steps, ones, pa.array(["do"] * size), undone, begun, result]
                guard.write_table(pa.table(columns, schema=GUARD_SCHEMA))
            kept = pa.array(done & ~((number < SPOILED * 10) & (number % 10 == 1)))
            rows = binary_join_element_wise('{"order_id":', text, "}", "")
            amounts = binary_join_element_wise(text, "50", ".")
            order = pa.table([ids, rows, begun, amounts], schema=schemas["orders"])
            orders.write_table(order.filter(kept))
            keys = binary_join_element_wise(ids, "charge", "/")
            charges.write_table(pa.table([keys, rows, begun], schema=schemas["charges"]).filter(pa.array(done)))
    with pq.ParquetWriter(folder / "outbox" / "shop.parquet", OUTBOX_SCHEMA):
        pass


def sides(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """The rows that should exist according to the sagas, and according to the guard."""
    said = spark.read.parquet(str(folder / ENTRIES_FILE)).where("live").select(*KEY)
    there = spark.read.parquet(str(folder / "guard")).where((F.col("reason") == "do") & ~F.col("undone")).select(*KEY)
    return said, there


def changed(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """The rows of the guard, and the same with SPOILED other results."""
    rows = spark.read.parquet(str(folder / "guard")).select(*KEY, *VALUES)
    some = (F.col("step") == STEPS[0]) & F.col("saga_id").isin([f"checkout-{number}" for number in range(SPOILED)])
    return rows, rows.withColumn("result", F.when(some, "another").otherwise(F.col("result")))


def same(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    said, _ = sides(spark, folder)
    return said, said


def compared(left: DataFrame, right: DataFrame, values: tuple[str, ...], rows: int) -> int:
    """How many keys differ, as the engine finds it."""
    differing = find_differing_keys(left, right, ComparisonSpec(KEY, values), rows)
    return 0 if differing is None else differing.count()


def joined(left: DataFrame, right: DataFrame, values: tuple[str, ...]) -> int:
    """How many keys differ, by a full outer join."""
    left, right = left.withColumn("there", F.lit(True)).alias("l"), right.withColumn("there", F.lit(True)).alias("r")
    same = [F.col(f"l.{name}").eqNullSafe(F.col(f"r.{name}")) for name in values]
    differs = reduce(Column.__and__, same, F.col("l.there") & F.col("r.there"))
    return left.join(right, list(KEY), "full_outer").where(~F.coalesce(differs, F.lit(False))).count()


def books(spark: SparkSession, folder: Path, sagas: int) -> None:
    request = {
        "folder": str(folder),
        "effects": [effect.to_json() for effect in EFFECTS],
        "since": None,
        "horizon": 0.0,
        "rows": sagas * 10,
        "limit": 100,
    }
    counts = find_mismatches(spark, request)["counts"]
    assert counts == {"effect_still_there": SPOILED, "saga_without_effect": SPOILED}, counts


def measure(sizes: list[int], rounds: int) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")  # as the runner has it
        .getOrCreate()
    )
    pairs = {
        "equal sides": (same, (), 0),
        "20 keys differ": (sides, (), SPOILED),
        "20 values differ": (changed, VALUES, SPOILED),
    }
    for warm, sagas in enumerate([min(sizes), *sizes]):
        folder = Path(tempfile.mkdtemp(prefix="saga-reconcile-"))
        figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
        try:
            generate(folder, sagas)
            for _ in range(rounds if warm else 1):
                figures["books"].append(seconds(lambda: books(spark.newSession(), folder, sagas)))  # noqa: B023
                for name, (pair, values, differing) in pairs.items():
                    ways = (("compared", partial(compared, rows=2 * len(STEPS) * sagas)), ("joined", joined))
                    for way, find in ways:

                        def once(
                            find: Find = find, pair: Pair = pair, values: Any = values, wanted: int = differing
                        ) -> None:
                            assert find(*pair(spark, folder), values) == wanted  # noqa: B023

                        figures[f"{name}, {way}"].append(seconds(once))
        finally:
            shutil.rmtree(folder)
        if warm:
            _print(sagas, figures, tuple(pairs))
    spark.stop()


def _print(sagas: int, figures: Mapping[str, list[tuple[float, float]]], pairs: Sequence[str]) -> None:
    """``pairs`` are compared and joined; the ratios are those of the rounds."""
    print(LINE.format(f"{sagas} sagas", "s", "ratio", "CPU s", "ratio"))
    clock, cpu = (median(figure[at] for figure in figures["books"]) for at in range(2))
    print(LINE.format(f"everything ({clock / sagas * 1e6:.1f} s per million)", f"{clock:.1f}", "", f"{cpu:.1f}", ""))
    for name in pairs:
        theirs = figures[f"{name}, joined"]
        for way, ours in (("full outer join", theirs), ("compared", figures[f"{name}, compared"])):
            columns: list[str] = []
            for at in range(2):
                our_times, their_times = [each[at] for each in ours], [each[at] for each in theirs]
                columns += [f"{median(our_times):.1f}", f"{ratio(our_times, their_times):.2f}"]
            print(LINE.format(f"{name}: {way}", *columns), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    measure([int(size) for size in options.sizes.split(",")], options.rounds)


if __name__ == "__main__":
    main()
