"""Follows values of a parsed statement through derived tables, common table expressions and sources of MERGE. Pure.

A common table expression may be a statement that writes rows, whose RETURNING is then read as a query is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Relations:
    """``exp`` is sqlglot's module of expressions, which takes half a second to import."""

    def __init__(self, exp: Any) -> None:
        self._exp = exp
        self._of_stars: dict[tuple[str, int, str], Any] = {}
        """Columns that stand for a part of a star: each is one, so that a query which reads itself has an end."""
        self._expanding: set[int] = set()

    def rows(self, source: Any) -> Iterator[Sequence[Any]]:
        """The rows that are seen of a query or of VALUES, as expressions."""
        exp = self._exp
        match source:
            case exp.Values():
                yield from (row.expressions if isinstance(row, exp.Tuple) else [row] for row in source.expressions)
            case exp.Select() if (rows := self._all_rows(source)) is not None:
                yield from self.rows(rows)
            case exp.Select():
                yield self._expanded(source)
            case exp.SetOperation():
                yield from self.rows(source.this)
                yield from self.rows(source.expression)
            case exp.Subquery():
                yield from self.rows(source.this)
            case exp.Insert() | exp.Update() | exp.Delete() | exp.Merge() if returning := source.args.get("returning"):
                yield returning.expressions

    def is_star(self, value: Any) -> bool:
        """Return whether an expression stands for columns of which neither number nor order is seen."""
        exp = self._exp
        return isinstance(value, exp.Star) or (isinstance(value, exp.Column) and isinstance(value.this, exp.Star))

    def written(self, star: Any) -> Any:
        """The common table expression that writes a table and has ``RETURNING *``, if ``star`` selects from it and from
        nothing else; None if not.
        """
        exp = self._exp
        common, relations = self._scope(star, own=True)
        if len(relations) != 1 or not isinstance(relations[0], exp.Table) or self._alias_columns(relations[0]):
            return None
        table = common.get(relations[0].name.lower())
        if table is None or self._alias_columns(table):
            return None
        written, returning = table.this, table.this.args.get("returning")
        if returning is None or [type(value) for value in returning.expressions] != [exp.Star]:
            return None
        is_one = isinstance(written, exp.Update) and not list(self._relations(written))
        is_named = isinstance(written, exp.Insert) and isinstance(written.this, exp.Schema)
        return written if is_one or is_named else None

    def _all_rows(self, select: Any) -> Any:
        """The rows of which a query takes all columns, as a common table expression of VALUES is read."""
        exp, from_ = self._exp, select.args.get("from_")
        is_all = [type(value) for value in select.expressions] == [exp.Star] and not select.args.get("joins")
        rows = from_.this if from_ is not None and is_all else None
        return rows if isinstance(rows, exp.Values | exp.Subquery) else None

    def sources(self, column: Any) -> Iterator[Any]:
        """The expressions behind a column of a derived table, a common table expression or the source of a MERGE.

        A name of a relation alone is its whole row.
        """
        common, relations = self._scope(column)
        for relation in relations:
            if not column.table or relation.alias_or_name.lower() == column.table.lower():
                if self._is_function(relation):
                    yield relation.this
                    continue
                outputs = list(self._columns(relation, common))
                is_row = not column.table and relation.alias_or_name.lower() == column.name.lower()
                is_row = is_row and column.name.lower() not in (name for name, _ in outputs)
                for name, value in outputs:
                    if is_row or name == column.name.lower():
                        yield value
                    elif self.is_star(value):
                        owner = value.table if isinstance(value, self._exp.Column) else ""
                        yield self.column(column.name, value, owner)

    def _is_function(self, relation: Any) -> bool:
        """Return whether a relation is the result of a function, whose column names cannot be known."""
        exp = self._exp
        return isinstance(relation, exp.Table) and isinstance(relation.this, exp.Anonymous | exp.Dot)

    def uses(self, tree: Any, node: Any) -> list[Any]:
        """The columns that have the value of ``node`` outside the derived table in which it stands, by their names."""
        exp = self._exp
        common = {table.alias.lower(): table for table in tree.find_all(exp.CTE)}
        relations = [owner.this for owner in tree.find_all(exp.From, exp.Join)]
        relations += [merge.args.get("using") for merge in tree.find_all(exp.Merge)]
        within = {id(node)}
        while (node := node.parent) is not None:
            within.add(id(node))
        columns = [
            column for relation in relations if relation is not None for column in self._columns(relation, common)
        ]
        names = {name for name, value in columns if id(value) in within}
        return [column for column in tree.find_all(exp.Column) if column.name.lower() in names]

    def _expanded(self, select: Any) -> Sequence[Any]:
        """The expressions of a query, with those behind each star where they are seen."""
        if id(select) in self._expanding:
            return select.expressions
        self._expanding.add(id(select))
        values = list[Any]()
        for value in select.expressions:
            values += self._outputs(value) if self.is_star(value) else [value]
        self._expanding.remove(id(select))
        return values

    def _outputs(self, star: Any) -> Sequence[Any]:
        """The columns that a star stands for; the star itself, if one of its relations does not show its columns."""
        exp = self._exp
        owner = star.table.lower() if isinstance(star, exp.Column) else ""
        common, relations = self._scope(star, own=True)
        outputs: list[Any] = []
        for relation in relations:
            if owner and relation.alias_or_name.lower() != owner:
                continue
            columns = list(self._columns(relation, common))
            names = [name for name, _ in columns]
            own = [*dict.fromkeys(names)]
            if not own or any(self.is_star(value) for _, value in columns):
                return [star]
            if len({id(value.parent) for _, value in columns}) == 1 and not isinstance(
                columns[0][1].parent, exp.Values
            ):
                outputs += [value for _, value in columns]  # of one row
            elif names == own * (len(names) // len(own)):
                outputs += [self.column(name, star, relation.alias_or_name) for name in own]
            else:
                return [star]
        return outputs or [star]

    def column(self, name: str, star: Any, owner: str = "") -> Any:
        """A column of the relations of a star, as if it stood in its place."""
        key = (name.lower(), id(star), owner)
        if (column := self._of_stars.get(key)) is None:
            column = self._of_stars[key] = self._exp.column(name, table=owner or None)
            column.parent, column.arg_key = star.parent, star.arg_key
        return column

    def _scope(self, node: Any, *, own: bool = False) -> tuple[dict[str, Any], list[Any]]:
        """The common table expressions that ``node`` sees, and the relations; ``own``: those of its query alone."""
        exp, relations, common = self._exp, list[Any](), dict[str, Any]()
        while node is not None:
            if with_ := node.args.get("with_"):
                common = {table.alias.lower(): table for table in with_.expressions} | common
            if isinstance(node, exp.OnConflict) and isinstance(node.parent.expression, exp.Select):
                relations += self._relations(node.parent.expression)  # MySQL sees the rows of the query there
            if isinstance(node, exp.Select | exp.Update | exp.Delete | exp.Merge) and not (own and relations):
                relations += self._relations(node)
            node = node.parent
        return common, relations

    def _relations(self, node: Any) -> Iterator[Any]:
        from_, using, joins = node.args.get("from_"), node.args.get("using"), [*(node.args.get("joins") or ())]
        if isinstance(node, self._exp.Update) and node.this is not None:
            joins += node.this.args.get("joins") or ()
        if from_ is not None:
            yield from_.this
        yield from (join.this for join in joins)
        if using:
            yield from using if isinstance(using, list) else [using]

    def _columns(self, relation: Any, common: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Each value of the rows of a relation, with the name of its column."""
        exp, names = self._exp, [column.name.lower() for column in self._alias_columns(relation)]
        body = relation.this if isinstance(relation, exp.Lateral) else relation
        if isinstance(relation, exp.Table):
            body = common.get(relation.name.lower())
            if body is None:
                return
            names = names or [column.name.lower() for column in self._alias_columns(body)]
            body = body.this
        if isinstance(body, exp.Unnest):
            names = names or [relation.alias_or_name.lower()] * len(body.expressions)
            yield from zip(names, body.expressions, strict=False)
            return
        for row in self.rows(body):
            # Those of the first query are the names of a union.
            names = names or [
                f"column{number}" if isinstance(body, exp.Values) else value.alias_or_name.lower() or f"column{number}"
                for number, value in enumerate(row, 1)
            ]
            yield from zip(names, row, strict=False)

    def _alias_columns(self, relation: Any) -> Sequence[Any]:
        alias = relation.args.get("alias")
        return alias.columns if isinstance(alias, self._exp.TableAlias) else ()
