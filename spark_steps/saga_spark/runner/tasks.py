"""What a runner can be asked for: functions ``(run: Run, request: dict) -> dict``, both of plain JSON."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from saga_spark.runner.run import Run

Task = Callable[[Run, dict[str, Any]], dict[str, Any]]

TASKS = {
    "freeze": "saga_spark.inputs:freeze",
    "stage": "saga_spark.stage:stage",
    "audit": "saga_spark.audit.task:audit",
    "reconcile": "saga_spark.reconcile.task:reconcile",
    "ready": "saga_spark.reconcile.task:ready",
    "books": "saga_spark.reconcile.task:books",
}
"""Name → ``module:function``, imported on first use: what a runner is not asked for costs it nothing."""

WORDS = {"freeze": "reading the inputs", "stage": "the job", "audit": "the audit"}
"""How messages call a task."""


def find_task(name: str) -> Task:
    """Raises KeyError: there is no such task."""
    module, _, function = TASKS[name].partition(":")
    return getattr(importlib.import_module(module), function)
