"""Analyses one SQL statement of a step with `compensate: auto`: which rows of which table does it change?

Pure: no database. The database decides the rest (the primary key, triggers, cascades). A statement is accepted only if
everything in it is understood. The parts that are reused in other statements are cut from the author's own text, never
generated, so the database reads exactly what the author wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from sagas.errors import UsageError
from sagas.sql_text.clocks import clock_of
from sagas.sql_text.conflict_clauses import with_each_conflict
from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS, parse_trees
from sagas.sql_text.tokens import INSIGNIFICANT, shown, split_tokens
from sagas.sql_text.unreadable_statement import why_unreadable
from sagas.sql_text.unsupported_clauses import unsupported_clause, upsert_of_others

ChangeKind = Literal["read", "insert", "update", "delete", "merge"]

_FIRST_WORDS = ("SELECT", "VALUES", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE")

_REPLACE = "REPLACE deletes every row that is in the way; write INSERT with ON CONFLICT or ON DUPLICATE KEY UPDATE"

_NOT_REPEATABLE = frozenset(
    """
    random rand uuid uuid_short gen_random_uuid uuidv4 uuidv7 random_normal randomblob clock_timestamp timeofday sysdate
    nextval sleep pg_sleep benchmark last_insert_id last_insert_rowid row_count found_rows changes total_changes
    """.split()  # noqa: SIM905
)
"""Functions that return something else in each of two statements of one transaction. A WHERE is evaluated twice."""

_EFFECTS = frozenset(
    """
    setval set_config pg_notify pg_terminate_backend pg_cancel_backend pg_reload_conf pg_logical_emit_message
    get_lock release_lock release_all_locks load_extension sys_exec sys_eval setseed query_to_xml
    """.split()  # noqa: SIM905
)
_EFFECT_PREFIXES = ("dblink", "lo_", "pg_advisory", "pg_try_advisory", "pg_file_", "pg_replication_")
"""Functions whose effect is outside the rows of the statement, so that no image of these rows could undo it."""


class NotImageable(UsageError):
    """The statement cannot be undone automatically."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"`compensate: auto` cannot undo this statement: {why}",
            help="write a compensation with `uses: sql`, or change the statement",
        )
        self.why = why


class TableMissing(NotImageable):
    """The database has no table of this name."""


Source = tuple[str, str | None, str]


@dataclass(frozen=True, slots=True)
class ConflictRow:
    """One row of VALUES as an upsert of its own, without the clause, and its expressions by column."""

    upsert: str
    insert_only: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Conflict:
    """The ON CONFLICT DO UPDATE (or ON DUPLICATE KEY) clause of an insert.

    ``updates`` are the columns that it assigns. ``rows`` are those of VALUES, on MySQL and MariaDB only: these write
    row by row, and do not say which rows existed.
    """

    updates: tuple[str, ...]
    rows: tuple[ConflictRow, ...] = ()


@dataclass(frozen=True, slots=True)
class RowChange:
    """The effect of one statement on a table. Names are as the author wrote them, without quotes; ``table`` is the
    quoted original.

    ``where`` is the condition of an update or delete, None for all rows. ``columns`` are those that an update or merge
    assigns.
    ``functions`` are the names of all functions that are called, in lower case.
    ``sources`` are the tables and views that it reads: each as SQL, its schema and its name.
    ``returning``: the statement returns rows of its own.
    """

    kind: ChangeKind
    statement: str
    table: str = ""
    schema_name: str | None = None
    table_name: str = ""
    alias: str | None = None
    where: str | None = None
    columns: tuple[str, ...] = ()
    conflict: Conflict | None = None
    returning: bool = False
    functions: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    def with_returning(self, expressions: str) -> str:
        """The statement that returns ``expressions`` after what it returns itself."""
        return returning(self.statement, expressions, also=self.returning)


def returning(statement: str, expressions: str, *, also: bool) -> str:
    """``statement`` that returns ``expressions``; ``also``: after what it returns itself."""
    return f"{statement}\n{', ' if also else 'RETURNING '}{expressions}"


