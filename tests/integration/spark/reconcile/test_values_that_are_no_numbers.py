"""Values that Python or Spark has no form for, such as NaN and infinity, in the rows that a reconciliation reads."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from saga_spark.job_errors import UnreadableInput
from saga_spark.reconcile.comparison import compare_inputs
from saga_spark.reconcile.extracts import ReconciliationScope, extract_database
from saga_spark.settings import SparkSettings
from sagas.errors import SagaError
from sagas.settings.reconcile import EffectTable
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.small_spark import task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = 1_790_000_000.0
NO_TIME = r"\[\[reconcile.effects\]\] odd: the time of the row \{\"id\":1\} is '%s', which is not a time"


async def read(server: DatabaseServer, folder: Path, kind: str, value: str, **declared: Any) -> list[dict[str, Any]]:
    """The rows of a table ``odd`` with the columns id and v."""
    url = new_database(server)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"create table odd (id int, v {kind})".encode())
        connection.execute(f"insert into odd values (1, {value})".encode())
    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    effects = EffectTable(**{"connection": "shop", "table": "odd", "key": ("id",), "saga_id": "'s'", **declared})
    try:
        await extract_database(engine, "shop", [effects], folder, ReconciliationScope(), [effects])
    finally:
        await engine.dispose()
    return pq.read_table(folder / "effects" / "odd.parquet").to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "seconds"),
    [
        ("timestamptz", "'infinity'", inf),
        ("timestamp", "'-infinity'", -inf),
        ("date", "'infinity'", inf),
        ("date", "'2026-09-21'", 1_789_948_800.0),
        ("timestamptz", "'12000-01-01'", inf),
        ("timestamptz", "'0044-03-15 BC'", -inf),
        ("float8", "'Infinity'", inf),
        ("numeric", "1.5", 1.5),
        ("text", "'-infinity'", -inf),
    ],
)
async def test_a_time_of_any_kind_is_compared(
    postgres_server: DatabaseServer, tmp_path: Path, kind: str, value: str, seconds: float
) -> None:
    (row,) = await read(postgres_server, tmp_path, kind, value, time="v")
    assert row["time"] == seconds


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("float8", "'NaN'", "nan"),
        ("numeric", "'NaN'", "NaN"),
        ("text", "'soon'", "soon"),
        ("bool", "true", "True"),
        ("interval", "'1 day'", "1 day, 0:00:00"),
    ],
)
async def test_what_is_no_time_is_refused_with_its_row(
    postgres_server: DatabaseServer, tmp_path: Path, kind: str, value: str, shown: str
) -> None:
    with pytest.raises(SagaError, match=NO_TIME % shown):
        await read(postgres_server, tmp_path, kind, value, time="v")


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("timestamptz", "'infinity'", '{"v":"infinity"}'),
        ("date", "'-infinity'", '{"v":"-infinity"}'),
        ("numeric", "'NaN'", '{"v":"NaN"}'),
        ("float8[]", "'{NaN,1}'", '{"v":["nan",1.0]}'),
    ],
)
async def test_a_key_of_any_kind_identifies_its_row(
    postgres_server: DatabaseServer, tmp_path: Path, kind: str, value: str, key: str
) -> None:
    (row,) = await read(postgres_server, tmp_path, kind, value, key=("v",))
    assert row["row"] == key


def test_only_values_of_compared_columns_are_refused(
    spark: SparkSession, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    url = new_database(postgres_server).replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table l (id int, day date, n numeric, odd numeric, until timestamptz)")
        connection.execute("create table r (nr int, day date, n numeric, odd date)")
        connection.execute("insert into l values (1, '2026-01-01', 2.5, 'NaN', 'infinity')")
        connection.execute("insert into r values (1, '2026-01-01', 2.50, '-infinity')")
    settings = SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri(), connections={"shop": url})
    sides = {
        name: {"kind": "connection", "values": {"connection": "shop", "table": name[0]}} for name in ("left", "right")
    }

    def compare(**arguments: Any) -> str:
        request = {"inputs": sides, "folder": (tmp_path / f"{len(arguments)}").as_uri(), "known": {}}
        given = {"left": {}, "right": {}, "key": "id", "mapping": {"id": "nr"}, **arguments}
        return compare_inputs(task_context(spark, settings), {**request, "arguments": given})["verdict"]

    assert compare(compare="n", filter={"day": ["2026-01-01"]}) == "equal"
    with pytest.raises(UnreadableInput, match=r"the input left has the value NaN in the column odd"):
        compare(compare=["n", "odd"])
