"""Single SQL statements inside the guard's transaction."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import CursorResult, Executable
from sqlalchemy.engine.interfaces import BindTyping
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.ddl import ExecutableDDLElement
from sqlalchemy.sql.elements import BindParameter, TextClause
from sqlalchemy.sql.expression import ClauseElement, TableClause, UpdateBase
from sqlalchemy.sql.visitors import iterate

from saga_activities.guard.database_errors import (
    MAX_QUOTED,
    STATEMENT_NOTE,
    VALUE_NOTE,
    classify_database_error,
    refused_text,
)
from saga_activities.guard.ended_transactions import (
    TransactionEnded,
    TransactionVanished,
    is_open,
    is_open_after_error,
)
from saga_activities.guard.stored_values import StoredValues, stored_values
from saga_activities.guard.table_engines import table_problem
from saga_activities.parameters.compared_columns import paired_problem
from saga_activities.parameters.exact_parameters import (
    ExactStatement,
    exact_parameters,
    may_be_another,
    text_needs_care,
)
from saga_activities.parameters.iso_times import may_be_time
from saga_activities.parameters.parameter_columns import needs_care
from saga_activities.parameters.parameter_types import parameter_types
from saga_activities.parameters.postgresql_places import checked_places
from saga_activities.parameters.refused_values import refused_value
from saga_activities.result_columns import check_names, mysql_reader, undecodable_column
from sagas.errors import AttemptOver, SagaError, UsageError
from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.sql_text.sql_statements import parse_guarded
from sagas.sql_text.tokens import RefusedStatement, shown
from sagas.sql_text.written_tables import changed_tables
from sagas.text.shortening import counted

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
T = TypeVar("T")


class Row(Mapping[str, Any]):
    """One row: ``row.price`` or ``row["price"]``. A column named like a method of Mapping needs the second form."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"the row has no column {name!r}; it has {', '.join(self._values)}") from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Row({self._values!r})"


class BoundParameters(dict[str, Any]):
    """Parameters in the forms that the driver takes. See :meth:`SqlSession.placed`."""

    def only(self, names: Iterable[str]) -> BoundParameters:
        return BoundParameters({name: self[name] for name in names if name in self})


class UnexpectedRows(SagaError):
    """The statement returned another number of rows than the action expects. Another transaction may change that."""

    def __init__(self, rows: int, expected: str, statement: str | Executable) -> None:
        help = "narrow its condition" if rows else "read it with one_or_none, and raise Rejected for a refusal"
        super().__init__(
            f"the statement returned {counted(rows, 'row')}, and {expected} is expected, in "
            f"`{shown(str(statement), MAX_QUOTED)}`;"
            f" {help}"
        )


class UnboundParameters(UsageError):
    """A parameter has a value that the database cannot take."""


_FLOAT_DIGITS = 15

_UNBOUND = (TypeError, ValueError, ArithmeticError)


class StatementResult(NamedTuple):
    """The rows of a statement (None if it returns no rows) and the number of rows it returned or affected."""

    rows: list[Row] | None
    rowcount: int


