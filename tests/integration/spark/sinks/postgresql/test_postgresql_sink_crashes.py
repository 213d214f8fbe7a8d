"""A PostgreSQL table as a sink: killed and frozen publishers, two at once, and a reader who looks all the time."""

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
UNPUBLISH = "sink.unpublish([publication], together=False)"
PLACE = "sink.prepare(publication)"

# The first commit of a session only keeps its settings, so the second one is meant.
COMMIT = "import itertools, psycopg; calls = itertools.count(1); at(psycopg.Connection, 'commit', {when!r}, {how}, lambda *_: next(calls) == 2)"  # noqa: E501
BEFORE = COMMIT.format(when="before", how="signal.SIGKILL")
AFTER = COMMIT.format(when="after", how="signal.SIGKILL")
FROZEN_BEFORE = COMMIT.format(when="before", how="signal.SIGSTOP")

OLD = ['(1,2026-01-01,1.50,"a, ""b""")', "(2,2026-01-02,2.00,)"]
NEW = ["(2,,,new)", "(3,,,new)", "(4,,,new)"]


@pytest.fixture
def house(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path)


def overwrite(house: Warehouse, *, saga: str = "s1", generation: int = 1) -> Publication:
    rows = [{"id": number, "note": "new"} for number in (2, 3, 4)]
    return house.stage(house.output("overwrite"), rows, files=2, saga=saga, generation=generation)


@pytest.fixture
def ours(house: Warehouse) -> Publication:
    publication = overwrite(house)
    house.sink.prepare(publication)
    return publication


@pytest.mark.parametrize("arm", [BEFORE, AFTER])
def test_a_publisher_is_killed(house: Warehouse, ours: Publication, arm: str) -> None:
    code, said = Publisher(house.settings, ours, None, arm, PUBLISH).outcome()
    assert code == -9, said
    assert house.rows() == (OLD if arm == BEFORE else NEW)
    assert house.again(ours).adopted == (arm == AFTER)
    assert house.rows() == NEW
    house.unpublish(ours)
    assert house.rows() == OLD
    assert house.tables() == {"sales", "saga_publication"}


@pytest.mark.parametrize("arm", [BEFORE, AFTER])
def test_an_undo_is_killed(house: Warehouse, ours: Publication, arm: str) -> None:
    house.again(ours)
    code, said = Publisher(house.settings, ours, None, arm, UNPUBLISH).outcome()
    assert code == -9, said
    assert house.rows() == (NEW if arm == BEFORE else OLD)
    house.unpublish(ours)
    assert house.rows() == OLD
    assert house.tables() == {"sales", "saga_publication"}


@pytest.mark.parametrize("arm", [BEFORE, AFTER, "import psycopg; at(psycopg.Copy, 'write', 'after')"])
def test_who_loads_the_stage_table_is_killed(house: Warehouse, arm: str) -> None:
    publication = overwrite(house)
    code, said = Publisher(house.settings, publication, None, arm, PLACE).outcome()
    assert code == -9, said
    house.publish(publication)
    assert house.rows() == NEW
    house.unpublish(publication)
    assert house.tables() == {"sales", "saga_publication"}


@pytest.mark.parametrize("undo", ["unpublish", "clean_up"])
def test_a_publisher_that_froze_before_it_began_fails_after_the_undo(
    house: Warehouse, ours: Publication, undo: str
) -> None:
    publisher = Publisher(house.settings, ours, None, "at(type(sink), 'publish', 'before', signal.SIGSTOP)", PUBLISH)
    publisher.frozen()
    if undo == "unpublish":
        house.unpublish(ours)
    else:
        house.sink.clean_up(ours)
    publisher.thaw()
    code, said = publisher.outcome()
    assert (code, said.split(":")[0]) == (0, "CommitConflict")
    assert house.rows() == OLD
    house.sink.clean_up(ours)
    assert house.tables() == {"sales", "saga_publication"}


def test_a_publisher_that_froze_before_its_commit_is_ended_by_the_server(house: Warehouse, ours: Publication) -> None:
    arm = (
        "import saga_spark.sinks.postgresql.postgresql_sink as module; "
        "module.TRANSACTION_TIMEOUTS['idle_in_transaction_session_timeout'] = '1s';"
    )
    publisher = Publisher(house.settings, ours, None, arm + FROZEN_BEFORE, PUBLISH)
    publisher.frozen()
    house.unpublish(ours)  # waits until the server has ended the frozen transaction, and goes before it
    publisher.thaw()
    code, said = publisher.outcome()
    assert (code, said.split(":")[0]) == (0, "InfrastructureError"), said
    assert house.rows() == OLD


def test_two_publishers_at_once_publish_once(house: Warehouse, ours: Publication) -> None:
    publishers = [Publisher(house.settings, ours, None, "", PUBLISH) for _ in range(2)]
    assert sorted(one.outcome() for one in publishers) == [(0, "adopted\n"), (0, "done\n")]
    assert house.rows() == NEW
    assert house.run("select count(*) from saga_publication") == [(1,)]


def test_two_that_load_at_once_leave_one_stage_table(house: Warehouse) -> None:
    publication = overwrite(house)
    loaders = [Publisher(house.settings, publication, None, "", PLACE) for _ in range(2)]
    assert [one.outcome() for one in loaders] == [(0, "done\n")] * 2
    house.publish(publication)
    assert house.rows() == NEW


def test_a_reader_never_sees_a_mix(house: Warehouse) -> None:
    over = threading.Event()

    def look() -> list[list[str]]:
        seen = []
        with psycopg.connect(house.url, autocommit=True) as connection:
            while not over.is_set():
                seen.append([row for (row,) in connection.execute("select t::text from sales as t order by 1")])
        return seen

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(look)
        try:
            for generation in range(1, 9):
                publication = overwrite(house, generation=generation)
                house.sink.prepare(publication)
                house.again(publication)
                house.unpublish(publication)
        finally:
            over.set()
        seen = reader.result()
    assert len(seen) > 20
    assert all(one in (OLD, NEW) for one in seen)
    assert NEW in seen
