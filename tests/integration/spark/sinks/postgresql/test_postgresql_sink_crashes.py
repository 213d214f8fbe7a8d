"""A PostgreSQL table as a sink: killed and frozen publishers, two concurrent ones, and a polling reader."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from saga_spark.sinks.sink import Publication
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse
from tests.integration.spark.staged_outputs import Publisher

PUBLISH = "sink.publish([publication], state, together=False)"
REVERT = "sink.revert([publication], together=False)"
PLACE = "sink.prepare(publication)"

# The first two commits of a session only keep its settings, so the third one is meant.
COMMIT = "import itertools, psycopg; calls = itertools.count(1); at(psycopg.Connection, 'commit', {when!r}, {how}, lambda *_: next(calls) == 3)"  # noqa: E501
BEFORE = COMMIT.format(when="before", how="signal.SIGKILL")
AFTER = COMMIT.format(when="after", how="signal.SIGKILL")
FROZEN_BEFORE = COMMIT.format(when="before", how="signal.SIGSTOP")

OLD = ['(1,2026-01-01,1.50,"a, ""b""")', "(2,2026-01-02,2.00,)"]
NEW = ["(2,,,new)", "(3,,,new)", "(4,,,new)"]


@pytest.fixture
def warehouse(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


def overwrite(warehouse: Warehouse, *, saga: str = "s1", generation: int = 1) -> Publication:
    rows = [{"id": number, "note": "new"} for number in (2, 3, 4)]
    return warehouse.stage(warehouse.output("overwrite"), rows, files=2, saga=saga, generation=generation)


@pytest.fixture
def ours(warehouse: Warehouse) -> Publication:
    publication = overwrite(warehouse)
    warehouse.sink.prepare(publication)
    return publication


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("arm", [BEFORE, AFTER])
def test_a_publisher_is_killed(warehouse: Warehouse, ours: Publication, arm: str) -> None:
    code, output = Publisher(warehouse.settings, ours, None, arm, PUBLISH).outcome()
    assert code == -9, output
    assert warehouse.rows() == (OLD if arm == BEFORE else NEW)
    assert warehouse.again(ours).adopted == (arm == AFTER)
    assert warehouse.rows() == NEW
    warehouse.revert(ours)
    assert warehouse.rows() == OLD
    assert warehouse.tables() == {"sales", "saga_publication"}


@pytest.mark.parametrize("arm", [BEFORE, AFTER])
def test_an_undo_is_killed(warehouse: Warehouse, ours: Publication, arm: str) -> None:
    warehouse.again(ours)
    code, output = Publisher(warehouse.settings, ours, None, arm, REVERT).outcome()
    assert code == -9, output
    assert warehouse.rows() == (NEW if arm == BEFORE else OLD)
    warehouse.revert(ours)
    assert warehouse.rows() == OLD
    assert warehouse.tables() == {"sales", "saga_publication"}


@pytest.mark.parametrize("arm", [BEFORE, AFTER, "import psycopg; at(psycopg.Copy, 'write', 'after')"])
def test_a_process_loading_the_stage_table_is_killed(warehouse: Warehouse, arm: str) -> None:
    publication = overwrite(warehouse)
    code, output = Publisher(warehouse.settings, publication, None, arm, PLACE).outcome()
    assert code == -9, output
    warehouse.publish(publication)
    assert warehouse.rows() == NEW
    warehouse.revert(publication)
    assert warehouse.tables() == {"sales", "saga_publication"}


@pytest.mark.parametrize("undo", ["revert", "clean_up"])
def test_a_publisher_frozen_before_its_transaction_fails_after_the_undo(
    warehouse: Warehouse, ours: Publication, undo: str
) -> None:
    publisher = Publisher(
        warehouse.settings, ours, None, "at(type(sink), 'publish', 'before', signal.SIGSTOP)", PUBLISH
    )
    publisher.frozen()
    if undo == "revert":
        warehouse.revert(ours)
    else:
        warehouse.sink.clean_up(ours)
    publisher.thaw()
    code, output = publisher.outcome()
    assert (code, output.split(":")[0]) == (0, "CommitConflict")
    assert warehouse.rows() == OLD
    warehouse.sink.clean_up(ours)
    assert warehouse.tables() == {"sales", "saga_publication"}


def test_a_publisher_frozen_before_its_commit_is_terminated_by_the_server(
    warehouse: Warehouse, ours: Publication
) -> None:
    arm = (
        "import saga_spark.sinks.postgresql.postgresql_sink as module; "
        "module.TRANSACTION_TIMEOUTS['idle_in_transaction_session_timeout'] = '1s';"
    )
    publisher = Publisher(warehouse.settings, ours, None, arm + FROZEN_BEFORE, PUBLISH)
    publisher.frozen()
    warehouse.revert(ours)  # waits until the server has ended the frozen transaction, and goes before it
    publisher.thaw()
    code, output = publisher.outcome()
    assert (code, output.split(":")[0]) == (0, "InfrastructureError"), output
    assert warehouse.rows() == OLD


def test_two_concurrent_publishers_publish_once(warehouse: Warehouse, ours: Publication) -> None:
    publishers = [Publisher(warehouse.settings, ours, None, "", PUBLISH) for _ in range(2)]
    assert sorted(publisher.outcome() for publisher in publishers) == [(0, "adopted\n"), (0, "done\n")]
    assert warehouse.rows() == NEW
    assert warehouse.run("select count(*) from saga_publication") == [(1,)]


def test_two_concurrent_loads_leave_one_stage_table(warehouse: Warehouse) -> None:
    publication = overwrite(warehouse)
    loaders = [Publisher(warehouse.settings, publication, None, "", PLACE) for _ in range(2)]
    assert [loader.outcome() for loader in loaders] == [(0, "done\n")] * 2
    warehouse.publish(publication)
    assert warehouse.rows() == NEW


def test_a_reader_never_sees_a_mix(warehouse: Warehouse) -> None:
    over = threading.Event()

    def look() -> list[list[str]]:
        seen = []
        with psycopg.connect(warehouse.url, autocommit=True) as connection:
            while not over.is_set():
                seen.append([row for (row,) in connection.execute("select t::text from sales as t order by 1")])
        return seen

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(look)
        try:
            for generation in range(1, 9):
                publication = overwrite(warehouse, generation=generation)
                warehouse.sink.prepare(publication)
                warehouse.again(publication)
                warehouse.revert(publication)
        finally:
            over.set()
        seen = reader.result()
    assert len(seen) > 20
    assert all(content in (OLD, NEW) for content in seen)
    assert NEW in seen
