"""The rows of a parked automatic undo that cannot be read now, since a migration has changed their table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from saga_activities.automatic import mysql, sqlite
from saga_activities.automatic.changed_rows import MAX_SHOWN_ROWS, bounded
from saga_activities.automatic.image_types import ImageTypes
from saga_activities.automatic.row_changes import images_digest
from saga_activities.automatic.row_image import decoded_image
from saga_activities.automatic.table_access import Image, shown_text
from saga_activities.guard.sql_session import Row
from sagas.text.printable import printable_line

_UNREAD = "unread:"
_UNQUOTED = re.compile(r"[\"`](\w+)[\"`]")


def unread_rows(dialect: str, loaded: Sequence[tuple[ImageTypes, Sequence[Row]]]) -> dict[str, Any]:
    """The details of a parked undo: the rows before and after the step, without what they are now.

    ``loaded``: the images of each entry with the types of the columns when it ran; none if they cannot be read either.
    """
    rows: dict[tuple[str, str], list[tuple[ImageTypes, Row]]] = {}
    for types, stored in loaded:
        for row in stored:
            rows.setdefault((row["table_name"], row["row_hash"]), []).append((types, row))
    return {
        "rows": bounded([_described(dialect, images) for images in list(rows.values())[:MAX_SHOWN_ROWS]]),
        "changed_rows": 0,
        "open_rows": len(rows),
        "sql": [],
        "sql_refused": None,
        "images": _UNREAD + images_digest([row for _, stored in loaded for row in stored]),
        "unread": True,
    }


def shows_images(decided: str | None, stored: Sequence[Row]) -> bool:
    """A decision was made about these images, without the rows as they were then."""
    return decided == _UNREAD + images_digest(stored)


def _described(dialect: str, images: Sequence[tuple[ImageTypes, Row]]) -> dict[str, Any]:
    """The columns that differ between the first and the last image of one row; all, if one of them is not a row."""
    (first_types, first), (last_types, last) = images[0], images[-1]
    key, before, after = map(decoded_image, (first["row_key"], first["before_image"], last["after_image"]))
    names = [name for name in before if before[name] != (after or before).get(name)] if before else []
    names = names or list(before or after or ())

    def shown(types: ImageTypes, row: Row, values: Image | None, names: Iterable[str]) -> dict[str, str] | None:
        kinds = types.of(row)
        return (
            None
            if values is None
            else {
                name: shown_text(
                    values[name], partial(_readable, dialect, kinds[name]["type"] if name in kinds else None)
                )
                for name in names
            }
        )

    table = _UNQUOTED.sub(r"\1", printable_line(first["table_name"])).removeprefix("main.")
    shown_key = shown(first_types, first, key, key or ()) or {}
    return {
        "row": f"the row {', '.join(f'{name}={text}' for name, text in shown_key.items())} of {table}",
        "table": table,
        "key": shown_key,
        "before": shown(first_types, first, before, names),
        "after": shown(last_types, last, after, names),
        "now": None,
        "unread": True,
    }


def _readable(dialect: str, kind: str | None, text: str) -> str:
    if dialect == "sqlite":
        return sqlite.shown_value(text)
    return text if dialect == "postgresql" or kind is None else mysql.shown_value(kind, text)
