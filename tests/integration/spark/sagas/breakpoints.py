"""Stops a worker or a runner at a named point of a Spark step, from outside, by breakpoints in the database.

The project's actions module calls :func:`install` in the worker; a job calls :func:`wait_at` in the runner. A point is
set by holding an advisory lock; waiters are visible in ``pg_locks``. The product does not know of them.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

DATABASE = "SAGA_TEST_DATABASE"
"""The database that holds the breakpoints."""

CLASS = 9
TIMEOUT = 240.0

_WAITING = """
select count(*) from pg_locks where locktype = 'advisory' and not granted
  and classid = %s and objid::bigint = hashtext(%s)::bigint & 4294967295
  and database = (select oid from pg_database where datname = current_database())
"""


def wait_at(point: str) -> None:
    """Pass at once, or wait until the breakpoint is cleared."""
    with psycopg.connect(os.environ[DATABASE], autocommit=True) as connection:
        connection.execute("select pg_advisory_lock_shared(%s, hashtext(%s))", (CLASS, point))


def install() -> None:
    """Put breakpoints around the parts of an attempt, the calls of every sink and the transactions of Kafka: `before …`
    and `after …`. After `flush` a transaction is open, and the broker has all of it. Not in the process of the tests,
    which reads the project too."""
    if DATABASE not in os.environ:
        return
    from saga_activities.kafka.transactional_producer import TransactionalProducer
    from saga_spark.sinks.iceberg.iceberg_sink import IcebergSink
    from saga_spark.sinks.kafka.topic_sink import TopicSink
    from saga_spark.sinks.parquet.parquet_sink import ParquetSink
    from saga_spark.sinks.postgresql.postgresql_sink import PostgreSqlSink
    from saga_spark.staging.staging_attempt import StagingAttempt

    for sink in (IcebergSink, ParquetSink, PostgreSqlSink, TopicSink):
        for method in ("prepare", "publish", "revert", "clean_up"):
            _around(sink, method, lambda _, name=method: name)
    for method in ("write", "flush"):
        _around(TransactionalProducer, method, lambda _, name=method: name)
    run: Any = StagingAttempt._run_task

    @functools.wraps(run)
    async def gated(self: StagingAttempt, task: str, request: Any) -> Any:
        await _in_thread(f"before {task}")
        answer = await run(self, task, request)
        await _in_thread(f"after {task}")
        return answer

    StagingAttempt._run_task = gated  # type: ignore[method-assign]


async def _in_thread(point: str) -> None:
    import asyncio

    await asyncio.to_thread(wait_at, point)


def _around(owner: type, method: str, name: Callable[[Any], str]) -> None:
    original = getattr(owner, method)

    @functools.wraps(original)
    def gated(self: Any, *arguments: Any, **named: Any) -> Any:
        wait_at(f"before {name(self)}")
        answer = original(self, *arguments, **named)
        wait_at(f"after {name(self)}")
        return answer

    setattr(owner, method, gated)


class Breakpoint:
    """A breakpoint that is set: ``reached`` waits until one process, or so many, stopped there."""

    def __init__(self, connection: psycopg.Connection[Any], point: str) -> None:
        self._connection = connection
        self._point = point

    def reached(self, count: int = 1) -> None:
        end = time.monotonic() + TIMEOUT
        while self._connection.execute(_WAITING, (CLASS, self._point)).fetchall()[0][0] < count:
            assert time.monotonic() < end, f"too few processes reached {self._point!r}"
            time.sleep(0.05)


@contextmanager
def breakpoint_at(url: str, point: str) -> Iterator[Breakpoint]:
    """Set a breakpoint for the block."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(%s, hashtext(%s))", (CLASS, point))
        yield Breakpoint(connection, point)
