"""A server that loses what is not on disk: the progress of the relay is on disk, whatever the database says of commits.

The server is killed, and has a WAL writer that would have written asynchronous commits only after ten seconds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.helpers.database_servers import postgres
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events


async def test_nothing_is_published_again_after_a_crash_without_synchronous_commits(
    kafka: Broker, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(kafka.create_topic)
    with postgres() as server:
        env = OutboxEnvironment(server, kafka, tmp_path, transaction_timeout=15.0, batch=20)
        await env.make_tables()
        with env.connect() as connection:
            connection.execute("alter system set wal_writer_delay = '10s'")
            connection.execute("select pg_reload_conf()")
            with connection.transaction():
                env.insert(connection, *events(topic, 200, keys=1))
            connection.execute(f"alter database {env.database} set synchronous_commit = off")  # pyright: ignore[reportArgumentType, reportCallIssue]
        async with env.relaying():
            await env.all_published()
        server.kill()
        server.start()
        async with env.relaying():
            await env.all_published()
        await asyncio.to_thread(env.check, topic)
        assert env.statuses() == {"PUBLISHED": 200}
