"""Looks up what a saga had done before Temporal's reset made a new run from one of its runs.

A reset makes its run from any earlier one, and terminates another, so every run of the saga counts. Their states are
read while there are few; beyond that nobody is said to know them, so that a rollback looks up each step.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.guard.entry_key import EntryKey, fits_guard_key
from saga_workers.location.accepted_undos import is_accepted_undo
from saga_workers.location.commit_point import CommitTraces, find_commit_point, story_in_ledger
from saga_workers.location.done_commands import done_commands
from saga_workers.location.locator import Locator
from saga_workers.location.purged_evidence import purged_evidence
from saga_workers.location.traces import (
    RecordedEffect,
    highest_generations,
    last_items,
    recorded_effects,
    without_others,
)
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.machine_query import query_machine
from saga_workers.temporal.root_starts import nested_root_start, root_start_of_run
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition, time_literal
from saga_workers.worker.nested_traces import nested_traces
from saga_workers.worker.undos_under_way import PossibleUndo, await_undos
from sagas.definition.analysis.commit_evidence import CommitEvidence
from sagas.errors import RefusedError, SagaError
from sagas.machine.earlier.known_steps import LeftState, joined_records
from sagas.protocol.origin import same_owner, start_of
from sagas.protocol.payloads import UNDO_SUFFIX, input_digest, pack_state, unpack_state
from sagas.protocol.saga_view import STARTED_AGAIN, SagaView
from sagas.settings import Settings

log = logging.getLogger("saga.reset")

_MAX_RUNS = 10
"""Earlier runs of a saga whose states are read."""

_QUERY_TIMEOUT = timedelta(seconds=8)

_NEVER_TELLS = (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION)
"""The answers of Temporal for a run that it has deleted, and for one that was closed before its first workflow task or
while its workflow task failed again and again: no query reaches it, now or later."""

_UNDONE = ("COMPENSATED", "RESIDUE")
"""The ends after which nothing is left to be undone. A run with another one was refused, or has gone forward because
the saga was past its commit point."""


async def look_before_reset(settings: Settings, locator: Locator, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the saga had done. ``about``: see :data:`saga_activities.temporal.saga_activities.LookBeforeReset`.

    Effects and commands of a saga with this id that had ended before it was started again (``saga start --again``) are
    not its own: they have lower generations. Those of another saga, or with another input, are not its own either.

    ``undone``: it was compensated, or is being compensated, by a run of its own or by an accepted one of its undo;
    ``generations``: the highest of each entry, where it is not the first, and those of the last item of each `for_each`
    and of each nested saga that has left traces; ``left``: the steps and nested sagas of the runs before, packed, with
    the residue, the decisions of operators and the reason of a rollback; ``state_is_lost``: there was one whose state
    nobody has; ``commit_point``, ``in_guards``, ``undone_entries`` and ``undecided_undos``: see
    :class:`sagas.protocol.messages.RunWasReset`; ``started_at``: when the saga was started, if a guard knows. Only
    ``refused``: the saga had ended, and was started again, or a guard could not tell its steps from new ones; why the
    run does nothing.

    Raises SagaError for a guard that cannot be read, or may have deleted the rows of the saga, and for a run that does
    not answer.
    """
    saga_id, generation = about["saga_id"], int(about["generation"])
    saga, digest = activity.info().workflow_type or "", about["input_digest"]
    recorded = await recorded_effects(settings, saga_id)
    if undos := _possible_undos(saga_id, about["undos"], recorded, generation):
        await await_undos(settings, undos)
        recorded = await recorded_effects(settings, saga_id)
    # A nested saga that starts again has begun now; the run that has made its effects may have begun with its parent.
    began = min(float(about["since"]), float(about.get("parent_since", about["since"])))
    purged = await purged_evidence(settings, about["guarded"], began, recorded)
    started = datetime.fromtimestamp(float(about["since"]), UTC)
    if purged is not None:
        end = None if about.get("parent") is not None else await _ended_before(locator, about, started)
        if end is not None:
            return {"refused": f"the run was reset after the saga had ended {end}, and {purged.rows_are_gone}"}
        raise SagaError(f"{purged.text}; then {_end_of_this_run(about)}")
    recorded = [effect for effect in recorded if effect.generation >= generation]
    root_start = about["root_start"]
    effects = without_others(recorded, saga, digest, root_start)
    packed = [state async for state in _states_before(locator, started)]
    machines = [unpack_state(state) for state in packed if state is not None]
    machines = [state for state in machines if _is_own(state, saga, root_start)]
    if _was_started_again(generation, machines, effects):
        return {"refused": "the run that was reset had ended before the saga was started again, so it does nothing"}
    states = [LeftState.of(state) for state in machines]
    undo = await _undo_elsewhere(locator, about, started)
    undone = undo != "none" or any(state.goes_backward for state in states)
    undone_elsewhere = undo == "ended"
    generations = highest_generations(effects)
    children: dict[str, Any] = {}
    for state in states:  # the last run first: what it has begun is as it has left it
        children = {**state.children, **children}
        for id, reached in state.generations.items():
            generations[id] = max(reached, generations.get(id, 1))
    nested = [
        trace
        for step in about["nested"]
        async for trace in nested_traces(settings, locator, saga_id, step, generation, root_start)
    ]
    for id in last_items(effects):
        generations.setdefault(id, 1)
    for trace in nested:
        generations[trace.entry] = max(trace.generation, generations.get(trace.entry, 1))
        if trace.child is not None:
            children.setdefault(trace.entry, trace.child)
    is_lost = None in packed or about["is_lost"]
    story = await _last_story(locator, about) if is_lost else None
    decisions = {} if story is None else _told_decisions(story, about["finishes"])
    for state in reversed(states):
        decisions |= state.decisions
    commands = await done_commands(settings, [saga_id])
    traces = CommitTraces(
        saga_id,
        saga,
        generation,
        digest,
        CommitEvidence.from_json(about["evidence"]),
        effects,
        root_start,
        done=[
            *(command.step for command in commands if command.generation >= generation),
            *(trace.entry for trace in nested if trace.state == "COMPLETED"),
        ],
        is_committed=any(state.committed for state in states),
        is_undone=undone,
        is_lost=is_lost,
        told=about["committed"],
    )
    origins = [effect.origin.started_at for effect in effects if effect.origin is not None]
    return {
        "started_at": min(origins, default=None),
        "undone": undone,
        "generations": generations,
        "commit_point": await find_commit_point(locator.ledger, traces),
        "state_is_lost": None in packed and not undone_elsewhere,
        # What another run has undone is not undone by this one; what it may leave when it is terminated is, by the same
        # keys.
        "in_guards": {} if undone_elsewhere else _in_guards(effects),
        "undone_entries": _begun_or_made_undos(effects, story),
        "undecided_undos": {} if undone_elsewhere else _undecided_undos(effects, states),
        "left": pack_state(
            {
                "records": {} if undone_elsewhere else joined_records(states),
                "children": {} if undone_elsewhere else children,
                "decisions": {} if undone_elsewhere else decisions,
                "residue": _joined_rows(state.residue for state in states),
                "operator": _joined_rows(state.operator for state in states),
                "reason": next((state.reason for state in states if state.reason is not None), None),
            }
        ),
    }


