"""Reconciliation of synthetic books: `python -m benchmarks.reconcile [--sizes 10000,100000,1000000] [--rounds N]`.

Each saga has three guarded steps, one order and one charge; every tenth was compensated, and 20 rows are spoiled. Told
are seconds, CPU seconds and the largest memory of a process for each size; and comparisons of two sides next to a plain
full outer join of the same rows in DuckDB, in alternation: equal ones without and with values, ones that differ in 20
keys, in 20 values, and in the values of every tenth saga.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.compute import binary_join_element_wise  # pyright: ignore[reportAttributeAccessIssue]

from benchmarks.support.measure import ratio, seconds
from saga_spark.reconcile.comparison_database import ComparisonDatabase, open_comparison, sql_constant
from saga_spark.reconcile.extracts import (
    ENTRIES_FILE,
    ENTRY_SCHEMA,
    GUARD_SCHEMA,
    OUTBOX_SCHEMA,
    SAGA_SCHEMA,
    SAGAS_FILE,
    effect_schema,
)
from saga_spark.reconcile.key_comparison import find_differing_keys
from saga_spark.reconcile.saga_reconciliation import find_mismatches
from sagas.settings.reconcile import EffectTable

NOW = 1_790_000_000.0
STEPS = ("reserve", "charge", "place")
SPOILED = 20
CHUNK = 100_000
KEY = ("saga_id", "step", "generation")
VALUES = ("connection", "result", "created_at")
LINE = "{:<44} {:>8} {:>7} {:>8} {:>7}"

PAIRS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "equal keys": ("claimed", "claimed", ()),
    "equal values": ("there", "there", VALUES),
    "20 keys differ": ("claimed", "live", ()),
    "20 values differ": ("there", "some_changed", VALUES),
    "a tenth of the values differ": ("there", "many_changed", VALUES),
}
"""The views of both sides, and the values that are compared."""

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
                flags = [yes, pa.array(done), no, no]
                entries.write_table(pa.table([ids, steps, ones, said, *flags], schema=ENTRY_SCHEMA))
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


def open_sides(database: ComparisonDatabase) -> None:
    """The rows that should exist according to the sagas, those of the guard, and the same with other results."""
    key = ", ".join(KEY)
    database.view("claimed", f"SELECT {key} FROM entries WHERE live")
    database.view("live", f"SELECT {key} FROM guard WHERE reason = 'do' AND NOT undone")
    database.view("there", f"SELECT {', '.join([*KEY, *VALUES])} FROM guard")
    some = ", ".join(sql_constant(f"checkout-{number}") for number in range(SPOILED))
    for name, changed in (("some_changed", f"saga_id IN ({some})"), ("many_changed", "saga_id LIKE '%7'")):
        other = f"CASE WHEN step = {sql_constant(STEPS[0])} AND {changed} THEN 'another' ELSE result END"
        database.view(name, f"SELECT * REPLACE ({other} AS result) FROM there")


def compared(database: ComparisonDatabase, left: str, right: str, values: Sequence[str]) -> int:
    """How many keys differ, as the engine finds it."""
    if not find_differing_keys(database, left, right, KEY, values):
        return 0
    return database.run("SELECT count(*) FROM differing")[0][0]


def joined(database: ComparisonDatabase, left: str, right: str, values: Sequence[str]) -> int:
    """How many keys differ, by a full outer join."""
    same = " AND ".join(["l.there", "r.there", *(f"l.{name} IS NOT DISTINCT FROM r.{name}" for name in values)])
    return database.run(
        f"SELECT count(*) FROM (SELECT *, true AS there FROM {left}) l"
        f" FULL OUTER JOIN (SELECT *, true AS there FROM {right}) r USING ({', '.join(KEY)})"
        f" WHERE NOT coalesce({same}, false)"
    )[0][0]


def reconcile(folder: Path) -> float:
    """Everything, in a process of its own; returns the most memory that it had, in MiB."""
    with open_comparison(folder, None, 0.0, lambda connection: None) as database:
        find_mismatches(database, EFFECTS, None)
        counts = database.counts()
        list(database.findings(10_000))
    assert counts == {"effect_not_undone": SPOILED, "saga_without_effect": SPOILED}, counts
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(sizes: list[int], rounds: int) -> None:
    context = multiprocessing.get_context("spawn")
    for sagas in sizes:
        folder = Path(tempfile.mkdtemp(prefix="saga-reconcile-"))
        figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
        memory: list[float] = []
        try:
            generate(folder, sagas)
            for _ in range(rounds):
                with context.Pool(1) as pool:
                    pool.apply(len, ("",))  # the process has started
                    figures["everything"].append(seconds(lambda: memory.append(pool.apply(reconcile, (folder,)))))  # noqa: B023
            with open_comparison(folder, None, 0.0, lambda connection: None) as database:
                open_sides(database)
                wanted = {name: joined(database, *pair) for name, pair in PAIRS.items()}
                for _ in range(rounds):
                    for name, pair in PAIRS.items():
                        for way, find in (("compared", compared), ("joined", joined)):
                            timed = seconds(lambda: _check(find(database, *pair), wanted[name]))  # noqa: B023
                            figures[f"{name}, {way}"].append(timed)
        finally:
            shutil.rmtree(folder)
        _print(sagas, figures, max(memory))


def _check(differing: int, wanted: int) -> None:
    assert differing == wanted, (differing, wanted)


def _print(sagas: int, figures: Mapping[str, list[tuple[float, float]]], memory: float) -> None:
    """The pairs are compared and joined; the ratios are those of the rounds."""
    print(LINE.format(f"{sagas} sagas", "s", "ratio", "CPU s", "ratio"))
    clock, cpu = (median(figure[at] for figure in figures["everything"]) for at in range(2))
    print(LINE.format(f"everything ({memory:.0f} MiB)", f"{clock:.2f}", "", f"{cpu:.2f}", ""))
    for name in PAIRS:
        theirs = figures[f"{name}, joined"]
        for way, ours in (("full outer join", theirs), ("compared", figures[f"{name}, compared"])):
            columns: list[str] = []
            for at in range(2):
                our_times, their_times = [each[at] for each in ours], [each[at] for each in theirs]
                columns += [f"{median(our_times):.2f}", f"{ratio(our_times, their_times):.2f}"]
            print(LINE.format(f"{name}: {way}", *columns), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    measure([int(size) for size in options.sizes.split(",")], options.rounds)


if __name__ == "__main__":
    main()
