"""`saga relay --status`: who publishes, what waits, and what open transactions hold back."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.tables_messaging import outbox_home
from saga_activities.kafka.topics import Cluster, KafkaProblem
from saga_activities.outbox import HELD, NEW, REFUSED
from saga_workers.databases import database_says
from saga_workers.relay.held import undecided
from saga_workers.relay.lag import Lag, read_lag, topics_used
from saga_workers.relay.lease import Leases
from saga_workers.relay.publisher import progress_topic, transactional_id
from saga_workers.relay.rows import OutboxRows
from saga_workers.relay.run import open_databases
from sagas.errors import SagaError
from sagas.settings import KafkaSettings, Settings

_PATIENCE = 15.0


async def relay_status(settings: Settings, connection: str | None = None) -> dict[str, Any]:
    """What is known of every outbox. What does not answer has an ``error`` with one sentence instead.

    Raises UsageError: the project has no database, or none of that name.
    """
    databases = open_databases(settings, connection, 2)
    try:
        found = await asyncio.gather(
            *(_outbox(settings.kafka, name, databases.engine(name)) for name in databases.names())
        )
    finally:
        await databases.close()
    return {"outboxes": [one for one in found if one is not None]}


async def _outbox(kafka: KafkaSettings, name: str, engine: AsyncEngine) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(_PATIENCE):
            async with engine.connect() as connection:
                if not await connection.run_sync(lambda sync: inspect(sync).has_table(outbox_home.name)):
                    return None
            home = await OutboxRows(engine).home()
            holders = await Leases(engine, "").holders()
            lag, topics = await read_lag(engine), await topics_used(engine)
            waiting = [one.to_json() for one in await undecided(engine)]
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return {"connection": name, "error": f"the database does not answer: {database_says(error)}"}
    shards = []
    for number in range(home.shards):
        holder = holders.get(number)
        shards.append(
            {
                "shard": number,
                "owner": holder.owner if holder and holder.owner and not holder.expired else None,
                "transactional_id": transactional_id(kafka, home.home, number),
                "new": lag.of(NEW, number).events,
                "oldest_seconds": round(lag.of(NEW, number).oldest, 3),
            }
        )
    answer: dict[str, Any] = {
        "connection": name,
        "home": home.home,
        "shards": shards,
        **_totals(lag),
        "for_a_person": waiting,
    }
    try:
        answer |= await asyncio.to_thread(_ask_kafka, kafka, progress_topic(kafka, home.home), shards, topics)
        if answer["new"]:
            answer |= await asyncio.to_thread(_ask_why, kafka, progress_topic(kafka, home.home))
    except SagaError as error:
        answer["kafka_error"] = error.message
    return answer


def _totals(lag: Lag) -> dict[str, Any]:
    return {
        "new": lag.total(NEW).events,
        "oldest_seconds": round(lag.total(NEW).oldest, 3),
        "held": lag.total(HELD).events,
        "held_oldest_seconds": round(lag.total(HELD).oldest, 3),
        "refused": lag.total(REFUSED).events,
    }


def _ask_kafka(kafka: KafkaSettings, progress: str, shards: list[dict[str, Any]], topics: list[str]) -> dict[str, Any]:
    """A shard whose progress partition has undecided records is in a transaction that is about to be committed."""
    cluster = Cluster(kafka)
    there = cluster.topics()
    ours = cluster.offsets(progress) if progress in there else {}
    for shard in shards:
        offsets = ours.get(shard["shard"])
        shard["open_transaction"] = offsets is not None and offsets.undecided > 0
    told = []
    for topic in topics:
        if topic not in there:
            told.append({"topic": topic, "error": cluster.missing([topic]).get(topic, "it is not there")})
        elif "WRITE" not in cluster.allowed(topic):
            told.append({"topic": topic, "error": "this user may not write to the topic: an ACL is missing (WRITE)"})
        else:
            told.append({"topic": topic, "lso_lag": sum(one.undecided for one in cluster.offsets(topic).values())})
    return {"topics": told}


def _ask_why(kafka: KafkaSettings, progress: str) -> dict[str, Any]:
    """Events wait: may a relay with these settings do what it does first?"""
    cluster = Cluster(kafka)
    try:
        cluster.check_transactions(f"{progress}-status")
        if progress not in cluster.topics():
            return {}  # a relay makes it, and says if it may not
        lacking = [one for one in ("READ", "WRITE") if one not in cluster.allowed(progress)]
    except KafkaProblem as problem:
        return {"publishing_error": problem.message}
    if not lacking:
        return {}
    return {"publishing_error": f"Kafka, topic {progress}: an ACL is missing ({' and '.join(lacking)})"}
