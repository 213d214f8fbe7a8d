"""Checks the statements of guarded steps: single ones that neither end the transaction nor change the schema.

The guard relies on one local transaction. A COMMIT inside it would commit half an effect, and MySQL commits
implicitly on every DDL statement. So the leading keyword must be on an allowlist.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from sagas.sql_text.parsed import ParsedSql, SeveralStatements, parse_sql
from sagas.sql_text.tokens import RefusedStatement, SqlToken

_ALLOWED = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "VALUES", "WITH"})
_ALLOWED_IN_POSTGRESQL = frozenset({"CALL", "NOTIFY", "LOCK"})
"""In a transaction block PostgreSQL refuses a procedure that commits, and its LOCK does not commit implicitly."""

_TRANSACTION_KEYWORDS = frozenset(
    "BEGIN START COMMIT END ROLLBACK ABORT SAVEPOINT RELEASE PREPARE EXECUTE SET RESET XA UNLOCK".split()  # noqa: SIM905
)


@lru_cache(maxsize=2048)
def parse_guarded(statement: str, dialect: str) -> ParsedSql:
    """Parse a statement of a guarded step as its database reads it.

    ``dialect`` is SQLAlchemy's name of the database. Raises :class:`RefusedStatement`.
    """
    parsed = parse_sql(statement, dialect)
    keywords = parsed.keywords
    allowed = _ALLOWED | _ALLOWED_IN_POSTGRESQL if dialect == "postgresql" else _ALLOWED
    first = keywords[0] if keywords else ""
    if first not in allowed:
        kind = (
            "controls the transaction" if first in _TRANSACTION_KEYWORDS else "is neither a query nor a change of rows"
        )
        raise RefusedStatement(
            f"{first or 'this text'} is refused in a guarded step: it {kind}",
            help="a step is one transaction of the guard; change the schema with a migration tool",
        )
    main = main_keyword(parsed)
    if main == "SELECT" and "INTO" in keywords:
        raise RefusedStatement("SELECT … INTO is refused in a guarded step: it creates a table or a file")
    return parsed


_QUERIES = frozenset({"SELECT", "VALUES", "TABLE", "WITH"})
_NO_QUERIES = frozenset("INSERT UPDATE DELETE MERGE REPLACE CREATE DROP ALTER TRUNCATE".split())  # noqa: SIM905


@lru_cache(maxsize=2048)
def parse_query(text: str, dialect: str) -> ParsedSql:
    """A query of a job: of an input, of an audit, or the SQL of the job. Raises :class:`RefusedStatement`.

    PostgreSQL embeds it in a statement of the engine; of Spark's statements only those that write are refused.
    """
    try:
        parsed = parse_sql(text, dialect)
    except SeveralStatements as error:
        raise SeveralStatements(error.offset, "write one query") from None
    first = next(parsed.significant())
    word = parsed.text_of(first).upper()
    written = written_rows(parsed) if first.kind == "word" else None
    is_other = first.kind == "word" and (word not in _QUERIES if dialect == "postgresql" else word in _NO_QUERIES)
    if written is not None or is_other:
        raise RefusedStatement(
            f"{written or word} is refused here: a query only reads rows", help="write a SELECT", offset=first.start
        )
    return parsed


_LOCKS = (("FOR", "UPDATE"), ("FOR", "NO"), ("FOR", "SHARE"), ("FOR", "KEY"))
_CHANGES = ("INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE")


def written_rows(parsed: ParsedSql) -> str | None:
    """The keyword that changes or locks rows in the statement, also inside a CTE; None if it only reads."""
    if (main := main_keyword(parsed)) in _CHANGES:
        return main
    keywords = parsed.keywords
    if parsed.dialect == "postgresql" and any(pair in _LOCKS for pair in pairwise(keywords)):
        return "SELECT … FOR UPDATE"
    words = [parsed.text_of(token).upper() for token in parsed.significant()]
    for start, bracket, word in zip(words, words[1:], words[2:], strict=False):
        if start in ("AS", "MATERIALIZED") and bracket == "(" and word in _CHANGES:
            return word
    return None


_AFTER_ORDER = frozenset("ASC DESC NULLS LIMIT OFFSET FETCH FOR ROWS RANGE GROUPS".split())  # noqa: SIM905


def constant_orders(parsed: ParsedSql) -> Iterator[SqlToken]:
    """The parameters that are a whole item of an ORDER BY: one value for all rows, which orders nothing."""
    tokens = list(parsed.significant())
    texts = [*(parsed.text_of(token).upper() for token in tokens), ""]
    depth, lists = 0, set[int]()
    for index, token in enumerate(tokens):
        text = texts[index]
        if token.kind == "open":
            depth += 1
        elif token.kind == "close":
            lists.discard(depth)
            depth -= 1
        elif text == "BY" and index > 0 and texts[index - 1] == "ORDER":
            lists.add(depth)
        elif token.kind == "word" and text in _AFTER_ORDER - {"ASC", "DESC", "NULLS"}:
            lists.discard(depth)
        elif token.kind == "parameter" and depth in lists and texts[index - 1] in ("BY", ","):
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            if following is None or texts[index + 1] in (",", ")", *_AFTER_ORDER):
                yield token


def main_keyword(parsed: ParsedSql) -> str:
    """The keyword that says what the statement does: the one behind its CTEs."""
    first, *others = parsed.keywords
    return next((keyword for keyword in others if keyword in _ALLOWED), first) if first == "WITH" else first
