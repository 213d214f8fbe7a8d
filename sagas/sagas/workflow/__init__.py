"""The engine on Temporal: the only package of ``sagas`` that knows it.

One dynamic workflow serves all sagas, so that the Web UI shows each under its own name. Commands of the machine become
activities, timers and child workflows; their ends, signals and updates become its events. It decides nothing.
"""

from __future__ import annotations

from temporalio import workflow

# In Temporal's sandbox too the engine is imported once, not once for every run.
with workflow.unsafe.imports_passed_through():
    from sagas.workflow.failures import SagaApplicationError
    from sagas.workflow.notify import NotifyWorkflow
    from sagas.workflow.saga_workflow import SagaWorkflow

__all__ = ["NotifyWorkflow", "SagaApplicationError", "SagaWorkflow"]
