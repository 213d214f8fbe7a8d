"""Restores rows in an order that the constraints of their tables allow, and rehearses that before a step is committed.

The database has accepted the state after each statement of the step. So the statements are undone one by one, the last
first, and only the rows of one statement need an order. Where a constraint is checked at the end of a statement
(foreign keys of PostgreSQL and SQLite), these rows are written together. Where it is checked row by row (unique keys,
and all constraints of MySQL and MariaDB), the order in which the step changed the rows is possible in reverse: the rows
are tried in passes, until none is open or a pass makes no progress. A row in its final place is never in the way of
another row, so a pass never has to be undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy.exc import DBAPIError

from saga_activities.automatic.mysql import restoring_session
from saga_activities.automatic.row_image import Images, RowImage, differing, net_images
from saga_activities.automatic.row_locks import LockedRow
from saga_activities.automatic.table_access import Image, TableAccess
from saga_activities.automatic.unique_keys import in_order_of_values, unique_columns
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.guard.sql_session import SqlSession
from sagas.sql_text.row_changes import NotImageable
from sagas.text.printable import printable_line

MAX_PASSES = 20
"""Passes over the rows of one statement. Chains of rows are put in order before, so more passes help only rarely."""

Tables = Mapping[str, TableAccess]

Violations = frozenset[tuple[object, ...]]
"""Rows of SQLite whose foreign key has no row: table, row, other table, number of the key."""


OTHER_VALUES = "the database stores other values than before the step"


class CannotRestore(Exception):
    """Rows cannot be restored; nothing was changed. ``why`` names the row and the reason.

    ``may_heal``: other rows are in the way, which may be gone later.
    """

    def __init__(self, rows: str, reason: str, *, may_heal: bool = False) -> None:
        self.why = f"{rows} cannot be restored: {reason}"
        self.may_heal = may_heal
        super().__init__(self.why)


class _RefusedRestore(Exception):
    """The database has refused a statement; its message, and whether other rows are in the way."""

    def __init__(self, message: str, *, may_heal: bool) -> None:
        self.may_heal = may_heal
        super().__init__(message)


async def rehearse(sql: SqlSession, tables: Tables, images: Sequence[RowImage]) -> None:
    """Restore the rows of a step that has just changed them, and take it back.

    What the undo needs (rights, an order, constraints that accept the old values) is missing before the step is
    committed, then, and not when its saga is rolled back. Raises :class:`NotImageable`.
    """
    if not images:
        return
    first, last = net_images(images)
    try:
        async with sql.savepoint(keep=False):
            await restore_rows(sql, tables, images, {row for row in last if first[row] != last[row]})
    except CannotRestore as error:
        raise NotImageable(f"the undo would fail, as {error.why}") from error


async def restore_rows(
    sql: SqlSession, tables: Tables, images: Sequence[RowImage], open_rows: Iterable[LockedRow]
) -> None:
    """Restore ``open_rows``, which are as after their last image, to before their first one.

    Raises :class:`CannotRestore`, and then nothing is changed.
    """
    first, last = net_images(images)
    wanted = set(open_rows)
    steps = [
        [_RowRestore(image.row, image.after, image.before) for image in reversed(list(group)) if image.row in wanted]
        for _, group in groupby(reversed(images), key=lambda image: image.statement)
    ]
    # Rows that a person has repaired meanwhile are missing in the steps, so the states between them may be impossible.
    all_open = all(row in wanted for row in last if first[row] != last[row])
    at_once = [[_RowRestore(row, last[row], first[row]) for row in reversed(list(last)) if row in wanted]]
    async with restoring_session(sql), sql.savepoint():
        violations = await _defer_constraints(sql, tables)
        try:
            await _in_savepoint(sql, lambda: _make(sql, tables, steps))
        except CannotRestore as refusal:
            try:
                await _make(sql, tables, at_once)
            except CannotRestore as error:
                # With all rows open the states between them are possible, and the first refusal is the reason.
                raise (refusal if all_open else error) from error
        await _check_deferred_constraints(sql, tables, violations)
        restored = await read_rows(tables, first)
        if wrong := [row for row in first if restored[row] != first[row]]:
            raise CannotRestore(wrong[0].label, OTHER_VALUES)


async def read_rows(tables: Tables, rows: Iterable[LockedRow]) -> Images:
    """The rows as they are now, locked; None if there is none."""
    wanted: dict[str, list[LockedRow]] = {}
    for row in rows:
        wanted.setdefault(row.table, []).append(row)
    current: dict[LockedRow, Image | None] = {}
    for name in sorted(wanted):
        try:
            existing = await tables[name].lock_rows(row.key for row in wanted[name])
        except NotImageable as error:
            raise CannotRestore(wanted[name][0].label, error.why) from error
        current |= {row: existing.get(row.key) for row in wanted[name]}
    return current


@dataclass(frozen=True, slots=True, eq=False)
class _RowRestore:
    """A row as it is, and as it must become; None if there is none."""

    row: LockedRow
    present: Image | None
    wanted: Image | None


async def _make(sql: SqlSession, tables: Tables, steps: Iterable[Sequence[_RowRestore]]) -> None:
    for changes in steps:
        if changes:
            await _make_together(sql, tables, changes)


async def _make_together(sql: SqlSession, tables: Tables, changes: Sequence[_RowRestore]) -> None:
    """Make the changes of one statement, in whatever way the constraints allow."""
    for way in (_one_after_another, _updates_together, _updates_as_new_rows, _new_rows_as_updates):
        try:
            await _in_savepoint(sql, lambda way=way: way(tables, changes))
        except _RefusedRestore:
            continue
        return
    await _in_passes(sql, tables, await _in_order_of_values(sql, tables, changes))


async def _in_savepoint(sql: SqlSession, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work or nothing.

    Raises :class:`_RefusedRestore` if the database refuses it. An error that says nothing about the rows, such as a
    deadlock, is raised as it is.
    """
    try:
        async with sql.savepoint():
            await work()
    except DBAPIError as error:
        classified = classify_database_error(error)
        if sql.first_error is not None or classified is None:
            raise
        raise _RefusedRestore(printable_line(classified.message), may_heal=classified.healing == "perhaps") from error


