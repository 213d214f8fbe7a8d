"""The trees of SQL that sqlglot reads, also where it takes a name for one of its keywords.

It reads the words of all databases: `keep` is a clause of Oracle, and a function that a project has written in
PostgreSQL may be called so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sagas.sql_text.calls import NO_FUNCTIONS

SQLGLOT_DIALECTS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}

_NAMES = {
    "postgresql": "alter describe drop function glob partitioned_by qualify regexp revoke rlike rollback uncache xor",
    "mysql": "any charset function glob ilike notnull partitioned_by qualify rollback tablesample uncache unnest",
    "sqlite": "any describe fetch function grant ilike lateral partitioned_by qualify revoke rlike rollback tablesample"
    " uncache unnest xor",
}
"""Keywords of sqlglot that the database takes for names of columns and tables, also without quotes."""

_NO_CALLS = NO_FUNCTIONS | {"insert", "interval", "key"}

_BEFORE_OPERANDS = frozenset("= <> != < > <= >= + - * / % || , ( select and or not when then else".split())  # noqa: SIM905
"""After these, `over (` is the call of a function, and no clause of the one before."""


def parse_trees(statement: str, dialect: str, *, of_shape: bool = False) -> list[Any]:
    """The trees of the statements in a text. ``dialect`` is SQLAlchemy's name of it.

    ``of_shape``: only the clauses count, and not which functions are called with which arguments. Raises sqlglot's
    SqlglotError.
    """
    import sqlglot  # takes half a second
    from sqlglot.errors import ParseError, SqlglotError

    read = sqlglot.Dialect.get_or_raise(SQLGLOT_DIALECTS[dialect])
    tokens = _without_overriding(sqlglot.tokenize(statement, read=read), statement, dialect)
    try:
        return _trees(read.parser(), tokens, statement)
    except RecursionError:
        raise ParseError("it is nested too deeply to be understood") from None
    except (SqlglotError, AttributeError) as error:  # AttributeError: of a function with too few arguments
        refusal = error if isinstance(error, SqlglotError) else ParseError(str(error))
    parser = _shape_parser(read.parser_class) if of_shape else read.parser_class
    try:
        named = _with_names(tokens, statement, dialect, parser)
        return _trees(parser(dialect=read), _with_plain_calls(named, statement) if of_shape else named, statement)
    except (SqlglotError, AttributeError, RecursionError):
        raise refusal from None


def _without_overriding(tokens: Sequence[Any], statement: str, dialect: str) -> Sequence[Any]:
    """The tokens without `OVERRIDING SYSTEM VALUE` of an insert, which the parser does not know and no caller needs."""
    words = [statement[token.start : token.end + 1].lower() for token in tokens]
    for at in range(len(words) if dialect == "postgresql" else 0):
        if words[at : at + 3] in (["overriding", "system", "value"], ["overriding", "user", "value"]):
            return [*tokens[:at], *tokens[at + 3 :]]
    return tokens


def _trees(parser: Any, tokens: Sequence[Any], statement: str) -> list[Any]:
    from sqlglot import exp

    trees = [tree for tree in parser.parse(tokens, statement) if tree is not None]
    for tree in trees:
        for mark in [node for node in tree.find_all(exp.Placeholder) if node.this is None]:
            mark.replace(exp.Null())  # a `?`, which is not a parameter: the database refuses it
    return trees


@lru_cache(maxsize=4)
def _shape_parser(parser: Any) -> Any:
    """A parser that knows no functions but those with words among their arguments, such as `cast`."""
    return type("ShapeParser", (parser,), {"FUNCTIONS": {}})


def _with_plain_calls(tokens: Sequence[Any], statement: str) -> Sequence[Any]:
    """The tokens with another name for each quoted function, as the parser has an own syntax also for `"match"(…)`."""
    from sqlglot import TokenType

    for at, token in enumerate(tokens[:-1]):
        if tokens[at + 1].token_type is TokenType.L_PAREN and statement[token.start] in '"`':
            token.text = f"called_{token.text}"
    return tokens


def _with_names(tokens: Sequence[Any], statement: str, dialect: str, parser: Any) -> Sequence[Any]:
    """The tokens, with those words as names that are not keywords at their place in this database."""
    from sqlglot import TokenType

    names = _NAMES["mysql" if dialect == "mariadb" else dialect].split()
    for at, token in enumerate(tokens[:-1]):
        word = statement[token.start : token.end + 1].lower()
        is_over = word == "over" and at > 0 and tokens[at - 1].text.lower() in _BEFORE_OPERANDS
        is_open = tokens[at + 1].token_type is TokenType.L_PAREN
        is_call = is_open and word.isidentifier() and (word not in _NO_CALLS or is_over)
        is_name = at > 0 and word in names and tokens[at + 1].token_type is not TokenType.L_PAREN
        if is_name or (is_call and token.token_type not in parser.FUNC_TOKENS):
            token.token_type = TokenType.IDENTIFIER
    if tokens and statement[tokens[-1].start : tokens[-1].end + 1].lower() in names:
        tokens[-1].token_type = TokenType.IDENTIFIER
    return tokens
