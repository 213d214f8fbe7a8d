"""The shape of a table in its database: its key, its columns, and why a change of it could not be undone automatically.

Read in every transaction, because a migration may add a trigger at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sagas.sql_text.row_changes import NotImageable, RowChange

TEXT_ALIAS = "saga_image_"
"""Prefix of the names of the columns of images in a result."""

UNCERTAIN = "what its values have become depends on the statement and the session that changed it"
"""Why values of a column are not converted to its present type."""


DeclaredType = Mapping[str, Any]
"""The ``type`` of a column, and its ``position`` in the table or its number; ``parts``: see :class:`Column`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that holds a value of its own, and how it is read as text and written from text.

    ``type`` is the declared type, with everything that decides how text is read. ``read`` is an expression of the
    exact text of the value; ``write`` is an expression with one ``{}`` for the parameter with this text.
    ``canonical`` is an expression for text that two values of a key share if and only if the database says they are
    equal; None if there is none. ``compare`` is the operator and the right side of a comparison with the value of such
    a text, as ``write``. ``rewritten``: the database assigns it at every update that does not. ``parts``: on
    PostgreSQL, the user-defined types in ``type``, as the module ``user_types`` describes them. ``number``: on
    PostgreSQL, its identity in the table, which no other column ever gets; None if there is none.
    """

    name: str
    quoted: str
    type: str
    read: str
    write: str
    canonical: str | None
    compare: str
    rewritten: bool = False
    parts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    number: int | None = None

    def has_type(self, declared: DeclaredType) -> bool:
        """True if texts of that type are the same values in this column."""
        return declared["type"] == self.type and (declared.get("parts") or {}) == self.parts


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of another table to this one with an action that changes rows by itself.

    ``columns`` of this table; ``on_delete`` and ``on_update``: it has such an action.
    """

    table: str
    columns: tuple[str, ...]
    on_delete: bool
    on_update: bool


@dataclass(frozen=True, slots=True)
class TableShape:
    """One table. ``name`` is unique in its database; ``quoted`` is the name for statements.

    ``key`` are the columns of the primary key. ``unique_keys`` are those of all unique keys (MySQL only).
    ``obstacles`` are reasons against any change; ``insert_obstacle`` and ``delete_obstacle`` against inserts or deletes
    only; ``doubts`` are reasons why some rows may be refused. ``lock_table`` has the locks of its rows, whichever
    connection changes them. ``returns_updates``: an UPDATE can return the keys of its rows.
    """

    name: str
    quoted: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    references: tuple[ForeignKey, ...] = ()
    unique_keys: tuple[tuple[str, ...], ...] = ()
    obstacles: tuple[str, ...] = ()
    insert_obstacle: str | None = None
    delete_obstacle: str | None = None
    doubts: tuple[str, ...] = ()
    overriding: str = ""
    returns_updates: bool = False
    lock_table: str = "saga_row_lock"
    by_name: Mapping[str, Column] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name: column for column in self.columns})

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.by_name[name] for name in self.key)

    @property
    def types(self) -> dict[str, DeclaredType]:
        """The declared type of each column."""
        return {
            column.name: {
                "position": position if column.number is None else column.number,
                "type": column.type,
                **({"parts": column.parts} if column.parts else {}),
            }
            for position, column in enumerate(self.columns)
        }

    def named(self, name: str) -> Column | None:
        """The column that an author's spelling means; unquoted names ignore case."""
        if name in self.by_name:
            return self.by_name[name]
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)


_ROW_NUMBERS = frozenset(("rowid", "oid", "_rowid_"))
"""The names by which a statement of SQLite reaches the number of a row, unless a column has the name."""


def check_change(shape: TableShape, change: RowChange) -> None:
    """Raise :class:`NotImageable` if the statement's effect could not be undone from images of the table's rows."""
    for obstacle in shape.obstacles:
        raise NotImageable(obstacle)
    if not shape.key:
        raise NotImageable(f"the table {shape.name} has no primary key")
    if any(name not in shape.by_name for name in shape.key):
        raise NotImageable(f"the primary key of {shape.name} has a generated column")
    for column in shape.columns:
        if column.name.lower().startswith(TEXT_ALIAS):
            raise NotImageable(f"the column {column.name} of {shape.name} has a name that the engine uses itself")
    for column in shape.key_columns:
        if column.canonical is None:
            raise NotImageable(
                f"two values of the key column {column.name} of {shape.name} ({column.type}) may be equal and differ as"
                " text, so its rows cannot be told apart"
            )
    if change.kind in ("insert", "merge") and shape.insert_obstacle:
        raise NotImageable(shape.insert_obstacle)
    if change.kind in ("delete", "merge") and shape.delete_obstacle:
        raise NotImageable(shape.delete_obstacle)
    assigned = _assigned(change)
    for name in sorted(assigned & _ROW_NUMBERS):
        if shape.named(name) is None:
            raise NotImageable(f"it assigns {name}, the hidden number of the rows of {shape.name}: no image has it")
    changed = changes_key(shape, change)
    if changed and not (change.kind == "update" and shape.returns_updates):
        raise NotImageable(f"it changes the primary key of {shape.name} ({', '.join(changed)})")
    for reference in shape.references:
        # The undo of an insert is a delete, and that of a delete an insert, which no foreign key reacts to. A row with
        # another primary key is restored as a deleted and an inserted row.
        if reference.on_update and assigned & {name.lower() for name in reference.columns}:
            raise NotImageable(
                f"an update of {shape.name} changes rows of {reference.table} (ON UPDATE of a foreign key)"
            )
        if reference.on_delete and (changed or change.kind in ("insert", "delete", "merge")):
            deletes = f"a delete from {shape.name}"
            subject = deletes if change.kind in ("delete", "merge") else f"its undo, {deletes},"
            raise NotImageable(f"{subject} changes rows of {reference.table} (ON DELETE of a foreign key)")


def changes_key(shape: TableShape, change: RowChange) -> Sequence[str]:
    """The columns of the primary key that a statement assigns to existing rows."""
    assigned = _assigned(change)
    return [name for name in shape.key if name.lower() in assigned]


def _assigned(change: RowChange) -> set[str]:
    """The columns that a statement assigns to existing rows, in lower case."""
    columns = change.columns if change.kind in ("update", "merge") else ()
    return {name.lower() for name in (*columns, *(change.conflict.updates if change.conflict else ()))}