@lru_cache(maxsize=512)
def analyse(statement: str, dialect: str) -> RowChange:
    """Return what ``statement`` changes. ``dialect`` is SQLAlchemy's name of it. Raises :class:`NotImageable`."""
    statement = _up_to_its_end(statement, dialect)
    if len(parts := with_each_conflict(statement, dialect)) > 1:
        return _with_all_conflicts(statement, [analyse(part, dialect) for part in parts])
    # Takes half a second, which only projects with `compensate: auto` pay.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    read = SQLGLOT_DIALECTS[dialect]
    try:
        neutral = _with_neutral_parameters(statement, dialect)
        tokens = list(sqlglot.tokenize(neutral, read=read))
        while tokens and tokens[-1].token_type == sqlglot.TokenType.SEMICOLON:
            tokens.pop()
        if not tokens or tokens[0].text.upper() not in _FIRST_WORDS:
            first = tokens[0].text.upper() if tokens else "an empty statement"
            raise NotImageable(f"{first} is none of SELECT, INSERT, UPDATE, DELETE and MERGE")
        if tokens[0].text.upper() == "REPLACE":
            raise NotImageable(_REPLACE)
        if (clause := unsupported_clause(statement, dialect)) is not None:
            raise NotImageable(f"{clause} is not supported; write one plain statement of one table")
        trees = parse_trees(neutral, dialect, of_shape=True)
    except SqlglotError as error:
        raise NotImageable(why_unreadable(error, dialect)) from None
    if len(trees) != 1:
        raise NotImageable("it is not one statement")
    source = _StatementSource(statement, tokens)
    tree = trees[0]
    _refuse_other_reading(statement, tokens, dialect)
    if (upsert := upsert_of_others(tree.find(exp.OnConflict), dialect)) is not None:
        raise NotImageable(upsert)
    functions = source.functions(0, len(tokens))
    refuse_effects(functions)
    if not isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge):
        if tree.find(
            exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Into, exp.Command
        ) is not None or not isinstance(tree, exp.Query | exp.Values):
            raise NotImageable("it is not one plain INSERT, UPDATE or DELETE")
        return RowChange("read", statement, functions=functions, sources=_sources(tree, read, exp))
    if tree.find(exp.With) is not None:
        raise NotImageable("it has a WITH clause; write one plain statement")
    if isinstance(tree, exp.Insert | exp.Merge):
        change = (_insert if isinstance(tree, exp.Insert) else _merge)(tree, source, functions, dialect, exp)
        return replace(change, sources=_sources(tree, read, exp))
    _refuse_more_than_one_table(tree, exp)
    return _update_or_delete(tree, source, functions, dialect, exp)


def _with_all_conflicts(statement: str, parts: Sequence[RowChange]) -> RowChange:
    updates = tuple(dict.fromkeys(name for part in parts if part.conflict for name in part.conflict.updates))
    functions = tuple(sorted({name for part in parts for name in part.functions}))
    sources = tuple(dict.fromkeys(source for part in parts for source in part.sources))
    conflict = Conflict(updates) if updates else None
    return replace(parts[0], statement=statement, conflict=conflict, functions=functions, sources=sources)


def refuse_effects(functions: Iterable[str]) -> None:
    """Raise :class:`NotImageable` for a function whose effect is outside the rows of the statement."""
    for name in functions:
        if name in _EFFECTS or name.startswith(_EFFECT_PREFIXES):
            raise NotImageable(f"the function {name} has an effect outside the rows of the table")


def analyse_view(query: str, dialect: str) -> tuple[tuple[str, ...], tuple[Source, ...]]:
    """The functions that the query of a view calls, and what it reads. Raises :class:`NotImageable`."""
    change = analyse(query, dialect)
    return change.functions, change.sources


def _sources(tree: Any, read: str, exp: Any) -> tuple[Source, ...]:
    tables = [node for node in tree.find_all(exp.Table) if isinstance(node.this, exp.Identifier)]
    plain = [exp.Table(this=node.this, db=node.args.get("db")).sql(dialect=read) for node in tables]
    named = ((sql, node.db or None, node.name) for sql, node in zip(plain, tables, strict=True))
    return tuple(dict.fromkeys(named))


def _up_to_its_end(statement: str, dialect: str) -> str:
    """The statement without its semicolon and the comments after that, in which nothing could be added to it.

    Raises :class:`NotImageable` for a second statement.
    """
    tokens = split_tokens(statement, dialect)
    end = next((index for index, token in enumerate(tokens) if token.kind == "end"), None)
    if end is None:
        return statement
    if any(token.kind not in (*INSIGNIFICANT, "end") for token in tokens[end:]):
        raise NotImageable("it is not one statement")
    return statement[: tokens[end].start]


