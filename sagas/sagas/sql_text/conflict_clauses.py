"""The ON CONFLICT clauses of an INSERT, of which SQLite takes several, and the general parser reads one. Pure."""

from __future__ import annotations

from sagas.sql_text.tokens import INSIGNIFICANT, split_tokens


def with_each_conflict(statement: str, dialect: str) -> list[str]:
    """For each ON CONFLICT clause of an insert of SQLite: the statement with only that one."""
    tokens = [token for token in split_tokens(statement, dialect) if token.kind not in INSIGNIFICANT]
    words = [statement[token.start : token.end].upper() for token in tokens]
    if dialect != "sqlite" or words[:1] != ["INSERT"]:
        return [statement]
    starts: list[int] = []
    depth, end = 0, len(statement)
    for at, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if depth == 0 and words[at : at + 2] == ["ON", "CONFLICT"] and words[at + 2 : at + 3] in (["("], ["DO"]):
            starts.append(tokens[at].start)
        if depth == 0 and starts and word == "RETURNING":
            end = tokens[at].start
            break
    if len(starts) < 2:
        return [statement]
    clauses = [statement[start:to] for start, to in zip(starts, [*starts[1:], end], strict=True)]
    return [f"{statement[: starts[0]]}{clause}\n{statement[end:]}" for clause in clauses]
