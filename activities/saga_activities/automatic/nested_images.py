"""The images of a nested saga whose undo an operator has decided about: no other undo relies on them any more.

An automatic undo leaves a row to a later change of the same root saga, whose undo restores it for both. The undo of a
nested saga that was terminated, or is refused, never comes, so its images are closed as those of a skipped undo are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_activities.automatic.changed_rows import cannot_restore, unrestored_rows
from saga_activities.automatic.image_types import ImageTypes
from saga_activities.automatic.restoration import load_images, step_rows
from saga_activities.automatic.restore_order import CannotRestore
from saga_activities.automatic.row_changes import images_digest, mark_undone
from saga_activities.automatic.unread_rows import shows_images, unread_rows
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.rules import ScriptResult
from saga_activities.guard.sql_session import Row, SqlSession
from saga_activities.guard.transaction import GuardTransaction
from sagas.errors import NeedsOperator
from sagas.protocol.outcomes import Outcome

_ENTRY = "saga.nested"
"""Names the transactions in the guard; no guard row is written."""

_SELECT_OPEN = """
SELECT i.saga_id, i.step, i.generation FROM saga_image i
LEFT JOIN saga_guard g
  ON g.saga_id = i.saga_id AND g.step = i.step AND g.generation = i.generation AND g.op = 'undo'
WHERE (i.saga_id = :saga_id OR substr(i.saga_id, 1, :length) = :nested)
  AND i.sequence = 0 AND i.undone = 0 AND g.op IS NULL
ORDER BY i.created_at, i.saga_id, i.step, i.generation"""


async def close_nested(
    databases: DatabaseConnections, request: Mapping[str, Any], *, scheduled_at: float, deadline: float
) -> Outcome:
    """Close the images of the nested saga ``saga_id``, and of the sagas nested in it, on each of ``connections``.

    ``skip``: the rows stay, and the result lists those that are not as before it, as ``parts``, by connection. Marker
    ``skipped``.
    Otherwise the outcome is that of :class:`NeedsOperator` as long as rows are not as before it, and ``images`` is not
    the digest with which it was decided about these rows.
    """
    parts = []
    for name in request["connections"]:

        async def script(tx: GuardTransaction, name: str = name) -> ScriptResult:
            await tx.rows()
            rows = await _close(tx.sql, name, request["saga_id"], request["images"], skip=request["skip"])
            return ScriptResult(Outcome.done(rows, attempt=None), commit=True)

        key = EntryKey(request["saga_id"], _ENTRY)
        outcome = await databases.guard(name).run(key, "undo", script, scheduled_at, deadline)
        if outcome.kind != "done":
            return outcome
        if outcome.result is not None:
            parts.append(outcome.result)
    return Outcome.done({"parts": parts}, marker="skipped" if request["skip"] else None)


async def _close(sql: SqlSession, name: str, saga_id: str, decided: str | None, *, skip: bool) -> dict[str, Any] | None:
    """The rows that are not as before the nested saga, in the form of the details of a parked undo; None: all are."""
    nested = f"{saga_id}/"
    names = await sql.all(_SELECT_OPEN, {"saga_id": saga_id, "length": len(nested), "nested": nested})
    entries = [EntryKey(row["saga_id"], row["step"], row["generation"]) for row in names]
    loaded: list[tuple[ImageTypes, list[Row]]] = []
    for entry_key in entries:
        await mark_undone(sql, entry_key)
        loaded.append(await load_images(sql, entry_key))
    stored = [row for _, own in loaded for row in own]
    digest = images_digest(stored)
    if not stored or digest == decided:
        return None
    try:
        rows = await step_rows(sql, loaded)
    except (NeedsOperator, CannotRestore) as error:
        details = {**unread_rows(sql.dialect, loaded), "system": name}
        if skip:
            return details
        if shows_images(decided, stored):
            return None
        raise NeedsOperator(error.why, **details) from error
    if not rows.open_rows:
        return None
    if skip:
        return {**await unrestored_rows(sql, entries[-1], rows), "system": name}
    why = "the images of the nested saga say that rows are not as before it: restore them, then decide again"
    refused = await cannot_restore(sql, entries[-1], rows, why)
    raise NeedsOperator(refused.why, **refused.details, system=name)
