"""Statements with which a saga itself changes rows of which it has images: no change of others, whatever they leave.

They are the `confirm` of a step with `compensate: auto` and the `compensate.confirmed` that undoes it. The changes of a
row by one saga form a chain: each begins with the state that the one before it has left. What a confirm changes is
appended to it. What `compensate.confirmed` undoes is taken out of it, and the state that it leaves is then that after
the last change. So the undos of the other steps find the row as the chain says, and restore it to as it was before all
of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from saga_activities.attempt_context import ActionBody
from saga_activities.automatic.image_types import TableTypes
from saga_activities.automatic.restoration import load_images, open_tables
from saga_activities.automatic.restore_order import CannotRestore, read_rows
from saga_activities.automatic.row_changes import (
    ChainedChange,
    Reliance,
    append_images,
    image_chains,
    is_undone_by_statement,
    replace_images,
)
from saga_activities.automatic.row_image import Images, encoded_image
from saga_activities.automatic.table_access import TableAccess
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from sagas.errors import InfrastructureError, NeedsOperator


@dataclass(frozen=True, slots=True)
class _OwnRows:
    """The rows of a step's images, locked, as they are before a statement."""

    tables: dict[str, TableAccess]
    before: Images
    types: TableTypes
    undo_scope: str


async def confirm_by_statement(sql: SqlSession, body: ActionBody, entry_key: EntryKey) -> object:
    """Run the `confirm` of a step, and append what it changes in the rows of the step."""
    rows = await _own_rows(sql, entry_key)
    result = await body(sql)
    if rows is None:
        return result
    now = await read_rows(rows.tables, rows.before)
    images = [
        {
            "row_hash": row.hash,
            "table_name": row.table,
            "row_key": row.key_text,
            "before_image": encoded_image(before),
            "after_image": encoded_image(now[row]),
        }
        for row, before in rows.before.items()
        if before != now[row]
    ]
    await append_images(sql, entry_key, images, rows.types)
    return result


async def undo_by_statement(
    sql: SqlSession, body: ActionBody, entry_key: EntryKey, undone_steps: Collection[str] | None
) -> object:
    """Run the `compensate.confirmed` of a step, and take the changes of the step out of the chains of its rows.

    ``undone_steps``: see :class:`Reliance`. Raises :class:`InfrastructureError` as long as others have changed a row
    between the step and a later one, whose undo restores their change, and that of this step with it.
    """
    rows = await _own_rows(sql, entry_key)
    if rows is None:
        return await body(sql)
    reliance = Reliance(entry_key, rows.undo_scope, undone_steps)
    chains = await image_chains(sql, entry_key, [row.hash for row in rows.before], rows.types)
    shared = [chain for chain in chains.values() if not all(change.is_own(entry_key) for change in chain)]
    if any(not change.has_present_types for chain in shared for change in chain):
        raise NeedsOperator(
            "other steps have changed rows of this step, whose columns a migration has changed since: undo it by hand,"
            " then decide done"
        )
    if (later := await _undone_first(sql, reliance, chains.values())) is not None:
        raise InfrastructureError(
            f"{later.key.entry} of the saga {later.key.saga_id} has changed a row of this step later, and is to be"
            " undone first"
        )
    result = await body(sql)
    now = await read_rows(rows.tables, rows.before)
    for row, before in rows.before.items():
        chain = chains[row.hash]
        _take_out(chain, entry_key, encoded_image(before), encoded_image(now[row]))
        await replace_images(sql, chain)
    return result


async def _undone_first(
    sql: SqlSession, reliance: Reliance, chains: Collection[Sequence[ChainedChange]]
) -> ChainedChange | None:
    for chain in chains:
        for change, later in pairwise(chain):
            if change.is_own(reliance.entry_key) and not later.is_own(reliance.entry_key):
                is_broken = change.after != later.before and reliance.covers(later.key, later.undo_scope)
                if is_broken and not await is_undone_by_statement(sql, later.key, later.sequence):
                    return later
    return None


def _take_out(chain: list[ChainedChange], entry_key: EntryKey, before: str | None, now: str | None) -> None:
    """Remove the own changes of an entry from a chain, after a statement has made ``now`` of the row ``before``.

    Where others have changed the row in between, the chain stays broken, so that an undo finds that out.
    """
    if chain[-1].after == before:
        chain[-1].after = now
    for index in reversed(range(len(chain))):
        change = chain[index]
        if not change.is_own(entry_key):
            continue
        del chain[index]
        if index < len(chain):
            if chain[index].before == change.after:
                chain[index].before = change.before
        elif chain and chain[-1].after == change.before:
            chain[-1].after = change.after


async def _own_rows(sql: SqlSession, entry_key: EntryKey) -> _OwnRows | None:
    """The rows of the step; None if it has changed none, or they cannot be read, which the statement need not do."""
    try:
        types, stored = await load_images(sql, entry_key)
        own = [row for row in stored if row["sequence"] > 0]
        if not own:
            return None
        tables, images = await open_tables(sql, types, own)
        before = await read_rows(tables, {image.row: None for image in images})
        present = {name: table.shape.types for name, table in tables.items()}
        return _OwnRows(tables, before, present, own[0]["undo_scope"])
    except (NeedsOperator, CannotRestore):
        return None