# Ways to make the changes of one statement


async def _one_after_another(tables: Tables, changes: Sequence[_RowRestore]) -> None:
    await _delete(tables, [change for change in changes if change.wanted is None])
    for change in changes:
        if change.present is not None and change.wanted is not None:
            table = tables[change.row.table]
            await table.update(change.row.key, {**_rewritten(table, change), **_assigned(change)})
    await _insert(tables, [change for change in changes if change.present is None])


async def _updates_together(tables: Tables, changes: Sequence[_RowRestore]) -> None:
    """All rows of a table in one statement: their references to each other are checked at its end."""
    await _delete(tables, [change for change in changes if change.wanted is None])
    for table, updates in _by_table(tables, changes):
        names = dict.fromkeys(name for change in updates for name in (*_rewritten(table, change), *_assigned(change)))
        rows = {change.row.key: {name: change.wanted[name] for name in names} for change in updates if change.wanted}
        await table.update_together(rows)
    await _insert(tables, [change for change in changes if change.present is None])


async def _updates_as_new_rows(tables: Tables, changes: Sequence[_RowRestore]) -> None:
    """All rows are deleted before any is written: none is in the way of another, as in a swap of unique values."""
    for table, _ in _by_table(tables, changes):
        if any(reference.on_delete for reference in table.shape.references):
            return await _one_after_another(tables, changes)  # the delete would change rows of other tables
    await _delete(tables, [change for change in changes if change.present is not None], open_references=True)
    await _insert(tables, [change for change in changes if change.wanted is not None])
    return None


async def _new_rows_as_updates(tables: Tables, changes: Sequence[_RowRestore]) -> None:
    """Rows to delete become rows to insert: a temporal foreign key needs some row of the period at all times."""
    made = list(changes)
    for name, table in tables.items():
        if any(reference.on_delete or reference.on_update for reference in table.shape.references):
            continue  # the update would change rows of other tables
        own = [change for change in changes if change.row.table == name]
        deleted = [change for change in own if change.wanted is None]
        inserted = [change for change in own if change.present is None]
        for old, new in zip(deleted, inserted, strict=False):
            made.remove(old)
            made.remove(new)
            made.append(_RowRestore(old.row, old.present, new.wanted))
    await _one_after_another(tables, made)


async def _in_order_of_values(sql: SqlSession, tables: Tables, changes: Sequence[_RowRestore]) -> list[_RowRestore]:
    """The rows, each after the one whose unique value it takes: a chain of such rows takes one pass."""
    ordered: list[_RowRestore] = []
    updates = _by_table(tables, changes)
    for table, rows in updates:
        images = {change: (change.present, change.wanted) for change in rows if change.present and change.wanted}
        ordered += in_order_of_values(images, await unique_columns(sql, table))
    deleted = [change for change in changes if change.wanted is None]
    inserted = [change for change in changes if change.present is None]
    return [*deleted, *ordered, *inserted]


async def _in_passes(sql: SqlSession, tables: Tables, changes: Sequence[_RowRestore]) -> None:
    """Row by row, in both directions by turns; rows that cannot be written yet wait for the next pass."""
    waiting, refused, message, may_heal = list(changes), list(changes), "", True
    for _ in range(MAX_PASSES):
        refused = []
        for change in waiting:
            try:
                await _in_savepoint(sql, lambda change=change: _one_after_another(tables, [change]))
            except _RefusedRestore as refusal:
                refused.append(change)
                message, may_heal = str(refusal), may_heal and refusal.may_heal
        if not refused:
            return
        if len(refused) == len(waiting):
            break
        waiting = list(reversed(refused))
    raise CannotRestore(refused[-1].row.label, message, may_heal=may_heal)


