"""Gives the engine's own workflows one input. Any client may start one with several, or with some in any encoding, and
the SDK would fail the workflow task before the workflow could refuse them.
"""

from __future__ import annotations

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from saga_workers.worker.changed_instances import with_changed_instances
from sagas.protocol.payloads import ENGINE_WORKFLOWS
from sagas.workflow.json_payloads import SEVERAL_VALUES


def with_single_inputs(runner: WorkflowRunner) -> WorkflowRunner:
    """A copy of the runner in which such a workflow gets a value that cannot be read in place of several inputs."""
    return with_changed_instances(runner, _give_single_input)


def _give_single_input(instance: WorkflowInstance, det: WorkflowInstanceDetails) -> None:
    if det.defn.name not in ENGINE_WORKFLOWS:
        return
    activate = instance.activate

    def activate_with_single_input(act: WorkflowActivation) -> WorkflowActivationCompletion:
        for job in act.jobs:
            if job.HasField("initialize_workflow") and len(job.initialize_workflow.arguments) > 1:
                del job.initialize_workflow.arguments[:]
                job.initialize_workflow.arguments.append(SEVERAL_VALUES)
        return activate(act)

    instance.activate = activate_with_single_input
