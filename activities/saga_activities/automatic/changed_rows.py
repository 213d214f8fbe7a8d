"""Why an automatic undo parks, for a person: the rows, who has changed them, and SQL that restores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from saga_activities.automatic.restoration_script import HandChange, restoration_script
from saga_activities.automatic.row_image import Images, RowImage, encoded_image
from saga_activities.automatic.row_locks import LockedRow
from saga_activities.automatic.stored_images import select_images
from saga_activities.automatic.table_access import Image, TableAccess
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from sagas.errors import NeedsOperator
from sagas.text.exact_json import encode_json
from sagas.text.printable import printable_line
from sagas.text.shortening import counted, join_names, shorten

MAX_SHOWN_ROWS = 20
"""Rows in the reason why a saga is parked."""

MAX_SHOWN_BYTES = 8 * 1024
"""Bytes of these rows as JSON, and as many of their SQL: a saga may have hundreds of parked steps."""

MAX_DIFFERENCE = 400
"""Characters of the first difference in its short form."""

MAX_SHOWN_WRITERS = 5
"""Other steps that a reason names as writers of a row."""

_SELECT_LATER = """
SELECT i.saga_id, i.step, i.generation, i.sequence, i.before_image, i.after_image FROM saga_image i
LEFT JOIN saga_guard g
  ON g.saga_id = i.saga_id AND g.step = i.step AND g.generation = i.generation AND g.op = 'undo'
WHERE i.row_hash = :row_hash AND i.sequence > 0 AND g.op IS NULL
  AND NOT (i.saga_id = :saga_id AND i.step = :step AND i.generation = :generation)
  AND i.created_at >= (SELECT o.created_at FROM saga_image o
    WHERE o.saga_id = :saga_id AND o.step = :step AND o.generation = :generation AND o.sequence = 0)
ORDER BY i.created_at, i.row_change LIMIT 1000"""
"""The changes of a row by other steps since an entry has run, without those that are undone."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step: before its first and after its last change, and as they are now.

    ``digest`` is that of the stored ``images``. ``built_upon``: rows that a later step has changed, which may stay
    done.
    """

    tables: Mapping[str, TableAccess]
    first: Images
    last: Images
    current: Images
    digest: str
    images: Sequence[RowImage]
    built_upon: frozenset[LockedRow] = frozenset()

    @property
    def open_rows(self) -> list[LockedRow]:
        """The rows that are not as before the step."""
        return [row for row in self.last if self.current[row] != self.first[row] or row in self.built_upon]

    @property
    def changed_rows(self) -> list[LockedRow]:
        """The rows that others have changed since the step."""
        return [row for row in self.open_rows if self.current[row] != self.last[row] or row in self.built_upon]


async def changed_since(sql: SqlSession, entry_key: EntryKey, rows: StepRows) -> NeedsOperator:
    """The error of an undo that finds rows changed by others."""
    changed = rows.changed_rows
    by = await _who_changed(sql, entry_key, changed[0], rows)
    difference = shorten(_difference(rows, changed[0]), MAX_DIFFERENCE)
    more = f"; and {counted(len(changed) - 1, 'more row')}" if len(changed) > 1 else ""
    why = f"{changed[0].label} has been changed since by {by} ({difference}){more}"
    return NeedsOperator(why, **await _details(sql, entry_key, rows, changed))


async def cannot_restore(sql: SqlSession, entry_key: EntryKey, rows: StepRows, why: str) -> NeedsOperator:
    """The error of an undo whose rows are as the step has left them, and that the database refuses."""
    return NeedsOperator(why, **await _details(sql, entry_key, rows, rows.open_rows))


async def unrestored_rows(sql: SqlSession, entry_key: EntryKey, rows: StepRows) -> dict[str, Any]:
    """The rows that are not as before the step, in the form of the details of a parked undo."""
    return await _details(sql, entry_key, rows, rows.open_rows)


async def _details(sql: SqlSession, entry_key: EntryKey, rows: StepRows, shown: Sequence[LockedRow]) -> dict[str, Any]:
    """The details of a parked undo for people; ``shown`` are the rows that keep it from going on."""
    wanted = list(dict.fromkeys([*shown, *rows.open_rows]))[:MAX_SHOWN_ROWS]
    at_once = [HandChange(row, rows.current[row], rows.first[row]) for row in wanted]
    script = await restoration_script(sql, rows.tables, at_once, _one_by_one(rows, wanted))
    described = []
    for row in shown[:MAX_SHOWN_ROWS]:
        is_changed = rows.current[row] != rows.last[row]
        by = await _who_changed(sql, entry_key, row, rows) if is_changed else None
        described.append(_described(rows, row, by))
    statements = [
        {"row": statement.row.label, "sql": statement.sql, "check": statement.check} for statement in script.statements
    ]
    return {
        "rows": bounded(described),
        "changed_rows": len(rows.changed_rows),
        "open_rows": len(rows.open_rows),
        "dialect": sql.dialect,
        "sql": bounded(statements),
        "sql_refused": script.refused,
        "images": rows.digest,
    }


def _one_by_one(rows: StepRows, wanted: Sequence[LockedRow]) -> list[list[HandChange]]:
    """The changes that undo one statement of the step after the other, the last first, from the rows as they are."""
    now = {row: rows.current[row] for row in wanted}
    steps: list[list[HandChange]] = []
    for _, group in groupby(reversed(rows.images), key=lambda image: image.statement):
        changes: list[HandChange] = []
        for image in group:
            if image.row in now:
                changes.append(HandChange(image.row, now[image.row], image.before))
                now[image.row] = image.before
        steps.append(changes)
    return steps


def bounded(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first rows, as many as have room."""
    kept: list[dict[str, Any]] = []
    size = 0
    for item in items:
        size += len(encode_json(item))
        if size > MAX_SHOWN_BYTES:
            break
        kept.append(item)
    return kept