def _by_table(tables: Tables, changes: Sequence[_RowRestore]) -> Iterable[tuple[TableAccess, list[_RowRestore]]]:
    """The updates of each table."""
    updates: dict[str, list[_RowRestore]] = {}
    for change in changes:
        if change.present is not None and change.wanted is not None:
            updates.setdefault(change.row.table, []).append(change)
    return [(tables[name], rows) for name, rows in updates.items()]


async def _delete(tables: Tables, changes: Sequence[_RowRestore], *, open_references: bool = False) -> None:
    for name, rows in groupby(changes, key=lambda change: change.row.table):
        await tables[name].delete([change.row.key for change in rows], open_references=open_references)


async def _insert(tables: Tables, changes: Sequence[_RowRestore]) -> None:
    for name, rows in groupby(changes, key=lambda change: change.row.table):
        await tables[name].insert([change.wanted for change in rows if change.wanted is not None])


def _assigned(change: _RowRestore) -> Image:
    assert change.present is not None
    assert change.wanted is not None
    return differing(change.wanted, change.present)


def _rewritten(table: TableAccess, change: _RowRestore) -> Image:
    """The columns that the database would assign itself."""
    assert change.wanted is not None
    return {column.name: change.wanted[column.name] for column in table.shape.columns if column.rewritten}


# Constraints that are checked at the end of the transaction

_POSTGRESQL_DEFERRABLE = """
SELECT DISTINCT pg_catalog.format('%I.%I', n.nspname, c.conname) AS name
FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_namespace n ON n.oid = c.connamespace
WHERE c.condeferrable AND (c.conrelid = ANY (CAST(:tables AS text[])::regclass[]::oid[])
  OR c.confrelid = ANY (CAST(:tables AS text[])::regclass[]::oid[]))
"""
_SQLITE_REFERENCING = """
SELECT m.name AS name FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) f
WHERE m.type = 'table' AND (lower(f."table") = lower(:name) OR lower(m.name) = lower(:name))
"""
_SQLITE_VIOLATIONS = """SELECT "table" AS "table", rowid AS row, parent, fkid FROM pragma_foreign_key_check(:name)"""

_SQLITE_FOREIGN_KEY = 'SELECT "from" AS "column" FROM pragma_foreign_key_list(:name) WHERE id = :number ORDER BY seq'


async def _defer_constraints(sql: SqlSession, tables: Tables) -> Violations:
    """Check the constraints that allow it after all rows; returns what violates foreign keys of SQLite already."""
    if sql.dialect == "postgresql":
        await _set_constraints(sql, tables, "DEFERRED")
    if sql.dialect != "sqlite":
        return frozenset()
    await sql.control("PRAGMA defer_foreign_keys = ON")
    return await reference_violations(sql, tables)


async def _check_deferred_constraints(sql: SqlSession, tables: Tables, before: Violations) -> None:
    """Check now rather than at COMMIT, where a refusal would name no row."""
    if sql.dialect == "postgresql":
        try:
            await _in_savepoint(sql, lambda: _set_constraints(sql, tables, "IMMEDIATE"))
        except _RefusedRestore as refusal:
            raise CannotRestore("the rows of the step", str(refusal), may_heal=refusal.may_heal) from refusal
    if sql.dialect == "sqlite" and (why := await missing_reference(sql, tables, before)):
        raise CannotRestore("the rows of the step", why, may_heal=True)


async def _set_constraints(sql: SqlSession, tables: Tables, mode: str) -> None:
    """Set the constraints of these tables only: deferred triggers of others must not run before COMMIT."""
    quoted = [table.shape.quoted for table in tables.values()]
    if names := sorted(row["name"] for row in await sql.all(_POSTGRESQL_DEFERRABLE, {"tables": quoted})):
        await sql.control(f"SET CONSTRAINTS {', '.join(names)} {mode}")


async def missing_reference(sql: SqlSession, tables: Tables, before: Violations) -> str | None:
    """The table and the foreign key of SQLite that a row violates by now, but not ``before``; None if there is none."""
    violations = await reference_violations(sql, tables) - before
    if not violations:
        return None
    child, _, parent, number = min(violations, key=str)
    columns = await sql.all(_SQLITE_FOREIGN_KEY, {"name": child, "number": number})
    key = ", ".join(row["column"] for row in columns)
    return f"a row of {child} would refer to a missing row of {parent} (foreign key {key})"


async def reference_violations(sql: SqlSession, tables: Tables) -> Violations:
    """The rows of SQLite in these tables, or that refer to them, whose foreign key has no row."""
    names = {
        row["name"]
        for table in tables.values()
        for row in await sql.all(_SQLITE_REFERENCING, {"name": table.shape.name})
    }
    rows = [row for name in sorted(names) for row in await sql.all(_SQLITE_VIOLATIONS, {"name": name})]
    return frozenset((row["table"], row["row"], row["parent"], row["fkid"]) for row in rows)