def _was_started_again(
    generation: int, machines: Iterable[Mapping[str, Any]], effects: Iterable[RecordedEffect]
) -> bool:
    """True if a later start of the saga has left a state or an effect: it does not belong to this ``generation``, so
    this run would neither undo nor complete it.
    """
    generations = [int(state["generation"]) for state in machines]
    generations += [effect.origin.generation for effect in effects if effect.origin is not None]
    return max(generations, default=generation) > generation


async def _ended_before(locator: Locator, about: Mapping[str, Any], started: datetime) -> str | None:
    """The state in which the saga, or the undo whose run was reset, had ended before, as an earlier run or the ledger
    tells; None if neither tells an end. Raises LedgerUnavailable.
    """
    info = activity.info()
    workflow_id, workflow_type = info.workflow_id or "", info.workflow_type or ""
    is_undo = workflow_id.endswith(UNDO_SUFFIX)
    for id in (workflow_id,) if is_undo else (workflow_id + UNDO_SUFFIX, workflow_id):
        conditions = (
            keyword_condition("WorkflowId", id),
            keyword_condition("WorkflowType", workflow_type),
            f"CloseTime >= {time_literal(started)}",
            "ExecutionStatus IN ('Completed', 'Failed', 'Canceled')",
        )
        async for run in list_runs(locator.temporal, " AND ".join(conditions)):
            if (run.id, run.workflow_type) != (id, workflow_type):
                continue
            outcome = await outcome_of(locator, run)
            is_end = outcome.is_believed and outcome.state in ("COMPLETED", *STARTED_AGAIN)
            if is_end and same_owner(await _root_start(locator, run), about["root_start"]):
                return outcome.state
    story = await _last_story(locator, about)
    ends = STARTED_AGAIN if is_undo else ("COMPLETED", *STARTED_AGAIN)
    return story.state if story is not None and story.state in ends else None


def _end_of_this_run(about: Mapping[str, Any]) -> str:
    """How a person ends a run that must not go on."""
    parent = about.get("parent")
    if parent is None:
        return "terminate this run, which a reset has made"
    return f"terminate this run, and decide about it in {parent.removesuffix(UNDO_SUFFIX)}: `done` keeps them"


