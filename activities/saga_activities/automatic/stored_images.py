"""The rows of ``saga_image``: with `[codec]`, keys and values of the changed rows are encrypted there.

The row 0 of an entry has none, see :mod:`saga_activities.automatic.image_types`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saga_activities.guard.sql_session import Row, SqlSession
from saga_activities.value_places import image_place

_INSERT = (
    "INSERT INTO saga_image (saga_id, step, generation, sequence, statement, row_hash, row_change, undo_scope,"
    " table_name, row_key, before_image, after_image, created_at) VALUES (:saga_id, :step, :generation, :sequence,"
    " :statement, :row_hash, :row_change, :undo_scope, :table_name, :row_key, :before_image, :after_image, :created_at)"
)
_VALUES = ("row_key", "before_image", "after_image")


async def insert_images(sql: SqlSession, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store images."""
    encrypt = sql.stored_values.encrypt_json
    stored = [
        row
        if row["sequence"] == 0
        else {**row, **{name: encrypt(image_place(row, name), row[name]) for name in _VALUES}}
        for row in rows
    ]
    await sql.run(_INSERT, stored)


async def update_image(sql: SqlSession, values: Mapping[str, Any], before: str | None, after: str | None) -> None:
    """Replace both states of the row whose key is in ``values``."""
    encrypt = sql.stored_values.encrypt_json
    await sql.run(
        "UPDATE saga_image SET before_image = :before, after_image = :after WHERE saga_id = :saga_id AND step = :step"
        " AND generation = :generation AND sequence = :sequence",
        {
            **values,
            "before": encrypt(image_place(values, "before_image"), before),
            "after": encrypt(image_place(values, "after_image"), after),
        },
    )


async def select_images(sql: SqlSession, statement: str, values: Mapping[str, Any]) -> list[Row]:
    """The rows of a statement, which selects their key, decrypted.

    Raises :class:`saga_activities.guard.unreadable_rows.UnreadableRow`.
    """
    decrypt = sql.stored_values.decrypt_json
    return [
        Row({**row, **{name: decrypt(image_place(row, name), row[name]) for name in _VALUES if name in row}})
        for row in await sql.all(statement, values)
    ]
