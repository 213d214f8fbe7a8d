"""Images of columns whose type a migration has changed since: the same values as texts of the present type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.exc import DBAPIError

from saga_activities.automatic import mysql, postgresql, sqlite
from saga_activities.automatic.table_shape import Column, DeclaredType, TableShape
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.guard.sql_session import SqlSession
from sagas.sql_text.row_changes import NotImageable
from sagas.text.printable import printable_line


async def converted_texts(
    sql: SqlSession,
    shape: TableShape,
    types: Mapping[str, DeclaredType],
    images: Sequence[Mapping[str, str | None]],
    restored: Sequence[Mapping[str, str | None]] = (),
) -> dict[str, dict[str, str]]:
    """For each column with another type than in ``types``: its present text for each text of ``images``.

    ``restored``: those of them that an undo must write. Raises :class:`NotImageable` if a value is not the same in the
    present type, or if one of these would be another one than before.
    """
    _check_positions(shape, types)
    changed: dict[str, dict[str, str]] = {}
    for column in shape.columns:
        old = types.get(column.name, {"type": "none"})
        if column.has_type(old):
            continue
        texts = _texts(column, images)
        try:
            converted = dict(zip(texts, await _convert(sql, old, column, texts), strict=True))
            if sql.dialect in ("mysql", "mariadb"):
                written = _texts(column, restored)
                mysql.check_kept(column, written, [converted[text] for text in written])
        except NotImageable as refusal:
            raise NotImageable(f"{_sentence(shape, column, old)}: {refusal.why}") from refusal
        except DBAPIError as error:
            classified = classify_database_error(error)
            if classified is None or classified.infrastructure or classified.timed_out:
                raise
            why = printable_line(classified.message)
            raise NotImageable(f"{_sentence(shape, column, old)}: {why}") from error
        changed[column.name] = converted
    return changed


def _texts(column: Column, images: Sequence[Mapping[str, str | None]]) -> list[str]:
    return sorted({text for image in images if (text := image.get(column.name)) is not None})


def _check_positions(shape: TableShape, types: Mapping[str, DeclaredType]) -> None:
    """Raise :class:`NotImageable` if a column may be another one than had its name."""
    before = {declared["position"]: name for name, declared in types.items()}
    for name, declared in shape.types.items():
        if name not in types or types[name]["position"] == declared["position"]:
            continue
        subject = f"the column {name} of {shape.name}"
        if other := before.get(declared["position"]):
            raise NotImageable(
                f"{subject} is where {other} was when the step ran, so the two may have exchanged their names"
            )
        raise NotImageable(f"{subject} is another one than when the step ran, which was dropped or renamed")


async def _convert(sql: SqlSession, old: DeclaredType, column: Column, texts: Sequence[str]) -> list[str]:
    if sql.dialect == "postgresql":
        return await postgresql.convert(sql, old, column, texts)
    if sql.dialect == "sqlite":
        return sqlite.convert(old["type"], column, texts)
    return await mysql.convert(sql, old["type"], column, texts)


def _sentence(shape: TableShape, column: Column, old: DeclaredType) -> str:
    subject, was = f"the column {column.name} of {shape.name}", old["type"]
    if was == column.type:
        return f"{subject} has the type {was}, which is another one than when the step ran"
    return f"{subject} had the type {was} when the step ran, and has {column.type} now"
