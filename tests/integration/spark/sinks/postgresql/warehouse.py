"""A PostgreSQL database for tests of the sink: what is in its tables, and shortcuts to publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from saga_spark.settings import SparkSettings
from saga_spark.sinks.postgresql.postgresql_sink import PostgreSqlSink
from saga_spark.sinks.sink import Publication, Published
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.spark.staged_outputs import stage

SALES = """
create table sales (id bigint primary key, day date, amount numeric(12, 2), note text);
insert into sales values (1, '2026-01-01', 1.50, 'a, "b"'), (2, '2026-01-02', 2.00, null);
"""


@dataclass
class Warehouse:
    """One database of its own."""

    settings: SparkSettings
    url: str
    sink: PostgreSqlSink

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)  # pyright: ignore
            return cursor.fetchall() if cursor.description else []

    def rows(self, table: str = "sales") -> list[str]:
        """The whole table, every row as text: equal means exactly equal."""
        return [row for (row,) in self.run(f"select t::text from {table} as t order by 1")]

    def tables(self) -> set[str]:
        return {name for (name,) in self.run("select tablename from pg_tables where schemaname = 'public'")}

    def output(self, mode: str = "append", table: str = "sales", **more: Any) -> dict[str, Any]:
        return {"connection": "shop", "table": table, "mode": mode, **more}

    def stage(
        self, output: Mapping[str, Any], rows: pa.Table | Sequence[Mapping[str, Any]], **more: Any
    ) -> Publication:
        return stage(self.settings, output, rows, **more)

    def publish(self, publication: Publication) -> Published:
        self.sink.validate(publication.output)
        assert self.sink.check(publication) == []
        self.sink.prepare(publication)
        return self.again(publication)

    def again(self, publication: Publication) -> Published:
        return self.sink.publish([publication], self.sink.read_state([publication]), together=False)[0]

    def revert(self, publication: Publication) -> Published:
        return self.sink.revert([publication], together=False)[0]


def open_warehouse(server: DatabaseServer, folder: Path, ddl: str = SALES) -> Warehouse:
    url = new_database(server)
    settings = SparkSettings(root=folder, stage=(folder / "stage").as_uri(), connections={"shop": url})
    warehouse = Warehouse(settings, url, PostgreSqlSink(settings))
    warehouse.run(ddl)
    return warehouse


def sale(id: int, day: int = 3, amount: str = "9.99", note: str | None = "new") -> dict[str, Any]:
    return {"id": id, "day": date(2026, 1, day), "amount": Decimal(amount), "note": note}


OLD = ['(1,2026-01-01,1.50,"a, ""b""")', "(2,2026-01-02,2.00,)"]
MODES = {
    "append": ({}, [sale(3), sale(4, note=None)], [*OLD, "(3,2026-01-03,9.99,new)", "(4,2026-01-03,9.99,)"]),
    "overwrite": ({}, [sale(2), sale(3)], ["(2,2026-01-03,9.99,new)", "(3,2026-01-03,9.99,new)"]),
    "overwrite_where": ({"where": {"day": "2026-01-02"}}, [sale(5, 2)], [OLD[0], "(5,2026-01-02,9.99,new)"]),
    "merge": ({"key": "id"}, [sale(2), sale(3)], [OLD[0], "(2,2026-01-03,9.99,new)", "(3,2026-01-03,9.99,new)"]),
}
