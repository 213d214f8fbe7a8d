"""The saga machine: events in, commands out, and nothing else.

It has no clock, no randomness and no input or output of its own, so the same events always give the same commands:
Temporal replays it, `saga simulate` plays with it, and the tests drive it through every fault. The rules it keeps are
numbered in docs/explanation/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sagas.definition.model import Definition
from sagas.machine import arguments, asking_again, backward, intake, parked, permission, settling, stored
from sagas.machine.commands import Command
from sagas.machine.events import CallEnded, DecisionMade, Event
from sagas.machine.plan import Plan
from sagas.machine.run import Run
from sagas.machine.story import story as tell

CancelAnswer = Literal["accepted", "recorded", "already", "past the point of no return", "finished"]


class Machine:
    """One saga. Feed it every event; carry out every command it returns."""

    def __init__(
        self,
        definition: Definition,
        input: Any,
        saga_id: str,
        *,
        generation: int = 1,
        variables: Mapping[str, Any] | None = None,
        parent: str | None = None,
        plan: Plan | None = None,
    ) -> None:
        """``plan`` is the plan of this very definition, if the caller has made it already; machines may share it."""
        self._run = Run(definition, input, saga_id, generation, variables or {}, parent, plan)

    # --- what callers see --------------------------------------------------------------------------------------

    @property
    def definition(self) -> Definition:
        return self._run.definition

    @property
    def state(self) -> str:
        """RUNNING, COMMITTED, COMPENSATING, PARKED, COMPLETED, COMPENSATED or RESIDUE."""
        return self._run.state

    @property
    def phase(self) -> str:
        """forward, committed or backward."""
        return self._run.phase

    @property
    def finished(self) -> bool:
        return self._run.finished

    @property
    def started_at(self) -> float | None:
        """When the saga began, seconds since the epoch; None before it did."""
        return self._run.started_at

    @property
    def child_running(self) -> bool:
        """A nested saga is in flight; it reports to this very run, so the run must not continue as a new one."""
        return any(flight.kind == "saga" for flight in self._run.flights.values())

    @property
    def can_undo(self) -> bool:
        """`saga undo` would be accepted now (rule 15)."""
        return permission.can_undo(self._run)

    @property
    def size(self) -> int:
        """How many rows the story has at most."""
        return sum(max(1, len(record.items or ())) for record in self._run.steps.values())

    def labels(self) -> dict[str, str]:
        """The labels people search for. Raises DefinitionFault when they cannot be made from this input."""
        return arguments.labels(self._run)

    def cancel_answer(self) -> CancelAnswer:
        """What a cancel that came now would be told (rule 6)."""
        run = self._run
        if run.finished:
            return "finished"
        if run.committed or (run.started_at is None and run.plan.forward_only):
            return "past the point of no return"
        if run.phase == "backward" or run.cancel_requested:
            return "already"
        return "recorded" if backward.must_wait(run) else "accepted"

    def check_decision(self, decision: DecisionMade) -> str | None:
        """Why this decision cannot be accepted, in one sentence; None when it can."""
        return permission.refusal(self._run, decision)

    def story(self, at: float) -> dict[str, Any]:
        """The `saga show` document, without what only the platform knows."""
        return tell(self._run, at)

    def snapshot(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return stored.dump(self._run)

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Machine:
        """The machine of a snapshot. Ask :meth:`outstanding` what was in flight."""
        machine = cls.__new__(cls)
        machine._run = stored.load(snapshot)
        return machine

    def outstanding(self, at: float) -> list[Command]:
        """Everything that is in flight, asked again; timers with the time that remains."""
        return asking_again.outstanding(self._run, at)

    def lost(self, at: float) -> list[CallEnded]:
        """The ends of all calls in flight, of a run that was terminated and is taken up by another."""
        return asking_again.lost(self._run, at)

    # --- events ------------------------------------------------------------------------------------------------

    def next(self, event: Event) -> list[Command]:
        """Take in one event and say what is to be done. Events that no longer matter give no commands."""
        run = self._run
        run.now, run.out = event.at, []
        intake.take(run, event)
        settling.settle(run)
        parked.report(run)
        commands, run.out = run.out, []
        return commands


__all__ = ["CancelAnswer", "Machine"]
