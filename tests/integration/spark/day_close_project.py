"""A small shop whose day is closed by Spark: a project on disk, a real PostgreSQL, a real Iceberg catalog."""

from __future__ import annotations

import textwrap
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.rows import dict_row

from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database

SCHEMA = """
create table if not exists orders (order_id bigint primary key, day date not null, product_id int not null,
    channel text, amount numeric(12,2) not null);
create table if not exists commissions (saga_id text primary key, amount numeric(12,2) not null);
create table if not exists told (saga_id text primary key);
"""

ACTIONS = """
from __future__ import annotations

from sagas import Rejected, Step, action


@action("finance.charge", connection="shop")
async def charge(step: Step, total: str, refuse: bool = False) -> dict:
    if refuse:
        raise Rejected("the agency refuses the commission")
    await step.sql.execute(
        "insert into commissions values (:id, cast(:total as numeric) / 10)", id=step.saga_id, total=total)
    return {"total": total}


@action("finance.refund", connection="shop")
async def refund(step: Step) -> None:
    await step.sql.execute("delete from commissions where saga_id = :id", id=step.saga_id)
"""

JOBS = """
from __future__ import annotations

from pyspark.sql import functions as F


def daily_facts(spark, inputs, day, factor="1"):
    amount = (F.col("amount") * F.lit(factor).cast("decimal(3,1)")).cast("decimal(12,2)")
    orders = inputs.orders.withColumn("amount", amount)
    return orders.join(F.broadcast(inputs.products), "product_id", "left").select(
        "order_id", "day", "product_id", "name", "channel", "amount")
"""

INSTALL = """

from tests.integration.spark.sagas.breakpoints import install

install()
"""

GATED = """

def both(spark, inputs):
    from tests.integration.spark.sagas.breakpoints import wait_at

    wait_at("in the job")
    facts = inputs.orders
    totals = facts.withColumn("name", F.lit("all")).groupBy("day", "name").agg(F.sum("amount").alias("amount"))
    return {"facts": facts, "totals": totals}
"""

DAY = """
saga: day
publish: {publish}
input:
  type: object
  required: [day]
  properties:
    day: {{type: string}}
    factor: {{type: string, default: "1"}}
    refuse: {{type: boolean, default: false}}
steps:
  - id: count
    uses: sql
    effect: none
    with:
      connection: shop
      run: select count(*) as n, coalesce(sum(amount), 0)::text as total from orders where day = cast(:day as date)
      params: {{day: "${{{{ input.day }}}}"}}
  - id: facts
    name: The facts of the day
    uses: spark
    heartbeat: 5s
    with:
      job: jobs:daily_facts
      inputs:
        orders: {{connection: shop, table: orders, where: "day = date :day", params: {{day: "${{{{ input.day }}}}"}}}}
        products: {{parquet: products.parquet}}
      params: {{day: "${{{{ input.day }}}}", factor: "${{{{ input.factor }}}}"}}
      output: {facts}
      audit:
        - rows: {{equals: "${{{{ steps.count.result[0].n }}}}"}}
        - sum: {{column: amount, equals: "${{{{ steps.count.result[0].total }}}}", tolerance: 0.005}}
        - unique: [order_id]
        - not_null: [order_id, day, name]
        - accepted_values: {{column: channel, values: [store, web]}}
        - relationships: {{column: product_id, to: {{parquet: products.parquet}}, field: product_id}}
        - expression: amount >= 0
        - sql: select * from output where amount > 100000
        - reconcile:
            with: {{connection: shop, table: orders, where: {{day: "${{{{ input.day }}}}"}}}}
            key: [order_id]
            compare: [amount]
            tolerance: 0.005
  - id: totals
    uses: spark
    heartbeat: 5s
    with:
      sql: select day, name, sum(amount) as amount from facts group by day, name
      inputs: {{facts: {{step: facts}}}}
      output: {totals}
  - id: commission
    uses: finance.charge
    with: {{total: "${{{{ steps.count.result[0].total }}}}", refuse: "${{{{ input.refuse }}}}"}}
    compensate: {{uses: finance.refund, with: {{}}}}
output: {{rows: "${{{{ steps.facts.result.rows }}}}"}}
"""

BRIEF = """
saga: day
publish: {publish}
input:
  type: object
  required: [day]
  properties:
    day: {{type: string}}
    refuse: {{type: boolean, default: false}}
steps:
  - id: facts
    name: The facts of the day
    uses: spark
    heartbeat: 5s
    retry: {{max_attempts: 50, max_interval: 2s}}  # attempts are also given to a worker that is frozen
    with:
      job: jobs:both
      inputs: {{orders: {{connection: shop, table: orders, where: {{day: "${{{{ input.day }}}}"}}}}}}
      outputs: {{facts: {facts}, totals: {totals}}}
      audit:
        - rows: {{min: 1}}
        - not_null: [order_id]
  - id: commission
    uses: finance.charge
    with: {{total: "1.00", refuse: "${{{{ input.refuse }}}}"}}
    compensate: {{uses: finance.refund, with: {{}}}}
"""
"""The same in little: one step with two outputs, counted in the write pass alone."""

ICEBERG = {"facts": "{table: lake.sales.facts}", "totals": "{table: lake.sales.totals}"}
PARQUET = {"facts": "{parquet: out/facts}", "totals": "{parquet: out/totals, mode: overwrite}"}
POSTGRESQL = {
    "facts": "{connection: shop, table: facts, key: [order_id]}",
    "totals": "{connection: shop, table: totals, mode: merge, key: [day, name]}",
}