def _possible_undos(
    saga_id: str, undos: Iterable[Sequence[Any]], recorded: Sequence[RecordedEffect], generation: int
) -> list[PossibleUndo]:
    """The rows that an undo of an earlier run may be about to write. Of a step outside of the guards that has left
    nothing, its only entry may be undone; nothing tells of the items of a `for_each`.
    """
    if not fits_guard_key(saga_id):
        return []
    of_steps: dict[str, set[tuple[str, int]]] = {}
    for effect in recorded:
        if effect.generation >= generation:
            of_steps.setdefault(effect.entry.partition("#")[0], set()).add((effect.entry, effect.generation))
    possible: list[PossibleUndo] = []
    for step, connection, is_in_same_guard in undos:
        entries = of_steps.get(step, set()) | (set() if is_in_same_guard else {(step, generation)})
        op = "undo" if is_in_same_guard else "own_undo"
        possible += [PossibleUndo(connection, EntryKey(saga_id, *entry), op) for entry in sorted(entries)]
    return possible


def _in_guards(effects: Sequence[RecordedEffect]) -> dict[str, int]:
    """The entries in the guards, each with the highest generation whose effect is open; 0 if none is."""
    generations: dict[str, int] = {}
    for effect in effects:
        if effect.command is not None:
            continue
        generation = effect.generation if effect.open else 0
        generations[effect.entry] = max(generations.get(effect.entry, 0), generation)
    return generations


async def _last_story(locator: Locator, about: Mapping[str, Any]) -> SagaView | None:
    """The saga as it was when it was last parked, as the ledger tells. Raises LedgerUnavailable."""
    saga, generation = activity.info().workflow_type or "", int(about["generation"])
    of_start = about["input_digest"], about["root_start"]
    return await story_in_ledger(locator.ledger, about["saga_id"], saga, generation, *of_start)


def _begun_or_made_undos(effects: Sequence[RecordedEffect], story: SagaView | None) -> dict[str, int]:
    """The entries whose undo was made, as a guard, a reply or the ledger tells, or whose undo command was sent, with
    their highest generations.
    """
    undone = [(effect.entry, effect.generation) for effect in effects if effect.undone or effect.is_undoing]
    rows = () if story is None else story.steps
    undone += [(row.id, row.generation or 1) for row in rows if row.state == "COMPENSATED"]
    return dict(sorted(undone))


def _told_decisions(story: SagaView, finishes: Collection[str]) -> dict[str, bool]:
    """The decisions of the saga up to when it was last parked."""
    residue = {row.step for row in story.residue}
    left_out = {row.id: False for row in story.steps if row.state == "SKIPPED" and row.id not in residue}
    ends = {row.id: row.result for row in story.steps if row.id in finishes and row.state == "DONE"}
    return {**left_out, **{id: end for id, end in ends.items() if isinstance(end, bool)}}


def _undecided_undos(effects: Sequence[RecordedEffect], states: Sequence[LeftState]) -> dict[str, int]:
    """The entries whose undo a guard has decided for another database or service, or whose undo command has no reply
    yet, with their highest generations, but those of which an earlier run knows its end.
    """
    generations: dict[str, int] = {}
    for effect in effects:
        is_undecided = effect.undo_elsewhere or effect.is_undoing
        if is_undecided and all(state.undone.get(effect.entry, 0) < effect.generation for state in states):
            generations[effect.entry] = max(effect.generation, generations.get(effect.entry, 0))
    return generations


def _joined_rows(rows_of_runs: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    for rows in rows_of_runs:
        joined += [row for row in rows if row not in joined]
    return joined


async def _states_before(locator: Locator, started: datetime) -> AsyncIterator[str | None]:
    """The states of the machines of the earlier runs of the current activity's saga, the last run first; None for one
    that nobody has. Raises SagaError.
    """
    workflow_id = activity.info().workflow_id or ""
    run_ids = await _runs_before(locator, started)
    for run_id in run_ids[:_MAX_RUNS]:
        try:
            state = await query_machine(locator.temporal, (workflow_id, run_id), locator.keys, timeout=_QUERY_TIMEOUT)
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError, RefusedError) as error:
            log.warning("what the run %s of %s has done is not known: %s", run_id, workflow_id, error)
            yield None
            continue
        except RPCError as error:
            if error.status not in _NEVER_TELLS:
                raise SagaError(f"the run {run_id} of {workflow_id} does not answer: {error}") from error
            yield None
            continue
        if state is not None:
            yield state
    if len(run_ids) > _MAX_RUNS:
        yield None