def _with_neutral_parameters(statement: str, dialect: str) -> str:
    """The statement with names of parameters that are not keywords, as `:from` would be; all positions stay."""
    text = list(statement)
    for token in split_tokens(statement, dialect):
        if token.kind == "parameter":
            text[token.start + 1 : token.end] = "p" * (token.end - token.start - 1)
    return "".join(text)


def _refuse_other_reading(statement: str, tokens: Sequence[Any], dialect: str) -> None:
    """Refuse a statement whose strings and comments sqlglot sees elsewhere than the database does."""
    own = split_tokens(statement, dialect)
    starts = {token.start for token in tokens}
    ends = {token.end + 1 for token in tokens}
    for token in own:
        quoted = token.kind in ("string", "name") and token.end not in ends
        hidden = token.kind in INSIGNIFICANT and any(position in starts for position in range(token.start, token.end))
        if quoted or hidden:
            raise NotImageable(f"it cannot be analysed near `{shown(statement[token.start : token.end])}`")


_KNOWN_ARGUMENTS = {
    "Insert": {"this", "expression", "conflict", "returning", "default"},
    "Update": {"this", "expressions", "where", "returning"},
    "Delete": {"this", "where", "returning"},
    "Table": {"this", "db", "alias"},
    "OnConflict": {
        "duplicate", "expressions", "action", "conflict_keys", "where", "index_predicate", "constraint"
    },
    "Merge": {"this", "using", "on", "whens"},
}  # fmt: skip


_PARTS = {"joins": "join"}
"""SQL's words for parts that the parser calls otherwise."""


def _refuse_unknown_parts(node: Any) -> None:
    if node.args.get("alternative") == "replace":
        raise NotImageable(_REPLACE)
    for name, value in node.args.items():
        if value and name not in _KNOWN_ARGUMENTS[type(node).__name__]:
            clause = type(node).__name__.upper().replace("ONCONFLICT", "ON CONFLICT")
            part = (
                f"or {value}" if name == "alternative" else _PARTS.get(name) or str(name).strip("_").replace("_", " ")
            )
            where = "" if clause == "TABLE" else f" in {clause}"
            raise NotImageable(f"{part.upper()}{where} is not supported; write one plain statement of one table")


def _refuse_more_than_one_table(tree: Any, exp: Any) -> None:
    if tree.args.get("from_") or tree.args.get("using") or tree.args.get("tables"):
        raise NotImageable("it names more than one table")
    # A query without a table, such as `in (select :id)`, is an expression: it has the same value when it is repeated.
    if any(query.find(exp.From, exp.Join, exp.Table, exp.Lateral) for query in tree.find_all(exp.Query)):
        raise NotImageable("it contains a query; it may name one table only")


def _table_of(node: Any, exp: Any, source: _StatementSource, index: int) -> tuple[str, str | None, str, str | None]:
    """The table as written, its schema, its name and its alias; ``index`` is that of its first token."""
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise NotImageable("what it changes is not the name of a table")
    _refuse_unknown_parts(node)
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise NotImageable("its table has an alias with columns")
    end = index + (2 if node.db else 0)
    return source.text(index, end + 1), node.db or None, node.name, source.identifier(alias.this) if alias else None


def _update_or_delete(
    tree: Any, source: _StatementSource, functions: tuple[str, ...], dialect: str, exp: Any
) -> RowChange:
    _refuse_unknown_parts(tree)
    update = isinstance(tree, exp.Update)
    index = 1 if update else source.find("FROM", 0) + 1
    table, schema, name, alias = _table_of(tree.this, exp, source, index)
    start, returning = source.find("WHERE", 0), source.find("RETURNING", 0)
    end = returning if returning >= 0 else len(source.tokens)
    where = None if start < 0 else source.text(start + 1, end)
    where_functions = () if start < 0 else source.functions(start + 1, end)
    for function in where_functions:
        if function in _NOT_REPEATABLE:
            raise NotImageable(f"its condition calls {function}, whose value differs from call to call")
    clock = None if start < 0 or dialect == "postgresql" else clock_of(source.pairs(start + 1, end))
    if clock is not None:
        raise NotImageable(f"its condition asks for the time ({clock}); pass the time as a parameter")
    if (tree.args.get("where") is None) != (where is None):
        raise NotImageable("its WHERE cannot be found")
    if tree.find(exp.Parameter, exp.SessionParameter) is not None:
        raise NotImageable("it uses a variable of the session")
    return RowChange(
        "update" if update else "delete",
        statement=source.all,
        table=table,
        schema_name=schema,
        table_name=name,
        alias=alias,
        where=where,
        columns=tuple(_assigned(tree.expressions, exp)) if update else (),
        returning=returning >= 0,
        functions=functions,
    )


