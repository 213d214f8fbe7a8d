"""The built-in action `sql`: statements from the definition, in the guard's transaction.

``run`` is one statement or a list of ``{sql, params, expect_rows, rejected}``. ``expect_rows`` is the number of rows
that the statement must return (SELECT, RETURNING) or affect; any other number rejects the step with the message in
``rejected``, and its transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.automatic.image_recorder import ImageRecorder
from saga_activities.automatic.own_statements import confirm_by_statement, undo_by_statement
from saga_activities.automatic.restoration import restore
from saga_activities.guard.database_errors import MAX_QUOTED
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.postgresql import read_result
from saga_activities.guard.sql_session import SqlSession, StatementResult
from saga_activities.json_results import to_json_value
from saga_activities.messaging.outbox import MAX_MESSAGE_BYTES, insert_events, read_events
from sagas.errors import Rejected
from sagas.protocol.origin import start_of_effect
from sagas.protocol.payloads import Invocation
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.tokens import shown

RunStatement = Callable[[str, Mapping[str, Any]], Awaitable[StatementResult]]


async def _run_statements(
    statements: Sequence[Mapping[str, Any]], sql: SqlSession, run: RunStatement
) -> list[dict[str, Any]]:
    """Run all statements, after the parameters of all of them have been compared with their placeholders."""
    for statement in statements:
        sql.parse(statement["sql"]).check_parameters(statement.get("params") or {})
    result: list[dict[str, Any]] = []
    for statement in statements:
        returned = await run(statement["sql"], statement.get("params") or {})
        _check_rows(statement, len(returned.rows) if returned.rows is not None else returned.rowcount)
        if returned.rows is not None:
            result = [to_json_value(row) for row in returned.rows]
    return result


def statements_of(arguments: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """All statements of arguments that :func:`~saga_activities.bodies.action_bodies.wrong_arguments` accepts."""
    run = arguments["run"]
    return run if isinstance(run, list) else [{**arguments, **({"sql": run} if isinstance(run, str) else run)}]


def _check_rows(statement: Mapping[str, Any], rows: int) -> None:
    expected = statement.get("expect_rows")
    if expected is None or rows == expected:
        return
    message = statement.get("rejected") or (
        f"the statement affected {rows} row{'' if rows == 1 else 's'}, and {expected}"
        f" {'is' if expected == 1 else 'are'} expected, in `{shown(statement['sql'], MAX_QUOTED)}`"
    )
    raise Rejected(message, rows=rows, expected=expected)


# One statement for the calls of several sagas: sent together, and each judged by its own row count.
def has_one_statement(arguments: Mapping[str, Any]) -> bool:
    """Return whether a `sql` step has a single statement, and no events."""
    run = arguments["run"]
    return (isinstance(run, str | Mapping) or len(run) == 1) and not arguments.get("emit")


@dataclass(slots=True)
class SharedStatement:
    """The only statement of a `sql` step that writes no events, with the parameters of one call."""

    statement: Mapping[str, Any]
    text: str
    parameters: Mapping[str, Any]

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> SharedStatement:
        """Return the single statement of a step for which :func:`has_one_statement` holds."""
        (statement,) = statements_of(arguments)
        return SharedStatement(statement, statement["sql"], statement.get("params") or {})

    @property
    def expected_rows(self) -> int | None:
        """The number of rows that it must return or affect; None: any."""
        return self.statement.get("expect_rows")

    def judge(self, returned: StatementResult) -> list[dict[str, Any]]:
        """The result of one call. Raises :class:`Rejected` if its ``expect_rows`` is not met."""
        _check_rows(self.statement, len(returned.rows) if returned.rows is not None else returned.rowcount)
        return [] if returned.rows is None else [to_json_value(row) for row in returned.rows]


async def run_for_all(
    raw: Any, statement: ParsedSql, parameters: Sequence[Mapping[str, Any]], settings: Sequence[str] = ()
) -> list[StatementResult]:
    """Run a statement once for each of ``parameters`` on psycopg's connection ``raw``, each after ``settings``.

    The results are in order. Raises psycopg's errors: then the outcome of every call is unknown.
    """
    query = statement.render("pyformat").text
    async with raw.pipeline():
        cursors = []
        for values in parameters:
            for setting in settings:
                await raw.execute(setting, prepare=True)
            cursors.append(await raw.execute(query, values, prepare=True))
    return [await read_result(cursor) for cursor in cursors]


def sql_body(
    arguments: Mapping[str, Any],
    invocation: Invocation,
    attempt: AttemptContext,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> ActionBody:
    """The body of `sql`, including its `emit`, and the images of its rows if the engine must be able to undo it.

    Raises as :func:`read_events` does.
    """
    events, traceparent = read_events(arguments.get("emit") or [], invocation), attempt.traceparent
    statements = statements_of(arguments)
    images = invocation.op == "do" and invocation.guard is not None and invocation.guard.images
    undo_scope = "" if invocation.guard is None else invocation.guard.undo_scope

    async def run(sql: SqlSession | None) -> Any:
        assert sql is not None
        if images:
            recorder = ImageRecorder(sql, _entry_key(invocation), attempt.scheduled_at, undo_scope)
            result = await _run_statements(statements, sql, recorder.run)
            await recorder.store()
        else:
            result = await _run_statements(statements, sql, sql.run)
        await insert_events(sql, events, invocation, max_bytes, traceparent)
        return result

    return run


def restore_body(
    arguments: Mapping[str, Any], invocation: Invocation, attempt: AttemptContext, max_bytes: int = MAX_MESSAGE_BYTES
) -> ActionBody:
    """The body of the undo of `compensate: auto`."""
    del arguments, attempt, max_bytes

    async def run(sql: SqlSession | None) -> Any:
        assert sql is not None
        return await restore(sql, _entry_key(invocation), _undone_steps(invocation))

    return run


def with_inherited_rows(body: ActionBody, invocation: Invocation) -> ActionBody:
    """The body, which undoes a confirmed step, and then the rows that other undos have passed on to this one.

    Its result is that of :func:`restore`: nobody reads that of a compensation.
    """

    async def run(sql: SqlSession | None) -> Any:
        assert sql is not None
        await undo_by_statement(sql, body, _entry_key(invocation), _undone_steps(invocation))
        return await restore(sql, _entry_key(invocation), _undone_steps(invocation), inherited=True)

    return run


def with_appended_changes(body: ActionBody, invocation: Invocation) -> ActionBody:
    """The body of the `confirm` of a step with images, to which its changes are added."""

    async def run(sql: SqlSession | None) -> Any:
        assert sql is not None
        return await confirm_by_statement(sql, body, _entry_key(invocation))

    return run


def _undone_steps(invocation: Invocation) -> Collection[str] | None:
    return None if invocation.guard is None else invocation.guard.undone_steps


def _entry_key(invocation: Invocation) -> EntryKey:
    start = start_of_effect(invocation.origin)
    return EntryKey(invocation.saga_id, invocation.entry, invocation.generation, start)
