"""A real PostgreSQL with the shop's tables, and a small shop in it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from definitions.retail.demo.plan import DemoPlan, PlannedOrder
from definitions.retail.demo.scenario import project_file
from definitions.retail.demo.shop import open_shop
from definitions.retail.demo.week import Basket, BasketLine, SentCoupon, Shelf, Week
from saga_activities.guard.sql_session import SqlSession
from sagas.actions.registry import Actions, load_actions
from sagas.actions.step import Step
from sagas.definition.action_arguments import bind
from sagas.settings import Settings, load_settings
from tests.helpers.database_servers import DatabaseServer

BASKET = Basket("b-1", "rich", "2017-12-18 17:00", 7, (BasketLine("milk", 2, Decimal("3.98")),))


@pytest.fixture(scope="session")
def retail() -> Settings:
    """The settings of the demo's own project."""
    return load_settings(config=project_file())


@pytest.fixture
async def engine(postgres_server: DatabaseServer, retail: Settings) -> AsyncIterator[AsyncEngine]:
    """The database of a shop with a little of everything."""
    schema = retail.sql_connection("shop").schema_file
    assert schema is not None
    engine = create_async_engine(postgres_server.url().replace("postgresql:", "postgresql+psycopg:"))
    async with engine.begin() as connection:
        await connection.exec_driver_sql(schema.read_text(encoding="utf-8"))
    week = Week(
        number=52,
        first_day="2017-12-18",
        baskets=(BASKET,),
        shelves=(Shelf("milk", "Milk", 10), Shelf("bread", "Bread", 3)),
        limits={"rich": Decimal("100.00"), "poor": Decimal("1.00")},
        coupons=(SentCoupon("rich", "18", "51111", None), SentCoupon("poor", "18", "51111", date(2017, 12, 5))),
        available=1,
    )
    order = PlannedOrder("checkout", BASKET, {})
    plan = DemoPlan((order,), order, {"bicycle": 3, "van": 6}, {"2017-12-18 17:00": 1}, {"stollen": 1})
    await open_shop(engine, week, plan)
    yield engine
    await engine.dispose()


@pytest.fixture(scope="session")
def actions(retail: Settings) -> Actions:
    return load_actions(retail.actions, retail.root)


class ActionRunner:
    """Calls the shop's actions, each in a transaction of its own, as the guard would."""

    def __init__(self, engine: AsyncEngine, actions: Actions) -> None:
        self.engine = engine
        self.actions = actions

    async def __call__(self, name: str, /, key: str = "test/step", saga: str = "test", **arguments: Any) -> Any:
        action = self.actions[name]
        async with self.engine.begin() as connection:
            step = Step(
                key=key,
                saga_id=saga,
                id="step",
                op="do",
                attempt=1,
                generation=1,
                logger=logging.getLogger("test"),
                _heartbeat=lambda _: None,
                _sql=SqlSession(connection),
            )
            return await action.function(step, **bind(action, arguments))

    async def row(self, query: str, **parameters: Any) -> tuple[Any, ...]:
        async with self.engine.connect() as connection:
            return tuple((await connection.execute(text(query), parameters)).one())

    async def run(self, statement: str) -> None:
        async with self.engine.begin() as connection:
            await connection.exec_driver_sql(statement)


@pytest.fixture
def run_action(engine: AsyncEngine, actions: Actions) -> ActionRunner:
    return ActionRunner(engine, actions)
