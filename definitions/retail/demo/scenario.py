"""Runs a whole demo: starts the stack, opens the shop, lets the week's baskets through, and steps in where needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import WorkflowFailureError

from saga_spark.settings import spark_settings
from saga_workers.client import Client
from saga_workers.devstack.stack import Stack
from saga_workers.runtime.databases import open_command_engine, set_up_database
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from sagas.settings import HttpService, Settings, load_settings

from .accounts import Accounts, BasketState, check_accounts
from .order_channel import FINANCE_CONNECTION as FINANCE
from .order_channel import OrderChannel, open_channel
from .plan import DemoPlan, PlannedOrder, make_plan
from .shop import hire_lorry, next_round, open_shop, reset_earlier_demo
from .shopfront import SHOPFRONT_CONNECTION as SHOPFRONT
from .shopfront import Shopfront, open_shopfront, shared_secret
from .week import Week, read_week

SAGAS = ("checkout", "checkout-tcc", "weekly-order", "day-close")
IN_FLIGHT = 40  # sagas under way at once; more would only wait in queues
# Seconds between two questions whether a saga is parked: a parked one never ends by itself. The first order is known
# to park, and all others wait for it; each question costs the worker some work.
FIRST_POLL_INTERVAL = 0.5
POLL_INTERVAL = 5.0
SETTLE_SECONDS = 2.0  # seconds
APPROVAL = "approve"


OnEnd = Callable[[PlannedOrder, SagaView], None]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BasketOutcome:
    """One order and how its saga stands."""

    order: PlannedOrder
    view: SagaView


def project_file() -> Path:
    """The settings of the project that this program belongs to."""
    return Path(__file__).resolve().parents[1] / "saga.toml"


async def open_demo(baskets: int, report: Report, config: Path | str | None = None) -> Demo:
    """Start the stack and open the shop for the first ``baskets`` baskets of the week.

    ``config`` is the saga.toml of a copy of the demo's project; default: see :func:`project_file`.

    Raises UsageError or SagaError, one sentence, when something is missing or does not start.
    """
    config = config or project_file()
    report("reading a week of the shop, and starting Temporal, PostgreSQL, Kafka and a worker …")
    # Side by side: reading keeps one core busy, starting mostly waits.
    week, settings = await asyncio.gather(
        asyncio.to_thread(read_week, baskets), asyncio.to_thread(_start_stack, config, report)
    )
    client = await Client.connect(Project(settings))
    for name in ("shop", FINANCE):
        await set_up_database(settings.sql_connection(name), settings.kafka.shards)
    engine = open_command_engine(settings.sql_connection("shop"))
    channel = open_channel(settings, engine)
    ended = await _terminate_earlier(client)
    if ended:
        report(f"the shop is reset; unfinished sagas of an earlier demo terminated: {ended}")
    plan = make_plan(week)
    number = await next_round(engine)
    if number > 1:
        # An attempt that the worker already holds still writes; it must not write into the new shop.
        stage = spark_settings(settings).stage
        await reset_earlier_demo(engine, stage, SETTLE_SECONDS if ended else 0.0, channel.drain)
    await open_shop(engine, week, plan)
    channel = await channel.from_now_on()
    return Demo(settings, client, engine, week, plan, number, time.time(), channel, _open_shopfront(settings))


@dataclass(frozen=True, slots=True)
class Demo:
    """A shop that is open. ``round`` counts the demos of this database and keeps their saga ids apart; ``opened_at`` is
    in seconds since the epoch. ``shopfront`` hears notifications; None: somebody else listens where it should."""

    settings: Settings
    client: Client
    engine: AsyncEngine
    week: Week
    plan: DemoPlan
    round: int
    opened_at: float
    channel: OrderChannel
    shopfront: Shopfront | None

    def saga_id(self, order: PlannedOrder) -> str:
        return f"{order.saga}-{order.basket.id}-r{self.round}"

    async def run(self, on_end: OnEnd) -> list[BasketOutcome]:
        """Start a saga for every basket and follow each until it has ended or is parked."""
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def run_and_report(order: PlannedOrder, look_again: float = POLL_INTERVAL) -> BasketOutcome:
            async with slots:
                view = await self._run_one(order, look_again)
            on_end(order, view)
            return BasketOutcome(order, view)

        # The oversized order goes first and alone: so the shelves hold what it wants, and it gets to the warehouse.
        first, *others = self.plan.orders
        outcomes = [await run_and_report(first, FIRST_POLL_INTERVAL)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run_and_report(order)) for order in others]
        return outcomes + [task.result() for task in tasks]

    async def wait_again(self, outcome: BasketOutcome) -> BasketOutcome:
        """Wait again for a saga that somebody has helped on."""
        return BasketOutcome(outcome.order, await wait_for_end(self.client, self.saga_id(outcome.order), None))

    async def hire_lorry(self) -> str:
        """Add a carrier, as the warehouse would for an order that none takes; returns the SQL."""
        return await hire_lorry(self.engine)

    async def check(self, outcomes: Sequence[BasketOutcome]) -> Accounts:
        """Hold the books of the shop against what the sagas say."""
        runs = [
            BasketState(
                outcome.order.basket.id, outcome.order.saga, outcome.view.state, outcome.view.phase or "forward"
            )
            for outcome in outcomes
        ]
        return await check_accounts(self.engine, runs)

    async def close(self) -> None:
        """Let go of the databases, and close the web site; the stack goes on running."""
        if self.shopfront is not None:
            await asyncio.to_thread(self.shopfront.close)
        await self.channel.close()
        await self.engine.dispose()

    async def _run_one(self, order: PlannedOrder, look_again: float) -> SagaView:
        saga_id = self.saga_id(order)
        await self.client.start(order.saga, order.input, id=saga_id)
        if order.saga == "weekly-order":
            await self._approve_or_reject(saga_id, order)
        return await wait_for_end(self.client, saga_id, look_again)

    async def _approve_or_reject(self, saga_id: str, order: PlannedOrder) -> None:
        """The manager's word on a large order. An order that waits for none never reads it."""
        limit = self.week.limits[order.basket.household]
        refusal = f"{order.basket.amount} is above the household's limit of {limit}"
        await self.client.signal(
            saga_id,
            APPROVAL,
            {"limit": str(limit)},
            who="manager",
            reject=refusal if order.basket.amount > limit else None,
        )


