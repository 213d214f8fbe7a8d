"""Changes the workflow instances that a runner of the SDK makes, which has no hook for that."""

from __future__ import annotations

import copy
from collections.abc import Callable

from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner


def with_changed_instances(
    runner: WorkflowRunner, change: Callable[[WorkflowInstance, WorkflowInstanceDetails], object]
) -> WorkflowRunner:
    """A copy of the runner that calls ``change`` with each instance it has made, and with what it was made from."""
    create = runner.create_instance

    def create_instance(det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = create(det)
        change(instance, det)
        return instance

    copied = copy.copy(runner)
    object.__setattr__(copied, "create_instance", create_instance)  # the runner with a sandbox is a frozen dataclass
    return copied
