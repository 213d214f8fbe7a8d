"""The scopes of the row images of a saga: what is in one scope is undone together.

So an automatic undo may leave a row to another one of its scope; :mod:`sagas.protocol.undo_scopes` has their names.
"""

from __future__ import annotations

from sagas.machine.state import Entry, SagaRun
from sagas.machine.unclosed_skips import is_unclosed
from sagas.protocol import undo_scopes
from sagas.protocol.payloads import idempotency_key


def undo_scope(run: SagaRun, entry: Entry) -> str:
    """The scope of the images of an entry. A confirmed step that is undone on another connection restores no rows."""
    step = run.step(entry)
    confirmed = step.compensate.confirmed if step.compensate else None
    if confirmed is not None and confirmed.connection != step.do.connection:
        return undo_scopes.undone_elsewhere(_scope_of_step(run, step.id), f"{run.saga_id}/{entry.id}")
    return _scope_of_step(run, step.id)


def nested_scope(run: SagaRun, entry: Entry) -> str:
    """The scope of a nested saga: its own one if it may be undone without the rest, or the rest without it."""
    step = run.step(entry)
    scope = _scope_of_step(run, step.id)
    replaced = step.compensate is not None
    if replaced or step.on_failure != "compensate" or run.plan.runs_after_commit(step.id):
        saga_id = idempotency_key(run.saga_id, entry.id, entry.generation)
        return undo_scopes.of_nested(scope, saga_id, replaced=replaced)
    return scope


def _scope_of_step(run: SagaRun, step: str) -> str:
    """The steps behind a savepoint are undone before those before it, and perhaps without them."""
    for savepoint in reversed(run.plan.steps):
        if step in run.plan.savepoints.get(savepoint, ()):
            return undo_scopes.behind_savepoint(run.undo_scope, savepoint)
    return run.undo_scope


def undone_steps(run: SagaRun) -> tuple[str, ...] | None:
    """The steps that are undone together now; None: all of them, and those of nested sagas."""
    if run.phase != "backward":
        return ()
    open_images = {entry.step for record in run.steps.values() for entry in record.entries if is_unclosed(entry)}
    return tuple(sorted(set(run.plan.steps) - open_images)) if open_images else None
