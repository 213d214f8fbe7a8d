"""`saga resume` of a saga whose run was deleted: it starts again with what the guard has kept of its start.

The guard answers every effect that is there with its stored result, so the new run gets to where the deleted one was.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from saga_workers.client import Client
from saga_workers.location.commit_point import CommitTraces, find_commit_point
from saga_workers.location.known_ends import knows_end
from saga_workers.location.location import Location
from saga_workers.location.locator import start_with_input
from saga_workers.location.parent_command import is_undone, parent_command
from saga_workers.location.purged_evidence import purged_evidence, purged_nested_evidence
from saga_workers.location.traces import (
    RecordedEffect,
    highest_generations,
    open_effects,
    open_effects_of_all,
    open_origin,
    read_holdings,
    recorded_effects,
    undecided_undo,
    without_others,
)
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_requests import StartResult
from saga_workers.stuck.lost_effects import has_ended_before, has_no_run, lost_effects, may_have_ended
from saga_workers.stuck.missing_parents import missing_starts
from saga_workers.temporal.begun_runs import has_begun
from saga_workers.temporal.holding_runs import holder_in_words
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import namespace_retention
from saga_workers.views.saga_view import read_view
from sagas.definition.analysis.commit_evidence import commit_evidence
from sagas.definition.model import Definition, guarded_effects
from sagas.errors import RefusedError, UsageError, did_you_mean
from sagas.protocol.origin import Origin, may_equal, start_of
from sagas.protocol.payloads import input_digest
from sagas.protocol.saga_view import FINAL_STATES, OVER
from sagas.text.continuation_words import CANCEL_BEFORE
from sagas.text.shell import reset_command, saga_command
from sagas.text.shortening import join_names

ABSENT: Any = object()
"""No input was given."""


async def start_again(
    client: Client,
    location: Location,
    *,
    definition: Definition | None = None,
    input: Any = ABSENT,
    undone: Collection[str] = (),
    not_ended: bool = False,
    committed: bool | None = None,
    who: str | None = None,
    reason: str = "",
) -> StartResult:
    """Start the saga again, where its effects are. ``definition`` and ``input``: for what the project lacks. ``who``
    does it and the ``reason`` are recorded with the saga.

    ``undone``: entries of which a person knows that their undo in another database or service has happened, or that no
    effect of them is there.
    ``not_ended``: a person knows that the saga had not ended, although nothing else tells.
    ``committed``: a person knows whether it was past its commit point; needed if nothing else tells.

    Raises RefusedError if it has ended, may have ended or be past its commit point, or can be continued otherwise;
    UsageError if nobody knows it, or what it was started with.
    """
    saga_id = location.saga_id
    given = {  # the options that the command in a refusal repeats
        "definition": None if definition is None else "FILE",
        "input": None if input is ABSENT else "@FILE",
        "undone": tuple(undone),
        "not_ended": not_ended,
        "committed": committed is True,
        "not_committed": committed is False,
    }
    effects = await recorded_effects(client.project.settings, saga_id)
    starts = {} if effects else await missing_starts(client.locator, client.project.settings, location)
    if starts:
        await _refuse_held(client, location)
        origin = await _origin_as_given(client, saga_id, starts, definition, input, given)
    else:
        remaining = await lost_effects(client.locator, location, effects)
        await _refuse_other(client, location, remaining, not_ended)
        await _refuse_ended(client, location, effects, remaining)
        origin = open_origin(remaining) or next((each.origin for each in effects if each.origin is not None), None)
    if not not_ended:
        await _refuse_forgotten(client, location, effects, given)
    if origin is None and effects:
        name = "NAME" if location.row is None else location.row.view.saga
        raise UsageError(
            f"the guards have effects of {saga_id}, but not what it was started with",
            help=f"start it with its input: {start_with_input(saga_id, name)}; {CANCEL_BEFORE}",
        )
    if origin is None and location.run is not None and not location.run.run.running:
        if not await has_begun(client.temporal, location.run.run):
            raise RefusedError(
                f"the run of {saga_id} was closed before it had begun, so there is nothing to resume",
                help=f"{start_with_input(saga_id)}    starts it again",
            )
        raise RefusedError(
            f"no database has what {saga_id} was started with",
            help=f"{reset_command(saga_id)}    lets its run go on from its last workflow task that did not fail",
        )
    if origin is None:
        raise await client.locator.unknown_saga(saga_id)
    if location.open_run is not None and await has_ended_before(client.locator, saga_id, origin):
        raise RefusedError(
            f"the saga that has these effects of {saga_id} has ended, so there is nothing to resume",
            help=saga_command("show", saga_id),
        )
    if origin.parent is not None:
        await _refuse_nested(client, saga_id, origin.parent, origin)
    if origin.unreadable is not None:
        raise UsageError(
            f"the guard cannot tell what {saga_id} was started with: {origin.unreadable}",
            help="`saga resume` needs the key of the row in [codec] key",
        )
    own = without_others(effects, origin.saga, origin.input_digest, origin.root_start)
    _refuse_unknown_undos(saga_id, own, undone, given)
    if not origin.is_whole:
        origin = await _completed(client, saga_id, origin, definition, input, given)
    started_with = _definition(client, saga_id, origin, definition, given)
    _refuse_unknown_steps(saga_id, started_with, undone)
    await _refuse_purged(client, saga_id, origin, started_with, own, undone, given)
    traces = CommitTraces(
        saga_id,
        origin.saga,
        origin.generation,
        origin.whole_digest,
        commit_evidence(started_with),
        effects,
        origin.root_start,
    )
    await _refuse_unknown_commit(client, traces, committed, given)
    # An undone parent has decided about its nested sagas; who knows the commit point has looked at the participants.
    if not not_ended and committed is None and origin.parent is None:
        await _refuse_unknown_end(client, location, own, traces, given)
    starter = await _starter(client, started_with, origin.variables)
    request = await starter.check(_input(saga_id, origin, input, given))
    if input_digest(request.input) != origin.input_digest:
        raise UsageError(f"{saga_id} was started with another input than this one")
    return await starter.resume(
        saga_id,
        request,
        origin,
        highest_generations(own),
        decision={"who": who or client.temporal.identity, "reason": reason},
        undone=undone,
        undecided=_undecided(location, origin),
        committed=committed,
        replaces=location.open_run is not None,
        undone_parent=origin.parent,
    )


def _undecided(location: Location, origin: Origin) -> list[str]:
    """The entries about whose forward call an operator was asked, or has decided, as far as the ledger tells."""
    row = location.row
    if row is None or (row.view.generation or 1) != origin.generation:
        return []
    decided = [made.step for made in row.view.operator if made.decision in ("done", "skip")]
    return list(dict.fromkeys([*(parked.step for parked in row.view.parked if parked.op == "do"), *decided]))


async def _starter(client: Client, definition: Definition, variables: Mapping[str, Any]) -> SagaStarter:
    return SagaStarter(
        client.locator,
        definition,
        task_queue=client.project.settings.temporal.task_queue,
        keys=client.project.settings.signing_keys(create=True),
        variables=variables,
        attributes=await client.search_attributes(),
    )


async def _origin_as_given(
    client: Client,
    saga_id: str,
    starts: Mapping[str, float],
    definition: Definition | None,
    input: Any,
    given: Mapping[str, Any],
) -> Origin:
    """The origin of a saga of which only nested ones have left anything: they know its ``starts``, which tell whether
    it was started with this definition and input.
    """
    again = saga_command("resume", saga_id, **{**given, "definition": "FILE", "input": "@FILE"})
    if definition is None or input is ABSENT:
        nested = open_effects_of_all(await client.locator.effects_of_nested(saga_id), saga_id)
        condition = await client.locator.if_not_ended(await _of_nested(client, saga_id))
        then = f"starts it again{condition}; {CANCEL_BEFORE}"
        raise RefusedError(
            f"no database has what {saga_id} was started with, and the effects of its nested sagas are open: {nested}",
            help=f"{again}    {then}",
        )
    variables = client.project.settings.vars
    digest = input_digest((await (await _starter(client, definition, variables)).check(input)).input)
    began = starts.get(start_of(definition.saga, digest))
    if began is None:
        raise UsageError(f"{saga_id} was not started as {definition.saga} with this input", help=again)
    return Origin(definition.saga, definition.digest, digest, began, has_input=True, variables=variables)


async def _of_nested(client: Client, saga_id: str) -> list[RecordedEffect]:
    return list(chain.from_iterable((await client.locator.effects_of_nested(saga_id)).values()))


async def _refuse_held(client: Client, location: Location) -> None:
    """Raise RefusedError if a workflow of somebody else is open under the id of a saga that has left nothing itself."""
    if location.open_run is not None:
        holder = f"{holder_in_words(location.open_run.run)} has the id {location.open_run.run.id} and is open"
        raise RefusedError(
            f"{holder}, so {location.saga_id} cannot be started again",
            help=f"wait for its end, or end it; then {saga_command('resume', location.saga_id)}",
        )


async def _refuse_other(client: Client, location: Location, lost: Sequence[RecordedEffect], not_ended: bool) -> None:
    """Raise RefusedError if another workflow is open under the id, which may have effects of its own.

    A run of the same saga that has parked at the effects of this one has none.
    """
    described, origin = location.open_run, open_origin(lost)
    if described is None or origin is None:
        return
    run, id = described.run, described.run.id
    is_own = run.workflow_type in client.project.definitions
    is_own = is_own and run.task_queue == client.project.settings.temporal.task_queue
    is_same = run.workflow_type == origin.saga and described is location.run
    view = await read_view(client.locator, id) if is_same or is_own else None
    if is_same and view is not None and view.state == "PARKED":
        return
    again = saga_command("resume", location.saga_id)
    held = f"{holder_in_words(run)} has the id {id} and is open, so {origin.saga} cannot be started again"
    if not not_ended and await may_have_ended(client.locator, location, lost):
        raise RefusedError(held, help=f"wait for its end; then {again}, unless {origin.saga} had ended")
    if is_own and view is not None and not view.can_be_cancelled:
        raise RefusedError(held, help=f"wait for its end, see {saga_command('show', id)}; then {again}")
    terminate = f"temporal workflow terminate --workflow-id {shlex.quote(id)}"
    ending = saga_command("cancel", location.saga_id) if is_own else terminate
    raise RefusedError(held, help=f"wait for its end, or end it: {ending}; then {again}")


async def _refuse_ended(
    client: Client, location: Location, effects: Sequence[RecordedEffect], remaining: Sequence[RecordedEffect]
) -> None:
    """Raise RefusedError for a saga that has ended: what it has committed is open for the guard as well.

    ``remaining``: those of another saga, or of a later generation, of this id.
    """
    if location.kind not in ("ended", "terminated"):
        return
    state = (await read_view(client.locator, location.saga_id)).state
    over = f"{location.saga_id} has already ended {state}"
    if state not in FINAL_STATES:
        over = f"Temporal has no run of {location.saga_id} any more, which was {state} in the ledger"
    help = saga_command("show", location.saga_id)
    if not any(effect.open or effect.undo_elsewhere for effect in effects):
        raise RefusedError(f"{over}, and none of its effects is open", help=help)
    if state in OVER and not remaining:
        raise RefusedError(f"{over}, so there is nothing to resume", help=help)


async def _refuse_nested(client: Client, saga_id: str, parent_id: str, origin: Origin) -> None:
    """Raise RefusedError for a nested saga, unless its parent is undone, and so cannot start it again."""
    parent = await client.locator.locate(parent_id)
    is_over = parent.kind in ("ended", "terminated") and await is_undone(client.locator, parent, saga_id, origin)
    if is_over and (await read_view(client.locator, parent_id)).state == "COMPENSATED":
        return
    raise RefusedError(
        f"{saga_id} is nested in {parent_id}, which starts it again",
        help=await parent_command(client.locator, saga_id, parent, origin),
    )


async def _refuse_forgotten(
    client: Client, location: Location, effects: Sequence[RecordedEffect], given: Mapping[str, Any]
) -> None:
    """Raise RefusedError for a saga without a run, if Temporal would have deleted it after its end."""
    origin = open_origin(effects)
    own = effects if origin is None else without_others(effects, origin.saga, origin.input_digest, origin.root_start)
    if not own or not await has_no_run(client.locator, location, effects):
        return
    newest = max(effect.created_at for effect in own)
    now = await ServerTime(client.temporal).now()
    if now is not None and now - newest < await namespace_retention(client.temporal):
        return
    raise _may_have_ended(location.saga_id, "its effects are older than Temporal keeps closed runs", own, given)


async def _refuse_unknown_end(
    client: Client,
    location: Location,
    effects: Sequence[RecordedEffect],
    traces: CommitTraces,
    given: Mapping[str, Any],
) -> None:
    """Raise RefusedError for a saga without a run that may have completed. ``effects``: its own ones.

    It had not ended if a step that each completed saga has made is not there, or if it holds anything.
    """
    marked = effects or await _of_nested(client, location.saga_id)
    if await knows_end(client.locator.ledger, marked) or not await has_no_run(client.locator, location, effects):
        return
    made = {effect.entry.partition("#")[0] for effect in effects if effect.open}
    if not made.issuperset(traces.evidence.needed) or await read_holdings(client.project.settings, location.saga_id):
        return
    raise _may_have_ended(location.saga_id, "no step shows that it had stopped before its end", effects, given)


def _may_have_ended(
    saga_id: str, why: str, effects: Sequence[RecordedEffect], given: Mapping[str, Any]
) -> RefusedError:
    shown = open_effects(effects)
    look = f"look at its effects ({shown})" if shown else "look at what its participants have"
    return RefusedError(
        f"{saga_id} may have ended, so that its effects are meant to stay: {why}, and no ledger has it; {look}",
        help=f"if it had not, {saga_command('resume', saga_id, **{**given, 'not_ended': True})}",
    )


def _refuse_unknown_undos(
    saga_id: str, effects: Sequence[RecordedEffect], undone: Collection[str], given: Mapping[str, Any]
) -> None:
    """Raise RefusedError for an undo that a new run would take for done, because its guard has decided it."""
    for effect in effects:
        problem = undecided_undo(saga_id, [effect], undone)
        if problem is not None:
            command = saga_command("resume", saga_id, **{**given, "undone": (*undone, effect.entry)})
            raise RefusedError(problem, help=f"then {command}")


def _refuse_unknown_steps(saga_id: str, definition: Definition, undone: Collection[str]) -> None:
    """Raise UsageError for an entry in ``undone`` whose step the saga does not have."""
    steps = tuple(step.id for step in definition.steps)
    for entry in undone:
        step = entry.partition("#")[0]
        if step not in steps:
            there_are = f"its steps are {join_names(steps, 20)}"
            raise UsageError(f"{saga_id} has no step {entry}{did_you_mean(step, steps)}", help=there_are)


async def _refuse_purged(
    client: Client,
    saga_id: str,
    origin: Origin,
    definition: Definition,
    effects: Sequence[RecordedEffect],
    undone: Collection[str],
    given: Mapping[str, Any],
) -> None:
    """Raise RefusedError for steps that a new run would make again if they have happened: their guard has deleted rows
    of sagas as old as this one. ``effects``: the saga's own ones.

    Those of nested sagas that may have happened are steps of this one.
    """
    told = {entry.partition("#")[0] for entry in undone}
    steps = {
        connection: [id for id in ids if id not in told] for connection, ids in guarded_effects(definition).items()
    }
    purged = await purged_evidence(client.project.settings, steps, origin.started_at, effects)
    if purged is None:
        definitions, began = client.project.definitions, origin.started_at
        nested = client.locator, client.project.settings, definitions, saga_id, definition, began
        purged = await purged_nested_evidence(*nested, told=told)
    if purged is not None:
        command = saga_command("resume", saga_id, **{**given, "undone": (*undone, *purged.own_steps)})
        raise RefusedError(purged.text, help=f"then {command}")


async def _completed(
    client: Client,
    saga_id: str,
    origin: Origin,
    definition: Definition | None,
    input: Any,
    given: Mapping[str, Any],
) -> Origin:
    """The origin of a saga with this definition and input, for one of which only a reference to its origin is left,
    because the rows of its first effects are deleted.
    """
    if definition is None or input is ABSENT:
        command = saga_command("resume", saga_id, **{**given, "definition": "FILE", "input": "@FILE"})
        raise RefusedError(
            f"no database has what {saga_id} was started with any more", help=f"{command}, with both as they were then"
        )
    variables = client.project.settings.vars
    digest = input_digest((await (await _starter(client, definition, variables)).check(input)).input)
    if definition.saga != origin.saga or not may_equal(origin.input_digest, digest):
        raise UsageError(f"{saga_id} was started as {origin.saga} with another input than this one")
    return replace(origin, digest=definition.digest, input_digest=digest, variables=variables)


async def _refuse_unknown_commit(
    client: Client, traces: CommitTraces, committed: bool | None, given: Mapping[str, Any]
) -> None:
    """Raise RefusedError if a new run might undo what is confirmed, because only a person can know whether it is; and
    if a person says otherwise than the traces tell."""
    point = await find_commit_point(client.locator.ledger, traces)
    if point == "past" and committed is False:
        raise RefusedError(
            f"{traces.saga_id} is past its point of no return, as a guard or the ledger tells, so it only goes forward",
            help=saga_command("resume", traces.saga_id, **{**given, "not_committed": False}),
        )
    if point == "before" and committed:
        raise RefusedError(
            f"--committed does not count for {traces.saga_id}: its pivot, a guard or the ledger tells whether it was "
            "past its point of no return",
            help=saga_command("resume", traces.saga_id, **{**given, "committed": False}),
        )
    if point != "unknown" or committed is not None:
        return
    id = traces.saga_id
    keys = join_names([f"{id}/{step}/confirm" for step in traces.evidence.untold], 5)
    raise RefusedError(
        f"nobody knows whether {id} was past its point of no return: only its participants can tell whether they have "
        f"confirmed anything; look there for {keys}",
        help=f"if one has, so that nothing is undone: {saga_command('resume', id, **{**given, 'committed': True})}; "
        f"if none has: {saga_command('resume', id, **{**given, 'not_committed': True})}",
    )


def _definition(
    client: Client, saga_id: str, origin: Origin, definition: Definition | None, given: Mapping[str, Any]
) -> Definition:
    current = definition or client.project.definition(origin.saga)
    if current.digest == origin.digest:
        return current
    where = "this file" if definition is not None else "the project"
    raise UsageError(
        f"{saga_id} was started with the definition {origin.digest} of {origin.saga}, and {where} has another one",
        help=f"{saga_command('resume', saga_id, **{**given, 'definition': 'FILE'})}, with the file as it was then",
    )


def _input(saga_id: str, origin: Origin, input: Any, given: Mapping[str, Any]) -> Any:
    if input is not ABSENT:
        return input
    if not origin.has_input:
        raise UsageError(
            f"the guard has not kept the input of {saga_id}, because it is large or has x-sensitive values",
            help=saga_command("resume", saga_id, **{**given, "input": "@FILE"}),
        )
    return origin.input
