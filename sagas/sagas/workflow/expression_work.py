"""The work of expressions in a workflow task: what of it counts, and when the rest is left to the next task."""

from __future__ import annotations

from temporalio import workflow

from sagas.expressions.limits import WorkMeter
from sagas.machine.machine import Machine

PAUSES = "pauses-between-evaluations"
"""Histories without this patch evaluate everything at once."""

WEIGHS = "weighs-expressions"
"""The Temporal patch id of counting work, not only steps. Only a run in which that makes a difference has its marker;
one that went further before keeps its course in its replay."""


def task_meter() -> WorkMeter:
    """A meter for the expressions of this workflow task."""
    return WorkMeter(lambda: workflow.patched(WEIGHS))


def begin_task(machine: Machine) -> None:
    """The machine's first event of this workflow task follows."""
    machine.begin_task(lambda: workflow.patched(PAUSES), task_meter())
