"""Tells a workflow of its reset before it gets the signals and updates that the reset repeats.

Temporal applies them again in the same workflow task, and the SDK hands them to the workflow before the new random
seed, by which a run knows that it was reset. A repeated cancel would begin a rollback without what the run before did.
"""

from __future__ import annotations

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from saga_workers.worker.changed_instances import with_changed_instances


def with_resets_first(runner: WorkflowRunner) -> WorkflowRunner:
    """A copy of the runner whose workflows learn of a reset first."""
    return with_changed_instances(runner, _learn_of_resets_first)


def _learn_of_resets_first(instance: WorkflowInstance, _: WorkflowInstanceDetails) -> None:
    activate = instance.activate

    def activate_after_reset(act: WorkflowActivation) -> WorkflowActivationCompletion:
        is_reset = any(job.HasField("update_random_seed") for job in act.jobs)
        has_message = any(job.HasField("signal_workflow") or job.HasField("do_update") for job in act.jobs)
        if not is_reset or not has_message or any(job.HasField("initialize_workflow") for job in act.jobs):
            return activate(act)
        reset, rest = WorkflowActivation(), WorkflowActivation()
        reset.CopyFrom(act)
        rest.CopyFrom(act)
        del reset.jobs[:], rest.jobs[:]
        for job in act.jobs:
            (reset if job.HasField("update_random_seed") else rest).jobs.append(job)
        first = activate(reset)
        if first.HasField("failed"):
            return first
        completion = activate(rest)
        if completion.HasField("successful"):
            commands = [*first.successful.commands, *completion.successful.commands]
            flags = {*first.successful.used_internal_flags, *completion.successful.used_internal_flags}
            del completion.successful.commands[:], completion.successful.used_internal_flags[:]
            completion.successful.commands.extend(commands)
            completion.successful.used_internal_flags.extend(sorted(flags))
        return completion

    instance.activate = activate_after_reset
