"""Reconciliation of synthetic books: `python -m benchmarks.reconcile [--sizes 10000,100000,1000000] [--rounds N]`.

Each saga has three guarded steps, one order and one charge; every tenth was compensated, and 20 rows are spoiled. Told
are seconds for each size and per million sagas, and the comparison of stories and guards beside a plain full outer
join of the same rows.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_steps.reconcile.books import check
from spark_steps.reconcile.compare import difference
from spark_steps.reconcile.effects import Effects
from spark_steps.reconcile.extract import GUARD_SCHEMA, OUTBOX_SCHEMA, effect_schema
from spark_steps.reconcile.journal import ENTRIES, ENTRY_SCHEMA, SAGA_SCHEMA, SAGAS
from spark_steps.reconcile.spec import Spec

NOW = 1_790_000_000.0
STEPS = ("reserve", "charge", "place")
SPOILED = 20
CHUNK = 100_000
KEY = ("saga_id", "step", "generation")
LINE = "{:>10} sagas  {:>8.1f} s  {:>8.1f} s per million  {:>8.1f} s stories × guards  {:>8.1f} s full join  {:.2f}"

EFFECTS = (
    Effects("orders", "shop", "orders", ("order_id",), "saga_id", "saga_id", step="place", amounts={"total": "total"}),
    Effects("charges", "shop", "charges", ("id",), "guard_key", "id", step="charge"),
)


def generate(folder: Path, sagas: int) -> None:
    """The journal and the extracts of so many sagas, with SPOILED differences in each pair of sides."""
    for name in ("guard", "outbox", "effects"):
        (folder / name).mkdir(parents=True)
    effects = {one.name: folder / "effects" / f"{one.name}.parquet" for one in EFFECTS}
    schemas = {one.name: effect_schema(len(one.amounts)) for one in EFFECTS}
    with (
        pq.ParquetWriter(folder / SAGAS, SAGA_SCHEMA) as journal,
        pq.ParquetWriter(folder / ENTRIES, ENTRY_SCHEMA) as entries,
        pq.ParquetWriter(folder / "guard" / "shop.parquet", GUARD_SCHEMA) as guard,
        pq.ParquetWriter(effects["orders"], schemas["orders"]) as orders,
        pq.ParquetWriter(effects["charges"], schemas["charges"]) as charges,
    ):
        for start in range(0, sagas, CHUNK):
            number = np.arange(start, min(start + CHUNK, sagas))
            size, done = len(number), number % 10 != 0
            text = pc.cast(pa.array(number), pa.string())
            ids = pc.binary_join_element_wise("checkout", text, "-")
            begun = pa.array(np.full(size, NOW - 7200.0))
            states = pa.array(np.where(done, "COMPLETED", "COMPENSATED"))
            names, yes = pa.array(["checkout"] * size), pa.array([True] * size)
            journal.write_table(pa.table([ids, names, states, begun, begun, yes], schema=SAGA_SCHEMA))
            ones = pa.array(np.ones(size, np.int32))
            no = pa.array([False] * size)
            result = pc.binary_join_element_wise('{"total":"', text, '.50"}', "")
            for step in STEPS:
                steps = pa.array([step] * size)
                said = pa.array(np.where(done, "DONE", "COMPENSATED"))
                entries.write_table(pa.table([ids, steps, ones, said, yes, pa.array(done), no], schema=ENTRY_SCHEMA))
                undone = pa.array(~done if step != "reserve" else ~done & (number >= SPOILED * 10))
                columns = [pa.array(["shop"] * size), ids, steps, ones, pa.array(["do"] * size), undone, begun, result]
                guard.write_table(pa.table(columns, schema=GUARD_SCHEMA))
            kept = pa.array(done & ~((number < SPOILED * 10) & (number % 10 == 1)))
            rows = pc.binary_join_element_wise('{"order_id":', text, "}", "")
            amounts = pc.binary_join_element_wise(text, "50", ".")
            order = pa.table([ids, rows, begun, amounts], schema=schemas["orders"])
            orders.write_table(order.filter(kept))
            keys = pc.binary_join_element_wise(ids, "charge", "/")
            charges.write_table(pa.table([keys, rows, begun], schema=schemas["charges"]).filter(pa.array(done)))
    with pq.ParquetWriter(folder / "outbox" / "shop.parquet", OUTBOX_SCHEMA):
        pass


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def sides(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """What the stories say is there, and what the guard says."""
    said = spark.read.parquet(str(folder / ENTRIES)).where("live").select(*KEY)
    there = spark.read.parquet(str(folder / "guard")).where((F.col("reason") == "do") & ~F.col("undone")).select(*KEY)
    return said, there


def bucketed(spark: SparkSession, folder: Path) -> None:
    found = difference(*sides(spark, folder), Spec(KEY, ()))
    assert found.rows is not None
    assert found.rows.count() == SPOILED


def joined(spark: SparkSession, folder: Path) -> None:
    said, there = sides(spark, folder)
    both = said.withColumn("said", F.lit(True)).join(there.withColumn("there", F.lit(True)), list(KEY), "full_outer")
    assert both.where("said is null or there is null").count() == SPOILED


def books(spark: SparkSession, folder: Path, sagas: int) -> None:
    request = {
        "folder": str(folder),
        "effects": [one.to_json() for one in EFFECTS],
        "since": None,
        "horizon": 0.0,
        "rows": sagas * 10,
        "limit": 100,
    }
    counts = check(spark, request)["counts"]
    assert counts == {"effect_still_there": SPOILED, "saga_without_effect": SPOILED}, counts


def measure(sizes: list[int], rounds: int) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "8")
        .getOrCreate()
    )
    for warm, sagas in enumerate([min(sizes), *sizes]):
        folder = Path(tempfile.mkdtemp(prefix="saga-reconcile-"))
        try:
            generate(folder, sagas)
            figures: dict[str, list[float]] = {"books": [], "bucketed": [], "joined": []}
            for _ in range(rounds if warm else 1):
                figures["books"].append(timed(lambda: books(spark.newSession(), folder, sagas)))  # noqa: B023
                figures["bucketed"].append(timed(lambda: bucketed(spark, folder)))  # noqa: B023
                figures["joined"].append(timed(lambda: joined(spark, folder)))  # noqa: B023
        finally:
            shutil.rmtree(folder)
        if warm:
            whole, ours, theirs = (median(figures[name]) for name in ("books", "bucketed", "joined"))
            print(LINE.format(sagas, whole, whole / sagas * 1e6, ours, theirs, ours / theirs), flush=True)
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    measure([int(one) for one in options.sizes.split(",")], options.rounds)


if __name__ == "__main__":
    main()
