"""The cost of a step for a small job once Spark is warm: `python -m benchmarks.warm [--rounds N] [--quick]`.

The same job of a thousand rows: in a bare session with `write.parquet`, and as a step does it in the worker's runner:
frozen, staged, audited, published to the Parquet sink. The saga around it is not counted: `benchmarks.sagas` does that.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.support.measure import ratio
from benchmarks.support.staged import StagedStep, settings
from saga_spark.runner.runner_client import RunnerClient

ROWS = 1000


def small(spark: SparkSession, inputs: Any) -> DataFrame:
    """The job."""
    return spark.range(ROWS).groupBy((F.col("id") % 10).alias("k")).agg(F.sum("id").alias("total"))


async def step(runner: RunnerClient, root: Path) -> None:
    run = StagedStep.new(
        settings(root),
        "benchmarks.warm:small",
        {"parquet": "published", "mode": "overwrite"},
        inputs={},
        audit=[{"rows": {"equals": 10}}, {"not_null": ["k"]}],
    )
    manifests = (await runner.run("stage", run.stage({}), tag=run.target.publish_key))["manifests"]
    audited = await runner.run("audit", run.audit({}, manifests), tag=run.target.publish_key)
    assert (await asyncio.to_thread(run.publish, audited, manifests)).rows == 10


async def measure(root: Path, rounds: int, warm_up: int) -> None:
    # The second as the runner has it.
    conf: dict[str, Any] = {"spark.sql.shuffle.partitions": "2", "spark.python.sql.dataFrameDebugging.enabled": "false"}
    runner = RunnerClient(settings(root, conf=conf, python_path=(str(Path(__file__).parent.parent),)))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    bare = builder.config("spark.driver.bindAddress", "127.0.0.1").config(map=conf).getOrCreate()
    ours: list[float] = []
    theirs: list[float] = []
    try:
        for number in range(-warm_up, rounds):
            begun = time.perf_counter()
            await step(runner, root)
            between = time.perf_counter()
            small(bare, None).write.mode("overwrite").parquet(str(root / "bare"))
            if number >= 0:
                ours.append(between - begun)
                theirs.append(time.perf_counter() - between)
    finally:
        await runner.close()
        bare.stop()
    added = median(our_time - their_time for our_time, their_time in zip(ours, theirs, strict=True))
    print(f"bare session {1000 * median(theirs):.0f} ms, step {1000 * median(ours):.0f} ms: ", end="")
    print(f"{1000 * added:.0f} ms more, ratio {ratio(ours, theirs):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--quick", action="store_true", help="one round, to check that it works; two JVMs are started anyway"
    )
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="saga-bench-"))
    try:
        asyncio.run(measure(root, 1, 1) if options.quick else measure(root, options.rounds, 3))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