async def _runs_before(locator: Locator, started: datetime) -> list[str]:
    """The ids of the earlier runs of the current activity's saga, the last first: those that Temporal lists, and those
    from which a reset has made one of them. One that was continued as a new run has left its state to that.

    Raises SagaError while Temporal does not list the current run either, because the list lags behind.
    """
    info = activity.info()
    workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
    workflow_type = info.workflow_type or ""
    conditions = (keyword_condition("WorkflowId", workflow_id), keyword_condition("WorkflowType", workflow_type))
    run_ids: list[str] = []
    async for run in list_runs(locator.temporal, " AND ".join(conditions)):
        is_later = run.close_time is None or run.close_time >= started
        if run.id == workflow_id and is_later and run.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
            run_ids.append(run.run_id)
    if run_id not in run_ids:
        raise SagaError(f"Temporal does not list the run {run_id} of {workflow_id} yet")
    for made in run_ids:  # which grows meanwhile
        before = await _run_before(locator, workflow_id, made) if len(run_ids) <= _MAX_RUNS + 1 else None
        if before is not None and before not in run_ids:
            run_ids.append(before)
    run_ids.remove(run_id)
    return run_ids


async def _run_before(locator: Locator, workflow_id: str, run_id: str) -> str | None:
    """The run from which the last reset has made this one; None: no run was reset, or this one is deleted."""
    before = None
    try:
        async for event in locator.temporal.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
            if event.HasField("workflow_task_failed_event_attributes"):
                before = event.workflow_task_failed_event_attributes.base_run_id or before
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise SagaError(f"the history of {workflow_id} cannot be read: {error}") from error
    return before


async def _undo_elsewhere(
    locator: Locator, about: Mapping[str, Any], started: datetime
) -> Literal["ended", "begun", "none"]:
    """``ended``: another run has undone the saga. ``begun``: one has begun to, and is open or was closed from outside.
    Anybody can start and close a run with the id of a saga or of its undo, which tells nothing.

    Raises LedgerUnavailable, and SagaError if Temporal does not tell of the undo yet.
    """
    has_begun = False
    async for run in _other_ends(locator, started):
        if not same_owner(await _root_start(locator, run), about["root_start"]):
            continue
        if run.ended_by_itself:
            outcome = await outcome_of(locator, run)
            story = None if outcome.is_believed else await _last_story(locator, about)
            if (outcome.state if outcome.is_believed else story and story.state) in _UNDONE:
                return "ended"
            if outcome.is_believed:
                continue
        if run.id.endswith(UNDO_SUFFIX) and await is_accepted_undo(locator.temporal, run, locator.keys):
            has_begun = True
    return "begun" if has_begun else "none"


async def _root_start(locator: Locator, run: RunInfo) -> str:
    described = await describe_run(locator.temporal, run.id, run.run_id)
    if described is None or run.id.endswith(UNDO_SUFFIX):
        return await nested_root_start(run)
    return await root_start_of_run(locator.temporal, described, locator.keys)


def _is_own(state: Mapping[str, Any], saga: str, root_start: str) -> bool:
    """False for the state of a run with another input, or of one that is nested in such a saga."""
    start = state.get("root_start", "")
    if not start and state["parent"] is None:
        start = start_of(saga, input_digest(state["input"]))
    return same_owner(start, root_start)


async def _other_ends(locator: Locator, started: datetime) -> AsyncIterator[RunInfo]:
    """The runs since the start of the current activity's saga that may have undone it: those of its undo, of which
    anybody may start a later one, and those of its id that have closed as Failed or Canceled. A reset terminates a run
    that is open; earlier generations ended before.

    Raises SagaError while Temporal does not list the newest run of the undo, because the list lags behind.
    """
    info = activity.info()
    workflow_id, workflow_type = info.workflow_id or "", info.workflow_type or ""
    undo_id = workflow_id + UNDO_SUFFIX
    newest = None if workflow_id.endswith(UNDO_SUFFIX) else await describe_run(locator.temporal, undo_id)
    if newest is not None:
        undos = [run async for run in list_runs(locator.temporal, keyword_condition("WorkflowId", undo_id))]
        if all(run.run_id != newest.run.run_id for run in undos):
            raise SagaError(f"Temporal does not list the run {newest.run.run_id} of {undo_id} yet")
        for run in undos:
            is_own = (run.id, run.workflow_type) == (undo_id, workflow_type) and run.start_time >= started
            if is_own and run.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
                yield run
    conditions = (
        keyword_condition("WorkflowId", workflow_id),
        keyword_condition("WorkflowType", workflow_type),
        f"CloseTime >= {time_literal(started)}",
        "ExecutionStatus IN ('Failed', 'Canceled')",
    )
    async for run in list_runs(locator.temporal, " AND ".join(conditions)):
        if (run.id, run.workflow_type) == (workflow_id, workflow_type):
            yield run
