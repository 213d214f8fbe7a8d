"""A reset in Temporal: the state is that of an earlier time, and the saga may have gone further, or been undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow

from sagas.definition.analysis.commit_evidence import commit_evidence
from sagas.definition.model import Definition, guarded_effects, is_nested
from sagas.machine.machine import Machine
from sagas.protocol.messages import CancelRequested, MachineEvent, RunWasReset
from sagas.protocol.origin import root_start_of
from sagas.protocol.payloads import RESET_ACTIVITY, STARTED_AT_MEMO, UNDO_SUFFIX, unpack_state
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import raw_json
from sagas.workflow.run_trust import RunTrust
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

    Temporal draws new random numbers for a run only when it resets it, so the seed tells one reset from another, and a
    replay has it again, unlike the id of the run. ``look_up`` asks about the saga; afterwards ``report`` is called with
    what the guards know, with a cancel, if the saga was undone, and with the time of its start, if a guard has it.
    """

    def __init__(self, tasks: TaskSet, report: Callable[[Sequence[MachineEvent], float | None], None]) -> None:
        self._tasks = tasks
        self._report = report
        self._asked: int | None = workflow.random_seed()
        self._answered = self._asked
        """The seeds of the latest reset that was asked about, and of the latest with an answer; of neither before."""
        self._cancelled = ""
        self._first = self._asked
        self._is_repeated = False
        """True for a run of `saga resume`, which has looked whether guards still tell of the saga. Since then guards
        may have deleted its rows, so a reset of such a run looks again."""
        self.refusal = ""
        """The reason why this run may do nothing; empty if it may."""

    def begin(self, trust: RunTrust | None) -> None:
        """The run begins, which may be at a reset to its very first task: then its seed is not its first one."""
        if trust is not None:
            self._asked = self._answered = self._first = trust.first_seed

    def ask(self, *, cancelled: str = "") -> None:
        """Ask what an earlier run has done also without a reset: it was deleted, and this run repeats it.

        ``cancelled``: the reason why its parent has started this run only to undo what it has done; empty if not.
        """
        self._asked = self._answered = None
        self._cancelled, self._is_repeated = cancelled, True

    @property
    def is_open(self) -> bool:
        return self._answered != workflow.random_seed()

    @property
    def is_new(self) -> bool:
        """True until it is asked about."""
        return self._asked != workflow.random_seed()

    def look_up(self, machine: Machine | None) -> None:
        assert machine is not None
        self._asked = seed = workflow.random_seed()
        info = workflow.info()
        saga_id = info.workflow_id.removesuffix(UNDO_SUFFIX)
        nested = [step.id for step in machine.definition.steps if is_nested(step)]
        since = info.workflow_start_time.timestamp() if machine.started_at is None else machine.started_at
        if not (self._is_repeated and seed == self._first):
            # Temporal lists the run with the time of its reset; the purge of the guards needs that of the saga.
            workflow.upsert_memo({STARTED_AT_MEMO: since})
        about = {"saga_id": saga_id, "generation": machine.generation, "nested": nested, "since": since}
        about |= {"evidence": commit_evidence(machine.definition).to_json(), "is_lost": machine.earlier.state_is_lost}
        finishes = [step.id for step in machine.definition.steps if step.do.uses == "finish"]
        about |= {"committed": machine.earlier.told_committed, "finishes": finishes}
        about |= {"undos": [list(undo) for undo in _guarded_undos(machine.definition)]}
        origin = machine.origin()
        is_known = self._is_repeated and seed == self._first and origin.parent is None
        about |= {"guarded": {} if is_known else guarded_effects(machine.definition)}
        if machine.earlier.since is not None:
            about |= {"parent": origin.parent, "parent_since": machine.earlier.since}
        about |= {"input_digest": origin.input_digest, "root_start": root_start_of(origin)}
        self._tasks.start(_TASK, self._look_up(about, seed))

    async def _look_up(self, about: Mapping[str, Any], seed: int) -> None:
        # An answer is signed for its request, which therefore differs from that after any other reset of the saga.
        request = raw_json({**about, "reset": str(seed)})
        summary = "what has the saga done, or undone, before this run?"
        answer = await perform_until_answered(RESET_ACTIVITY, request, summary, timeout=_TIMEOUT)
        self._tasks.discard(_TASK)
        if refusal := answer.get("refused"):
            self.refusal = str(refusal)
            return
        self._answered = seed
        now = workflow.time()
        state = unpack_state(answer["left"])
        was_reset = RunWasReset(
            at=now,
            generations=answer["generations"],
            commit_point=answer["commit_point"],
            records=state["records"],
            children=state["children"],
            state_is_lost=answer["state_is_lost"],
            in_guards=answer["in_guards"],
            undone=answer["undone_entries"],
            undecided_undos=answer["undecided_undos"],
            decisions=state["decisions"],
            residue=state["residue"],
            operator=state["operator"],
            reason=state["reason"],
        )
        events: list[MachineEvent] = [was_reset]
        if answer["undone"]:
            events.append(CancelRequested(at=now, kind="terminated", message=_REASON))
        elif self._cancelled:
            events.append(CancelRequested(at=now, kind="parent", message=self._cancelled))
        self._report(events, None if answer["started_at"] is None else float(answer["started_at"]))


class RefusedReset:
    """The reset of a bulk workflow, which ends the run that it has made."""

    def __init__(self) -> None:
        self._first = workflow.random_seed()

    def begin(self, trust: RunTrust | None) -> None:
        """The run begins. Raises SagaApplicationError if it was reset to its very first task."""
        if trust is not None:
            self._first = trust.first_seed
        self.refuse()

    @property
    def has_happened(self) -> bool:
        return self._first != workflow.random_seed()

    def refuse(self) -> None:
        """Raises SagaApplicationError if the run was reset."""
        if self.has_happened:
            raise refused_error(_BULK_RESET)


def _guarded_undos(definition: Definition) -> Iterator[tuple[str, str, bool]]:
    """The steps with an undo in a guard: the step, the connection of that guard, and whether the step is in it."""
    for step in definition.steps:
        for connection in dict.fromkeys(operation.connection for operation in step.compensations):
            if connection is not None:
                yield step.id, connection, connection == step.do.connection
