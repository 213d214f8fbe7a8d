"""What a runner is asked for by reconciliation: two sides, or the books of all sagas."""

from __future__ import annotations

from typing import Any

from spark_steps.frames import open_inputs
from spark_steps.inputs import freeze
from spark_steps.reconcile.compare import compare
from spark_steps.reconcile.spec import Spec
from spark_steps.runner.run import Run


def reconcile(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Hold two sides against each other: ``inputs`` (left and right), ``folder`` and ``known`` as for `freeze`, and
    ``arguments`` (see :class:`~spark_steps.reconcile.spec.Spec`). Answers what :func:`compare` does.
    """
    spec = Spec.parse(request["arguments"])
    frozen = freeze(run, {name: request[name] for name in ("inputs", "folder", "known")})["inputs"]
    sides = open_inputs(run.spark, frozen)
    return compare(sides["left"], sides["right"], spec)


def books(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Hold the books of all sagas against each other; see :func:`spark_steps.reconcile.books.check`."""
    from spark_steps.reconcile.books import check

    return check(run.spark, request)


def ready(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Start Spark while what it is going to be asked about is still being read. Its first query waits for most of its
    classes, so there is one."""
    from spark_steps.reconcile.books import SMALL_CONF

    for name, value in SMALL_CONF.items():
        run.spark.conf.set(name, value)
    run.spark.range(1).groupBy("id").count().collect()
    return {}
