"""Lets the databases prepare every statement of the definitions: nothing is executed, and nothing stays.

PostgreSQL parses and plans (``PREPARE``, ``EXPLAIN EXECUTE``, which also checks rights), MySQL and MariaDB prepare, and
SQLite compiles (``EXPLAIN``). Drivers send types of parameters that are not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.table_engines import table_problem
from saga_activities.parameters.compared_columns import paired_problem
from saga_activities.parameters.parameter_errors import (
    AMBIGUOUS,
    SYNTAX_ERROR,
    UNDEFINED,
    what_to_write,
    with_names,
)
from saga_spark.sinks.postgresql.where_clause import where_clause
from saga_workers.doctor.doctor_result import DoctorResult, results_of
from saga_workers.doctor.parameter_types import possible_types
from saga_workers.doctor.postgresql_attempts import PostgresqlAttempts
from saga_workers.runtime.database_access import driver_errors, driver_message, unusable
from saga_workers.runtime.databases import open_command_engine
from sagas.definition.checks.spark_inputs import WrittenInput, spark_inputs
from sagas.definition.checks.sql_texts import WrittenSql, node_at, written_sql
from sagas.definition.diagnostics import Positioned
from sagas.definition.parser.draft import SagaDraft
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.errors import SagaError
from sagas.project import Project
from sagas.settings import SqlConnection
from sagas.sql_text.dialects import NAMES
from sagas.sql_text.parameters.places_apart import with_places_apart
from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.sql_text.sql_statements import main_keyword, parse_guarded
from sagas.sql_text.tokens import RefusedStatement
from sagas.sql_text.written_tables import changed_tables
from sagas.text.shortening import join_names

CHECK = "statements"
_TIMEOUT = 30.0
"""Seconds for all statements of one connection."""

_NAME = "saga_doctor"
_NOT_PREPARABLE = ("CALL", "NOTIFY", "LOCK")
_MISSING_TABLE = "create the table, or correct its name"
_MAX_PLACES = 5
_HELP: Mapping[str | int, str] = {
    **dict.fromkeys(("42P01", 1146, "no such table"), _MISSING_TABLE),
    **dict.fromkeys(("42703", 1054, "no such column", "has no column"), "create the column, or correct its name"),
    "42704": "create the type, or correct its name",
    **dict.fromkeys(("42883", 1305, 1630, "no such function"), "create the function, or cast its arguments"),
    **dict.fromkeys(
        ("42501", 1142, 1143, 1044, 1370, "readonly"), "grant the right to the user of the connection's url"
    ),
}
_ANY_HELP = "correct the statement; the position is that of the statement, or of the place that the database names"


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement in a file. ``is_own``: ``parsed`` is the text of ``node``, so its offsets are positions there.

    ``takes_literals``: the values of its parameters become literals, as in the inputs of Spark steps. ``places`` are
    those of the parts that the engine has put together, each with the offset at which it begins; None: the error of
    this part belongs to another statement.
    """

    file: str
    owner: str
    connection: str
    node: YamlNode
    parsed: ParsedSql
    is_own: bool = True
    takes_literals: bool = False
    places: tuple[tuple[int, Positioned | None], ...] = ()

    def place_of(self, offset: int) -> Positioned | None:
        """The place in the file of a character of the statement."""
        start = self.node.position_at(offset if self.is_own else 0)
        return next((place for begin, place in reversed(self.places) if begin <= offset), start)

    def at(self, position: Positioned) -> str:
        return f"{self.file}:{position.line}:{position.column} {self.owner}"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A database's refusal of a statement. ``offset`` is the place in the author's text, if it names it.

    ``is_prepared``: the database would take it, and the step refuses it.
    """

    why: str
    help: str
    offset: int = 0
    is_syntax: bool = False
    is_prepared: bool = False


class _NotChecked(Exception):
    """A statement that the database cannot judge without running it."""


async def check_statements(project: Project, *, without: Collection[str] = ()) -> list[DoctorResult]:
    """Return what the databases refuse of the SQL of all definitions; empty if there is none.

    ``without``: connections that cannot be opened.
    """
    results: list[DoctorResult] = []
    for connection, statements in statements_by_connection(project).items():
        if connection not in without:
            results += await results_of(CHECK, _check_connection(project, connection, statements))
    return [*results, *_in_python(_drafts(project))]


def statements_by_connection(project: Project) -> dict[str, list[_Statement]]:
    """The statements of all definitions by the name of their connection."""
    by_connection: dict[str, list[_Statement]] = {}
    for draft in _drafts(project):
        for statement in _statements(draft):
            by_connection.setdefault(statement.connection, []).append(statement)
    return by_connection


def _drafts(project: Project) -> Sequence[SagaDraft]:
    try:
        return project.drafts
    except SagaError:
        return ()  # reported with the definitions


def _statements(draft: SagaDraft) -> Iterator[_Statement]:
    for written in written_sql(draft):
        if written.connection is None or not written.statements:
            continue
        role = "" if written.operation.role == "do" else f" ({written.operation.role})"
        owner = f"{draft.definition.saga}/{written.step or 'notify'}{role}"
        dialect = draft.project.dialect(written.connection)
        if dialect is None:
            continue  # its URL is not here; the check of the connection says so
        for node, text, is_own in _texts(written):
            guarded = written.operation.operation.uses == "sql"
            parsed = (parse_guarded if guarded else parse_sql)(text, dialect)
            yield _Statement(draft.file, owner, written.connection, node, parsed, is_own, not guarded)
    for source in spark_inputs(draft):
        connection = source.text("connection")
        if connection is not None and draft.project.dialect(connection) == "postgresql":
            yield from _reads(draft, f"{draft.definition.saga}/{source.step}", connection, source)


def _reads(draft: SagaDraft, owner: str, connection: str, source: WrittenInput) -> Iterator[_Statement]:
    """The reading of a table, and of the columns that an input names outside its SQL."""
    query, table = source.text("query"), source.text("table")
    if (table is None) == (query is None) or (query is not None and not source.columns):
        return
    text, places = "select ", list[tuple[int, Positioned | None]]()
    for at, (name, place) in enumerate(source.columns):
        places.append((len(text), place))
        of_where = "" if isinstance(place, YamlNode) else f" as saga_where_{at}"  # which may also be a listed column
        text += f"{_quoted(name)}{of_where}, "
    text = (text.removesuffix(", ") if source.columns else f"{text}*") + " from "
    node = source.fields["table" if query is None else "query"]
    places.append((len(text), node if query is None else None))
    text += f"(\n{query}\n) as input" if table is None else ".".join(map(_quoted, table.split(".")))
    for number, (name, values, place) in enumerate(source.conditions):
        text += " and " if number else " where "
        places.append((len(text), place))
        text += where_clause({name: values}, typed=True).as_string()
    try:
        parsed = parse_sql(text, "postgresql")
    except RefusedStatement:
        return  # the mistake in the query is reported with the definitions
    yield _Statement(draft.file, owner, connection, node, parsed, is_own=False, takes_literals=True, places=(*places,))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _texts(written: WrittenSql) -> Iterator[tuple[YamlNode, str, bool]]:
    """Each node with the statement that it is, or that the engine makes of it."""
    for path, node in zip(written.place.statements, written.statements, strict=True):
        if path[-1] != "where":
            yield node, node.value, True
            continue
        assert written.operation.arguments is not None
        source = node_at(written.operation.arguments, path[:-1])
        query, table = (source.value.get(name) if source is not None else None for name in ("query", "table"))
        if query is not None:
            yield node, _filtered(f"(\n{query.value}\n) as input", node.value), False
        elif table is not None and "${{" not in str(table.value):
            yield node, _filtered(".".join(map(_quoted, str(table.value).split("."))), node.value), False


def _filtered(source: str, where: str) -> str:
    return f"select * from {source} where (\n{where}\n)"  # noqa: S608 - prepared only, as its author wrote it


async def _check_connection(project: Project, name: str, statements: list[_Statement]) -> list[DoctorResult]:
    results: list[DoctorResult] = []
    database = project.settings.sql_connection(name)
    engine = open_command_engine(database)
    prepare = _PREPARE[engine.dialect.name]
    try:
        async with asyncio.timeout(_TIMEOUT), engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in statements:
                result = await _check(connection, statement, prepare)
                results += [] if result is None else [result]
            await connection.invalidate()  # its settings
    except (SQLAlchemyError, OSError, TimeoutError, *driver_errors()) as error:
        why = f"the statements of {name} are not checked because its database cannot be used"
        problem = unusable(database, why, error)
        return [*results, DoctorResult(CHECK, None, problem.message, problem.help)]
    finally:
        await engine.dispose()
    good = len(statements) - len(results)
    unchecked = sum(result.ok is None for result in results)
    more = f", and {unchecked} cannot be checked" if unchecked else ""
    prepared = DoctorResult(CHECK, True, f"{name}: the database prepares {good} of {len(statements)}{more}")
    return [prepared, *_with_missing_tables_once(results, database)]


def _with_missing_tables_once(results: list[DoctorResult], connection: SqlConnection) -> list[DoctorResult]:
    """The results, those of missing tables as one: before `saga setup` each statement would repeat the cause."""
    missing = [result for result in results if result.help == _MISSING_TABLE]
    if not missing:
        return results
    first, *others = missing
    also = ""
    if others:
        places = join_names([result.message.partition(": ")[0] for result in others], _MAX_PLACES)
        also = f"; tables are also missing for {len(others)} more statement{'s' * (len(others) > 1)}: {places}"
    file = connection.schema_file
    help = _MISSING_TABLE if file is None else f"saga setup    applies {file.name}; or {_MISSING_TABLE}"
    grouped = DoctorResult(CHECK, False, first.message + also, help)
    return [grouped if result is first else result for result in results if result is first or result not in others]


async def _check(connection: AsyncConnection, statement: _Statement, prepare: Any) -> DoctorResult | None:
    try:
        refusal = await prepare(connection, statement)
    except _NotChecked as why:
        return DoctorResult(CHECK, None, f"{statement.at(statement.node)}: not checked because {why}")
    if refusal is None:
        return None
    if refusal.is_prepared:
        return DoctorResult(CHECK, False, f"{statement.at(statement.node)}: {refusal.why}", refusal.help)
    if refusal.is_syntax and statement.takes_literals and statement.parsed.parameters:
        why = "it may need literals (`date :day`), which a prepared statement cannot have; write casts (`:day::date`)"
        return DoctorResult(CHECK, None, f"{statement.at(statement.node)}: not checked because {why}")
    if (place := statement.place_of(refusal.offset)) is None:
        return None
    why = f"{NAMES[statement.parsed.dialect]} cannot prepare the statement: {refusal.why}"
    return DoctorResult(CHECK, False, f"{statement.at(place)}: {why}", refusal.help)


async def _prepare_postgresql(connection: AsyncConnection, statement: _Statement) -> _Refusal | None:
    import psycopg

    parsed = statement.parsed
    keyword = main_keyword(parsed)
    if keyword in _NOT_PREPARABLE:
        raise _NotChecked(f"PostgreSQL cannot prepare {keyword}")
    raw: Any = (await connection.get_raw_connection()).driver_connection
    # The driver would prepare what it sends repeatedly, such as BEGIN, and DEALLOCATE ALL would take that from it.
    raw.prepare_threshold = None
    attempts = PostgresqlAttempts(raw, parsed, with_places_apart(parsed))
    possible = None
    try:
        refused = await attempts.prepare({})
        types: Mapping[str, str] | None = {}
        if refused is not None:
            with_numbers = PostgresqlAttempts(raw, parsed, parsed)  # a number has one type at all places
            possible = await possible_types(parsed, refused, with_numbers.prepare)
            attempts, types = with_numbers, None if possible is None else possible.types
        if types is not None:
            refused = await attempts.explain(types)
            if refused is None and possible is not None:
                raise _NotChecked(possible.why)
    except psycopg.OperationalError as busy:
        raise _NotChecked(f"the database was busy: {driver_message(busy)}") from None
    if refused is None:
        repeated = _repeated_name(attempts.columns) if statement.takes_literals else None
        help = "name each column once, or give one an alias with `as`"
        return None if repeated is None else _Refusal(repeated, help, is_prepared=True)
    message = with_names(driver_message(refused.error), refused.names)
    if refused.code.startswith("23"):
        raise _NotChecked(f"it refuses NULL for a parameter: {message}")
    help = _HELP.get(refused.code, _ANY_HELP)
    if refused.code == "42883" and _begins_operator(parsed, refused.offset):
        help = "cast the operands to types that have the operator, or create it"
    if possible is not None and possible.types is None:
        help = possible.advice
    if refused.code not in (AMBIGUOUS, UNDEFINED):  # about types that only a run has
        help = what_to_write(refused.code, message, parsed) or help
    return _Refusal(message, help, refused.offset or 0, is_syntax=refused.code == SYNTAX_ERROR)


def _repeated_name(columns: Sequence[str]) -> str | None:
    """The sentence about two columns that have one name for Spark, which ignores case; None if there are none."""
    folded = [name.lower() for name in columns]
    for at, name in enumerate(folded):
        if name in folded[:at]:
            both = f"{columns[folded.index(name)]}, {columns[at]}"
            return f"the input has two columns of the same name ({both}), and Spark ignores case"
    return None


_OPERATOR_WORDS = ("like", "ilike", "not", "similar", "in", "between", "is")


def _begins_operator(parsed: ParsedSql, offset: int | None) -> bool:
    return any(
        token.start == offset and (token.kind == "operator" or parsed.text_of(token).lower() in _OPERATOR_WORDS)
        for token in parsed.tokens
    )


async def _prepare_mysql(connection: AsyncConnection, statement: _Statement) -> _Refusal | None:
    parsed = statement.parsed
    await connection.exec_driver_sql("SET SESSION lock_wait_timeout = 2")
    await connection.exec_driver_sql("SET @saga_doctor = %s", (parsed.render("qmark").text,))
    try:
        await connection.exec_driver_sql(f"PREPARE {_NAME} FROM @saga_doctor")
    except DBAPIError as error:
        code = error.orig.args[0] if error.orig is not None and error.orig.args else 0
        if code == 1295:
            raise _NotChecked(f"{NAMES[parsed.dialect]} cannot prepare {main_keyword(parsed)}") from None
        if code == 1205:
            raise _NotChecked("a table is locked") from None
        if error.connection_invalidated:
            raise
        return _Refusal(driver_message(error), _HELP.get(code, _ANY_HELP))
    await connection.exec_driver_sql(f"DEALLOCATE PREPARE {_NAME}")

    async def query(text: str, values: Mapping[str, Any]) -> Sequence[Any]:
        rendered = parse_sql(text, parsed.dialect).render("format")
        return (await connection.exec_driver_sql(rendered.text, rendered.values(values))).mappings().all()

    async def describe(text: str) -> Sequence[tuple[str, int]]:
        result = await connection.exec_driver_sql(parse_sql(text, parsed.dialect).render("format").text)
        description: Any = result.cursor.description if result.cursor is not None else ()
        return [(name, kind) for name, kind, *_ in description or ()]

    if (problem := await table_problem(changed_tables(parsed), query)) is not None:
        return _Refusal(problem, "convert the table to InnoDB", is_prepared=True)
    problem = await paired_problem(parsed, (), query, describe)
    help = "write a cast, so that values of one kind are compared or assigned"
    return None if problem is None else _Refusal(problem, help, is_prepared=True)


async def _prepare_sqlite(connection: AsyncConnection, statement: _Statement) -> _Refusal | None:
    parsed = statement.parsed
    rendered = parsed.render("qmark")
    raw: Any = (await connection.get_raw_connection()).driver_connection
    # A row of EXPLAIN has the statement's literals as text, and the bytes of a blob need be none.
    raw.text_factory = _decoded
    try:
        await connection.exec_driver_sql(f"EXPLAIN {rendered.text}", (None,) * len(rendered.names))
        if main_keyword(parsed) not in ("SELECT", "VALUES"):
            await _refuse_read_only(connection)
    except DBAPIError as error:
        why = driver_message(error)
        if "locked" in why:
            raise _NotChecked("another process writes to the database") from None
        help = next((help for text, help in _HELP.items() if isinstance(text, str) and text in why), _ANY_HELP)
        return _Refusal(why, help)
    return None


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


async def _refuse_read_only(connection: AsyncConnection) -> None:
    """Raise DBAPIError if the file cannot be written: SQLite says so only to a statement that writes, here nothing."""
    version = (await connection.exec_driver_sql("PRAGMA user_version")).scalar_one()
    await connection.exec_driver_sql("BEGIN")
    try:
        await connection.exec_driver_sql(f"PRAGMA user_version = {int(version)}")
    finally:
        await connection.exec_driver_sql("ROLLBACK")


_PREPARE = {
    "postgresql": _prepare_postgresql,
    "mysql": _prepare_mysql,
    "mariadb": _prepare_mysql,
    "sqlite": _prepare_sqlite,
}


def _in_python(drafts: Iterable[SagaDraft]) -> Iterator[DoctorResult]:
    """The actions whose SQL is in Python, where only their run shows it."""
    names = {
        operation.operation.uses
        for draft in drafts
        for step in draft.steps
        for operation in step.operations
        if (action := draft.project.actions.get(operation.operation.uses)) is not None and action.connection
    }
    if names:
        yield DoctorResult(CHECK, None, f"not checked because it is in Python: the SQL of {', '.join(sorted(names))}")
