"""Names the clauses of UPDATE and DELETE that the general parser does not read, so that a message can. Pure."""

from __future__ import annotations

from typing import Any

from sagas.sql_text.dialects import NAMES
from sagas.sql_text.tokens import INSIGNIFICANT, split_tokens

_CLAUSES = ("FOR PORTION OF", "CURRENT OF")
_WORDS = {"UPDATE": ("IGNORE",), "DELETE": ("IGNORE", "QUICK", "HISTORY"), "INSERT": ("DELAYED",)}
"""Words of MySQL and MariaDB after the first one."""


def unsupported_clause(statement: str, dialect: str) -> str | None:
    """The clause, such as `FOR PORTION OF in UPDATE`; None if there is none of them."""
    tokens = [token for token in split_tokens(statement, dialect) if token.kind not in INSIGNIFICANT]
    words = [statement[token.start : token.end].upper() if token.kind == "word" else "" for token in tokens]
    verb = words[0] if words else ""
    if verb not in _WORDS:
        return None
    following = [word for word in words[1:4] if word != "LOW_PRIORITY"]
    if dialect in ("mysql", "mariadb") and following[:1] and following[0] in _WORDS[verb]:
        return f"{following[0]} in {verb}"
    if verb == "UPDATE" and following[:1] == ["OR"]:
        return f"{' '.join(following[:2])} in {verb}"
    sequence = f" {' '.join(words)} "
    return next((f"{clause} in {verb}" for clause in _CLAUSES if f" {clause} " in sequence), None)


def upsert_of_others(conflict: Any, dialect: str) -> str | None:
    """Why a clause for conflicts, as the parser has read it, is that of other databases; None if it is not."""
    mysql = dialect in ("mysql", "mariadb")
    if conflict is None or bool(conflict.args.get("duplicate")) == mysql:
        return None
    clauses = ("ON CONFLICT", "ON DUPLICATE KEY UPDATE")
    clause, instead = clauses if mysql else clauses[::-1]
    return f"{NAMES[dialect]} has no {clause}; write {instead}"
