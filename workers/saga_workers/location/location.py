"""The answer to the question where a saga lives."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from saga_activities.ledger.records import Claim, RunRow
from saga_workers.temporal.temporal_runs import RunDescription

LocationKind = Literal["running", "in bulk", "undoing", "ended", "terminated", "unknown"]
"""``running``: a run of its own is open. ``in bulk``: an open bulk workflow runs it. ``undoing``: the run of its undo
is open. ``ended``: its last run is closed, or only the ledger has its end. ``terminated``: its run, or its bulk
workflow, was closed from outside before the saga ended. ``unknown``: neither Temporal nor the ledger knows a saga of
the id, so it is free for one; guard rows may exist all the same. A run that never became a saga says nothing about it.
"""


@dataclass(frozen=True, slots=True)
class BulkMember:
    """A saga that a bulk workflow has claimed. ``bulk`` is None if Temporal has no run of that workflow any more."""

    claim: Claim
    bulk: RunDescription | None

    @property
    def bulk_id(self) -> str:
        assert self.claim.bulk_id is not None
        return self.claim.bulk_id

    @property
    def open(self) -> bool:
        return self.bulk is not None and self.bulk.run.running


@dataclass(frozen=True, slots=True)
class Location:
    """The place where the latest generation of a saga lives.

    ``home`` is its own run, its claim by a bulk workflow, or its row of the ledger if Temporal has no run of it; None
    if nobody knows it. If nothing else has the id, it may be a run that never became a saga, for people to see why.
    ``undo`` is the newest run that undoes it, which may outlive the rest.
    """

    saga_id: str
    home: RunDescription | BulkMember | RunRow | None
    undo: RunDescription | None = None

    @property
    def kind(self) -> LocationKind:
        if self.undo is not None and self.undo.run.running:
            return "undoing"
        match self.home:
            case None:
                return "unknown"
            case RunDescription(never_accepted=True):
                return "unknown"
            case BulkMember():
                return "in bulk" if self.home.open else "terminated"
            case RunDescription():
                if self.home.run.running:
                    return "running"
                return "terminated" if self.home.run.ended_from_outside else "ended"
            case _:
                return "ended"

    @property
    def run(self) -> RunDescription | None:
        """The saga's own newest run; None if it lives elsewhere."""
        return self.home if isinstance(self.home, RunDescription) else None

    @property
    def member(self) -> BulkMember | None:
        """The saga in its bulk workflow; None if it lives elsewhere."""
        return self.home if isinstance(self.home, BulkMember) else None

    @property
    def row(self) -> RunRow | None:
        """The row of the ledger, if nothing else has the saga."""
        return self.home if isinstance(self.home, RunRow) else None

    @property
    def saga(self) -> str | None:
        """The name of the saga; None if nobody knows it."""
        match self.home:
            case None:
                return None
            case RunDescription():
                return self.home.run.workflow_type
            case BulkMember():
                return self.home.claim.saga
            case _:
                return self.home.view.saga

    @property
    def started_at(self) -> datetime | None:
        """When the saga was started, or continued in its newest run; None if nobody knows it."""
        match self.home:
            case RunDescription(never_accepted=True):
                return None
            case RunDescription():
                return self.home.run.start_time
            case BulkMember():
                return self.home.claim.claimed_at
            case None:
                return None
            case _:
                return self.home.started_at

    def is_on(self, task_queue: str) -> bool:
        """True if its run is on this task queue. What only the claims or the ledger of a project know is of that."""
        run = self.run or self.undo
        if self.member is not None:
            return self.member.bulk is None or self.member.bulk.run.task_queue == task_queue
        return self.row is not None or (run is not None and run.run.task_queue == task_queue)

    @property
    def open_run(self) -> RunDescription | None:
        """The open run that takes the saga's requests: its own, or that of its undo."""
        if self.undo is not None and self.undo.run.running:
            return self.undo
        return self.run if self.run is not None and self.run.run.running else None

    @property
    def workflow(self) -> RunDescription | None:
        """The run whose pending work and pollers tell whether the saga makes progress; also that of a bulk workflow."""
        return self.open_run if self.member is None or self.open_run is not None else self.member.bulk
