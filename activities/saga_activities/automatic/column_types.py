"""Images of columns whose type a migration has changed since: the same values as texts of the present type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.exc import DBAPIError

from saga_activities.automatic import mysql, postgresql, sqlite
from saga_activities.automatic.table_shape import Column, TableShape
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.guard.session import SqlSession
from sagas.sql_text.row_changes import NotImageable
from sagas.text.printable import printable_line


async def converted_texts(
    sql: SqlSession, shape: TableShape, types: Mapping[str, str], images: Sequence[Mapping[str, str | None]]
) -> dict[str, dict[str, str]]:
    """For each column with another type than in ``types``: its present text for each text of ``images``.

    Raises :class:`NotImageable` if a value is not the same in the present type.
    """
    changed: dict[str, dict[str, str]] = {}
    for column in shape.columns:
        old = types.get(column.name, "none")
        if old == column.type:
            continue
        texts = sorted({text for image in images if (text := image.get(column.name)) is not None})
        try:
            converted = await _convert(sql, old, column, texts)
        except NotImageable as refusal:
            raise NotImageable(f"{_sentence(shape, column, old)}: {refusal.why}") from refusal
        except DBAPIError as error:
            classified = classify_database_error(error)
            if classified is None or classified.infrastructure or classified.timed_out:
                raise
            why = printable_line(classified.message)
            raise NotImageable(f"{_sentence(shape, column, old)}: {why}") from error
        changed[column.name] = dict(zip(texts, converted, strict=True))
    return changed


async def _convert(sql: SqlSession, old: str, column: Column, texts: Sequence[str]) -> list[str]:
    if sql.dialect == "postgresql":
        return await postgresql.convert(sql, old, column, texts)
    return (sqlite if sql.dialect == "sqlite" else mysql).convert(old, column, texts)


def _sentence(shape: TableShape, column: Column, old: str) -> str:
    return f"the column {column.name} of {shape.name} had the type {old} when the step ran, and has {column.type} now"