def _assigned(expressions: Sequence[Any], exp: Any) -> Iterator[str]:
    """The columns on the left of `=`, also in `(a, b) = (1, 2)` and `a[1] = 2`."""
    for expression in expressions:
        if not isinstance(expression, exp.EQ):
            raise NotImageable("one of its assignments cannot be analysed")
        names = [column.name for column in expression.this.find_all(exp.Column)]
        if not names:
            raise NotImageable("one of its assignments cannot be analysed")
        for column in expression.this.find_all(exp.Column):
            # `t.column` is MySQL's form; a field of a composite column looks the same.
            yield from (column.name, *([column.table] if column.table else []))


def _insert(tree: Any, source: _StatementSource, functions: tuple[str, ...], dialect: str, exp: Any) -> RowChange:
    _refuse_unknown_parts(tree)
    target = tree.this
    node = target.this if isinstance(target, exp.Schema) else target
    if not tree.args.get("default") and not isinstance(tree.expression, exp.Values | exp.Query):
        raise NotImageable("an INSERT needs VALUES or a query")
    if source.word(1) != "INTO":
        raise NotImageable("write INSERT INTO")
    table, schema, name, alias = _table_of(node, exp, source, 2)
    conflict = tree.args.get("conflict")
    return RowChange(
        "insert",
        statement=source.all,
        table=table,
        schema_name=schema,
        table_name=name,
        alias=alias,
        columns=tuple(expression.name for expression in target.expressions) if isinstance(target, exp.Schema) else (),
        conflict=_conflict(tree, conflict, source, dialect, exp) if conflict is not None else None,
        returning=source.find("RETURNING", 0) >= 0,
        functions=functions,
    )


def _conflict(tree: Any, conflict: Any, source: _StatementSource, dialect: str, exp: Any) -> Conflict | None:
    _refuse_unknown_parts(conflict)
    if str(conflict.args["action"]).upper() == "DO NOTHING":
        return None
    if not conflict.expressions:
        raise NotImageable("its ON CONFLICT clause cannot be analysed")
    updates = tuple(_assigned(conflict.expressions, exp))
    if dialect in ("postgresql", "sqlite"):
        return Conflict(updates)
    if not isinstance(tree.this, exp.Schema) or not isinstance(tree.expression, exp.Values):
        raise NotImageable("ON DUPLICATE KEY UPDATE needs a list of columns and rows of VALUES")
    names = [expression.name for expression in tree.this.expressions]
    return Conflict(updates, tuple(source.rows_of_values(names)))


def _merge(tree: Any, source: _StatementSource, functions: tuple[str, ...], dialect: str, exp: Any) -> RowChange:
    if dialect != "postgresql":
        raise NotImageable("only PostgreSQL has MERGE")
    if source.find("RETURNING", 0) >= 0:
        raise NotImageable("RETURNING in MERGE is not supported")
    _refuse_unknown_parts(tree)
    if source.word(1) != "INTO":
        raise NotImageable("write MERGE INTO")
    table, schema, name, alias = _table_of(tree.this, exp, source, 2)
    updates = [when.args["then"] for when in tree.args["whens"].expressions]
    assigned = [_assigned(update.expressions, exp) for update in updates if isinstance(update, exp.Update)]
    return RowChange(
        "merge",
        statement=source.all,
        table=table,
        schema_name=schema,
        table_name=name,
        alias=alias,
        columns=tuple(column for columns in assigned for column in columns),
        functions=functions,
    )


