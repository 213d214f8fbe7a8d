"""An operation of a two-phase step in a process of its own, which stops itself before one of its statements."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any, Literal

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.postgresql import PostgresTransaction
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.sqlalchemy_transaction import SqlAlchemyTransaction
from saga_activities.guard.two_phase import mysql, postgresql
from saga_activities.guard.two_phase.participant import Preparation
from sagas.settings import SqlConnection
from tests.helpers.forked_commands import FORK_SERVER
from tests.helpers.waiting import LIMIT

Kind = Literal["do", "undo", "confirm", "seal"]


class StoppedOperation:
    """Performs ``kind``, and sends itself ``sent`` before its statement number ``statement`` (from 1)."""

    def __init__(
        self, kind: Kind, url: str, at: EntryKey, sku: str, statement: int, sent: signal.Signals, seconds: float = 10.0
    ) -> None:
        self._answer, theirs = FORK_SERVER.Pipe(duplex=False)
        self.process = FORK_SERVER.Process(
            target=_perform, args=(theirs, kind, url, at, sku, statement, sent, seconds), daemon=True
        )
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    async def ended(self) -> str | None:
        """How the operation ended (its kind, or its marker); None: it was killed before."""
        return await asyncio.to_thread(self._wait)

    async def frozen(self) -> bool:
        """Wait until it has stopped itself; False: it has ended without reaching the statement."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if not self.process.is_alive():
                return False
            state = _process_state(self.pid)
            if state == "T":
                return True
            await asyncio.sleep(0.02)
        raise AssertionError("the operation neither stops nor ends")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _wait(self) -> str | None:
        self.process.join(60)
        assert not self.process.is_alive(), "the operation does not end"
        try:
            return self._answer.recv() if self._answer.poll() else None
        except EOFError:
            return None


def _process_state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def _perform(
    answer: Any, kind: Kind, url: str, at: EntryKey, sku: str, statement: int, sent: Any, seconds: float
) -> None:
    count = 0

    def stop_before(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        async def stopping(*values: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == statement:
                os.kill(os.getpid(), sent)
            return await real(*values, **more)

        setattr(owner, name, stopping)

    for owner, name in (
        (PostgresTransaction, "_send"),
        (SqlAlchemyTransaction, "_send"),
        (SqlSession, "run"),
        (Preparation, "_store_result"),
        *((owner, name) for owner in (postgresql.PostgresPreparedTransactions, mysql.MysqlPreparedTransactions)
          for name in ("is_prepared", "end")),
    ):  # fmt: skip
        stop_before(owner, name)

    async def perform() -> str:
        connections = DatabaseConnections([SqlConnection(name="shop", url_setting=url)], pool_size=5)
        guard = connections.two_phase_guard("shop")
        clock: Any = {"scheduled_at": time.time(), "deadline": time.time() + seconds}

        async def take(sql: SqlSession) -> Any:
            await sql.execute("update prepared_stock set left_over = left_over - 1 where sku = :sku", sku=sku)
            return {"taken by": os.getpid()}

        match kind:
            case "do":
                outcome = await guard.do(at, "hash", take, **clock)
            case "undo":
                outcome = await guard.undo(at, known_done=True, **clock)
            case "confirm":
                outcome = await guard.confirm(at, **clock)
            case "seal":
                outcome = await guard.seal(at, **clock)
        return outcome.marker or outcome.kind

    answer.send(asyncio.run(perform()))
