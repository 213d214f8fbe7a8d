"""Parameters of a SQL statement in a division whose result depends on how a number is written. Pure.

PostgreSQL and SQLite divide integers to an integer, so that 10 / 3 is 3 and 10.0 / 3 is 3.33; MySQL and MariaDB give
the quotient four digits more than the dividend has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from sagas.sql_text.parameters.relations import Relations
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.syntax_trees import parse_trees


@lru_cache(maxsize=1024)
def divided_parameters(statement: ParsedSql) -> tuple[str, ...]:
    """The parameters without a cast that are operands of a division, or of arithmetic inside one."""
    if not statement.parameters or "/" not in statement.source:
        return ()
    from sqlglot import exp  # takes half a second
    from sqlglot.errors import SqlglotError

    try:
        trees = parse_trees(statement.source, statement.dialect)
    except SqlglotError:
        return ()
    names: dict[str, None] = {}
    relations = Relations(exp)
    for tree in trees:
        for division in tree.find_all(exp.Div):
            operands = [*_operands(division.this, relations, exp), *_operands(division.expression, relations, exp)]
            is_exact = any(_has_fraction(operand, exp) for operand in operands)
            if not is_exact or statement.dialect in ("mysql", "mariadb"):
                names |= {operand.name: None for operand in operands if isinstance(operand, exp.Placeholder)}
    return tuple(names)


def _operands(node: Any, relations: Relations, exp: Any, visited: frozenset[int] = frozenset()) -> Iterator[Any]:
    """The operands, also those behind a column of a common table expression or a derived table."""
    parts: Iterable[Any] = ()
    if isinstance(node, exp.Paren | exp.Neg | exp.Coalesce | exp.Add | exp.Sub | exp.Mul | exp.Div | exp.Alias):
        parts = node.iter_expressions()
    elif isinstance(node, exp.Subquery | exp.Select):
        parts = [value for row in relations.rows(node) for value in row]
    elif isinstance(node, exp.Column) and id(node) not in visited:
        parts, visited = list(relations.sources(node)), visited | {id(node)}
    if parts:
        for part in parts:
            yield from _operands(part, relations, exp, visited)
    else:
        yield node


def _has_fraction(node: Any, exp: Any) -> bool:
    """Return whether the operand is certainly no integer, so that the division is none of integers."""
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.REAL_TYPES
    return isinstance(node, exp.Literal) and node.is_number and not node.is_int


def instead_of_divided(parameter: str, dialect: str) -> str:
    """The advice for a division whose result depends on how the number is written."""
    name = f":{parameter}"
    match dialect:
        case "postgresql":
            return f"write `{name}::numeric` for the exact quotient, or `{name}::bigint` for a division of integers"
        case "sqlite":
            return f"write `cast({name} as real)` for the quotient, or `cast({name} as integer)` for one of integers"
    return f"write `cast({name} as decimal(20, 6))` with the digits that you need"
