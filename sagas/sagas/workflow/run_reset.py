"""A reset in Temporal: the state is that of an earlier time, and the saga may have gone further, or been undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow

from sagas.machine.machine import Machine
from sagas.protocol.messages import CancelRequested, MachineEvent, RunWasReset
from sagas.protocol.payloads import RESET_ACTIVITY, UNDO_SUFFIX
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import raw_json
from sagas.workflow.task_set import TaskSet

_TASK = "look up the end"
_TIMEOUT = timedelta(seconds=30)
_REASON = "the run was reset after the saga had been undone"
_BULK_RESET = (
    "a bulk workflow cannot be reset: its sagas may have ended since, or have left it; `saga reconcile --repair` "
    "continues those that have not"
)


class RunReset:
    """The resets of one run. While one ``is_open``, no event may reach the machine.

    ``look_up`` asks about the saga; afterwards ``report`` is called with what the guards know, and with
    a cancel, if the saga was undone.
    """

    def __init__(self, tasks: TaskSet, report: Callable[[Sequence[MachineEvent]], None]) -> None:
        self._tasks = tasks
        self._report = report
        self._seed = 0
        self.is_open = False
        self.is_new = False
        """True until it is asked about."""
        workflow.register_random_seed_callback(self._note)

    def _note(self, seed: int) -> None:
        """Temporal draws new random numbers for a run only when it resets it."""
        self.is_open = self.is_new = True
        self._seed = seed

    def look_up(self, machine: Machine | None) -> None:
        assert machine is not None
        self.is_new = False
        saga_id = workflow.info().workflow_id.removesuffix(UNDO_SUFFIX)
        pivot = next((step.id for step in machine.definition.steps if step.pivot), None)
        about = {"saga_id": saga_id, "pivot": pivot, "since": machine.started_at or 0.0}
        self._tasks.start(_TASK, self._look_up(about))

    async def _look_up(self, about: Mapping[str, Any]) -> None:
        # An answer is signed for its request, which therefore differs from that after any other reset of the saga. The
        # random numbers of the reset do, and a replay has them again, unlike the id of the run.
        request = raw_json({**about, "reset": str(self._seed)})
        summary = "what has the saga done, or undone, before the reset?"
        answer = await perform_until_answered(RESET_ACTIVITY, request, summary, timeout=_TIMEOUT)
        self._tasks.discard(_TASK)
        self.is_open = self.is_new
        now = workflow.time()
        events: list[MachineEvent] = [RunWasReset(now, answer["generations"], answer["pivot_done"])]
        if answer["undone"]:
            events.append(CancelRequested(at=now, kind="terminated", message=_REASON))
        self._report(events)


class RefusedReset:
    """The reset of a bulk workflow, which ends the run that it has made."""

    def __init__(self) -> None:
        self.has_happened = False
        workflow.register_random_seed_callback(self._note)

    def _note(self, seed: int) -> None:
        self.has_happened = True

    def refuse(self) -> None:
        """Raises SagaApplicationError if the run was reset."""
        if self.has_happened:
            raise refused_error(_BULK_RESET)