class _StatementSource:
    """A statement as its tokens, to cut parts from the original text."""

    def __init__(self, statement: str, tokens: Sequence[Any]) -> None:
        self._statement = statement
        self.tokens = tokens
        self._depths: list[int] = []
        depth = 0
        for token in tokens:
            if token.text == ")" and self._plain(token):
                depth -= 1
            self._depths.append(depth)
            if token.text == "(" and self._plain(token):
                depth += 1

    @property
    def all(self) -> str:
        """The statement without comments and semicolons at its end."""
        return self.text(0, len(self.tokens))

    def text(self, start: int, end: int) -> str:
        """The original text from token ``start`` to before token ``end``."""
        return self._statement[self.tokens[start].start : self.tokens[end - 1].end + 1] if end > start else ""

    def _plain(self, token: Any) -> bool:
        """False for a quoted name or a string, whose text may look like a keyword."""
        return self._statement[token.start : token.end + 1].upper() == token.text.upper()

    def word(self, index: int) -> str:
        """The token in upper case; empty for quoted text, and beyond the end."""
        if index >= len(self.tokens):
            return ""
        return self.tokens[index].text.upper() if self._plain(self.tokens[index]) else ""

    def words(self, start: int, end: int) -> list[str]:
        return [self.word(index) for index in range(start, end) if self._depths[index] == 0]

    def pairs(self, start: int, end: int) -> list[tuple[str, str]]:
        """The words of tokens, empty for what is quoted, with their texts."""
        return [(self.word(index), self.tokens[index].text) for index in range(start, end)]

    def find(self, word: str, start: int) -> int:
        """The index of the first token ``word`` outside parentheses from ``start`` on, else -1."""
        return next(
            (
                index
                for index in range(start, len(self.tokens))
                if self._depths[index] == 0 and self.word(index) == word and self.word(index - 1) not in (".", ":")
            ),
            -1,
        )

    def find_pair(self, first: str, second: Sequence[str]) -> int:
        index = self.find(first, 0)
        while index >= 0 and self.word(index + 1) not in second:
            index = self.find(first, index + 1)
        if index < 0:
            raise NotImageable("its ON CONFLICT clause cannot be analysed")
        return index

    def functions(self, start: int, end: int) -> tuple[str, ...]:
        """The names before an opening parenthesis, lower case; keywords such as `in` are among them."""
        names = {
            self.tokens[index].text.lower()
            for index in range(start, min(end, len(self.tokens) - 1))
            if self.word(index + 1) == "(" and self.tokens[index].text[:1].isidentifier()
        }
        return tuple(sorted(names))

    def identifier(self, node: Any) -> str:
        """A name as it was written, with its quotes."""
        wanted = node.name
        for token in self.tokens:
            if token.text == wanted:
                return self._statement[token.start : token.end + 1]
        raise NotImageable("its alias cannot be found")

    def rows_of_values(self, names: Sequence[str]) -> Iterator[ConflictRow]:
        """Each row of VALUES as a statement of its own; ``names`` are the columns of the insert."""
        values = self.find("VALUES", 0)
        start, end = self.find_pair("ON", ("CONFLICT", "DUPLICATE")), self.find("RETURNING", 0)
        if not 0 < values < start:
            raise NotImageable("its VALUES cannot be analysed")
        head, clause = self.text(0, values + 1), self.text(start, end if end >= 0 else len(self.tokens))
        tail = f" {self.text(end, len(self.tokens))}" if end >= 0 else ""
        index = values + 1
        while index < start:
            if self.word(index) != "(":
                raise NotImageable("its VALUES cannot be analysed")
            closing = next(to for to in range(index + 1, start) if self._depths[to] == 0 and self.word(to) == ")")
            row = self.text(index, closing + 1)
            expressions = self._row(index, closing)
            if len(expressions) != len(names):
                raise NotImageable("the numbers of its columns and values differ")
            upsert, insert_only = f"{head} {row} {clause}{tail}", f"{head} {row}{tail}"
            yield ConflictRow(upsert, insert_only, dict(zip(names, expressions, strict=True)))
            index = closing + (2 if self.word(closing + 1) == "," else 1)

    def _row(self, opening: int, closing: int) -> list[str]:
        """The expressions between two parentheses."""
        commas = [index for index in range(opening, closing) if self._depths[index] == 1 and self.word(index) == ","]
        bounds = [opening, *commas, closing]
        return [self.text(bounds[index] + 1, bounds[index + 1]) for index in range(len(bounds) - 1)]
