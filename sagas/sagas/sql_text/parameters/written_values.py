"""Follows values through the columns that a statement itself writes, as `excluded.x` and RETURNING read them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sagas.sql_text.parameters.relations import Relations

_WHOLE_ROW = "*"
"""The name of a column that stands for all of them, as in `excluded.*`."""


class WrittenValues:
    """``exp`` is sqlglot's module of expressions, ``dialect`` its name of the dialect."""

    def __init__(self, dialect: str, exp: Any, relations: Relations) -> None:
        self._exp, self._relations = exp, relations
        self._in_order = dialect == "mysql"
        """An assignment sees the values of those before it."""

    def sources(self, node: Any) -> Iterator[Any]:
        """The expressions of which the statement makes the value that the column ``node``, or `values(x)`, has there.

        Where an insert names no columns, these are all that may be the column's. A row has those of all columns:
        `excluded` and `excluded.*`, and in RETURNING the table.
        """
        exp = self._exp
        column = node.expressions[0] if self.is_inserted(node) else node
        owner = column.table.lower() if isinstance(column, exp.Column) and column is node else ""
        name, child, parent = column.name.lower(), node, node.parent
        while parent is not None:
            match parent:
                case exp.OnConflict():
                    yield from self._of_conflict(node, name, owner, child, parent)
                    return
                case exp.Returning():
                    yield from self._of_returning(name, owner, parent.parent)
                    return
                case exp.Update() if self._in_order and child.arg_key == "expressions":
                    is_any_order = bool(parent.this.args.get("joins"))
                    yield from self._assigned(parent.expressions, name, owner, None if is_any_order else child)
                    return
                case exp.Tuple() if self._in_order and isinstance(parent.parent, exp.Values):
                    insert = parent.parent.parent
                    if isinstance(insert, exp.Insert):
                        yield from self._of_row(self._columns(insert), parent.expressions[: child.index], name)
                    return
            child, parent = parent, parent.parent

    def is_inserted(self, node: Any) -> bool:
        """Return whether ``node`` is the `values(x)` of MySQL, or the `value(x)` of MariaDB."""
        exp = self._exp
        return (
            isinstance(node, exp.Anonymous)
            and node.name.lower() in ("values", "value")
            and len(node.expressions) == 1
            and node.find_ancestor(exp.OnConflict) is not None
        )

    def pairs(self, assignments: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """The column and the value of each assignment; None: a value that is not seen."""
        exp = self._exp
        for node in assignments:
            if not isinstance(node, exp.EQ):
                continue
            columns, values = [node.this], [node.expression]
            if isinstance(node.this, exp.Tuple | exp.Paren):
                columns = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this.this]
                values = self._row_values(node.expression)
            yield from zip(columns, [*values, *[None] * len(columns)], strict=False)

    def element(self, column: Any) -> Any:
        """The column of which an assignment writes an item or a field."""
        while isinstance(column, self._exp.Bracket | self._exp.Dot | self._exp.Paren):
            column = column.this
        return column

    def target(self, written: Any) -> Any:
        """The table that an insert, update or merge writes."""
        return written.this.this if isinstance(written.this, self._exp.Schema) else written.this

    def written_columns(self, written: Any) -> list[str]:
        """The columns that an insert, which names them, or an update writes."""
        conflict = written.args.get("conflict")
        assignments = written.expressions if isinstance(written, self._exp.Update) else []
        assignments = [*assignments, *(conflict.expressions if conflict is not None else ())]
        names = [*(self._columns(written) or ())] if isinstance(written, self._exp.Insert) else []
        names += [self.element(column).name for column, _ in self.pairs(assignments)]
        return [*dict.fromkeys(names)]

    def is_row(self, node: Any) -> bool:
        """Return whether an expression is a row: `(a, b)` or `row(a, b)`."""
        exp = self._exp
        return isinstance(node, exp.Tuple) or (isinstance(node, exp.Anonymous) and node.name.lower() == "row")

    def _row_values(self, value: Any) -> Sequence[Any]:
        exp = self._exp
        if self.is_row(value):
            return value.expressions
        match value:
            case exp.Subquery():
                return next(iter(self._relations.rows(value)), [])
            case exp.Paren():
                return [value.this]
        return []

    def _of_conflict(self, node: Any, name: str, owner: str, child: Any, conflict: Any) -> Iterator[Any]:
        insert = conflict.parent
        if child.arg_key != "expressions":
            return
        given = insert.expression.args.get("alias") if insert.expression is not None else None
        alias: Any = given or self._exp.TableAlias(this=self._exp.to_identifier("excluded"))
        names = [column.name.lower() for column in alias.columns]
        if name in names and owner in ("", alias.name.lower()):
            yield from self._of_rows(insert, names, name)
        elif (alias.name.lower() == owner and name == _WHOLE_ROW) or (alias.name.lower() == name and not owner):
            yield from self._of_rows(insert, self._columns(insert), _WHOLE_ROW)
        elif self.is_inserted(node) or owner == alias.name.lower():
            yield from self._of_rows(insert, self._columns(insert), name)
        elif self._in_order:
            yield from self._assigned(conflict.expressions, name, owner, child)

    def _of_returning(self, name: str, owner: str, written: Any) -> Iterator[Any]:
        exp, rows = self._exp, ("new", self.target(written).alias_or_name.lower())
        if owner not in ("", *rows):
            return
        if not owner and name in rows and name not in map(str.lower, self.written_columns(written)):
            name = _WHOLE_ROW
        match written:
            case exp.Insert():
                yield from self._of_rows(written, self._columns(written), name)
                if (conflict := written.args.get("conflict")) is not None:
                    yield from self._assigned(conflict.expressions, name, "", None)
            case exp.Update():
                yield from self._assigned(written.expressions, name, "", None)
            case exp.Merge():
                for when in written.args["whens"].expressions:
                    then = when.args.get("then")
                    if isinstance(then, exp.Update):
                        yield from self._assigned(then.expressions, name, "", None)
                    elif isinstance(then, exp.Insert) and then.expression is not None:
                        is_named = isinstance(then.this, exp.Tuple)
                        columns = [column.name.lower() for column in then.this.expressions] if is_named else None
                        yield from self._of_row(columns, then.expression.expressions, name)

    def _columns(self, insert: Any) -> Sequence[str] | None:
        schema = insert.this
        return [column.name.lower() for column in schema.expressions] if isinstance(schema, self._exp.Schema) else None

    def _of_rows(self, insert: Any, columns: Sequence[str] | None, name: str) -> Iterator[Any]:
        for row in self._relations.rows(insert.expression):
            yield from self._of_row(columns, row, name)

    def _of_row(self, columns: Sequence[str] | None, row: Sequence[Any], name: str) -> Iterator[Any]:
        """The values of a row that may be the column's; ``columns`` is None if the insert does not name them."""
        if columns is None or name == _WHOLE_ROW or any(self._relations.is_star(value) for value in row):
            yield from row
        else:
            yield from (value for column, value in zip(columns, row, strict=False) if column == name)

    def _assigned(self, assignments: Sequence[Any], name: str, owner: str, before: Any) -> Iterator[Any]:
        """The values that a column gets; ``before``: those of the assignments before this one alone."""
        seen = list(assignments)
        if before is not None:
            seen = seen[: next(at for at, node in enumerate(seen) if node is before)]
        for column, value in self.pairs(seen):
            element = self.element(column)
            other = element.table.lower() if isinstance(element, self._exp.Column) else ""
            is_same = name in (_WHOLE_ROW, element.name.lower()) and not (owner and other and owner != other)
            if value is not None and (is_same or other == name):  # or a field of the column
                yield value