class SqlSession:
    """Runs single statements with named ``:parameters`` in the guard's transaction.

    Every method takes the parameters as one mapping or by name. After a failed statement the transaction cannot
    commit, on any database, even if the action catches the error: a partial effect must not become visible. If the
    database has ended the transaction with this error, TransactionEnded refuses every later statement.
    Raises :class:`RefusedStatement` for transaction control, DDL, several statements in one string, and parameters that
    are not exactly those of the statement; then nothing is sent. Raises SQLAlchemy's errors for errors of the database.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        # A URL of `mysql` may be that of MariaDB.
        self._dialect = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else connection.dialect.name
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._savepoints = 0
        self._catalog: dict[tuple[str, str], list[Row]] = {}
        self.used = False
        """True once a statement of an action has run, which may have left something in the session."""
        self.has_variables = False
        """True once a statement may have set a variable of MySQL (`@total := 1`); it lives as long as the session."""
        self.writes_images = False
        """True while parameters are images of rows, which the database itself has written and which are read again."""
        self.first_error: BaseException | None = None
        self.ended = False
        """True once the database has ended the transaction by itself: then no statement is sent any more."""
        self.refusal: str | None = None
        """Why this session must run no statement of an action."""

    def check_statements(self) -> None:
        """Raises the error of a statement that the action has swallowed: a partial effect must not commit."""
        if self.first_error is not None:
            raise self.first_error

    def check_allowed(self) -> None:
        """Raises UsageError if the settings of the session do not allow a statement."""
        if self.refusal is not None:
            raise UsageError(self.refusal)

    @property
    def unanswered(self) -> bool:
        """True if the database has not answered a statement: it was interrupted, or a thread still waits for it."""
        return bool(self._running) or isinstance(self.first_error, asyncio.CancelledError)

    @property
    def dialect(self) -> str:
        """``postgresql``, ``mysql``, ``mariadb`` or ``sqlite``."""
        return self._dialect

    @property
    def stored_values(self) -> StoredValues:
        """The form of the values in the engine's own rows; for the engine only."""
        return stored_values(self._connection.engine)

    async def execute(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> int:
        """Run a statement (once per mapping when ``parameters`` is a list); returns the number of affected rows."""
        return (await self.run(statement, *parameters, **named)).rowcount

    async def all(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> list[Row]:
        """All rows, in the database's order."""
        return (await self.run(statement, *parameters, **named)).rows or []

    async def one_or_none(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Row | None:
        """The only row, or None. Raises :class:`UnexpectedRows` for more than one."""
        rows = await self.all(statement, *parameters, **named)
        if len(rows) > 1:
            raise UnexpectedRows(len(rows), "at most one", statement)
        return rows[0] if rows else None

    async def one(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Row:
        """The only row. Raises :class:`UnexpectedRows` for none or more than one."""
        rows = await self.all(statement, *parameters, **named)
        if len(rows) != 1:
            raise UnexpectedRows(len(rows), "exactly one", statement)
        return rows[0]

    async def scalar(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Any:
        """The first column of the first row; None when there is no row."""
        rows = await self.all(statement, *parameters, **named)
        return next(iter(rows[0].values()), None) if rows else None

    @asynccontextmanager
    async def savepoint(self, *, keep: bool = True) -> AsyncIterator[None]:
        """Roll back what the block has changed if it raises, or at its end without ``keep``; for the engine only.

        A statement error of the block does not fail the transaction, unless it has ended it (a lost connection, a
        deadlock, the attempt's time).
        """
        self._savepoints += 1
        name = f"saga_savepoint_{self._savepoints}"
        await self.control(f"SAVEPOINT {name}")
        failed_before = self.first_error is not None
        try:
            yield
        except Exception as error:
            classified = classify_database_error(error)
            if (
                self.ended
                or failed_before
                or (classified is not None and (classified.infrastructure or classified.timed_out))
            ):
                raise
            await self.control(f"ROLLBACK TO SAVEPOINT {name}")
            self.first_error = None
            raise
        if not keep:
            await self.control(f"ROLLBACK TO SAVEPOINT {name}")
        await self.control(f"RELEASE SAVEPOINT {name}")

    async def control(self, statement: str) -> int:
        """Run a statement that no action may write, such as SET CONSTRAINTS; for the engine only. Its row count."""
        async with self._lock:
            if self._closed:
                raise AttemptOver()
            as_it_is = {"no_parameters": True}  # `%`, too
            sending = self._connection.exec_driver_sql(statement, execution_options=as_it_is)
            return (await self._noticing_end(sending)).rowcount

    async def use_own_search_path(self) -> None:
        """Let the names in the engine's statements mean its own tables, whatever an action has set before."""

    def forbid_commit(self, error: BaseException) -> None:
        """Let the transaction not commit, because of an error that the action may catch."""
        if self.first_error is None:
            self.first_error = error

    async def close(self) -> None:
        """Refuse further statements and cancel those in flight (of a thread that could not be stopped)."""
        self._closed = True
        running = self._running - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def run(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> StatementResult:
        """Run a statement and return its rows and row count."""
        task = asyncio.current_task()
        assert task is not None
        async with self._lock:
            if self._closed:
                raise AttemptOver()
            if self.ended:
                raise TransactionEnded()
            self._running.add(task)
            self.used = True
            given, prepared = None, None
            try:
                self.check_allowed()
                given = _given_parameters(statement, parameters, named)
                prepared = self._prepare(statement)
                if isinstance(prepared, ParsedSql):
                    self.has_variables |= "@" in prepared.source
                    prepared, given = await self._exact(prepared, given)
                else:
                    rows = [given] if isinstance(given, Mapping) else given
                    if _needs_check(prepared, rows, self._dialect):
                        await self._check_construct(prepared, rows)
                if self._dialect in ("mysql", "mariadb"):
                    await self._refuse_engines(prepared, [given] if isinstance(given, Mapping) else given)
                return await self._execute(prepared, given)
            except BaseException as error:
                if isinstance(error, SQLAlchemyError):
                    error.add_note(f"{STATEMENT_NOTE}{statement}")
                    if isinstance(prepared, ParsedSql) and given:
                        await _name_value(error, prepared, [given] if isinstance(given, Mapping) else given)
                self.forbid_commit(error)
                raise
            finally:
                self._running.discard(task)

    def parse(self, statement: str) -> ParsedSql:
        """A statement as this session's database reads it. Raises :class:`RefusedStatement`."""
        return parse_guarded(statement, self._dialect)

    def _prepare(self, statement: str | Executable) -> ParsedSql | Executable:
        if isinstance(statement, str):
            return self.parse(statement)
        if isinstance(statement, TextClause):
            return self.parse(statement.text.replace("\\:", ":"))
        if isinstance(statement, ExecutableDDLElement) or not isinstance(statement, ClauseElement):
            raise RefusedStatement("DDL is refused in a guarded step: change the schema with a migration tool")
        return statement

    async def exact(
        self, statement: ParsedSql, parameters: Sequence[Mapping[str, Any]], *, numbers_only: bool = False
    ) -> ExactStatement:
        """The statement and its parameters as the driver takes them without a loss.

        Raises RefusedStatement, InexactNumber, UnusableParameter. ``numbers_only``: SQLAlchemy binds all other values.
        """
        if not numbers_only:
            for values in parameters or ({},):
                statement.check_parameters(values.keys())
        check_text = not self.writes_images
        exact = await exact_parameters(
            statement, parameters, self._query, numbers_only=numbers_only, check_text=check_text
        )
        if check_text and self._dialect == "postgresql":
            ask_types = partial(parameter_types, self._connection)
            parameters = await checked_places(
                exact.statement, exact.parameters, ask_types, self._query, authors=statement
            )
            return replace(exact, parameters=parameters)
        return exact

    async def placed(self, statement: str, parameters: Mapping[str, Any]) -> tuple[str, BoundParameters]:
        """The statement and its parameters in their forms, for the engine to run parts of it with the same values."""
        try:
            exact = await self.exact(self.parse(statement), [parameters])
        except BaseException as error:
            self.forbid_commit(error)
            raise
        return exact.statement.source, BoundParameters(exact.parameters[0])

    async def _refuse_engines(self, statement: ParsedSql | Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse tables that no rollback restores, each looked up once on a connection, and columns to convert."""
        if isinstance(statement, ParsedSql):
            tables = changed_tables(statement)
        else:
            table = getattr(statement, "table", None) if isinstance(statement, UpdateBase) else None
            tables = [(table.schema, table.name)] if isinstance(table, TableClause) else []
        seen: set[tuple[str | None, str]] = self._connection.info.setdefault("saga_transactional_tables", set())
        if (problem := await table_problem([table for table in tables if table not in seen], self._query)) is not None:
            raise UsageError(problem)
        seen.update(tables)
        if not isinstance(statement, ParsedSql) or self.writes_images:
            return
        if (problem := await paired_problem(statement, rows, self._query, self._described)) is not None:
            raise UsageError(problem)

    async def _query(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        """The rows of a query of the catalog, which does not change for the tables that a transaction has used."""
        key = (text, repr(values))
        if key not in self._catalog:
            self._catalog[key] = (await self._execute(self.parse(text), values)).rows or []
        return self._catalog[key]

    async def _described(self, query: str) -> Sequence[tuple[str, int]]:
        """The names and types of the columns of a query of MySQL or MariaDB."""
        sending = self._connection.exec_driver_sql(*self._bound(parse_sql(query, self._dialect), {}))
        result = await self._noticing_end(sending)
        description: Any = result.cursor.description if result.cursor is not None else ()
        return [(name, kind) for name, kind, *_ in description or ()]

    async def _exact(
        self, statement: ParsedSql, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> tuple[ParsedSql, Mapping[str, Any] | Sequence[Mapping[str, Any]]]:
        if isinstance(parameters, BoundParameters):
            return statement, parameters
        exact = await self.exact(statement, [parameters] if isinstance(parameters, Mapping) else parameters)
        return exact.statement, exact.parameters[0] if isinstance(parameters, Mapping) else exact.parameters

    async def _check_construct(self, clause: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check the numbers of a construct of SQLAlchemy, which binds them itself: by the text that it stands for."""
        names = list(rows[0]) if rows else None
        dialect: Any = type(self._connection.dialect)
        named = dialect(paramstyle="named")
        named.bind_typing = BindTyping.NONE  # the casts would be taken for the author's own
        compiled = clause.compile(dialect=named, column_keys=names or None, compile_kwargs={"render_postcompile": True})
        values = [{**compiled.params, **row} for row in rows or [{}]]
        exact = await self.exact(parse_sql(str(compiled), self._dialect), values, numbers_only=True)
        for given, bound in zip(values, exact.parameters, strict=True):
            for name, number in bound.items():
                # The database makes a decimal of at most 15 digits from a float.
                is_changed = isinstance(number, Decimal) and isinstance(given[name], float)
                if is_changed and len(number.as_tuple().digits) > _FLOAT_DIGITS:
                    raise UnboundParameters(f"the parameter {name} is {number}: give a Decimal for this column")

    async def _execute(
        self, statement: ParsedSql | Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> StatementResult:
        return await self._noticing_end(self._send(statement, parameters))

    async def _noticing_end(self, sending: Coroutine[Any, Any, T]) -> T:
        """Send a statement only if the transaction is still there, and notice if that ends it."""
        if self.ended:
            sending.close()
            raise TransactionEnded()
        was_open = is_open(self._connection)
        try:
            answer = await sending
        except asyncio.CancelledError as error:
            self.ended = self._connection.invalidated
            self.forbid_commit(error)  # also for a statement of the engine
            raise
        except Exception as error:
            self.ended = was_open and not await is_open_after_error(self._connection)
            if self.ended:
                self.forbid_commit(error)
            raise
        if was_open and not is_open(self._connection):
            self.ended = True
            self.forbid_commit(TransactionVanished())
            raise TransactionVanished()
        return answer

    async def _send(
        self, statement: ParsedSql | Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> StatementResult:
        try:
            if isinstance(statement, ParsedSql):
                result = await self._connection.exec_driver_sql(*self._bound(statement, parameters))
            else:
                result = await self._connection.execute(statement, parameters)
        except OperationalError as error:
            if (column := undecodable_column(error)) is not None:
                raise column from error
            raise
        except _UNBOUND as error:  # raised by a driver that has no form for a value
            raise UnboundParameters(f"a parameter cannot be sent to the database: {error}") from error
        rows = self._rows(result) if result.returns_rows else None
        return StatementResult(rows, result.rowcount if rows is None else len(rows))

    def _rows(self, result: CursorResult[Any]) -> list[Row]:
        names = list(result.keys())
        check_names(names)
        read = None
        if self._dialect in ("mysql", "mariadb") and result.cursor is not None:
            read = mysql_reader(result.cursor.description)
        rows = result.all()
        return [Row(dict(zip(names, row if read is None else read(row), strict=True))) for row in rows]

    def _bound(
        self, statement: ParsedSql, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> tuple[str, Any]:
        """The text for the driver, with the values of its placeholders."""
        style = self._connection.dialect.paramstyle
        rendered = statement.render(style)
        if style in ("pyformat", "named"):
            return rendered.text, parameters
        if isinstance(parameters, Mapping):
            return rendered.text, rendered.values(parameters)
        return rendered.text, [rendered.values(values) for values in parameters] or None


def _given_parameters(
    statement: str | Executable, given: Sequence[Any], named: Mapping[str, Any]
) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
    """The parameters of a statement, given as one mapping, as a list of them, or by name. Raises UsageError."""
    values = [value for value in given if value is not None]
    if not values:
        return named
    first = values[0]
    mappings = isinstance(first, Mapping) or (
        isinstance(first, Sequence) and not isinstance(first, str) and all(isinstance(row, Mapping) for row in first)
    )
    if len(values) > 1 or named or not mappings:
        raise UsageError(
            "step.sql takes its parameters by name: write `:name` in the statement, and give name=value or one mapping"
            f" for `{shown(str(statement), MAX_QUOTED)}`"
        )
    return first


async def _name_value(error: SQLAlchemyError, statement: ParsedSql, rows: Sequence[Mapping[str, Any]]) -> None:
    """Note at the error which of these parameters has the value that the database refuses."""
    if (text := refused_text(error)) is not None:
        # The first analysis imports a large parser, for which the other attempts of the worker must not wait.
        analyse = partial(refused_value, statement, rows, *text)
        if (value := analyse() if "sqlglot" in sys.modules else await asyncio.to_thread(analyse)) is not None:
            error.add_note(f"{VALUE_NOTE}{value}")


def _needs_check(clause: Any, rows: Sequence[Mapping[str, Any]], dialect: str) -> bool:
    values = [value for row in rows for value in row.values()]
    if getattr(clause, "_multi_values", ()):
        return True  # they are not children of the clause
    values += [node.value for node in iterate(clause) if isinstance(node, BindParameter)]
    return any(
        needs_care(value)
        or text_needs_care(value, dialect)
        or (may_be_time(value) if dialect == "postgresql" else may_be_another(value, dialect))
        for value in values
    )
