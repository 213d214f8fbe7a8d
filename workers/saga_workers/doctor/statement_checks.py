"""Lets the databases prepare every statement of the definitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_spark.sinks.postgresql.where_clause import where_clause
from saga_workers.doctor.doctor_result import DoctorResult, results_of
from saga_workers.doctor.prepared_statements import MISSING_TABLE, NotChecked, prepare
from saga_workers.runtime.database_access import driver_errors, unusable
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
from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.sql_text.sql_statements import parse_guarded
from sagas.sql_text.tokens import RefusedStatement
from sagas.text.shortening import join_names
from sagas.text.sql_names import sql_name

CHECK = "statements"
_TIMEOUT = 30.0
"""Seconds for all statements of one connection."""

_MAX_PLACES = 5


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
        text += f"{sql_name(name)}{of_where}, "
    text = (text.removesuffix(", ") if source.columns else f"{text}*") + " from "
    node = source.fields["table" if query is None else "query"]
    places.append((len(text), node if query is None else None))
    text += f"(\n{query}\n) as input" if table is None else ".".join(map(sql_name, table.split(".")))
    for number, (name, values, place) in enumerate(source.conditions):
        text += " and " if number else " where "
        places.append((len(text), place))
        text += where_clause({name: values}, typed=True).as_string()
    try:
        parsed = parse_sql(text, "postgresql")
    except RefusedStatement:
        return  # the mistake in the query is reported with the definitions
    yield _Statement(draft.file, owner, connection, node, parsed, is_own=False, takes_literals=True, places=(*places,))


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
            yield node, _filtered(".".join(map(sql_name, str(table.value).split("."))), node.value), False


def _filtered(source: str, where: str) -> str:
    return f"select * from {source} where (\n{where}\n)"  # noqa: S608 - prepared only, as its author wrote it


async def _check_connection(project: Project, name: str, statements: list[_Statement]) -> list[DoctorResult]:
    results: list[DoctorResult] = []
    database = project.settings.sql_connection(name)
    engine = open_command_engine(database)
    try:
        async with asyncio.timeout(_TIMEOUT), engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in statements:
                result = await _check(connection, statement)
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
    missing = [result for result in results if result.help == MISSING_TABLE]
    if not missing:
        return results
    first, *others = missing
    also = ""
    if others:
        places = join_names([result.message.partition(": ")[0] for result in others], _MAX_PLACES)
        also = f"; tables are also missing for {len(others)} more statement{'s' * (len(others) > 1)}: {places}"
    file = connection.schema_file
    help = MISSING_TABLE if file is None else f"saga setup    applies {file.name}; or {MISSING_TABLE}"
    grouped = DoctorResult(CHECK, False, first.message + also, help)
    return [grouped if result is first else result for result in results if result is first or result not in others]


async def _check(connection: AsyncConnection, statement: _Statement) -> DoctorResult | None:
    try:
        refusal = await prepare(connection, statement.parsed, takes_literals=statement.takes_literals)
    except NotChecked as why:
        return DoctorResult(CHECK, None, f"{statement.at(statement.node)}: not checked because {why}")
    if refusal is None:
        return None
    if refusal.is_prepared:
        return DoctorResult(CHECK, False, f"{statement.at(statement.node)}: {refusal.why}", refusal.help)
    if (place := statement.place_of(refusal.offset)) is None:
        return None
    why = f"{NAMES[statement.parsed.dialect]} cannot prepare the statement: {refusal.why}"
    return DoctorResult(CHECK, False, f"{statement.at(place)}: {why}", refusal.help)


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
