"""The rows and outputs that keep an undo parked, as the document of `saga show` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from sagas.protocol.json_view import OMITTED, JsonView


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRowView(JsonView):
    """A row that keeps the undo of `compensate: auto` from going on: the columns that differ, as texts."""

    row: Annotated[str, "what messages call it"]
    table: str
    key: Annotated[Mapping[str, str], "its primary key"]
    before: Annotated[Mapping[str, str] | None, "before the step, as the undo restores it; null: there was no row"] = (
        None
    )
    after: Annotated[Mapping[str, str] | None, "after the step; null: it had deleted the row"] = None
    now: Annotated[Mapping[str, str] | None, "when the undo was parked; null: there was no row"] = None
    changed_by: Annotated[str | None, "who has changed it since the step; null if nobody has"] = None
    unread: Annotated[bool | None, "true: the undo could not read it, so nothing is known of `now`", OMITTED] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedOutputRowView(JsonView):
    """A row of a PostgreSQL table that is not as the step has published it: the columns that differ, as texts."""

    key: Annotated[Mapping[str, str], "its primary key, or the key of the merge"]
    before: Annotated[Mapping[str, str] | None, "before the publication; null: there was no row"] = None
    now: Annotated[Mapping[str, str] | None, "when the undo was parked; null: there was no row"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedOutputView(JsonView):
    """An output of a Spark step that is still published, because it cannot be reverted."""

    output: Annotated[str, "the name of the output"]
    system: Annotated[str, "its connection or catalog, `parquet` or `kafka`"]
    place: Annotated[str, "its table, folder or topic"]
    why: Annotated[str, "one sentence"]
    rows: Annotated[tuple[ParkedOutputRowView, ...] | None, "the first rows that differ", OMITTED] = None
    rows_omitted: Annotated[int | None, "how many more such rows there are", OMITTED] = None
    by_hand: Annotated[
        str | None, "what an operator can do by hand: SQL for the database of `system`, else words", OMITTED
    ] = None