def _described(rows: StepRows, row: LockedRow, changed_by: str | None) -> dict[str, Any]:
    """A row for a person: its key, and the columns that differ between its images."""
    table = rows.tables[row.table]
    images = (rows.first[row], rows.last[row], rows.current[row])
    existing = [image for image in images if image is not None]
    # Of a row that the step has inserted or deleted, and nobody has changed since, no column differs.
    names = [name for name in existing[0] if len({image[name] for image in existing}) > 1] or list(existing[0])
    before, after, now = (_shown(table, image, names) for image in images)
    key = _shown(table, existing[0], table.shape.key)
    described = {"row": row.label, "table": table.shape.name, "key": key, "before": before, "after": after, "now": now}
    return described if changed_by is None else {**described, "changed_by": changed_by}


def _shown(table: TableAccess, image: Image | None, names: Sequence[str]) -> dict[str, str] | None:
    return None if image is None else {name: table.shown(name, image[name]) for name in names}


def _difference(rows: StepRows, row: LockedRow) -> str:
    """Expected, actual and wanted values of the columns that differ, or a sentence about the whole row."""
    table, first, last, current = rows.tables[row.table], rows.first[row], rows.last[row], rows.current[row]
    if current is None:
        return "the row was deleted"
    if last is None:
        return "a row with this key was inserted"
    differences = [
        f"{name}: {table.shown(name, current[name])} instead of {table.shown(name, last[name])}"
        + (f", before the step {table.shown(name, first[name])}" if first is not None else "")
        for name in last
        if current[name] != last[name]
    ]
    return "; ".join(differences) or "it has its values again"


async def _who_changed(sql: SqlSession, entry_key: EntryKey, row: LockedRow, rows: StepRows) -> str:
    """Everybody who has changed a row since the step, as far as the images tell: each begins where another one ends."""
    state = encoded_image(rows.last[row])
    writers: dict[str, None] = {}
    has_unknown = False
    for change in await select_images(sql, _SELECT_LATER, {**entry_key.values, "row_hash": row.hash}):
        writers[printable_line(f"step {change['step']} of the saga {change['saga_id']}")] = None
        has_unknown |= change["before_image"] != state
        state = change["after_image"]
    has_unknown |= state != encoded_image(rows.current[row]) or not writers
    unknown = ["something without automatic compensation"] if has_unknown else []
    return " and ".join([*unknown, *([join_names(list(writers), MAX_SHOWN_WRITERS)] if writers else [])])
