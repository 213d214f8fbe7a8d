"""Replies which say that a command of a saga is done, although the saga has ended as if it had not happened.

They are recorded in the outbox's database, where the saga would have found them before its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saga_spark.reconcile.findings import Finding
from saga_workers.location.done_commands import DoneCommand, commands_done_since, done_commands
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.reconcile.current_views import current_views
from saga_workers.temporal.temporal_runs import list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.views.saga_list import SagaFilter, visibility_query
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings

BACKWARD_ENDS = ("COMPENSATED", "RESIDUE")
"""States of sagas that may have ended without a step whose command was sent."""

MAX_SAGAS = 2_000
"""Maximum number of sagas that are looked up in Temporal."""


async def find_late_replies(
    locator: Locator, settings: Settings, states: Mapping[str, str], since: float | None
) -> list[Finding]:
    """The findings about the sagas of ``states``, and with ``since`` also about sagas that ended before it and have
    received a reply after it. Raises SagaError.
    """
    backward = [saga_id for saga_id, state in states.items() if state in BACKWARD_ENDS]
    commands = await done_commands(settings, backward)
    if since is not None:
        commands += [command for command in await commands_done_since(settings, since) if command.saga_id not in states]
    return await _judge(locator, settings, commands)


async def latest_late_replies(locator: Locator, settings: Settings) -> list[Finding]:
    """The findings about the sagas that have ended last. Raises SagaError."""
    criteria = SagaFilter(states=BACKWARD_ENDS, task_queue=settings.temporal.task_queue)
    saga_ids: dict[str, None] = {}
    async for run in list_runs(locator.temporal, visibility_query(criteria)):
        saga_ids[run.id.removesuffix(UNDO_SUFFIX)] = None
        if len(saga_ids) == MAX_SAGAS:
            break
    return await _judge(locator, settings, await done_commands(settings, saga_ids))


async def _judge(locator: Locator, settings: Settings, commands: Sequence[DoneCommand]) -> list[Finding]:
    saga_ids = list(dict.fromkeys(command.saga_id for command in commands))[:MAX_SAGAS]
    views = await current_views(locator, saga_ids)
    contrary = [command for command in commands if (view := views.get(command.saga_id)) and _contradicts(command, view)]
    undone = {id: await _undone_entries(locator, id) for id in {command.saga_id for command in contrary}}
    return [
        Finding(
            "late_reply",
            saga_id=view.id,
            saga=view.saga,
            state=view.state,
            step=command.step,
            generation=command.generation,
            place=settings.kafka.outbox,
            row={"step_key": command.key},
        )
        for command in contrary
        if (view := views[command.saga_id]) is not None
        and (command.step, command.generation) not in undone[command.saga_id]
    ]


async def _undone_entries(locator: Locator, saga_id: str) -> set[tuple[str, int | None]]:
    """The entries, with their generations, that a closed run of the saga or of its undo has undone: a run that a reset
    has made later knows nothing of them.
    """
    undone: set[tuple[str, int | None]] = set()
    for id in (saga_id, saga_id + UNDO_SUFFIX):
        async for run in list_runs(locator.temporal, keyword_condition("WorkflowId", id)):
            view = None if run.id != id or run.running else (await outcome_of(locator, run)).view
            steps = () if view is None else view.steps
            undone |= {(step.id, step.generation) for step in steps if step.state == "COMPENSATED"}
    return undone


def _contradicts(command: DoneCommand, view: SagaView) -> bool:
    """True if the saga has ended without an undo of the command, and without knowing its effect."""
    if view.state not in BACKWARD_ENDS or command.step in {row.step for row in view.residue}:
        return False
    entry = next((step for step in view.steps if step.id == command.step), None)
    if entry is None or entry.generation != command.generation or entry.effect == "none":
        return False
    return entry.state not in ("COMPENSATED", "DONE")
