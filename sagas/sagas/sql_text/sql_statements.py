"""Checks the statements of guarded steps: single ones that neither end the transaction nor change the schema.

The guard relies on one local transaction. A COMMIT inside it would commit half an effect, and MySQL commits
implicitly on every DDL statement. So the leading keyword must be on an allowlist.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.sql_text.tokens import RefusedStatement

_ALLOWED = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "VALUES", "WITH"})
_ALLOWED_IN_POSTGRESQL = frozenset({"CALL", "NOTIFY", "LOCK"})
"""In a transaction block PostgreSQL refuses a procedure that commits, and its LOCK does not commit implicitly."""

_TRANSACTION_KEYWORDS = frozenset(
    "BEGIN START COMMIT END ROLLBACK ABORT SAVEPOINT RELEASE PREPARE EXECUTE SET RESET XA UNLOCK".split()  # noqa: SIM905
)


@lru_cache(maxsize=2048)
def parse_guarded(statement: str, dialect: str) -> ParsedSql:
    """A statement of a guarded step, as its database reads it.

    ``dialect`` is SQLAlchemy's name of it. Raises :class:`RefusedStatement`.
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


def main_keyword(parsed: ParsedSql) -> str:
    """The keyword that says what the statement does: the one behind its CTEs."""
    first, *others = parsed.keywords
    return next((keyword for keyword in others if keyword in _ALLOWED), first) if first == "WITH" else first
