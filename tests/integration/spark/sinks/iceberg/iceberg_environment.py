"""A project with an Iceberg catalog for tests of the sink: SQL on PostgreSQL, or REST."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from saga_spark.settings import SparkSettings
from saga_spark.sinks.iceberg.iceberg_sink import IcebergSink
from saga_spark.sinks.sink import Publication, Published
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.iceberg.rest_catalog import serve
from tests.integration.spark.staged_outputs import stage

Rows = Sequence[Mapping[str, Any]]


@dataclass
class Lake:
    """One catalog named `lake`. Reading goes through pyiceberg alone, as any other reader would."""

    kind: str
    settings: SparkSettings

    @property
    def catalog(self) -> Catalog:
        return load_catalog("lake", **self.settings.catalogs["lake"])

    @property
    def sink(self) -> IcebergSink:
        return IcebergSink(self.settings)

    def table(self, name: str = "sales.facts") -> Table:
        return self.catalog.load_table(name)

    def exists(self, name: str = "sales.facts") -> bool:
        try:
            self.table(name)
        except NoSuchTableError:
            return False
        return True

    def rows(self, name: str = "sales.facts", by: str = "id") -> list[dict[str, Any]]:
        if not self.exists(name):
            return []
        return self.table(name).scan().to_arrow().sort_by(by).to_pylist()

    def ids(self, name: str = "sales.facts") -> list[int]:
        return [row["id"] for row in self.rows(name)]

    def staged(self, rows: pa.Table | Rows, table: str = "sales.facts", **more: Any) -> Publication:
        """``more``: arguments of :func:`stage`, and fields of the output."""
        words = {key: more.pop(key) for key in ("mode", "where", "key", "partition_by") if key in more}
        return stage(self.settings, {"table": f"lake.{table}", **words}, rows, **more)

    def publish(self, *publications: Publication, together: bool = False) -> list[Published]:
        for publication in publications:
            assert self.sink.check(publication) == []
            self.sink.prepare(publication)
        return self.sink.publish(publications, self.sink.read_state(publications), together=together)

    def revert(self, *publications: Publication, together: bool = False) -> list[Published]:
        return self.sink.revert(publications, together=together)

    def append(self, rows: Rows, name: str = "sales.facts") -> int:
        """Somebody else, who knows nothing of sagas."""
        table = self.table(name)
        table.append(pa.Table.from_pylist([dict(row) for row in rows], schema=table.schema().as_arrow()))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def files(self, pattern: str = "*/data/**/*.parquet") -> list[Path]:
        return sorted((self.settings.root / "warehouse").glob(f"**/{pattern}"))


def some(*ids: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}", **more} for number in ids]


@contextmanager
def open_lake(kind: str, server: DatabaseServer, root: Path, *, fails_after: list[int] | None = None) -> Iterator[Lake]:
    """An empty catalog, its warehouse below ``root``. ``kind``: `sql`, `rest`, or `plain` (REST for single tables).

    ``fails_after``: see :func:`serve`.
    """
    with psycopg.connect(server.url()) as connection:
        connection.execute("drop table if exists iceberg_tables, iceberg_namespace_properties")
    sql = {
        "type": "sql",
        "uri": server.url().replace("postgresql://", "postgresql+psycopg://"),
        "warehouse": f"file://{root}/warehouse",
    }
    backing = SqlCatalog("lake", **sql)
    stage_area = (root / "stage").as_uri()
    try:
        if kind == "sql":
            yield Lake(kind, SparkSettings(root=root, stage=stage_area, catalogs={"lake": sql}))
            return
        with serve(backing, transactions=kind == "rest", fails_after=fails_after) as address:
            rest = {"type": "rest", "uri": address, "multi_table_commit": True}
            yield Lake(kind, SparkSettings(root=root, stage=stage_area, catalogs={"lake": rest}))
    finally:
        backing.close()
