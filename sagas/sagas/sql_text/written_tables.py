"""Statements that write rows, as far as the general parser of SQL does not read them. Pure.

Words and forms that it does not know are taken out where the assignments stay the same. In what it still cannot read,
the tables are found by the word before each, and the parameters that may reach their columns by the words around them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.sql_statements import main_keyword
from sagas.sql_text.syntax_trees import parse_trees
from sagas.sql_text.tokens import INSIGNIFICANT, SqlToken

_VERBS = ("INSERT", "UPDATE", "MERGE", "REPLACE")
_MODIFIERS = ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE")
_CLAUSES = frozenset("SELECT VALUES SET WHERE ON HAVING USING FROM LIMIT OFFSET RETURNING UPDATE THEN WHEN".split())  # noqa: SIM905
_COMPARING = frozenset(("WHERE", "ON", "HAVING", "LIMIT", "OFFSET", "RETURNING", "WHEN"))

PASSING_FUNCTIONS = frozenset(
    """
    values row array coalesce ifnull nvl nullif greatest least abs if iif max min sum any_value unnest array_append
    array_prepend array_cat array_replace array_fill array_agg multirange
    nvl2 elt collate first_value last_value nth_value lag lead trim_scale decode_oracle likely unlikely likelihood
    binary name_const make_set text bpchar timestamptz
    """.split()  # noqa: SIM905
)
"""Functions and words before a parenthesis that give their arguments on with the same digits."""

PASSING_TYPES = frozenset("numeric decimal dec text varchar timestamp time interval".split())  # noqa: SIM905
"""Types that, without a precision, hold all of a value; `timestamptz` converts one with an offset."""


def plain_statement(parsed: ParsedSql) -> str:
    """The statement with the same assignments, in the words that the general parser knows."""
    tokens = [token for token in parsed.tokens if token.kind not in INSIGNIFICANT]
    replaced = dict(_replacements(parsed, tokens))
    parts: list[str] = []
    for token in parsed.tokens:
        if token.kind == "end":
            break
        parts.append(" " if token.kind in INSIGNIFICANT else replaced.get(token.start, parsed.text_of(token)))
    return "".join(parts).strip()


def plain_trees(parsed: ParsedSql) -> list[Any]:
    """The trees of the plain statement; none, if the general parser does not understand it."""
    from sqlglot.errors import SqlglotError  # takes half a second

    try:
        return parse_trees(plain_statement(parsed), parsed.dialect)
    except SqlglotError:
        return []


def _replacements(parsed: ParsedSql, tokens: Sequence[SqlToken]) -> Iterator[tuple[int, str]]:
    """The texts that replace tokens, by the start of each."""
    words = [_word(parsed, token) for token in tokens]
    is_mysql, skipped = parsed.dialect in ("mysql", "mariadb"), 0
    for at, token in enumerate(tokens):
        word, before, following = words[at], words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        remove = 0
        if is_mysql and word in _MODIFIERS and (before in _VERBS or before in _MODIFIERS):
            remove = 1
        elif is_mysql and word in ("USE", "FORCE", "IGNORE") and following in ("INDEX", "KEY"):
            remove = words.index(")", at) + 1 - at if ")" in words[at:] else 0
        elif parsed.dialect == "sqlite" and word == "OR" and before in ("INSERT", "UPDATE"):
            remove = 2
        elif parsed.dialect == "postgresql" and word == "OVERRIDING":
            remove = 3
        elif parsed.dialect == "postgresql" and token.kind in ("word", "name") and following == ":=":
            remove = 2  # the name of an argument
        elif parsed.dialect == "postgresql" and token.kind in ("word", "name") and words[at + 1 : at + 3] == ["=", ">"]:
            remove = 3
        elif is_mysql and word == ":=" and (before.startswith("@") or words[at - 2 : at - 1] == ["@"]):
            for earlier in tokens[at - 1 - (not before.startswith("@")) : at + 1]:
                yield earlier.start, " "  # the value is also the variable's
        elif is_mysql and word == ":=" and words[:at].count("(") == words[:at].count(")"):
            yield token.start, "="
        elif word == "TABLE" and before in ("", ")", "(", "ALL"):
            yield token.start, "select * from"
        elif word == "REPLACE" and (at == 0 or before == ")"):
            yield token.start, "insert"
        elif is_mysql and word == "VALUES" and before == "(" and words[at - 2 : at - 1] == ["AS"]:
            yield token.start, "(values"  # a function, in these parentheses alone
            end = _closing(words, at - 1)
            yield tokens[end].start, "))"
        elif word == "ROW" and before in ("VALUES", ",") and is_mysql:
            remove = 1
        elif token.kind == "number":
            yield token.start, parsed.text_of(token).replace("_", "")
        skipped = max(skipped, at + remove)
        if at < skipped:
            yield token.start, " "


def _closing(words: Sequence[str], opening: int) -> int:
    """The index of the parenthesis that closes another one."""
    depth = 0
    for at in range(opening, len(words)):
        depth += (words[at] == "(") - (words[at] == ")")
        if depth == 0:
            return at
    return len(words) - 1


def written_tables(parsed: ParsedSql) -> list[tuple[str, str | None, str]]:
    """The tables that the statement writes: the name as SQL, its schema and its last part."""
    tokens = list(parsed.significant())
    words = [_word(parsed, token) for token in tokens]
    tables: list[tuple[str, str | None, str]] = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        is_target = (word == "INTO" and set(words[:at]) & {*_VERBS}) or (
            word in _VERBS and before not in ("FOR", "DO", "KEY", "THEN", "ON", "OR")
        )
        name = at + 1
        while is_target and name < len(words) and words[name] in ("ONLY", "INTO", "OR", *_MODIFIERS, "ABORT", "FAIL"):
            name += 1
        parts = _name(parsed, tokens, name) if is_target else []
        table = (".".join(parts), _plain(parts[-2]) if len(parts) > 1 else None, _plain(parts[-1])) if parts else None
        if table is not None and table not in tables and words[at + 1 : at + 2] != ["("]:
            tables.append(table)
    return tables


def changed_tables(parsed: ParsedSql) -> list[tuple[str | None, str]]:
    """Schema and name of the tables that a statement of MySQL or MariaDB may change; aliases may be among them."""
    tokens = list(parsed.significant())
    words = [_word(parsed, token) for token in tokens]
    main = main_keyword(parsed)
    if main in ("INSERT", "REPLACE"):
        return [(schema, name) for _, schema, name in written_tables(parsed)]
    if main not in ("UPDATE", "DELETE"):
        return []
    tables: dict[tuple[str | None, str], None] = {}
    parentheses: list[bool] = []
    """True for each open parenthesis with a query. Tables may be in others: ``update (a join b on …) set``."""
    for at in range(words.index(main), len(words)):
        if words[at] == "(":
            parentheses.append(words[at + 1 : at + 2] in (["SELECT"], ["WITH"], ["VALUES"]))
        elif words[at] == ")":
            parentheses.pop()
        if not parentheses and words[at] in ("SET", "WHERE"):
            break
        if not any(parentheses) and words[at] in (main, "FROM", "USING", "JOIN", ",", "(", *_MODIFIERS):
            parts = _name(parsed, tokens, at + 1)
            if parts and parts[-1].upper() not in ("FROM", "QUICK", *_MODIFIERS):
                tables[(_plain(parts[-2]) if len(parts) > 1 else None, _plain(parts[-1]))] = None
    return list(tables)


def _name(parsed: ParsedSql, tokens: Sequence[SqlToken], at: int) -> list[str]:
    """The parts of the name that begins at a token, with their quotes."""
    parts: list[str] = []
    while at < len(tokens) and tokens[at].kind in ("word", "name"):
        parts.append(parsed.text_of(tokens[at]))
        if at + 1 >= len(tokens) or parsed.text_of(tokens[at + 1]) != ".":
            break
        at += 2
    return parts


def unplaced_parameters(parsed: ParsedSql, passing: Collection[str] = ()) -> list[str]:
    """The parameters that may reach a column: neither compared nor computed with, and without an own cast.

    ``passing`` are functions that give an argument on, besides those of SQL.
    """
    tokens = list(parsed.significant())
    words = [_word(parsed, token) for token in tokens]
    clauses, clause = list[str](), ""
    names: dict[str, None] = {}
    for at, token in enumerate(tokens):
        word = words[at]
        if word == "(":
            clauses.append(clause)
        elif word == ")":
            clause = clauses.pop() if clauses else ""
        elif word in _CLAUSES:
            clause = word
        elif token.kind == "parameter" and clause not in _COMPARING and not _is_computed(words, at, passing):
            names[parsed.text_of(token)[1:]] = None
    return list(names)


def _is_computed(words: Sequence[str], at: int, passing: Collection[str]) -> bool:
    before, opening = (words[at - 1] if at else ""), (words[at - 2] if at > 1 else "")
    if words[max(at - 2, 0) : at] == ["=", ">"] and at > 3:  # the name of an argument
        before, opening = words[at - 4], words[at - 5]
    following = [*words[at + 1 : at + 4], "", "", ""]
    if before in ("<", ">", "!", "*", "/", "%") or following[0] in ("<", ">", "!", "*", "/", "%"):
        return True
    if following[0] == "::" or (opening == "CAST" and following[0] == "AS"):
        return following[1].lower() not in PASSING_TYPES or following[2] == "("
    is_call = before == "(" and (opening.isidentifier() and opening not in _CLAUSES)
    is_passing = opening.lower() in PASSING_FUNCTIONS or opening.lower() in passing
    return is_call and not is_passing and opening not in ("SELECT", "AND", "OR", "IN", "AS")


def _word(parsed: ParsedSql, token: SqlToken) -> str:
    """A word or sign in upper case; empty for what is quoted."""
    return parsed.text_of(token).upper() if token.kind not in ("string", "name") else ""


def _plain(name: str) -> str:
    return name[1:-1].replace(name[0] * 2, name[0]) if name[:1] in ('"', "`", "[") else name
