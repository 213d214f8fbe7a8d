"""A reset in Temporal: the state is that of an earlier time, and the saga may have been undone since."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from sagas.protocol.messages import CancelRequested, MachineEvent
from sagas.protocol.payloads import RESET_ACTIVITY
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

    ``look_up`` asks, for a saga that started then; afterwards ``report`` is called with a cancel, if the saga was
    undone, and else with None.
    """

    def __init__(self, tasks: TaskSet, report: Callable[[MachineEvent | None], None]) -> None:
        self._tasks = tasks
        self._report = report
        self.is_open = False
        self.is_new = False
        """True until it is asked about."""
        workflow.register_random_seed_callback(self._note)

    def _note(self, seed: int) -> None:
        """Temporal draws new random numbers for a run only when it resets it."""
        self.is_open = self.is_new = True

    def look_up(self, started_at: float) -> None:
        self.is_new = False
        self._tasks.start(_TASK, self._look_up(started_at))

    async def _look_up(self, started_at: float) -> None:
        summary = "was the saga undone before the reset?"
        answer = await perform_until_answered(
            RESET_ACTIVITY, raw_json({"since": started_at}), summary, timeout=_TIMEOUT
        )
        self._tasks.discard(_TASK)
        self.is_open = self.is_new
        undone = CancelRequested(at=workflow.time(), kind="terminated", message=_REASON)
        self._report(undone if answer["undone"] else None)


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
