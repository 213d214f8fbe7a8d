"""Streams: a batch that comes again writes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest

from saga_spark.job import streaming
from saga_spark.runner.java import class_archive_options
from sagas.errors import UsageError
from tests.helpers.database_servers import DatabaseServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    session = there or (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_archive_options()}")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    if there is None:
        session.stop()


def test_a_repeated_batch_writes_nothing(spark: SparkSession, server: DatabaseServer, tmp_path: Path) -> None:
    url = server.url()
    with psycopg.connect(url) as connection:
        connection.execute("drop table if exists readings, saga_stream_batch")
        connection.execute("create table readings (id bigint, word text)")
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.json").write_text('{"id": 1, "word": "one"}\n{"id": 2, "word": null}\n')
    stream = spark.readStream.schema("id bigint, word string").json(source.as_uri())
    batches = streaming.write_batch_once(url, "readings", "public.readings")

    def drain(number_of_checkpoint: int) -> None:
        checkpoint = (tmp_path / f"checkpoint-{number_of_checkpoint}").as_uri()
        query = stream.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    def rows(query: LiteralString = "select id, word from readings order by id") -> list[tuple[object, ...]]:
        with psycopg.connect(url) as connection:
            return connection.execute(query).fetchall()

    drain(1)
    assert rows() == [(1, "one"), (2, None)]
    drain(2)  # a lost checkpoint: Spark sends batch 0 again
    assert rows() == [(1, "one"), (2, None)]
    assert rows("select query, batch, row_count from saga_stream_batch") == [("readings", 0, 2)]

    def breaks(connection: psycopg.Connection[tuple[object, ...]], frame: object) -> int:
        connection.execute("insert into readings values (9, 'half')")
        raise RuntimeError("the power went")

    frame = spark.sql("select 3L as id, 'three' as word")
    with pytest.raises(RuntimeError):
        streaming.write_batch_once(url, "readings", breaks)(frame, 1)
    assert len(rows()) == 2, "neither the rows nor the number"
    batches(frame, 1)
    batches(frame, 1)
    assert rows()[-1] == (3, "three")
    assert len(rows()) == 3
    streaming.write_batch_once(url, "another", "readings")(frame, 1)
    assert len(rows()) == 4, "numbers belong to a query"
    with pytest.raises(UsageError, match="is not a name of a query"):
        streaming.write_batch_once(url, "", "readings")


def test_a_timestamp_is_the_same_instant_in_every_zone(
    spark: SparkSession, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the zone of the process, of the session of Spark, and of the role of the database."""
    url = server.url()
    with psycopg.connect(url) as connection:
        connection.execute("drop table if exists moments; create table moments (at timestamptz, more timestamptz[])")
        connection.execute("alter role current_user set timezone = 'Asia/Kolkata'")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        instants = "timestamp'2026-11-01 05:30:00Z' as at, array(timestamp'2026-11-01 06:30:00Z') as more"
        streaming.write_batch_once(url, "moments", "moments")(spark.sql(f"select {instants}"), 0)
    finally:
        monkeypatch.undo()
        time.tzset()
        with psycopg.connect(url) as connection:
            connection.execute("alter role current_user reset all")
    with psycopg.connect(url) as connection:
        connection.execute("set timezone = 'UTC'")
        assert connection.execute("select at::text, more::text from moments").fetchall() == [
            ("2026-11-01 05:30:00+00", '{"2026-11-01 06:30:00+00"}')
        ]