def _open_shopfront(settings: Settings) -> Shopfront | None:
    connection = settings.connection(SHOPFRONT)
    assert isinstance(connection, HttpService)
    assert connection.signing_secret is not None
    secret = shared_secret(settings.root / connection.signing_secret.location)
    return open_shopfront(connection.url, secret)


def _start_stack(config: Path | str, report: Report) -> Settings:
    Stack(load_settings(config=config), report).up()
    return load_settings(config=config)


async def _terminate_earlier(client: Client) -> int:
    """Terminate what an earlier demo left open: its goods and accounts are about to be replaced."""
    names = ", ".join(f"'{name}'" for name in SAGAS)
    query = f"ExecutionStatus = 'Running' AND WorkflowType IN ({names})"
    saga_ids = [execution.id async for execution in client.temporal.list_workflows(query)]
    for saga_id in saga_ids:
        handle = client.temporal.get_workflow_handle(saga_id)
        await handle.terminate("saga demo: the shop was reset with new goods and accounts")
    return len(saga_ids)


# Follows one saga until it has ended, or until only a person can help it on.


async def wait_for_end(client: Client, saga_id: str, poll_interval: float | None) -> SagaView:
    """The view at the end, or once it is parked, which is asked every ``look_again`` seconds (None: never)."""
    handle = client.temporal.get_workflow_handle(saga_id)
    while True:
        try:
            await asyncio.wait_for(handle.result(), poll_interval)
        except WorkflowFailureError:
            pass  # compensated: the view tells
        except TimeoutError:
            parked = await _parked_view(client, saga_id)
            if parked is None:
                continue
            return parked
        return await client.view(saga_id)


async def _parked_view(client: Client, saga_id: str) -> SagaView | None:
    """The view of the saga that needs a person: this one, or the checkout inside it."""
    view = await client.view(saga_id)
    if view.state == "PARKED":
        return view
    if view.saga == "weekly-order" and any(step.id == "buy" and step.started_at for step in view.steps):
        inner = await client.view(f"{saga_id}/buy")
        return inner if inner.state == "PARKED" else None
    return None
