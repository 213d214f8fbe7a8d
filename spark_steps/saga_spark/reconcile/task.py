"""What a runner is asked for by reconciliation: two sides, or the books of all sagas."""

from __future__ import annotations

from typing import Any

from saga_spark.frames import open_inputs
from saga_spark.inputs import freeze
from saga_spark.reconcile.compare import compare
from saga_spark.reconcile.spec import Spec
from saga_spark.runner.run import Run


def reconcile(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Hold two sides against each other: ``inputs`` (left and right), ``folder`` and ``known`` as for `freeze`, and
    ``arguments`` (see :class:`~saga_spark.reconcile.spec.Spec`). Answers what :func:`compare` does.
    """
    spec = Spec.parse(request["arguments"])
    frozen = freeze(run, {name: request[name] for name in ("inputs", "folder", "known")})["inputs"]
    sides = open_inputs(run.spark, frozen)
    return compare(sides["left"], sides["right"], spec)


def books(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Hold the books of all sagas against each other; see :func:`saga_spark.reconcile.books.check`."""
    from saga_spark.reconcile.books import check

    return check(run.spark, request)


def ready(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """Start Spark while what it is going to be asked about is still being read. Its first query waits for most of its
    classes, so there is one."""
    from saga_spark.reconcile.books import SMALL_CONF

    for name, value in SMALL_CONF.items():
        run.spark.conf.set(name, value)
    run.spark.range(1).groupBy("id").count().collect()
    return {}
