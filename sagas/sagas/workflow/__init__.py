"""The Temporal adapter of the saga machine: the only package of ``sagas`` that depends on Temporal.

One dynamic workflow runs all sagas, so that the Web UI shows each under its own name. Commands of the machine become
activities, timers and child workflows; their results, signals and updates become its events. The machine makes all
decisions.
"""

from __future__ import annotations

from temporalio import workflow

# Passed through, so that Temporal's sandbox does not import the engine again for every run.
with workflow.unsafe.imports_passed_through():
    from sagas.workflow.batch_workflow import BatchWorkflow
    from sagas.workflow.bulk_workflow import BulkWorkflow
    from sagas.workflow.failures import SagaApplicationError
    from sagas.workflow.notify import NotifyWorkflow
    from sagas.workflow.saga_workflow import SagaWorkflow

__all__ = ["BatchWorkflow", "BulkWorkflow", "NotifyWorkflow", "SagaApplicationError", "SagaWorkflow"]
