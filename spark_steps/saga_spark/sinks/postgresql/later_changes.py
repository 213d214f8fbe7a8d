"""Finds the later publications to which the current state of the rows of a publication is due.

The undo of a publication must not take the rows of a later one away, and must not take rows that a later one has
deleted or overwritten for undone: the undo of the later one would bring them back. Such a publication has to be undone
first. Rows that were changed or restored by others since are not its state any more, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from psycopg import sql

from saga_spark.manifest import Target
from saga_spark.sinks.postgresql.publication_table import PublicationRow, later_publications
from saga_spark.sinks.postgresql.tables import identifiers, keys_equal
from saga_spark.sinks.postgresql.undo_images import TableChange, retyped_columns
from saga_spark.sinks.sink import UndoConflict, undo_first

_PRESENT_BY_KEY = """
select count(*) from (select {key} from {our_after} union select {key} from {our_before}) as k
join {table} as t on {t_k} where {written}
"""
"""Our rows that are in the table as the later publication has written them."""

_ABSENT_BY_KEY = """
select count(*) from (select {key} from {our_after} union select {key} from {our_before}) as k
join {before} as b on {b_k}
where not exists (select from {table} as t where {t_k}) and not {written_too}
"""
"""Our rows that the later publication has deleted."""

_DELETED_WITHOUT_KEY = """
select count(*) from {our_after} as a where a.{hash} in (select {row} from {before} as t)
"""
"""Our rows that the later publication has deleted or changed, of a table without a primary key."""

_WRITTEN_WITHOUT_KEY = """
with ours as (select {hash}, count(*) as n from {our_after} group by 1),
     later as (select {hash}, count(*) as n from {after} group by 1),
     now as (select {our_row} as {hash}, count(*) as n from {table} as t group by 1)
select coalesce(sum(ours.n + later.n - now.n), 0)::bigint
from ours join later using ({hash}) join now using ({hash}) where now.n < ours.n + later.n
"""
"""Rows that both have written, more than there are."""

_RESTORED_WITHOUT_KEY = """
select count(*) from {our_before} as a join {after} as l on l.{hash} = md5(row({was})::text)::uuid
"""
"""Rows that we have deleted, and that the later publication has written again."""


def check_not_changed_later(change: TableChange, row: PublicationRow) -> None:
    """Check that the state of no row of the publication is due to a later one that can still be undone.

    ``row``: the record of the publication. Requires the table's lock. Raises UndoConflict, which names the later ones.
    """
    blocking = [
        (later, rows)
        for later in later_publications(change.connection, row)
        if (rows := _count_rows(change, row, later))
    ]
    if blocking:
        raise later_conflict(
            change.table.qualified_name,
            "rows of {} were deleted or written again by later publications: {}",
            (later for later, _ in blocking),
            rows=max(rows for _, rows in blocking),
        )


def later_conflict(table: str, text: str, later: Iterable[Mapping[str, Any]], **report: Any) -> UndoConflict:
    """The conflict with later publications that have to be undone first; ``text`` has a place for table and names."""
    named = [{name: value for name, value in row.items() if name != "details"} for row in later]
    publishers = ", ".join(dict.fromkeys(f"{row['saga_id']}/{row['step']}" for row in named))
    return UndoConflict(
        text.format(table, publishers),
        {"table": table, "after": named, **report},
        by_hand=undo_first(row["saga_id"] for row in named),
        later=[(row["saga_id"], row["step"]) for row in named],
    )


def _count_rows(ours: TableChange, row: PublicationRow, later: Mapping[str, Any]) -> int:
    """The number of our rows whose current state is that which the later publication has left."""
    columns = later["details"]["columns"]
    target = Target(later["saga_id"], later["step"], later["generation"], later["output"])
    key = tuple(later["details"]["key"])
    theirs = TableChange(ours.connection, target, ours.table, later["mode"], key, retyped_columns(ours.table, columns))
    if not theirs.has_images():
        return 0
    if [name for name, _ in columns] != ours.table.column_names:
        return 1  # its images have other columns, and cannot be compared
    if ours.key:
        return _count_by_key(ours, theirs)
    return _count_without_key(ours, theirs, _as_of(ours, row.details["columns"], columns))


def _count_by_key(ours: TableChange, theirs: TableChange) -> int:
    same = keys_equal("t", "l", theirs.key) if theirs.key else sql.SQL("true")
    written = theirs.compose("exists (select from {after} as l where {same} and l.{hash} = {row})", same=same)
    # With another key a row that was written may be another one than that which was deleted.
    written_too = sql.SQL("false")
    if theirs.key and set(theirs.key) == set(ours.key):
        written_too = theirs.compose(
            "exists (select from {after} as l where {l_b})", l_b=keys_equal("l", "b", ours.key)
        )
    parts = {
        "key": identifiers(ours.key),
        "our_after": ours.after_image,
        "our_before": ours.before_image,
        "t_k": keys_equal("t", "k", ours.key),
        "b_k": keys_equal("b", "k", ours.key),
    }
    present = theirs.fetch_number(_PRESENT_BY_KEY, written=written, **parts)
    return present + theirs.fetch_number(_ABSENT_BY_KEY, written_too=written_too, **parts)


def _count_without_key(ours: TableChange, theirs: TableChange, as_theirs: TableChange) -> int:
    """``as_theirs``: our change, as of the columns of the later publication."""
    parts = {
        "our_after": ours.after_image,
        "our_before": ours.before_image,
        "our_row": ours.row_hash(),
    }
    deleted = theirs.fetch_number(_DELETED_WITHOUT_KEY, row=as_theirs.row_hash(), **parts)
    rows = deleted or theirs.fetch_number(_WRITTEN_WITHOUT_KEY, **parts)
    if not rows and ours.is_as_before_without_key():
        return theirs.fetch_number(_RESTORED_WITHOUT_KEY, **parts)
    return rows


def _as_of(ours: TableChange, published: list[list[str]], columns: list[list[str]]) -> TableChange:
    types = dict(columns)
    table = replace(
        ours.table, columns=tuple(replace(column, declared=types[column.name]) for column in ours.table.columns)
    )
    return replace(ours, table=table, retyped=retyped_columns(table, published))