@dataclass
class DayCloseProject:
    """The project, and looks at it from outside."""

    folder: Path
    project: Project
    url: str

    @property
    def stage(self) -> Path:
        return self.folder / ".saga" / "spark" / "stage"

    def staged(self) -> list[str]:
        """Every file in the stage area."""
        return sorted(str(path.relative_to(self.stage)) for path in self.stage.rglob("*") if path.is_file())

    def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        with psycopg.Connection[dict[str, Any]].connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(statement, parameters).fetchall()  # type: ignore[arg-type]

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(statement, parameters)  # type: ignore[arg-type]

    def lake(self, table: str) -> list[dict[str, Any]] | None:
        """Rows of a table in the catalog; None: there is no such table."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = load_catalog("lake", **self.project.settings.catalogs["lake"])
        try:
            return catalog.load_table(table).scan().to_arrow().to_pylist()
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def read(day_close: DayCloseProject, outputs: Any) -> tuple[Any, Any]:
    """The rows of both outputs as a reader sees them; None: there is nothing to see."""
    if outputs is ICEBERG:
        return day_close.lake("sales.facts"), day_close.lake("sales.totals")
    if outputs is PARQUET:
        import pyarrow.parquet as pq

        from saga_spark.sinks.parquet.parquet_pointer import read_pointer

        collected = []
        for name in ("facts", "totals"):
            place = day_close.folder / "out" / name
            files = read_pointer(str(place)) if (place / "_current.json").exists() else []
            collected.append([row for file in files for row in pq.read_table(file).to_pylist()])
        return collected[0], collected[1]
    tables = {row["table_name"] for row in day_close.query("select table_name from information_schema.tables")}
    facts, totals = (
        day_close.query(f"select * from {name}") if name in tables else None for name in ("facts", "totals")
    )
    return facts, totals


async def open_day_close_project(
    folder: Path,
    server: DatabaseServer,
    temporal_address: str,
    outputs: Mapping[str, str] = ICEBERG,
    *,
    publish: str = "each",
    breakpoints: bool = False,
    ledger: str | None = None,
    catalog: str | None = None,
    more: str = "",
) -> DayCloseProject:
    """A new project with ten orders on 2026-01-01 and two on the next day. ``ledger``: the URL of a database of its own
    for the rows of Spark steps. ``catalog``: the lines of the catalog, by default one in SQL. ``more`` are lines for
    saga.toml."""
    url = new_database(server)
    _write_files(folder, url, temporal_address, outputs, publish)
    if catalog is not None:
        settings = (folder / "saga.toml").read_text().partition("[catalogs.lake]")[0]
        (folder / "saga.toml").write_text(f"{settings}[catalogs.lake]\n{catalog}")
    with (folder / "saga.toml").open("a") as file:
        file.write(more)
    if ledger is not None:
        settings = (folder / "saga.toml").read_text().replace('ledger = "shop"', 'ledger = "books"')
        (folder / "saga.toml").write_text(f'{settings}\n[connections.books]\nurl = "{ledger}"\n')
    if breakpoints:
        (folder / "day.saga.yaml").write_text(BRIEF.format(publish=publish, **outputs))
        (folder / "shop_actions.py").write_text(ACTIONS + INSTALL)
        (folder / "jobs.py").write_text(JOBS + GATED)
    project = Project(load_settings(config=str(folder / "saga.toml")))
    for connection in project.settings.sql_connections():
        await set_up_database(connection)
    day_close = DayCloseProject(folder, project, url)
    names = ("order", "day", "product", "channel", "amount")
    rows = [
        (number, "2026-01-01", number % 3 + 1, "store" if number % 2 else "web", f"{number}.50") for number in range(10)
    ]
    rows += [(number, "2026-01-02", 1, "web", "1.00") for number in (10, 11)]
    for row in rows:
        day_close.execute(
            "insert into orders values (%(order)s, %(day)s, %(product)s, %(channel)s, %(amount)s)",
            dict(zip(names, row, strict=True)),
        )
    return day_close


def _write_files(folder: Path, url: str, temporal_address: str, outputs: Mapping[str, str], publish: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.sql").write_text(SCHEMA)
    (folder / "shop_actions.py").write_text(textwrap.dedent(ACTIONS))
    (folder / "jobs.py").write_text(JOBS)
    (folder / "day.saga.yaml").write_text(DAY.format(publish=publish, **outputs))
    products = pa.table({"product_id": pa.array([1, 2, 3], pa.int32()), "name": ["apple", "pear", "plum"]})
    pq.write_table(products, folder / "products.parquet")
    (folder / "saga.toml").write_text(
        f"""
definitions = ["."]
actions = ["./shop_actions.py"]
[temporal]
address = "{temporal_address}"
task_queue = "spark-{uuid.uuid4()}"
[connections.shop]
url = "{url}"
schema = "schema.sql"
[spark]
master = "local[2]"
ledger = "shop"
[spark.conf]  # a handful of rows: what would make large queries fast takes longer here than it saves
"spark.sql.shuffle.partitions" = "2"
"spark.ui.enabled" = "false"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
[catalogs.lake]
type = "sql"
uri = "{url.replace("postgresql://", "postgresql+psycopg://")}"
warehouse = "{(folder / "warehouse").as_uri()}"
"""
    )
