"""Gives the engine's own workflows one input. Any client may start one with several, or with some in any encoding, and
the SDK would fail the workflow task before the workflow could refuse them.
"""

from __future__ import annotations

import copy

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from sagas.protocol.payloads import ENGINE_WORKFLOWS
from sagas.workflow.json_payloads import SEVERAL_VALUES


def with_single_inputs(runner: WorkflowRunner) -> WorkflowRunner:
    """A copy of the runner in which such a workflow gets a value that cannot be read in place of several inputs."""
    create = runner.create_instance

    def create_instance(det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = create(det)
        if det.defn.name in ENGINE_WORKFLOWS:
            _give_single_input(instance)
        return instance

    copied = copy.copy(runner)
    object.__setattr__(copied, "create_instance", create_instance)  # the runner with a sandbox is a frozen dataclass
    return copied


def _give_single_input(instance: WorkflowInstance) -> None:
    activate = instance.activate

    def activate_with_single_input(act: WorkflowActivation) -> WorkflowActivationCompletion:
        for job in act.jobs:
            if job.HasField("initialize_workflow") and len(job.initialize_workflow.arguments) > 1:
                del job.initialize_workflow.arguments[:]
                job.initialize_workflow.arguments.append(SEVERAL_VALUES)
        return activate(act)

    instance.activate = activate_with_single_input
