"""``step.sql`` and ``message.sql``: the guard's transaction as a function sees it, until the function has returned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Executable

from saga_activities.awaited_calls import not_awaited, requiring_await
from saga_activities.guard.sql_session import Parameters, Row, SqlSession
from sagas.actions.events import EventLog
from sagas.errors import AlreadyCompensated, AttemptOver, Rejected, UsageError

log = logging.getLogger(__name__)

Returned = TypeVar("Returned")


class ActionSql:
    """The methods of :class:`SqlSession` for a coroutine function. After :meth:`end` they raise AttemptOver.

    ``owner`` names the object that has it in the documentation: ``step``, ``message`` or ``command``.
    """

    def __init__(self, session: SqlSession, owner: str = "step") -> None:
        self._session = session
        self._owner = owner
        self._not_awaited: list[str] = []
        self._running = 0
        self._over = False

    @property
    def dialect(self) -> str:
        """``postgresql``, ``mysql``, ``mariadb`` or ``sqlite``."""
        return self._session.dialect

    def execute(
        self, statement: str | Executable, /, *parameters: Parameters, **named: Any
    ) -> Coroutine[Any, Any, int]:
        """See :meth:`SqlSession.execute`."""
        return self.call("sql.execute", self._session.execute, statement, *parameters, **named)

    def all(
        self, statement: str | Executable, /, *parameters: Parameters, **named: Any
    ) -> Coroutine[Any, Any, list[Row]]:
        """See :meth:`SqlSession.all`."""
        return self.call("sql.all", self._session.all, statement, *parameters, **named)

    def one_or_none(
        self, statement: str | Executable, /, *parameters: Parameters, **named: Any
    ) -> Coroutine[Any, Any, Row | None]:
        """See :meth:`SqlSession.one_or_none`."""
        return self.call("sql.one_or_none", self._session.one_or_none, statement, *parameters, **named)

    def one(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Coroutine[Any, Any, Row]:
        """See :meth:`SqlSession.one`."""
        return self.call("sql.one", self._session.one, statement, *parameters, **named)

    def scalar(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Coroutine[Any, Any, Any]:
        """See :meth:`SqlSession.scalar`."""
        return self.call("sql.scalar", self._session.scalar, statement, *parameters, **named)

    def sync(self) -> SyncActionSql:
        """The session of a plain ``def``, which runs in a thread. Call it on the event loop."""
        return SyncActionSql(self, asyncio.get_running_loop())

    def end(self) -> None:
        """Refuse further statements, because the function has ended."""
        self._over = True

    def check_awaited(self) -> None:
        """Raises UsageError for a call that the function has not awaited: timing would decide about its effect."""
        self.check_begun()
        if self._running:
            raise UsageError(
                "a statement was still running when the function returned: await every task that it starts"
            )

    def check_begun(self) -> None:
        """Raises UsageError for a call without `await`. It did nothing, and what it returned counts as true."""
        if self._not_awaited:
            raise not_awaited(f"{self._owner}.{self._not_awaited[0]}")

    def call(
        self, name: str, method: Callable[..., Awaitable[Returned]], /, *args: Any, **named: Any
    ) -> Coroutine[Any, Any, Returned]:
        """Call a coroutine function for the function, which knows it as the method ``name`` of the owner.

        Every coroutine that the engine gives to a function is made here, so that none can be left without `await`.
        """
        self._not_awaited.append(name)

        async def run() -> Returned:
            self._not_awaited.remove(name)
            self._running += 1
            try:
                if self._over:
                    raise self._refusal()
                return await method(*args, **named)
            finally:
                self._running -= 1

        return run()

    def _refusal(self) -> AttemptOver:
        error = AttemptOver()
        log.warning("a statement came after its function had returned: await every task that the function starts")
        self._session.forbid_commit(error)
        return error


@contextmanager
def until_return(sql: ActionSql | None, events: Iterable[EventLog]) -> Iterator[None]:
    """Refuse statements and events after the block, from tasks and threads that the action leaves running.

    Raises UsageError for a call that the function has not awaited, also instead of an answer of the function, which
    may rest on it.
    """
    with requiring_await() as others:
        try:
            yield
        except (Rejected, AlreadyCompensated):
            if sql is not None:
                sql.check_begun()
            if others:
                raise not_awaited(others[0]) from None
            raise
        finally:
            for log_of_events in events:
                log_of_events.end()
            if sql is not None:
                sql.end()
    if sql is not None:
        sql.check_awaited()
    if others:
        raise not_awaited(others[0])


class SyncActionSql:
    """:class:`ActionSql` for a plain ``def``: the same methods, without ``await``, from the function's thread."""

    def __init__(self, sql: ActionSql, loop: asyncio.AbstractEventLoop) -> None:
        self._sql = sql
        self._loop = loop

    @property
    def dialect(self) -> str:
        return self._sql.dialect

    def execute(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> int:
        return self._wait(self._sql.execute(statement, *parameters, **named))

    def all(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> list[Row]:
        return self._wait(self._sql.all(statement, *parameters, **named))

    def one_or_none(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Row | None:
        return self._wait(self._sql.one_or_none(statement, *parameters, **named))

    def one(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Row:
        return self._wait(self._sql.one(statement, *parameters, **named))

    def scalar(self, statement: str | Executable, /, *parameters: Parameters, **named: Any) -> Any:
        return self._wait(self._sql.scalar(statement, *parameters, **named))

    def _wait(self, call: Coroutine[Any, Any, Returned]) -> Returned:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
