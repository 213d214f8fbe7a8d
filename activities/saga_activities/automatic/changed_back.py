"""Rows that are as before a step, or as it has left them, because the steps of other sagas have changed them so.

What such a row has now is not what the step has made of it, but its values come again when those sagas are undone. So
the next undo that would restore them gets the images of the step: all of them together restore the row to as it was
before, in any order, and what a later saga has made of the row stays until that one is undone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saga_activities.automatic.image_types import TableTypes
from saga_activities.automatic.row_changes import STILL_TO_UNDO, PresentImage, entry_of, inherit, locking, portions
from saga_activities.automatic.row_image import decoded_image
from saga_activities.automatic.row_locks import LockedRow
from saga_activities.automatic.stored_images import select_images
from saga_activities.automatic.table_access import Image
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import Row, SqlSession
from sagas.protocol.locks import owner_id

_LATER = f"""FROM saga_image i {STILL_TO_UNDO} AND i.sequence <> 0
  AND NOT (i.saga_id = :root OR substr(i.saga_id, 1, :length) = :nested)
  AND i.created_at >= (SELECT o.created_at FROM saga_image o
    WHERE o.saga_id = :saga_id AND o.step = :step AND o.generation = :generation AND o.sequence = 0)"""
"""The changes by other root sagas since an entry has run, without those that are undone."""

_SELECT_CHANGED = f"SELECT DISTINCT i.row_hash {_LATER} AND i.row_hash IN ({{names}})"

_SELECT_LATER = f"""
SELECT i.saga_id, i.step, i.generation, i.sequence, i.table_name, i.row_hash, i.row_change, i.before_image,
  i.after_image
{_LATER} AND i.row_hash = :row_hash ORDER BY i.created_at, i.row_change, i.sequence"""


_SELECT_BEFORE = """
SELECT i.row_hash FROM saga_image i
WHERE (i.saga_id = :root OR substr(i.saga_id, 1, :length) = :nested) AND i.sequence > 0
GROUP BY i.row_hash HAVING MAX(i.created_at) < (SELECT o.created_at FROM saga_image o
    WHERE o.saga_id = :saga_id AND o.step = :step AND o.generation = :generation AND o.sequence = 0)"""


async def changed_before(sql: SqlSession, entry_key: EntryKey, root: str) -> frozenset[str]:
    """The hashes of rows that another root saga has changed before an entry, and not since.

    A change needs the lock of its row. So the other saga had released such a row when the entry changed it, and if it
    has the row now, it is being undone, and cannot be before the entry is.
    """
    return frozenset(row["row_hash"] for row in await sql.all(_SELECT_BEFORE, _values(entry_key, root)))


@dataclass(frozen=True, slots=True)
class ChangedByOthers:
    """``given``: the rows whose images the undos of others have now. ``blocked``: rows that others have changed to as
    the step has left them, and whose undos would not restore that.
    """

    given: frozenset[LockedRow] = frozenset()
    blocked: frozenset[LockedRow] = frozenset()


async def pass_on_to_others(
    sql: SqlSession,
    entry_key: EntryKey,
    states: Mapping[LockedRow, tuple[Image | None, Image | None, Image | None]],
    stored: Sequence[Row],
    types: TableTypes,
    present_image: PresentImage,
) -> ChangedByOthers:
    """Give the images of rows that other sagas have changed to what they were to the next undo that restores what the
    entry has made of the row.

    ``states``: each row before the entry, after it, and now. ``stored``: its images, with present values, and
    ``types`` those of their columns. Raises :class:`sagas.sql_text.row_changes.NotImageable` if a value of another
    entry cannot be read.
    """
    values = _values(entry_key, owner_id(entry_key.saga_id))
    rows = {row.hash: row for row, (first, last, now) in states.items() if now in (first, last)}
    changed: list[str] = []
    for names, hashes in portions(list(rows)):
        changed += [row["row_hash"] for row in await sql.all(_SELECT_CHANGED.format(names=names), {**values, **hashes})]
    given, blocked = set[LockedRow](), set[LockedRow]()
    for row in map(rows.__getitem__, changed):
        _, after, now = states[row]
        later = await select_images(sql, _SELECT_LATER + locking(sql), {**values, "row_hash": row.hash})
        latest = [change for change in later if change["sequence"] > 0][-1:]
        is_theirs = bool(latest) and decoded_image(await present_image(latest[0], "after_image")) == now
        if now == after and not is_theirs:
            continue  # something without images has changed it back, such as the person who undoes them
        heir = await _next_with(later, after, present_image)
        if heir is not None:
            await _give(sql, row, later, heir, stored, types)
            given.add(row)
        elif now == after:
            blocked.add(row)
    return ChangedByOthers(frozenset(given), frozenset(blocked))


async def _next_with(later: Sequence[Row], before: Image | None, present_image: PresentImage) -> EntryKey | None:
    """The entry of the next change whose undo restores ``before``."""
    for change in later:
        if decoded_image(await present_image(change, "before_image")) == before:
            return entry_of(change)
    return None


async def _give(
    sql: SqlSession, row: LockedRow, later: Sequence[Row], heir: EntryKey, stored: Collection[Row], types: TableTypes
) -> None:
    # The changes of a row are numbered in each root saga. With the same number, one with a lower sequence is earlier.
    number = min(change["row_change"] for change in later if entry_of(change) == heir)
    images = [Row({**image, "row_change": number}) for image in stored if image["row_hash"] == row.hash]
    await inherit(sql, heir, images, types)


def _values(entry_key: EntryKey, root: str) -> dict[str, Any]:
    """The parameters of the statements: an entry, and a root saga with all that are nested in it."""
    return {**entry_key.values, "root": root, "length": len(root) + 1, "nested": f"{root}/"}
