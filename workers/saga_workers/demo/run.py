"""Runs a whole demo: starts the stack, opens the shop, lets the week's baskets through, and steps in where needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark.settings import spark_settings
from saga_workers.client import Client
from saga_workers.databases import open_engine, set_up
from saga_workers.demo.anew import forget_earlier
from saga_workers.demo.books import Books, Run, check_books
from saga_workers.demo.channel import CONNECTION as FINANCE
from saga_workers.demo.channel import Channel, channel_of
from saga_workers.demo.data import read_week
from saga_workers.demo.following import Story, follow
from saga_workers.demo.model import Order, Plan, Week
from saga_workers.demo.plan import make_plan
from saga_workers.demo.shop import hire_lorry, next_round, open_shop
from saga_workers.demo.shopfront import CONNECTION as SHOPFRONT
from saga_workers.demo.shopfront import Shopfront, open_shopfront, shared_secret
from saga_workers.dev.stack import Stack
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import Settings, load_settings
from sagas.settings.load import find_project

SAGAS = ("checkout", "checkout-tcc", "weekly-order", "day-close")
IN_FLIGHT = 40  # sagas under way at once; more would only wait in queues
# Seconds between two questions whether a saga is parked: a parked one never ends by itself. The first order is known
# to park, and all others wait for it; each question costs the worker some work.
LOOK_AGAIN_FIRST = 0.5
LOOK_AGAIN = 5.0
LAST_WRITES = 2.0  # seconds
APPROVAL = "approve"
_PARTS = ("definitions/checkout.saga.yaml", "actions/bookings.py", "schema.sql", "finance.sql")  # of a demo's project

OnEnd = Callable[[Order, Story], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One order and how its saga stands."""

    order: Order
    story: Story


def project_file() -> Path:
    """The settings of the demo's project: the one we stand in (`saga init DIR --demo`), else that of the checkout.

    Raises UsageError when there is neither.
    """
    root, here = find_project()
    if here is not None and all((root / part).is_file() for part in _PARTS):
        return here
    file = Path(__file__).resolve().parents[3] / "definitions" / "retail" / "saga.toml"
    if not file.is_file():
        raise UsageError(
            "The demo is a part of the project's checkout, and this installation has none.",
            help="clone the project and run `make demo` in it",
        )
    return file


async def open_demo(baskets: int, say: Say, config: Path | str | None = None) -> Demo:
    """Start the stack and open the shop for the first ``baskets`` baskets of the week.

    ``config`` is the saga.toml of a copy of the demo's project; default: see :func:`project_file`.

    Raises UsageError or SagaError, one sentence, when something is missing or does not start.
    """
    config = config or project_file()
    say("reading a week of the shop, and starting Temporal, PostgreSQL, Kafka and a worker …")
    # Side by side: reading keeps one core busy, starting mostly waits.
    week, settings = await asyncio.gather(
        asyncio.to_thread(read_week, baskets), asyncio.to_thread(_start_stack, config, say)
    )
    client = await Client.connect(Project(settings))
    for name in ("shop", FINANCE):
        await set_up(settings.connection(name), settings.kafka.shards)
    engine = open_engine(settings.connection("shop"))
    channel = channel_of(settings, engine)
    ended = await _end_earlier(client)
    if ended:
        say(f"the shop opens anew; unfinished sagas of an earlier demo that were terminated: {ended}")
    plan = make_plan(week)
    number = await next_round(engine)
    if number > 1:
        # An attempt that the worker already holds still writes; it must not write into the new shop.
        stage = spark_settings(settings).stage
        await forget_earlier(engine, stage, LAST_WRITES if ended else 0.0, channel.drain)
    await open_shop(engine, week, plan)
    channel = await channel.opened()
    return Demo(settings, client, engine, week, plan, number, time.time(), channel, _open_shopfront(settings))


@dataclass(frozen=True, slots=True)
class Demo:
    """A shop that is open. ``round`` counts the demos of this database and keeps their saga ids apart; ``opened_at`` is
    in seconds since the epoch. ``shopfront`` hears notifications; None: somebody else listens where it should."""

    settings: Settings
    client: Client
    engine: AsyncEngine
    week: Week
    plan: Plan
    round: int
    opened_at: float
    channel: Channel
    shopfront: Shopfront | None

    def saga_id(self, order: Order) -> str:
        return f"{order.saga}-{order.basket.id}-r{self.round}"

    async def run(self, on_end: OnEnd) -> list[Outcome]:
        """Start a saga for every basket and follow each until it has ended or is parked."""
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def one(order: Order, look_again: float = LOOK_AGAIN) -> Outcome:
            async with slots:
                story = await self._run_one(order, look_again)
            on_end(order, story)
            return Outcome(order, story)

        # The oversized order goes first and alone: so the shelves hold what it wants, and it gets to the warehouse.
        first, *others = self.plan.orders
        outcomes = [await one(first, LOOK_AGAIN_FIRST)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(order)) for order in others]
        return outcomes + [task.result() for task in tasks]

    async def follow(self, outcome: Outcome) -> Outcome:
        """Wait again for a saga that somebody has helped on."""
        return Outcome(outcome.order, await follow(self.client, self.saga_id(outcome.order), None))

    async def hire_lorry(self) -> str:
        """What the warehouse does about an order that no carrier takes; returns the SQL of it."""
        return await hire_lorry(self.engine)

    async def check(self, outcomes: Sequence[Outcome]) -> Books:
        """Hold the books of the shop against what the sagas say."""
        runs = [
            Run(outcome.order.basket.id, outcome.order.saga, outcome.story["state"], outcome.story["phase"])
            for outcome in outcomes
        ]
        return await check_books(self.engine, runs)

    async def close(self) -> None:
        """Let go of the databases, and close the web site; the stack goes on running."""
        if self.shopfront is not None:
            await asyncio.to_thread(self.shopfront.close)
        await self.channel.close()
        await self.engine.dispose()

    async def _run_one(self, order: Order, look_again: float) -> Story:
        saga_id = self.saga_id(order)
        await self.client.start(order.saga, order.input, id=saga_id)
        if order.saga == "weekly-order":
            await self._answer(saga_id, order)
        return await follow(self.client, saga_id, look_again)

    async def _answer(self, saga_id: str, order: Order) -> None:
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
    secret = shared_secret(settings.root / connection.options["signing_secret"]["file"])
    return open_shopfront(connection.url, secret)


def _start_stack(config: Path | str, say: Say) -> Settings:
    Stack(load_settings(config=config), say).up()
    return load_settings(config=config)


async def _end_earlier(client: Client) -> int:
    """Terminate what an earlier demo left open: its goods and accounts are about to be replaced."""
    names = ", ".join(f"'{name}'" for name in SAGAS)
    query = f"ExecutionStatus = 'Running' AND WorkflowType IN ({names})"
    found = [execution.id async for execution in client.temporal.list_workflows(query)]
    for saga_id in found:
        handle = client.temporal.get_workflow_handle(saga_id)
        await handle.terminate("saga demo: the shop opened anew, with new goods and accounts")
    return len(found)
