"""Follows values of a parsed statement through derived tables, common table expressions and sources of MERGE. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Relations:
    """``exp`` is sqlglot's module of expressions, which takes half a second to import."""

    def __init__(self, exp: Any) -> None:
        self._exp = exp

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

    def _all_rows(self, select: Any) -> Any:
        """The rows of which a query takes all columns, as a common table expression of VALUES is read."""
        exp, from_ = self._exp, select.args.get("from_")
        is_all = [type(value) for value in select.expressions] == [exp.Star] and not select.args.get("joins")
        rows = from_.this if from_ is not None and is_all else None
        return rows if isinstance(rows, exp.Values | exp.Subquery) else None

    def sources(self, column: Any) -> Iterator[Any]:
        """The expressions behind a column of a derived table, a common table expression or the source of a MERGE."""
        common, relations = self._scope(column)
        for relation in relations:
            if not column.table or relation.alias_or_name.lower() == column.table.lower():
                if self._is_function(relation):
                    yield relation.this
                    continue
                outputs = self._columns(relation, common)
                yield from (value for name, value in outputs if name == column.name.lower())

    def _is_function(self, relation: Any) -> bool:
        """Return whether a relation has the rows of a function, whose columns have any names."""
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
        exp, values = self._exp, list[Any]()
        for value in select.expressions:
            is_all = isinstance(value, exp.Star) or (isinstance(value, exp.Column) and isinstance(value.this, exp.Star))
            outputs = list(self._outputs(value)) if is_all else [value]
            values += outputs or [value]
        return values

    def _outputs(self, star: Any) -> Iterator[Any]:
        owner = star.table.lower() if isinstance(star, self._exp.Column) else ""
        common, relations = self._scope(star, own=True)
        for relation in relations:
            if not owner or relation.alias_or_name.lower() == owner:
                yield from (column for _, column in self._columns(relation, common))

    def _scope(self, node: Any, *, own: bool = False) -> tuple[dict[str, Any], list[Any]]:
        """The common table expressions that ``node`` sees, and the relations; ``own``: those of its query alone."""
        exp, relations, common = self._exp, list[Any](), dict[str, Any]()
        while node is not None:
            if with_ := node.args.get("with_"):
                common = {table.alias.lower(): table for table in with_.expressions} | common
            if isinstance(node, exp.Select | exp.Update | exp.Merge) and not (own and relations):
                from_ = node.args.get("from_")
                joins = [*(node.args.get("joins") or ())]
                if isinstance(node, exp.Update) and node.this is not None:
                    joins += node.this.args.get("joins") or ()
                of_node = [*([from_.this] if from_ else ()), *(join.this for join in joins), node.args.get("using")]
                relations += [relation for relation in of_node if relation is not None]
            node = node.parent
        return common, relations

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
