"""The cost of exactly-once for a large output: `python -m benchmarks.staging [--rows N] [--rounds N] [--quick]`.

The 20.9 million promotions are read from Parquet and written: by a bare `df.write.parquet`, and as a step does it:
inputs frozen, staged, audited (count, sum, nulls), and published to the Parquet and to the Iceberg sink. All share one
warm Spark session.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.support.measure import ratio, seconds
from benchmarks.support.staged import StagedStep, settings
from definitions.retail.demo.day_close import prepare_promotions
from saga_spark.audit.audit_task import audit_outputs
from saga_spark.inputs.frozen_inputs import freeze_inputs
from saga_spark.runner.spark_session import ClassicSessions
from saga_spark.runner.task_context import TaskContext
from saga_spark.settings import SparkSettings
from saga_spark.staging.stage_task import stage_outputs

LINE = "{:<34} {:>9} {:>9} {:>12} {:>9}"
COLUMNS = ["product_id", "store_id", "week"]


def promotions(spark: SparkSession, inputs: Any) -> DataFrame:
    """The job: all rows, as they are."""
    return inputs.promotions


class StagingBench:
    def __init__(self, root: Path, rows: int | None) -> None:
        self.rows = prepare_promotions(root / "promotions", rows)
        self.settings: SparkSettings = settings(root)
        self.root = root
        self._sessions = ClassicSessions(self.settings)
        self._numbers = count(1)

    def _run(self) -> TaskContext:
        return TaskContext(
            next(self._numbers), f"bench-{time.monotonic_ns()}", self.settings, self._sessions, lambda _: None
        )

    def bare(self) -> None:
        run = self._run()
        try:
            run.spark.read.parquet(str(self.root / "promotions")).write.parquet(str(self.root / "bare"))
        finally:
            run.end()

    def step(self, output: dict[str, Any]) -> None:
        checks = [
            {"rows": {"equals": self.rows}},
            {"sum": {"column": "week", "min": 1}},
            {"not_null": COLUMNS},
        ]
        inputs = {"promotions": {"parquet": str(self.root / "promotions")}}
        step = StagedStep.new(self.settings, "benchmarks.staging:promotions", output, inputs=inputs, audit=checks)
        run = self._run()
        try:
            frozen = freeze_inputs(run, step.freeze)["inputs"]
            manifests = stage_outputs(run, step.stage(frozen))["manifests"]
            audited = audit_outputs(run, step.audit(frozen, manifests))
        finally:
            run.end()
        assert step.publish(audited, manifests).rows == self.rows

    def clear(self) -> None:
        """Nothing of a round is still being brought to the disk in the next; a table keeps what was overwritten."""
        data = list((self.root / "warehouse").rglob("data"))
        for folder in (*data, *(self.root / name for name in ("bare", "published", "stage"))):
            shutil.rmtree(folder, ignore_errors=True)


def measure(rows: int | None, rounds: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="saga-bench-"))
    try:
        bench = StagingBench(root, rows)
        ways: dict[str, Callable[[], None]] = {
            "bare write": bench.bare,
            "step, Parquet sink": partial(bench.step, {"parquet": "published", "mode": "overwrite"}),
            "step, Iceberg sink": partial(bench.step, {"table": "lake.bench.promotions", "mode": "overwrite"}),
        }
        figures_by_way: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name in ways if number % 2 else reversed(ways):
                figures = seconds(ways[name])
                bench.clear()
                if number:  # the first round warms up
                    figures_by_way[name].append(figures)
        _print(bench.rows, figures_by_way)
    finally:
        shutil.rmtree(root)


def _print(rows: int, figures_by_way: dict[str, list[tuple[float, float]]]) -> None:
    print(LINE.format(f"{rows} rows", "s", "ratio", "CPU s", "ratio"))
    bare = figures_by_way["bare write"]
    for name, figures in figures_by_way.items():
        columns: list[str] = []
        for at in range(2):
            ours, theirs = [figure[at] for figure in figures], [figure[at] for figure in bare]
            columns += [f"{median(ours):.1f}", f"{ratio(ours, theirs):.2f}"]
        print(LINE.format(name, *columns), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="maximum number of rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of a million rows, to check that it works")
    options = parser.parse_args()
    if options.quick:
        measure(1_000_000, 1)
    else:
        measure(options.rows, options.rounds)


if __name__ == "__main__":
    main()
