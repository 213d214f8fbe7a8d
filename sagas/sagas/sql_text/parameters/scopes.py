"""Expressions of MySQL and MariaDB in queries of their own, in which their names mean the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS

_DIALECT = SQLGLOT_DIALECTS["mariadb"]


class Scopes:
    """``exp`` is sqlglot's module of expressions."""

    def __init__(self, exp: Any) -> None:
        self._exp = exp

    def column(self, name: str, owner: str, within: Any) -> Any:
        """A column of a relation, or with the name `*` all of them, as if it stood in ``within``."""
        exp = self._exp
        column = exp.Column(this=exp.Star(), table=exp.to_identifier(owner)) if name == "*" else exp.column(name, owner)
        column.parent = within
        return column

    def typed(self, node: Any) -> str:
        """An expression as a subquery without rows, in a query for each one around it, so that its names are seen."""
        having = node.find_ancestor(self._exp.Having, self._exp.Query)
        outputs = having.parent.expressions if isinstance(having, self._exp.Having) else ()
        text = self._plain(node, {output.alias.lower(): output.this for output in outputs if output.alias})
        for before, after in self.levels(node):
            text = f"({before}{text}{after})"
        return text

    def levels(self, node: Any) -> Iterator[tuple[str, str]]:
        """The queries around an expression, the innermost first: the text before it and behind it."""
        exp, child, parent = self._exp, node, node.parent
        while parent is not None:
            relations = list[str]()
            if isinstance(parent, exp.Select | exp.Update | exp.Delete):
                relations = [*self._relations_of(parent)]
            elif isinstance(parent, exp.Insert) and isinstance(child, exp.OnConflict):
                target = parent.this.this if isinstance(parent.this, exp.Schema) else parent.this
                relations = [self._plain(target)]
            with_ = parent.args.get("with_")
            if relations or with_ is not None:
                common = f"{self._plain(with_)} " if with_ is not None else ""
                yield f"{common}select ", f"{' from ' if relations else ''}{''.join(relations)} where false"
            child, parent = parent, parent.parent

    def _relations_of(self, node: Any) -> Iterator[str]:
        exp = self._exp
        if isinstance(node, exp.Select):
            from_ = node.args.get("from_")
            if from_ is None:
                return
            yield self._plain(from_.this)
            yield from (f" {self._plain(join)}" for join in node.args.get("joins") or ())
        elif using := node.args.get("using"):
            yield ", ".join(self._plain(relation) for relation in using)
        else:
            yield self._plain(node.this)
            yield from (f" {self._plain(join)}" for join in node.args.get("joins") or ())

    def _plain(self, node: Any, outputs: Mapping[str, Any] | None = None) -> str:
        """The text without parameters: NULL has no type of its own. ``outputs`` have names, which HAVING may use."""
        exp = self._exp

        def without(part: Any) -> Any:
            if isinstance(part, exp.Column) and not part.table and part.name.lower() in (outputs or {}):
                return exp.Paren(this=(outputs or {})[part.name.lower()].copy())
            if not isinstance(part, exp.Placeholder):
                return part
            return exp.Literal.number(1) if isinstance(part.parent, exp.Limit | exp.Offset) else exp.Null()

        return node.copy().transform(without).sql(dialect=_DIALECT)
